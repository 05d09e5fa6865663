"""Threads for a simulation: they run the product's own blocking code, but never at the same time as the event loop.

Work that blocks in the product (the committer's thread, `trio.to_thread.run_sync`) runs here as a fiber: the same code,
on a stack of its own, in the loop's thread. It goes on only inside `Fiber.drive`, until it ends or waits for something;
then the loop goes on. So one order of turns is one history, and a seed that chooses the turns chooses the history.
"""

import queue
from collections import deque
from collections.abc import Awaitable, Callable
from math import inf
from typing import Any

import greenlet
import trio

from topics.shards.committer import Group, Joinable, Threads

Request = Callable[[], Awaitable[Any]]


class FiberKilled(BaseException):
    """The simulated process of this thread is gone. Not an Exception: nothing may survive its own death."""


class Fiber:
    """One piece of work."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._stack = greenlet.greenlet(work)
        self._stack.fiber = self
        self.ended = trio.Event()

    async def drive(self) -> Any:
        """Give it its turns until it ends; its result. Cancelled between two of them, it is killed."""
        try:
            given = self._stack.switch()
            while not self._stack.dead:
                answer = await given()
                given = self._stack.switch(answer)
        except BaseException:
            while not self._stack.dead:
                self._kill()
            raise
        finally:
            self.ended.set()
        return given

    def _kill(self) -> None:
        try:
            self._stack.throw(FiberKilled)
        except BaseException:
            return  # its death, or what its cleaning up ran into

    def wait(self, request: Request) -> Any:
        """In the fiber: let the loop go on, and wait there; what that gave."""
        return self._stack.parent.switch(request)


def current_fiber() -> Fiber | None:
    """The one that runs; None in the loop."""
    return getattr(greenlet.getcurrent(), "fiber", None)


class TurnQueue:
    """As the committer's queue between the loop and its thread."""

    def __init__(self) -> None:
        self._groups: deque[Group | None] = deque()
        self._arrived = trio.Event()

    def put(self, group: Group | None) -> None:
        self._groups.append(group)
        self._arrived.set()

    def get(self, *, timeout: float | None = None) -> Group | None:
        fiber = current_fiber()
        assert fiber is not None
        if not self._groups:
            fiber.wait(lambda: self._wait(inf if timeout is None else timeout))
        if not self._groups:
            raise queue.Empty
        return self._groups.popleft()

    async def _wait(self, timeout: float) -> None:
        self._arrived = trio.Event()
        with trio.move_on_after(timeout):
            await self._arrived.wait()


class TurnThreads(Threads):
    """Threads that live in a nursery and end with it."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery

    def groups(self) -> TurnQueue:
        return TurnQueue()

    def end_of_turn(self) -> Callable[[Callable[[], None]], None]:
        """A turn later: what is handed over wakes a fiber, which is a task here."""
        return trio.lowlevel.current_trio_token().run_sync_soon

    def start(self, work: Callable[[], None]) -> Joinable:
        fiber = Fiber(work)
        self._nursery.start_soon(fiber.drive)
        return _Joined(fiber)


class _Joined:
    def __init__(self, fiber: Fiber) -> None:
        self._fiber = fiber

    def join(self) -> None:
        fiber = current_fiber()
        assert fiber is not None, "the loop must not wait for a thread"
        fiber.wait(self._fiber.ended.wait)
