"""Histories of a whole shard: thousands hold, one seed is one history, and a broken shard is found out."""

import os
import subprocess
import sys
from math import inf

import pytest

from tests.simulation.breaks import BREAKS, broken
from topics.testing import simulate as command
from topics.testing.history import History
from topics.testing.simulate import report, search, search_everywhere
from topics.testing.simulation import Outcome, simulate

HISTORIES = 2_000 * int(os.environ.get("TOPICS_TEST_DEPTH", "1"))
ENOUGH = 800  # seeds, to find out about a broken shard


@pytest.mark.slow
def test_every_history_holds():
    cores = os.cpu_count() or 1
    tried, failure = search_everywhere([(range(core, HISTORIES, cores), inf) for core in range(cores)])
    assert failure is None, report(failure)
    assert tried == HISTORIES


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_seed_is_a_history_byte_for_byte(seed):
    """Also in another process, whose strings and addresses hash to something else."""
    first = simulate(seed)
    assert simulate(seed).digest == first.digest
    program = f"from topics.testing.simulation import simulate; print(simulate({seed}).digest)"
    env = os.environ | {"PYTHONHASHSEED": str(seed)}
    told = subprocess.run([sys.executable, "-c", program], env=env, check=True, capture_output=True, text=True)
    assert told.stdout.strip() == first.digest


def test_seeds_differ():
    assert len({simulate(seed).digest for seed in range(5)}) == 5


@pytest.mark.parametrize("how", BREAKS, ids=lambda how: how.__name__)
def test_a_broken_shard_is_found_out(how):
    with broken(how):
        tried, failure = search(range(ENOUGH))
    assert failure is not None, f"{tried} histories, and nobody noticed"


def test_a_replay_tells_everything(capsys):
    assert command.main(["--seed", "1"]) == 0
    told = capsys.readouterr().out
    assert "append" in told
    assert "sync wal/" in told
    assert simulate(1).digest in told


def test_a_failure_names_the_command_that_replays_it(capsys, monkeypatch):
    monkeypatch.setattr(command, "simulate", lambda seed: Outcome(seed, ["it lost a record"], [], History()))
    assert command.main(["--seed", "77"]) == 1
    told = capsys.readouterr().out
    assert "it lost a record" in told
    assert "make simulate SEED=77" in told
