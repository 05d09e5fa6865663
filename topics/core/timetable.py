"""Records that wait for a time: jobs until they may be claimed, records until they are over. About sixteen bytes each.

They come in the order of their seqs, so they are kept in pages of that order, each with the earliest time of those it
still has; a heap holds the pages by that. Looking for what is due touches only pages that have something due. What may
come to very many is done a page at a time, and the caller says when it is enough.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import chain, compress, islice
from math import inf
from operator import attrgetter

from topics.core.bits import gather, span, spread
from topics.core.ranges import SeqRanges

PAGE = 256
DROP_STEP = 4  # pages, of many ranges
CUT_STEP = 128  # pages, of one range
FREE_STEP = 32  # pages that are freed together
FRONT_STEP = 512  # pages that are forgotten at the front in one go
ALONE = 32  # so many that come together get a page of their own
STALE_MIN = 1024  # entries of the heap that may be stale whatever there is
_first_seq = attrgetter("first_seq")
_last_seq = attrgetter("last_seq")


class _Page:
    __slots__ = ("dues", "first_seq", "latest", "left", "seqs", "soonest")

    def __init__(self, first_seq: int) -> None:
        self.first_seq = first_seq
        self.seqs = array("Q")
        self.dues = array("Q")
        self.left = 0  # a bit for each that still waits
        self.soonest = 0  # none of these is due before
        self.latest = 0  # nor behind this

    @property
    def last_seq(self) -> int:
        return self.seqs[-1]

    def due_by(self, now: int) -> int:
        """A bit for each that waits until now or less."""
        return self.left if self.latest <= now else self.left & gather(map(now.__ge__, self.dues))

    def among(self, gone: SeqRanges) -> int:
        """A bit for each that waits and is in the ranges."""
        seqs = self.seqs
        if seqs[-1] - seqs[0] < len(seqs):  # neighbours
            return self.left & gone.bits(seqs[0], len(seqs))[0]
        return self.left & gather(map(gone.__contains__, seqs))


class Timetable:
    __slots__ = ("_dropping", "_heap", "_page_of", "_pages", "count")

    def __init__(self) -> None:
        self.count = 0
        self._pages: list[_Page] = []
        self._page_of: dict[int, _Page] = {}  # by first seq
        self._heap: list[tuple[int, int]] = []  # (soonest, first seq of the page); some no longer stand
        self._dropping: deque[Iterator[None]] = deque()

    def add(self, seq: int, due: int) -> None:
        """With a higher seq than all before."""
        page = self._pages[-1] if self._pages and len(self._pages[-1].seqs) < PAGE else None
        if page is None:
            page = self._page_of[seq] = _Page(seq)
            self._pages.append(page)
        page.seqs.append(seq)
        page.dues.append(due)
        if not page.left or due < page.soonest:
            page.soonest = due
            heappush(self._heap, (due, page.first_seq))
        if due > page.latest:
            page.latest = due
        page.left |= 1 << len(page.seqs) - 1
        self.count += 1

    def add_all(self, seqs: Sequence[int], dues: "array[int]", soonest: int, latest: int) -> None:
        """Those of a block at once: a hundred times as fast. The last two are the earliest and the latest of `dues`."""
        if not ALONE <= len(seqs) <= PAGE:
            for seq, due in zip(seqs, dues, strict=True):
                self.add(seq, due)
            return
        page = self._page_of[seqs[0]] = _Page(seqs[0])
        page.seqs = array("Q", seqs)
        page.dues = dues[:]  # a block may grow
        page.left = span(0, len(seqs))
        page.soonest, page.latest = soonest, latest
        self._pages.append(page)
        heappush(self._heap, (soonest, page.first_seq))
        self.count += len(seqs)

    @property
    def first(self) -> int | None:
        """Nothing is due before this time."""
        return self._heap[0][0] if self._heap else None

    @property
    def first_seq(self) -> int:
        """None of a lower seq waits; there is at least one."""
        return self._pages[0].first_seq

    def pop_due(self, now: int, most: float = inf) -> list[tuple[int, int]]:
        """Take out what is due by now: (time, seq); about so many at most, as of a page all are taken."""
        due: list[tuple[int, int]] = []
        for page, gone in self._pop_pages(now, most):
            which = spread(gone)
            due += zip(compress(page.dues, which), compress(page.seqs, which), strict=True)
        return due

    def pop_ranges(self, now: int, most: float = inf) -> SeqRanges:
        """As seqs alone."""
        pages = sorted((page.first_seq, page.seqs, gone) for page, gone in self._pop_pages(now, most))
        due = [compress(seqs, spread(gone)) for _, seqs, gone in pages]
        return SeqRanges.from_ascending(chain.from_iterable(due))

    def _pop_pages(self, now: int, most: float = inf) -> Iterator[tuple[_Page, int]]:
        """Pages with something due, and a bit for each that is; it has been struck."""
        while self._heap and self._heap[0][0] <= now and most > 0:
            soonest, first_seq = heappop(self._heap)
            page = self._page_of.get(first_seq)
            if page is None or page.soonest != soonest:
                continue
            gone = page.due_by(now)
            most -= gone.bit_count()
            self._strike(page, gone)
            if page.left:
                page.soonest = min(compress(page.dues, spread(page.left)))
                heappush(self._heap, (page.soonest, first_seq))
            yield page, gone

    def take_apart(self) -> list[list[_Page]]:
        """What there is in pieces, none of which takes long to free; nothing waits any more."""
        pages, self._pages, self._page_of, self._heap, self.count = self._pages, [], {}, [], 0
        self._dropping.clear()
        return [pages[at : at + FREE_STEP] for at in range(0, len(pages), FREE_STEP)]

    def drop_range(self, first: int, last: int) -> None:
        """Forget these seqs, whatever their time. Costs little, however many there are."""
        low = bisect_left(self._pages, first, key=_last_seq)
        high = bisect_right(self._pages, last, low, key=_first_seq)
        if high - low > 2:
            self._cut(low + 1, high - 1)
            high = low + 2
        for page in self._pages[low:high]:
            self._strike(page, page.left & span(bisect_left(page.seqs, first), bisect_right(page.seqs, last)))

    def drop_below(self, seq: int) -> None:
        """Forget what has a lower seq, or much of it."""
        high = bisect_left(self._pages, seq, key=_last_seq)
        self._cut(0, min(high, FRONT_STEP))
        if high < FRONT_STEP and self._pages and self._pages[0].first_seq < seq:
            self._strike(self._pages[0], self._pages[0].left & span(0, bisect_left(self._pages[0].seqs, seq)))

    def drop(self, gone: SeqRanges) -> Iterator[None]:
        """The same for many ranges, a page a step. Between two steps whatever may happen."""
        at, seq = 0, 0
        while at < gone.range_count:
            index = bisect_left(self._pages, max(seq, gone.first_of(at)), key=_last_seq)
            if index == len(self._pages):
                return
            page = self._pages[index]
            seq = page.last_seq + 1
            self._strike(page, page.among(gone))
            at = gone.index_of(seq)
            yield

    def drop_later(self, gone: SeqRanges) -> None:
        """Forget these now if they are few, else `catch_up` has to go on with it."""
        if gone.range_count == 1:
            ((first, last),) = gone
            if last - first < CUT_STEP * PAGE:
                self.drop_range(first, last)
                return
        self._dropping.append(self._drop_wide(first, last) if gone.range_count == 1 else self.drop(gone))
        self.catch_up()

    def _drop_wide(self, first: int, last: int) -> Iterator[None]:
        """The same for one long range, many pages a step."""
        while True:
            low = bisect_left(self._pages, first, key=_last_seq)
            if low + CUT_STEP >= len(self._pages) or self._pages[low + CUT_STEP].first_seq > last:
                break
            self._cut(low + 1, low + CUT_STEP)
            yield
        self.drop_range(first, last)

    def catch_up(self) -> bool:
        """Forget a step of what is to be forgotten; whether that was all."""
        while self._dropping:
            if len(list(islice(self._dropping[0], DROP_STEP))) == DROP_STEP:
                return False
            self._dropping.popleft()
        return True

    def _strike(self, page: _Page, gone: int) -> None:
        page.left &= ~gone
        self.count -= gone.bit_count()
        if not page.left:
            at = bisect_left(self._pages, page.first_seq, key=_first_seq)
            self._forget(at, at + 1)

    def _cut(self, low: int, high: int) -> None:
        """Whole pages."""
        self.count -= sum([page.left.bit_count() for page in self._pages[low:high]])
        self._forget(low, high)

    def _forget(self, low: int, high: int) -> None:
        for page in self._pages[low:high]:
            del self._page_of[page.first_seq]
        del self._pages[low:high]
        if len(self._heap) > STALE_MIN + 16 * len(self._pages):  # mostly of pages that went before their time
            self._heap = [(page.soonest, page.first_seq) for page in self._pages]
            heapify(self._heap)
