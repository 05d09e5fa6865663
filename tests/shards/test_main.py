"""The interpreter of a shard process."""

import subprocess
import sys

import pytest

from topics import limits

LOOK = """
import gc, sys
from topics.shards import __main__ as shards

async def look(args):
    print(sys.getswitchinterval(), *gc.get_threshold())

shards.serve = look
sys.exit(shards.main(["--dir", "unused", "--socket", "unused"]))
"""


def test_threads_of_a_shard_soon_have_their_turn_and_collections_are_small() -> None:
    """Else its committer waits for the interpreter while the loop is busy, and full collections stop the loop."""
    shown = subprocess.run([sys.executable, "-c", LOOK], capture_output=True, text=True, check=True).stdout
    interval_s, *thresholds = shown.split()
    assert float(interval_s) == pytest.approx(limits.SWITCH_INTERVAL_S)
    assert tuple(map(int, thresholds)) == limits.GC_THRESHOLDS
