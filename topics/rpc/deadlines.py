"""Deadlines of a link's open calls: which have passed, without a look at all calls all the time. No I/O.

A call that is answered before the next sweep costs nothing here. One that is still open then is noted for the tick at
which its deadline passes, or for one that is sooner, where it is looked at again: so what is noted of calls that are
over does not pile up.
"""

from collections.abc import Iterator
from itertools import takewhile
from math import ceil, floor, inf
from typing import Generic, Protocol, TypeVar

from topics import limits

TICK_S = limits.RPC_SWEEP_MS / 1000
LOOK_AGAIN_S = limits.RPC_LOOK_AGAIN_MS / 1000


class Entry(Protocol):
    """An open call, as the link sees it."""

    expires: float  # on trio's clock; infinity without a deadline


EntryT = TypeVar("EntryT", bound=Entry)


class Deadlines(Generic[EntryT]):
    """`calls` are those of the link. Their ids ascend in the order in which they were opened."""

    def __init__(self, calls: dict[int, EntryT]) -> None:
        self._calls = calls
        self._newest = 0  # calls up to this id have been looked at
        self._ticks: dict[int, list[int]] = {}  # by number: calls to look at then
        self._tick = 0

    @property
    def is_idle(self) -> bool:
        """Whether nothing is left for a sweep."""
        return not self._calls or not (self._ticks or next(reversed(self._calls)) > self._newest)

    def next_sweep(self, now: float) -> float:
        """When to sweep again: at the end of a tick, so that what has passed in it is found at once."""
        self._tick = max(self._tick, floor(now / TICK_S)) + 1  # past this one, whatever is lost in the division
        return self._tick * TICK_S

    def sweep(self, now: float) -> Iterator[tuple[int, EntryT] | None]:
        """Calls whose deadline has passed, and None for each other that was looked at; others may go on in between."""
        self._tick = max(self._tick, floor(now / TICK_S))
        self._note_new(now)
        for number in sorted(number for number in self._ticks if number <= self._tick):
            for call_id in self._ticks.pop(number):
                call = self._calls.get(call_id)
                if call is not None and call.expires <= now:
                    yield call_id, call
                    continue
                if call is not None:
                    self._note(call_id, call.expires, now)
                yield None

    def _note_new(self, now: float) -> None:
        newest = self._newest
        new = list(takewhile(lambda call_id: call_id > newest, reversed(self._calls)))
        for call_id in reversed(new):
            self._note(call_id, self._calls[call_id].expires, now)
            self._newest = call_id

    def _note(self, call_id: int, expires: float, now: float) -> None:
        if expires == inf:
            return
        number = self._tick
        if expires > now:
            number = max(number + 1, ceil(min(expires, now + LOOK_AGAIN_S) / TICK_S))
        self._ticks.setdefault(number, []).append(call_id)
