"""Records with a lifetime of their own: not served, not claimed, silently gone, and gone for good."""

import json
from typing import Any

import pytest

from tests.shards.queue_shard import QueueShard, seqs_of, serving
from topics import limits
from topics.core.claims import Want, deal
from topics.core.leases import Leases, leases_of
from topics.core.line import jobs_in
from topics.core.requests import decode_append
from topics.core.topic import Topic
from topics.limits import Limits
from topics.shards.engine import Engine
from topics.testing.drafts import Draft
from topics.testing.driver import Driver
from topics.testing.fake_clock import FakeClock
from topics.testing.faulty_files import FaultyFiles
from topics.testing.reference import Query

HOUR = 3_600_000


async def write(shard: QueueShard, *lifetimes: int | None, topic: str = "t") -> None:
    """One record each; its data is its seq in a new topic."""
    records = [{"data": n, **({"ttl_ms": ttl} if ttl else {})} for n, ttl in enumerate(lifetimes, 1)]
    await shard.call("append", topic, {"records": records})


async def data_in(shard: QueueShard, topic: str = "t") -> list[Any]:
    return [record["data"] for record in await shard.records(topic)]


def expired(shard: QueueShard) -> int:
    return shard.queues.engine.expired


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
async def test_a_record_is_served_until_its_time_is_over(durability):
    async with serving() as shard:
        await shard.call("put", "t", {"durability": durability})
        await write(shard, None, 1000, 2000, None, 1000)
        shard.clock.advance(999)
        assert await data_in(shard) == [1, 2, 3, 4, 5]
        shard.clock.advance(1)
        page = await shard.call("diff", "t", {})
        assert ([r["data"] for r in page["records"]], page["tombstone"], page["head_seq"]) == ([1, 3, 4], None, 5)
        shard.clock.advance(HOUR)
        state = await shard.call("state", "t")
        assert (state["count"], state["head_seq"], state["earliest_seq"]) == (2, 5, 1)
        assert await data_in(shard) == [1, 4]
        assert expired(shard) == 3


async def test_a_reader_that_waits_behind_them_is_told_of_nothing():
    async with serving() as shard:
        await write(shard, 10, 10, 10)
        shard.clock.advance(10)
        page = await shard.call("diff", "t", {"from_seq": 0})
        assert (page["records"], page["tombstone"], page["next_from_seq"]) == ([], None, 3)
        await write(shard, None)
        assert (await shard.call("diff", "t", {"from_seq": 0}))["tombstone"] is None


async def test_a_reader_amid_a_clean_stop_leaves_no_doubt_behind(monkeypatch):
    """It lets go what is over, which is logged; a power loss right after the stop must not look like another."""
    files, clock, go_idle = FaultyFiles(), FakeClock(), Engine.go_idle
    rounds: list[Any] = []

    def go_idle_and_read(self, again=False):
        go_idle(self, again)
        clock.advance(1000)
        self.expire(self.state.topics["t"])
        rounds.append(self.state.topics["t"].over)

    async with serving(files, clock) as shard:
        await write(shard, None, *range(1000, 9000, 1000))
        monkeypatch.setattr(Engine, "go_idle", go_idle_and_read)
    monkeypatch.undo()
    assert [list(over) for over in rounds] == [[(2, 2)]], "read once: a stop does not wait until nobody does any more"
    async with serving(files.crash(1, power_loss=True)) as shard:
        page = await shard.call("diff", "t", {})
        assert (page["head_seq"], page["tombstone"]) == (9, None)


async def test_the_topics_own_ttl_counts_too_and_tells():
    async with serving() as shard:
        await shard.call("put", "t", {"ttl_ms": 1000})
        await write(shard, HOUR, 500, None)
        shard.clock.advance(500)
        assert await data_in(shard) == [1, 3]
        shard.clock.advance(501)
        page = await shard.call("diff", "t", {})
        assert (page["records"], page["tombstone"]["reason"], page["tombstone"]["missed_estimate"]) == ([], "ttl", 2)
        assert expired(shard) == 3


# --- queues -------------------------------------------------------------------------------------------------------


async def test_a_job_whose_time_is_over_is_not_claimed_and_not_counted():
    async with serving() as shard:
        await shard.make()
        await shard.produce("short", ttl_ms=1000)
        await shard.produce("long", ttl_ms=HOUR, priority=0)
        await shard.produce("plain")
        await shard.produce("never", ttl_ms=1000, delay_ms=2000)
        shard.clock.advance(1000)
        assert await shard.counts() == (2, 0, 0)
        assert (await shard.call("state", "q"))["queue"]["scheduled"] == 0
        assert [job["data"] for job in await shard.claim(9)] == ["long", "plain"]


async def test_a_leased_job_goes_too_and_its_worker_is_told_when_it_settles():
    async with serving() as shard:
        await shard.make(lease_ms=HOUR, max_deliveries=1, dead_letter="dead")
        await shard.produce("x", ttl_ms=1000)
        assert seqs_of(await shard.claim()) == [1]
        shard.clock.advance(1000)
        assert await shard.counts() == (0, 0, 0)
        assert (await shard.settle("ack", 1))["acked"] == 0
        shard.clock.advance(HOUR)
        assert await shard.claim() == []
        assert await shard.counts() == (0, 0, 0)


async def test_a_dead_letter_has_no_lifetime_any_more():
    async with serving() as shard:
        await shard.make(max_deliveries=1, dead_letter="dead")
        await shard.produce("x", ttl_ms=1000)
        await shard.claim()
        await shard.settle("nack", 1)
        assert await shard.claim() == []
        shard.clock.advance(HOUR)
        assert await data_in(shard, "dead") == ["x"]


async def test_jobs_that_are_acknowledged_are_not_remembered_until_their_time():
    async with serving() as shard:
        await shard.make()
        for _ in range(5):
            await shard.produce(*range(300), ttl_ms=HOUR)
        topic = shard.queues.find("q").topic
        assert topic.expiries is not None
        assert topic.expiries.count == 1500
        await shard.settle("ack", *seqs_of(await shard.claim(1000)))
        assert topic.expiries.count == 500
        await shard.call("delete", "q", {"before_seq": 1401})
        assert await shard.counts() == (100, 0, 0)
        assert topic.expiries.count == 100
        await shard.settle("ack", *seqs_of(await shard.claim(1000)))
        assert await shard.counts() == (0, 0, 0)
        assert topic.expiries is None


# --- restarts and crashes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("noticed", [False, True])
async def test_lifetimes_outlive_a_restart(crash, stored, noticed):
    """With the clock set back while it was down: what was over stays over."""
    files, clock = FaultyFiles(), FakeClock()
    async with serving(files, clock, crash=crash) as shard:
        await shard.call("put", "t", {"durability": "fsync"})
        await write(shard, *[(None, 1000, 5000)[n % 3] for n in range(600)])
        if stored:
            await shard.shard.checkpoint()
        clock.advance(1000)
        if noticed:
            assert len(await data_in(shard)) == 400
            await write(shard, None, topic="other")
            await shard.call(
                "put", "t", {"durability": "fsync", "cap_bytes": 10**9}
            )  # behind it in the log, and synced
    if crash:
        files = files.crash(7, power_loss=True)
    if noticed:
        clock.jump_wall(-900)
    async with serving(files, clock) as shard:
        assert await data_in(shard) == [n for n in range(1, 601) if n % 3 != 2]
        clock.advance(5000)
        assert await data_in(shard) == [n for n in range(1, 601) if n % 3 == 1]


async def test_a_start_does_not_read_the_blocks():
    files, clock = FaultyFiles(), FakeClock()
    async with serving(files, clock) as shard:
        await write(shard, *[1000 if n % 2 else None for n in range(1000)])
        await shard.shard.checkpoint()
    clock.advance(1000)
    async with serving(files, clock) as shard:
        assert (await shard.call("state", "t"))["count"] == 500
        chunks = shard.queues.store.engine.state.topics["t"].chunks
        assert len(chunks) > 2
        assert all(chunk.block is None for chunk in chunks)


@pytest.mark.parametrize("written", [False, True])
def test_behind_a_write_on_its_way_to_disk_it_takes_its_turn(written):
    """The write makes a cap evict the oldest. Had the lifetime ended first, that would have stayed, until a replay."""
    driver = Driver().start()
    driver.put("t", {"durability": "fsync", "cap_records": 3})
    driver.commit()
    driver.append("t", [Draft(b"1"), Draft(b"2"), Draft(b"3", ttl_ms=10)])
    driver.commit()
    driver.clock.advance(5)
    coming = driver.append("t", [Draft(b"4")])
    driver.clock.advance(5)
    assert driver.topic("t").count == 3  # it counts until then, but nobody is shown it
    assert [record["data"] for record in json.loads(driver.page("t", Query()) + b"}")["records"]] == [1, 2]
    assert not coming.given
    if written:
        driver.commit()
        assert (driver.topic("t").count, driver.topic("t").earliest_seq) == (2, 2)
        assert driver.topic("t").over is None
        driver.check_all()
    else:
        driver.write()
    driver.crash(3, power_loss=False)
    assert (driver.topic("t").count, driver.topic("t").earliest_seq) == (2, 2)
    driver.check_all()


def test_nobody_is_shown_it_while_its_topic_is_being_removed():
    driver = Driver().start()
    driver.put("t", {"durability": "fsync"})
    driver.append("t", [Draft(b"1"), Draft(b"2", ttl_ms=10)])
    driver.commit()
    removed = driver.remove("t")
    driver.clock.advance(10)
    assert [record["data"] for record in json.loads(driver.page("t", Query()) + b"}")["records"]] == [1]
    assert not removed.given
    driver.commit()
    assert removed.given
    driver.crash(3, power_loss=True)
    driver.check_all()


@pytest.mark.parametrize("terms", [{}, {"priority": 3}, {"delay_ms": 3}])
def test_nobody_claims_what_is_over_behind_a_write_on_its_way_to_disk(terms):
    driver = Driver().start()
    engine = driver.store.engine
    append(driver, b'{"records":[{"data":1},{"data":2}],"config":{"type":"queue","durability":"fsync"}}')
    job = json.dumps({"data": 3, "ttl_ms": 10, **terms}).encode()
    append(driver, b'{"records":[%b,{"data":4}]}' % job)
    driver.commit()
    driver.clock.advance(5)
    append(driver, b'{"records":[{"data":5}]}')
    driver.clock.advance(5)
    topic = driver.topic("q")
    leases = leases_of(topic)
    leases.settle(topic.earliest_seq, engine.now())
    assert (topic.count, leases.ready(jobs_in(topic)), leases.scheduled) == (4, 3, 0)
    assert sorted(picked(topic, leases, engine.now())) == [1, 2, 4]
    driver.commit()
    leases.settle(topic.earliest_seq, engine.now())
    assert (topic.count, leases.ready(jobs_in(topic))) == (4, 4)
    assert sorted(picked(topic, leases, engine.now())) == [1, 2, 4, 5]
    assert topic.over is None


def append(driver: Driver, body: bytes) -> None:
    driver.store.engine.append("q", decode_append(body, "q", Limits()), lambda _: None, lambda _: None)


def picked(topic: Topic, leases: Leases, now: int) -> list[int]:
    want = Want(9, 10**6, [])
    deal(topic, leases, [want], 0, 0, now)
    for seq, _ in want.picks:
        leases.free.put_back(seq)
    return [seq for seq, _ in want.picks]


async def test_topics_without_lifetimes_have_nothing_of_it():
    async with serving() as shard:
        await shard.call("put", "t", {})
        await write(shard, *[None] * 10)
        await shard.make()
        await shard.produce("x", priority=3)
        topics = shard.queues.store.engine.state.topics
        assert [topics[name].expiries for name in ("t", "q")] == [None, None]
        block = topics["t"].chunks[0].block
        assert block is not None
        assert block.extras is None
        await write(shard, 1000)
        assert topics["t"].leases is None
        assert topics["t"].expiries is not None


# --- refusals -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ttl", [0, -1, "1", 1.5, True, limits.RECORD_TTL_MS_MAX + 1])
async def test_what_is_wrong_is_refused_with_its_place_and_nothing_is_written(ttl):
    async with serving() as shard:
        error = await shard.refused("append", "t", {"records": [{"data": 1}, {"data": 2, "ttl_ms": ttl}]})
        assert (error.code, error.detail["index"], error.detail["field"]) == ("invalid_request", 1, "ttl_ms")
        body = {"records": [{"data": 1, "ttl_ms": limits.RECORD_TTL_MS_MAX}, {"data": 1, "ttl_ms": None}]}
        assert (await shard.call("append", "t", body))["first_seq"] == 1


async def test_a_retry_does_not_make_it_longer():
    async with serving() as shard:
        body = {"records": [{"data": 1, "ttl_ms": 1000}], "idempotency_key": "k"}
        await shard.call("append", "t", body)
        shard.clock.advance(900)
        assert (await shard.call("append", "t", body))["deduped"]
        shard.clock.advance(100)
        assert await data_in(shard) == []
        assert (await shard.call("append", "t", body))["deduped"]  # the key outlives its record
