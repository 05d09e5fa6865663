"""Long-polls: a reader that found nothing waits for its topic to change or for its time to run out.

A waiting poll is one entry in its topic's set and one in a heap; no task, no timer of its own.
"""

import heapq
from collections.abc import Callable
from itertools import count
from math import inf

import trio

from topics.core.topic import Topic

TICK_S = 0.01  # polls that end within the same tick end together


class Poll:
    __slots__ = ("_action", "_topic", "over")

    def __init__(self, topic: Topic, action: Callable[[], None]) -> None:
        self._topic = topic
        self._action = action
        self.over = False
        if topic.waiters is None:
            topic.waiters = set()
        topic.waiters.add(self.finish)

    def finish(self) -> None:
        """The topic changed, or time is up: look once more."""
        if not self.over:
            self.cancel()
            self._action()

    def cancel(self) -> None:
        """Nobody waits any more."""
        self.over = True
        if self._topic.waiters is not None:
            self._topic.waiters.discard(self.finish)


class Polls:
    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Poll]] = []
        self._order = count()
        self._sooner = trio.Event()  # a poll came that ends before all others

    def wait(self, topic: Topic, wait_ms: int, action: Callable[[], None]) -> Poll:
        """Run `action` once: when the topic changes or after `wait_ms`."""
        poll = Poll(topic, action)
        ends = trio.current_time() + wait_ms / 1000
        if not self._heap or ends < self._heap[0][0]:
            self._sooner.set()
        heapq.heappush(self._heap, (ends, next(self._order), poll))
        return poll

    async def run(self) -> None:
        """End polls whose time is up. Asleep while there are none."""
        while True:
            now = trio.current_time()
            while self._heap and (self._heap[0][0] <= now or self._heap[0][2].over):
                heapq.heappop(self._heap)[2].finish()
            self._sooner = trio.Event()
            until = max(self._heap[0][0], now + TICK_S) if self._heap else inf
            with trio.move_on_at(until):
                await self._sooner.wait()
