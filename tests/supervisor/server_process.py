"""A real server in a real process, for tests: start it, look at it, hurt it, and leave nothing behind."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import trio

from topics.errors import TopicsError
from topics.rpc import RpcError, connect_unix
from topics.supervisor.rundir import remove_run_dir

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
STANDIN = f"{sys.executable} {HERE / 'standin_gateway.py'}"
DEADLINE_S = 20.0


def wait_until(true, what="it", seconds=DEADLINE_S):
    """Poll; the deadline is only there to fail instead of hanging."""
    until = time.monotonic() + seconds
    while True:
        found = true()
        if found:
            return found
        assert time.monotonic() < until, f"waited {seconds} s for {what}"
        time.sleep(0.01)


def alive(pid):
    """Whether a process runs; one that has ended but was not yet reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


class ServerProcess:
    def __init__(self, folder: Path, *, gateway: str | None = STANDIN, shard: str = "", **settings: object) -> None:
        """`settings` are TOPICS_* variables in lower case. `gateway=None` runs the real `topics serve`."""
        self.data = folder / "data"
        self.port_file = folder / "port"
        self.log = folder / "log"
        env = {key: value for key, value in os.environ.items() if not key.startswith("TOPICS_")}
        chosen = {"port": 0, "port_file": self.port_file, "data_dir": self.data, "shards": 2, "gateways": 1} | settings
        env |= {f"TOPICS_{name.upper()}": str(value) for name, value in chosen.items()}
        env |= {"PYTHONPATH": str(ROOT), "STANDIN_GATEWAY": gateway or "", "STANDIN_SHARD": shard}
        command = ["-m", "topics.cli", "serve"] if gateway is None else [str(HERE / "serve_with_standins.py")]
        self.port_file.unlink(missing_ok=True)  # of a server that was killed
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, *command], cwd=folder, env=env, stderr=log, stdout=log, start_new_session=True
            )
        self.pids: set[int] = set()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with suppress(Exception):
            self.status()
        for pid in [self.process.pid, *self.pids]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        with suppress(ValueError, FileNotFoundError):
            remove_run_dir(Path(self.holder()["run_dir"]))

    def wait_ready(self):
        def ready():
            assert self.process.poll() is None, self.text()
            return self.port_file.exists()

        wait_until(ready, "the port file")
        self.status()
        return self

    @property
    def port(self):
        return int(self.port_file.read_text().rpartition(":")[2])

    def get(self, path="/"):
        """One request on a connection of its own; the answer as JSON."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=DEADLINE_S) as sock:
            sock.sendall(b"GET %s HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n" % path.encode())
            text = b"".join(iter(lambda: sock.recv(65536), b""))
        return json.loads(text.partition(b"\r\n\r\n")[2])

    def holder(self):
        return json.loads((self.data / "LOCK").read_text())

    def status(self):
        status = self.call("status")
        self.pids |= {child["pid"] for child in status["children"] if child["pid"]}
        return status

    def call(self, method, **head):
        """One call to the admin socket."""
        return trio.run(self._call, "admin.sock", method, head)

    def ask_shard(self, index, method, body=b"", **head):
        return trio.run(self._call, f"shard-{index}.sock", method, head, body)

    async def _call(self, name, method, head, body=b""):
        path, error = os.path.join(self.holder()["run_dir"], name), None
        async with trio.open_nursery() as nursery:
            try:
                connection = await connect_unix(path, nursery)
                reply = await connection.call(method, head, body, deadline_ms=5000)
            except TopicsError as refused:
                error = refused  # raised out here, it is not wrapped into a group
            nursery.cancel_scope.cancel()
        if error is not None:
            raise error
        return reply.head

    def child(self, kind, index):
        children = self.status()["children"]
        return next(child for child in children if (child["kind"], child["index"]) == (kind, index))

    def wait_back(self, kind, index, old_pid):
        """Until that child is ready again, in another process."""

        def back():
            with suppress(RpcError):
                child = self.child(kind, index)
                return child if child["state"] == "ready" and child["pid"] != old_pid else None

        return wait_until(back, f"{kind} {index} to come back")

    def stop(self, number=signal.SIGTERM):
        """Signal it and wait; the exit status."""
        self.process.send_signal(number)
        return self.process.wait(timeout=DEADLINE_S)

    def wait_end(self):
        return self.process.wait(timeout=DEADLINE_S)

    def text(self):
        return self.log.read_text()

    def lines(self):
        """The log's JSON lines."""
        return [json.loads(line) for line in self.text().splitlines() if line.startswith("{")]
