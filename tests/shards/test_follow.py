"""The call `follow`: a strong reader sees what is synced, an eventual one what is written down."""

import threading
from typing import Any

import pytest
import trio

from tests.shards.test_service import ONE, ask, serving
from topics.rpc.connection import Connection
from topics.testing.faulty_files import FaultyFiles

PATIENCE_S = 60  # only bounds a failing test


class HeldFiles(FaultyFiles):
    """Syncs wait for as long as somebody says so."""

    def __init__(self) -> None:
        super().__init__()
        self.may_sync = threading.Event()
        self.may_sync.set()
        self.waiting = threading.Event()

    def sync(self, node: Any, path: str) -> None:
        if not self.may_sync.is_set():
            self.waiting.set()
            assert self.may_sync.wait(PATIENCE_S)
        super().sync(node, path)


class Reader:
    """A `follow` that is under way."""

    def __init__(self, connection: Connection, nursery: trio.Nursery, *, strong: bool, from_seq: int, wait_ms: int = 0):
        self.reply: Any = None
        self.done = trio.Event()
        head = {"topic": "t", "from_seq": from_seq, "limit": 100, "bytes": 10**6, "strong": strong, "wait_ms": wait_ms}
        nursery.start_soon(self._read, connection, head)

    async def _read(self, connection: Connection, head: dict[str, Any]) -> None:
        self.reply = await connection.call("follow", head, b"")
        self.done.set()

    async def seqs(self) -> tuple[int, int]:
        with trio.fail_after(PATIENCE_S):
            await self.done.wait()
        return self.reply.head["from_seq"], self.reply.head["to_seq"]


@pytest.mark.parametrize("wait_ms", [0, 20_000])
@pytest.mark.parametrize("durability", ["disk", "memory"])
async def test_a_strong_reader_waits_for_the_sync_and_an_eventual_one_does_not(durability, wait_ms):
    files = HeldFiles()
    async with serving(files) as (service, connection), trio.open_nursery() as nursery:
        await ask(connection, "append", b'{"records":[{"data":0}],"config":{"durability":"%b"}}' % durability.encode())
        while service._engine.log.durable_lsn < service._engine.state.topics["t"].applied_lsn:
            await trio.sleep(0.001)
        files.may_sync.clear()
        try:
            early = Reader(connection, nursery, strong=True, from_seq=1, wait_ms=wait_ms) if wait_ms else None
            await ask(connection, "append", ONE)  # acked, but not synced
            late = Reader(connection, nursery, strong=True, from_seq=1, wait_ms=wait_ms)
            eventual = Reader(connection, nursery, strong=False, from_seq=1, wait_ms=wait_ms)
            assert await eventual.seqs() == (1, 2)
            await trio.to_thread.run_sync(files.waiting.wait, PATIENCE_S)
            await ask(connection, "append", ONE)
            assert await Reader(connection, nursery, strong=False, from_seq=1).seqs() == (1, 3)
            assert not late.done.is_set()
            assert early is None or not early.done.is_set()
        finally:
            files.may_sync.set()
        assert (await late.seqs())[1] >= 2
        if early is not None:
            assert (await early.seqs())[1] >= 2


async def test_what_is_never_logged_is_shown_to_strong_readers_at_once():
    files = HeldFiles()
    async with serving(files) as (_, connection), trio.open_nursery() as nursery:
        await ask(connection, "append", b'{"records":[{"data":0}],"config":{"durability":"ephemeral"}}')
        files.may_sync.clear()
        try:
            await ask(connection, "append", ONE)
            assert await Reader(connection, nursery, strong=True, from_seq=1).seqs() == (1, 2)
        finally:
            files.may_sync.set()
