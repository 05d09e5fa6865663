"""The command line as a user meets it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

import topics
from topics.cli.api import failure_of
from topics.settings import OPTIONS

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments, cwd=None, **env):
    return subprocess.run(
        [sys.executable, "-m", "topics.cli", *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), **env},
        timeout=30,
    )


def test_version():
    done = run("--version")
    assert (done.returncode, done.stdout) == (0, f"topics {topics.__version__}\n")


def test_the_package_is_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "topics", "--help"], capture_output=True, text=True, cwd=ROOT, timeout=30
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, run("--help").stdout, "")
    assert done.stdout.startswith("Usage: topics [OPTIONS] COMMAND")


def test_help_of_serve_is_the_reference():
    done = run("serve", "--help")
    assert done.returncode == 0
    for option in OPTIONS:
        assert option.env in done.stdout
        assert option.flag is None or option.flag in done.stdout


@pytest.mark.parametrize(
    ("arguments", "env", "message"),
    [
        (["serve"], {"TOPICS_PORT": "x"}, "TOPICS_PORT (--port) must be 0 to 65535, not 'x'"),
        (["serve", "--shards", "0"], {}, "TOPICS_SHARDS (--shards) must be 1 to 64, not '0'"),
        (["serve", "--host", "0.0.0.0"], {}, "no API keys are set"),
        (["serve", "--nonsense"], {}, "No such option"),
        (["nonsense"], {}, "No such command"),
    ],
)
def test_bad_usage_ends_with_2_and_starts_nothing(tmp_path, arguments, env, message):
    done = run(*arguments, cwd=tmp_path, **env)
    assert done.returncode == 2
    assert message in done.stderr.replace("\n", " ")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["topic", "create", "t", "--cap-records", "many", "--json"], "usage", "'many' is not a valid integer"),
        (["topic", "rm", "t", "--json"], "usage", "Say so with --yes."),
        (["topic", "nonsense", "--json"], "usage", "No such command"),
        (["topic", "ls", "--url", "ftp://x", "--json"], "usage", "is no URL of a server"),
        (["restore", "absent", "to", "--json"], "usage", "does not exist"),
        (["verify", "absent", "--json"], "cannot_check", "is not a data directory"),
        (["inspect", "absent", "--json"], "cannot_inspect", "No such file"),
    ],
)
def test_bad_usage_is_told_in_json_to_who_asks_for_json(tmp_path, arguments, code, message):
    done = run(*arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    error = json.loads(done.stderr)["error"]
    assert error["code"] == code
    assert message in error["message"]


def test_a_value_that_looks_like_the_flag_asks_for_nothing(tmp_path):
    done = run("topic", "append", "--url", "ftp://x", "t", "--text", "--", "--json", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")


def test_a_failure_ends_with_1_and_a_message(tmp_path):
    (tmp_path / "FORMAT").write_text("topics 99")
    done = run("serve", "--data-dir", str(tmp_path), "--log-format", "text")
    assert done.returncode == 1
    assert "was written by a newer topics" in done.stderr


@pytest.mark.parametrize("text", ["<html>", '{"error":"no such host"}', '{"error":null}', "[]", "{}"])
def test_an_answer_that_is_not_of_topics_is_told_as_one(text):
    failure = failure_of(httpx.Response(502, text=text))
    assert failure.message == "HTTP 502 Bad Gateway from something that is not topics"


def test_the_command_line_imports_no_server_before_it_serves():
    code = (
        "import sys, topics.cli; print(*sorted({'trio', 'quart', 'hypercorn', 'topics.supervisor'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == ""
