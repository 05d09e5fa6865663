"""Shards and a gateway one by one, started through the same contract as the supervisor's.

For what a whole server cannot show, such as a gateway before its shards are there. Most tests use the real
`topics serve` (topics/testing/server.py), as the fixture `instance`.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import msgspec

from topics.board import Board
from topics.ids import SLOTS
from topics.settings import GatewayBoot, load
from topics.testing.server import Server

WAIT_S = 60.0


def wait_for(condition: Callable[[], Any], what: str) -> Any:
    """Poll until `condition()` is true; the time-out only bounds a failing test."""
    ends = time.monotonic() + WAIT_S
    while time.monotonic() < ends:
        found = condition()
        if found:
            return found
        time.sleep(0.005)
    raise AssertionError(f"{what}: not within {WAIT_S} s")


class Instance:
    """N shards and a gateway on a free port."""

    def __init__(self, root: Path, shards: int = 1, env: dict[str, str] | None = None) -> None:
        self.root = root
        self.shard_count = shards
        self.settings = load({"TOPICS_SHARDS": str(shards), **(env or {})}, {}, tty=False, cores=2).settings
        self.run = Path(tempfile.mkdtemp(prefix="tp-"))
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port = self.listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.board = Board.create(str(self.run / "board"), shards=shards, gateways=1, started_ms=self._now())
        self.shards: dict[int, subprocess.Popen[bytes]] = {}
        self.gateway: subprocess.Popen[bytes] | None = None
        self.log = root / "log"
        self._lifeline: int | None = None

    @staticmethod
    def _now() -> int:
        return int(time.time() * 1000)

    def start(self) -> "Instance":
        for shard in range(self.shard_count):
            self.start_shard(shard)
        self.start_gateway()
        self.wait_ready()
        return self

    def wait_ready(self) -> None:
        wait_for(lambda: self.get("/v0/ready").json().get("status") == "ready", "readiness")

    def get(self, path: str) -> httpx.Response:
        assert self.gateway is not None
        assert self.gateway.poll() is None, self.log.read_text()
        return httpx.get(self.url + path, timeout=WAIT_S)

    def start_shard(self, shard: int) -> None:
        flags: list[str] = []
        for name in self.settings.limits.__dataclass_fields__:
            flags += ["--" + name.replace("_", "-"), str(getattr(self.settings.limits, name))]
        command = [sys.executable, "-m", "topics.shards", "--dir", str(self.root / f"shard-{shard}")]
        self.shards[shard] = self._spawn([*command, "--socket", self.socket(shard), *flags])

    def socket(self, shard: int) -> str:
        return str(self.run / f"shard-{shard}.sock")

    def start_gateway(self) -> None:
        held, self._lifeline = os.pipe()
        boot = GatewayBoot(
            settings=self.settings,
            key_digests=[],
            listen_fd=self.listener.fileno(),
            lifeline_fd=held,
            index=0,
            shard_sockets={shard: self.socket(shard) for shard in range(self.shard_count)},
            slots=[slot % self.shard_count for slot in range(SLOTS)],
            board=str(self.run / "board"),
            socket=str(self.run / "gateway-0.sock"),
            started_ms=self.board.started_ms,
        )
        file = tempfile.TemporaryFile()  # noqa: SIM115 - closed below
        file.write(msgspec.json.encode(boot))
        file.seek(0)
        command = [sys.executable, "-m", "topics.gateway", "--boot-fd", str(file.fileno())]
        self.gateway = self._spawn(command, (file.fileno(), held, self.listener.fileno()))
        file.close()
        os.close(held)

    def cut_lifeline(self) -> None:
        assert self._lifeline is not None
        os.close(self._lifeline)
        self._lifeline = None

    def _spawn(self, command: list[str], fds: tuple[int, ...] = ()) -> subprocess.Popen[bytes]:
        with open(self.log, "ab") as log:
            environment = {**os.environ, "TOPICS_LOG_LEVEL": self.settings.log_level, "TOPICS_LOG_FORMAT": "json"}
            return subprocess.Popen(command, pass_fds=fds, stdout=log, stderr=log, env=environment)

    def stop_gateway(self) -> int:
        assert self.gateway is not None
        self.gateway.send_signal(signal.SIGTERM)
        return self.gateway.wait(WAIT_S)

    def kill_shard(self, shard: int) -> None:
        self.shards[shard].kill()
        self.shards[shard].wait(WAIT_S)

    def close(self) -> None:
        children = [child for child in (self.gateway, *self.shards.values()) if child is not None]
        for child in children:
            child.kill()
        for child in children:
            child.wait(WAIT_S)
        if self._lifeline is not None:
            os.close(self._lifeline)
        self.listener.close()
        self.board.close()
        shutil.rmtree(self.run)


def raw(instance: Instance | Server, data: bytes, *, until: bytes | None = None) -> bytes:
    """Send bytes as they are, and read to the end (or until some bytes have come)."""
    with socket.create_connection(("127.0.0.1", instance.port), timeout=WAIT_S) as sock:
        sock.sendall(data)
        got = b""
        while until is None or until not in got:
            part = sock.recv(65536)
            if not part:
                break
            got += part
        return got


def envelope(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """Check that this is the error envelope, whole; the error in it."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    body = json.loads(response.content)
    assert set(body) == {"error", "performance"}
    assert body["error"]["code"] == code
    assert isinstance(body["error"]["message"], str)
    assert body["performance"]["server_total_ms"] >= 0
    error: dict[str, Any] = body["error"]
    return error
