"""From callbacks to a task that waits, and from one task to many."""

from collections.abc import Awaitable, Callable
from typing import Any, TypeVarTuple, Unpack

import trio

from topics.errors import TopicsError
from topics.shards.answers import Done, Fail

ArgsT = TypeVarTuple("ArgsT")


async def wait_for(start: Callable[[Done, Fail], None]) -> Any:
    """Run `start(done, fail)` and wait for either. Cancelled, the command goes on without anybody to hear of it."""
    over = trio.Event()
    results: list[Any] = []
    errors: list[Exception] = []

    def done(value: Any) -> None:
        results.append(value)
        over.set()

    def fail(error: Exception) -> None:
        errors.append(error)
        over.set()

    start(done, fail)
    await over.wait()
    if errors:
        raise errors[0]
    return results[0]


async def at_once(method: Callable[[Unpack[ArgsT]], Awaitable[None]], calls: list[tuple[*ArgsT]]) -> None:
    """All calls side by side. Raises what the first that failed raised."""
    failed: list[TopicsError] = []

    async def run(*args: *ArgsT) -> None:
        try:
            await method(*args)
        except TopicsError as error:
            failed.append(error)

    async with trio.open_nursery() as nursery:
        for args in calls:
            nursery.start_soon(run, *args)
    if failed:
        raise failed[0]
