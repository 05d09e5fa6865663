"""A delete of scattered records, worked out ahead of its event: which bits of which chunks it sets.

A match may hit half a million records. They go in one event, so that a crash or a reader sees all of it or nothing;
for the loop not to stand still meanwhile, `prepare` does the counting in small steps that change nothing, and
applying the event then only has to set what was counted. The event works without it too (replay): `strikes_in` finds
the same bits, later.

A record that is live when the event is applied was live when it was prepared, in a prepared chunk or in one that a
checkpoint has since put in its place. So only a chunk that is `gone` has to be looked up anew.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import compress
from typing import TYPE_CHECKING, NamedTuple

from topics.core.chunk import Chunk
from topics.core.ranges import SeqRanges

if TYPE_CHECKING:
    from topics.core.topic import Topic

PASSES_MAX = 3  # a checkpoint that replaces chunks meanwhile makes one more worth while
_FLAGS = bytes.maketrans(b"01", b"\0\1")


class Strike(NamedTuple):
    """One chunk's share of a delete."""

    chunk: Chunk
    dead: int  # what was dead when the next two were counted
    mask: int  # the records that are selected, dead or not
    records: int
    size: int


class Deletion:
    """A resolved match. Made in a thread: encoding many scattered ranges takes long."""

    __slots__ = ("encoded", "ranges", "strikes")

    def __init__(self, ranges: SeqRanges) -> None:
        self.ranges = ranges
        self.encoded = ranges.encode()
        self.strikes: list[Strike] = []

    def prepare(self, topic: "Topic") -> Iterator[None]:
        """Count what goes, a chunk a step. The topic may change between two steps."""
        for _ in range(PASSES_MAX):
            self.strikes = []
            for chunk, mask in selected_in(list(topic.chunks), self.ranges):
                self.strikes.append(strike_of(chunk, mask))
                yield
            if not self._outdated(topic):
                return

    def _outdated(self, topic: "Topic") -> bool:
        """Whether a prepared chunk was replaced; the ones that left at the front were not."""
        if not topic.chunks:
            return False
        front = topic.chunks[0].first_seq
        return any(strike.chunk.gone and strike.chunk.last_seq >= front for strike in self.strikes)

    def strikes_in(self, chunks: list[Chunk]) -> Iterator[Strike]:
        """What is to be set in the chunks as they are now."""
        front = chunks[0].first_seq if chunks else self.ranges.last or 0
        for strike in self.strikes:
            chunk = strike.chunk
            if chunk.last_seq < front:  # it left at the front
                continue
            if chunk.gone:
                yield from strikes_in(chunks, self.ranges, chunk.first_seq, chunk.last_seq)
            elif chunk.dead == strike.dead:
                yield strike
            else:
                yield strike_of(chunk, strike.mask)


def strikes_in(chunks: list[Chunk], ranges: SeqRanges, first: int = 0, last: int | None = None) -> Iterator[Strike]:
    """As `Deletion.strikes_in`, without preparation; only in chunks that have seqs from `first` to `last`."""
    for chunk, mask in selected_in(chunks, ranges, first, last):
        yield strike_of(chunk, mask)


def selected_in(
    chunks: Sequence[Chunk], ranges: SeqRanges, first: int = 0, last: int | None = None
) -> Iterator[tuple[Chunk, int]]:
    """Chunks that hold seqs of the ranges, with the mask of those. One walk along both, skipping what is between."""
    if last is None:
        last = ranges.last if ranges.last is not None else -1
    at = ranges.index_of(first)
    index = 0
    while at < ranges.range_count and (low := max(ranges.first_of(at), first)) <= last:
        if index < len(chunks) and chunks[index].last_seq < low:
            index = bisect_left(chunks, low, index, key=lambda chunk: chunk.last_seq)
        if index == len(chunks) or chunks[index].first_seq > last:
            return
        chunk = chunks[index]
        mask, at = ranges.bits(chunk.first_seq, len(chunk), at)
        if mask:
            yield chunk, mask
        index += 1


def strike_of(chunk: Chunk, mask: int) -> Strike:
    fresh = mask & ~chunk.dead
    count = fresh.bit_count()
    if count == chunk.live:
        return Strike(chunk, chunk.dead, mask, count, chunk.live_bytes)
    flags = bin(fresh)[:1:-1].encode().translate(_FLAGS)  # the lowest bit first
    return Strike(chunk, chunk.dead, mask, count, sum(compress(chunk.sizes, flags)))
