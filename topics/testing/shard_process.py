"""A real shard process for tests: started, called, killed, restarted."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import trio

from topics.errors import TopicsError
from topics.rpc.connection import Connection
from topics.rpc.errors import PeerLost
from topics.rpc.unix import connect_unix

DEADLINE_S = 120.0  # to start, to end: it is there to fail instead of hanging


class ShardProcess:
    """One shard's directory and, while it runs, its process. `watched`: under the ordering monitor."""

    def __init__(self, directory: Path, *args: str, watched: bool = True) -> None:
        self.directory = directory
        self._module = "topics.testing.watched_process" if watched else "topics.shards"
        self._args = args
        self._run_dir = tempfile.mkdtemp(prefix="tp-")
        self.socket = os.path.join(self._run_dir, "shard.sock")
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *wrapper: str, **options: Any) -> None:
        command = [*wrapper, sys.executable, "-m", self._module, "--dir", str(self.directory)]
        command += ["--socket", self.socket, *self._args]
        self.process = subprocess.Popen(command, **options)

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        assert self.process is not None
        self.process.kill()
        status = self.process.wait(timeout=DEADLINE_S)
        assert status == -signal.SIGKILL, f"it had ended by itself, with {status}"

    def stop(self) -> int:
        """SIGTERM; the exit status."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=DEADLINE_S)

    def peak_rss_mb(self) -> float:
        """The most that was resident since its start, in 10⁶ bytes. The kernel notes it, so nothing is missed."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) * 1024 / 1e6
        raise AssertionError("no VmHWM")

    def processor_s(self) -> float:
        """What it has cost so far; unlike the time that passed, the same on a busy machine."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def clean_up_process(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.kill()

    def clean_up(self) -> None:
        try:
            self.clean_up_process()
        finally:
            for name in os.listdir(self._run_dir):
                os.unlink(os.path.join(self._run_dir, name))
            os.rmdir(self._run_dir)

    @asynccontextmanager
    async def connected(self, *, ready: bool = True) -> AsyncIterator["ShardClient"]:
        """A client, once the process answers (and, unless told otherwise, has recovered)."""
        async with trio.open_nursery() as nursery:
            with trio.fail_after(DEADLINE_S):
                client = ShardClient(await self._connect(nursery))
                while ready and not (await client.connection.call("health", {})).head["ready"]:
                    await trio.sleep(0.005)
            yield client
            nursery.cancel_scope.cancel()

    async def _connect(self, nursery: trio.Nursery) -> Connection:
        while True:
            try:
                return await connect_unix(self.socket, nursery)
            except PeerLost:
                assert self.process is not None
                assert self.process.poll() is None, f"the shard ended with {self.process.returncode}"
                await trio.sleep(0.005)


class RawPage(msgspec.Struct):
    """A page whose records are the bytes that were read."""

    records: list[msgspec.Raw]
    tombstone: dict[str, Any] | None
    next_from_seq: int
    caught_up: bool


class ShardClient:
    """The shard's calls with JSON in and out."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    async def call(self, method: str, topic: str = "", body: Any = None, **head: Any) -> Any:
        raw = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        reply = await self.connection.call(method, {"topic": topic, **head} if topic else head, raw)
        return json.loads(bytes(reply.body) + b"}") if reply.body and method != "list" else reply.head

    async def put(self, topic: str, **config: Any) -> Any:
        return await self.call("put", topic, config)

    async def append(self, topic: str, *data: Any, **fields: Any) -> Any:
        return await self.call("append", topic, {"records": [{"data": item} for item in data], **fields})

    async def diff(self, topic: str, **query: Any) -> Any:
        return await self.call("diff", topic, query)

    async def raw_pages(self, topic: str) -> AsyncIterator[RawPage]:
        """From the beginning to the end, byte for byte: decoding would hide how a number or a string was written."""
        from_seq, caught_up = 0, False
        while not caught_up:
            body = json.dumps({"from_seq": from_seq, "limit": 1000}).encode()
            reply = await self.connection.call("diff", {"topic": topic}, body)
            page = msgspec.json.decode(bytes(reply.body) + b"}", type=RawPage)
            from_seq, caught_up = page.next_from_seq, page.caught_up
            yield page

    async def read_all(self, topic: str) -> list[Any]:
        """Every record from the beginning; fails on a tombstone."""
        records: list[Any] = []
        from_seq = 0
        while True:
            page = await self.diff(topic, from_seq=from_seq, limit=1000)
            assert page["tombstone"] is None, page["tombstone"]
            records += page["records"]
            from_seq = page["next_from_seq"]
            if page["caught_up"]:
                return records

    async def refused(self, method: str, topic: str = "", body: Any = None, **head: Any) -> TopicsError:
        try:
            await self.call(method, topic, body, **head)
        except TopicsError as error:
            return error
        raise AssertionError(f"{method} was not refused")
