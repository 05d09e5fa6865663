"""The cold tier of a real shard: what moves, what is read from there, what happens while it is slow or away."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import pytest
import trio

from topics import errors
from topics.failpoints import NAMES
from topics.shards.cold import ID_PATH, OWNER_PATH
from topics.testing.shard_process import ShardClient, ShardProcess

SMALL = ("--segment-events", "100", "--hot-retain-segments", "1")
DEADLINE_S = 60.0


@pytest.fixture
def cold(tmp_path: Path) -> Path:
    return tmp_path / "cold"


@pytest.fixture
def tiered(tmp_path: Path, cold: Path) -> Iterator[ShardProcess]:
    process = ShardProcess(tmp_path / "hot", "--cold-dir", str(cold), *SMALL)
    yield process
    process.clean_up()


def data_files(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.glob("segments/*/*.data"))


def disk_use(*directories: Path) -> int:
    """In bytes, without the log, whose files are used again."""
    used = 0
    for directory in directories:
        for folder, below, names in os.walk(directory):
            below[:] = [name for name in below if name != "wal"]
            for name in names:
                with suppress(FileNotFoundError):  # it has just gone
                    used += (Path(folder) / name).stat().st_size if name != "heads.reg" else 0
    return used


def take_away(cold: Path) -> Path:
    return cold.rename(cold.with_name("away"))


def cold_paths(cold: Path) -> list[Path]:
    return sorted(cold.glob("segments/*/*.data"))


def change_byte(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def read_text(path: Path) -> str:
    return path.read_text()


def lines_until(stream: IO[bytes], text: bytes) -> bytes:
    """The first line with this text."""
    return next(line for line in stream if text in line)


async def fill(client: ShardClient, topic: str = "t", records: int = 1000, **config: Any) -> None:
    """Every record has a payload that tells it from all others."""
    await client.put(topic, durability="fsync", **config)
    for first in range(0, records, 100):
        body = [{"data": f"{topic}-{n}-" + "x" * 200, "tag": f"tag-{n % 10}"} for n in range(first, first + 100)]
        await client.call("append", topic, {"records": body})
        await client.call("checkpoint")


async def until_settled(hot: Path, cold: Path, hot_files: int, cold_files: int) -> None:
    """The copies count: the hot files are gone."""
    with trio.fail_after(DEADLINE_S):
        while (len(data_files(hot)), len(data_files(cold))) != (hot_files, cold_files):
            await trio.sleep(0.02)


async def test_older_segments_move_and_reads_do_not_show_it(tiered: ShardProcess, cold: Path) -> None:
    tiered.start()
    async with tiered.connected() as client:
        await fill(client)
        before = await client.read_all("t")
        await until_settled(tiered.directory, cold, 1, 9)
        assert await client.read_all("t") == before
        assert [record["$seq"] for record in before] == list(range(1, 1001))
    tiered.kill()
    tiered.start()
    async with tiered.connected() as client:
        assert await client.read_all("t") == before
        page = (await client.connection.call("diff", {"topic": "t"}, b'{"limit":250}')).head
        assert page["perf"]["cold_segments_read"] == 3
        page = (await client.connection.call("diff", {"topic": "t"}, b'{"from_seq":950}')).head
        assert "cold_segments_read" not in page["perf"]


async def test_a_shard_without_its_cold_directory_serves_everything_else(tiered: ShardProcess, cold: Path) -> None:
    tiered.start()
    async with tiered.connected() as client:
        await fill(client)
        await until_settled(tiered.directory, cold, 1, 9)
        whole = await client.read_all("t")
    tiered.stop()
    away = take_away(cold)
    tiered.start()
    async with tiered.connected() as client:
        error = await client.refused("diff", "t", {"from_seq": 100})
        assert error.code == errors.NOT_READY
        assert error.detail["reason"] == "cold_unavailable"
        assert "TOPICS_COLD_DIR" in error.message
        assert "not lost" in error.message
        assert (await client.call("state", "t"))["count"] == 1000
        assert len((await client.diff("t", from_seq=900, limit=1000))["records"]) == 100
        deleted = await client.call("delete", "t", {"match": ["tag", "Eq", "tag-3"]})
        assert deleted["deleted"] == 100
        assert (await client.append("t", "new"))["last_seq"] == 1001
        await client.call("checkpoint")
        assert "cold" not in os.listdir(cold.parent)
    tiered.kill()
    tiered.start()
    async with tiered.connected() as client:
        assert (await client.call("state", "t"))["count"] == 901
        os.rename(away, cold)
        left = [record for record in whole if int(record["data"].split("-")[1]) % 10 != 3]
        assert (await client.read_all("t"))[:900] == left


async def test_moving_goes_on_by_itself_when_the_directory_is_back(tiered: ShardProcess, cold: Path) -> None:
    tiered.start()
    async with tiered.connected() as client:
        await fill(client, records=300)
        await until_settled(tiered.directory, cold, 1, 2)
        away = take_away(cold)
        await fill(client, records=300)
        assert len(data_files(tiered.directory)) == 4
        os.rename(away, cold)
        await until_settled(tiered.directory, cold, 1, 5)
        assert len(await client.read_all("t")) == 600


async def test_an_empty_directory_in_its_place_is_not_used(tiered: ShardProcess, cold: Path) -> None:
    """As a mount point without its file system."""
    tiered.start()
    async with tiered.connected() as client:
        await fill(client, records=300)
        await until_settled(tiered.directory, cold, 1, 2)
    tiered.stop()
    away = take_away(cold)
    os.mkdir(cold)
    tiered.start()
    async with tiered.connected() as client:
        await fill(client, records=300)
        assert (await client.refused("diff", "t")).code == errors.NOT_READY
        assert os.listdir(cold) == []
        os.rmdir(cold)
        os.rename(away, cold)
        await until_settled(tiered.directory, cold, 1, 5)


async def test_the_directory_of_another_shard_is_refused(tmp_path: Path, tiered: ShardProcess, cold: Path) -> None:
    tiered.start()
    async with tiered.connected() as client:
        await fill(client, records=300)
        await until_settled(tiered.directory, cold, 1, 2)
    owner = read_text(cold / OWNER_PATH)
    assert read_text(tiered.directory / ID_PATH).startswith(owner)
    other = ShardProcess(tmp_path / "other", "--cold-dir", str(cold), *SMALL)
    try:
        other.start(stderr=subprocess.PIPE)
        assert other.process is not None
        assert other.process.stderr is not None
        async with other.connected() as client:
            await fill(client, "u", records=300)
            said = await trio.to_thread.run_sync(lines_until, other.process.stderr, b"cold directory cannot be used")
            assert b"belongs to another data directory" in said
            assert len(await client.read_all("u")) == 300
        assert len(data_files(cold)) == 2
        assert read_text(cold / OWNER_PATH) == owner
    finally:
        other.clean_up()


async def test_deletes_caps_and_removal_give_room_back_in_both_tiers(tiered: ShardProcess, cold: Path) -> None:
    tiered.start()
    async with tiered.connected() as client:
        await client.call("checkpoint")
        empty = disk_use(tiered.directory)
        await fill(client, "t")
        await fill(client, "capped")
        await until_settled(tiered.directory, cold, 2, 18)
        full = disk_use(tiered.directory, cold)
        await client.call("delete", "t", {"before_seq": 451})
        await client.put("capped", cap_records=200)
        await client.call("checkpoint")
        await until_settled(tiered.directory, cold, 2, 6)
        assert disk_use(tiered.directory, cold) < full * 0.55
        await client.call("delete", "t", {"match": ["tag", "Glob", "tag-*"]})
        await client.call("remove", "capped")
        await client.call("checkpoint")
        await until_settled(tiered.directory, cold, 0, 0)
        assert disk_use(tiered.directory, cold) < empty + full * 0.1


async def test_a_compaction_tells_what_it_frees_in_the_cold_tier(tiered: ShardProcess, cold: Path) -> None:
    tiered.start()
    async with tiered.connected() as client:
        await fill(client)
        await until_settled(tiered.directory, cold, 1, 9)
        sizes = [path.stat().st_size for path in cold_paths(cold)]
        await client.call("delete", "t", {"before_seq": 451})
        told = (await client.connection.call("compact", {})).head
        assert told["segments_removed"] == 4
        assert told["bytes_freed"] >= sum(sizes[:4])
        assert told["bytes_used"] >= sum(sizes[4:])
        await until_settled(tiered.directory, cold, 1, 5)


async def test_expired_segments_go_from_the_cold_tier(tiered: ShardProcess, cold: Path) -> None:
    tiered.start()
    async with tiered.connected() as client:
        await fill(client)
        await until_settled(tiered.directory, cold, 1, 9)
        await client.put("t", ttl_ms=1)
        await trio.sleep(0.01)
        assert (await client.call("state", "t"))["count"] == 0
        await client.call("checkpoint")
        await until_settled(tiered.directory, cold, 0, 0)


async def test_what_expires_goes_although_nobody_touches_its_topic(tiered: ShardProcess, cold: Path) -> None:
    tiered.start()
    async with tiered.connected() as client:
        await fill(client, ttl_ms=4000)
        assert data_files(tiered.directory)
        with trio.fail_after(DEADLINE_S):
            while data_files(tiered.directory) or data_files(cold):
                await client.call("checkpoint")
                await trio.sleep(0.2)


async def test_a_slow_cold_directory_delays_nobody_else(tiered: ShardProcess, cold: Path) -> None:
    tiered.start()
    async with tiered.connected() as client:
        await fill(client)
        await until_settled(tiered.directory, cold, 1, 9)
    tiered.stop()
    tiered._args += ("--failpoints", "cold.read=pause:600000")
    tiered.start()
    async with tiered.connected() as client, trio.open_nursery() as nursery:
        for _ in range(8):
            nursery.start_soon(client.refused, "diff", "t")
        await fill(client, "u", records=1000)
        assert len(await client.read_all("u")) == 1000
        with trio.fail_after(DEADLINE_S):
            waiting = client.diff("t", from_seq=1000, wait_ms=30_000)
            nursery.start_soon(client.append, "t", "live")
            assert [record["data"] for record in (await waiting)["records"]] == ["live"]
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("point", ["cold.write=error:EIO*3", "cold.sync=error:EIO*3", "cold.write=error:ENOSPC*2"])
async def test_a_copy_that_fails_is_made_again(tiered: ShardProcess, cold: Path, point: str) -> None:
    tiered._args += ("--failpoints", point)
    tiered.start()
    async with tiered.connected() as client:
        await fill(client, records=300)
        await until_settled(tiered.directory, cold, 1, 2)
        assert len(await client.read_all("t")) == 300


KILLS = (
    *("cold.write=kill", "cold.write=kill@4", "cold.write=tear@2", "cold.sync=kill", "cold.sync=kill@8"),
    *("cold.read=kill@3", "cold.unlink=kill@2", "snapshot.write=tear", "snapshot.sync=kill", "unlink=kill@4"),
)
assert {name for name in NAMES if name.startswith("cold.")} <= {kill.partition("=")[0] for kill in KILLS}


@pytest.mark.parametrize("step", KILLS)
async def test_a_kill_at_any_step_of_a_move_loses_nothing(tiered: ShardProcess, cold: Path, step: str) -> None:
    plain = tiered._args
    tiered._args += ("--hot-retain-segments", "1000")
    tiered.start()
    async with tiered.connected() as client:
        await fill(client)
        await client.call("delete", "t", {"match": ["tag", "Eq", "tag-7"]})
        before = await client.read_all("t")
    tiered.stop()
    tiered._args = (*plain, "--failpoints", step)
    tiered.start()
    assert tiered.process is not None
    with trio.fail_after(DEADLINE_S):
        while tiered.process.poll() is None:
            await trio.sleep(0.02)
    tiered._args = plain
    tiered.start()
    async with tiered.connected() as client:
        assert await client.read_all("t") == before
        await until_settled(tiered.directory, cold, 1, 9)
        assert await client.read_all("t") == before


async def test_a_damaged_cold_block_is_a_tombstone_and_a_cut_file_is_not(tiered: ShardProcess, cold: Path) -> None:
    tiered.start()
    async with tiered.connected() as client:
        await fill(client, records=300)
        await until_settled(tiered.directory, cold, 1, 2)
    tiered.stop()
    first, second = cold_paths(cold)
    change_byte(first, 2000)
    whole = second.read_bytes()
    second.write_bytes(whole[:-10])
    tiered.start()
    async with tiered.connected() as client:
        assert (await client.refused("diff", "t", {"from_seq": 100})).detail["reason"] == "cold_unavailable"
        second.write_bytes(whole)
        page = await client.diff("t", limit=1000)
        assert page["tombstone"]["reason"] == "corrupt"
        assert (page["tombstone"]["gap_from"], page["tombstone"]["gap_to"]) == (1, 100)
        assert [record["$seq"] for record in page["records"]] == list(range(101, 301))


async def test_a_lost_index_of_a_cold_segment_is_made_anew_or_stops_the_start(tiered: ShardProcess, cold: Path) -> None:
    tiered.start()
    async with tiered.connected() as client:
        await fill(client, records=300)
        await until_settled(tiered.directory, cold, 1, 2)
        before = await client.read_all("t")
    tiered.stop()
    os.unlink(str(cold_paths(cold)[0]).replace(str(cold), str(tiered.directory)).replace(".data", ".idx"))
    away = take_away(cold)
    tiered.start()
    assert tiered.process is not None
    assert tiered.process.wait(timeout=DEADLINE_S) == 65
    os.rename(away, cold)
    tiered.start()
    async with tiered.connected() as client:
        assert await client.read_all("t") == before


async def test_queues_stay_hot(tiered: ShardProcess, cold: Path) -> None:
    tiered.start()
    async with tiered.connected() as client:
        await fill(client, "jobs", type="queue")
        await fill(client, "t", records=300)
        await until_settled(tiered.directory, cold, 11, 2)


async def test_a_link_to_the_data_directory_is_not_used(tiered: ShardProcess, cold: Path) -> None:
    os.mkdir(tiered.directory)
    os.symlink(tiered.directory, cold)
    tiered.start(stderr=subprocess.PIPE)
    assert tiered.process is not None
    assert tiered.process.stderr is not None
    async with tiered.connected() as client:
        await fill(client, records=300)
        said = await trio.to_thread.run_sync(lines_until, tiered.process.stderr, b"cold directory cannot be used")
        assert b"it is the data directory itself" in said
        assert len(await client.read_all("t")) == 300
        assert len(data_files(tiered.directory)) == 3
