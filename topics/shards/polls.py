"""Long-polls: a reader that found nothing waits for its topic to change or for its time to run out.

A waiting poll is one entry in its topic's set and one in a heap; no task, no timer of its own.
"""

import heapq
from collections.abc import Callable
from itertools import count

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
        self._added = trio.Event()

    def wait(self, topic: Topic, wait_ms: int, action: Callable[[], None]) -> Poll:
        """Run `action` once: when the topic changes or after `wait_ms`."""
        poll = Poll(topic, action)
        heapq.heappush(self._heap, (trio.current_time() + wait_ms / 1000, next(self._order), poll))
        self._added.set()
        return poll

    async def run(self) -> None:
        """End polls whose time is up. Asleep while there are none."""
        while True:
            while not self._heap:
                self._added = trio.Event()
                await self._added.wait()
            now = trio.current_time()
            while self._heap and (self._heap[0][0] <= now or self._heap[0][2].over):
                heapq.heappop(self._heap)[2].finish()
            if self._heap:
                await trio.sleep(max(TICK_S, min(self._heap[0][0] - now, 1.0)) if self._heap[0][0] > now else 0)
