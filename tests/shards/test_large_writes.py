"""Large writes are made ready in a thread: the loop only takes them in, and what the log has is what was written."""

import json
import threading
from typing import Any

import pytest
import trio

from tests.shards.test_service import ONE, ask, serving
from topics import errors, limits
from topics.core import events, state
from topics.errors import TopicsError
from topics.shards import rendering
from topics.shards import service as service_module
from topics.testing.faulty_files import FaultyFiles
from topics.testing.rpc_pair import until

TEXT = "x" * (limits.THREAD_BODY_BYTES // 500)


def rich(count: int = 600, **more: Any) -> bytes:
    records = [
        {"data": TEXT, "tag": f"t{n}", "meta": {"n": str(n)}, "dedup_key": f"k{n}", "ttl_ms": 10**9 + n}
        for n in range(count)
    ]
    return json.dumps({"records": records, **more}).encode()


def forbid(monkeypatch: pytest.MonkeyPatch) -> None:
    """What only the loop uses."""

    def refuse(*_: object) -> None:
        raise AssertionError("large work in the loop")

    for name in ("render_blocks", "lay_terms", "check_topic"):
        monkeypatch.setattr(state, name, refuse)
    monkeypatch.setattr(events, "encode_body", refuse)


class Gate:
    """Keeps writes that are being made ready in their threads until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened = threading.Event()
        self.waiting = 0
        monkeypatch.setattr(service_module, "render", self._render)

    def _render(self, *args: Any) -> Any:
        self.waiting += 1
        assert self.opened.wait(10)
        return rendering.render(*args)


async def everything(connection: Any) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = []
    while True:
        query = {"from_seq": len(records), "limit": 1000, "include_tags": True}
        page = await ask(connection, "diff", json.dumps(query).encode())
        records += page["records"]
        if page["caught_up"]:
            return records


@pytest.mark.parametrize("config", [{}, {"durability": "fsync"}, {"message_ids": True}], ids=["disk", "fsync", "ids"])
@pytest.mark.parametrize("first", [False, True], ids=["to a topic", "makes its topic"])
async def test_the_loop_does_none_of_the_large_work_and_a_replay_has_the_same(
    monkeypatch: pytest.MonkeyPatch, config: dict[str, Any], first: bool
) -> None:
    files = FaultyFiles()
    async with serving(files) as (service, connection):
        if not first:
            await ask(connection, "put", json.dumps(config).encode())
            await ask(connection, "append", b'{"records":[{"data":0,"dedup_key":"k7"}]}')
        with monkeypatch.context() as patch:
            forbid(patch)
            answer = await ask(connection, "append", rich(config=config))
        assert answer["count"] == (600 if first else 599)
        assert answer["created"] == first
        await ask(connection, "append", ONE)  # the tail goes on growing
        before = await everything(connection)
        await service._committer.flushed()
        files = files.clone()
    async with serving(files) as (service, connection):
        assert await everything(connection) == before
        topic = service._engine.state.topics["t"]
        assert (topic.count, topic.head_seq) == (601, 601)
        assert topic.expiries is not None
        assert topic.expiries.count == answer["count"]
        assert (await ask(connection, "delete", b'{"match":"t5*"}'))["deleted"] == 111


async def test_the_first_write_of_a_topic_gets_its_ids_when_it_is_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    files = FaultyFiles()
    gate = Gate(monkeypatch)
    async with serving(files) as (service, connection):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, connection, "append", rich())
            await until(lambda: gate.waiting)
            await ask(connection, "append", ONE, topic="other")  # takes the ids that were free until now
            gate.opened.set()
        topic = service._engine.state.topics["t"]
        assert topic.id > service._engine.state.topics["other"].id
        before = await everything(connection)
        await service._committer.flushed()
        files = files.clone()
    async with serving(files) as (service, connection):
        assert service._engine.state.topics["t"].epoch == topic.epoch
        assert await everything(connection) == before


@pytest.mark.parametrize("exists", [False, True])
@pytest.mark.parametrize("place", [0, 599])
async def test_what_the_topic_cannot_keep_is_refused_and_nobody_waits_for_it(
    exists: bool, place: int, caplog: Any
) -> None:
    async with serving() as (service, connection):
        if exists:
            await ask(connection, "append", ONE)
        body = json.loads(rich())
        body["records"][place]["priority"] = 5
        body["records"][place]["dedup_key"] = "k3"  # be it a duplicate
        with pytest.raises(TopicsError) as caught:
            await ask(connection, "append", json.dumps(body).encode())
        assert caught.value.code == errors.INVALID_REQUEST
        assert caught.value.detail["index"] == place
        assert service.bodies.bytes == 0
        assert (await ask(connection, "append", ONE))["head_seq"] == 1 + exists
        assert "answered" not in caplog.text


async def test_a_write_that_may_not_make_its_topic_is_refused_before_it_is_rendered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving() as (service, connection):
        monkeypatch.setattr(service_module, "render", None)
        with pytest.raises(TopicsError) as caught:
            await ask(connection, "append", rich(create=False))
        assert caught.value.code == errors.TOPIC_NOT_FOUND
        assert service.bodies.bytes == 0


async def test_a_large_write_behind_a_change_of_its_topic_is_rendered_when_that_is_durable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving() as (service, connection):
        await ask(connection, "append", ONE)
        topic = service._engine.state.topics["t"]
        topic.parked = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, connection, "append", rich())
            await until(lambda: topic.parked)
            forbid(monkeypatch)
            parked, topic.parked = topic.parked, None
            for retry in parked or ():
                retry()
        assert topic.head_seq == 601


async def test_a_large_body_does_not_go_with_the_step_that_answers() -> None:
    """To free it takes a millisecond, which a thread has."""
    calls: list[Any] = []
    async with serving() as (service, connection):
        handler: Any = service
        append = handler._append_large

        async def append_large(call: Any, *args: Any) -> None:
            calls.append(call)
            await append(call, *args)

        handler._append_large = append_large
        assert (await ask(connection, "append", rich()))["count"] == 600
        assert calls[0].body == b""
