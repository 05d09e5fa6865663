"""The shard in this process, on a faulty disk: what it does when storage fails under it."""

import errno
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from topics import errors
from topics.core.topic import Topic
from topics.errors import TopicsError
from topics.limits import Limits
from topics.rpc.connection import Connection
from topics.shards import wal
from topics.shards.checkpoint import Checkpoint, Unneeded
from topics.shards.shard import Shard, ShardPoisoned
from topics.testing.faulty_files import FaultyFiles
from topics.testing.rpc_pair import rpc_pair, until
from topics.testing.trap_files import TrapFiles

ONE = b'{"records":[{"data":1}]}'


@asynccontextmanager
async def serving(
    files: Any, bounds: Limits | None = None
) -> AsyncIterator[tuple[Shard, Connection, list[BaseException]]]:
    """A shard that serves a memory connection; what ended it is in the list."""
    shard = Shard(files, bounds)
    stop = trio.Event()
    ended: list[BaseException] = []

    async def run() -> None:
        try:
            await shard.run(stop)
        except* ShardPoisoned as group:
            ended.extend(group.exceptions)

    async with trio.open_nursery() as nursery, rpc_pair(shard.handlers) as connection:
        nursery.start_soon(run)
        await shard.ready.wait()
        yield shard, connection, ended
        stop.set()


async def refusal(connection: Connection, method: str, body: bytes) -> TopicsError:
    with pytest.raises(TopicsError) as caught:
        await connection.call(method, {"topic": "t"}, body)
    return caught.value


@pytest.mark.parametrize("what", ["write_at", "sync"])
async def test_a_failed_log_refuses_everything_and_ends_the_shard(what: str) -> None:
    disk = FaultyFiles()
    files = TrapFiles(disk)
    async with serving(files) as (_, connection, ended):
        await connection.call("put", {"topic": "t"}, b'{"durable":true}')
        await connection.call("append", {"topic": "t"}, ONE)
        files.fail_next(what, "wal/new", errno.EIO)
        assert (await refusal(connection, "append", ONE)).code == errors.NOT_READY
        assert (await refusal(connection, "append", ONE)).code == errors.NOT_READY
        health = (await connection.call("health", {})).head
        assert health["ready"] is False
        assert "was told to fail" in health["poisoned"]
        page = json.loads(bytes((await connection.call("diff", {"topic": "t"}, b"")).body) + b"}")
        assert len(page["records"]) == 1, "reads go on until it ends"
        with trio.fail_after(60):
            while not ended:
                await trio.sleep(0.01)
    assert isinstance(ended[0], ShardPoisoned)
    after = disk.crash(seed=1)
    async with serving(after) as (_, connection, _):
        page = json.loads(bytes((await connection.call("diff", {"topic": "t"}, b"")).body) + b"}")
        assert [record["$seq"] for record in page["records"]][:1] == [1]


async def test_a_failed_checkpoint_is_put_off(caplog: pytest.LogCaptureFixture) -> None:
    files = TrapFiles(FaultyFiles())
    async with serving(files) as (shard, connection, ended):
        await connection.call("append", {"topic": "t"}, ONE)
        files.fail_next("sync", "packs/", errno.ENOSPC)
        await connection.call("checkpoint", {})
        assert "checkpoint put off" in caplog.text
        assert not files.list("packs")
        await connection.call("append", {"topic": "t"}, ONE)
        await connection.call("checkpoint", {})
        assert files.list("packs")
        assert shard.store is not None
        assert not shard.store.engine.dirty
        assert not ended


async def test_calls_before_recovery_say_how_far_it_is() -> None:
    shard = Shard(FaultyFiles())
    async with rpc_pair(shard.handlers) as connection:
        error = await refusal(connection, "append", ONE)
        assert (error.code, error.detail["replay_progress"]) == (errors.NOT_READY, 0.0)
        assert (await connection.call("health", {})).head["ready"] is False
        assert (await connection.call("metrics", {})).head["ready"] is False


async def test_a_shard_that_stops_takes_no_more_writes() -> None:
    async with serving(FaultyFiles()) as (shard, connection, _):
        await connection.call("append", {"topic": "t"}, ONE)
        assert shard.service is not None
        shard.service.draining = True
        assert (await refusal(connection, "append", ONE)).code == errors.SHUTTING_DOWN
        assert (await connection.call("diff", {"topic": "t"}, b"")).body


async def test_one_checkpoint_stores_all_topics_that_are_asked_for_at_once() -> None:
    """Although each of them has something new by the time it is made."""
    names = [f"t{n}" for n in range(20)]
    async with serving(FaultyFiles()) as (shard, connection, _):
        for name in names:
            await connection.call("append", {"topic": name}, ONE)
        store = shard.store
        assert store is not None
        begun = []
        begin = store.begin_checkpoint

        def busy(unneeded: Unneeded | None = None) -> Checkpoint:
            begun.append(work := begin(unneeded))
            capture = work.capture

            def captured() -> Iterator[None]:
                yield from capture()
                for topic in topics:
                    topic.dirty = True
                    store.engine.dirty.add(topic)

            work.capture = captured  # type: ignore[method-assign]
            return work

        store.begin_checkpoint = busy  # type: ignore[method-assign]
        topics = [store.engine.state.topics[name] for name in names]
        answers = []

        async def ask(topic: Topic) -> None:
            answers.append(await shard.stored(topic))

        async with trio.open_nursery() as nursery:
            for topic in topics:
                nursery.start_soon(ask, topic)
        assert (answers, len(begun)) == ([True] * 20, 1)
        assert await shard.stored(topics[0])  # whoever asks later has one made
        assert len(begun) == 2


async def test_a_failed_log_does_not_wait_for_a_spare_file(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = []

    def prepare(_files: Any, _size: int, *, go_on: Callable[[], bool]) -> None:
        until = time.monotonic() + 30
        while go_on() and time.monotonic() < until:
            time.sleep(0.001)
        prepared.append(go_on())

    monkeypatch.setattr(wal, "prepare_spare", prepare)
    disk = FaultyFiles()
    files = TrapFiles(disk)
    async with serving(files) as (shard, connection, ended):
        await connection.call("put", {"topic": "t"}, b'{"durable":true}')
        files.fail_next("sync", "wal/new", errno.EIO)
        await refusal(connection, "append", ONE)
        await until(lambda: bool(ended))
    shard.abandon()
    assert prepared == [False]
