"""Priorities and times of jobs over a shard's calls: order, counters, waking, and what a restart keeps of them."""

from typing import Any

import pytest
import trio
import trio.testing

from tests.shards.queue_shard import QueueShard, seqs_of, serving
from topics import limits
from topics.clock import SystemClock
from topics.testing.fake_clock import FakeClock
from topics.testing.faulty_files import FaultyFiles

NOW = 1_700_000_000_000
HOUR = 3_600_000


async def scheduled(shard: QueueShard, topic: str = "q") -> int:
    number: int = (await shard.call("state", topic))["queue"]["scheduled"]
    return number


# --- priorities ---------------------------------------------------------------------------------------------------


async def test_claims_take_the_highest_first_and_say_what_it_is():
    async with serving() as shard:
        await shard.make()
        for priority in (0, 5, 9, 5):
            await shard.produce("x", priority=priority)
        await shard.produce("plain")
        jobs = await shard.claim(5)
        assert [(job["$seq"], job.get("priority")) for job in jobs] == [(3, 9), (2, 5), (4, 5), (1, None), (5, None)]


async def test_priorities_of_one_write_lie_where_they_belong():
    """Over several blocks, with and without one."""
    async with serving() as shard:
        await shard.make()
        records = [{"data": n, **({"priority": n % 10} if n % 3 else {})} for n in range(600)]
        await shard.call("append", "q", {"records": records})
        jobs = await shard.claim(600)
        expected = sorted(range(600), key=lambda n: (-(n % 10 if n % 3 else 0), n))
        assert [job["data"] for job in jobs] == expected


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("stored", [False, True])
async def test_priorities_and_times_outlive_a_restart(crash, stored):
    files, clock = FaultyFiles(), FakeClock()
    async with serving(files, clock, crash=crash) as shard:
        await shard.make(durable=True)
        for n in range(300):
            later: dict[str, Any] = {"delay_ms": HOUR} if n % 5 == 4 else {}
            await shard.produce(n, priority=n % 3, **later)
        held = seqs_of(await shard.claim(20))
        await shard.settle("ack", *held[:10])
        await shard.settle("nack", *held[10:])
        if stored:
            await shard.shard.checkpoint()
    if crash:
        files = files.crash(7, power_loss=True)
    async with serving(files, clock) as shard:
        left = [n for n in range(300) if n + 1 not in held[:10] and n % 5 != 4]
        assert (await shard.counts(), await scheduled(shard)) == ((len(left), 0, 0), 60)
        again = held[10:] if not crash else []  # a clean stop keeps what was delivered once
        jobs = await shard.claim(1000)
        expected = sorted(left, key=lambda n: (-(n % 3), n + 1 not in again, n))
        assert [job["data"] for job in jobs] == expected
        clock.advance(HOUR)
        assert (await shard.counts(), await scheduled(shard)) == ((300 - 10, 0, 0), 0)  # the leases have ended too
        assert len(await shard.claim(1000)) == 290


async def test_a_start_does_not_read_the_blocks_of_jobs():
    files = FaultyFiles()
    async with serving(files) as shard:
        await shard.make()
        await shard.produce(*range(1000), priority=3)
        await shard.produce(*range(1000), delay_ms=HOUR)
        await shard.shard.checkpoint()
    async with serving(files) as shard:
        assert (await shard.counts(), await scheduled(shard)) == ((1000, 0, 0), 1000)
        chunks = shard.queues.find("q").topic.chunks
        assert len(chunks) > 4
        assert all(chunk.block is None for chunk in chunks)


async def test_the_age_is_the_queues_own_and_can_be_changed():
    async with serving() as shard:
        await shard.make(priority_age_ms=1000)
        await shard.produce("old", priority=2)
        shard.clock.advance(1000)
        await shard.produce("new", priority=3)
        (job,) = await shard.claim()
        assert job["data"] == "old"
        await shard.settle("nack", job["$seq"])
        await shard.call("put", "q", {"priority_age_ms": 60_000})
        assert [job["data"] for job in await shard.claim()] == ["new"]


async def test_a_dead_letter_keeps_its_priority_in_a_queue_and_in_a_log():
    async with serving() as shard:
        await shard.make(max_deliveries=1, dead_letter="dead")
        await shard.make("dead", max_deliveries=1, dead_letter="end")
        await shard.produce("low", "high")
        await shard.produce("top", priority=7)
        await shard.claim(3)
        await shard.settle("nack", 1, 2, 3)
        await shard.claim()
        jobs = await shard.claim(5, topic="dead")
        assert (jobs[0]["data"], jobs[0]["priority"]) == ("top", 7)
        assert {job["data"] for job in jobs[1:]} == {"low", "high"}
        await shard.settle("nack", *seqs_of(jobs), topic="dead")
        assert await shard.claim(topic="dead") == []
        assert {record["data"] for record in await shard.records("end")} == {"top", "low", "high"}
        chunks = shard.queues.store.engine.state.topics["end"].chunks
        assert sorted(rank for chunk in chunks for rank in chunk.ranks or bytes(len(chunk))) == [0, 0, 7]


# --- times --------------------------------------------------------------------------------------------------------


async def test_a_job_is_claimed_from_its_time_on_and_not_before():
    async with serving() as shard:
        await shard.make()
        await shard.produce("later", delay_ms=1500)
        await shard.produce("then", not_before=NOW + 1000)
        await shard.produce("now", not_before=NOW)
        await shard.produce("past", not_before=5)
        assert (await shard.counts(), await scheduled(shard)) == ((2, 0, 0), 2)
        assert seqs_of(await shard.claim(9, lease_ms=HOUR)) == [3, 4]
        shard.clock.advance(999)
        assert await shard.claim(9) == []
        shard.clock.advance(1)
        (job,) = await shard.claim(9, lease_ms=HOUR)
        assert (job["data"], job["deliveries"]) == ("then", 1)
        shard.clock.advance(500)
        assert (await shard.counts(), await scheduled(shard)) == ((1, 3, 0), 0)
        assert seqs_of(await shard.claim(9)) == [1]


async def test_who_waits_is_woken_when_the_time_has_come():
    async with serving(clock=SystemClock()) as shard:
        await shard.make()
        with trio.fail_after(60):
            await shard.produce("x", delay_ms=150)
            (job,) = await shard.claim(wait_ms=9000)
            assert job["data"] == "x"
            assert shard.clock.now_ms() >= job["$ts"] + 150
            await shard.settle("ack", job["$seq"])
            async with trio.open_nursery() as nursery:
                got: list[dict] = []

                async def wait() -> None:
                    got.extend(await shard.claim(wait_ms=9000))

                nursery.start_soon(wait)
                await trio.testing.wait_all_tasks_blocked(0.01)
                await shard.produce("far", delay_ms=HOUR)
                await shard.produce("near", delay_ms=100)
            assert [job["data"] for job in got] == ["near"]


async def test_a_stream_is_fed_when_the_time_has_come():
    async with serving(clock=SystemClock()) as shard:
        await shard.make()
        await shard.produce("x", delay_ms=150, priority=4)
        with trio.fail_after(60):
            async with shard.connection.stream("work", {"topic": "q", "node": "w", "max": 2}) as stream:
                heads = []
                async for item in stream:
                    heads.append(item)
                    if len(heads) == 2:
                        break
                assert heads[1].head["seqs"] == [1]
                assert b'"priority":4' in bytes(heads[1].body)


async def test_an_idempotent_retry_does_not_put_a_job_off_again():
    async with serving() as shard:
        await shard.make()
        body = {"records": [{"data": 1, "delay_ms": 1000}], "idempotency_key": "k"}
        await shard.call("append", "q", body)
        shard.clock.advance(900)
        assert (await shard.call("append", "q", body))["deduped"]
        shard.clock.advance(100)
        assert seqs_of(await shard.claim(5)) == [1]


async def test_deleted_and_expired_jobs_are_not_scheduled_any_more():
    async with serving() as shard:
        await shard.make(ttl_ms=5000)
        await shard.produce(*range(4), delay_ms=10_000, tag="t")
        await shard.produce(*range(3), delay_ms=10_000)
        assert await scheduled(shard) == 7
        await shard.call("delete", "q", {"match": ["tag", "Eq", "t"]})
        assert await scheduled(shard) == 3
        shard.clock.advance(5001)
        assert (await shard.counts(), await scheduled(shard)) == ((0, 0, 0), 0)


# --- refusals -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("record", "field"),
    [
        ({"priority": -1}, "priority"),
        ({"priority": 10}, "priority"),
        ({"priority": "9"}, "priority"),
        ({"priority": 1.5}, "priority"),
        ({"priority": True}, "priority"),
        ({"delay_ms": -1}, "delay_ms"),
        ({"delay_ms": limits.JOB_DELAY_MS_MAX + 1}, "delay_ms"),
        ({"delay_ms": "1"}, "delay_ms"),
        ({"not_before": -1}, "not_before"),
        ({"not_before": NOW + limits.JOB_DELAY_MS_MAX + 1}, "not_before"),
        ({"delay_ms": 0, "not_before": 0}, "delay_ms"),
    ],
)
async def test_what_is_wrong_is_refused_with_its_place_and_nothing_is_written(record, field):
    async with serving() as shard:
        await shard.make()
        error = await shard.refused("append", body={"records": [{"data": 1}, {"data": 2, **record}]})
        assert (error.code, error.detail["index"], error.detail["field"]) == ("invalid_request", 1, field)
        assert await shard.records("q") == []
        largest = {"priority": 9, "delay_ms": limits.JOB_DELAY_MS_MAX}
        await shard.call("append", "q", {"records": [{"data": 1, **largest}, {"data": 1, "priority": None}]})
        assert await scheduled(shard) == 1


@pytest.mark.parametrize("field", ["priority", "delay_ms", "not_before"])
async def test_a_log_takes_no_jobs(field):
    async with serving() as shard:
        await shard.call("put", "log", {})
        for topic in ("log", "made by the write".replace(" ", "-")):
            error = await shard.refused("append", topic, {"records": [{"data": 1, field: 0}]})
            assert (error.code, error.detail) == ("invalid_request", {"index": 0, "field": field})
            assert '"type":"queue"' in error.message
        body = {"records": [{"data": 1, field: 5}], "config": {"type": "queue"}}
        assert (await shard.call("append", "new", body))["created"]


# --- nacks --------------------------------------------------------------------------------------------------------


async def test_a_nack_says_why_and_a_dead_letter_tells_the_last_reason():
    async with serving() as shard:
        await shard.make(max_deliveries=2, dead_letter="dead")
        await shard.produce("x", meta={"trace": "1"})
        await shard.claim()
        await shard.settle("nack", 1, reason="first")
        shard.clock.advance(7)
        await shard.claim()
        await shard.settle("nack", 1, reason='disk "full"\n')
        failed = shard.clock.now_ms()
        shard.clock.advance(7)
        assert await shard.claim() == []
        (letter,) = await shard.records("dead")
        assert letter["meta"] == {
            "trace": "1",
            "$dead_letter_from": "q",
            "$dead_letter_deliveries": "2",
            "$dead_letter_src_seq": "1",
            "$dead_letter_reason": 'disk "full"\n',
            "$dead_letter_last_failure_ts": str(failed),
        }


async def test_without_a_reason_a_dead_letter_says_what_happened():
    async with serving() as shard:
        await shard.make(max_deliveries=1, dead_letter="dead")
        await shard.produce("nacked", "lost")
        await shard.claim(2)
        await shard.settle("nack", 1)
        shard.clock.advance(30_001)
        assert await shard.claim(2) == []
        reasons = {letter["data"]: letter["meta"]["$dead_letter_reason"] for letter in await shard.records("dead")}
        assert reasons == {"nacked": "given back without a reason", "lost": "lease expired"}


@pytest.mark.parametrize("room", [0, 200, 3000])
async def test_a_long_reason_is_cut_where_the_meta_would_be_too_large(room):
    async with serving() as shard:
        await shard.make(max_deliveries=1, dead_letter="dead")
        meta = {"m": "x" * (16 * 1024 - 9 - room)}
        await shard.produce("x", meta=meta)
        await shard.claim()
        reason = "é\n" * 340
        await shard.settle("nack", 1, reason=reason)
        await shard.claim()
        (letter,) = await shard.records("dead")
        told = letter["meta"]["$dead_letter_reason"]
        assert reason.startswith(told)
        assert (told == reason) == (room == 3000)
        assert letter["meta"]["m"] == meta["m"]
        raw = await shard.connection.call("diff", {"topic": "dead"}, b"{}")
        size = len(bytes(raw.body).partition(b'"meta":')[2].partition(b"}")[0]) + 1
        assert size <= 16 * 1024 or not told
        assert room != 200 or size > 16 * 1024 - 20 or not told


async def test_reasons_outlive_a_crash_of_a_queue_with_durable_leases():
    files, clock = FaultyFiles(), FakeClock()
    async with serving(files, clock, crash=True) as shard:
        await shard.make(max_deliveries=2, dead_letter="dead", durable=True, leases_durable=True)
        await shard.produce("x", "y", priority=2)
        await shard.claim(2)
        await shard.settle("nack", 1, reason="boom")
        await shard.settle("nack", 2, penalty=False)
    files = files.crash(3, power_loss=True)
    async with serving(files, clock) as shard:
        jobs = await shard.claim(2)
        assert [(job["$seq"], job["deliveries"]) for job in jobs] == [(1, 2), (2, 1)]
        await shard.settle("nack", 1, 2, penalty=False)
        assert [(job["$seq"], job["deliveries"]) for job in await shard.claim(2)] == [(1, 2), (2, 1)]
        await shard.settle("nack", 1)
        assert await shard.claim(2) == []
        (letter,) = await shard.records("dead")
        assert letter["meta"]["$dead_letter_deliveries"] == "2"


async def test_a_nack_without_penalty_never_makes_a_dead_letter():
    async with serving() as shard:
        await shard.make(max_deliveries=1, dead_letter="dead")
        await shard.produce("x")
        for _ in range(5):
            (job,) = await shard.claim()
            assert job["deliveries"] == 1
            await shard.settle("nack", 1, penalty=False)
        await shard.claim()
        await shard.settle("nack", 1)
        assert await shard.claim() == []


@pytest.mark.parametrize(
    ("body", "field"),
    [({"reason": 5}, "reason"), ({"reason": "é" * 513}, "reason"), ({"penalty": "no"}, "penalty")],
)
async def test_bad_nacks_are_refused_and_release_nothing(body, field):
    async with serving() as shard:
        await shard.make()
        await shard.produce("x")
        await shard.claim()
        error = await shard.refused("nack", body={"node": "w", "seqs": [1], **body})
        assert (error.code, error.detail["field"]) == ("invalid_request", field)
        assert await shard.counts() == (0, 1, 0)
