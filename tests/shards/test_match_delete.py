"""Deletes by tag: one event however many they hit, and never in the way of others."""

import json
import random
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from topics import errors, limits
from topics.core.deletion import Deletion
from topics.core.loss import CORRUPT
from topics.core.match import TagMatch
from topics.core.ranges import SeqRanges
from topics.core.requests import decode_append
from topics.core.tags import Pattern
from topics.core.topic import Topic
from topics.errors import TopicsError
from topics.limits import Limits
from topics.rpc.connection import Connection
from topics.shards import datafile, match
from topics.shards.files import File, Files
from topics.shards.match import MatchPlan
from topics.shards.recovery import recover
from topics.shards.shard import Shard
from topics.shards.store import Store
from topics.testing.fake_clock import FakeClock
from topics.testing.faulty_files import FaultyFiles
from topics.testing.rpc_pair import rpc_pair, until
from topics.testing.trap_files import TrapFiles

SMALL = Limits(segment_events=16)
ALL = Pattern(TagMatch("Glob", "a"))


def ignore(_: Any) -> None:
    """An answer that nobody looks at."""


def refuse(error: Exception) -> None:
    raise error


def tag_of(seq: int) -> str:
    return "ab"[seq % 2]


def write(store: Store, count: int, config: dict[str, Any] | None = None) -> Topic:
    """Records tagged "b" (odd seqs) and "a" (even ones)."""
    known = store.engine.state.topics.get("t")
    first = known.next_seq if known is not None else 1
    records = [{"data": seq, "tag": tag_of(seq)} for seq in range(first, first + count)]
    body = json.dumps({"records": records, "config": config}).encode()
    store.engine.append("t", decode_append(body, "t", Limits()), ignore, refuse)
    store.commit_all()
    return store.engine.state.topics["t"]


def opened(files: Any = None) -> Store:
    return recover(files or FaultyFiles(), FakeClock(), SMALL)


def live(topic: Topic) -> list[int]:
    return [
        chunk.first_seq + index for chunk in topic.chunks for index in range(len(chunk)) if not chunk.dead >> index & 1
    ]


def check_counts(store: Store, topic: Topic) -> None:
    assert topic.count == len(live(topic)) == sum(chunk.live for chunk in topic.chunks)
    assert topic.bytes == sum(chunk.live_bytes for chunk in topic.chunks)
    for chunk in topic.chunks:
        alive = [size for index, size in enumerate(chunk.sizes) if not chunk.dead >> index & 1]
        assert (len(alive), sum(alive)) == (chunk.live, chunk.live_bytes)
    for info in store.data_files.values():
        assert info.live == sum(chunk.live for chunk in topic.chunks if chunk.file is info)


# --- counting ahead -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(40))
def test_what_was_counted_ahead_is_what_is_deleted_whatever_happened_meanwhile(seed: int) -> None:
    rng = random.Random(seed)
    disk = FaultyFiles()
    store = opened(disk)
    durability = rng.choice(["fsync", "disk"])
    topic = write(store, 5, {"durability": durability, "cap_records": rng.choice([0, 150])})
    for _ in range(20):
        write(store, rng.randint(1, 12))
        if rng.random() < 0.3:
            store.checkpoint()
    seqs = sorted(rng.sample(range(1, topic.head_seq + 1), rng.randint(1, topic.head_seq)))
    deletion = Deletion(SeqRanges.from_ascending(seqs))

    def meddle() -> None:
        action = rng.random()
        if action < 0.1:
            store.checkpoint()
        elif action < 0.2:
            other = SeqRanges.from_ascending(sorted(rng.sample(range(1, topic.head_seq + 1), 5)))
            store.engine.delete_records(topic, 0, other, ignore, refuse)
            store.commit_all()
        elif action < 0.3:
            write(store, rng.randint(1, 9))

    for _ in deletion.prepare(topic):
        meddle()
    meddle()
    before = live(topic)
    answered: list[int] = []
    store.engine.delete_records(topic, 0, deletion.ranges, answered.append, refuse, deletion)
    if durability == "fsync":
        assert not answered
        assert live(topic) == before, "nobody sees it before it is durable"
    store.commit_all()
    gone = set(seqs) & set(before)
    assert answered == [len(gone)]
    assert live(topic) == [seq for seq in before if seq not in gone]
    check_counts(store, topic)
    replayed = opened(disk.crash(0)).engine.state.topics["t"]
    assert live(replayed) == live(topic), "the logged event says the same as the counted one"


def test_chunks_replaced_between_log_and_sync_lose_the_same_records() -> None:
    store = opened()
    topic = write(store, 40, {"durability": "fsync"})
    deletion = Deletion(SeqRanges.from_ascending(range(2, 41, 2)))
    work = store.begin_checkpoint()
    for _ in work.capture():
        pass
    store.commit_all()
    work.write()
    for _ in deletion.prepare(topic):
        pass
    store.engine.delete_records(topic, 0, deletion.ranges, ignore, refuse, deletion)
    for _ in work.install():
        pass
    store.forget(work)
    store.commit_all()
    assert live(topic) == list(range(1, 41, 2))
    check_counts(store, topic)


def test_a_topic_that_runs_empty_between_counting_and_sync_is_left_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its chunks have left, but are not all buried yet."""
    monkeypatch.setattr("topics.core.topic.BURY_STEP", 4)
    store = opened()
    for _ in range(8):
        topic = write(store, 256, {"durability": "fsync"})
    deletion = Deletion(SeqRanges.from_ascending([5, topic.head_seq - 10]))
    for _ in deletion.prepare(topic):
        pass
    answered: list[int] = []
    store.engine.delete_records(topic, 0, deletion.ranges, answered.append, refuse, deletion)
    topic.delete(topic.head_seq + 1, None)
    assert topic.buried
    assert not topic.chunks
    store.commit_all()
    assert answered == [0]
    assert (topic.count, topic.bytes) == (0, 0)


def test_counting_handles_one_chunk_a_step_and_changes_nothing() -> None:
    store = opened()
    for _ in range(30):
        write(store, 256)
    topic = store.engine.state.topics["t"]
    before = [(chunk.dead, chunk.live) for chunk in topic.chunks]
    deletion = Deletion(SeqRanges.from_ascending(range(1, topic.head_seq + 1, 2)))
    steps = 0
    for _ in deletion.prepare(topic):
        steps += 1
        assert len(deletion.strikes.items) == steps
    assert steps == len(topic.chunks) >= 30
    assert max(map(len, topic.chunks)) <= limits.BLOCK_RECORDS_MAX
    assert [(chunk.dead, chunk.live) for chunk in topic.chunks] == before


def test_two_far_apart_records_touch_two_chunks() -> None:
    store = opened()
    for _ in range(30):
        write(store, 256)
    topic = store.engine.state.topics["t"]
    deletion = Deletion(SeqRanges.from_ascending([1, topic.head_seq]))
    assert len(list(deletion.prepare(topic))) == 2


# --- resolving ----------------------------------------------------------------------------------------------------


class CountingFiles(TrapFiles):
    """Knows how many index files are open."""

    def __init__(self, inner: Files) -> None:
        super().__init__(inner)
        self.open_now = self.open_most = 0

    def open(self, path: str) -> Any:
        file = self.inner.open(path)
        return CountedFile(self, file) if path.endswith(".idx") else file


class CountedFile:
    def __init__(self, files: CountingFiles, inner: File) -> None:
        self._files, self._inner = files, inner
        files.open_now += 1
        files.open_most = max(files.open_most, files.open_now)

    def close(self) -> None:
        self._files.open_now -= 1
        self._inner.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def test_a_match_over_many_segments_opens_one_index_at_a_time() -> None:
    files = CountingFiles(FaultyFiles())
    store = opened(files)
    topic = write(store, 640)
    store.checkpoint()
    assert len({chunk.file for chunk in topic.chunks}) == 40
    files.open_most = 0
    plan = store.plan_match(topic, ALL, None)
    assert files.open_most == 0, "nothing is opened in the loop"
    assert plan.resolve().count == 320
    assert (files.open_most, files.open_now) == (1, 0)


def test_a_segment_that_was_retired_meanwhile_has_nothing_to_delete() -> None:
    store = opened()
    topic = write(store, 64)
    store.checkpoint()
    plan = store.plan_match(topic, ALL, None)
    store.engine.delete_records(topic, 17, None, ignore, refuse)
    store.commit_all()
    store.checkpoint()
    store.checkpoint()
    assert len(store.data_files) == 3
    assert list(plan.resolve()) == [(seq, seq) for seq in range(18, 65, 2)]


def test_packs_that_became_a_segment_meanwhile_are_not_missed() -> None:
    disk = FaultyFiles()
    store = opened(disk)
    topic = write(store, 6)
    store.checkpoint()
    write(store, 6)
    store.checkpoint()
    packs = [info for info in store.data_files.values() if info.kind == datafile.PACK]
    plan = store.plan_match(topic, ALL, None)
    write(store, 20)
    store.checkpoint()
    store.checkpoint()
    assert not [info for info in packs if disk.exists(info.path)], "the packs are gone"
    assert list(plan.resolve()) == [(seq, seq) for seq in range(2, 13, 2)]


def test_a_segment_without_a_usable_index_is_searched_block_by_block() -> None:
    disk = FaultyFiles()
    store = opened(disk)
    topic = write(store, 32)
    store.checkpoint()
    info = topic.chunks[0].file
    assert info is not None
    index = disk.open(datafile.index_path(info.path))
    index.write_at(0, [b"not an index"])
    assert store.plan_match(topic, ALL, None).resolve().count == 16


# --- the call -----------------------------------------------------------------------------------------------------


@asynccontextmanager
async def serving(files: Any = None) -> AsyncIterator[tuple[Shard, Connection]]:
    shard = Shard(files or FaultyFiles())
    stop = trio.Event()
    async with trio.open_nursery() as nursery, rpc_pair(shard.handlers) as connection:
        nursery.start_soon(shard.run, stop)
        await shard.ready.wait()
        yield shard, connection
        stop.set()


async def ask(connection: Connection, method: str, body: bytes = b"") -> dict[str, Any]:
    answer = await connection.call(method, {"topic": "t", "return_seqs": False}, body)
    fields: dict[str, Any] = json.loads(bytes(answer.body) + b"}")
    return fields


async def fill(connection: Connection, count: int) -> None:
    for start in range(1, count + 1, 5000):
        records = [{"data": seq, "tag": tag_of(seq)} for seq in range(start, min(start + 5000, count + 1))]
        await ask(connection, "append", json.dumps({"records": records}).encode())
    await connection.call("checkpoint", {})


async def test_readers_see_all_of_a_large_delete_or_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "YIELD_AFTER_NS", 0)  # others get a turn after every step
    seen: list[int] = []
    answer: dict[str, Any] = {}

    async def delete() -> None:
        answer.update(await ask(connection, "delete", b'{"match":"a"}'))

    async with serving() as (shard, connection):
        await fill(connection, 20_000)
        assert shard.store is not None
        frames = shard.store.engine.log.counters.frames
        async with trio.open_nursery() as nursery:
            nursery.start_soon(delete)
            while not answer:
                seen.append((await ask(connection, "state"))["count"])
        assert answer["deleted"] == 10_000
        assert shard.store.engine.log.counters.frames - frames == 1
        assert set(seen) <= {20_000, 10_000}
        assert seen.count(20_000) > 3, "other calls are answered while it is under way"


async def test_a_caller_that_goes_away_stops_all_of_a_delete_or_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "YIELD_AFTER_NS", 0)
    prepare = Deletion.prepare
    steps: list[None] = []

    def noted(self: Deletion, topic: Topic) -> Any:
        for step in prepare(self, topic):
            steps.append(step)
            yield

    monkeypatch.setattr(Deletion, "prepare", noted)
    async with serving() as (shard, connection):
        await fill(connection, 20_000)
        assert shard.store is not None
        frames = shard.store.engine.log.counters.frames
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, connection, "delete", b'{"match":"a"}')
            await until(lambda: len(steps) > 3)
            nursery.cancel_scope.cancel()
        assert (await ask(connection, "state"))["count"] == 20_000
        for _ in range(200):
            await trio.lowlevel.checkpoint()
        assert shard.store.engine.log.counters.frames == frames
        assert (await ask(connection, "delete", b'{"match":"a"}'))["deleted"] == 10_000


async def test_a_topic_that_is_removed_meanwhile_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    resolve, removed = MatchPlan.resolve, threading.Event()
    refusals: list[TopicsError] = []

    def late(self: MatchPlan) -> SeqRanges:
        assert removed.wait(10)
        return resolve(self)

    async def delete() -> None:
        try:
            await ask(connection, "delete", b'{"match":"a"}')
        except TopicsError as error:
            refusals.append(error)

    monkeypatch.setattr(MatchPlan, "resolve", late)
    async with serving() as (_, connection):
        await fill(connection, 2_000)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(delete)
            await trio.lowlevel.checkpoint()
            await connection.call("remove", {"topic": "t"}, b"")
            removed.set()
        assert [error.code for error in refusals] == [errors.TOPIC_NOT_FOUND]


async def test_a_damaged_block_is_told_and_the_rest_is_deleted() -> None:
    disk = FaultyFiles()
    async with serving(disk) as (shard, connection):
        await fill(connection, 30)
        await fill(connection, 30)
        assert shard.store is not None
        topic = shard.store.engine.state.topics["t"]
        bad = topic.chunks[0]
        assert bad.file is not None
        damage(disk, bad.file.path, bad.offset + bad.length // 2)
        assert (await ask(connection, "delete", b'{"match":"a"}'))["deleted"] == 15
        page = await ask(connection, "diff", b"{}")
        assert (page["tombstone"]["gap_from"], page["tombstone"]["gap_to"]) == (1, 30)
        assert page["tombstone"]["reason"] == CORRUPT
        assert [record["$seq"] for record in page["records"]] == list(range(31, 61, 2))
        assert (await ask(connection, "delete", b'{"match":"a"}'))["deleted"] == 0


def damage(disk: FaultyFiles, path: str, offset: int) -> None:
    file = disk.open(path)
    file.write_at(offset, [bytes([file.read_at(offset, 1)[0] ^ 0x40])])
    file.close()


def test_masks_are_those_of_single_lookups() -> None:
    rng = random.Random(5)
    for _ in range(200):
        ranges = SeqRanges.from_ascending(sorted(rng.sample(range(1, 90), rng.randint(0, 60))))
        at = 0
        for first in range(1, 90, 10):
            mask, at = ranges.bits(first, 10, at)
            assert mask == sum(1 << seq - first for seq in range(first, first + 10) if seq in ranges)
            assert mask == ranges.bits(first, 10)[0]


@given(st.lists(st.lists(st.integers(1, 40), min_size=1).map(sorted), max_size=5))
def test_seqs_from_many_places_are_merged_whether_or_not_one_follows_another(parts: list[list[int]]) -> None:
    wanted = sorted({seq for part in parts for seq in part})
    assert SeqRanges.from_ascending(match._merged(parts)) == SeqRanges.from_ascending(wanted)
