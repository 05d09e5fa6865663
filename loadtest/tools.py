"""Which programs and modules of others are there, and how to get those that are not."""

import os
import shutil
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

EXTRA = "the extra `bench` (`make bench` installs it if it can)"


@dataclass(frozen=True, slots=True)
class Tool:
    name: str
    program: str | None
    module: str | None
    lacks: str  # what a run without it does without
    how: str


TOOLS = (
    Tool("redis", "redis-server", "redis", "Redis by redis-py is left out", f"apt install redis-server, and {EXTRA}"),
    Tool("redis-benchmark", "redis-benchmark", None, "Redis by its own client is left out", "apt install redis-tools"),
    Tool("wrk", "wrk", None, "appends by a client in C are left out", "apt install wrk"),
    Tool("beanstalkd", "beanstalkd", None, "beanstalkd is left out", "apt install beanstalkd"),
    Tool("nats", "nats-server", "nats", "NATS JetStream is left out", EXTRA),
    Tool("matplotlib", None, "matplotlib", "no chart is drawn", EXTRA),
)


def find_program(name: str) -> str | None:
    """On the PATH, or beside this interpreter: pip puts the programs of packages there."""
    here = Path(sys.executable).parent / name
    return str(here) if os.access(here, os.X_OK) else shutil.which(name)


class Tools:
    def __init__(self, without: Iterable[str] = ()) -> None:
        """`without` leaves tools out although they are there."""
        self._there = {tool.name for tool in TOOLS if is_there(tool)} - set(without)

    def has(self, *names: str) -> bool:
        return self._there.issuperset(names)

    def missing(self) -> list[Tool]:
        return [tool for tool in TOOLS if tool.name not in self._there]


def is_there(tool: Tool) -> bool:
    program = tool.program is None or find_program(tool.program) is not None
    return program and (tool.module is None or find_spec(tool.module) is not None)
