"""The time in which a topic is `ephemeral`: nothing that happens to its records is logged.

Such a topic may still hold records from before, which the log or a data file has. They are promised nothing while it
is `ephemeral`: a crash empties it, because the deletes of that time are not known. When it leaves the class, the event
says what is left (`Kept`), so that a replay has the same records from before and a hole for those that only the
memory held. `resident_from` is the first of these; chunks and tag generations do not reach over it.
"""

from typing import Any

import msgspec

from topics.core.bits import span
from topics.core.chunk import Chunk
from topics.core.config import TopicConfig
from topics.core.deletion import strikes_in
from topics.core.loss import CRASH
from topics.core.ranges import SeqRanges
from topics.core.topic import Topic


class Kept(msgspec.Struct, frozen=True):
    """What is left of a topic at the end of such a time."""

    live: SeqRanges  # of the records from before
    resident_first: int  # live records that only the memory has lie from here
    resident_last: int  # to here; 0 if there are none
    delete_below: int
    cap_seq: int
    ttl_seq: int
    evicted: list[tuple[int, int]]

    def pack(self) -> list[Any]:
        return [self.live.encode(), *msgspec.structs.astuple(self)[1:]]

    @classmethod
    def unpack(cls, fields: list[Any]) -> "Kept":
        live, resident_first, resident_last, delete_below, cap_seq, ttl_seq, evicted = fields[:7]
        ranges = [(first, last) for first, last in evicted]
        return cls(SeqRanges.decode(live), resident_first, resident_last, delete_below, cap_seq, ttl_seq, ranges)


def is_resident(topic: Topic) -> bool:
    return topic.config.durability == "ephemeral"


def begin(topic: Topic) -> None:
    topic.resident_from = topic.head_seq + 1
    topic.close_tags()
    if topic.chunks:
        topic.chunks[-1].open = False


def end(topic: Topic, config: TopicConfig, ts: int) -> Kept:
    """Live by the new configuration from now on; what is left by it, for the event.

    It cannot wait until the event is durable: what expired meanwhile would be in the event and not in the topic. If
    the event does not become durable the shard restarts, and this topic is empty.
    """
    topic.rebound(config, ts)
    return _kept_of(topic)


def _kept_of(topic: Topic) -> Kept:
    before = topic.logged_chunks()
    live = SeqRanges.from_masks((chunk.first_seq, span(0, len(chunk)) & ~chunk.dead) for chunk in before)
    resident_last = _last_live(topic.chunks[len(before) :])
    resident_first = topic.next_live(topic.resident_from - 1) if resident_last else 0
    evicted = topic.evicted
    return Kept(
        live, resident_first, resident_last, topic.delete_below, evicted.cap_seq, evicted.ttl_seq, list(evicted.ranges)
    )


def _last_live(chunks: list[Chunk]) -> int:
    """The seq of the last live record, or 0."""
    for chunk in reversed(chunks):
        if chunk.live:
            return chunk.first_seq + (span(0, len(chunk)) & ~chunk.dead).bit_length() - 1
    return 0


def restore(topic: Topic, kept: Kept) -> None:
    """In replay: the topic has every record from before; bring it to what was left, and enter what is lost."""
    topic.delete_below = kept.delete_below
    evicted = topic.evicted
    evicted.cap_seq, evicted.ttl_seq, evicted.ranges = kept.cap_seq, kept.ttl_seq, list(kept.evicted)
    gone = _complement(kept.live, topic.head_seq)
    topic.strike(strikes_in(topic.chunks, gone), gone)
    if kept.resident_last:
        topic.lose(kept.resident_first, kept.resident_last, CRASH)


def _complement(live: SeqRanges, head_seq: int) -> SeqRanges:
    gone = SeqRanges()
    at = 1
    for first, last in live:
        if at < first:
            gone.add(at, first - 1)
        at = last + 1
    if at <= head_seq:
        gone.add(at, head_seq)
    return gone
