"""The loop in its thread: whoever calls while it ends gets an answer, at whatever moment that is."""

import threading
from contextlib import asynccontextmanager

import pytest
import trio
import trio.lowlevel

from topics.embedded.loop import Loop, Task
from topics.errors import TopicsError


class Failing:
    """Fails a moment after it was told to."""

    def __init__(self):
        self.failing = threading.Event()

    @asynccontextmanager
    async def running(self):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._fail)
            yield
            nursery.cancel_scope.cancel()

    async def _fail(self):
        while not self.failing.is_set():
            await trio.lowlevel.checkpoint()
        raise OSError("the disk is gone")

    def drain(self):
        pass


async def nothing():
    await trio.lowlevel.checkpoint()


def test_a_call_that_comes_when_the_nursery_is_closed_is_refused():
    async def main():
        loop = Loop(Failing())
        async with trio.open_nursery() as loop._calls:
            pass
        task = Task(nothing)
        loop._begin(task)
        return task.result.exception(timeout=0)

    assert trio.run(main).code == "shutting_down"


@pytest.mark.parametrize("turn", range(20))
def test_nobody_waits_for_a_loop_that_has_failed(turn):
    served = Failing()
    loop = Loop(served)
    loop.start()
    refused = []

    def caller():
        try:
            while True:
                loop.call(nothing)
        except TopicsError as error:
            refused.append(error.code)

    threads = [threading.Thread(target=caller, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    served.failing.set()
    for thread in threads:
        thread.join(30)
    assert len(refused) == 4
    loop.stop()
