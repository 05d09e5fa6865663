"""What each process imports is most of the time it takes to start."""

import subprocess
import sys

import pytest

from topics.testing.server import DEADLINE_S

WEB = {"quart", "quart_trio", "hypercorn", "flask", "werkzeug", "click", "rich", "httpx"}


def said_by(code: str) -> str:
    command = [sys.executable, "-P", "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=DEADLINE_S).stdout


@pytest.mark.parametrize(
    ("module", "unneeded"),
    [
        ("topics.supervisor.start", WEB | {"trio"}),  # with keys the process starts itself again after this
        ("topics.cli.serve", WEB - {"click"} | {"trio"}),
        ("topics.supervisor.serve", WEB),
        ("topics.supervisor.template", WEB | {"trio"}),
        ("topics.shards.__main__", WEB),
        ("topics.gateway.__main__", WEB | {"h2", "wsproto", "asyncio"}),  # it loads them later (framework.py)
    ],
)
def test_nothing_that_is_not_needed(module, unneeded):
    code = f"import sys, {module}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    loaded = said_by(code)
    assert module.partition(".")[0] in loaded.split()
    assert not unneeded & set(loaded.split())


def test_what_the_template_has_imported_can_be_forked():
    """No thread, and no descriptor that forks would share."""
    code = (
        "import importlib, os, threading; from topics.supervisor.template import PROGRAMS\n"
        "for name in PROGRAMS: importlib.import_module(name)\n"
        "print(threading.active_count(), len(os.listdir('/proc/self/task')), *sorted(os.listdir('/proc/self/fd')))"
    )
    shown = said_by(code)
    assert shown.split() == ["1", "1", "0", "1", "2", "3"]  # the last one is that of the listing
