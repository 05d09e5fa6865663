"""Pages of topics are made some names at a time: in order, each name once, and as long as was asked for."""

import json
from typing import Any

import pytest
import trio

from tests.shards.test_service import serving
from topics import limits
from topics.core import replies

ONE = b'{"records":[{"data":1}]}'


@pytest.fixture(autouse=True)
def small_steps(monkeypatch):
    monkeypatch.setattr(limits, "LIST_STEP", 3)


async def make(connection: Any, *names: str) -> None:
    for name in names:
        await connection.call("append", {"topic": name}, ONE)


async def page(connection: Any, **head: Any) -> tuple[list[str], bool]:
    reply = await connection.call("list", head)
    at, names = 0, list[str]()
    for size in reply.head["sizes"]:
        names.append(json.loads(bytes(reply.body[at : at + size]))["topic"])
        at += size
    assert names == reply.head["names"]
    return names, reply.head["more"]


@pytest.mark.parametrize(("limit", "count"), [(0, 0), (1, 1), (3, 3), (4, 4), (9, 9), (10, 10), (11, 10), (100, 10)])
async def test_a_page_of_any_size(limit, count):
    names = [f"t{n}" for n in range(10)]
    async with serving() as (_, connection):
        await make(connection, *reversed(names))
        assert await page(connection, limit=limit) == (names[:count], count < 10)
        assert await page(connection, limit=limit, after="t4") == (names[5:][:limit], limit < 5)


async def test_what_is_made_and_removed_meanwhile_leaves_no_gap_and_no_duplicate(monkeypatch):
    """A gateway takes a page that is too short for the last one of its shard."""
    async with serving() as (service, connection):
        await make(connection, *[f"t{n:02}" for n in range(20)])
        shown = list[str]()
        summary = replies.topic_summary

        def watched(topic: Any, now: int) -> bytes:
            shown.append(topic.name)
            return summary(topic, now)

        monkeypatch.setattr(replies, "topic_summary", watched)
        turns = list[int]()

        async def meddle() -> None:
            """Between the first step and the others."""
            while not shown:
                await trio.lowlevel.checkpoint()
            state = service._engine.state
            for name in ("t01", "t04", "t05", "t06"):  # one that was shown, and those that would be next
                state.names.discard(name)
                del state.topics[name]
            turns.append(len(shown))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(meddle)
            names, more = await page(connection, limit=12)
        assert turns[0] < 12, "in steps"
        assert names == sorted(set(names))
        assert len(names) == 12
        assert more
        assert set(names) >= {"t00", "t02", "t03", "t07", "t08"}


async def test_a_page_waits_for_a_topic_of_which_much_is_over(monkeypatch):
    monkeypatch.setattr(limits, "LIFETIMES_STEP", 8)
    monkeypatch.setattr(limits, "YIELD_AFTER_NS", -1)
    async with serving() as (_, connection):
        records = [{"data": n, "ttl_ms": 1} for n in range(600)]
        await make(connection, *[f"t{n}" for n in range(5)])
        await connection.call("append", {"topic": "t4"}, json.dumps({"records": records}).encode())
        await trio.sleep(0.005)  # until they are over: what follows holds however long it was
        reply = await connection.call("list", {"limit": 10})
        assert reply.head["names"] == [f"t{n}" for n in range(5)]
        assert json.loads(bytes(reply.body[-reply.head["sizes"][-1] :]))["count"] == 1
