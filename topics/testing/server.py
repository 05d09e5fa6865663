"""A real `topics serve` in real processes, for tests: start it, look at it, hurt it, and leave nothing behind.

One `Server` is one data directory over any number of lives of the server. Every process of a server holds the lock
file of its data directory open (see `topics.supervisor.datadir`), so `holders` finds them all, orphans included, from
/proc alone; the admin socket tells which child is which.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self, TypeVar

import trio

import topics
from topics.errors import TopicsError
from topics.rpc import Reply, connect_unix
from topics.supervisor.rundir import remove_run_dir

ROOT = Path(topics.__file__).resolve().parents[1]
SERVE = (sys.executable, "-m", "topics.cli", "serve")
DEADLINE_S = 120.0
T = TypeVar("T")


def wait_until(found: Callable[[], T], what: str | Callable[[], str] = "it", seconds: float = DEADLINE_S) -> T:
    """Poll until it is true; what was found. The deadline is there only to fail instead of hanging."""
    until = time.monotonic() + seconds
    while not (value := found()):
        assert time.monotonic() < until, f"waited {seconds} s for {what if isinstance(what, str) else what()}"
        time.sleep(0.005)
    return value


def join(*threads: threading.Thread, seconds: float = DEADLINE_S) -> None:
    """Until all of them have ended."""
    until = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    left = [thread.name for thread in threads if thread.is_alive()]
    assert not left, f"waited {seconds} s for threads to end: {', '.join(left)}"


def send_signal(pid: int, number: signal.Signals) -> None:
    """To one process, if it is still there. Pid 0, which a child has between two lives, would be our own group."""
    assert pid > 0, f"{number.name} is for one process, and {pid} is none"
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def send_group_signal(pid: int, number: signal.Signals) -> None:
    """To a process that leads a group, and to all others of it that are still there."""
    assert pid > 1, f"{number.name} is for one group, and {pid} leads none of ours"
    with suppress(ProcessLookupError):
        os.killpg(pid, number)


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended but was not yet reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def holders(file: Path) -> set[int]:
    """The processes that have this file open, but for our own."""
    target, found = os.path.realpath(file), set()
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            with suppress(OSError):  # it has just ended, or is not ours to look at
                if any(os.readlink(fd) == target for fd in os.scandir(f"/proc/{entry}/fd")):
                    found.add(int(entry))
    return found


def command_of(pid: int) -> str:
    """The command line of a process, as far as it can be seen."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    return ""


class Server:
    """`settings` are TOPICS_* variables in lower case; `environment` is for what is none of them."""

    def __init__(
        self,
        folder: Path,
        *,
        command: Sequence[str] = SERVE,
        environment: dict[str, str] | None = None,
        **settings: object,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.port_file = folder / "port"
        self.log = folder / "log"
        self.port = 0
        self._command = command
        self._environment = environment or {}
        self._settings = {"shards": 2, "gateways": 1, "data_dir": folder / "data"} | settings
        self._lives: list[subprocess.Popen[bytes]] = []

    # --- start and end --------------------------------------------------------------------------------------------

    def start(self, **settings: object) -> Self:
        """Start it and return at once. `settings` change what it was made with, for this life and later ones."""
        self._settings |= settings
        self.port_file.unlink(missing_ok=True)  # of a life that was killed
        env = {key: value for key, value in os.environ.items() if not key.startswith("TOPICS_")}
        env["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), env.get("PYTHONPATH"))))
        chosen = {"port": 0, "port_file": self.port_file} | self._settings
        env |= {f"TOPICS_{name.upper()}": str(value) for name, value in chosen.items()} | self._environment
        with open(self.log, "ab") as log:
            self._lives.append(
                subprocess.Popen(
                    self._command,
                    cwd=self.folder,
                    env=env,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,  # Ctrl-C is for the test run, which then cleans up
                )
            )
        return self

    def wait_ready(self) -> Self:
        """Until every shard and every gateway is ready and the port is known."""

        def written() -> bool:
            assert self.process.poll() is None, f"it ended with {self.process.returncode}\n{self.text()}"
            return self.port_file.exists()

        wait_until(written, "the port file")
        self.port = int(self.port_file.read_text().rpartition(":")[2])
        return self

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Signal the supervisor and wait until it has ended; the exit status."""
        self.process.send_signal(number)
        return self.wait_end()

    def wait_end(self) -> int:
        return self.process.wait(timeout=DEADLINE_S)

    def kill_supervisor(self) -> None:
        """SIGKILL of the supervisor alone; its children end by themselves, see `wait_gone`."""
        self.process.kill()
        self.wait_end()

    def kill_all(self) -> None:
        """SIGKILL of every process, the supervisor first."""
        others = self.holders() - {self.process.pid}
        self.process.kill()
        for pid in others:
            send_signal(pid, signal.SIGKILL)
        self.wait_end()
        self.wait_gone()

    def wait_gone(self) -> None:
        wait_until(lambda: not self.holders(), lambda: f"the last processes of the server to end: {self._left()}")

    def close(self) -> None:
        """Leave no process and no run directory, whatever happened."""
        run_dirs = {self._run_dir()}
        try:
            wait_until(self._killed, lambda: f"killed processes of the server to end: {self._left()}")
        finally:
            for run_dir in run_dirs | {self._run_dir()}:
                if run_dir is not None:
                    remove_run_dir(run_dir)

    def _killed(self) -> bool:
        """Kill what there is; whether there was nothing."""
        running = [process for process in self._lives if process.poll() is None]
        for process in running:
            process.kill()
        left = self.holders() - {process.pid for process in running}
        for pid in left:
            send_signal(pid, signal.SIGKILL)
        return not running and not left

    def _left(self) -> dict[int, str]:
        """The processes that there are, and what they are."""
        pids = self.holders() | {process.pid for process in self._lives if process.poll() is None}
        return {pid: command_of(pid) for pid in pids}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- looking at it --------------------------------------------------------------------------------------------

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The supervisor of the present life."""
        return self._lives[-1]

    @property
    def data(self) -> Path:
        return Path(str(self._settings["data_dir"]))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def holders(self) -> set[int]:
        return holders(self.data / "LOCK")

    def holder(self) -> dict[str, Any]:
        """What LOCK says: pid and run_dir. Nothing before it was written and after a clean end."""
        with suppress(FileNotFoundError, json.JSONDecodeError):
            return dict(json.loads((self.data / "LOCK").read_text()))
        return {}

    def _run_dir(self) -> Path | None:
        found = self.holder().get("run_dir")
        return Path(found) if found else None

    def slots(self) -> list[int]:
        """Slot → shard, as the data directory has it."""
        return list(json.loads((self.data / "SLOTS").read_text())["slots"])

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def lines(self) -> list[dict[str, Any]]:
        """The log's JSON lines."""
        return [json.loads(line) for line in self.text().splitlines() if line.startswith("{")]

    # --- its children ---------------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        return self.call("status")

    def child(self, kind: str, index: int) -> dict[str, Any]:
        children = self.status()["children"]
        return next(child for child in children if (child["kind"], child["index"]) == (kind, index))

    def kill(self, kind: str, index: int, number: signal.Signals = signal.SIGKILL) -> int:
        """Signal a child; its pid. If it is just being started, the one that is."""
        pid = self.pid_of(kind, index)
        send_signal(pid, number)
        return pid

    def pid_of(self, kind: str, index: int) -> int:
        """Of a child, once it has one: between two lives it has none."""
        return wait_until(lambda: int(self.child(kind, index)["pid"]), f"{kind} {index} to run")

    def wait_back(self, kind: str, index: int, old_pid: int) -> dict[str, Any]:
        """Until that child is ready again, in another process."""

        def back() -> dict[str, Any] | None:
            child = self.child(kind, index)
            return child if child["state"] == "ready" and child["pid"] != old_pid else None

        return wait_until(back, f"{kind} {index} to come back") or {}

    def wait_whole(self) -> None:
        """Until every child is ready."""
        wait_until(
            lambda: all(child["state"] == "ready" for child in self.status()["children"]), "every child to be ready"
        )

    @contextmanager
    def held_down(self, kind: str, index: int) -> Iterator[None]:
        """Kill a child and keep it down: its successor is stopped before it serves anything, and goes on at the end."""
        pid = self.kill(kind, index)

        def stopped() -> bool:
            nonlocal pid
            old = pid
            pid = wait_until(lambda: self._successor(kind, index, old), "its successor")
            send_signal(pid, signal.SIGSTOP)
            if not self._listens(f"{kind}-{index}.sock"):
                return True
            send_signal(pid, signal.SIGKILL)  # too late: it serves
            return False

        wait_until(stopped, f"a successor of {kind} {index} that does not serve yet")
        try:
            yield
        finally:
            send_signal(pid, signal.SIGCONT)

    def _successor(self, kind: str, index: int, old_pid: int) -> int:
        pid = int(self.child(kind, index)["pid"])
        return pid if pid != old_pid else 0

    def _listens(self, name: str) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(self._socket(name))
            except OSError:
                return False
        return True

    def _socket(self, name: str) -> str:
        return os.path.join(self.holder()["run_dir"], name)

    # --- calls ----------------------------------------------------------------------------------------------------

    def call(self, method: str, **head: Any) -> dict[str, Any]:
        """One call to the admin socket."""
        return dict(self.ask("admin.sock", method, head).head)

    def ask_shard(self, index: int, method: str, body: bytes = b"", **head: Any) -> dict[str, Any]:
        return dict(self.ask(f"shard-{index}.sock", method, head, body).head)

    def ask(self, name: str, method: str, head: dict[str, Any], body: bytes = b"") -> Reply:
        """One call to a socket of the run directory, on a connection of its own."""
        result = trio.run(self._ask, self._socket(name), method, head, body)
        if isinstance(result, TopicsError):
            raise result
        return result

    async def _ask(self, path: str, method: str, head: dict[str, Any], body: bytes) -> Reply | TopicsError:
        async with trio.open_nursery() as nursery:
            result: Reply | TopicsError
            try:
                result = await (await connect_unix(path, nursery)).call(method, head, body, deadline_ms=10_000)
            except TopicsError as error:
                result = error  # raised by the caller, it is not wrapped into a group
            nursery.cancel_scope.cancel()
        return result
