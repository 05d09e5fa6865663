"""A program with a database of its own, as another process."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from topics.testing.server import DEADLINE_S

START = """
import json, os, signal, sys, threading
import topics
def say(value): os.write(1, json.dumps(value).encode() + b"\\n")  # in one piece, whatever other threads say
path = sys.argv[1]
"""


class Program:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def hear(self) -> Any:
        """The next thing it says."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"it ended with {self.process.wait(timeout=DEADLINE_S)}"
        return json.loads(line)

    def rest(self) -> list:
        """All it still says until it ends. A line that a kill cut in two was never said."""
        assert self.process.stdout is not None
        text = self.process.stdout.read()
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(timeout=DEADLINE_S)


@contextmanager
def program(path: Path, code: str) -> Iterator[Program]:
    """Runs `code`, which has `path` and `say`."""
    command = [sys.executable, "-c", START + code, str(path)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield Program(process)
    finally:
        process.kill()
        process.wait(timeout=DEADLINE_S)
