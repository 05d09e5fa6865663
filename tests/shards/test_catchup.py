"""Very many leases that end together, or are written anew: others are served meanwhile, and nobody sees half of it."""

from functools import partial
from typing import Any

import pytest
import trio

from tests.shards.queue_shard import QueueShard, seqs_of, serving
from tests.shards.test_work import pushed, working
from topics import errors, limits
from topics.core import lease_events
from topics.core.claims import deal
from topics.core.jobs import Jobs
from topics.core.lease_parts import Move
from topics.core.lease_snapshot import Snapshot
from topics.core.leases import Leases
from topics.core.ranges import SeqRanges
from topics.shards import queue_passes
from topics.testing.faulty_files import FaultyFiles
from topics.testing.rpc_pair import until

JOBS = 4_000
LEASE_MS = 30_000


@pytest.fixture(autouse=True)
def small_steps(monkeypatch):
    """Others may go on after each, so that no test depends on how fast the machine is."""
    monkeypatch.setattr(limits, "YIELD_AFTER_NS", 1)
    monkeypatch.setattr(limits, "SETTLE_STEP", 4)


class Steps(trio.abc.Instrument):
    """Which one the loop is at."""

    number = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.number += 1


@pytest.fixture
def steps(monkeypatch) -> list[int]:
    """Each step of a queue that is behind."""
    taken: list[int] = []
    settle = Leases.settle

    def count(self: Leases, *given: int) -> bool:
        over = settle(self, *given)
        if not over:
            taken.append(self.in_flight)
        return over

    monkeypatch.setattr(Leases, "settle", count)
    return taken


async def lease_all(shard: QueueShard, **config: Any) -> None:
    await shard.make(**config)
    for first in range(0, JOBS, 1000):
        await shard.produce(*range(first, first + 1000))
        await shard.claim(1000)
    assert await shard.counts() == (0, JOBS, 0)


async def test_others_are_served_while_many_leases_end(steps):
    async with serving() as shard:
        await lease_all(shard)
        await shard.produce("first", topic="other")
        shard.clock.advance(LEASE_MS + 1)
        claimed: list[Any] = []
        during: list[int] = []

        async def claim() -> None:
            claimed.extend(await shard.claim(5, node="v"))

        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(claim)
                while not claimed:
                    await shard.produce("x", topic="other")
                    during.append(len(steps))
        assert seqs_of(claimed) == [1, 2, 3, 4, 5]
        assert len(steps) >= JOBS // limits.SETTLE_STEP
        assert len(set(during)) > 3  # between slices, not before or behind them all
        assert await shard.counts() == (JOBS - 5, 5, 0)


async def test_what_is_asked_of_the_queue_meanwhile_is_done_in_order_and_sees_it_whole(steps):
    async with serving() as shard:
        await lease_all(shard)
        shard.clock.advance(LEASE_MS + 1)
        answers: dict[str, Any] = {}

        async def ask(name: str, method: str, **body: Any) -> None:
            answers[name] = await shard.call(method, "q", body)

        requests: tuple[tuple[str, str, dict[str, Any]], ...] = (
            ("ack", "ack", {"node": "w", "seqs": [2]}),
            ("claim", "claim", {"node": "v", "max": 2}),
            ("late", "ack", {"node": "w", "seqs": [1, 4]}),
            ("wait", "claim", {"node": "v", "max": 1, "wait_ms": 1}),
            ("extend", "extend", {"node": "w", "seqs": [6], "lease_ms": 1000}),
            ("state", "state", {}),
        )
        queue, behind = shard.queues.find("q"), shard.queues.behind

        def waits(number: int) -> bool:
            return len(behind._waiting.get(queue, ())) == number

        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                for number, (name, method, body) in enumerate(requests, 1):
                    nursery.start_soon(partial(ask, name, method, **body))
                    await until(partial(waits, number))
        assert not behind.is_behind(queue)
        assert answers["ack"]["acked"] == 1
        assert seqs_of(answers["claim"]["claimed"]) == [1, 3]
        assert (answers["late"]["acked"], answers["late"]["skipped"]) == (1, [1])
        assert seqs_of(answers["wait"]["claimed"]) == [5]
        assert answers["extend"]["extended"] == 1
        assert answers["state"]["queue"]["in_flight"] == 4
        assert answers["state"]["queue"]["ready"] == JOBS - 6


async def test_a_queue_that_is_deleted_meanwhile_is_not_found(steps):
    async with serving() as shard:
        await lease_all(shard)
        shard.clock.advance(LEASE_MS + 1)
        refusals: list[str] = []

        async def claim() -> None:
            refusals.append((await shard.refused("claim", "q", {"node": "v"})).code)

        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(claim)
                await until(lambda: steps)
                await shard.call("remove", "q")
                assert refusals == [] or len(steps) < JOBS // limits.SETTLE_STEP
        assert refusals == [errors.TOPIC_NOT_FOUND]


async def test_a_worker_that_waits_is_fed_when_many_leases_have_ended(steps):
    async with serving() as shard:
        await lease_all(shard)
        jobs: list[Any] = []

        async def claim() -> None:
            jobs.extend(await shard.claim(3, node="v", wait_ms=20_000))

        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(claim)
                await until(lambda: not shard.queues.find("q").idle)
                shard.clock.advance(LEASE_MS + 1)
                await shard.produce("one more")  # the timer of the queue is by the system's clock
        assert seqs_of(jobs) == [1, 2, 3]
        assert len(steps) >= JOBS // limits.SETTLE_STEP


@pytest.mark.parametrize("jitter_ms", [0, 5])
async def test_claims_behind_a_large_delete_are_all_answered_and_others_are_served_meanwhile(jitter_ms, monkeypatch):
    """Also those for which nothing is left."""
    monkeypatch.setattr(limits, "PASS_STEP", 10)
    async with serving() as shard:
        await lease_all(shard, claim_jitter_ms=jitter_ms)
        shard.clock.advance(LEASE_MS + 1)
        assert await shard.counts() == (JOBS, 0, 0)
        await shard.call("delete", "q", {"before_seq": JOBS})
        await shard.produce("x", topic="other")
        answers: list[Any] = []
        passes: list[int] = []
        during: list[int] = []

        def count(*given: Any) -> Any:
            passes.append(1)
            return deal(*given)

        monkeypatch.setattr(queue_passes, "deal", count)

        async def claim() -> None:
            answers.append(await shard.claim(1, node="v"))

        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                for _ in range(3):
                    nursery.start_soon(claim)
                while len(answers) < 3:
                    await shard.produce("x", topic="other")
                    during.append(len(passes))
        assert sorted(map(seqs_of, answers)) == [[], [], [JOBS]]
        assert len(passes) >= JOBS // limits.PASS_STEP
        assert len(set(during)) > 3


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize(("claimers", "most"), [(8, 500), (400, 1)])
@pytest.mark.parametrize("jitter_ms", [0, 20])
async def test_claims_that_are_served_together_are_so_in_steps_and_get_even_parts(
    jitter_ms, claimers, most, durable, monkeypatch
):
    dealt: list[int] = []
    told: list[int] = []
    sizes: list[int] = []
    tasks: list[trio.lowlevel.Task] = []

    def count(topic: Any, leases: Any, wants: Any, *rest: Any) -> Any:
        due = deal(topic, leases, wants, *rest)
        dealt.append(sum(32 + len(want.picks) for want in wants))
        tasks.append(trio.lowlevel.current_task())
        return due

    monkeypatch.setattr(queue_passes, "deal", count)
    async with serving() as shard:
        await shard.make(claim_jitter_ms=jitter_ms, leases_durable=durable)

        async def claim(number: int) -> None:
            jobs = await shard.claim(most, node=f"n{number}", wait_ms=20_000)
            told.extend(seqs_of(jobs))
            sizes.append(len(jobs))

        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                for number in range(claimers):
                    nursery.start_soon(claim, number)
                await until(lambda: len(shard.queues.find("q")._takers) == claimers)
                await shard.produce(*range(claimers * most * 3 // 4 + (most == 1) * claimers))
        assert sorted(told) == list(range(1, len(told) + 1))
        assert max(sizes) - min(sizes) <= 1
        assert min(sizes) == max(1, most * 3 // 4)
        assert max(dealt) <= limits.PASS_JOBS
        assert len(set(tasks)) == len(tasks) >= 4  # each in a turn of its own


async def test_large_claims_that_come_together_have_a_turn_each_and_so_have_their_answers(monkeypatch):
    steps = Steps()
    dealt: list[int] = []
    shown: list[int] = []
    render = Jobs.render

    def count(*given: Any) -> Any:
        dealt.append(steps.number)
        return deal(*given)

    def show(self: Jobs, *given: Any) -> Any:
        shown.append(steps.number)
        return render(self, *given)

    monkeypatch.setattr(queue_passes, "deal", count)
    monkeypatch.setattr(Jobs, "render", show)
    async with serving() as shard:
        await shard.make()
        await shard.produce(*range(1000))
        trio.lowlevel.add_instrument(steps)
        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(shard.claim, 250)
        trio.lowlevel.remove_instrument(steps)
        assert len(dealt) == len(shown) == 4
        assert len({*dealt, *shown}) == 8  # never two of them in one step of a task


async def test_leases_that_begin_to_be_logged_are_written_in_steps_ahead_of_who_asks_for_a_job(monkeypatch):
    monkeypatch.setattr(limits, "KEPT_AT_ONCE", 100)
    files = FaultyFiles()
    packed: list[int] = []
    during: list[int] = []
    fields = Snapshot.fields

    def count(self: Snapshot) -> Any:
        packed.append(len(self.leases))
        return fields(self)

    monkeypatch.setattr(Snapshot, "fields", count)
    monkeypatch.setattr(limits, "KEPT_PART", 100)
    async with serving(files, crash=True) as shard:
        clock = shard.clock
        await lease_all(shard)
        await shard.produce("last")
        await shard.produce("x", topic="other")
        await shard.make(leases_durable=True)
        claimed: list[Any] = []

        async def claim() -> None:
            claimed.extend(await shard.claim(1, node="v"))

        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(claim)
                while not claimed:
                    await shard.produce("x", topic="other")
                    during.append(len(packed))
        assert seqs_of(claimed) == [JOBS + 1]
        assert len(set(during)) > 3
        assert packed == [100] * (JOBS // 100) + [0]  # the rest
    async with serving(files, clock) as shard:
        assert await shard.counts() == (0, JOBS + 1, 0)
        assert (await shard.settle("ack", 1, JOBS + 1))["skipped"] == [JOBS + 1]
        assert (await shard.settle("ack", JOBS + 1, node="v"))["acked"] == 1


@pytest.mark.parametrize("end", [0, 5, 1000], ids=["at its begin", "amid", "at its end"])
async def test_what_happens_to_leases_while_they_begin_to_be_logged_stands_whatever_a_crash_keeps(end, monkeypatch):
    """And whoever writes the log anew waits. Nothing makes all be written at once."""
    monkeypatch.setattr(limits, "KEPT_AT_ONCE", 100)
    monkeypatch.setattr(limits, "KEPT_PART", 100)
    files = FaultyFiles()
    async with serving(files, crash=True) as shard:
        clock, log = shard.clock, shard.queues.log
        await lease_all(shard)
        await shard.produce("last")
        await shard.make(leases_durable=True)
        found = shard.queues.find("q")
        work, anew = log.begin_in_steps(found.topic), log.write_anew()
        next(work)
        assert next(anew, "over") is None
        before = shard.shard.store.engine.log.last_lsn  # type: ignore[union-attr]
        found.abandon([1, 2], counts=True)  # of somebody whose connection is gone
        assert shard.shard.store.engine.log.last_lsn == before + 1  # type: ignore[union-attr]
        found.leases.move([3], Move("dead", 1, 0))
        log.note(found.topic, lease_events.moving([(3, Move("dead", 1, 0))]))
        for _ in range(end):
            next(work, None)
        log.note(found.topic, lease_events.moved([3]))
        found.leases.dead_lettered += 1
        gone = SeqRanges.from_ascending([3])
        shard.queues.engine.delete_records(found.topic, 0, gone, lambda _: None, lambda _: None)
        if end == 1000:
            assert found.leases.logged
            for _ in anew:
                pass
        await shard.shard.committer.flushed()  # type: ignore[union-attr]
    async with serving(files, clock) as shard:
        if end < 1000:  # it has not been, and nobody was told otherwise: nobody holds anything
            assert await shard.counts() == (JOBS, 0, 1)
            assert seqs_of(await shard.claim(4, node="v")) == [1, 2, 4, 5]
            return
        assert await shard.counts() == (3, JOBS - 3, 1)
        jobs = await shard.claim(9, node="v")
        assert [(job["$seq"], job["deliveries"]) for job in jobs] == [(1, 2), (2, 2), (JOBS + 1, 1)]


@pytest.mark.parametrize("part", [0.0, 0.1, 0.5, 1.0])
async def test_leases_that_are_written_anew_are_there_whatever_a_crash_keeps_of_that(part, monkeypatch):
    """With what happened to them in between."""
    monkeypatch.setattr(limits, "KEPT_PART", 100)
    files = FaultyFiles()
    async with serving(files, crash=True) as shard:
        clock = shard.clock
        await lease_all(shard, leases_durable=True)
        work = shard.queues.log.write_anew()
        whole = sum(1 for _ in shard.queues.log.write_anew())
        assert whole > JOBS // limits.KEPT_PART
        for step in range(int(part * whole) + 1):
            next(work, None)
            if step == 1:
                await shard.settle("nack", 1, 2)
                await shard.settle("extend", 3, lease_ms=90_000)
            elif step == whole // 3:
                assert seqs_of(await shard.claim(1, node="v")) == [1]
        answered = await shard.counts()
        await shard.shard.committer.flushed()  # type: ignore[union-attr]
    async with serving(files, clock) as shard:
        assert await shard.counts() == answered
        taken = seqs_of(await shard.claim(1, node="x"))
        assert taken == ([2] if part >= 0.5 else [1] if part else [])
        clock.advance(LEASE_MS + 1)
        assert (await shard.counts())[1] == (1 if part else 0)


@pytest.mark.parametrize("is_new", [True, False], ids=["for the first time", "anew"])
async def test_who_writes_leases_down_when_the_log_is_closed_writes_no_more(is_new, monkeypatch):
    """A clean stop has written down everything. Parts behind that would be taken for all there is."""
    monkeypatch.setattr(limits, "KEPT_AT_ONCE", 100)
    monkeypatch.setattr(limits, "KEPT_PART", 100)
    files = FaultyFiles()
    async with serving(files, crash=True) as shard:
        clock, log, engine = shard.clock, shard.queues.log, shard.queues.engine
        await lease_all(shard, leases_durable=not is_new)
        await shard.make(leases_durable=True)
        work = log.begin_in_steps(shard.queues.find("q").topic) if is_new else log.write_anew()
        for _ in range(3):
            assert next(work, "over") is None
        log.close()
        before = engine.log.last_lsn
        for _ in (*work, *log.write_anew()):
            pass
        assert engine.log.last_lsn == before
        await shard.shard.committer.flushed()  # type: ignore[union-attr]
    async with serving(files, clock) as shard:
        assert await shard.counts() == (0, JOBS, 0)


async def test_a_stream_that_ends_when_the_log_is_closed_takes_nobody_elses_leases_along():
    """They are no longer logged, but were; what a clean stop has written down stands."""
    files = FaultyFiles()
    async with serving(files, crash=True) as shard:
        clock = shard.clock
        await shard.make(leases_durable=True)
        await shard.produce(*range(10))
        await shard.claim(4)
        async with working(shard) as worker:
            await pushed(worker, 2)
            await shard.make(leases_durable=False)
            shard.queues.log.close()
        await until(lambda: not shard.queues.find("q")._streams)
        await shard.shard.committer.flushed()  # type: ignore[union-attr]
    async with serving(files, clock) as shard:
        assert await shard.counts() == (6, 4, 0)
