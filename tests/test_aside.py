"""Large work gives way in processes of our own, and only there."""

import subprocess
import sys

import pytest
import trio

from topics.aside import run_aside

LOOK = """
import os, threading, trio
from topics.aside import give_way, run_aside


def priority():
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


async def main():
    seen = [await run_aside(priority) for _ in range(3)]
    print(priority() - start, *(one - start for one in seen))


start = priority()
if {gives_way}:
    give_way()
trio.run(main)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="priorities of threads are Linux's")
@pytest.mark.parametrize(("gives_way", "said"), [(True, b"0 10 10 10"), (False, b"0 0 0 0")])
def test_only_threads_of_large_work_are_lowered_and_only_once(gives_way, said):
    done = subprocess.run([sys.executable, "-c", LOOK.format(gives_way=gives_way)], capture_output=True, check=True)
    assert done.stdout.strip() == said


def test_what_it_answers_and_raises():
    assert trio.run(run_aside, divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        trio.run(run_aside, divmod, 7, 0)
