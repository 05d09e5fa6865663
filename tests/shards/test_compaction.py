"""What a compaction lets go, and what it says about it."""

import msgspec
import pytest

from tests.shards.test_shard import serving
from topics.errors import TopicsError
from topics.failpoints import parse
from topics.limits import Limits
from topics.shards.compaction import freed, sizes
from topics.shards.failing_files import FailingFiles
from topics.testing.faulty_files import FaultyFiles

TEN = msgspec.json.encode({"records": [{"data": "x" * 100, "tag": "t"}] * 10})


def test_a_log_file_that_becomes_the_spare_is_still_there():
    before = {
        "wal/0000000001.wal": 100,
        "wal/0000000002.wal": 100,
        "segments/7/a.data": 30,
        "segments/7/a.idx": 3,
        "packs/p.data": 5,
    }
    after = {"wal/spare-1": 100, "wal/spare-0": 70, "packs/p.data": 5, "packs/q.data": 50}
    assert freed(before, after) == {
        "segments_removed": 1,
        "log_files_removed": 1,
        "bytes_freed": 133,
        "bytes_used": 225,
    }
    assert freed(after, after) == {"segments_removed": 0, "log_files_removed": 0, "bytes_freed": 0, "bytes_used": 225}


async def test_whole_files_go_and_what_lives_stays():
    files = FaultyFiles()
    async with serving(files, Limits(segment_events=10)) as (shard, connection, _):
        for _ in range(5):
            await connection.call("append", {"topic": "t"}, TEN)
        first = (await connection.call("compact", {})).head
        assert first["segments_removed"] == 0
        stored = sizes(files)
        assert sum(path.startswith("segments/") and path.endswith(".data") for path in stored) == 5
        await connection.call("delete", {"topic": "t"}, b'{"before_seq":36}')
        told = (await connection.call("compact", {})).head
        assert told["segments_removed"] == 3  # and half of the fourth is dead, which stays
        left = sizes(files)
        gone = {path: size for path, size in stored.items() if path not in left}
        assert told["bytes_freed"] == sum(gone.values()) > 0
        assert told["bytes_used"] >= sum(size for path, size in left.items() if not path.startswith("wal/"))
        answer = msgspec.json.decode((await connection.call("diff", {"topic": "t"}, b"{}")).body + b"}")
        assert [record["$seq"] for record in answer["records"]] == list(range(36, 51))
        assert shard.store is not None
        assert not shard.store.has_unused_files()


@pytest.mark.parametrize("bound", [2_000, 40_000])
async def test_a_segment_has_no_more_bytes_than_it_may(bound):
    """Also if that is less than a block has, which joins what many requests wrote."""
    files = FaultyFiles()
    bounds = Limits(segment_bytes=bound)
    async with serving(files, bounds) as (_, connection, _):
        for number in range(1, 41):
            tag = "dead" if number % 3 == 0 else "live"
            record = {"data": str(number) * 500, "tag": tag}
            await connection.call("append", {"topic": "t"}, msgspec.json.encode({"records": [record] * 4}))
        await connection.call("delete", {"topic": "t"}, b'{"match":"dead"}')
        before = (await connection.call("diff", {"topic": "t"}, b"{}")).body
        await connection.call("checkpoint", {})
        stored = sizes(files).items()
        sealed = [size for path, size in stored if path.startswith("segments/") and path.endswith(".data")]
        assert len(sealed) >= 40 * 4 * 700 // bound
        assert max(sealed) <= bound * 1.05 + 600  # beside texts there are columns and headers
        assert (await connection.call("diff", {"topic": "t"}, b"{}")).body == before


async def test_packs_whose_topics_are_gone_go_too():
    files = FaultyFiles()
    async with serving(files) as (_, connection, _):
        for number in range(3):
            await connection.call("append", {"topic": f"t{number}"}, TEN)
        await connection.call("checkpoint", {})
        assert any(path.startswith("packs/") for path in sizes(files))
        for number in range(3):
            await connection.call("remove", {"topic": f"t{number}"})
        told = (await connection.call("compact", {})).head
        assert told["segments_removed"] == 1
        assert not any(path.startswith("packs/") for path in sizes(files))


async def test_a_disk_that_does_not_let_it_is_told():
    files = FailingFiles(FaultyFiles(), parse("pack.write=error:ENOSPC"))
    async with serving(files) as (_, connection, _):
        await connection.call("append", {"topic": "t"}, TEN)
        with pytest.raises(TopicsError, match="put off") as caught:
            await connection.call("compact", {})
        assert caught.value.code == "not_ready"
