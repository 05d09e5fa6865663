"""Long work in the loop, a slice at a time."""

import time
from collections.abc import Iterable

import trio

from topics import limits
from topics.aside import next_please


async def in_slices(steps: Iterable[None]) -> None:
    """Run steps, letting other tasks go on every millisecond. Cancelled, the steps that are left do not run."""
    until = time.perf_counter_ns() + limits.YIELD_AFTER_NS
    for _ in steps:
        if time.perf_counter_ns() > until:
            next_please()
            await trio.lowlevel.checkpoint()
            until = time.perf_counter_ns() + limits.YIELD_AFTER_NS
