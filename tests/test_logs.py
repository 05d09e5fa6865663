"""Log lines."""

import json
import logging
import os
import subprocess
import sys

import pytest

from topics.logs import JsonFormatter, TextFormatter, child_environment


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
