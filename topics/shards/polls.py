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
OVER_MAX = 64


class Poll:
    __slots__ = ("_action", "_polls", "_topic", "over")

    def __init__(self, polls: "Polls", topic: Topic, action: Callable[[], None]) -> None:
        self._polls = polls
        self._topic = topic
        self._action = action
        self.over = False
        if topic.waiters is None:
            topic.waiters = {}
        topic.waiters[self.finish] = None

    def finish(self) -> None:
        """The topic changed, or time is up: look once more."""
        if not self.over:
            self.cancel()
            self._action()

    def cancel(self) -> None:
        """Nobody waits any more."""
        if self.over:
            return
        self.over = True
        self._polls.over += 1
        if self._topic.waiters is not None:
            self._topic.waiters.pop(self.finish, None)


class Polls:
    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Poll]] = []
        self._order = count()
        self.over = 0  # entries of the heap whose poll has ended
        self._sooner = trio.Event()  # a poll came that ends before all others

    def wait(self, topic: Topic, wait_ms: int, action: Callable[[], None]) -> Poll:
        """Run `action` once: when the topic changes or after `wait_ms`."""
        poll = Poll(self, topic, action)
        ends = trio.current_time() + wait_ms / 1000
        if not self._heap or ends < self._heap[0][0]:
            self._sooner.set()
        heapq.heappush(self._heap, (ends, next(self._order), poll))
        if self.over > OVER_MAX and self.over > len(self._heap) // 2:
            self._forget_over()
        return poll

    def _forget_over(self) -> None:
        """Most polls end long before their time; their entries must not pile up until then."""
        self._heap = [entry for entry in self._heap if not entry[2].over]
        heapq.heapify(self._heap)
        self.over = 0

    async def run(self) -> None:
        """End polls whose time is up. Asleep while there are none."""
        while True:
            now = trio.current_time()
            while self._heap and (self._heap[0][0] <= now or self._heap[0][2].over):
                poll = heapq.heappop(self._heap)[2]
                poll.finish()
                self.over = max(0, self.over - 1)
            self._sooner = trio.Event()
            until = max(self._heap[0][0], now + TICK_S) if self._heap else inf
            with trio.move_on_at(until):
                await self._sooner.wait()
