"""Seqs by the time at which something happens to them: a lease ends, a delay is over.

Most are taken out long before: a lease of hours is over when its job is acknowledged, a moment later. So an entry that
is taken out leaves nothing behind, and a calendar costs what is still to come.

Many seqs share a time (a batch is leased in one go), so each time has a set of them, or the one seq. Times are kept in
pages of four seconds. A heap holds the numbers of the pages, another the times of the first page. What became empty is
left in its heap until that is mostly of such. Nothing is put off by more than a day, so the heaps are small enough to
be made anew in one go.
"""

from collections.abc import Collection, Iterable
from heapq import heapify, heappop, heappush

_BITS = 12
STALE_MIN = 64  # entries of a heap that may be of nothing, or there twice, whatever there is
SHRINK_MAX = 1 << 15  # seqs that are copied in one go


class Calendar:
    __slots__ = ("_heap", "_pages", "_times", "_times_of", "first", "size")

    def __init__(self) -> None:
        self._pages: dict[int, dict[int, int | set[int]]] = {}  # none is empty
        self._heap: list[int] = []
        self._times: list[int] = []
        self._times_of = -1  # the page that they are of
        self.first: int | None = None  # no entry has an earlier time; None: there is none
        self.size = 0  # entries

    def add(self, when: int, seq: int) -> None:
        """Unless it is there."""
        page = self._page(when)
        there = page.get(when)
        if there is None:
            page[when] = seq
            self.size += 1
        elif isinstance(there, set):
            self.size -= len(there)
            there.add(seq)
            self.size += len(there)
        elif there != seq:
            page[when] = {there, seq}
            self.size += 1

    def add_all(self, when: int, seqs: Collection[int]) -> None:
        if len(seqs) < 2:
            for seq in seqs:
                self.add(when, seq)
            return
        page = self._page(when)
        there = page.get(when)
        if isinstance(there, set):
            self.size -= len(there)
            there.update(seqs)
        elif there is None:
            there = page[when] = set(seqs)
        else:
            self.size -= 1
            there = page[when] = {there, *seqs}
        self.size += len(there)

    def remove(self, when: int, seq: int) -> None:
        """If it is there."""
        page = self._pages.get(when >> _BITS)
        if page is None:
            return
        there = page.get(when)
        if isinstance(there, set):
            if seq not in there:
                return
            there.remove(seq)
            _shrink(page, when, there, len(there) + 1)
        elif there == seq:
            del page[when]
        else:
            return
        self.size -= 1
        if not page:
            self._drop_page(when >> _BITS)

    def remove_each(self, entries: Iterable[tuple[int, int]]) -> None:
        """The same of many (time, seq), those of one time together."""
        together: dict[int, list[int]] = {}
        for when, seq in entries:
            if when in together:
                together[when].append(seq)
            else:
                together[when] = [seq]
        for when, seqs in together.items():
            page = self._pages.get(when >> _BITS)
            there = page.get(when) if page is not None else None
            if page is None or not isinstance(there, set) or len(seqs) == 1:
                for seq in seqs:
                    self.remove(when, seq)
                continue
            before = len(there)
            there.difference_update(seqs)
            self.size -= before - len(there)
            _shrink(page, when, there, before)
            if not page:
                self._drop_page(when >> _BITS)

    def pop_before(self, when: int, most: int) -> list[tuple[int, int]]:
        """Take out so many of the entries below `when`: (time, seq), the earliest first."""
        taken: list[tuple[int, int]] = []
        while self.first is not None and self.first < when and len(taken) < most:
            page, due = self._look_up()
            if due >= when:
                break
            taken += [(due, seq) for seq in _take(page, due, most - len(taken))]
            if not page:
                self._drop_page(self._heap[0])
        if taken and self._pages:
            self._look_up()
        self.size -= len(taken)
        return taken

    def _page(self, when: int) -> dict[int, int | set[int]]:
        """Where an entry of this time goes."""
        if self.first is None or when < self.first:
            self.first = when
        number = when >> _BITS
        page = self._pages.get(number)
        if page is None:
            page = self._pages[number] = {}
            heappush(self._heap, number)
        elif number == self._times_of and when not in page:
            heappush(self._times, when)
            if len(self._times) > 2 * len(page) + STALE_MIN:
                self._times_of = -1
        return page

    def _look_up(self) -> tuple[dict[int, int | set[int]], int]:
        """The first page, of which there is one, and its first time."""
        while (page := self._pages.get(self._heap[0])) is None:
            heappop(self._heap)
        if self._times_of != self._heap[0]:
            self._times, self._times_of = sorted(page), self._heap[0]
        while self._times[0] not in page:
            heappop(self._times)
        self.first = self._times[0]
        return page, self.first

    def _drop_page(self, number: int) -> None:
        del self._pages[number]
        if number == self._times_of:
            self._times_of = -1
        if not self._pages:
            self._heap.clear()
            self.first = None
        elif len(self._heap) > 2 * len(self._pages) + STALE_MIN:
            self._heap = [*self._pages]
            heapify(self._heap)


def _take(page: dict[int, int | set[int]], when: int, most: int) -> list[int]:
    """So many of a time."""
    there = page[when]
    if isinstance(there, set) and len(there) > most:
        return [there.pop() for _ in range(most)]
    del page[when]
    return [*there] if isinstance(there, set) else [there]


def _shrink(page: dict[int, int | set[int]], when: int, seqs: set[int], before: int) -> None:
    """A set that had so many keeps the room of what is taken out of it, so a smaller one takes its place whenever half
    of it is gone: when it comes below a power of two."""
    if len(seqs).bit_length() == before.bit_length() or len(seqs) > SHRINK_MAX:
        return
    if len(seqs) > 1:
        page[when] = set(seqs)
    elif seqs:
        page[when] = seqs.pop()
    else:
        del page[when]
