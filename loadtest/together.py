"""Several load generators, each in its own process, that begin at the same moment."""

import gc
import multiprocessing
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import TypeVar

from loadtest.workload import WrongAnswer

T = TypeVar("T")
Ready = Callable[[], None]
START_S = 60.0
_FORK = multiprocessing.get_context("fork")  # what was rendered before is there without being sent over


def run_together(works: Sequence[Callable[[Ready], T]]) -> list[tuple[T, float]]:
    """Call every work in its own process; results and processor seconds spent between `ready` and the end.

    A work prepares, calls what it is given, which returns when all are prepared, and then measures.
    """
    barrier = _FORK.Barrier(len(works))
    pipes = [_FORK.Pipe(duplex=False) for _ in works]
    processes = [
        _FORK.Process(target=_run, args=(work, barrier.wait, barrier.abort, sender), daemon=True)
        for work, (_, sender) in zip(works, pipes, strict=True)
    ]
    for process in processes:
        process.start()
    for _, sender in pipes:
        sender.close()
    answers: list[tuple[Exception | None, T, float]] = []
    try:
        answers += [_receive(receiver) for receiver, _ in pipes]
    finally:
        for process in processes:
            process.kill()
            process.join()
    failures = [failure for failure, _, _ in answers if failure is not None]
    if failures:
        raise next((f for f in failures if isinstance(f, WrongAnswer)), failures[0])
    return [(result, seconds) for _, result, seconds in answers]


def _receive(receiver: "Connection[object, object]") -> tuple[Exception | None, T, float]:
    try:
        return receiver.recv()  # type: ignore[return-value]
    except EOFError:
        raise RuntimeError("a load generator ended without a result") from None


def _run(
    work: Callable[[Ready], T],
    wait: Callable[[float], int],
    abort: Callable[[], None],
    sender: "Connection[object, object]",
) -> None:
    began = 0.0

    def ready() -> None:
        nonlocal began
        wait(START_S)
        began = time.process_time()

    gc.freeze()
    gc.disable()
    try:
        result = work(ready)
        sender.send((None, result, time.process_time() - began))
    except WrongAnswer as wrong:
        abort()
        sender.send((wrong, None, 0.0))
    except Exception:
        abort()
        sender.send((RuntimeError(f"a load generator failed:\n{traceback.format_exc()}"), None, 0.0))
