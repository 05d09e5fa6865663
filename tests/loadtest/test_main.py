"""The command: what it takes, what it writes, how it ends."""

import json
from contextlib import ExitStack

import pytest

from loadtest import __main__ as command
from loadtest.catalogue import WORKLOADS
from loadtest.tools import TOOLS
from loadtest.workload import Bench, Contender, Sample, Sizes, Workload, WrongAnswer, contender

TINY = Sizes(1, seconds=0.05, read_records=2_000, recovery_records=4_000, paced_seconds=0.1, paced_rate=50)
NO_PEERS = ["--without", ",".join(tool.name for tool in TOOLS)]


@pytest.mark.parametrize(
    "names", ["w2,heldup", pytest.param("w1,w3,routers,routed,latency,recovery,keys", marks=pytest.mark.slow)]
)
def test_workloads_run_and_check_themselves_at_tiny_sizes(names, tmp_path, capsys):
    assert command.main(["--only", names, "--results", str(tmp_path), *NO_PEERS], TINY) == 0
    said = capsys.readouterr().out
    assert all(f"{tool.name} is missing" in said for tool in TOOLS)
    seen = json.loads((tmp_path / "results.json").read_text())
    assert ",".join(workload["name"] for workload in seen["workloads"]) == names
    assert all(samples[0]["value"] > 0 for workload in seen["workloads"] for samples in workload["rows"].values())
    assert (tmp_path / "table.md").exists()
    assert not list(tmp_path.glob("data-*"))  # what the servers wrote is gone


@pytest.mark.slow
def test_growth_is_measured_at_tiny_sizes(tmp_path):
    sizes = Sizes(
        rounds=1,
        growth_topics=(1, 70),
        growth_records=(1_000, 2_000),
        growth_log_records=(4_000,),
        growth_seconds=0.05,
    )
    assert command.main(["--growth", "--results", str(tmp_path)], sizes) == 0
    curves = json.loads((tmp_path / "results.json").read_text())["growth"]
    assert [[x for x, _ in points] for curve in curves for points in curve["lines"].values()] == [
        [1, 70],
        [1, 70],
        [1, 70],
        [1_000, 2_000],
        [1_000, 2_000],
        [4_000],
        [4_000],
    ]
    assert (tmp_path / "growth.png").exists()


def test_a_wrong_answer_is_an_exit_status(tmp_path, capsys, monkeypatch):
    def lie() -> Sample:
        raise WrongAnswer("[seq 7] is missing")

    def contenders(bench: Bench, stack: ExitStack) -> list[Contender]:
        return [contender("liar", lie)]

    monkeypatch.setitem(WORKLOADS, "w1", Workload("w1", "", "s", contenders))
    assert command.main(["--only", "w1", "--results", str(tmp_path)], TINY) == command.EXIT_WRONG
    assert "wrong answer: [seq 7] is missing" in capsys.readouterr().out
    assert not (tmp_path / "results.json").exists()


def test_with_json_stdout_is_the_results_alone(tmp_path, capsys, monkeypatch):
    answers = [Sample(5.0, {})]

    def measure() -> Sample:
        if not answers:
            raise WrongAnswer("[seq 7] is missing")
        return answers.pop()

    monkeypatch.setitem(WORKLOADS, "w1", Workload("w1", "", "s", lambda *_: [contender("one", measure)]))
    command_line = ["--only", "w1", "--json", "--results", str(tmp_path), *NO_PEERS]
    assert command.main(command_line, TINY) == 0
    assert json.loads(capsys.readouterr().out) == json.loads((tmp_path / "results.json").read_text())
    assert command.main(command_line, TINY) == command.EXIT_WRONG
    said = capsys.readouterr()
    assert said.out == ""
    assert json.loads(said.err.splitlines()[-1]) == {"error": {"code": "wrong_answer", "message": "[seq 7] is missing"}}


@pytest.mark.parametrize("arguments", [["--only", "w9"], ["--rounds", "0"], ["--seconds", "-1"], ["--nonsense"]])
def test_usage_errors(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        command.main(arguments)
    assert ended.value.code == 2


def test_help_names_every_workload(capsys):
    with pytest.raises(SystemExit) as ended:
        command.main(["--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert all(name in said for name in WORKLOADS)
