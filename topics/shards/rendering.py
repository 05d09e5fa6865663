"""A large write made ready in a thread, while its topic is held or is not there yet: checked against its topic, its
records rendered to blocks, and those encoded as the log will have them. What is left to the loop is to take it in.
"""

from topics.core.dedup import Sifted, sift
from topics.core.events import Encoded
from topics.core.ids import Ids, ids_of
from topics.core.render import render_blocks
from topics.core.requests import Append
from topics.core.terms import check_topic, lay_terms
from topics.core.topic import Topic
from topics.shards.answers import Rendered


def render(request: Append, sifted: Sifted, topic: Topic, first_seq: int, ts: int, ids: Ids | None) -> Rendered:
    """`topic` is asked for nothing that could change while it is held. Raises what is wrong with the write."""
    if request.has_terms:
        check_topic(request.records, topic, ts)  # all of it: what is wrong is wrong in a duplicate, too
    kept = sifted.request
    blocks = render_blocks(kept.records, kept.node, first_seq, ts, ids)
    if kept.has_terms and blocks:
        lay_terms(blocks, kept.records, ts)
    logged = topic.config.durability != "ephemeral"
    return Rendered(sifted, blocks, Encoded(blocks, kept.dedups) if logged else None, topic.config)


def render_first(request: Append, draft: Topic, ts: int) -> Rendered:
    """The same of a write that is to make its topic, of which `draft` knows the configuration."""
    sifted = sift(request, None, draft.next_seq, 0, 0)
    return render(request, sifted, draft, draft.next_seq, ts, ids_of(draft, ts))
