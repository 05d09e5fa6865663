"""Which of several waiting things is served next: weighted bands of effective priority.

A round serves up to 8 from the highest band, 4 from the next, then 2, 1 and 1, so that higher bands are favoured and no
band ever stands still. Waiting raises a priority (priority.py), so what waits long moves up.
"""

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

FLOORS = (750, 500, 250, 0)  # of all bands but the last
WEIGHTS = (8, 4, 2, 1, 1)
LOW_BANDS = frozenset({3, 4})  # what is delayed first
_ROUND = tuple(band for band, weight in enumerate(WEIGHTS) for _ in range(weight))

assert len(WEIGHTS) == len(FLOORS) + 1


def band_of(priority: int) -> int:
    for band, floor in enumerate(FLOORS):
        if priority >= floor:
            return band
    return len(FLOORS)


class Bands(Generic[T]):
    """First come, first served within a band."""

    def __init__(self) -> None:
        self._bands: tuple[deque[T], ...] = tuple(deque() for _ in WEIGHTS)
        self._turn = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def put(self, item: T, band: int) -> None:
        self._bands[band].append(item)
        self._count += 1

    def pop(self, skip: frozenset[int] = frozenset()) -> T | None:
        """The next to be served; None if there is none outside the bands to skip."""
        for _ in range(len(_ROUND)):
            band = _ROUND[self._turn]
            self._turn = (self._turn + 1) % len(_ROUND)
            if self._bands[band] and band not in skip:
                self._count -= 1
                return self._bands[band].popleft()
        return None

    def sort_again(self, band_of_item: Callable[[T], int]) -> None:
        """Priorities have changed. The order within a band is by how long something has waited."""
        items = [item for band in self._bands for item in band]
        for band in self._bands:
            band.clear()
        for item in items:
            self._bands[band_of_item(item)].append(item)
