"""The end of a turn of the loop: when all that could run has run, right before it waits for the system.

What is done there sees everything that happened in the turn: one send for all messages, one group for all writes. A
task that waits for work would do the same a turn later, and a turn costs more than most messages.
"""

import logging
from collections.abc import Callable

import trio

logger = logging.getLogger(__name__)
_turns: trio.lowlevel.RunVar["Turns"] = trio.lowlevel.RunVar("turns")


class Turns(trio.abc.Instrument):
    def __init__(self) -> None:
        self._actions: list[Callable[[], None]] = []

    def at_end(self, action: Callable[[], None]) -> None:
        """Once. An action must not make a task runnable: the loop has already decided how long it will wait."""
        self._actions.append(action)

    def before_io_wait(self, timeout: float) -> None:
        while self._actions:
            actions, self._actions = self._actions, []
            for action in actions:
                try:
                    action()
                except Exception:  # trio would never call us again
                    logger.exception("an action at the end of a turn failed")


def turns() -> Turns:
    """Those of the loop that is running."""
    try:
        return _turns.get()
    except LookupError:
        found = Turns()
        _turns.set(found)
        trio.lowlevel.add_instrument(found)
        return found
