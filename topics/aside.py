"""Large work beside a loop: in a thread that gives way to whoever has less to do.

A shard that decodes, renders and stores large batches has several threads that always want a processor. Without a
priority the gateways and the other shards, which want one for a moment, would stand in line with them ("Held up" in
docs/performance.md). Loops, the log's thread, recovery and reads that a client waits for do not run here.

Only in processes of our own (`give_way`): a program that holds an embedded database may want its threads as they are.
"""

import contextlib
import os
import threading
from collections.abc import Callable
from typing import TypeVar

import trio

from topics import limits

T = TypeVar("T")
_process_gives_way = False
_thread = threading.local()


def give_way() -> None:
    """From now on large work of this process has a low priority."""
    global _process_gives_way
    _process_gives_way = hasattr(os, "PRIO_PROCESS") and os.uname().sysname == "Linux"  # else it is not per thread


async def run_aside(work: Callable[..., T], *args: object, limiter: trio.CapacityLimiter | None = None) -> T:
    """Not cancelled once it has begun."""
    if not _process_gives_way:
        return await trio.to_thread.run_sync(work, *args, limiter=limiter)
    return await trio.to_thread.run_sync(_lowered, work, *args, limiter=limiter)


def _lowered(work: Callable[..., T], *args: object) -> T:
    """A priority cannot be raised again without a privilege: the thread keeps it, whatever trio gives it to do next."""
    if not getattr(_thread, "is_low", False):
        _thread.is_low = True
        with contextlib.suppress(OSError):  # a sandbox may not allow it; then the work is done as ever
            os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, 0) + limits.LARGE_WORK_NICE)
    return work(*args)
