"""The order of a WebSocket's commands: those about one topic are done one after another, as they came.

A client need not wait for one answer before it sends the next command: a `credit` finds the subscription that was asked
for before it, and of two subscriptions the later one stays. Commands that share a turn (each of them would come to the
same before and after the others) do not wait for one another, only for those that do not share.
"""

from collections.abc import Iterable

import trio


class Turn:
    """Of one command, from its arrival until it is answered."""

    __slots__ = ("_before", "_names", "_over", "_turns", "shared")

    def __init__(self, turns: "Turns", names: tuple[str, ...], before: list["Turn"], *, shared: bool) -> None:
        self._turns = turns
        self._names = names
        self._before = before
        self._over = trio.Event()
        self.shared = shared

    async def begin(self) -> None:
        for turn in self._before:
            await turn._over.wait()
        self._before = []

    def end(self) -> None:
        self._over.set()
        self._turns._forget(self, self._names)


class Turns:
    def __init__(self) -> None:
        # By topic: the last turn that is not shared, then those after it. Whoever comes waits for these at most.
        self._last: dict[str, list[Turn]] = {}

    def take(self, names: Iterable[str], *, shared: bool = False) -> Turn:
        """A place behind everything that has been asked for about these topics."""
        before: list[Turn] = []
        turn = Turn(self, tuple(names), before, shared=shared)
        for name in turn._names:
            last = self._last.setdefault(name, [])
            before += [other for other in last if not (shared and other.shared)]
            if not shared:
                last.clear()
            last.append(turn)
        return turn

    def _forget(self, turn: Turn, names: tuple[str, ...]) -> None:
        for name in names:
            last = self._last.get(name, [])
            if turn in last:
                last.remove(turn)
                if not last:
                    del self._last[name]
