"""Topics that leave `ephemeral` with many records from before: what is left is worked out in a thread. And what a start
tells of those that are `ephemeral`."""

import threading
from typing import Any

import pytest
import trio

from tests.shards.queue_shard import QueueShard, serving
from topics.core import residence
from topics.core.match import TagMatch
from topics.core.residence import Survey
from topics.core.topic import Topic
from topics.testing.drafts import Draft
from topics.testing.driver import Driver
from topics.testing.fake_clock import FakeClock
from topics.testing.faulty_files import FaultyFiles

RECORDS = 1_000


@pytest.fixture(autouse=True)
def always(monkeypatch):
    monkeypatch.setattr(residence, "SURVEY_MIN", 0)


@pytest.fixture
def threads(monkeypatch) -> list[bool]:
    """For each survey, whether it was worked out beside the loop."""
    beside: list[bool] = []
    work_out, loop = Survey.work_out, threading.get_ident()

    def note(self: Survey) -> None:
        beside.append(threading.get_ident() != loop)
        work_out(self)

    monkeypatch.setattr(Survey, "work_out", note)
    return beside


async def fill(shard: QueueShard, **config: Any) -> Topic:
    """Records from before and some of the time in which it is `ephemeral`, half of each deleted."""
    await shard.call("put", "t", {"durability": "fsync", **config})
    await write(shard)
    await shard.call("put", "t", {"durability": "ephemeral"})
    await write(shard)
    await shard.call("delete", "t", {"match": "t0"})
    return shard.queues.engine.state.topics["t"]


async def write(shard: QueueShard) -> None:
    records = [{"data": n, "tag": f"t{n % 2}"} for n in range(RECORDS)]
    for at in range(0, RECORDS, 250):
        await shard.call("append", "t", {"records": records[at : at + 250]})


async def shown(shard: QueueShard) -> tuple[Any, ...]:
    state = await shard.call("state", "t")
    records = await shard.records("t")
    return state["count"], state["head_seq"], state["earliest_seq"], [record["$seq"] for record in records]


@pytest.mark.parametrize("stored", [False, True])
async def test_it_is_worked_out_beside_the_loop_and_a_crash_keeps_it(threads, stored):
    files = FaultyFiles()
    async with serving(files, crash=True) as shard:
        await fill(shard)
        if stored:
            await shard.shard.checkpoint()
        await shard.call("put", "t", {"durability": "fsync"})
        count, head_seq, earliest, seqs = await shown(shard)
        assert (count, head_seq, earliest) == (RECORDS, 2 * RECORDS, 2)
        assert threads == [True]
    async with serving(files.crash(3, power_loss=True)) as shard:
        kept = [seq for seq in seqs if seq <= RECORDS]
        assert (await shown(shard)) == (len(kept), head_seq, 2, kept)


async def test_commands_wait_for_it_and_are_made_behind_it(threads):
    files = FaultyFiles()
    async with serving(files, crash=True) as shard:
        topic = await fill(shard)
        answers: dict[str, Any] = {}

        async def ask(name: str, body: Any) -> None:
            answers[name] = await shard.call(name, "t", body)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(shard.call, "put", "t", {"durability": "fsync"})
            while topic.parked is None:
                await trio.lowlevel.checkpoint()
            nursery.start_soon(ask, "append", {"records": [{"data": 1}]})
            nursery.start_soon(ask, "delete", {"before_seq": 11})
            nursery.start_soon(ask, "put", {"cap_records": 10**6})
        assert answers["append"]["first_seq"] == 2 * RECORDS + 1
        assert threads[0]
        assert sum(not beside for beside in threads) == 0
        assert topic.parked is None
        last = await shown(shard)
    async with serving(files.crash(3, power_loss=True)) as shard:
        state = await shown(shard)
        assert (state[1], state[3][-1:]) == (last[1], last[3][-1:])
        assert set(state[3]) <= set(last[3])


@pytest.mark.parametrize("bound", [{"cap_records": 700}, {"cap_records": 3}, {"ttl_ms": 1000}])
async def test_what_is_evicted_at_the_front_meanwhile_does_not_count_and_does_not_come_back(threads, bound):
    files, clock = FaultyFiles(), FakeClock()
    async with serving(files, clock, crash=True) as shard:
        topic = await fill(shard)
        clock.advance(2000)
        await shard.call("put", "t", {"durability": "fsync", **bound})
        assert threads == [True]
        _, head_seq, earliest, seqs = await shown(shard)
        evicted = (topic.evict_floor, list(topic.evicted.ranges))
        assert earliest > 2
    async with serving(files.crash(3, power_loss=True), clock) as shard:
        kept = [seq for seq in seqs if seq <= RECORDS]
        state = await shown(shard)
        assert (state[0], state[1], state[3]) == (len(kept), head_seq, kept)
        topic = shard.queues.engine.state.topics["t"]
        assert (topic.evict_floor, list(topic.evicted.ranges)) == evicted


async def test_a_survey_that_no_longer_holds_is_made_again(threads, monkeypatch):
    async with serving() as shard:
        topic = await fill(shard)
        work_out = Survey.work_out

        def lose_one(self: Survey) -> None:
            work_out(self)
            if len(threads) == 1:  # as the end of a lifetime would
                chunk = topic.chunks[1]
                topic.lose(chunk.first_seq, chunk.last_seq, "corrupt")

        monkeypatch.setattr(Survey, "work_out", lose_one)
        await shard.call("put", "t", {"durability": "fsync"})
        assert threads == [True, True]
        gone = {seq for hole in topic.holes.items for seq in range(hole.first, hole.last + 1)}
        assert not gone & set((await shown(shard))[3])


# -- what a start tells


def ephemeral(*tags: str) -> Driver:
    driver = Driver().start()
    driver.put("t", {"durability": "ephemeral"})
    driver.append("t", [Draft(b"1", tag=tag) for tag in tags])
    driver.commit()
    return driver


def holes_of(driver: Driver) -> list[tuple[int, int, str]]:
    return [tuple(hole) for hole in driver.topic("t").holes.items]  # type: ignore[misc]


def test_what_was_deleted_before_a_clean_stop_is_not_told():
    driver = ephemeral("x", "x", "x")
    driver.delete("t", None, TagMatch("Eq", "x"))
    driver.restart()
    assert (driver.topic("t").head_seq, holes_of(driver)) == (3, [])
    driver.restart()
    assert (driver.topic("t").head_seq, holes_of(driver)) == (3, [])


def test_a_clean_stop_tells_of_all_up_to_the_last_record_that_was_live():
    driver = ephemeral("x", "keep", "x", "x")
    driver.delete("t", None, TagMatch("Eq", "x"))
    for _ in range(3):  # it is told once
        driver.restart()
        assert (driver.topic("t").head_seq, holes_of(driver)) == (4, [(1, 2, "crash")])
    driver.append("t", [Draft(b"2")])
    driver.restart()
    assert holes_of(driver) == [(1, 5, "crash")]


@pytest.mark.parametrize("update", [False, True])
def test_what_came_after_the_last_checkpoint_is_told_by_a_crash(update: bool):
    driver = ephemeral("x", "x")
    driver.delete("t", None, TagMatch("Eq", "x"))
    driver.checkpoint()
    driver.append("t", [Draft(b"1")] * 2)
    if update:  # the log tells the head then, not only the register
        driver.put("t", {"cap_records": 100})
        driver.commit()
    driver.crash(1, power_loss=False)
    assert driver.topic("t").head_seq == 4
    assert holes_of(driver)[-1][1] == 4
