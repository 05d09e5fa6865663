"""Those who are to be served together. There may be ten thousand, so they are asked how much each wants, and told what
each is to get, some at a time."""

from collections.abc import Container, Iterator
from itertools import islice
from typing import TYPE_CHECKING

from topics.core.claims import divide

if TYPE_CHECKING:
    from topics.shards.queue_passes import Taker


class Cohort:
    __slots__ = ("_rooms", "_shares", "_takers")

    def __init__(self, takers: "list[Taker]") -> None:
        self._takers = takers
        self._rooms: list[int] = []
        self._shares: Iterator[tuple[Taker, int]] | None = None

    @property
    def is_divided(self) -> bool:
        return self._shares is not None

    def count(self, most: int) -> bool:
        """Ask so many of them; whether all have been asked before."""
        at = len(self._rooms)
        self._rooms += [taker.room for taker in self._takers[at : at + most]]
        return at == len(self._takers)

    def divide(self, ready: int) -> None:
        self._shares = zip(self._takers, divide(ready, self._rooms), strict=True)

    def take(self, most: int, here: "Container[Taker]") -> "dict[Taker, int]":
        """The next of them with their shares, without those who have gone; none if they are over."""
        assert self._shares is not None
        while some := list(islice(self._shares, most)):
            if taken := {taker: share for taker, share in some if taker in here}:
                return taken
        return {}
