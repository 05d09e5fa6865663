"""The servers under test, each in a directory of its own below the run's folder: ours, Redis, NATS."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from loadtest.http import Address
from loadtest.tools import find_program
from loadtest.workload import Bench
from topics.ids import slot_of
from topics.testing.server import SERVE, Server

START_S = 120.0
NEVER_CHECKPOINTS = (sys.executable, "-m", "loadtest.uncut", "serve")


# --- ours ---------------------------------------------------------------------------------------------------------


@contextmanager
def topics_server(
    bench: Bench, *, shards: int = 2, gateways: int = 2, checkpoints: bool = True, keys: Sequence[str] = ()
) -> Iterator[Server]:
    """`topics serve` with settings as an operator would have them, ready."""
    folder = bench.folder / bench.fresh("topics")
    folder.mkdir()
    settings: dict[str, Any] = {"shards": shards, "gateways": gateways, "log_level": "warning", "max_topics": 0}
    if keys:
        file = folder / "keys"
        file.touch(mode=0o600)
        file.write_text("".join(f"{key}\n" for key in keys))
        settings["api_keys_file"] = file
    with Server(folder, command=SERVE if checkpoints else NEVER_CHECKPOINTS, **settings) as server:
        yield server.start().wait_ready()


def address_of(server: Server) -> Address:
    return ("127.0.0.1", server.port)


def topics_over_shards(bench: Bench, server: Server, count: int, stem: str) -> list[str]:
    """New topic names that fall on the shards in turn."""
    slots = server.slots()
    shards = sorted(set(slots))
    names: list[str] = []
    while len(names) < count:
        name = bench.fresh(stem)
        if slots[slot_of(name)] == shards[len(names) % len(shards)]:
            names.append(name)
    return names


class ProcessorTime:
    """Processor time that a server's processes spend from now on, by kind."""

    def __init__(self, server: Server) -> None:
        children = server.status()["children"]
        self._pids = [(str(child["kind"]), int(child["pid"])) for child in children]
        self._before = self._seconds()

    def _seconds(self) -> dict[str, float]:
        sums = dict.fromkeys(sorted(kind for kind, _ in self._pids), 0.0)
        for kind, pid in self._pids:
            sums[kind] += processor_s(pid)
        return sums

    def us_per(self, count: int) -> dict[str, float]:
        """Microseconds for each of so many things."""
        now = self._seconds()
        return {f"{kind}_us": (now[kind] - self._before[kind]) * 1e6 / max(count, 1) for kind in now}


def processor_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# --- peers --------------------------------------------------------------------------------------------------------


class Peer:
    """A server of somebody else, on a port that was free."""

    def __init__(self, folder: Path, command: Callable[[int, Path], Sequence[str]], answers: Callable[[int], bool]):
        self.folder = folder
        self.port = 0
        self._command = command
        self._answers = answers
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> float:
        """Start it; the seconds until it answered as it should."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        began = time.perf_counter()
        with open(self.folder / "log", "ab") as log:
            command = self._command(self.port, self.folder)
            self._process = subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log)
        while not self._answers(self.port):
            if self._process.poll() is not None or time.perf_counter() - began > START_S:
                raise RuntimeError(f"{command[0]} did not start:\n{(self.folder / 'log').read_text()}")
            time.sleep(0.002)
        return time.perf_counter() - began

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    @property
    def address(self) -> Address:
        return ("127.0.0.1", self.port)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def started(stack: ExitStack, peer: Peer) -> Peer:
    stack.callback(peer.kill)
    peer.start()
    return peer


def redis_server(bench: Bench, fsync: str = "always") -> Peer:
    def command(port: int, folder: Path) -> list[str]:
        settings = {"port": port, "bind": "127.0.0.1", "dir": folder, "save": "", "appendonly": "yes"}
        settings |= {"appendfsync": fsync, "auto-aof-rewrite-percentage": 0, "aof-use-rdb-preamble": "no"}
        flags = [part for name, value in settings.items() for part in (f"--{name}", str(value))]
        return [find_program("redis-server") or "redis-server", *flags]

    return Peer(bench.folder / bench.fresh("redis"), command, lambda port: _says(port, b"PING\r\n", b"+PONG"))


def beanstalk_server(bench: Bench) -> Peer:
    """With a log that it syncs every second."""

    def command(port: int, folder: Path) -> list[str]:
        program = find_program("beanstalkd") or "beanstalkd"
        return [program, "-l", "127.0.0.1", "-p", str(port), "-b", str(folder), "-f", "1000"]

    return Peer(bench.folder / bench.fresh("beanstalkd"), command, lambda port: _says(port, b"stats\r\n", b"OK "))


def nats_server(bench: Bench) -> Peer:
    def command(port: int, folder: Path) -> list[str]:
        program = find_program("nats-server") or "nats-server"
        return [program, "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", str(folder)]

    return Peer(bench.folder / bench.fresh("nats"), command, lambda port: _says(port, b"", b"INFO "))


def _says(port: int, question: bytes, answer: bytes) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as sock:
            sock.sendall(question)
            return sock.recv(len(answer)) == answer
    except OSError:
        return False
