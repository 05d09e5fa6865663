"""Checkpoints beside traffic: what changes between their steps is neither lost nor stored by halves."""

import errno
import json
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest
import trio

from topics import limits
from topics.core import diff
from topics.core.loss import Tombstone
from topics.core.ranges import SeqRanges
from topics.core.requests import Diff
from topics.core.topic import BURY_STEP, Topic
from topics.limits import Limits
from topics.shards import checkpoint, datafile, snapshot
from topics.shards.checkpoint import PACKS_MAX, Checkpoint
from topics.shards.install import STEP
from topics.shards.recovery import recover
from topics.shards.shard import Shard
from topics.shards.store import Store
from topics.testing.drafts import Draft
from topics.testing.driver import Driver
from topics.testing.faulty_files import FaultyFiles
from topics.testing.rpc_pair import rpc_pair


def finish(driver: Driver, work: Checkpoint) -> None:
    driver.commit()
    work.write()
    for _ in work.install():
        pass
    driver.store.forget(work)
    work.sweep()


def recovered(driver: Driver, seed: int, *, power_loss: bool, wal_file_bytes: int = 2048) -> Store:
    disk = driver.disk.crash(seed, power_loss=power_loss)
    return recover(disk, driver.clock, driver._bounds, wal_file_bytes=wal_file_bytes)


def tombstone(topic: Topic) -> Tombstone | None:
    return diff.plan(topic, Diff(from_seq=0)).tombstone


@pytest.mark.parametrize("reason", ["cap", "ttl"])
def test_a_file_that_empties_during_the_capture_keeps_its_tombstone(
    monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    """Its topic was captured before: were the file to go now, nothing would tell why its records are gone."""
    monkeypatch.setattr(limits, "PACK_TOPIC_BYTES", 200)
    rule = {"cap_records": 8} if reason == "cap" else {"ttl_ms": 50}
    for attempt in range(50):
        driver = Driver(monitored=False).start()
        driver.append("a", [Draft(b'"%b"' % (b"x" * 50))] * 8, config={"durability": "fsync", **rule})
        driver.append("b", [Draft(b"1")] * 3, config={"durability": "fsync"})
        driver.commit()
        driver.checkpoint()
        driver.put("a", {"idempotency_window_ms": 5 + attempt})
        driver.append("b", [Draft(b"1")])
        driver.commit()
        work = driver.store.begin_checkpoint()
        steps = work.capture()
        next(steps)
        if work.captures[0].topic.name == "a":  # the order is that of a set
            break
    else:
        pytest.fail("topic a was never captured first")
    if reason == "cap":
        driver.append("a", [Draft(b"2")] * 8)
        driver.commit()
    else:
        driver.clock.advance(100)
        driver.topic("a")
    for _ in steps:
        pass
    finish(driver, work)
    expected = tombstone(driver.topic("a"))
    assert expected is not None
    store = recovered(driver, 1, power_loss=False)
    topic = store.engine.state.find("a")
    store.engine.expire(topic)
    assert tombstone(topic) == expected


@pytest.mark.parametrize("seed", range(5))
def test_a_ceiling_outlives_the_log_file_it_came_in(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Captured between the reservation's enqueue and its sync, then trimmed by a checkpoint of other topics."""
    monkeypatch.setattr(limits, "CEILING_AHEAD", 8)
    driver = Driver(monitored=False, wal_file_bytes=700).start()
    driver.put("t", {})
    driver.put("other", {"durability": "fsync"})
    driver.commit()
    assert driver.append("t", [Draft(b"1")] * 5).given
    work = driver.store.begin_checkpoint()
    for _ in work.capture():
        pass
    finish(driver, work)
    for _ in range(12):
        driver.append("other", [Draft(b'"%b"' % (b"x" * 100))])
        driver.commit()
    driver.checkpoint()
    driver.append("t", [Draft(b"2")] * 4)
    driver.commit()
    acked = driver.append("t", [Draft(b"3")] * 2)
    assert acked.given
    topic = recovered(driver, seed, power_loss=True, wal_file_bytes=700).engine.state.find("t")
    assert topic.next_seq > acked.result.first_seq + 1, "an acked seq would be given again"


def test_the_snapshot_stays_small_over_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "REWRITE_MIN_BYTES", 10_000)
    driver = Driver(monitored=False, bounds=Limits(), wal_file_bytes=1 << 20).start()
    for number in range(20):
        driver.append(f"t{number}", [Draft(b"1")], config={"durability": "fsync", "cap_records": 5})
    driver.commit()
    sizes = []
    for _ in range(12):
        for _ in range(10):
            for number in range(20):
                driver.append(f"t{number}", [Draft(b"1")])
            driver.commit()
            driver.checkpoint()
        newest = snapshot.generations(driver.disk)[-1]
        sizes.append(driver.disk.open(snapshot.path_of(newest)).size())
        driver.restart()
    assert max(sizes) < 40_000


def test_installing_a_large_topic_goes_in_steps_and_leaves_it_whole_between_them() -> None:
    driver = Driver(monitored=False, bounds=Limits(segment_events=100_000), wal_file_bytes=1 << 24).start()
    driver.append("t", [Draft(b"1")], config={"durability": "fsync"})
    driver.commit()
    for _ in range(80):
        driver.append("t", [Draft(b'"%b"' % (b"x" * 200))] * 250)
        driver.commit()
    work = driver.store.begin_checkpoint()
    for _ in work.capture():
        pass
    driver.commit()
    work.write()
    steps, (capture,) = 0, work.captures
    blocks = len(capture.outputs)
    for _ in work.install():
        steps += 1
        topic = driver.topic("t")
        assert sum(chunk.live for chunk in topic.chunks) == topic.count == 20_001
        firsts = [chunk.first_seq for chunk in topic.chunks]
        assert firsts == sorted(firsts)
    assert blocks > 2 * STEP
    assert steps >= blocks // (STEP + 8)
    driver.store.forget(work)
    work.sweep()


def many_topics(number: int) -> Driver:
    driver = Driver(monitored=False, wal_file_bytes=1 << 22).start()
    for index in range(number):
        driver.append(f"t{index}", [Draft(b"1")], config={"durability": "fsync"})
    driver.commit()
    return driver


@pytest.mark.parametrize("packs_max", [PACKS_MAX, 0], ids=["few packs", "many packs"])
def test_a_checkpoint_of_many_topics_looks_at_one_a_step_and_lets_go_of_them_so(
    monkeypatch: pytest.MonkeyPatch, packs_max: int
) -> None:
    driver = many_topics(50)
    for index in range(2):
        driver.checkpoint()
        driver.append(f"t{index}", [Draft(b"2")])
        driver.commit()
    monkeypatch.setattr(checkpoint, "PACKS_MAX", packs_max)
    looks = 0

    def look(topic: Topic) -> int:
        nonlocal looks
        looks += 1
        return topic.id

    monkeypatch.setattr(Topic, "__hash__", look)
    work = driver.store.begin_checkpoint()
    steps = captured = 0
    for _ in work.capture():
        assert len(work.captures) <= captured + 1
        assert looks <= 2
        steps, captured, looks = steps + 1, len(work.captures), 0
    assert (steps, captured) == ((1, 1) if packs_max else (52, 2))
    driver.commit()
    work.write()
    for _ in work.install():
        assert len(work.captures) >= captured - 1
        captured = len(work.captures)
    assert not work.captures
    driver.store.forget(work)
    work.sweep()
    assert [driver.topic(f"t{index}").count for index in range(50)] == [2, 2, *[1] * 48]


def test_dead_chunks_that_are_stored_anew_give_their_files_back_in_small_steps() -> None:
    driver = Driver(monitored=False, bounds=Limits(segment_events=100_000), wal_file_bytes=1 << 24).start()
    driver.append("t", [Draft(b"1")], config={"durability": "fsync"})
    driver.commit()
    topic = driver.topic("t")
    topic.spent = []  # as of a source of routers
    for _ in range(2 * BURY_STEP):
        driver.append("t", [Draft(b'"%b"' % (b"x" * 250))] * 256)
        driver.commit()
    driver.store.engine.delete_records(topic, topic.head_seq, None, lambda _: None, lambda _: None)
    driver.commit()
    assert len(topic.spent) >= 2 * BURY_STEP
    driver.store.checkpoint([])
    assert len(topic.buried) > BURY_STEP
    for _ in driver.store.engine.graves.bury():
        pass
    assert not topic.buried
    held = Counter(chunk.file.id for chunk in topic.chunks + topic.spent if chunk.file is not None)
    assert held == {info.id: info.chunks for info in driver.store.data_files.values()}
    assert all(chunk.file is not None for chunk in topic.spent)


def stored_topic(records: int) -> tuple[Driver, Topic]:
    """A topic in segments, its tail too."""
    driver = Driver(monitored=False, bounds=Limits(segment_events=512), wal_file_bytes=1 << 24).start()
    driver.append("t", [Draft(b"1")] * 256, config={"durability": "fsync"})
    for _ in range(records // 256 - 1):
        driver.append("t", [Draft(b"1")] * 256)
    driver.commit()
    driver.checkpoint()
    return driver, driver.topic("t")


def delete(driver: Driver, seqs: Iterable[int]) -> None:
    topic = driver.topic("t")
    driver.store.engine.delete_records(topic, 0, SeqRanges.from_ascending(seqs), ignore, ignore)
    driver.store.commit_all()


def ignore(_: object) -> None:
    """An answer that nobody looks at."""


def live_seqs(topic: Topic) -> list[int]:
    return [c.first_seq + i for c in topic.chunks for i in range(len(c)) if not c.dead >> i & 1]


def flags_in_files(store: Store, topic: Topic) -> list[int]:
    """The seqs that are deleted by the flags in the files alone."""
    found = []
    for chunk in topic.chunks:
        assert chunk.file is not None
        mask = datafile.read_flags(store.files.open(chunk.file.path), chunk)
        found += [chunk.first_seq + index for index in range(len(chunk)) if mask >> index & 1]
    return found


@pytest.mark.parametrize("power_loss", [False, True])
def test_many_delete_flags_are_seen_to_in_steps_and_are_those_of_one_instant(
    monkeypatch: pytest.MonkeyPatch, power_loss: bool
) -> None:
    monkeypatch.setattr(checkpoint, "FLIP_STEP", 4)
    driver, topic = stored_topic(256 * 12)
    first = range(1, topic.head_seq + 1, 256)
    delete(driver, first)
    work = driver.store.begin_checkpoint()
    steps = work.capture()
    next(steps)
    assert len(work.captures[0].flips) == len(first) == 12
    late = [topic.chunks[0].first_seq + 1, topic.chunks[-1].first_seq + 1]  # in chunks whose flags are on their way
    delete(driver, late)
    assert len(list(steps)) >= 2
    driver.commit()
    work.write()
    assert flags_in_files(driver.store, topic) == list(first), "flags never run ahead of the snapshot"
    assert len(list(work.install())) >= 3
    driver.store.forget(work)
    work.sweep()
    assert [chunk.first_seq + 1 for chunk in topic.flips or ()] == late, "what came late is owed"
    store = recovered(driver, 1, power_loss=power_loss, wal_file_bytes=1 << 24)
    again = store.engine.state.find("t")
    assert live_seqs(again) == live_seqs(topic)
    store.checkpoint()
    assert flags_in_files(store, again) == sorted([*first, *late])


def give_up(work: Checkpoint) -> None:
    for _ in work.abandon():
        pass
    work.remove_litter()


def test_a_topic_that_changes_or_goes_while_a_checkpoint_is_given_up_is_as_the_log_has_it() -> None:
    driver, topic = stored_topic(256 * 8)
    others = [f"o{n}" for n in range(6)]
    for name in others:
        driver.append(name, [Draft(b"1")])
        driver.commit()
    delete(driver, range(5, topic.head_seq + 1, 256))
    work = driver.store.begin_checkpoint()
    for _ in work.capture():
        pass
    steps = 0
    for _ in work.abandon():
        if steps < len(others):  # whatever may come between two steps
            delete(driver, [20 + steps, 300 + steps])
            if steps % 2:
                driver.remove(others[steps])
            else:
                driver.append(others[steps], [Draft(b"2")])
            driver.commit()
        steps += 1
    assert steps > len(others)
    assert not work.captures, "they go one by one"
    work.remove_litter()
    driver.checkpoint()
    assert {found.name for found in driver.store.engine.state.by_id.values() if not found.hidden} == {"t", *others[::2]}
    assert not driver.store.engine.dirty
    assert not topic.flips
    gone = {*range(5, topic.head_seq + 1, 256), *range(20, 20 + len(others)), *range(300, 300 + len(others))}
    assert flags_in_files(driver.store, topic) == sorted(gone)


def test_an_abandoned_checkpoint_owes_its_flags_once_more() -> None:
    driver, topic = stored_topic(256 * 8)
    gone = range(5, topic.head_seq + 1, 256)
    delete(driver, gone)
    work = driver.store.begin_checkpoint()
    steps = work.capture()
    next(steps)
    delete(driver, [7])
    for _ in steps:
        pass
    give_up(work)
    driver.store.forget(work)
    driver.checkpoint()
    assert flags_in_files(driver.store, topic) == sorted([*gone, 7])
    assert not topic.flips


def test_a_capture_that_fails_half_way_through_a_topic_leaves_its_flags_owed(monkeypatch: pytest.MonkeyPatch) -> None:
    """With many packs, the chunks that are only there have to be read again, and there may be no handle for that."""
    driver, topic = stored_topic(512)
    for _ in range(checkpoint.PACKS_MAX + 1):
        driver.append("t", [Draft(b"2")])
        driver.commit()
        driver.checkpoint()
    for chunk in topic.chunks:
        chunk.block = None  # as the tail cache leaves it
    delete(driver, [5, 7, 9])
    store = driver.store

    def fail(_: object) -> None:
        raise OSError(errno.EMFILE, "no file handle")

    with monkeypatch.context() as patch:
        patch.setattr(store.handles, "get", fail)
        work = store.begin_checkpoint()
        with pytest.raises(OSError, match="no file handle"):
            for _ in work.capture():
                pass
        give_up(work)
    delete(driver, [11])
    driver.checkpoint()
    driver.append("t", [Draft(b"3")])
    driver.commit()
    driver.checkpoint()
    found = recovered(driver, 1, power_loss=True, wal_file_bytes=1 << 24).engine.state.find("t")
    assert (
        live_seqs(found)
        == live_seqs(topic)
        == [seq for seq in range(1, topic.head_seq + 1) if seq not in (5, 7, 9, 11)]
    )


def test_many_dead_chunks_inside_the_log_give_their_files_back_later() -> None:
    driver, topic = stored_topic(256 * (BURY_STEP + 20))
    before = len(driver.store.data_files)
    delete(driver, range(257, topic.head_seq - 256 + 1))
    assert len(topic.chunks) == BURY_STEP + 20, "they are inside"
    driver.checkpoint()
    assert len(topic.chunks) == 2
    assert topic.buried, "so many are not given back in one step"
    for _ in driver.store.engine.graves.bury():
        pass
    assert not topic.buried
    driver.append("t", [Draft(b"1")])
    driver.commit()
    driver.checkpoint()
    assert len(driver.store.data_files) < before
    found = recovered(driver, 1, power_loss=True, wal_file_bytes=1 << 24).engine.state.find("t")
    assert live_seqs(found) == live_seqs(topic)


class NoHandles:
    """Files that cannot be opened any more, under the directories of data files."""

    def __init__(self, inner: FaultyFiles) -> None:
        self.inner = inner
        self.exhausted = False

    def open(self, path: str) -> Any:
        if self.exhausted and path.startswith(("packs/", "segments/")):
            raise OSError(errno.EMFILE, "too many open files")
        return self.inner.open(path)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


async def test_a_capture_that_fails_is_abandoned_and_nothing_acked_is_lost() -> None:
    disk = FaultyFiles()
    files = NoHandles(disk)
    body = json.dumps({"records": [{"data": i, "tag": f"x{i % 2}"} for i in range(10)], "config": {"durable": True}})
    shard = Shard(files)
    async with trio.open_nursery() as nursery, rpc_pair(shard.handlers) as connection:
        nursery.start_soon(shard.run, trio.Event())
        await shard.ready.wait()
        assert shard.store is not None
        for _ in range(2):
            for name in "abcd":
                await connection.call("append", {"topic": name}, body.encode())
            await connection.call("checkpoint", {})
            shard.store.handles._open.clear()
        await connection.call("delete", {"topic": "a"}, b'{"match":"x1"}')  # its flags need a file
        for name in "abcd":
            await connection.call("append", {"topic": name}, body.encode())
        shard.store.handles._open.clear()
        files.exhausted = True
        await connection.call("checkpoint", {})
        files.exhausted = False
        assert {topic.name for topic in shard.store.engine.dirty} == set("abcd")
        await connection.call("checkpoint", {})
        assert not shard.store.engine.dirty
        nursery.cancel_scope.cancel()
    shard.abandon()
    store = recover(disk.crash(0, power_loss=False), shard._clock)
    counts = {name: topic.count for name, topic in store.engine.state.topics.items()}
    assert counts == {"a": 20, "b": 30, "c": 30, "d": 30}


@pytest.mark.parametrize("power_loss", [True, False])
def test_a_log_file_stays_while_its_last_frame_is_in_no_checkpoint(power_loss: bool) -> None:
    """It came when the capture was over, and the log went on in another file before the sweep."""
    driver = Driver(monitored=False, bounds=Limits(), wal_file_bytes=limits.WAL_FILE_BYTES).start()
    driver.append("t", [Draft(b"1")], config={"durability": "fsync"})
    driver.commit()
    store = driver.store
    work = store.begin_checkpoint()
    for _ in work.capture():
        pass
    driver.append("t", [Draft(b"2")])
    driver.commit()
    first, last = store.writer.number, store.writer.synced_lsn
    assert last == work.commit.cut_lsn + 1
    store.writer.leave_file = True
    driver.append("other", [Draft(b'"%b"' % (b"x" * (limits.MIB - 2)))])  # more than was set aside for the file
    driver.commit()
    assert store.writer.sealed == [(first, last)]
    finish(driver, work)
    topic = recovered(driver, 1, power_loss=power_loss).engine.state.find("t")
    assert live_seqs(topic) == [1, 2]
    assert tombstone(topic) is None
