"""Log lines."""

import json
import logging
import os
import subprocess
import sys

import pytest

from topics.logs import JOURNAL, JournalFormatter, JsonFormatter, TextFormatter, child_environment


def record(message="hello %s", args=("you",), **extra):
    made = logging.LogRecord("topics.x", logging.WARNING, __file__, 1, message, args, None)
    made.__dict__.update(extra)
    return made


def test_text():
    line = TextFormatter("shard-0").format(record())
    assert line.endswith(" WARNING shard-0     topics.x: hello you")


def test_json():
    line = json.loads(JsonFormatter("shard-0").format(record(fields={"port": 4000})))
    assert line.pop("ts") > 0
    assert line == {
        "level": "warning",
        "process": "shard-0",
        "pid": os.getpid(),
        "logger": "topics.x",
        "msg": "hello you",
        "port": 4000,
    }


def test_an_exception_stays_on_its_json_line():
    try:
        raise ValueError("bad\nthing")
    except ValueError:
        text = JsonFormatter("x").format(record(exc_info=sys.exc_info()))
    assert "\n" not in text
    assert "ValueError: bad\nthing" in json.loads(text)["exception"]


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_child_logs_as_it_was_told(form):
    code = "import logging; from topics import logs; logs.inherit('x'); log = logging.getLogger('a'); "
    code += "log.info('no'); log.warning('h\\u00e9 \\udc80')"
    env = {**os.environ, **child_environment("shard-3", form, "warning")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, env=env, check=True)
    (line,) = done.stderr.decode().splitlines()
    if form == "json":
        assert json.loads(line)["process"] == "shard-3"
        assert json.loads(line)["msg"] == "hé ?"
    else:
        assert line.endswith("WARNING shard-3     a: hé ?")


def test_a_reader_that_is_gone_does_not_end_the_process():
    code = "import os; from topics import logs; import logging; logs.configure('x', 'text', 'info'); os.close(2); "
    code += "logging.getLogger().info('lost'); print('alive')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "alive\n"


# --- systemd's journal --------------------------------------------------------------------------------------------

LEVELS = "import logging; from topics import logs; logs.inherit('x'); log = logging.getLogger('topics.a')\n"
LEVELS += "for level in (10, 20, 30, 40, 50): log.log(level, 'hello')"


def logged(tmp_path, stream):
    """What a process writes to a file whose device and inode the variable may name."""
    with open(tmp_path / "stderr", "wb") as file:
        found = os.fstat(file.fileno())
        env = {**os.environ, **child_environment("x", "json", "debug")}
        env[JOURNAL] = stream.format(device=found.st_dev, inode=found.st_ino)
        subprocess.run([sys.executable, "-c", LEVELS], stderr=file, env=env, check=True)
    return (tmp_path / "stderr").read_text().splitlines()


def test_lines_for_the_journal_begin_with_their_priority(tmp_path):
    lines = logged(tmp_path, "{device}:{inode}")
    assert [line[:3] for line in lines] == ["<7>", "<6>", "<4>", "<3>", "<3>"]
    levels = [json.loads(line[3:])["level"] for line in lines]  # what is left when systemd has taken that away
    assert levels == ["debug", "info", "warning", "error", "critical"]


@pytest.mark.parametrize("stream", ["{device}:0", "0:{inode}", "{inode}:{device}", "", "nonsense"])
def test_elsewhere_they_do_not_even_if_systemd_started_the_service(tmp_path, stream):
    lines = logged(tmp_path, stream)
    assert [json.loads(line)["level"] for line in lines] == ["debug", "info", "warning", "error", "critical"]


def test_every_line_of_an_exception_has_the_priority():
    try:
        raise ValueError("bad\nthing")
    except ValueError:
        text = JournalFormatter(TextFormatter("x")).format(record(exc_info=sys.exc_info()))
    lines = text.split("\n")
    assert len(lines) > 3
    assert all(line.startswith("<4>") for line in lines)
    assert lines[-1] == "<4>thing"
