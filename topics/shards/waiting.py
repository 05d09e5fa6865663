"""From callbacks to a task that waits."""

from collections.abc import Callable
from typing import Any

import trio

from topics.shards.answers import Done, Fail


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
