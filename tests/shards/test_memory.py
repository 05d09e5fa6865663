"""What a shard keeps resident: arrays, not objects per record. Real processes, real files."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from topics.testing.shard_process import ShardProcess

BATCH = 10_000


@pytest.fixture
def shard(tmp_path: Path) -> Iterator[ShardProcess]:
    """Without the ordering monitor, which takes memory of its own."""
    process = ShardProcess(tmp_path / "shard", watched=False)
    yield process
    process.clean_up()


@pytest.mark.slow
async def test_ten_million_records_in_one_topic(shard: ShardProcess) -> None:
    shard.start()
    body = b'{"records":[' + b",".join([b'{"data":"%b"}' % (b"y" * 98)] * BATCH) + b"]}"
    async with shard.connected() as client:
        for _ in range(10_000_000 // BATCH):
            await client.connection.call("append", {"topic": "big", "return_seqs": False}, body)
        await client.call("checkpoint")
        assert (await client.call("state", "big"))["count"] == 10_000_000
        middle = await client.diff("big", from_seq=5_000_000, limit=1000)
        assert [record["$seq"] for record in middle["records"]] == list(range(5_000_001, 5_001_001))
        peaks = [shard.peak_rss_mb()]
    assert shard.stop() == 0
    shard.start()
    async with shard.connected() as client:
        state = await client.call("state", "big")
        assert (state["count"], state["config"]["durability"]) == (10_000_000, "disk")
        peaks.append(shard.peak_rss_mb())
    print(f"peak RSS {peaks[0]:.0f} MB, after a restart {peaks[1]:.0f} MB")
    assert max(peaks) < 500


@pytest.mark.slow
async def test_distinct_tags_are_not_resident(shard: ShardProcess) -> None:
    """A million distinct tags cost disk; a delete by tag finds one of them through the segments' sorted runs."""
    shard.start()
    async with shard.connected() as client:
        for start in range(0, 1_000_000, BATCH):
            records = b",".join(b'{"data":%d,"tag":"user-%d"}' % (i, i) for i in range(start, start + BATCH))
            body = b'{"records":[%b]}' % records
            await client.connection.call("append", {"topic": "tagged", "return_seqs": False}, body)
        await client.call("checkpoint")
        assert (await client.call("delete", "tagged", {"match": "user-777777"}))["deleted"] == 1
        assert (await client.call("delete", "tagged", {"match": "user-1234*"}))["deleted"] == 111
    assert shard.stop() == 0
    shard.start()
    async with shard.connected() as client:
        assert (await client.call("state", "tagged"))["count"] == 1_000_000 - 112
        assert (await client.call("delete", "tagged", {"match": "user-777777"}))["deleted"] == 0
        print(f"peak RSS after restart {shard.peak_rss_mb():.0f} MB")
        assert shard.peak_rss_mb() < 150


@pytest.mark.slow
async def test_a_hundred_thousand_small_topics(shard: ShardProcess) -> None:
    shard.start()
    body = b'{"records":[' + b",".join([b'{"data":"%b"}' % (b"y" * 98)] * 10) + b"]}"
    numbers = iter(range(100_000))
    async with shard.connected() as client:

        async def write() -> None:
            for number in numbers:
                await client.connection.call("append", {"topic": f"t{number}", "return_seqs": False}, body)

        async with trio.open_nursery() as nursery:
            for _ in range(256):
                nursery.start_soon(write)
        began = shard.processor_s()
        await client.call("checkpoint")
        took = shard.processor_s() - began
        print(f"peak RSS {shard.peak_rss_mb():.0f} MB, checkpoint {took:.1f} s")
        assert shard.peak_rss_mb() < 1000
        assert took < 5
        files = sum(1 for path in shard.directory.rglob("*") if path.is_file())
        assert files < 100, "small topics share pack files"
        await client.connection.call("append", {"topic": "t7"}, body)
        began = shard.processor_s()
        await client.call("checkpoint")
        assert shard.processor_s() - began < took, "one dirty topic costs less than all of them"
    assert shard.stop() == 0
    shard.start()
    async with shard.connected() as client:
        assert len(await client.read_all("t7")) == 20
        assert (await client.call("health"))["topics"] == 100_000
        assert shard.peak_rss_mb() < 1000
