"""Keys of a topic whose write is on its way to disk, and who waits for each of them.

The keys of a large write stay together as they were prepared (keyruns.py): to enter ten thousand, or to take them out
again, would take the loop a millisecond.
"""

from collections.abc import Callable, Collection

from topics.core.keyruns import NewKeys

Retries = list[Callable[[], None]]  # one list for all keys of a write


class ComingKeys:
    __slots__ = ("_few", "_many")

    def __init__(self) -> None:
        self._few: dict[bytes, Retries] = {}
        self._many: list[tuple[NewKeys, Retries]] = []

    def __bool__(self) -> bool:
        return bool(self._few or self._many)

    def add(self, digests: Collection[bytes], prepared: NewKeys | None) -> None:
        """Of one write. What is `prepared` is not among the digests."""
        waiting = Retries()
        self._few.update(dict.fromkeys(digests, waiting))
        if prepared is not None:
            self._many.append((prepared, waiting))

    def take(self, digests: Collection[bytes], prepared: NewKeys | None) -> Retries:
        """The write waits no more; those who waited for it."""
        waiting = Retries()
        for digest in digests:
            waiting = self._few.pop(digest, waiting)
        for at, (keys, retries) in enumerate(self._many):
            if keys is prepared:
                del self._many[at]
                return retries
        return waiting

    def take_all(self) -> Retries:
        """Nobody waits any more."""
        lists = [*self._few.values(), *(retries for _, retries in self._many)]
        self._few, self._many = {}, []
        return [retry for retries in {id(retries): retries for retries in lists}.values() for retry in retries]

    def waiting_for(self, digests: Collection[bytes]) -> Retries | None:
        """Where to wait for the first of these that is on its way, if one is."""
        if not self._few.keys().isdisjoint(digests):
            return next(self._few[digest] for digest in digests if digest in self._few)
        return next((retries for keys, retries in self._many if not keys.digests.isdisjoint(digests)), None)
