"""Things to do later, in the loop: one heap and one task for all of them."""

import heapq
import logging
import time
from collections.abc import Callable
from itertools import count
from math import inf

import trio

from topics import limits

log = logging.getLogger(__name__)
TICK_S = 0.005  # what is due within the same tick is done together
OVER_MAX = 64


class Timer:
    __slots__ = ("_action", "_timers")

    def __init__(self, timers: "Timers", action: Callable[[], None]) -> None:
        self._timers = timers
        self._action: Callable[[], None] | None = action

    @property
    def over(self) -> bool:
        return self._action is None

    def fire(self) -> None:
        action, self._action = self._action, None
        if action is not None:
            action()

    def cancel(self) -> None:
        if self._action is not None:
            self._action = None
            self._timers.over += 1


class Timers:
    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Timer]] = []
        self._order = count()
        self.over = 0  # entries of the heap that were cancelled
        self._sooner = trio.Event()

    def after(self, ms: float, action: Callable[[], None]) -> Timer:
        """Call `action` once, in `ms` milliseconds."""
        timer = Timer(self, action)
        when = trio.current_time() + ms / 1000
        if not self._heap or when < self._heap[0][0]:
            self._sooner.set()
        heapq.heappush(self._heap, (when, next(self._order), timer))
        if self.over > OVER_MAX and self.over > len(self._heap) // 2:
            self._heap = [entry for entry in self._heap if not entry[2].over]
            heapq.heapify(self._heap)
            self.over = 0
        return timer

    async def run(self) -> None:
        """Until cancelled. Asleep while nothing is due; with much to do others get a turn every millisecond."""
        while True:
            now = trio.current_time()
            if not self._fire_due(now):
                await trio.lowlevel.checkpoint()
                continue
            self._sooner = trio.Event()
            until = max(self._heap[0][0], now + TICK_S) if self._heap else inf
            with trio.move_on_at(until):
                await self._sooner.wait()

    def _fire_due(self, now: float) -> bool:
        """Whether all that is due was done."""
        until = time.perf_counter_ns() + limits.YIELD_AFTER_NS
        while self._heap and (self._heap[0][0] <= now or self._heap[0][2].over):
            timer = heapq.heappop(self._heap)[2]
            if timer.over:
                self.over = max(0, self.over - 1)
            try:
                timer.fire()
            except Exception:  # it must not take the other timers with it
                log.exception("a timer failed")
            if time.perf_counter_ns() > until:
                return False
        return True
