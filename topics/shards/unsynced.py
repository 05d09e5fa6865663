"""Parts of one thing that are on their way to disk: it may be told when there are no more parts and all are there."""

from collections.abc import Callable


class Unsynced:
    __slots__ = ("_parts", "_tell")

    def __init__(self) -> None:
        self._parts = 0
        self._tell: Callable[[], None] | None = None

    def more(self) -> None:
        """Another part is on its way."""
        self._parts += 1

    def less(self) -> None:
        """One has arrived."""
        self._parts -= 1
        self._look()

    def then(self, tell: Callable[[], None]) -> None:
        """There are no more parts: call back when all have arrived, at once if they have."""
        self._tell = tell
        self._look()

    def _look(self) -> None:
        if self._tell is not None and not self._parts:
            tell, self._tell = self._tell, None
            tell()
