"""Very many lifetimes that end together: others are served meanwhile, and nobody sees half of it."""

import contextlib
import json
from functools import partial
from typing import Any

import pytest
import trio

from tests.shards.queue_shard import QueueShard, seqs_of, serving
from topics import errors, limits
from topics.core import timetable
from topics.core.events import RecordsDeleted
from topics.core.timetable import Timetable
from topics.core.topic import Topic
from topics.errors import TopicsError
from topics.shards.engine import Engine
from topics.testing.drafts import Draft
from topics.testing.driver import Driver
from topics.testing.fake_clock import FakeClock
from topics.testing.faulty_files import FaultyFiles
from topics.testing.reference import Query
from topics.testing.rpc_pair import until

RECORDS = 4_000
TTL = 60_000


@pytest.fixture(autouse=True)
def small_steps(monkeypatch):
    """Others may go on after each, so that no test depends on how fast the machine is."""
    monkeypatch.setattr(limits, "YIELD_AFTER_NS", 1)
    monkeypatch.setattr(limits, "LIFETIMES_STEP", 8)
    monkeypatch.setattr(timetable, "PAGE", 8)


@pytest.fixture
def ends(monkeypatch) -> list[int]:
    """How many records each step let go."""
    ended: list[int] = []
    put = Engine.submit

    def submit(self: Engine, topic: Topic, event: Any, *rest: Any) -> None:
        if type(event) is RecordsDeleted and event.ranges is not None:
            ended.append(event.ranges.count)
        put(self, topic, event, *rest)

    monkeypatch.setattr(Engine, "submit", submit)
    return ended


async def fill(shard: QueueShard, topic: str = "t", **config: Any) -> None:
    """Every second record lives for a minute, the others for ever."""
    await shard.call("put", topic, config)
    for first in range(1, RECORDS + 1, 400):
        seqs = range(first, first + 400)
        await shard.call(
            "append", topic, {"records": [{"data": n, **({} if n % 2 else {"ttl_ms": TTL})} for n in seqs]}
        )


async def test_others_are_served_meanwhile_and_no_step_is_large(ends):
    async with serving() as shard:
        await shard.call("put", "other", {"durability": "ephemeral"})  # so that nothing there waits for a disk
        await fill(shard)
        shard.clock.advance(TTL)
        told: list[Any] = []
        during: list[int] = []

        async def ask() -> None:
            told.append(await shard.call("state", "t"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            while not told:
                await shard.produce("x", topic="other")
                during.append(len(ends))
        assert told[0]["count"] == RECORDS // 2
        assert len(set(during)) > 3  # between steps, not before or behind them all
        assert sum(ends) == RECORDS // 2
        assert max(ends) <= limits.LIFETIMES_STEP + timetable.PAGE


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
async def test_who_asks_meanwhile_is_answered_in_order_and_sees_it_whole(durability):
    async with serving() as shard:
        await fill(shard, durability=durability)
        await fill(shard, "other")
        topic = shard.queues.engine.state.topics["t"]
        shard.clock.advance(TTL)
        answers: dict[str, Any] = {}

        async def ask(name: str, method: str, body: Any, **head: Any) -> None:
            answers[name] = await shard.call(method, "t", body, **head)

        def waits(number: int) -> bool:
            line = shard.queues.engine.endings._behind.get(topic)
            return line is not None and len(line.commands) + len(topic.held or ()) == number

        requests: tuple[tuple[str, str, Any], ...] = (
            ("state", "state", None),
            ("diff", "diff", {"limit": 1000}),
            ("append", "append", {"records": [{"data": "new"}]}),
            ("delete", "delete", {"before_seq": 11}),
            ("put", "put", {"durability": durability, "cap_records": RECORDS}),
        )
        async with trio.open_nursery() as nursery:
            for number, (name, method, body) in enumerate(requests, 1):
                nursery.start_soon(ask, name, method, body)
                await until(partial(waits, number))
        assert answers["state"]["count"] == RECORDS // 2
        assert answers["state"]["head_seq"] == RECORDS
        assert [record["data"] for record in answers["diff"]["records"]] == list(range(1, 2000, 2))
        assert answers["append"]["first_seq"] == RECORDS + 1
        assert answers["delete"]["deleted"] == 5
        last = await shard.call("state", "t")
        assert (last["count"], last["config"]["cap_records"]) == (RECORDS // 2 + 1 - 5, RECORDS)
        assert topic.held is None
        assert shard.queues.engine.expired == RECORDS // 2


async def test_lists_and_places_wait_for_each_of_their_topics():
    async with serving() as shard:
        await fill(shard, "a")
        await fill(shard, "b")
        shard.clock.advance(TTL)
        answer = await shard.connection.call("list", {"limit": 10}, b"")
        entries = json.loads(b"[" + b",".join(_split(bytes(answer.body), answer.head["sizes"])) + b"]")
        assert [entry["count"] for entry in entries] == [RECORDS // 2, RECORDS // 2]
        await fill(shard, "c")
        await shard.call("delete", "c", {"before_seq": 2})
        shard.clock.advance(TTL)
        places = (await shard.connection.call("places", {"topics": ["a", "b", "c"], "times": {}}, b"")).head
        assert [places[name][1] for name in "abc"] == [1, 1, 3]


def _split(body: bytes, sizes: list[int]) -> list[bytes]:
    ends = [sum(sizes[: n + 1]) for n in range(len(sizes))]
    return [body[end - size : end].strip(b",") for end, size in zip(ends, sizes, strict=True)]


@pytest.mark.parametrize("at", [0, 10])
async def test_large_writes_and_small_ones_keep_their_order(monkeypatch, at):
    """Large ones are rendered with the seqs they are to get, before or while others wait."""
    monkeypatch.setattr(limits, "INLINE_BODY_BYTES", 100)
    monkeypatch.setattr(limits, "INLINE_RECORDS", 1)
    monkeypatch.setattr(limits, "INLINE_PLAIN_RECORDS", 1)
    async with serving() as shard:
        await fill(shard, cap_records=0 if at else RECORDS)  # which evicts nothing, as all of them come behind
        topic = shard.queues.engine.state.topics["t"]
        async with trio.open_nursery() as nursery:
            for number in range(20):
                if number == at:
                    shard.clock.advance(TTL)
                    nursery.start_soon(shard.call, "state", "t")
                size = 30 if number % 3 else 1
                nursery.start_soon(partial(shard.produce, *[f"{number}"] * size, topic="t"))
                await trio.lowlevel.checkpoint()
        state = await shard.call("state", "t")
        assert (state["count"], state["earliest_seq"]) == (RECORDS // 2 + 13 * 30 + 7, 1)
        assert topic.head_seq == RECORDS + 13 * 30 + 7
        assert topic.held is None


async def test_a_topic_that_is_removed_meanwhile_shows_nothing_that_is_over():
    async with serving() as shard:
        await fill(shard)
        shard.clock.advance(TTL)
        topic = shard.queues.engine.state.topics["t"]

        async def look() -> None:
            with contextlib.suppress(TopicsError):  # it is there until the removal is durable
                page = await shard.call("diff", "t", {"limit": 1000})
                assert [record["data"] for record in page["records"]] == list(range(1, 2000, 2))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(shard.call, "remove", "t")
            await until(lambda: topic.held is not None)
            nursery.start_soon(look)
        assert "t" not in shard.queues.engine.state.topics
        assert topic.held is None
        assert (await shard.refused("diff", "t", {})).code == errors.TOPIC_NOT_FOUND


async def test_jobs_are_not_claimed_before_it_is_done(ends):
    async with serving() as shard:
        await fill(shard, "q", type="queue")
        shard.clock.advance(TTL)
        assert seqs_of(await shard.claim(1000)) == list(range(1, 2000, 2))
        assert await shard.counts() == (RECORDS // 2 - 1000, 1000, 0)
        assert max(ends) <= limits.LIFETIMES_STEP + timetable.PAGE
        shard.clock.advance(TTL)


@pytest.mark.parametrize("power_loss", [False, True])
@pytest.mark.parametrize("after", [0, 3, 40, 10_000])
def test_a_crash_on_the_way_leaves_what_the_time_says(power_loss, after):
    driver = Driver().start()
    driver.put("t", {"durability": "fsync", "cap_records": 700})
    driver.append("t", [Draft(b"%d" % n, ttl_ms=10 if n % 2 else None) for n in range(600)])
    driver.commit()
    driver.clock.advance(10)
    engine = driver.store.engine
    topic = engine.state.topics["t"]
    for _ in range(after):
        if engine.expire(topic):
            break
    driver.write()
    driver.crash(3, power_loss=power_loss)
    engine = driver.store.engine
    while not engine.expire(engine.state.topics["t"]):
        pass
    assert engine.state.topics["t"].count == 300
    driver.check_all()


def test_behind_writes_on_their_way_to_disk_nobody_is_shown_them_and_caps_come_first():
    """All of it waits for the log, a step at a time, and counts until then."""
    driver = Driver().start()
    driver.put("t", {"durability": "fsync", "cap_records": 600})
    driver.append("t", [Draft(b"%d" % n, ttl_ms=10 if n % 2 else None) for n in range(600)])
    driver.commit()
    driver.clock.advance(5)
    driver.append("t", [Draft(b"600")])
    driver.clock.advance(5)
    engine = driver.store.engine
    topic = engine.state.topics["t"]
    while not engine.expire(topic):
        pass
    assert topic.count == 600
    shown = [record["data"] for record in json.loads(driver.page("t", Query(limit=1000)) + b"}")["records"]]
    assert shown == list(range(0, 600, 2))
    driver.commit()
    assert topic.over is None
    assert topic.count == 300
    driver.check_all()


async def test_a_stop_on_the_way_keeps_what_is_left_for_the_next_start():
    files, clock = FaultyFiles(), FakeClock()
    async with serving(files, clock) as shard:
        await fill(shard)
        clock.advance(TTL)
        assert not shard.queues.engine.expire(shard.queues.engine.state.topics["t"])
    async with serving(files, clock) as shard:
        assert (await shard.call("state", "t"))["count"] == RECORDS // 2


# --- jobs with a time that are deleted ------------------------------------------------------------------------------


async def test_scheduled_jobs_that_are_deleted_by_the_thousand_go_in_steps(monkeypatch):
    dropped: list[int] = []
    catch_up = Timetable.catch_up

    def count(self: Timetable) -> bool:
        before = self.count
        through = catch_up(self)
        dropped.append(before - self.count)
        return through

    monkeypatch.setattr(Timetable, "catch_up", count)
    async with serving() as shard:
        await shard.make()
        for first in range(0, RECORDS, 400):
            records = [{"data": n, "delay_ms": 1000, "tag": f"t{n % 2}"} for n in range(first, first + 400)]
            await shard.call("append", "q", {"records": records})
        assert (await shard.call("state", "q"))["queue"]["scheduled"] == RECORDS
        dropped.clear()
        assert (await shard.call("delete", "q", {"match": "t0"}))["deleted"] == RECORDS // 2
        state = await shard.call("state", "q")
        assert (state["queue"]["scheduled"], state["queue"]["ready"]) == (RECORDS // 2, 0)
        assert sum(dropped) == RECORDS // 2
        assert max(dropped) <= timetable.DROP_STEP * timetable.PAGE
        shard.clock.advance(1000)
        assert len(await shard.claim(1000)) == 1000
