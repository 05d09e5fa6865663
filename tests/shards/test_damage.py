"""Damage on disk: nothing good is given up, nothing lost stays silent."""

from pathlib import Path

import pytest

from topics.core.loss import CORRUPT
from topics.shards import walscan
from topics.testing.shard_process import ShardClient, ShardProcess


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x40
    path.write_bytes(data)


async def read_through(client: ShardClient, topic: str) -> tuple[list[int], list[tuple[int, int, str]]]:
    """(seqs read, tombstones met) from the beginning to the head."""
    seqs: list[int] = []
    gaps: list[tuple[int, int, str]] = []
    from_seq = 0
    while True:
        page = await client.diff(topic, from_seq=from_seq, limit=100)
        if page["tombstone"] is not None:
            gap = page["tombstone"]
            gaps.append((gap["gap_from"], gap["gap_to"], gap["reason"]))
        seqs += [record["$seq"] for record in page["records"]]
        from_seq = page["next_from_seq"]
        if page["caught_up"]:
            return seqs, gaps


async def test_a_damaged_block_is_a_tombstone_and_the_rest_stands(shard: ShardProcess) -> None:
    shard._args = ("--segment-events", "1000")
    shard.start()
    async with shard.connected() as client:
        for start in range(0, 1000, 100):
            await client.append("t", *[f"{start + i}" + "x" * 300 for i in range(100)])
        await client.call("checkpoint")
    assert shard.stop() == 0
    (data,) = shard.directory.glob("segments/*/seg-*.data")
    flip(data, data.stat().st_size // 2)
    for _ in range(2):  # the second time it is known from the log
        shard.start()
        async with shard.connected() as client:
            seqs, gaps = await read_through(client, "t")
            ((first, last, reason),) = gaps
            assert reason == CORRUPT
            assert seqs == [seq for seq in range(1, 1001) if not first <= seq <= last]
            assert len(seqs) >= 1000 - 256
            assert (await client.call("state", "t"))["count"] == len(seqs)
        assert shard.stop() == 0


@pytest.mark.parametrize("gone", [True, False], ids=["missing", "damaged"])
async def test_an_index_is_rebuilt_from_its_data_file(shard: ShardProcess, gone: bool) -> None:
    shard._args = ("--segment-events", "100")
    shard.start()
    async with shard.connected() as client:
        records = [{"data": i, "tag": f"even:{i}" if i % 2 == 0 else "odd"} for i in range(300)]
        await client.call("append", "t", {"records": records})
        await client.call("checkpoint")
    assert shard.stop() == 0
    for index in shard.directory.glob("segments/*/seg-*.idx"):
        if gone:
            index.unlink()
        else:
            flip(index, 80)
    shard.start()
    async with shard.connected() as client:
        assert (await client.call("delete", "t", {"match": "even:*"}))["deleted"] == 150
        assert [record["data"] for record in await client.read_all("t")] == list(range(1, 300, 2))


async def test_a_damaged_log_is_quarantined_and_told(shard: ShardProcess) -> None:
    """A frame that later frames call synced was on disk once: that is damage, not a torn tail."""
    shard.start()
    async with shard.connected() as client:
        await client.put("t", durable=True)
        for number in range(20):
            await client.append("t", f"record-{number}")
    shard.kill()
    (path,) = shard.directory.glob("wal/*.wal")
    flip(path, path.read_bytes().index(b"record-7"))
    for _ in range(2):
        shard.start()
        async with shard.connected() as client:
            seqs, gaps = await read_through(client, "t")
            assert gaps == [(8, 8, CORRUPT)]
            assert seqs == [seq for seq in range(1, 21) if seq != 8]
            (kept,) = (shard.directory / walscan.QUARANTINE).iterdir()
            assert b"ecord-7" in kept.read_bytes()
            assert (await client.call("metrics"))["damage"] == {"log_ranges": 1, "blocks": 0}
        shard.kill()


async def test_damage_at_the_end_of_the_log_is_a_torn_tail(shard: ShardProcess) -> None:
    """Nothing later vouches for it, so the log is cut there; the head register still tells that a record is gone."""
    shard.start()
    async with shard.connected() as client:
        await client.put("t", durable=True)
        for number in range(5):
            await client.append("t", f"record-{number}")
    shard.kill()
    (path,) = shard.directory.glob("wal/*.wal")
    flip(path, path.read_bytes().index(b"record-4"))
    shard.start()
    async with shard.connected() as client:
        seqs, gaps = await read_through(client, "t")
        assert seqs == [1, 2, 3, 4]
        assert [(first, last) for first, last, _ in gaps] == [(5, 5)], "the seq is not given again"
        assert (await client.append("t", "next"))["first_seq"] == 6


async def test_a_missing_data_file_is_told_to_readers(shard: ShardProcess) -> None:
    shard._args = ("--segment-events", "100")
    shard.start()
    async with shard.connected() as client:
        await client.append("t", *range(300))
        await client.append("other", "whole")
        await client.call("checkpoint")
    assert shard.stop() == 0
    second = sorted(shard.directory.glob("segments/*/seg-*.data"))[1]
    second.unlink()
    for _ in range(2):
        shard.start()
        async with shard.connected() as client:
            seqs, gaps = await read_through(client, "t")
            assert gaps == [(101, 200, CORRUPT)]
            assert seqs == [*range(1, 101), *range(201, 301)]
            assert await read_through(client, "other") == ([1], [])
        assert shard.stop() == 0


async def test_a_damaged_last_checkpoint_refuses_the_start_and_changes_nothing(shard: ShardProcess) -> None:
    """The log it replaced is gone: going on from the checkpoint before would lose topics in silence."""
    shard.start()
    async with shard.connected() as client:
        for number in range(3):
            for _ in range(40):  # enough for the log to move on to a new file
                await client.append(f"t{number}", "x" * 500_000)
            await client.call("checkpoint")
    shard.kill()
    (path,) = shard.directory.glob("snapshot.*")
    flip(path, path.stat().st_size - 5)
    before = {file: file.stat().st_mtime_ns for file in shard.directory.rglob("*.data")}
    shard.start()
    assert shard.process is not None
    assert shard.process.wait(timeout=30) == 65
    assert {file: file.stat().st_mtime_ns for file in shard.directory.rglob("*.data")} == before
    flip(path, path.stat().st_size - 5)
    shard.start()
    async with shard.connected() as client:
        assert len(await client.read_all("t2")) == 40
