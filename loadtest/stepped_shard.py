"""A shard process that notes how long its loop stands still: what `python -m loadtest.steps` starts and asks.

The loop's thread does one thing after another: a step of a task (callbacks of other threads are one, that of
`run_sync_soon`), what runs at the end of a turn, and the loop's own work in between. Each is measured in processor time
of that thread, so that a busy machine makes little difference. Garbage collections are noted as well, whoever sets them
off: they hold the interpreter.

Lines on stdin are orders: `begin` forgets what was seen, `end` tells it as one line of JSON on stdout.
"""

import argparse
import gc
import json
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import islice
from types import FrameType
from typing import Any

import trio

from topics.shards.__main__ import parse_args, serve, settle_in

LONG_NS = 2_000_000
LONGEST = 5  # that are told of
SAMPLE_S = 0.0005
FRAMES = 12  # of a stack, the innermost


class Seen:
    """Since the last `begin`."""

    def __init__(self) -> None:
        self.steps = 0
        self.long = 0
        self.longest: list[tuple[int, str, list[str]]] = []  # nanoseconds, what, where; the longest first
        self.turn_ns = 0
        self.gc_ns = 0

    def is_long(self, took_ns: int) -> bool:
        return len(self.longest) < LONGEST or took_ns > self.longest[-1][0]

    def add(self, took_ns: int, what: str, stack: list[str]) -> None:
        self.longest = sorted([*self.longest, (took_ns, what, stack)], reverse=True)[:LONGEST]

    def told(self) -> dict[str, Any]:
        longest = [{"ms": ns / 1e6, "what": what, "stack": stack} for ns, what, stack in self.longest]
        times = {"turn_ms": self.turn_ns / 1e6, "gc_ms": self.gc_ns / 1e6}
        return {"steps": self.steps, "long": self.long, "longest": longest, **times}


class Steps(trio.abc.Instrument):
    """Every moment of the loop's thread belongs to what ends next."""

    def __init__(self) -> None:
        self.seen = Seen()
        self.number = 0  # of what is under way
        self.is_idle = True  # the loop waits
        self.samples: Counter[tuple[str, ...]] = Counter()  # where it was seen, see `sampling`
        self._last_ns = self._turn_ns = self._gc_ns = 0

    def before_run(self) -> None:
        gc.callbacks.append(self._collecting)
        self.is_idle = False
        self._last_ns = self._turn_ns = time.thread_time_ns()

    def after_run(self) -> None:
        self.is_idle = True
        gc.callbacks.remove(self._collecting)

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._passed("the loop itself", None)

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self._passed(task.name, task)

    def task_exited(self, task: trio.lowlevel.Task) -> None:
        if task.parent_nursery is None:  # the last: the loop takes itself apart, and a signal would meet half of it
            self.is_idle = True

    def before_io_wait(self, timeout: float) -> None:  # called before that of `Turns`, which came later
        self._passed("the loop itself", None)
        self.is_idle = True

    def after_io_wait(self, timeout: float) -> None:
        self.is_idle = False
        self._passed("the end of a turn", None)
        self.seen.turn_ns = max(self.seen.turn_ns, self._last_ns - self._turn_ns)
        self._turn_ns = self._last_ns

    def _passed(self, what: str, task: trio.lowlevel.Task | None) -> None:
        now = time.thread_time_ns()
        took, self._last_ns = now - self._last_ns, now
        seen = self.seen
        seen.steps += 1
        seen.long += took > LONG_NS
        self.number += 1
        samples, self.samples = self.samples, Counter()
        if seen.is_long(took):
            where = " < ".join(_awaiting(task)) if task is not None else ""
            stack = list(samples.most_common(1)[0][0]) if samples else []
            seen.add(took, f"{what} ({where})" if where else what, stack)

    def _collecting(self, phase: str, info: dict[str, int]) -> None:
        now = time.thread_time_ns()
        if phase == "start":
            self._gc_ns = now
        else:
            self.seen.gc_ns = max(self.seen.gc_ns, now - self._gc_ns)


def _awaiting(task: trio.lowlevel.Task) -> list[str]:
    """The functions that the task is in, the innermost first; a reader and a writer have tasks of the same name."""
    frames = [frame.f_code for frame, _ in task.iter_await_frames()] if task.coro.cr_frame is not None else []
    return [code.co_qualname for code in reversed(frames) if "/topics/" in code.co_filename][:3]


@contextmanager
def sampling(steps: Steps) -> Iterator[None]:
    """Look again and again at what takes long. Of the main thread only.

    The loop's own thread looks where it is, when a signal asks it to. A look from another thread would be simpler, but
    `sys._current_frames` can lock up a process whose threads come and go.
    """

    asked, over, loop_thread = -1, threading.Event(), threading.get_ident()
    may_ask = threading.Event()  # while it looks nobody asks again: it would look at itself, deeper and deeper
    may_ask.set()

    def look(_signum: int, frame: FrameType | None) -> None:
        if not steps.is_idle and asked == steps.number:
            steps.samples[tuple(_lines(frame))] += 1
        may_ask.set()

    def ask() -> None:
        nonlocal asked
        while not over.wait(SAMPLE_S):
            if not steps.is_idle and asked == steps.number and may_ask.is_set():
                may_ask.clear()
                signal.pthread_kill(loop_thread, signal.SIGUSR2)
            asked = steps.number

    before = signal.signal(signal.SIGUSR2, look)
    asker = threading.Thread(target=ask, daemon=True)
    asker.start()
    try:
        yield
    finally:
        over.set()
        asker.join()
        signal.signal(signal.SIGUSR2, before)


def _lines(innermost: FrameType | None) -> list[str]:
    """Where it is, the outermost first. It reads no source: a look has to take less time than passes between two."""
    frames = [(frame.f_code, line) for frame, line in islice(traceback.walk_stack(innermost), FRAMES)]
    return [
        f"topics/{code.co_filename.rpartition('/topics/')[2]}:{line} {code.co_name}"
        for code, line in reversed(frames)
        if "/topics/" in code.co_filename
    ]


def obey(steps: Steps) -> None:
    """In a thread."""
    for order in sys.stdin:
        if order.strip() == "begin":
            steps.seen = Seen()
            print("{}", flush=True)
        else:
            print(json.dumps(steps.seen.told()), flush=True)


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m loadtest.stepped_shard", add_help=False)
    parser.add_argument("--stacks", action="store_true")
    own, rest = parser.parse_known_args(argv)
    args, steps = parse_args(rest), Steps()
    settle_in()
    threading.Thread(target=obey, args=(steps,), daemon=True).start()
    with sampling(steps) if own.stacks else nullcontext():
        trio.run(serve, args, instruments=[steps])


if __name__ == "__main__":
    main(sys.argv[1:])
