"""Queues over a shard's calls: claims, acks, nacks, extends, waiting, cohorts."""

import threading
from typing import Any

import pytest
import trio
import trio.testing

from tests.shards.queue_shard import QueueShard, seqs_of, serving, without
from topics import errors, limits
from topics.clock import SystemClock
from topics.core import replies
from topics.shards.queues import Claimer
from topics.testing.faulty_files import FaultyFiles
from topics.testing.rpc_pair import until

NOW = 1_700_000_000_000


async def test_a_job_from_claim_to_ack():
    async with serving() as shard:
        await shard.make()
        await shard.call("append", "q", {"records": [{"data": {"n": 1}, "tag": "t", "meta": {"a": "b"}, "node": "p"}]})
        assert await shard.counts() == (1, 0, 0)
        (job,) = await shard.claim(5)
        assert job["lease_id"].startswith("lease_")
        assert int(job["lease_id"][6:], 16) > 0
        assert without(job, "lease_id") == {
            "$seq": 1, "$ts": NOW, "$node": "p", "$tag": "t", "deadline": NOW + 30_000, "deliveries": 1,
            "data": {"n": 1}, "meta": {"a": "b"},
        }  # fmt: skip
        assert await shard.counts() == (0, 1, 0)
        answer = await shard.settle("ack", 1)
        assert without(answer, "performance") == {
            "topic": "q", "acked": 1, "skipped": [], "ready": 0, "in_flight": 0,
        }  # fmt: skip
        assert await shard.records("q") == []
        assert (await shard.settle("ack", 1))["skipped"] == [1]


async def test_time_passes_although_the_clock_was_set_back():
    async with serving() as shard:
        await shard.make()
        await shard.produce(1)
        shard.clock.jump_wall(-3_600_000)
        await shard.produce(2, delay_ms=300)
        assert seqs_of(await shard.claim(2, lease_ms=500)) == [1]
        shard.clock.advance(350)
        assert seqs_of(await shard.claim(2, "w2")) == [2]
        shard.clock.advance(250)
        assert seqs_of(await shard.claim(2, "w2")) == [1]


async def test_claims_are_clamped_and_in_order():
    async with serving() as shard:
        await shard.make()
        await shard.produce(*range(1500))
        jobs = await shard.claim(5000, lease_ms=1)
        assert seqs_of(jobs) == list(range(1, 1001))
        assert {job["deadline"] for job in jobs} == {NOW + 100}
        assert (await shard.claim(1, lease_ms=10**18))[0]["deadline"] == NOW + 86_400_000
        assert len({job["lease_id"] for job in jobs}) == 1000


async def test_only_the_holder_counts_and_lease_ids_fence():
    async with serving() as shard:
        await shard.make()
        await shard.produce(1, 2, 3)
        first = await shard.claim(3, lease_ms=1000)
        ids = [job["lease_id"] for job in first]
        for method in ("ack", "nack", "extend"):
            assert (await shard.settle(method, 1, 2, node="other", lease_ms=500))["skipped"] == [1, 2]
        shard.clock.advance(1001)
        again = await shard.claim(1, lease_ms=1000)
        assert (seqs_of(again), again[0]["deliveries"]) == ([1], 2)
        stale = await shard.settle("ack", 1, 2, 99, lease_ids=[ids[0], ids[1], "lease_x"])
        assert (stale["acked"], stale["skipped"]) == (1, [1, 99])  # 2 has expired, but nobody else has it
        assert (await shard.settle("ack", 1, lease_ids=[again[0]["lease_id"]]))["acked"] == 1
        assert await shard.counts() == (1, 0, 0)


async def test_a_nack_gives_back_now_or_later():
    async with serving() as shard:
        await shard.make()
        await shard.produce(1, 2)
        await shard.claim(2)
        answer = await shard.settle("nack", 1, 1, 7)
        assert without(answer, "performance") == {
            "topic": "q", "nacked": 1, "skipped": [7], "ready": 1, "in_flight": 1,
        }  # fmt: skip
        assert await shard.settle("nack", 2, delay_ms=500) == {
            "topic": "q", "nacked": 1, "skipped": [], "ready": 1, "in_flight": 0,
        }  # fmt: skip
        assert seqs_of(await shard.claim(5)) == [1]
        shard.clock.advance(499)
        assert await shard.counts() == (0, 1, 0)
        shard.clock.advance(1)
        assert [(job["$seq"], job["deliveries"]) for job in await shard.claim(5)] == [(2, 2)]


async def test_an_extension_is_set_not_added():
    async with serving() as shard:
        await shard.make(lease_ms=1000)
        await shard.produce(1)
        await shard.claim()
        shard.clock.advance(900)
        answer = await shard.settle("extend", 1, 5, lease_ms=2000)
        assert without(answer, "performance") == {
            "topic": "q", "extended": 1, "skipped": [5], "deadlines": {"1": NOW + 2900},
        }  # fmt: skip
        shard.clock.advance(2000)
        assert await shard.counts() == (0, 1, 0)
        shard.clock.advance(1)
        assert await shard.counts() == (1, 0, 0)
        assert (await shard.claim())[0]["deliveries"] == 2
        assert (await shard.settle("extend", 1, lease_ms=1))["deadlines"] == {"1": NOW + 2901 + 100}


@pytest.mark.parametrize(
    ("method", "body", "code"),
    [
        ("claim", {}, errors.INVALID_REQUEST),
        ("claim", {"node": ""}, errors.INVALID_REQUEST),
        ("claim", {"node": "x" * 129}, errors.INVALID_REQUEST),
        *[("claim", {"node": "w", "max": bad}, errors.INVALID_REQUEST) for bad in (0, -1, 1.5, "3", True)],
        *[("claim", {"node": "w", "lease_ms": bad}, errors.INVALID_REQUEST) for bad in (-1, 1.5, "3")],
        ("claim", {"node": "w", "wait_ms": -1}, errors.INVALID_REQUEST),
        ("ack", {"node": "w"}, errors.INVALID_REQUEST),
        ("ack", {"node": "w", "seqs": []}, errors.INVALID_REQUEST),
        ("ack", {"seqs": [1]}, errors.INVALID_REQUEST),
        ("ack", {"node": "w", "seqs": ["1"]}, errors.INVALID_REQUEST),
        ("ack", {"node": "w", "seqs": [-1]}, errors.INVALID_REQUEST),
        ("ack", {"node": "w", "seqs": [1], "lease_ids": []}, errors.INVALID_REQUEST),
        ("ack", {"node": "w", "seqs": [1], "lease_ids": [7]}, errors.INVALID_REQUEST),
        ("ack", {"node": "w", "seqs": list(range(1001))}, errors.BATCH_TOO_LARGE),
        ("nack", {"node": "w", "seqs": list(range(1001))}, errors.BATCH_TOO_LARGE),
        ("nack", {"node": "w", "seqs": [1], "delay_ms": -1}, errors.INVALID_REQUEST),
        ("extend", {"node": "w", "seqs": list(range(1001)), "lease_ms": 1}, errors.BATCH_TOO_LARGE),
        ("extend", {"node": "w", "seqs": [1]}, errors.INVALID_REQUEST),
    ],
)
async def test_what_is_wrong_is_refused(method, body, code):
    async with serving() as shard:
        await shard.make()
        assert (await shard.refused(method, "q", body)).code == code


async def test_other_topics_are_no_queues():
    async with serving() as shard:
        await shard.call("put", "log", {})
        for method, more in (("claim", {}), ("ack", {"seqs": [1]}), ("extend", {"seqs": [1], "lease_ms": 1})):
            assert (await shard.refused(method, "log", {"node": "w", **more})).code == errors.NOT_A_QUEUE
            assert (await shard.refused(method, "none", {"node": "w", **more})).code == errors.TOPIC_NOT_FOUND


async def test_jobs_of_the_claimers_own_node_are_claimed_too():
    async with serving() as shard:
        await shard.make()
        await shard.produce(1, node="w")
        assert len(await shard.claim(node="w")) == 1


async def test_jobs_in_files_are_claimed_like_any():
    async with serving() as shard:
        await shard.make()
        await shard.produce(*["x" * 300] * 600)
        await shard.shard.checkpoint()
        await shard.produce("last", tag="end")
        assert shard.shard.store is not None
        for chunk in shard.shard.store.engine.state.topics["q"].chunks:
            if chunk.file is not None:
                chunk.block = None
        jobs = await shard.claim(1000)
        assert seqs_of(jobs) == list(range(1, 602))
        assert (jobs[0]["data"], jobs[-1]["data"], jobs[-1]["$tag"]) == ("x" * 300, "last", "end")


async def test_a_topic_that_is_made_anew_has_no_leases():
    async with serving() as shard:
        await shard.make()
        await shard.produce(1)
        await shard.claim()
        await shard.call("remove", "q")
        await shard.make()
        await shard.produce(2)
        assert await shard.counts() == (1, 0, 0)
        assert [(job["$seq"], job["deliveries"]) for job in await shard.claim()] == [(1, 1)]


async def test_acks_of_a_durable_queue_share_syncs_and_are_not_counted_twice():
    async with serving() as shard:
        await shard.make(durable=True)
        await shard.produce(*range(200))
        jobs = await shard.claim(200)
        assert shard.shard.committer is not None
        before = shard.shard.committer.sync_times.count
        acked = []

        async def ack(seq: int) -> None:
            acked.append((await shard.settle("ack", seq))["acked"])

        async with trio.open_nursery() as nursery:
            for seq in [*seqs_of(jobs), 1]:
                nursery.start_soon(ack, seq)
        assert sorted(acked) == [0] + [1] * 200
        assert shard.shard.committer.sync_times.count - before < 60
        assert await shard.counts() == (0, 0, 0)


# --- waiting ------------------------------------------------------------------------------------------------------


async def background(shard: QueueShard, nursery, **claim):
    """A claim that goes on; its jobs arrive in the list."""
    got: list = []

    async def run() -> None:
        got.append(seqs_of(await shard.claim(**claim)))

    nursery.start_soon(run)
    await trio.testing.wait_all_tasks_blocked()
    return got


async def test_an_empty_queue_answers_at_once():
    async with serving() as shard:
        await shard.make()
        with trio.fail_after(3):
            assert await shard.claim() == []


@pytest.mark.parametrize(("jitter_ms", "wait_ms", "ready"), [(50, 0, 1), (0, 30_000, 0)])
async def test_nothing_is_given_out_once_a_shard_that_stops_stores_who_holds_what(jitter_ms, wait_ms, ready):
    """Else the next life would give it out again, while its holder works on it."""
    async with serving() as shard, trio.open_nursery() as nursery:
        await shard.make(claim_jitter_ms=jitter_ms)
        await shard.produce(1, 2)
        if not ready:
            await shard.claim(2, "other", lease_ms=100)
        refused: list[str] = []

        async def claim() -> None:
            refused.append((await shard.refused("claim", "q", {"node": "w", "wait_ms": wait_ms})).code)

        nursery.start_soon(claim)
        await trio.testing.wait_all_tasks_blocked()
        service = shard.shard.service
        assert service is not None
        service.draining = True
        if not ready:
            shard.clock.advance(101)
            shard.queues.find("q").wake()
        await until(lambda: refused)
        assert refused == [errors.SHUTTING_DOWN]
        assert await shard.counts() == (2, 0, 0)


async def test_a_claim_may_wait_for_a_job():
    async with serving() as shard, trio.open_nursery() as nursery:
        await shard.make()
        got = await background(shard, nursery, wait_ms=30_000)
        assert not got
        await shard.produce("x")
        await until(lambda: got)
        assert got == [[1]]


async def test_a_claim_that_waits_gets_what_a_nack_or_a_deadline_frees():
    async with serving(clock=SystemClock()) as shard, trio.open_nursery() as nursery:
        await shard.make()
        await shard.produce("x")
        await shard.claim(node="a")
        first = await background(shard, nursery, node="b", wait_ms=30_000, lease_ms=100)
        await shard.settle("nack", 1, node="a")
        await until(lambda: first)
        second = await background(shard, nursery, node="c", wait_ms=30_000)
        with trio.fail_after(60):
            while not second:
                await trio.sleep(0.01)
        assert (first, second) == ([[1]], [[1]])


async def test_a_wait_ends_with_its_time_or_its_caller():
    async with serving() as shard:
        await shard.make()
        with trio.fail_after(60):
            assert await shard.claim(wait_ms=30) == []
        with trio.move_on_after(0.05):
            await shard.claim(wait_ms=30_000)
        await shard.produce(1)
        assert await shard.counts() == (1, 0, 0)


class SlowFiles(FaultyFiles):
    """A disk whose syncs can be held up."""

    def __init__(self) -> None:
        super().__init__()
        self.may_sync = threading.Event()
        self.may_sync.set()

    def sync(self, *args: Any) -> None:
        assert self.may_sync.wait(20)
        super().sync(*args)


async def test_a_wait_that_ends_while_its_jobs_are_logged_gets_them():
    files = SlowFiles()
    async with serving(files) as shard, trio.open_nursery() as nursery:
        await shard.make(leases_durable=True)
        await shard.produce(1, 2)
        files.may_sync.clear()
        got = await background(shard, nursery, wait_ms=1)
        with trio.fail_after(60):
            await until(lambda: not shard.queues.timers._heap)  # its time is over
            files.may_sync.set()
            await until(lambda: got)
        assert got == [[1]]
        assert await shard.counts() == (1, 1, 0)


async def test_trouble_with_one_claim_is_not_that_of_others(monkeypatch):
    """They are answered by the same callback of the log."""
    give = Claimer.give

    def give_or_break(claimer: Claimer, jobs: Any) -> None:
        if claimer.node == "broken":
            raise RuntimeError("broken")
        give(claimer, jobs)

    monkeypatch.setattr(Claimer, "give", give_or_break)
    async with serving() as shard, trio.open_nursery() as nursery:
        await shard.make(leases_durable=True, claim_jitter_ms=100)
        await shard.produce(1, 2)
        refused: list[str] = []

        async def claim() -> None:
            refused.append((await shard.refused("claim", "q", {"node": "broken"})).code)

        nursery.start_soon(claim)
        await trio.testing.wait_all_tasks_blocked()
        assert seqs_of(await shard.claim()) == [2]
        await until(lambda: refused)
        assert refused == [errors.INTERNAL]
        assert [(job["$seq"], job["deliveries"]) for job in await shard.claim()] == [(1, 1)]


async def test_a_wait_that_ends_while_its_cohort_gathers_gets_its_share():
    async with serving() as shard:
        await shard.make(claim_jitter_ms=200)
        await shard.produce(*range(5))
        assert seqs_of(await shard.claim(2, wait_ms=1)) == [1, 2]
        await shard.claim(3)
        assert await shard.claim(2, wait_ms=1) == []


async def test_a_wait_ends_with_its_queue():
    async with serving() as shard, trio.open_nursery() as nursery:
        await shard.make()
        refusals = []

        async def claim() -> None:
            refusals.append((await shard.refused("claim", "q", {"node": "w", "wait_ms": 30_000})).code)

        nursery.start_soon(claim)
        await trio.testing.wait_all_tasks_blocked()
        await shard.call("remove", "q")
        await until(lambda: refusals)
        assert refusals == [errors.TOPIC_NOT_FOUND]


async def test_a_cohort_shares_what_there_is():
    async with serving() as shard:
        await shard.make(claim_jitter_ms=300)
        await shard.produce(*range(50))
        got: list[list[int]] = []

        async def claim(number: int) -> None:
            got.append(seqs_of(await shard.claim(10, node=f"w{number}")))

        async with trio.open_nursery() as nursery:
            for number in range(10):
                nursery.start_soon(claim, number)
        assert [len(seqs) for seqs in got] == [5] * 10
        assert all(seqs == sorted(seqs) for seqs in got)
        assert sorted(seq for seqs in got for seq in seqs) == list(range(1, 51))


async def test_a_cohort_gathers_before_there_is_anything():
    async with serving() as shard:
        await shard.make(claim_jitter_ms=500)
        got: list[int] = []

        async def claim(number: int) -> None:
            got.append(len(await shard.claim(9, node=f"w{number}")))

        async with trio.open_nursery() as nursery:
            for number in range(3):
                nursery.start_soon(claim, number)
            await trio.testing.wait_all_tasks_blocked()
            await shard.produce(*range(6))
        assert got == [2, 2, 2]
        assert await shard.claim() == []


# --- restarts -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("durable", [False, True])
async def test_leases_over_a_restart(crash, durable):
    """A clean stop keeps them; a crash keeps those that are logged, and the others are claimable again."""
    files = FaultyFiles()
    async with serving(files, crash=crash) as shard:
        clock = shard.clock
        await shard.make(durable=True, leases_durable=durable)
        await shard.produce(*range(6))
        first = await shard.claim(4)
        await shard.settle("nack", 2)
        await shard.settle("nack", 3, delay_ms=1000)
        await shard.settle("extend", 4, lease_ms=60_000)
        await shard.settle("ack", 1)
        before = await shard.counts()
    assert before == (3, 1, 0)
    kept = durable or not crash
    async with serving(files, clock, crash=True) as shard:
        assert await shard.counts() == (before if kept else (5, 0, 0))
        if kept:
            assert (await shard.settle("ack", 4, lease_ids=[first[3]["lease_id"]]))["acked"] == 1
            assert [(job["$seq"], job["deliveries"]) for job in await shard.claim(9)] == [(2, 2), (5, 1), (6, 1)]
            clock.advance(1000)
            assert [(job["$seq"], job["deliveries"]) for job in await shard.claim(9)] == [(3, 2)]
        else:
            assert [(job["$seq"], job["deliveries"]) for job in await shard.claim(9)] == [
                (2, 1), (3, 1), (4, 1), (5, 1), (6, 1),
            ]  # fmt: skip
    async with serving(files, clock) as shard:
        expected = (0, 4, 0) if durable else (4 if kept else 5, 0, 0)
        assert await shard.counts() == expected


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_lease_that_ended_while_leases_were_not_durable_stays_ended(restarts):
    files = FaultyFiles()
    async with serving(files, crash=True) as shard:
        clock = shard.clock
        await shard.make(leases_durable=True, durable=True)
        await shard.produce("x")
        await shard.claim(lease_ms=3_600_000)
        await shard.call("put", "q", {"leases_durable": False})
        if not restarts:
            await shard.settle("nack", 1)
            await shard.call("put", "q", {"leases_durable": True})
        await shard.shard.committer.flushed()  # type: ignore[union-attr]
    if restarts:  # which ends it as well
        async with serving(files, clock, crash=True) as shard:
            assert seqs_of(await shard.claim(lease_ms=1000)) == [1]
            await shard.call("put", "q", {"leases_durable": True})
            await shard.shard.committer.flushed()  # type: ignore[union-attr]
    async with serving(files, clock) as shard:
        assert await shard.counts() == (1, 0, 0)
        assert seqs_of(await shard.claim()) == [1]


async def test_the_leases_log_stays_small(monkeypatch):
    monkeypatch.setattr(limits, "LEASE_EVENTS_MIN", 20)
    files = FaultyFiles()
    async with serving(files, crash=True) as shard:
        clock = shard.clock
        shard.queues.log._limit = 20
        await shard.make(leases_durable=True)
        await shard.produce(*range(10))
        for _ in range(60):
            jobs = await shard.claim(3)
            await shard.settle("nack", *seqs_of(jobs))
        await shard.claim(3)
        assert shard.shard.store is not None
        assert shard.shard.store.engine.state.topics["$leases"].count < 60
    async with serving(files, clock) as shard:
        assert await shard.counts() == (7, 3, 0)
        shard.clock.advance(30_001)
        assert [job["deliveries"] for job in await shard.claim(4)] == [62, 62, 62, 1]


@pytest.mark.parametrize("leases_durable", [False, True])
async def test_a_claim_whose_answer_reaches_nobody_is_given_back_at_once(monkeypatch, leases_durable):
    """The caller's end crosses with the answer on the way."""
    scope = trio.CancelScope()
    answer = replies.claimed

    def answer_and_lose(*given):
        scope.cancel()
        return answer(*given)

    async with serving() as shard:
        await shard.make(leases_durable=leases_durable, max_deliveries=1, dead_letter="dead")
        await shard.produce("x", "y")
        monkeypatch.setattr(replies, "claimed", answer_and_lose)
        with scope:
            await shard.claim(2)
        assert scope.cancelled_caught
        monkeypatch.undo()
        await until(lambda: shard.queues.find("q").ready == 2)
        assert [job["deliveries"] for job in await shard.claim(2)] == [1, 1]
