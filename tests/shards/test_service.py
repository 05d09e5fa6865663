"""What a shard answers over RPC: bad heads, long-polls with a node, large bodies."""

import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from topics import errors, limits
from topics.core.requests import Append, decode_append
from topics.errors import TopicsError
from topics.rpc.connection import Connection
from topics.shards import service as service_module
from topics.shards.bodies import Bodies
from topics.shards.logqueue import LogQueue
from topics.shards.metrics import Totals
from topics.shards.service import Service
from topics.shards.shard import Shard
from topics.testing.faulty_files import FaultyFiles
from topics.testing.rpc_pair import rpc_pair, until

ONE = b'{"records":[{"data":1}]}'
LARGE = b'{"records":[{"data":"' + b"x" * limits.THREAD_BODY_BYTES + b'"}]}'


@asynccontextmanager
async def serving(files: Any = None) -> AsyncIterator[tuple[Service, Connection]]:
    shard = Shard(files or FaultyFiles())
    stop = trio.Event()
    async with trio.open_nursery() as nursery, rpc_pair(shard.handlers) as connection:
        nursery.start_soon(shard.run, stop)
        await shard.ready.wait()
        assert shard.service is not None
        yield shard.service, connection
        stop.set()


async def ask(connection: Connection, method: str, body: bytes = b"", **head: Any) -> dict[str, Any]:
    answer = await connection.call(method, {"topic": "t", **head}, body)
    fields: dict[str, Any] = json.loads(bytes(answer.body) + b"}")
    return fields


# --- a full log queue -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [ONE, LARGE])
async def test_a_write_may_wait_for_room_in_the_log_queue(body: bytes, monkeypatch: Any) -> None:
    looks: list[bool] = []
    really: Any = LogQueue.__dict__["crowded"]

    def look(log: LogQueue) -> bool:
        looks.append(really.__get__(log))
        return looks[-1]

    monkeypatch.setattr(LogQueue, "crowded", property(look))
    async with serving() as (service, connection):
        log = service._engine.log
        log.bytes = limits.WAL_QUEUE_BYTES_MAX
        with pytest.raises(TopicsError) as caught:
            await ask(connection, "append", body)
        assert (caught.value.code, caught.value.detail["limit"]) == (errors.THROTTLED, "wal_queue")
        patient = body[:-1] + b',"disable_backpressure":true}'
        answers: list[dict[str, Any]] = []
        async with trio.open_nursery() as nursery:

            async def write() -> None:
                answers.append(await ask(connection, "append", patient))

            nursery.start_soon(write)
            await until(lambda: len(looks) > 2)
            assert all(looks)
            assert not answers
            log.bytes = 0
        assert answers[0]["head_seq"] == 1
        assert service.bodies.bytes == 0


async def test_a_write_that_waits_for_room_hears_of_a_stop() -> None:
    async with serving() as (service, connection):
        service._engine.log.bytes = limits.WAL_QUEUE_BYTES_MAX
        async with trio.open_nursery() as nursery:

            async def write() -> None:
                with pytest.raises(TopicsError) as caught:
                    await ask(connection, "append", ONE[:-1] + b',"disable_backpressure":true}')
                assert caught.value.code == errors.SHUTTING_DOWN

            nursery.start_soon(write)
            await until(lambda: service.bodies.bytes > 0)
            service.draining = True
        service._engine.log.bytes = 0


# --- heads --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "head"),
    [
        *[(method, {}) for method in ("put", "state", "remove", "append", "diff", "delete")],
        *[(method, {"topic": 5}) for method in ("put", "state", "remove", "append", "diff", "delete")],
        ("append", {"topic": "t", "key": 5}),
        ("append", {"topic": "t", "return_seqs": "no"}),
        ("diff", {"topic": "t", "wait": 1}),
        ("state", {"topic": "t", "touch": "x"}),
        ("remove", {"topic": "t", "if_empty": 0}),
        ("list", {"limit": "x"}),
        ("list", {"limit": -1}),
        ("list", {"limit": -5}),
        ("list", {"after": 5}),
        ("list", {"prefix": None}),
        ("list", {"prefixes": "b"}),
        ("list", {"prefixes": [5]}),
    ],
)
async def test_a_bad_head_is_the_callers_mistake(method: str, head: dict[str, Any], caplog: Any) -> None:
    async with serving() as (_, connection):
        await ask(connection, "append", ONE)
        with pytest.raises(TopicsError) as caught:
            await connection.call(method, head, ONE)
        assert caught.value.code == errors.INVALID_REQUEST
        assert "Traceback" not in caplog.text
        assert (await ask(connection, "state"))["count"] == 1


async def test_a_head_may_say_more_than_is_known() -> None:
    async with serving() as (_, connection):
        assert (await ask(connection, "append", ONE, colour="blue"))["head_seq"] == 1


# --- long-polls ---------------------------------------------------------------------------------------------------


async def poll(connection: Connection, pages: list[dict[str, Any]], **query: Any) -> None:
    pages.append(await ask(connection, "diff", json.dumps({"wait_ms": 30_000, **query}).encode()))


def by(node: str, count: int = 1) -> bytes:
    return json.dumps({"records": [{"data": 1}] * count, "node": node}).encode()


async def settled() -> None:
    for _ in range(100):
        await trio.lowlevel.checkpoint()


@pytest.mark.parametrize("stored", [False, True], ids=["resident", "stored"])
async def test_a_reader_is_not_woken_by_its_own_writes(stored: bool) -> None:
    async with serving(FaultyFiles(cold_reads=stored)) as (service, connection):
        pages: list[dict[str, Any]] = []
        await ask(connection, "append", by("me", 10))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: poll(connection, pages, node="me", from_seq=2, limit=3))
            for _ in range(5):
                await ask(connection, "append", by("me"))
                await settled()
            assert not pages
            await ask(connection, "append", by("you"))
        (page,) = pages
        assert [record["$seq"] for record in page["records"]] == [16]
        assert page["next_from_seq"] == 16
        assert page["caught_up"]
        assert len(service.polls) == 0


async def test_a_reader_whose_time_is_up_gets_the_cursor_past_its_own_writes(mock_clock: Any) -> None:
    async with serving() as (service, connection):
        pages: list[dict[str, Any]] = []
        await ask(connection, "append", by("me", 3))
        topic = service._store.engine.state.topics["t"]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: poll(connection, pages, node="me", wait_ms=2_000))
            await until(lambda: topic.waiters)
            mock_clock.jump(1.5)
            await ask(connection, "append", by("me", 4))
            await until(lambda: topic.waiters)
            assert not pages
            mock_clock.jump(0.6)  # its own time is up; a new one would not be
        assert pages[0]["records"] == []
        assert pages[0]["next_from_seq"] == 7
        assert pages[0]["caught_up"]


async def test_a_gap_that_swallowed_the_readers_own_writes_begins_where_it_asked() -> None:
    async with serving() as (service, connection):
        pages: list[dict[str, Any]] = []
        await ask(connection, "put", b'{"cap_records":5}')
        await ask(connection, "append", by("me", 5))
        topic = service._store.engine.state.topics["t"]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: poll(connection, pages, node="me", from_seq=2))
            await until(lambda: topic.waiters)  # at 5
            await ask(connection, "append", by("you", 7))
        (page,) = pages
        gap = page["tombstone"]
        assert (gap["gap_from"], gap["gap_to"], gap["missed_estimate"]) == (3, 7, 5)
        assert [record["$seq"] for record in page["records"]] == [8, 9, 10, 11, 12]


async def test_a_gap_behind_the_readers_own_writes_is_told_by_itself() -> None:
    async with serving() as (service, connection):
        pages: list[dict[str, Any]] = []
        await ask(connection, "append", by("me", 5))
        topic = service._store.engine.state.topics["t"]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: poll(connection, pages, node="me", from_seq=2))
            await until(lambda: topic.waiters)
            topic.next_seq = 9
            service._store.engine.lose_range(topic, 6, 8, "corrupt", lambda _: None)
            service._store.engine.wake_readers(topic)
        gap = pages[0]["tombstone"]
        assert (gap["gap_from"], gap["gap_to"], gap["reason"]) == (6, 8, "corrupt")


async def test_without_a_wait_own_writes_are_passed_at_once() -> None:
    async with serving() as (_, connection):
        await ask(connection, "append", by("me", 3))
        page = await ask(connection, "diff", b'{"node":"me"}')
        assert (page["records"], page["next_from_seq"]) == ([], 3)


async def test_a_poll_that_looked_often_leaves_nothing_behind_when_its_caller_goes() -> None:
    async with serving() as (service, connection):
        pages: list[dict[str, Any]] = []
        await ask(connection, "append", by("me"))
        topic = service._store.engine.state.topics["t"]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: poll(connection, pages, node="me"))
            for _ in range(3):
                await ask(connection, "append", by("me"))
                await until(lambda: topic.waiters)
            nursery.cancel_scope.cancel()
        await until(lambda: not topic.waiters)
        await ask(connection, "append", by("you"))
        assert not pages


# --- large bodies -------------------------------------------------------------------------------------------------


class Gate:
    """Keeps decoding in its threads until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened = threading.Event()
        self.waiting = 0
        monkeypatch.setattr(service_module, "decode_append", self.decode)

    def decode(self, body: bytes, *args: Any, **options: Any) -> Append:
        if len(body) > limits.THREAD_BODY_BYTES:
            self.waiting += 1
            assert self.opened.wait(10)
        return decode_append(body, *args, **options)


async def test_large_bodies_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)
    async with serving() as (service, connection):
        service.bodies = Bodies(2 * len(LARGE))
        try:
            async with trio.open_nursery() as nursery:
                for _ in range(2):
                    nursery.start_soon(ask, connection, "append", LARGE)
                await until(lambda: gate.waiting == 2)
                with pytest.raises(TopicsError) as caught:
                    await ask(connection, "append", LARGE)
                assert caught.value.code == errors.THROTTLED
                assert caught.value.detail["retry_after_ms"] > 0
                assert (await ask(connection, "append", ONE))["head_seq"] == 1, "small writes go on"
                gate.opened.set()
        finally:
            gate.opened.set()
        assert service.bodies.bytes == 0
        assert (await ask(connection, "append", LARGE))["head_seq"] == 4
        assert service.bodies.bytes == 0


@pytest.mark.parametrize("body", [LARGE[:-1], LARGE.replace(b'"data"', b'"dat"')], ids=["cut off", "no data"])
async def test_a_refused_large_body_no_longer_counts(body: bytes) -> None:
    async with serving() as (service, connection):
        with pytest.raises(TopicsError):
            await ask(connection, "append", body)
        assert service.bodies.bytes == 0


async def test_a_cancelled_large_body_no_longer_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)
    async with serving() as (service, connection):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, connection, "append", LARGE)
            await until(lambda: gate.waiting)
            nursery.cancel_scope.cancel()
        assert service.bodies.bytes == len(LARGE), "the thread still has it"
        gate.opened.set()
        await until(lambda: not service.bodies.bytes)


async def test_writes_behind_a_held_topic_count_too() -> None:
    async with serving() as (service, connection):
        await ask(connection, "append", ONE)
        topic = service._store.engine.state.topics["t"]
        service._store.engine.hold(topic)
        service.bodies = Bodies(len(ONE) + len(LARGE))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, connection, "append", ONE)
            nursery.start_soon(ask, connection, "append", LARGE)
            await until(lambda: service.bodies.bytes == len(ONE) + len(LARGE) and len(topic.held or ()) == 2)
            with pytest.raises(TopicsError) as caught:
                await ask(connection, "append", ONE)
            assert caught.value.code == errors.THROTTLED
            service._store.engine.release(topic, lambda: None)
        assert service.bodies.bytes == 0
        assert topic.head_seq == 3


async def test_a_write_that_was_in_a_thread_when_the_shard_began_to_stop_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate = Gate(monkeypatch)
    refusals: list[str] = []

    async def append() -> None:
        try:
            await ask(connection, "append", LARGE)
        except TopicsError as error:
            refusals.append(error.code)

    async with serving() as (service, connection):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(append)
            await until(lambda: gate.waiting)
            service.draining = True
            gate.opened.set()
        assert refusals == [errors.SHUTTING_DOWN]
        assert "t" not in service._store.engine.state.topics


@pytest.mark.parametrize(
    ("records", "more", "size", "in_thread"),
    [
        (1, {}, 0, False),
        (1_000, {}, 300_000, False),
        (2_000, {}, 0, True),
        (200, {"tag": "a"}, 60_000, False),
        (1_000, {"tag": "a"}, 0, True),
        (1, {}, limits.THREAD_BODY_BYTES, True),
    ],
)
def test_what_would_hold_the_loop_goes_to_a_thread(records: int, more: dict, size: int, in_thread: bool) -> None:
    filler = "x" * (size // records)
    body = json.dumps({"records": [{"data": filler, **more}] * records}).encode()
    assert service_module._takes_long(body) is in_thread


# --- metrics ------------------------------------------------------------------------------------------------------


async def test_metrics_look_at_one_topic_a_step_and_leave_out_those_that_are_gone() -> None:
    async with serving() as (service, connection):
        for name in "abc":
            await ask(connection, "append", ONE, topic=name)
        totals = Totals()
        rows = totals.add_rows(service._store, 2, ())
        next(rows)
        assert [row[0] for row in totals.rows] == ["a"]
        await ask(connection, "remove", topic="b")
        assert list(rows) == [None]
        assert [row[0] for row in totals.rows] == ["a"]
        assert [row[0] for row in (await connection.call("metrics", {"topics": 2})).head["per_topic"]] == ["a", "c"]
