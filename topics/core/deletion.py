"""A delete of scattered records, worked out ahead of its event: which bits of which chunks it sets.

A match may hit half a million records. They go in one event, so that a crash or a reader sees all of it or nothing;
for the loop not to stand still meanwhile, `prepare` does the counting in small steps that change nothing, and
applying the event then only has to set what was counted. The event works without it too (replay): `strikes_in` finds
the same bits, later.

A record that is live when the event is applied was live when it was prepared, in a prepared chunk or in one that a
checkpoint has since put in its place. So only a chunk that is `gone`, or dead in other places than it was, has to be
looked up anew.
"""

from bisect import bisect_left
from collections.abc import Generator, Iterator, Sequence
from typing import TYPE_CHECKING

from topics.core.chunk import Chunk, DataFile
from topics.core.ranges import SeqRanges

if TYPE_CHECKING:
    from topics.core.topic import Topic

PASSES_MAX = 3  # a checkpoint that replaces chunks meanwhile makes one more worth while
LOOKS = 256  # chunks looked at in one step


# One chunk's share of a delete: `dead` when it was counted and what it becomes, then the records and bytes that go. A
# plain tuple is taken apart in half the time of a named one.
Strike = tuple[Chunk, int, int, int, int]


class Strikes:
    """What a delete does to chunks, with the sums: `Topic.strike` sets all of it in one step, so there must be as
    little as possible left to do for each."""

    __slots__ = ("by_file", "items", "records", "size")

    def __init__(self) -> None:
        self.items: list[Strike] = []
        self.records = 0
        self.size = 0
        self.by_file: dict[DataFile, int] = {}  # records

    def add(self, chunk: Chunk, mask: int) -> None:
        records, size = chunk.weigh(mask)
        if records:
            self.items.append((chunk, chunk.dead, chunk.dead | mask, records, size))
            self._count(chunk, records, size)

    def leave_out(self, strike: Strike) -> None:
        """It counts no more."""
        chunk, _, _, records, size = strike
        self._count(chunk, -records, -size)

    def _count(self, chunk: Chunk, records: int, size: int) -> None:
        self.records += records
        self.size += size
        if chunk.file is not None:
            self.by_file[chunk.file] = self.by_file.get(chunk.file, 0) + records


class Deletion:
    """A resolved match. Made in a thread: encoding many scattered ranges takes long."""

    __slots__ = ("encoded", "ranges", "strikes")

    def __init__(self, ranges: SeqRanges) -> None:
        self.ranges = ranges
        self.encoded = ranges.encode()
        self.strikes = Strikes()

    def prepare(self, topic: "Topic") -> Iterator[None]:
        """Count what goes, a chunk a step. The topic may change between two steps."""
        for _ in range(PASSES_MAX):
            self.strikes = Strikes()
            for chunk, mask in selected_in(list(topic.chunks), self.ranges):
                self.strikes.add(chunk, mask)
                yield
            if not (yield from self._is_outdated(topic)):
                return

    def _is_outdated(self, topic: "Topic") -> Generator[None, None, bool]:
        """Whether a prepared chunk was replaced; the ones that left at the front were not."""
        for low in range(0, len(self.strikes.items), LOOKS):
            if low:
                yield
            front = _front_of(topic)
            for chunk, *_ in self.strikes.items[low : low + LOOKS]:
                if chunk.gone and chunk.last_seq >= front:
                    return True
        return False

    def still_in(self, topic: "Topic") -> Strikes:
        """What was prepared, without the chunks that have left at the front."""
        items = self.strikes.items
        front = _front_of(topic)
        left = bisect_left(items, front, key=lambda strike: strike[0].last_seq)
        for strike in items[:left]:
            self.strikes.leave_out(strike)
        del items[:left]
        return self.strikes


def _front_of(topic: "Topic") -> int:
    """Chunks that end below this have left the log."""
    return topic.chunks[0].first_seq if topic.chunks else topic.next_seq


def strikes_in(chunks: Sequence[Chunk], ranges: SeqRanges, first: int = 0, last: int | None = None) -> Strikes:
    """What a delete of the ranges does to the chunks as they are now, to those with seqs from `first` to `last`."""
    strikes = Strikes()
    for chunk, mask in selected_in(chunks, ranges, first, last):
        strikes.add(chunk, mask)
    return strikes


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
