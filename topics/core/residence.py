"""The time in which a topic is `ephemeral`: nothing that happens to its records is logged.

Such a topic may still hold records from before, which the log or a data file has. They are promised nothing while it
is `ephemeral`: a crash empties it, because the deletes of that time are not known. When it leaves the class, the event
says what is left (`Kept`), so that a replay has the same records from before and a hole for those that only the
memory held. `resident_from` is the first of these; chunks and tag generations do not reach over it.

What is left of very many records from before is worked out ahead (`Survey`), while commands on the topic wait.
"""

from typing import Any

import msgspec

from topics.core.bits import span
from topics.core.chunk import Chunk
from topics.core.config import TopicConfig
from topics.core.deletion import strikes_in
from topics.core.loss import CORRUPT, CRASH
from topics.core.ranges import SeqRanges
from topics.core.topic import Topic

SURVEY_MIN = 64  # chunks with records from before; with fewer it takes no time


class _Stored(msgspec.Struct, array_like=True):
    """What `Kept.pack` gives."""

    live: bytes
    resident_first: int
    resident_last: int
    delete_below: int
    cap_seq: int
    ttl_seq: int
    evicted: list[tuple[int, int]]


class Kept(msgspec.Struct, frozen=True):
    """What is left of a topic at the end of such a time."""

    live: SeqRanges  # of the records from before; some may be evicted or deleted below the seqs that follow
    resident_first: int  # live records that only the memory has lie from here
    resident_last: int  # to here; 0 if there are none
    delete_below: int
    cap_seq: int
    ttl_seq: int
    evicted: list[tuple[int, int]]
    encoded: bytes = b""  # the live ones, if that was done ahead

    def pack(self) -> list[Any]:
        return [self.encoded or self.live.encode(), *msgspec.structs.astuple(self)[1:-1]]

    @classmethod
    def unpack(cls, fields: list[Any]) -> "Kept":
        """ValueError if they are none that `pack` gives."""
        stored = msgspec.convert(fields, _Stored)
        return cls(SeqRanges.decode(stored.live), *msgspec.structs.astuple(stored)[1:])


def is_resident(topic: Topic) -> bool:
    return topic.config.durability == "ephemeral"


def begin(topic: Topic) -> None:
    topic.resident_from = topic.head_seq + 1
    topic.stored_live = None
    topic.close_tags()
    if topic.chunks:
        topic.chunks[-1].open = False


Entry = tuple[int, int, int]  # of a chunk: first seq, records, which are dead


class Survey:
    """Which of the records from before are live, at the instant it is made."""

    __slots__ = ("_entries", "encoded", "live")

    def __init__(self, topic: Topic) -> None:
        self._entries = _entries_of(topic)
        self.live = SeqRanges()
        self.encoded = b""

    def work_out(self) -> None:
        """In a thread."""
        self.live = SeqRanges.from_masks((first, span(0, n) & ~dead) for first, n, dead in self._entries)
        self.encoded = self.live.encode()

    def holds_for(self, topic: Topic) -> bool:
        """Whether it is still so, but for what has been evicted at the front: the floors tell that."""
        entries = _entries_of(topic)
        gone = len(self._entries) - len(entries)
        if gone < 0 or (entries and self._entries[gone + 1 :] != entries[1:]):
            return False
        floor = _floor_of(topic)
        if any(~dead & span(min(max(0, floor - first), n), n) for first, n, dead in self._entries[:gone]):
            return False
        return not entries or _is_same_above(floor, self._entries[gone], entries[0])


def _entries_of(topic: Topic) -> list[Entry]:
    return [(chunk.first_seq, len(chunk.sizes), chunk.dead) for chunk in topic.logged_chunks()]


def _floor_of(topic: Topic) -> int:
    """Below this seq nothing is live."""
    return max(topic.evict_floor, topic.delete_below)


def _is_same_above(floor: int, before: Entry, after: Entry) -> bool:
    return before[:2] == after[:2] and not (before[2] ^ after[2]) >> max(0, floor - before[0])


def takes_long(topic: Topic) -> bool:
    """Whether to end it needs a survey."""
    return is_resident(topic) and len(topic.logged_chunks()) > SURVEY_MIN


def end(topic: Topic, config: TopicConfig, ts: int, survey: Survey | None = None) -> Kept:
    """Live by the new configuration from now on; what is left by it, for the event.

    It cannot wait until the event is durable: what expired meanwhile would be in the event and not in the topic. If
    the event does not become durable the shard restarts, and this topic is empty.
    """
    topic.rebound(config, ts)
    if survey is None or not survey.holds_for(topic):
        survey = Survey(topic)
        survey.work_out()
    return _kept_of(topic, survey)


def _kept_of(topic: Topic, survey: Survey) -> Kept:
    before = topic.logged_chunks()
    resident_last = last_live(topic.chunks[len(before) :])
    resident_first = topic.next_live(topic.resident_from - 1) if resident_last else 0
    evicted = topic.evicted
    floors = (topic.delete_below, evicted.cap_seq, evicted.ttl_seq)
    return Kept(survey.live, resident_first, resident_last, *floors, list(evicted.ranges), survey.encoded)


def last_live(chunks: list[Chunk]) -> int:
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
    gone = _complement(kept.live, _floor_of(topic), topic.head_seq)
    topic.strike(strikes_in(topic.chunks, gone), gone)
    if kept.resident_last:
        topic.lose(kept.resident_first, kept.resident_last, CRASH)


def first_untold(topic: Topic) -> int:
    """The first seq that is live, or gone without a reason that readers are told; head_seq + 1 if there is none."""
    at = max(topic.evicted.floor, topic.delete_below)
    while (hole := topic.holes.after(at - 1)) is not None and hole.first <= at:
        at = hole.last + 1
    return min(at, topic.earliest_seq)


def forget(topic: Topic, last: int) -> None:
    """In a replay: such a time ended behind `last`, and what was left of the topic then is not known."""
    topic.lose(first_untold(topic), last, CORRUPT)
    topic.resident_from = 0
    if topic.derived is not None:
        topic.derived.filled(last)  # no copies come to what is told as lost


def _complement(live: SeqRanges, floor: int, head_seq: int) -> SeqRanges:
    """What is not live, and what lies below the floor."""
    gone = SeqRanges()
    at = 1
    for first, last in live:
        if last < floor:
            continue
        if at < max(first, floor):
            gone.add(at, max(first, floor) - 1)
        at = last + 1
    if at <= head_seq:
        gone.add(at, head_seq)
    return gone
