"""Large work gives way in processes of our own, and only there."""

import os
import subprocess
import sys
import threading

import pytest
import trio

from topics import aside, limits
from topics.aside import run_aside

LOOK = """
import os, threading, trio
from topics.aside import give_way, run_aside


def priority():
    return os.getpriority(os.PRIO_PROCESS, 0)


async def main():
    seen = [await run_aside(priority) for _ in range(3)]
    seen.append(await trio.to_thread.run_sync(priority))
    print(priority() - start, *(one - start for one in seen))


os.setpriority(os.PRIO_PROCESS, 0, 3)
start = priority()
if {gives_way}:
    give_way()
trio.run(main)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="priorities of threads are Linux's")
@pytest.mark.skipif(os.getpriority(os.PRIO_PROCESS, 0) > 3, reason="this run has a low priority itself")
@pytest.mark.parametrize(("gives_way", "said"), [(True, b"0 10 10 10 0"), (False, b"0 0 0 0 0")])
def test_only_threads_of_large_work_are_lowered(gives_way, said):
    """Neither the loop nor those that trio keeps for other work."""
    done = subprocess.run([sys.executable, "-c", LOOK.format(gives_way=gives_way)], capture_output=True, check=True)
    assert done.stdout.strip() == said


TURNS = """
import ctypes, os, struct, trio
from topics.aside import _SCHED_ATTR, _SCHED_SETATTR, give_way, run_aside


def turn():
    attr = ctypes.create_string_buffer(_SCHED_ATTR.size)
    number = _SCHED_SETATTR[os.uname().machine] + 1  # sched_getattr
    assert ctypes.CDLL(None).syscall(number, 0, attr, len(attr), 0) == 0
    return _SCHED_ATTR.unpack(attr.raw)[5]


async def main():
    print(turn(), await trio.to_thread.run_sync(turn), await run_aside(turn))


give_way()
trio.run(main)
"""


def has_turns():
    release = tuple(int(part) for part in os.uname().release.split(".")[:2] if part.isdigit())
    return sys.platform == "linux" and release >= (6, 12) and os.uname().machine in aside._SCHED_SETATTR


@pytest.mark.skipif(not has_turns(), reason="before Linux 6.12 a thread cannot say how long its turns should be")
def test_turns_are_short_but_for_large_work():
    done = subprocess.run([sys.executable, "-c", TURNS], capture_output=True, check=True)
    short, long = limits.SHORT_TURN_NS, limits.LARGE_WORK_TURN_NS
    assert [int(turn) for turn in done.stdout.split()] == [short, short, long]


@pytest.fixture(params=[False, True], ids=["trio's threads", "our own"])
def threads(request, monkeypatch):
    monkeypatch.setattr(limits, "LARGE_WORK_NICE", 0)
    monkeypatch.setattr(aside, "_threads", aside._Threads() if request.param else None)


async def test_what_it_answers_and_raises(threads):
    assert await run_aside(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        await run_aside(divmod, 7, 0)


async def test_it_runs_beside_the_loop_and_beside_other_work(threads):
    """As many at once as there are, on threads that are used again."""
    meet = threading.Barrier(3)
    used: list[int] = []

    async def one() -> None:
        used.append(await run_aside(lambda: (meet.wait(60), threading.get_ident())[1]))

    for _ in range(2):
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(one)
    assert len(used) == 6
    assert len(set(used)) == 3
    assert threading.get_ident() not in used


async def test_a_limit_holds(threads):
    limiter, most, running = trio.CapacityLimiter(2), 0, 0

    def count() -> None:
        nonlocal most, running
        running += 1
        most = max(most, running)
        go.wait(60)
        running -= 1

    go = threading.Event()
    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(lambda: run_aside(count, limiter=limiter))
        while limiter.borrowed_tokens < 2 or running < 2:
            await trio.sleep(0.001)
        go.set()
    assert most == 2


async def test_it_is_not_cancelled_once_it_has_begun(threads):
    begun, go = threading.Event(), threading.Event()
    done: list[bool] = []

    def work() -> None:
        begun.set()
        go.wait(60)
        done.append(True)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_aside, work)
        while not begun.is_set():
            await trio.sleep(0.001)
        nursery.cancel_scope.cancel()
        go.set()
    assert done == [True]
    with trio.move_on_after(0):  # and does not begin if it is cancelled already
        await run_aside(done.append, False)
    assert done == [True]
