"""Storage that fails at a named step of a real shard: nothing acked is lost, and what is left on disk is whole."""

import contextlib
import os
from pathlib import Path

import pytest

from tests.shards.test_verify import check
from topics import errors
from topics.errors import TopicsError
from topics.failpoints import NAMES
from topics.rpc.errors import RpcError
from topics.shards.findings import TORN
from topics.testing.shard_process import ShardClient, ShardProcess

ARGS = ("--segment-events", "100")
KILLED = -9
# Not the first time of those that come often.
LATER = {"wal.write": 3, "wal.sync": 4, "segment.write": 1, "pack.write": 1, "dir.sync": 5, "unlink": 2}


class Writer:
    """Writes until it is refused or nobody answers, and remembers what was acked."""

    def __init__(self) -> None:
        self.acked: dict[int, str] = {}
        self.deleted: set[int] = set()
        self.number = 0

    async def append(self, client: ShardClient, count: int = 1) -> None:
        self.number += 1
        data = [f"w{self.number}-{index}" for index in range(count)]
        records = [{"data": text, "tag": f"g:{self.number}"} for text in data]
        reply = await client.call("append", "safe", {"records": records})
        self.acked.update(zip(reply["seqs"], data, strict=True))

    async def round(self, client: ShardClient) -> None:
        """Every step of the storage: a large topic, small ones, deletes of what is stored, checkpoints."""
        await client.put("safe", durable=True)
        for _ in range(2):
            await self.append(client, 130)
            await client.append(f"small-{self.number}", "x")
            await client.call("checkpoint")
            tag = f"g:{self.number}"
            self.deleted |= {seq for seq, text in self.acked.items() if text.startswith(f"w{self.number}-")}
            await client.call("delete", "safe", {"match": tag})
            await self.append(client, 3)
            await client.call("checkpoint")

    async def verify(self, client: ShardClient) -> None:
        """What was acked is there unless its delete was under way; what is there was sent, once, in order."""
        records = await client.read_all("safe")
        seqs = [record["$seq"] for record in records]
        assert seqs == sorted(set(seqs))
        found = {record["$seq"]: record["data"] for record in records}
        for seq, text in self.acked.items():
            assert found.get(seq, text) == text
            assert seq in found or seq in self.deleted, seq


async def run_until_it_fails(shard: ShardProcess, writer: Writer) -> None:
    with contextlib.suppress(RpcError, TopicsError, AssertionError, BaseExceptionGroup):
        async with shard.connected() as client:
            for _ in range(3):
                await writer.round(client)


def start_with(shard: ShardProcess, *args: str) -> None:
    shard._args = (*ARGS, *args)
    shard.start()


@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith("cold.")])  # see test_cold.py
async def test_a_kill_at_any_step_loses_nothing(shard: ShardProcess, name: str) -> None:
    writer = Writer()
    if name != "snapshot.rename":  # which comes with the first checkpoint of all
        start_with(shard)
        async with shard.connected() as client:
            await writer.round(client)
            await writer.append(client)
        shard.kill()
    start_with(shard, "--failpoints", f"{name}=kill@{LATER.get(name, 0)}")
    await run_until_it_fails(shard, writer)
    assert shard.process is not None
    assert shard.process.wait(timeout=30) == KILLED
    assert [finding for finding in check(shard.directory) if finding.damage] == []
    start_with(shard)
    async with shard.connected() as client:
        await writer.verify(client)
        await writer.round(client)
        await writer.verify(client)
    assert shard.stop() == 0
    assert check(shard.directory) == []


async def test_a_torn_write_is_a_torn_tail(shard: ShardProcess) -> None:
    writer = Writer()
    start_with(shard, "--failpoints", "wal.write=tear@5")
    await run_until_it_fails(shard, writer)
    assert shard.process is not None
    assert shard.process.wait(timeout=30) == KILLED
    assert [(finding.kind, finding.damage) for finding in check(shard.directory)] == [(TORN, False)]
    start_with(shard)
    async with shard.connected() as client:
        await writer.verify(client)
    assert shard.stop() == 0


@pytest.mark.parametrize("name", ["wal.write", "wal.sync", "slots.write", "slots.sync"])
async def test_a_failed_log_refuses_says_so_and_ends(shard: ShardProcess, tmp_path: Path, name: str) -> None:
    writer = Writer()
    shard._args = (*ARGS, "--failpoints", f"{name}=error:EIO@2")
    with open(tmp_path / "log", "wb") as log:  # noqa: ASYNC230
        shard.start(stderr=log)
    await run_until_it_fails(shard, writer)
    assert shard.process is not None
    assert shard.process.wait(timeout=30) == 70
    text = (tmp_path / "log").read_text()
    assert "the log failed, no more writes are taken" in text
    assert f"(failpoint {name})" in text
    start_with(shard)
    async with shard.connected() as client:
        if writer.acked:
            await writer.verify(client)
    assert shard.stop() == 0


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("segment.write", "ENOSPC"),
        ("segment.sync", "EIO"),
        ("pack.write", "EIO"),
        ("flags.write", "EIO"),
        ("unlink", "EIO"),
    ],
)
async def test_a_checkpoint_that_fails_is_put_off(shard: ShardProcess, name: str, error: str) -> None:
    """The log has everything; writes and reads go on, and a later checkpoint does it."""
    writer = Writer()
    start_with(shard, "--failpoints", f"{name}=error:{error}*2@{8 if name == 'unlink' else 0}")
    async with shard.connected() as client:
        for _ in range(2):
            await writer.round(client)
        await writer.verify(client)
    assert shard.stop() == 0
    assert [finding for finding in check(shard.directory) if finding.damage] == []
    start_with(shard)
    async with shard.connected() as client:
        await writer.verify(client)
    assert shard.stop() == 0


async def test_a_snapshot_in_doubt_ends_the_shard(shard: ShardProcess) -> None:
    """Nobody knows whether the checkpoint is on disk: only a restart can tell."""
    writer = Writer()
    start_with(shard, "--failpoints", "snapshot.sync=error:EIO@3")
    await run_until_it_fails(shard, writer)
    assert shard.process is not None
    assert shard.process.wait(timeout=30) == 70
    start_with(shard)
    async with shard.connected() as client:
        await writer.verify(client)
    assert shard.stop() == 0
    assert [finding for finding in check(shard.directory) if finding.damage] == []


async def test_a_pause_delays_and_changes_nothing(shard: ShardProcess) -> None:
    writer = Writer()
    start_with(shard, "--failpoints", "wal.sync=pause:20; segment.write=pause:20*1")
    async with shard.connected() as client:
        await writer.round(client)
        await writer.verify(client)
        assert (await client.refused("append", "safe", b"{")).code == errors.INVALID_REQUEST
    assert shard.stop() == 0


def test_a_name_that_is_not_known_stops_the_start(shard: ShardProcess) -> None:
    read_end, write_end = os.pipe()
    shard._args = ("--failpoints", "wal.sink=kill")
    shard.start(stderr=write_end)
    os.close(write_end)
    assert shard.process is not None
    assert shard.process.wait(timeout=30) == 2
    with open(read_end) as text:
        assert "'wal.sink' is not known" in text.read()
