"""The steps of a shard's loop are measured: all of them, and what is long is found."""

import gc
import signal
import threading
import time
from pathlib import Path

import pytest
import trio

from loadtest import stepped_shard
from loadtest.stepped_shard import LONG_NS, Steps, sampling
from loadtest.steps import SteppedShard, main, measure
from loadtest.steps_scenarios import SCENARIOS
from topics.rpc.turns import turns
from topics.testing.server import send_signal, wait_until

TINY = 0.01


def work(took_ns: int = 3 * LONG_NS) -> None:
    """So much processor time of this thread."""
    until = time.thread_time_ns() + took_ns
    while time.thread_time_ns() < until:
        pass


async def in_a_step() -> None:
    work()


async def in_a_callback() -> None:
    trio.lowlevel.current_trio_token().run_sync_soon(work)


async def at_the_end_of_a_turn() -> None:
    turns().at_end(work)


@pytest.mark.parametrize(
    ("act", "what"),
    [(in_a_step, "in_a_step"), (in_a_callback, "run_sync_soon"), (at_the_end_of_a_turn, "the end of a turn")],
)
def test_what_takes_long_is_named(act, what):
    async def run() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(act)
        await trio.sleep(0.001)

    steps = Steps()
    trio.run(run, instruments=[steps])
    longest = steps.seen.told()["longest"][0]
    assert what in longest["what"]
    assert longest["ms"] >= 3 * LONG_NS / 1e6
    assert steps.seen.long >= 1


@pytest.mark.parametrize("pause_s", [stepped_shard.SAMPLE_S, 0.0])  # also where asking is quicker than looking
def test_where_a_long_step_is_is_seen(monkeypatch, pause_s):
    monkeypatch.setattr(stepped_shard, "SAMPLE_S", pause_s)
    steps, threads, callbacks = Steps(), threading.active_count(), len(gc.callbacks)

    async def run() -> None:
        number = steps.number
        while steps.samples.total() < 20:  # for as long as it takes
            work(1000)
        assert steps.number == number, "all in one step"

    with sampling(steps):
        trio.run(run, instruments=[steps])
    assert (threading.active_count(), len(gc.callbacks)) == (threads, callbacks), "nothing of it is left"


async def test_a_scenario_runs_against_a_real_shard():
    (scenario,) = [scenario for scenario in SCENARIOS if scenario.name == "append"]
    told = await measure(scenario, TINY)
    assert told["steps"] > 5 * 4, "each of five writes comes, goes to the log, is applied and answered"
    assert told["longest"][0]["ms"] > 0
    assert told["turn_ms"] >= told["longest"][0]["ms"]


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
async def test_every_scenario_runs(scenario):
    assert (await measure(scenario, TINY))["steps"] > 0


def states_of(pid: int) -> set[str]:
    """Those of its threads."""
    stats = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    return {stat.rpartition(")")[2].split()[0] for stat in stats}


def test_a_shard_that_does_not_answer_fails_the_measurement(tmp_path):
    shard = SteppedShard(tmp_path / "shard")
    try:
        shard.start()
        assert shard.order("begin") == {}
        send_signal(shard.pid, signal.SIGSTOP)
        wait_until(lambda: states_of(shard.pid) == {"T"}, "all threads to stop")
        shard.answer_s = 0.01
        with pytest.raises(AssertionError, match=r"did not answer to 'end' within 0\.01 s"):
            shard.order("end")
    finally:
        shard.clean_up()


def test_the_table(capsys):
    main(["--only", "list", "--scale", str(TINY), "--stacks"])
    head, line, *more = capsys.readouterr().out.splitlines()
    assert head.startswith("scenario")
    assert line.startswith("list")
    assert " ms  " in more[0]


def test_an_unknown_scenario_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["--only", "nothing"])
    assert "no such scenario: nothing" in capsys.readouterr().err
