"""A large write made ready in a thread, while its topic is held or is not there yet: sifted and checked against its
topic, its records rendered to blocks, and those encoded as the log will have them. What is left to the loop is to take
it in.
"""

from topics.core.events import Encoded
from topics.core.ids import Ids
from topics.core.render import render_blocks
from topics.core.requests import Append
from topics.core.terms import lay_terms
from topics.core.topic import Topic
from topics.shards.answers import Rendered
from topics.shards.keymemory import KeyMemory


def render(memory: KeyMemory, topic: Topic, request: Append, ts: int, ids: Ids | None) -> Rendered:
    """`topic`, which may be one that the write is to make, is asked for nothing that could change while it is held.
    Raises what is wrong with the write."""
    sifted = memory.sift(topic, request, ts)
    kept = sifted.request
    blocks = render_blocks(kept.records, kept.node, topic.next_seq, ts, ids)
    if kept.has_terms and blocks:
        lay_terms(blocks, kept.records, ts)
    logged = topic.config.durability != "ephemeral"
    return Rendered(sifted, blocks, Encoded(blocks) if logged else None, topic.config)
