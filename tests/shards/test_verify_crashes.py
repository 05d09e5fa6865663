"""What a crash leaves is never reported as damage, at any call of the crash sweep, with and without power."""

import pytest

from tests.shards.test_crash_sweep import DEPTH, SCRIPTS, Script, _small_limits, count_calls, run_until_crash
from topics.shards.findings import Finding, Tally
from topics.shards.verify import check_shard
from topics.testing.cold_driver import COLD
from topics.testing.faulty_files import FaultyFiles
from topics.testing.files_below import FilesBelow

STEP = 1 if DEPTH > 1 else 3
__all__ = ["_small_limits"]  # a fixture that every test here uses


def damage(files: FaultyFiles, tally: Tally) -> list[Finding]:
    cold = FilesBelow(files, COLD)
    return [finding for finding in check_shard(files, tally, lambda size: None, cold) if finding.damage]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_what_a_crash_leaves_is_no_damage(script: Script) -> None:
    tally = Tally()
    for call in range(0, count_calls(script), STEP):
        driver = run_until_crash(script, call, seed=call)
        for seed, power_loss in ((0, False), (call, True)):
            found = driver.disk.crash(seed, power_loss=power_loss)
            where = (driver.disk.trace[-1], call, power_loss)
            assert damage(found.clone(), tally) == [], where
            end = driver.fork()
            end.disk = found
            end.start()
            assert damage(end.disk.crash(seed, power_loss=power_loss), tally) == [], ("after a start", *where)
    assert tally.frames > 100
    assert tally.topics > 100
