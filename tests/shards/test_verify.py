"""Checking a shard's directory: every byte that counts is looked at, what is whole is never reported."""

import os
import shutil
import tracemalloc
from pathlib import Path

import pytest

from topics.core.block import Block
from topics.core.chunk import DataFile
from topics.shards import walscan
from topics.shards.datafile import SEGMENT, Stored, write_data_file
from topics.shards.files import RealFiles
from topics.shards.findings import CORRUPT, MISSING, QUARANTINED, TORN, Finding, Tally
from topics.shards.readonly_files import ReadOnlyFiles
from topics.shards.recovery import REGISTER
from topics.shards.snapshot import Commit, SnapshotLog, read_snapshot
from topics.shards.verify import check_shard
from topics.testing.shard_process import ShardClient, ShardProcess

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
GOLDEN_FILES = sorted(path.relative_to(GOLDEN).as_posix() for path in GOLDEN.rglob("*") if path.is_file())
LAST_PADDING = 2  # bytes behind the last frame of the log
CHECKED_FILES = [name for name in GOLDEN_FILES if name not in ("heads.reg", "slots.used")]


def check(directory: Path) -> list[Finding]:
    return list(check_shard(ReadOnlyFiles(str(directory)), Tally(), lambda size: None))


def contents(directory: Path) -> dict[str, tuple[bytes, int]]:
    return {
        path.relative_to(directory).as_posix(): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in directory.rglob("*")
        if path.is_file()
    }


def flip(path: Path, offset: int, bit: int = 6) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        (old,) = file.read(1)
        file.seek(offset)
        file.write(bytes((old ^ 1 << bit,)))


def newest_log(directory: Path) -> Path:
    return max(directory.glob("wal/*.wal"))


def segments_of(directory: Path) -> list[Path]:
    return sorted(directory.glob("segments/*/*.data"))


# --- the golden files: small, and every kind of byte is in them ---------------------------------------------------


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    shutil.copytree(GOLDEN, tmp_path / "golden")
    return tmp_path / "golden"


def test_the_golden_files_are_whole(golden: Path) -> None:
    tally = Tally()
    assert list(check_shard(ReadOnlyFiles(str(golden)), tally, lambda size: None)) == []
    assert (tally.frames, tally.checkpoints, tally.blocks, tally.records, tally.leftovers) == (18, 2, 9, 26, 0)
    assert tally.files == len(GOLDEN_FILES)


def points_at(finding: Finding, offset: int) -> bool:
    inside = finding.offset is None or finding.offset <= offset < (finding.end or offset + 1)
    return finding.kind in (CORRUPT, TORN) and inside


@pytest.mark.parametrize("name", CHECKED_FILES)
def test_a_flipped_bit_in_any_byte_is_found_in_its_file(golden: Path, name: str) -> None:
    path = golden / name
    missed = []
    # The padding of the last frame may not have come to the disk with it, and nobody needs it.
    size = path.stat().st_size - (LAST_PADDING if name == "wal/0000000002.wal" else 0)
    for offset in range(size):
        flip(path, offset, offset % 8)
        if not any(finding.file == name and points_at(finding, offset) for finding in check(golden)):
            missed.append(offset)
        flip(path, offset, offset % 8)
    assert missed == []
    assert check(golden) == []


@pytest.mark.parametrize("name", CHECKED_FILES)
def test_a_file_that_ends_too_soon_is_found(golden: Path, name: str) -> None:
    whole = (golden / name).read_bytes()
    sizes = {0, 10, 63, len(whole) // 2, len(whole) - 9, len(whole) - 1 - LAST_PADDING}
    if not name.startswith("wal/"):  # a log may end behind its header, or any frame that nobody vouches for
        sizes |= {64, 65}
    for size in sorted(sizes):
        (golden / name).write_bytes(whole[:size])
        assert name in {finding.file for finding in check(golden)}, size


@pytest.mark.parametrize("name", [name for name in GOLDEN_FILES if not name.startswith(("wal/", "snapshot"))])
def test_a_file_that_is_gone_is_missed(golden: Path, name: str) -> None:
    (golden / name).unlink()
    assert [(finding.kind, finding.file) for finding in check(golden)] == [(MISSING, name)]


def test_an_old_log_file_may_be_gone_but_not_the_newest(golden: Path) -> None:
    (golden / "wal/0000000001.wal").unlink()  # a checkpoint covers all of it
    assert check(golden) == []
    (golden / "wal/0000000002.wal").unlink()
    assert [finding.kind for finding in check(golden)] == [MISSING]
    assert "newest log file" in check(golden)[0].what


def test_a_snapshot_that_is_gone_is_missed(golden: Path) -> None:
    (golden / "snapshot.1").unlink()
    (golden / "wal/0000000001.wal").unlink()
    assert [(finding.kind, finding.file) for finding in check(golden)] == [(MISSING, "snapshot.*")]


# --- a real shard -------------------------------------------------------------------------------------------------


async def load(client: ShardClient) -> None:
    """Segments, packs, a log that goes on behind the snapshot, deletes, every durability."""
    await client.put("safe", durable=True)
    await client.put("loose", durability="disk")
    await client.put("light", durability="memory")
    await client.put("gone", durability="ephemeral")
    for _ in range(3):
        for topic in ("safe", "loose", "light", "gone"):
            records = [{"data": f"{topic}-{i}" + "x" * 50, "tag": f"t:{i % 5}"} for i in range(130)]
            await client.call("append", topic, {"records": records})
        await client.call("delete", "safe", {"match": "t:3"})
        await client.call("checkpoint")
    for number in range(20):
        await client.append("safe", f"late-{number}", idempotency_key=f"k{number}")
        await client.append(f"small-{number}", number)


@pytest.fixture
async def killed(shard: ShardProcess) -> Path:
    shard._args = ("--segment-events", "100")
    shard.start()
    async with shard.connected() as client:
        await load(client)
    shard.kill()
    return shard.directory


async def test_what_a_kill_leaves_is_whole_and_stays_as_it_is(killed: Path) -> None:
    before = contents(killed)
    assert [finding for finding in check(killed) if finding.damage] == []
    assert contents(killed) == before


async def test_what_a_clean_stop_leaves_is_whole(shard: ShardProcess, killed: Path) -> None:
    for _ in range(2):
        shard.start()
        async with shard.connected() as client:
            await client.append("safe", "again")
        assert shard.stop() == 0
        assert check(killed) == []


async def test_what_a_shard_keeps_for_itself_is_whole(shard: ShardProcess) -> None:
    for end in (shard.kill, shard.stop):
        shard.start()
        async with shard.connected() as client:
            head = {"wid": f"w-{end.__name__}", "owner": "", "cursors": {}}
            await client.connection.call("watch.create", head, b"\xff is not JSON")
        end()
        assert check(shard.directory) == []


async def test_damage_in_the_middle_of_the_log_is_not_a_torn_tail(killed: Path) -> None:
    path = newest_log(killed)
    flip(path, path.read_bytes().index(b"late-7"))
    (found,) = check(killed)
    assert (found.kind, found.file) == (CORRUPT, f"wal/{path.name}")
    assert "had been synced" in found.what


def spoil_last(path: Path, text: bytes) -> None:
    """Make the frame that holds `text` the last one of the log (an idle mark may have come), and bad."""
    data = path.read_bytes()
    at = data.index(text)
    frame = next(frame for frame in walscan.scan_file(data).frames if frame.offset <= at < frame.end)
    path.write_bytes(data[: frame.end])
    flip(path, at)


async def test_a_torn_end_is_no_damage(shard: ShardProcess) -> None:
    shard.start()
    async with shard.connected() as client:
        await client.put("loose")
        await client.append("loose", "first")
        await client.append("loose", "the last one")
        await client.put("later", durable=True)  # durable when answered, and the writes before it, too
    shard.kill()
    spoil_last(newest_log(shard.directory), b"the last one")
    (found,) = check(shard.directory)
    assert (found.kind, found.damage) == (TORN, False)


async def test_an_end_that_was_acked_is_damage(shard: ShardProcess) -> None:
    """The frame alone looks like a torn one, but the head register knows that an fsync write was acked."""
    shard.start()
    async with shard.connected() as client:
        await client.put("safe", durable=True)
        await client.append("safe", "acked")
    shard.kill()
    path = newest_log(shard.directory)
    spoil_last(path, b"acked")
    assert [(finding.kind, finding.file) for finding in check(shard.directory)] == [
        (TORN, f"wal/{path.name}"),
        (CORRUPT, REGISTER),
    ]


async def test_a_log_file_that_is_gone_is_missed(shard: ShardProcess) -> None:
    """The log goes on in a new file at every start; the one in the middle is taken away."""
    for number in range(3):
        shard.start()
        async with shard.connected() as client:
            await client.put("safe", durable=True)
            await client.append("safe", number)
        shard.kill()
    numbers = walscan.list_files(ReadOnlyFiles(str(shard.directory)))
    middle = shard.directory / f"wal/{numbers[1]:010d}.wal"
    middle.unlink()
    assert [(finding.kind, finding.file) for finding in check(shard.directory)] == [(MISSING, f"wal/{middle.name}")]


async def test_deleted_and_truncated_data_files_are_named(killed: Path) -> None:
    segments = segments_of(killed)
    segments[0].unlink()
    os.truncate(segments[1], segments[1].stat().st_size // 2)
    found = {finding.file: finding for finding in check(killed)}
    names = [segment.relative_to(killed).as_posix() for segment in segments]
    assert set(found) == set(names[:2])
    assert found[names[0]].kind == found[names[1]].kind == MISSING
    assert found[names[1]].offset == segments[1].stat().st_size


async def test_a_delete_flag_that_rots_is_found(killed: Path) -> None:
    path = segments_of(killed)[0]
    flip(path, path.stat().st_size - 1, 1)
    (found,) = check(killed)
    assert (found.kind, found.offset) == (CORRUPT, path.stat().st_size - 1)
    assert "delete flag" in found.what


async def test_marks_and_cells_that_contradict_the_topics_are_found(killed: Path) -> None:
    marks = killed / "slots.used"
    marks.write_bytes(bytes(128))
    assert {finding.file for finding in check(killed)} == {"slots.used"}
    shutil.copy(GOLDEN / "slots.used", marks)
    register = killed / REGISTER
    register.write_bytes(register.read_bytes()[:16])
    assert REGISTER in {finding.file for finding in check(killed) if finding.kind == MISSING}


async def test_quarantined_bytes_are_shown_until_somebody_takes_them_away(shard: ShardProcess, killed: Path) -> None:
    path = newest_log(killed)
    flip(path, path.read_bytes().index(b"late-7"))
    shard.start()
    async with shard.connected() as client:
        assert (await client.call("health"))["ready"]
    shard.kill()
    assert {finding.kind for finding in check(killed)} == {QUARANTINED, CORRUPT}
    shard.start()
    async with shard.connected() as client:
        await client.call("checkpoint")  # the log file that was damaged goes
    assert shard.stop() == 0
    (found,) = check(killed)
    assert found.kind == QUARANTINED
    (killed / found.file).unlink()
    assert check(killed) == []


async def test_damage_that_a_checkpoint_covers_is_told_as_such(killed: Path) -> None:
    path = newest_log(killed)
    flip(path, path.read_bytes().index(b"light-7x"))
    (found,) = check(killed)
    assert (found.kind, found.file) == (CORRUPT, f"wal/{path.name}")
    assert "checkpoint covers" in found.todo


async def test_leftovers_of_a_crash_are_counted_and_not_reported(killed: Path) -> None:
    (killed / "packs" / "pack-0000000999.data").write_bytes(b"half")
    (killed / "wal" / "new.tmp").write_bytes(b"")
    (killed / "wal" / "spare-7").write_bytes(b"anything")
    tally = Tally()
    assert not any(f.damage for f in check_shard(ReadOnlyFiles(str(killed)), tally, lambda size: None))
    assert tally.leftovers >= 2


def test_the_tree_cannot_be_changed(golden: Path) -> None:
    files = ReadOnlyFiles(str(golden))
    for change in (
        lambda: files.create("x"),
        lambda: files.unlink("snapshot.1"),
        lambda: files.rename("snapshot.1", "x"),
        lambda: files.make_dir("x"),
        lambda: files.map_register("heads.reg", 9),
        lambda: files.open("snapshot.1").write_at(0, [b"x"]),
        lambda: files.open("snapshot.1").truncate(0),
    ):
        with pytest.raises(OSError, match=r"only looked at|Bad file|Invalid"):
            change()
    assert check(golden) == []


def test_memory_does_not_grow_with_what_is_stored(tmp_path: Path) -> None:
    """Thirty segments with a megabyte of records each, and a log: never more than a few at a time."""
    files = RealFiles(str(tmp_path))
    texts = [b'{"$seq":%d,"$ts":1000,"data":"%s"}' % (seq, b"x" * 230) for seq in range(1, 257)]
    infos = []
    for number in range(1, 31):
        info = DataFile(number, SEGMENT, f"segments/{number}/seg-{1:020d}.data", number, number)
        blocks = []
        for first in range(1, 17 * 256, 256):
            block = Block(first, 1000)
            block.fill(texts, [20] * len(texts))
            blocks.append(Stored(number, 1, block, 0))
        files.make_dir(f"segments/{number}")
        write_data_file(files, info, blocks)
        infos.append(info)
    log = SnapshotLog(files, read_snapshot(files))
    commit = Commit()
    commit.added = infos
    log.commit([], commit)
    log.close()
    tally = Tally()
    tracemalloc.start()
    try:
        assert list(check_shard(ReadOnlyFiles(str(tmp_path)), tally, lambda size: None)) == []
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert tally.records == 30 * 17 * 256
    assert tally.bytes > 30 << 20
    assert peak < 4 << 20
