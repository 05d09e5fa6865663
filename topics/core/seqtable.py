"""What is kept of seqs, or of times, as a dict that never takes long to grow, to copy or to go through.

One dict of half a million entries stands still for 10 ms and more when it grows, and to copy it takes as long. So there
is a small one for every 1,024 neighbours: jobs are leased, finished and forgotten in about the order of their seqs, so
most of these are full or not there at all. A copy shares them with the original; whichever of the two changes one first
makes its own of it.
"""

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, Generic, TypeVar

T = TypeVar("T")
_BITS = 10


class SeqTable(Generic[T]):
    """While it is gone through only a `copy` of it may change. None is no value."""

    __slots__ = ("_pages", "_shared", "count")

    def __init__(self, entries: Iterable[tuple[int, T]] = ()) -> None:
        self._pages: dict[int, dict[int, T]] = {}  # none is empty
        self._shared: set[int] = set()  # those that a copy may have, too
        self.count = 0
        for seq, value in entries:
            self.put(seq, value)

    def __len__(self) -> int:
        return self.count

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SeqTable) and self._pages == other._pages

    def __contains__(self, seq: Any) -> bool:
        page = self._pages.get(seq >> _BITS)
        return page is not None and seq in page

    def __iter__(self) -> Iterator[int]:
        return chain.from_iterable(self._pages.values())

    def items(self) -> Iterator[tuple[int, T]]:
        return chain.from_iterable(map(dict.items, self._pages.values()))

    def values(self) -> Iterator[T]:
        return chain.from_iterable(map(dict.values, self._pages.values()))

    def get(self, seq: int) -> T | None:
        page = self._pages.get(seq >> _BITS)
        return page.get(seq) if page is not None else None

    def put(self, seq: int, value: T) -> None:
        place = seq >> _BITS
        page = self._pages.get(place)
        if page is None:
            self._pages[place] = {seq: value}
            self.count += 1
            return
        if self._shared:
            page = self._own(place, page)
        size = len(page)
        page[seq] = value
        self.count += len(page) - size

    def pop(self, seq: int) -> T | None:
        """Take it out; what it was, if it was there."""
        place = seq >> _BITS
        page = self._pages.get(place)
        if page is None or seq not in page:
            return None
        self.count -= 1
        if len(page) == 1:
            value = page[seq]
            del self._pages[place]
            self._shared.discard(place)
            return value
        if self._shared:
            page = self._own(place, page)
        return page.pop(seq)

    # --- many at once: neighbours have their page looked up once ---------------------------------------------------

    def get_all(self, seqs: Iterable[int]) -> list[T | None]:
        """What is there of each."""
        found: list[T | None] = []
        pages, place = self._pages, -1
        page: dict[int, T] | None = None
        for seq in seqs:
            if seq >> _BITS != place:
                place = seq >> _BITS
                page = pages.get(place)
            found.append(page.get(seq) if page is not None else None)
        return found

    def put_all(self, seqs: Iterable[int], values: Iterable[T]) -> None:
        """One value for each; no more than there are seqs are asked for."""
        place, size = -1, 0
        page: dict[int, T] = {}
        for seq, value in zip(seqs, values, strict=False):
            if seq >> _BITS != place:
                self.count += len(page) - size
                place = seq >> _BITS
                page = self._own(place, self._pages.setdefault(place, {}))
                size = len(page)
            page[seq] = value
        self.count += len(page) - size

    def pop_all(self, seqs: Iterable[int]) -> list[T | None]:
        """Take them out; what each was, if it was there."""
        taken: list[T | None] = []
        place, size = -1, 0
        page: dict[int, T] | None = None
        for seq in seqs:
            if seq >> _BITS != place:
                self._taken_from(place, page, size)
                place = seq >> _BITS
                page = self._pages.get(place)
                page = self._own(place, page) if page is not None else None
                size = len(page) if page is not None else 0
            taken.append(page.pop(seq, None) if page is not None else None)
        self._taken_from(place, page, size)
        return taken

    def _taken_from(self, place: int, page: dict[int, T] | None, size: int) -> None:
        """A page had so many before."""
        if page is not None:
            self.count += len(page) - size
            if not page:
                del self._pages[place]

    def copy(self) -> "SeqTable[T]":
        """As it is now, whatever becomes of this one."""
        other: SeqTable[T] = SeqTable()
        other._pages, other.count = self._pages.copy(), self.count
        self._shared, other._shared = set(self._pages), set(self._pages)
        return other

    def _own(self, place: int, page: dict[int, T]) -> dict[int, T]:
        """One that may be changed."""
        if place in self._shared:
            self._shared.remove(place)
            page = self._pages[place] = page.copy()
        return page
