"""Compressed topics on a real shard: nobody who reads sees a difference, the disk does, and damage stays in bounds."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest
import trio
import xxhash
import zstandard

from tests.shards import queue_shard
from tests.shards.test_cold import SMALL, disk_use
from tests.shards.test_damage import flip, read_through
from topics import limits
from topics.core.block import BadBlock, Block
from topics.core.blockform import CHECKSUM_BYTES, HEADER, BlockHead, encode_frame
from topics.core.chunk import Chunk, DataFile
from topics.core.loss import CORRUPT
from topics.core.packing import Compression
from topics.shards import datafile, inspect
from topics.shards.findings import Tally
from topics.shards.readonly_files import ReadOnlyFiles
from topics.shards.unpacked import UnpackedBlocks
from topics.shards.verify import check_shard
from topics.testing.faulty_files import FaultyFiles
from topics.testing.shard_process import ShardClient, ShardProcess

WAYS: tuple[Compression, ...] = ("gzip", "zstd")
TOPICS = ("none", *WAYS)
SEGMENTS = ("--segment-events", "300")
VIEWS: tuple[dict[str, Any], ...] = (
    {},
    {"include_tags": True},
    {"include_data": False},
    {"include_meta": False},
    {"limit": 7},
    {"from_seq": 555, "limit": 1000, "max_batch_bytes": 5000},
    {"node": "n1"},
)


def record(n: int) -> dict[str, Any]:
    data = {"n": n, "text": f"a line that is like many others {n % 17} " * 4, "é\n": None}
    extra: dict[str, Any] = {"tag": f"t:{n % 5}"} if n % 2 else {}
    return {"data": data, **extra, **({"meta": {"m": str(n)}} if n % 3 == 0 else {})}


async def fill(client: ShardClient, topic: str, count: int = 1000, first: int = 0) -> None:
    for start in range(first, first + count, 100):
        batch = [record(n) for n in range(start, start + 100)]
        await client.call("append", topic, {"records": batch, **({"node": "n1"} if start % 200 else {})})


async def view(client: ShardClient, topic: str, query: dict[str, Any]) -> Any:
    page = await client.diff(topic, **query)
    for item in page["records"]:
        item.pop("$ts")
    return {key: value for key, value in page.items() if key != "topic"}


def blocks_in(directory: Path) -> list[dict[str, Any]]:
    files = [path for path in directory.rglob("*.data") if path.parent.name != "wal"]
    return [line for path in files for line in inspect.describe(path, with_data=False) if line["kind"] == "block"]


def problems(directory: Path) -> list[Any]:
    return list(check_shard(ReadOnlyFiles(str(directory)), Tally(), lambda size: None))


@pytest.mark.parametrize("events", ["300", "100000"], ids=["segments", "packs"])
async def test_no_reader_sees_how_records_are_stored(shard: ShardProcess, events: str) -> None:
    shard._args = ("--segment-events", events)
    shard.start()
    async with shard.connected() as client:
        for way in TOPICS:
            await client.put(way, durable=True, compression=way)
            await fill(client, way)
        await client.call("checkpoint")
    assert shard.stop() == 0
    lines = blocks_in(shard.directory)
    assert {line.get("compression", "none") for line in lines} == set(TOPICS)
    assert all(line["stored_bytes"] < 0.5 * line["text_bytes"] for line in lines if "compression" in line)
    assert problems(shard.directory) == []
    shard.start()  # so that nothing is resident
    async with shard.connected() as client:
        for query in VIEWS:
            plain, *others = [await view(client, way, query) for way in TOPICS]
            assert plain["records"]
            assert others == [plain, plain], query
        states = [await client.call("state", way) for way in TOPICS]
        assert len({(state["count"], state["bytes"]) for state in states}) == 1
        for way in TOPICS:
            assert (await client.call("delete", way, {"match": "t:1"}))["deleted"] == 100
            assert (await client.call("delete", way, {"before_seq": 40}))["deleted"] > 0
        await client.call("checkpoint")  # flips flags
    shard.kill()
    assert problems(shard.directory) == []
    shard.start()
    async with shard.connected() as client:
        plain, *others = [await view(client, way, {"limit": 1000, "include_tags": True}) for way in TOPICS]
        assert others == [plain, plain]
        assert 700 < len(plain["records"]) < 900


@pytest.mark.parametrize("way", WAYS)
async def test_gateways_are_sent_blocks_that_they_can_read(shard: ShardProcess, way: str) -> None:
    shard.start()
    async with shard.connected() as client:
        await client.put("t", compression=way)
        await fill(client, "t", 500)
        await client.call("checkpoint")
    assert shard.stop() == 0
    shard.start()
    async with shard.connected() as client:
        head = {"topic": "t", "from_seq": 100, "limit": 300, "bytes": 10**6, "strong": True, "wait_ms": 0}
        joined = await client.connection.call("follow", head, b"")
        texts = json.loads(b"[" + bytes(joined.body) + b"]")
        assert [item["data"] for item in texts] == [record(n)["data"] for n in range(100, 400)]
        blocks = await client.connection.call("follow", {**head, "blocks": True}, b"")
        assert b'"n": 399' in bytes(blocks.body)
        assert not BlockHead(bytes(blocks.body)).packed


async def test_ways_mix_when_the_config_changes(shard: ShardProcess) -> None:
    shard._args = SEGMENTS
    shard.start()
    async with shard.connected() as client:
        for turn, way in enumerate(("none", "zstd", "gzip", "none", "zstd")):
            config = (await client.put("t", compression=way))["config"]
            assert config["compression"] == way
            await fill(client, "t", 400, 400 * turn)
            await client.call("checkpoint")
        whole = await client.read_all("t")
    shard.kill()
    assert {line.get("compression") for line in blocks_in(shard.directory)} == {None, "zstd", "gzip"}
    shard.start()
    async with shard.connected() as client:
        assert await client.read_all("t") == whole
        assert [item["data"]["n"] for item in whole] == list(range(2000))


async def test_small_blocks_stay_as_they_are(shard: ShardProcess) -> None:
    shard.start()
    async with shard.connected() as client:
        await client.put("small", compression="zstd", compression_min_bytes=100_000)
        await fill(client, "small", 100)
        await client.put("tiny", compression="gzip", compression_min_bytes=0)
        await client.append("tiny", 1)
        await client.call("checkpoint")
    shard.kill()
    lines = blocks_in(shard.directory)
    assert len(lines) >= 2
    assert {line.get("compression") for line in lines} == {None}


async def test_the_disk_holds_less(tmp_path: Path) -> None:
    sizes = {}
    for way in TOPICS:
        shard = ShardProcess(tmp_path / way, *SEGMENTS)
        try:
            shard.start()
            async with shard.connected() as client:
                await client.put("t", compression=way)
                await fill(client, "t")
                await client.call("checkpoint")
                stored = (await client.call("metrics"))["data_bytes"]
            shard.stop()
            assert stored == sum(path.stat().st_size for path in shard.directory.rglob("*.data"))
            sizes[way] = disk_use(shard.directory)
        finally:
            shard.clean_up()
    assert sizes["gzip"] < 0.4 * sizes["none"]
    assert sizes["zstd"] < 0.4 * sizes["none"]


async def test_cold_segments_are_compressed_too(tmp_path: Path) -> None:
    cold = tmp_path / "cold"
    shard = ShardProcess(tmp_path / "hot", "--cold-dir", str(cold), *SMALL)
    try:
        shard.start()
        async with shard.connected() as client:
            await client.put("t", compression="zstd")
            await fill(client, "t", 500)
            await client.call("checkpoint")
            with trio.fail_after(60):
                while len(list(cold.rglob("*.data"))) < 4 or len(list(shard.directory.rglob("seg-*.data"))) > 1:
                    await trio.sleep(0.02)
            assert [item["data"]["n"] for item in await client.read_all("t")] == list(range(500))
            assert (await client.call("delete", "t", {"match": "t:1"}))["deleted"] == 50
        assert {line.get("compression") for line in blocks_in(cold)} == {"zstd"}
    finally:
        shard.clean_up()


@pytest.mark.parametrize("way", WAYS)
async def test_jobs_are_claimed_from_compressed_blocks(way: str) -> None:
    files = FaultyFiles()
    async with queue_shard.serving(files) as shard:
        await shard.make(compression=way, compression_min_bytes=0)
        await shard.produce(*[{"n": n, "pad": "x" * 200} for n in range(300)])
        await shard.produce("y" * 300_000)  # more than the loop unpacks
    async with queue_shard.serving(files) as shard:
        jobs = await shard.claim(301)
        assert [job["data"]["n"] for job in jobs[:300]] == list(range(300))
        assert jobs[300]["data"] == "y" * 300_000
        assert (await shard.settle("ack", *[job["$seq"] for job in jobs]))["acked"] == 301


# --- damage -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("with_index", [True, False])
@pytest.mark.parametrize("way", WAYS)
async def test_a_damaged_block_is_a_tombstone_and_the_rest_stands(
    shard: ShardProcess, way: str, with_index: bool
) -> None:
    shard._args = ("--segment-events", "1000")
    shard.start()
    async with shard.connected() as client:
        await client.put("t", compression=way)
        await fill(client, "t")
        await client.call("checkpoint")
    assert shard.stop() == 0
    (data,) = shard.directory.glob("segments/*/seg-*.data")
    flip(data, data.stat().st_size // 2)
    assert problems(shard.directory) != []
    if not with_index:
        data.with_suffix(".idx").unlink()
    for _ in range(2):
        shard.start()
        async with shard.connected() as client:
            seqs, gaps = await read_through(client, "t")
            ((first, last, reason),) = gaps
            assert reason == CORRUPT
            assert seqs == [seq for seq in range(1, 1001) if not first <= seq <= last]
            assert len(seqs) >= 1000 - 256
        assert shard.stop() == 0


def forged(packed: bytes, text_len: int, seed: int) -> bytes:
    """A frame that checks, with a compressed text that is not what its header says."""
    block = Block(1, 0)
    block.add(b"x" * text_len, 0, b"", b"", 0, 0)
    return encode_frame(block, 7, 1, seed, 0, packed)


@pytest.mark.parametrize(
    "packed",
    [
        zstandard.compress(bytes(64 << 20)),
        zstandard.compress(b"x" * 999),
        zstandard.compress(b"x" * 1000)[:-1],
        b"\x1f\x8b" + bytes(100),
        bytes(100),
    ],
    ids=["bomb", "short", "cut", "no gzip", "unknown"],
)
def test_a_block_that_checks_and_cannot_be_unpacked_is_damaged(packed: bytes) -> None:
    frame = forged(packed, 100_000, 5)
    for decode in (datafile.decode_frame, datafile.decode_texts):
        with pytest.raises(BadBlock):
            decode(frame, 5)
    assert datafile.decode_tags(frame, 5).first_seq == 1  # which needs no text


def test_verify_and_inspect_find_a_block_that_cannot_be_unpacked(tmp_path: Path) -> None:
    frame = forged(zstandard.compress(b"x" * 999), 1000, 5)
    head = struct.pack("<8sIIQQQ16s", b"TOPICSDF", 1, 1, 5, 1, 7, bytes(16))
    (tmp_path / "s.data").write_bytes(head + struct.pack("<Q", xxhash.xxh3_64_intdigest(head)) + frame)
    (line,) = [line for line in inspect.describe(tmp_path / "s.data", with_data=True) if line["kind"] == "block"]
    assert (line["check"], line["compression"], line["text_bytes"]) == (False, "zstd", 1000)
    assert line["bytes"] == len(frame) == HEADER.size + 20 + line["stored_bytes"] + CHECKSUM_BYTES + 1


# --- what is kept unpacked ----------------------------------------------------------------------------------------


def chunk_at(offset: int, size: int) -> tuple[Chunk, Block]:
    block = Block(1, 0)
    block.add(b"x" * size, 0, b"", b"", 0, 0)
    chunk = Chunk(1, 0, block.ts, block.sizes())
    chunk.file, chunk.offset = DataFile(1, datafile.SEGMENT, "s.data", 5, 7), offset
    return chunk, block


def test_unpacked_blocks_are_bounded_and_the_least_used_go_first() -> None:
    cache = UnpackedBlocks(100_000)
    kept = [chunk_at(offset, 8_500) for offset in range(12)]
    for chunk, block in kept:
        assert cache.get(chunk) is None
        cache.add(chunk, block)
        assert cache.get(kept[0][0]) is kept[0][1]
        assert cache._bytes <= 100_000
    found = [offset for offset, (chunk, _) in enumerate(kept) if cache.get(chunk) is not None]
    assert found == [0, *range(3, 12)]
    cache.add(*chunk_at(99, 50_000))
    assert cache.get(chunk_at(99, 1)[0]) is None, "too large to be worth it"
    assert len(cache._blocks) == 10


@pytest.mark.parametrize("way", WAYS)
async def test_a_block_is_unpacked_once_for_many_small_reads(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[int] = []
    really = datafile.decode_frame
    files = FaultyFiles()
    async with queue_shard.serving(files) as shard:
        await shard.call("put", "t", {"compression": way})
        for first in range(0, 300, 100):
            records = [record(n) for n in range(first, first + 100)]
            await shard.call("append", "t", {"records": records})

    def watched(data: bytes, seed: int) -> Block:
        decoded.append(len(data))
        return really(data, seed)

    monkeypatch.setattr(datafile, "decode_frame", watched)
    async with queue_shard.serving(files) as shard:
        seqs = []
        for at in range(0, 300, 10):
            page = await shard.call("diff", "t", {"from_seq": at, "limit": 10})
            seqs += [item["$seq"] for item in page["records"]]
    assert seqs == list(range(1, 301))
    assert 1 <= len(decoded) <= 3, "one for each block"


async def test_large_records_are_unpacked_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    inline: list[int] = []
    really = datafile.decode_frame

    def watched(data: bytes, seed: int) -> Block:
        if trio.lowlevel.in_trio_task():
            inline.append(len(data))
        return really(data, seed)

    files = FaultyFiles()
    async with queue_shard.serving(files) as shard:
        await shard.call("put", "t", {"compression": "gzip"})
        await shard.produce("x" * (limits.INLINE_UNPACK_BYTES + 1), topic="t")
        await shard.produce("x" * 1000, topic="t")
        await shard.produce("y" * (limits.INLINE_UNPACK_BYTES + 1), topic="t")
    monkeypatch.setattr(datafile, "decode_frame", watched)
    async with queue_shard.serving(files) as shard:
        page = await shard.call("diff", "t", {"limit": 10})
        assert [len(item["data"]) for item in page["records"]] == [131_073, 1000, 131_073]
        assert len(inline) <= 1
