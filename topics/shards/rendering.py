"""A large write made ready in a thread, while its topic is held or is not there yet: sifted and checked against its
topic, its records rendered to blocks, those encoded as the log will have them, and its keys as they will be remembered.
What is left to the loop is to take it in.
"""

from topics.core.dedup import Sifted, Told
from topics.core.events import Encoded
from topics.core.ids import Ids
from topics.core.keyruns import prepare
from topics.core.render import render_blocks
from topics.core.requests import Append
from topics.core.terms import lay_terms
from topics.core.topic import Topic
from topics.shards.answers import Appending, Rendered
from topics.shards.keymemory import KeyMemory


def make_ready(memory: KeyMemory, topic: Topic, request: Append, ts: int, ids: Ids | None) -> Rendered | Appending:
    """The answer, if the write was made before. While the topic is held, its keys stay as they are."""
    answer = memory.recall(topic, request, ts)
    if answer is not None:
        return answer._replace(duplicates=Told.ahead(answer.duplicates))
    return render(memory, topic, request, ts, ids)


def render(memory: KeyMemory, topic: Topic, request: Append, ts: int, ids: Ids | None) -> Rendered:
    """`topic`, which may be one that the write is to make, is asked for nothing that could change while it is held.
    Raises what is wrong with the write."""
    kept, duplicates = memory.sift(topic, request, ts)
    blocks = render_blocks(kept.records, kept.node, topic.next_seq, ts, ids)
    if kept.has_terms and blocks:
        lay_terms(blocks, kept.records, ts)
        for block in blocks:
            if block.extras is not None and block.extras.expiries is not None:
                block.extras.expiries.bounds  # noqa: B018 - the timetable will ask
    keys = prepare(kept.dedups, topic.next_seq, ts) if kept.dedups else None
    encoded = Encoded(blocks) if topic.config.durability != "ephemeral" else None
    return Rendered(Sifted(kept, Told.ahead(duplicates)), blocks, keys, encoded, topic.config)
