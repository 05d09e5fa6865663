"""Histories of a whole shard: thousands hold, one seed is one history, and a broken shard is found out."""

import os
import subprocess
import sys

import pytest

from tests.simulation.breaks import LOG_BREAKS, broken, names_that_are_never_synced
from tests.simulation.breaks_groups import GROUP_BREAKS
from tests.simulation.breaks_queues import QUEUE_BREAKS
from tests.simulation.breaks_records import RECORD_BREAKS
from topics.testing import simulate as command
from topics.testing.history import History
from topics.testing.simulate import report, search
from topics.testing.simulated_topics import GROUPS, KINDS, LOGS, QUEUES, RECORDS, seeds_of
from topics.testing.simulation import Outcome, simulate

HISTORIES = 2_000 * int(os.environ.get("TOPICS_TEST_DEPTH", "1"))
SHARES = 4  # which may run at the same time
ENOUGH = 800  # seeds, to find out about a broken shard
BREAKS = [
    *((LOGS, how) for how in LOG_BREAKS),
    *((QUEUES, how) for how in QUEUE_BREAKS),
    *((GROUPS, how) for how in GROUP_BREAKS),
    *((RECORDS, how) for how in RECORD_BREAKS),
]


@pytest.mark.slow
@pytest.mark.parametrize("share", range(SHARES))
def test_every_history_holds(share):
    size = HISTORIES // SHARES
    tried, failure = search(range(share * size, (share + 1) * size))
    assert failure is None, report(failure)
    assert tried == size


@pytest.mark.parametrize("seed", range(len(KINDS)))
def test_a_seed_is_a_history_byte_for_byte(seed):
    """Also in another process, whose strings and addresses hash to something else."""
    first = simulate(seed)
    assert simulate(seed).digest == first.digest
    program = f"from topics.testing.simulation import simulate; print(simulate({seed}).digest)"
    env = os.environ | {"PYTHONHASHSEED": str(seed + 1)}
    told = subprocess.run([sys.executable, "-c", program], env=env, check=True, capture_output=True, text=True)
    assert told.stdout.strip() == first.digest


def test_seeds_differ():
    assert len({simulate(seed).digest for seed in range(5)}) == 5


@pytest.mark.parametrize(("kind", "how"), BREAKS, ids=lambda part: part if isinstance(part, str) else part.__name__)
def test_a_broken_shard_is_found_out(kind, how):
    with broken(how):
        tried, failure = search(seeds_of(kind, ENOUGH))
    assert failure is not None, f"{tried} histories, and nobody noticed"


def test_the_order_of_what_is_done_to_the_disk_is_watched():
    """Before a crash comes at the very moment that would hurt. A client that asked for the checkpoint is told of an
    internal error instead, so the first history that fails may not name it."""
    with broken(names_that_are_never_synced):
        problems = (problem for seed in seeds_of(LOGS, ENOUGH) for problem in simulate(seed).problems)
        assert any("OrderingViolation('unlink wal/" in problem for problem in problems)


def test_a_replay_tells_everything(capsys):
    assert command.main(["--seed", "0"]) == 0
    told = capsys.readouterr().out
    assert "append" in told
    assert "sync wal/" in told
    assert simulate(0).digest in told


def test_a_failure_names_the_command_that_replays_it(capsys, monkeypatch):
    monkeypatch.setattr(command, "simulate", lambda seed: Outcome(seed, ["it lost a record"], [], History()))
    assert command.main(["--seed", "77"]) == 1
    told = capsys.readouterr().out
    assert "it lost a record" in told
    assert "make simulate SEED=77" in told
