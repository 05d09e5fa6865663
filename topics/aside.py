"""Large work, and how it gives way to other processes: in threads of low priority, or in pieces.

A shard that decodes, renders and stores large batches has several threads that always want a processor. Without a
priority the gateways and the other shards, which want one for a moment, would stand in line with them ("Held up" in
docs/performance.md). Loops, the log's thread, recovery and reads of records do not run here.

Linux also lets a thread say for how long it wants to run when it has got a processor. Whoever has said less may take
the processor from one that has said more, at the moment it wakes up; else it would wait for the end of a turn of up to
four milliseconds. So everything in our processes says little but for those threads, which say much.

The threads are our own: a priority cannot be raised again without a privilege, and whoever got such a thread out of
trio's cache next would be slow, too. They are made as they are needed and stay. Only processes of our own have them
(`give_way`): a program that holds an embedded database may want its threads as they are.
"""

import contextlib
import ctypes
import os
import queue
import struct
import sys
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import outcome
import trio

from topics import limits

T = TypeVar("T")
FREE_STEP = 64


def next_please() -> None:
    """After a piece of large work that a loop does itself: another process that waits for this processor has its turn.

    The scheduler would let the loop go on for milliseconds, and whoever waits wants less than one.
    """
    os.sched_yield()


def let_go(items: list[Any]) -> None:
    """Free the items of a long list, in a thread, a few at a time: the interpreter is held while a list is freed."""
    while items:
        del items[-FREE_STEP:]


class _Threads:
    """For one loop. All methods are for its thread."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._free = 0  # threads that wait for work

    async def run(self, work: Callable[..., T], *args: object) -> T:
        task, token = trio.lowlevel.current_task(), trio.lowlevel.current_trio_token()

        def done(result: outcome.Outcome[T]) -> None:
            self._free += 1
            trio.lowlevel.reschedule(task, result)

        def in_thread() -> None:
            result = outcome.capture(work, *args)
            with contextlib.suppress(trio.RunFinishedError):  # nobody waits any more
                token.run_sync_soon(done, result)

        if self._free:
            self._free -= 1
        else:
            threading.Thread(target=self._serve, name="aside", daemon=True).start()
        self._work.put(in_thread)
        made: T = await trio.lowlevel.wait_task_rescheduled(lambda _: trio.lowlevel.Abort.FAILED)
        return made

    def _serve(self) -> None:
        """A thread's life."""
        with contextlib.suppress(OSError):  # a sandbox may not allow it; then the work is done as ever
            os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, 0) + limits.LARGE_WORK_NICE)
        _run_for(limits.LARGE_WORK_TURN_NS)
        while True:
            self._work.get()()


_threads: _Threads | None = None


def give_way() -> None:
    """From now on large work of this process has a low priority. Only on Linux: else threads have none of their own.

    For the first thread of a process, before it starts others: they inherit the short turns.
    """
    global _threads
    _threads = _Threads() if sys.platform == "linux" else None
    if _threads is not None:
        _run_for(limits.SHORT_TURN_NS)


# `struct sched_attr` of sched_setattr(2), which is no part of the standard library: size, policy, flags, nice value,
# priority, then runtime (the turn that is asked for), deadline and period.
_SCHED_ATTR = struct.Struct("=IIQiIQQQ")
_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274, "riscv64": 274}


def _run_for(turn_ns: int) -> None:
    """How long a turn of this thread, and of those that it starts, is to be. Kernels before 6.12 take no notice, and a
    thread that an operator has given another policy is left alone."""
    number = _SCHED_SETATTR.get(os.uname().machine)
    if number is None or os.sched_getscheduler(0) != os.SCHED_OTHER:
        return
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    attr = _SCHED_ATTR.pack(_SCHED_ATTR.size, os.SCHED_OTHER, 0, nice, 0, turn_ns, 0, 0)
    ctypes.CDLL(None).syscall(number, 0, attr, 0)  # if it is refused, turns are as long as ever


async def run_aside(work: Callable[..., T], *args: object, limiter: trio.CapacityLimiter | None = None) -> T:
    """Not cancelled once it has begun."""
    if _threads is None:
        return await trio.to_thread.run_sync(work, *args, limiter=limiter)
    await trio.lowlevel.checkpoint_if_cancelled()
    async with limiter or contextlib.nullcontext():
        return await _threads.run(work, *args)
