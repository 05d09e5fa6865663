"""What each process imports is most of the time it takes to start."""

import subprocess
import sys

import pytest

WEB = {"quart", "quart_trio", "hypercorn", "flask", "werkzeug", "click", "rich", "httpx"}


@pytest.mark.parametrize(
    ("module", "unneeded"),
    [
        ("topics.supervisor.start", WEB | {"trio"}),  # with keys the process starts itself again after this
        ("topics.cli.serve", WEB - {"click"} | {"trio"}),
        ("topics.supervisor.serve", WEB),
        ("topics.shards.__main__", WEB),
    ],
)
def test_nothing_that_is_not_needed(module, unneeded):
    code = f"import sys, {module}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    loaded = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True).stdout
    assert module.partition(".")[0] in loaded.split()
    assert not unneeded & set(loaded.split())
