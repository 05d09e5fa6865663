"""A real server for the commands, and a way to run them as a script would: in pipes, with nothing but variables."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from topics.testing.server import Server

ROOT = Path(__file__).resolve().parents[2]
ADMIN_KEY, READ_KEY = "kadmin-4f1e", "kread-77ab"
COMMAND = (sys.executable, "-m", "topics.cli")


class Commands:
    """Runs `topics …` against one server."""

    def __init__(self, server: Server, home: Path) -> None:
        self.server = server
        self.env = {key: value for key, value in os.environ.items() if not key.startswith("TOPICS_")}
        self.env |= {"PYTHONPATH": str(ROOT), "HOME": str(home), "XDG_CONFIG_HOME": "", "PYTHONUNBUFFERED": "1"}
        self.env |= {"TOPICS_URL": server.url, "TOPICS_KEY": ADMIN_KEY, "TOPICS_DATA_DIR": str(server.data)}

    def __call__(self, *arguments: str, stdin: str | bytes = b"", **env: str) -> subprocess.CompletedProcess[str]:
        given = stdin.encode() if isinstance(stdin, str) else stdin
        done = subprocess.run([*COMMAND, *arguments], input=given, capture_output=True, env=self.env | env, timeout=60)
        return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())

    def ok(self, *arguments: str, **options: Any) -> str:
        done = self(*arguments, **options)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def start(self, *arguments: str, **env: str) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        return subprocess.Popen([*COMMAND, *arguments], stdout=pipe, stderr=pipe, text=True, env=self.env | env)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("cli")
    with Server(folder, api_keys=f"{ADMIN_KEY},{READ_KEY}:read") as made:
        yield made.start().wait_ready()


@pytest.fixture
def topics(server: Server, tmp_path: Path) -> Commands:
    return Commands(server, tmp_path)
