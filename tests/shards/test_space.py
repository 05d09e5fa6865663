"""A disk that fills up: admission alone refuses, whatever else stands still, and goes on when there is room."""

import itertools
import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from topics import errors, limits
from topics.core.requests import decode_append
from topics.errors import TopicsError
from topics.limits import MIB, Limits
from topics.rpc.connection import Connection
from topics.shards import checkpoint, shard, space, wal
from topics.shards.recovery import recover
from topics.shards.shard import Shard, ShardPoisoned
from topics.shards.store import Store
from topics.testing.drafts import Draft
from topics.testing.driver import Driver
from topics.testing.faulty_files import FaultyFiles
from topics.testing.outcomes import Answer
from topics.testing.rpc_pair import rpc_pair
from topics.testing.trap_files import TrapFiles

FREE = 1 << 40
KB = b'"%b"' % (b"x" * 1000)


@pytest.fixture
def driver() -> Driver:
    driver = Driver(monitored=False, bounds=Limits(), wal_file_bytes=limits.WAL_FILE_BYTES).start()
    driver.disk.set_free_bytes(FREE)
    driver.put("t", {"durability": "disk", "cap_records": 100_000})
    driver.commit()
    driver.checkpoint()
    return driver


def body(records: int) -> bytes:
    return json.dumps({"records": [{"data": "x" * 1000}] * records}).encode()


def append(driver: Driver, records: int) -> Answer:
    answer = Answer()
    driver.store.engine.append("t", decode_append(body(records), "t", Limits()), answer.done, answer.fail)
    return answer


def missing(store: Store) -> int:
    """What admission may not count on, of what is free."""
    return store.files.free_bytes() - space.available(store)


# --- what one write takes -----------------------------------------------------------------------------------------


def test_a_write_takes_room_in_the_log_and_in_a_data_file(driver: Driver) -> None:
    engine = driver.store.engine
    append(driver, 10)  # seqs have two digits from here on
    engine.space_bytes = FREE
    append(driver, 10)
    size = (FREE - engine.space_bytes) // 2
    assert 10 * 1032 <= size < 10 * 1100
    engine.space_bytes = limits.SPACE_RESERVE_BYTES + 2 * size - 1
    with pytest.raises(TopicsError) as refused:
        append(driver, 10)
    assert (refused.value.code, engine.lacked_space) == (errors.STORAGE_FULL, True)
    engine.space_bytes = limits.SPACE_RESERVE_BYTES + 2 * size
    assert append(driver, 10).given
    assert engine.space_bytes == limits.SPACE_RESERVE_BYTES
    with pytest.raises(TopicsError):
        append(driver, 1)


def test_what_is_lacking_is_told_as_nothing_free(driver: Driver) -> None:
    driver.store.engine.space_bytes = -5
    with pytest.raises(TopicsError) as refused:
        append(driver, 1)
    assert refused.value.detail["free_bytes"] == 0


# --- what was admitted and has not taken its room yet -------------------------------------------------------------


def test_frames_that_wait_need_room_unless_the_log_file_holds_it(driver: Driver) -> None:
    store = driver.store
    assert 0 < store.writer.room_left < MIB
    assert missing(store) == 0
    append(driver, 100)
    stored = space.stored_size(store.engine.log.bytes_since_checkpoint)
    assert stored > 100_000
    assert missing(store) == stored, "the file was filled with zeros ahead of need"
    append(driver, 1000)
    waiting = store.engine.log.frame_bytes - store.writer.bytes_total
    assert waiting > store.writer.room_left
    stored = space.stored_size(store.engine.log.bytes_since_checkpoint)
    assert missing(store) == stored + waiting
    frames = store.engine.log.take()
    assert missing(store) == stored + waiting, "the committer's thread has them, the disk does not"
    store.write_group(frames)
    assert store.engine.log.frame_bytes == store.writer.bytes_total
    assert missing(store) == stored


def test_a_checkpoint_under_way_needs_what_it_has_not_written_yet(driver: Driver) -> None:
    store = driver.store
    append(driver, 5000)
    driver.commit()
    first = space.stored_size(store.engine.log.bytes_since_checkpoint)
    work = store.begin_checkpoint()
    assert missing(store) == first
    append(driver, 10)
    driver.commit()
    meanwhile = space.stored_size(store.engine.log.bytes_since_checkpoint)
    for _ in work.capture():
        pass
    assert missing(store) == first + meanwhile
    work.write()
    written = sum(info.size for info in store.under_way.commit.added) if store.under_way is not None else 0
    assert written > 5_000_000
    assert missing(store) == first - written + meanwhile
    for _ in work.install():
        pass
    store.forget(work)
    assert missing(store) == meanwhile


def test_a_large_file_counts_while_it_is_written(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    store, seen = driver.store, []
    write = FaultyFiles.write

    def look(files: FaultyFiles, *args: Any) -> None:
        write(files, *args)
        seen.append(missing(store))

    append(driver, 5000)
    driver.commit()
    work = store.begin_checkpoint()
    for _ in work.capture():
        pass
    monkeypatch.setattr(FaultyFiles, "write", look)
    work.write()
    steps = [before - after for before, after in itertools.pairwise(seen)]
    assert max(steps) < 2 * MIB
    assert sum(step > MIB // 2 for step in steps) >= 4


def is_taken(driver: Driver) -> bool:
    try:
        append(driver, 100)
    except TopicsError:
        return False
    driver.commit()
    return True


def give_up(work: checkpoint.Checkpoint) -> None:
    for _ in work.abandon():
        pass
    work.remove_litter()


def test_a_checkpoint_that_fails_leaves_all_to_the_next_one(driver: Driver) -> None:
    """Else the log, and memory with it, would grow without bound for as long as they fail."""
    store, log = driver.store, driver.store.engine.log
    append(driver, 100)
    driver.commit()
    before = log.bytes_since_checkpoint
    work = store.begin_checkpoint()
    assert log.bytes_since_checkpoint == 0
    append(driver, 10)
    driver.commit()
    meanwhile = log.bytes_since_checkpoint
    for _ in work.capture():
        pass
    give_up(work)
    assert before > 100_000
    assert log.unstored == before + meanwhile
    assert missing(store) == space.stored_size(before + meanwhile)
    store.checkpoint()
    assert (log.unstored, missing(store)) == (0, 0)


@pytest.mark.parametrize("failing", [True, False])
def test_failing_checkpoints_stop_writes_at_the_bound(
    driver: Driver, failing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "UNSTORED_BYTES_MAX", MIB)
    acked = 0
    while acked < 50 and is_taken(driver):
        acked += 1
        if failing:
            give_up(driver.store.begin_checkpoint())
        else:
            driver.store.checkpoint()
    assert (9 <= acked <= 11) if failing else acked == 50
    assert driver.store.engine.log.counters.refused == failing


def test_a_checkpoint_that_is_tried_again_lets_no_more_in_until_it_is_done(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each attempt begins to count anew, but what the failed ones owe is still in memory."""
    monkeypatch.setattr(limits, "UNSTORED_BYTES_MAX", MIB)
    acked, work = 0, driver.store.begin_checkpoint()
    while acked < 50 and is_taken(driver):
        acked += 1
        give_up(work)
        work = driver.store.begin_checkpoint()
    assert 9 <= acked <= 11
    give_up(work)
    driver.store.checkpoint()
    assert append(driver, 100).given


def test_a_start_counts_what_no_checkpoint_has(driver: Driver) -> None:
    append(driver, 50)
    driver.commit()
    driver.store.checkpoint()
    append(driver, 100)
    driver.commit()
    before = driver.store.engine.log.bytes_since_checkpoint
    disk = driver.disk.crash(1)
    store = recover(disk, driver.clock, wal_file_bytes=limits.WAL_FILE_BYTES)
    assert before <= store.engine.log.bytes_since_checkpoint < before + 1000
    store.checkpoint()
    again = recover(disk.crash(1), driver.clock)
    assert again.engine.log.bytes_since_checkpoint < 1000


@pytest.mark.parametrize(("room", "is_enough"), [(100_000, False), (2 * MIB, True), (None, True)])
def test_what_is_stored_already_is_written_anew_only_if_there_is_room(
    driver: Driver, room: int | None, is_enough: bool
) -> None:
    """Topics that have grown get segments of their own, many at once perhaps. That can wait."""
    store = driver.store
    for _ in range(2):
        append(driver, 500)
        driver.commit()
        store.checkpoint()
    assert {info.kind for info in store.data_files.values()} == {"pack"}
    append(driver, 500)
    driver.commit()
    store.engine.space_bytes = limits.SPACE_SHORT_BYTES + room if room is not None else None
    work = store.begin_checkpoint()
    first = work.size
    for _ in work.capture():
        pass
    again = work.size - first
    assert (again > 1_000_000) is is_enough
    give_up(work)


# --- a shard ------------------------------------------------------------------------------------------------------


class StalledLog(TrapFiles):
    """A disk on which writes to the log may stand still. It counts the looks at how much is free."""

    def __init__(self, inner: FaultyFiles) -> None:
        super().__init__(inner)
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.looks = 0

    def check(self, operation: str, path: str) -> None:
        if operation == "write_at" and path.startswith("wal/"):
            self.goes_on.wait(60)
        super().check(operation, path)

    def free_bytes(self) -> int:
        self.looks += 1
        return self.inner.free_bytes()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard, "SPACE_CHECK_S", 0.002)
    monkeypatch.setattr(shard, "MAKE_ROOM_S", 0.01)


@asynccontextmanager
async def serving(files: Any, ended: list[str] | None = None) -> AsyncIterator[tuple[Shard, Connection]]:
    served, stop = Shard(files), trio.Event()

    async def run() -> None:
        try:
            await served.run(stop)
        except* ShardPoisoned as group:
            if ended is None:
                raise
            ended.extend(map(str, group.exceptions))

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery, rpc_pair(served.handlers) as connection:
            nursery.start_soon(run)
            await served.ready.wait()
            yield served, connection
            stop.set()


async def write(connection: Connection, records: int, topic: str = "t") -> bool:
    """Whether it was taken; else there was no space."""
    try:
        await connection.call("append", {"topic": topic}, body(records))
    except TopicsError as refused:
        if refused.code != errors.STORAGE_FULL:
            raise
        return False
    return True


async def looked(files: StalledLog) -> None:
    """The shard knows what is free by now."""
    seen = files.looks
    while files.looks < seen + 3:
        await trio.sleep(0.001)


async def until_taken(connection: Connection, records: int) -> None:
    while not await write(connection, records):
        await trio.sleep(0.001)


async def test_with_a_log_that_stands_still_a_filling_disk_refuses_before_it_is_full(quick: None) -> None:
    disk = FaultyFiles()
    disk.set_free_bytes(40 * MIB)
    files, ended, taken = StalledLog(disk), list[str](), 0
    async with serving(files, ended) as (served, connection):
        await connection.call("put", {"topic": "t"}, b'{"durability":"disk"}')
        await write(connection, 1)
        files.goes_on.clear()
        try:
            for _ in range(6):
                taken += await write(connection, 8000)
                await looked(files)
            page = json.loads(bytes((await connection.call("diff", {"topic": "t"}, b"")).body) + b"}")
        finally:
            files.goes_on.set()
        assert taken == 1, "8 MB for the log, 12 MB for data files, and the reserve"
        assert page["records"], "reads go on"
        await until_taken(connection, 1000)  # by itself
        await connection.call("checkpoint", {})
        assert served.store is not None
        assert served.store.engine.poisoned is None
    assert ended == []


async def test_a_disk_without_room_takes_writes_again_after_a_delete(quick: None) -> None:
    disk = FaultyFiles()
    files = StalledLog(disk)
    async with serving(files) as (served, connection):
        await connection.call("put", {"topic": "t"}, b'{"durability":"fsync"}')
        await write(connection, 8000)
        await connection.call("checkpoint", {})
        disk.set_free_bytes(12 * MIB)
        await looked(files)
        assert not await write(connection, 4000)
        await connection.call("delete", {"topic": "t"}, b'{"before_seq":8001}')
        await until_taken(connection, 4000)
        assert served.store is not None
        assert served.store.engine.poisoned is None


async def test_what_went_before_it_was_stored_gives_its_room_back(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Although nothing is left that a checkpoint would be due for, and more is free than counts as short."""
    monkeypatch.setattr(limits, "SPACE_SHORT_BYTES", limits.SPACE_RESERVE_BYTES)
    disk = FaultyFiles()
    async with serving(disk) as (_, connection):
        await connection.call("put", {"topic": "gone"}, b'{"durability":"fsync"}')
        for _ in range(2):
            await write(connection, 8000, "gone")
        await connection.call("remove", {"topic": "gone"})
        survivor = disk.clone()
    for name in survivor.list("wal"):
        if name.startswith("spare"):  # or the start gives back as much as of it there is
            survivor.unlink(f"wal/{name}")
    survivor.set_free_bytes(40 * MIB)
    async with serving(survivor) as (_, connection):
        assert not await write(connection, 8000)
        await until_taken(connection, 8000)


async def test_a_spare_log_file_leaves_room_for_what_was_admitted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard, "SPACE_CHECK_S", 0.002)
    monkeypatch.setattr(shard, "MAKE_ROOM_S", 3600)
    disk = FaultyFiles()
    disk.set_free_bytes(limits.SPACE_SHORT_BYTES + limits.WAL_FILE_BYTES - 1)
    files = StalledLog(disk)
    async with serving(files) as (served, connection):
        await write(connection, 1000)
        disk.set_free_bytes(limits.SPACE_SHORT_BYTES + limits.WAL_FILE_BYTES + MIB)
        await looked(files)
        assert served.store is not None
        assert served.committer is not None
        await write(connection, 10)
        served.committer.rotated.set()  # as when the log goes on in another file
        await looked(files)
        assert not any("spare" in call for call in disk.trace)
        disk.set_free_bytes(limits.SPACE_SHORT_BYTES + 2 * limits.WAL_FILE_BYTES)
        await looked(files)
        served.committer.rotated.set()
        while not wal.spares(disk):
            await trio.sleep(0.001)


# --- checkpoints that fail, and long logs -------------------------------------------------------------------------


def test_a_checkpoint_that_failed_is_tried_again_after_a_pause() -> None:
    pauses = [shard.pause_before_checkpoint(failures) for failures in range(8)]
    assert pauses == [shard.CHECKPOINT_CHECK_S, 1.0, 2.0, 4.0, 8.0, 15.0, 15.0, 15.0]


async def test_failures_in_a_row_are_counted_until_one_succeeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CHECKPOINT_WAL_BYTES", 5000)
    failures: list[int] = []

    def pause(count: int) -> float:
        failures.append(count)
        return 0.001

    def fail(_: object) -> None:
        raise OSError("no file handle")

    monkeypatch.setattr(shard, "pause_before_checkpoint", pause)
    async with serving(FaultyFiles()) as (_, connection):
        with monkeypatch.context() as failing:
            failing.setattr(checkpoint.Checkpoint, "write", fail)
            await write(connection, 10)
            while failures[-1] != 3:
                await trio.sleep(0.001)
        while failures[-1]:
            await trio.sleep(0.001)
    first = failures.index(1)
    assert failures[first : first + 3] == [1, 2, 3]


@pytest.mark.parametrize("fails", [False, True])
async def test_a_start_with_a_long_log_stores_it_at_once(monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    disk = FaultyFiles()
    async with serving(disk) as (_, connection):
        await connection.call("put", {"topic": "t"}, b'{"durability":"fsync"}')
        await write(connection, 100)
        survivor = disk.clone()
    monkeypatch.setattr(limits, "CHECKPOINT_WAL_BYTES", 50_000)
    monkeypatch.setattr(limits, "UNSTORED_BYTES_MAX", 60_000)
    monkeypatch.setattr(shard, "pause_before_checkpoint", lambda failures: 0.001 if failures else 3600)
    files = TrapFiles(survivor)
    if fails:
        files.fail_next("write_at", "packs/", 28)
    async with serving(files) as (_, connection):
        while True:
            try:
                await connection.call("append", {"topic": "t"}, body(1))
                break
            except TopicsError as refused:
                if refused.code != errors.THROTTLED:
                    raise
                await trio.sleep(0.001)
        page = json.loads(bytes((await connection.call("diff", {"topic": "t"}, b"")).body) + b"}")
        assert page["head_seq"] == 101


# --- packs that pile up -------------------------------------------------------------------------------------------


def test_without_a_pack_to_be_merged_no_topic_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "PACKS_MAX", 2)
    driver = Driver(monitored=False).start()
    for number in range(6):
        driver.append(f"t{number}", [Draft(KB)], config={"durability": "fsync"})
        driver.commit()
        driver.checkpoint()
    looked_at: list[str] = []
    rewrites = checkpoint.Checkpoint._rewrites
    driver.append("t0", [Draft(KB)])
    driver.commit()

    def look(work: checkpoint.Checkpoint, chunks: list[Any]) -> bool:
        looked_at.append("once")
        return rewrites(work, chunks)

    monkeypatch.setattr(checkpoint.Checkpoint, "_rewrites", look)
    with monkeypatch.context() as large:
        large.setattr(checkpoint, "PACK_MERGE_BYTES", 100)  # each of them is larger
        driver.checkpoint()
    assert len(looked_at) == 1, "of the topic that has changed"
    driver.append("t0", [Draft(KB)])
    driver.commit()
    driver.checkpoint()
    assert len(looked_at) > 6
