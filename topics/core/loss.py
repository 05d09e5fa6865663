"""What a topic has lost against its will, and why: the sole source of tombstones.

Two kinds. Evicted and expired records leave at the front and are kept as a few ranges (`Evicted`); the highest of
them is `evict_floor - 1`. A hole lies anywhere: a range that a crash, damage on disk or a trimmed source took.
Voluntary removal is never entered here, so it can never raise a tombstone.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from operator import attrgetter
from typing import NamedTuple

RANGES_MAX = 64

CAP, TTL, MIXED, RECREATED = "cap", "ttl", "mixed", "recreated"
CRASH, CORRUPT, SOURCE_TRIM = "crash", "corrupt", "source_trim"


class Tombstone(NamedTuple):
    gap_from: int
    gap_to: int
    reason: str
    missed: int


def resumes_at(reason: str, gap_to: int, earliest_seq: int) -> int:
    """The first seq after a gap, where its reader goes on: the tombstone's own `$seq`."""
    return earliest_seq if reason == RECREATED else gap_to + 1


class Hole(NamedTuple):
    first: int
    last: int
    reason: str


_first, _last = attrgetter("first"), attrgetter("last")


class Evicted:
    """Evicted and expired seqs as ascending inclusive ranges; exact until there are many of them."""

    __slots__ = ("cap_seq", "ranges", "ttl_seq")

    def __init__(self) -> None:
        self.ranges: list[tuple[int, int]] = []
        self.cap_seq = 0  # highest seq evicted for capacity
        self.ttl_seq = 0  # highest seq that expired

    @property
    def floor(self) -> int:
        """evict_floor: one above the highest live record lost."""
        return max(self.cap_seq, self.ttl_seq) + 1

    def add(self, first: int, last: int, reason: str) -> None:
        if reason == CAP:
            self.cap_seq = max(self.cap_seq, last)
        else:
            self.ttl_seq = max(self.ttl_seq, last)
        ranges = self.ranges
        if ranges and ranges[-1][1] + 1 >= first:
            ranges[-1] = (ranges[-1][0], max(last, ranges[-1][1]))
            return
        ranges.append((first, last))
        if len(ranges) > RANGES_MAX:  # from here on counts are an estimate, never too low
            ranges[0:2] = [(ranges[0][0], ranges[1][1])]

    def add_newest(self, newest_first: Iterator[tuple[int, int]], first: int, reason: str) -> None:
        """Enter runs of seqs that begin at `first`, as `add` would one by one, but look only at those that are kept."""
        kept: list[tuple[int, int]] = []
        for low, high in newest_first:
            if kept and kept[-1][0] == high + 1:
                kept[-1] = (low, kept[-1][1])
            elif len(kept) > RANGES_MAX:
                kept[-1] = (first, kept[-1][1])
                break
            else:
                kept.append((low, high))
        for low, high in reversed(kept):
            self.add(low, high, reason)

    def count(self, first: int, last: int) -> int:
        return sum(max(0, min(b, last) - max(a, first) + 1) for a, b in self.ranges)


class Holes:
    """Lost ranges inside the log, ascending and disjoint. A crash or a damaged block adds one, so there are few."""

    __slots__ = ("items",)

    def __init__(self) -> None:
        self.items: list[Hole] = []

    def add(self, first: int, last: int, reason: str) -> None:
        """Enter a lost range. What overlaps an earlier entry is already told, so repeating a recovery adds nothing."""
        for hole in self.within(first, last):
            self._insert(first, hole.first - 1, reason)
            first = hole.last + 1
        self._insert(first, last, reason)

    def _insert(self, first: int, last: int, reason: str) -> None:
        """Enter a range that no entry overlaps."""
        items = self.items
        if first > last:
            return
        index = bisect_left(items, first, key=_first)
        if index and items[index - 1].last + 1 == first and items[index - 1].reason == reason:
            items[index - 1] = Hole(items[index - 1].first, last, reason)
        else:
            items.insert(index, Hole(first, last, reason))

    def after(self, seq: int) -> Hole | None:
        """The first hole that reaches above `seq`."""
        index = bisect_left(self.items, seq + 1, key=_last)
        return self.items[index] if index < len(self.items) else None

    def within(self, first: int, last: int) -> list[Hole]:
        start = bisect_left(self.items, first, key=_last)
        return self.items[start : bisect_right(self.items, last, lo=start, key=_first)]


def find_gap(evicted: Evicted, holes: Holes, from_seq: int, next_live: int) -> Tombstone | None:
    """The tombstone for a cursor at `from_seq` whose next live record is `next_live`, or None if nothing was lost."""
    first, last = from_seq + 1, next_live - 1
    reasons = []
    missed = 0
    if first < evicted.floor:
        missed = evicted.count(first, last)
        reasons += [CAP] if evicted.cap_seq > from_seq else []
        reasons += [TTL] if evicted.ttl_seq > from_seq else []
    for hole in holes.within(first, last) if holes.items else ():
        missed += min(hole.last, last) - max(hole.first, first) + 1
        if hole.reason not in reasons:
            reasons.append(hole.reason)
    if not reasons:
        return None
    return Tombstone(first, last, reasons[0] if len(reasons) == 1 else MIXED, missed)
