"""Records that wait for a time: jobs until they may be claimed, records until they are over. About sixteen bytes each.

They come in the order of their seqs, so they are kept in pages of that order, each with the earliest time of those it
still has; a heap holds the pages by that. Looking for what is due touches only pages that have something due.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from math import inf
from operator import attrgetter

from topics.core.bits import runs, span
from topics.core.ranges import SeqRanges

PAGE = 256
STALE_MIN = 1024  # entries of the heap that may be stale whatever there is
_last_seq = attrgetter("last_seq")


class _Page:
    __slots__ = ("dues", "left", "seqs", "soonest")

    def __init__(self) -> None:
        self.seqs = array("Q")
        self.dues = array("Q")
        self.left = 0  # a bit for each that still waits
        self.soonest = 0  # none of these is due before

    @property
    def last_seq(self) -> int:
        return self.seqs[-1]

    def waiting(self) -> Iterator[int]:
        for low, high in runs(self.left):
            yield from range(low, high)

    def due_by(self, now: int) -> int:
        """A bit for each that waits until now or less."""
        if max(self.dues) <= now:
            return self.left
        return sum(1 << index for index in self.waiting() if self.dues[index] <= now)


class Timetable:
    __slots__ = ("_heap", "_pages", "count")

    def __init__(self) -> None:
        self.count = 0
        self._pages: list[_Page] = []
        self._heap: list[tuple[int, int]] = []  # (soonest, first seq of the page); some no longer stand

    def add(self, seq: int, due: int) -> None:
        """With a higher seq than all before."""
        page = self._pages[-1] if self._pages and len(self._pages[-1].seqs) < PAGE else None
        if page is None:
            page = _Page()
            self._pages.append(page)
        page.seqs.append(seq)
        page.dues.append(due)
        if not page.left or due < page.soonest:
            page.soonest = due
            heappush(self._heap, (due, page.seqs[0]))
        page.left |= 1 << len(page.seqs) - 1
        self.count += 1

    @property
    def first(self) -> int | None:
        """Nothing is due before this time."""
        return self._heap[0][0] if self._heap else None

    @property
    def first_seq(self) -> int:
        """None of a lower seq waits; there is at least one."""
        return self._pages[0].seqs[0]

    def pop_due(self, now: int, most: float = inf) -> list[tuple[int, int]]:
        """Take out what is due by now: (time, seq); about so many at most, as of a page all are taken."""
        due: list[tuple[int, int]] = []
        for page, gone in self._pop_pages(now, most):
            for low, high in runs(gone):
                due += zip(page.dues[low:high], page.seqs[low:high], strict=True)
        return due

    def pop_ranges(self, now: int) -> SeqRanges:
        """All that is, as seqs alone. Where neighbours go together it costs next to nothing for each."""
        due: list[tuple[int, int]] = []
        for page, gone in self._pop_pages(now):
            for low, high in runs(gone):
                seqs = page.seqs[low:high]
                if seqs[-1] - seqs[0] == high - low - 1:
                    due.append((seqs[0], seqs[-1]))
                else:
                    due += zip(seqs, seqs, strict=True)
        ranges = SeqRanges()
        for first, last in sorted(due):
            ranges.add(first, last)
        return ranges

    def _pop_pages(self, now: int, most: float = inf) -> Iterator[tuple[_Page, int]]:
        """Pages with something due, and a bit for each that is; it is struck behind."""
        while self._heap and self._heap[0][0] <= now and most > 0:
            soonest, first_seq = heappop(self._heap)
            at = bisect_left(self._pages, first_seq, key=_last_seq)
            page = self._pages[at] if at < len(self._pages) else None
            if page is None or page.seqs[0] != first_seq or page.soonest != soonest:
                continue
            gone = page.due_by(now)
            most -= gone.bit_count()
            yield page, gone
            self._strike(at, gone)
            if page.left:
                page.soonest = min(page.dues[index] for index in page.waiting())
                heappush(self._heap, (page.soonest, first_seq))

    def drop_range(self, first: int, last: int) -> None:
        """Forget these seqs, whatever their time."""
        at = bisect_left(self._pages, first, key=_last_seq)
        while at < len(self._pages) and self._pages[at].seqs[0] <= last:
            page = self._pages[at]
            gone = page.left & span(bisect_left(page.seqs, first), bisect_left(page.seqs, last + 1))
            if gone:
                self._strike(at, gone)
            at += 1 if page.left else 0

    def _strike(self, at: int, gone: int) -> None:
        page = self._pages[at]
        page.left &= ~gone
        self.count -= gone.bit_count()
        if not page.left:
            del self._pages[at]
            if len(self._heap) > STALE_MIN + 16 * len(self._pages):  # mostly of pages that went before their time
                self._heap = [(page.soonest, page.seqs[0]) for page in self._pages]
                heapify(self._heap)
