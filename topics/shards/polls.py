"""Long-polls: a reader that found nothing waits for its topic to change or for its time to run out.

A waiting poll is one entry in its topic's set and one among those that end at the same tick; no task, no timer of its
own. One that is over leaves nothing behind.
"""

import heapq
import time
from collections.abc import Callable
from math import ceil

import trio

from topics import limits
from topics.core.topic import Topic

TICK_S = 0.01  # polls that end within the same tick end together, at its end


class Poll:
    __slots__ = ("_action", "_tick", "_topic", "over")

    def __init__(self, topic: Topic, tick: "dict[Poll, None]", action: Callable[[], None]) -> None:
        self._topic = topic
        self._tick = tick
        self._action: Callable[[], None] | None = action  # not kept once it is over: it leads back here
        self.over = False
        tick[self] = None
        if topic.waiters is None:
            topic.waiters = {}
        topic.waiters[self.finish] = None

    def finish(self) -> None:
        """The topic changed, or time is up: look once more."""
        action = self._action
        if action is not None:
            self.cancel()
            action()

    def cancel(self) -> None:
        """Nobody waits any more."""
        if self.over:
            return
        self.over = True
        self._action = None
        self._tick.pop(self, None)
        if self._topic.waiters is not None:
            self._topic.waiters.pop(self.finish, None)


class Polls:
    def __init__(self) -> None:
        self._ticks: dict[int, dict[Poll, None]] = {}  # by their number: those that end then, in their order
        self._next: list[int] = []  # a heap of the numbers
        self._sooner = trio.Event()  # a poll came that ends before all others

    def __len__(self) -> int:
        return sum(map(len, self._ticks.values()))

    def wait(self, topic: Topic, wait_ms: int, action: Callable[[], None]) -> Poll:
        """Run `action` once: when the topic changes or after `wait_ms`."""
        number = ceil((trio.current_time() + wait_ms / 1000) / TICK_S)
        tick = self._ticks.get(number)
        if tick is None:
            tick = self._ticks[number] = {}
            if not self._next or number < self._next[0]:
                self._sooner.set()
            heapq.heappush(self._next, number)
        return Poll(topic, tick, action)

    async def run(self) -> None:
        """End polls whose time is up, about a millisecond's worth at a time. Asleep while there are none."""
        while True:
            while self._next and self._next[0] * TICK_S <= trio.current_time():
                await self._end(self._ticks.pop(heapq.heappop(self._next)))
            self._sooner = trio.Event()
            with trio.move_on_at(self._next[0] * TICK_S) if self._next else trio.CancelScope():
                await self._sooner.wait()

    async def _end(self, tick: dict[Poll, None]) -> None:
        until = time.perf_counter_ns() + limits.YIELD_AFTER_NS
        for poll in list(tick):
            poll.finish()  # unless it was over meanwhile
            if time.perf_counter_ns() > until:
                await trio.lowlevel.checkpoint()
                until = time.perf_counter_ns() + limits.YIELD_AFTER_NS
