"""Queues with more to do at one moment than fits a turn of the loop: 100,000 leases that end together, jobs that are
deleted by the thousand.

That is done in slices (`Leases.settle`), and everybody else is served between them. Who wants something of such a queue
waits, in the order of arrival, until it is done: so nobody ever sees a half of it. After a crash nothing is left over:
what is due follows from the time and the log.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import trio

from topics.shards.slices import in_slices

if TYPE_CHECKING:
    from topics.shards.queue import Queue

log = logging.getLogger(__name__)
Command = Callable[[], Iterator[None] | None]  # one that takes long goes on in steps


class CatchUp:
    """The queues of a shard that are behind."""

    def __init__(self) -> None:
        self._waiting: dict[Queue, deque[Command]] = {}
        self._new: deque[Queue] = deque()
        self._more = trio.Event()

    def is_behind(self, queue: "Queue") -> bool:
        return queue in self._waiting

    def later(self, queue: "Queue", command: Command | None = None) -> None:
        """Run a command when the queue is up to now, behind those that wait for that already. Then those are served
        who wait for its jobs."""
        if queue not in self._waiting:
            self._waiting[queue] = deque()
            self._new.append(queue)
            self._more.set()
        if command is not None:
            self._waiting[queue].append(command)

    async def run(self) -> None:
        """Until cancelled. Who waits then gets no answer."""
        async with trio.open_nursery() as nursery:
            while True:
                self._more = trio.Event()
                while self._new:
                    nursery.start_soon(in_slices, self._catch_up(self._new.popleft()))
                await self._more.wait()

    def _catch_up(self, queue: "Queue") -> Iterator[None]:
        waiting, is_last = self._waiting[queue], False
        while True:
            yield from queue.catch_up()
            if not waiting and is_last:
                break
            if not waiting:  # who is served then has a turn of its own
                is_last = True
                yield
                continue
            is_last = False
            try:
                yield from waiting.popleft()() or ()
            except Exception:  # it must not take the others with it
                log.exception("a command of queue %s failed", queue.topic.name)
            yield
        del self._waiting[queue]
        queue.wake()
