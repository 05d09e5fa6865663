"""Passes that are done in steps: who wants much gets portions, very many are asked and told some at a time, and what
each gets in the end is what one step would have given it."""

import gc
import weakref
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import trio

from tests.shards.queue_shard import QueueShard, seqs_of, serving
from tests.shards.test_work import pushed, working
from topics import errors, limits
from topics.core.claims import deal
from topics.errors import TopicsError
from topics.shards import queue_passes
from topics.shards.queue import Queue
from topics.shards.queue_cohort import Cohort
from topics.shards.queue_filling import Filling
from topics.shards.queue_passes import Passes
from topics.shards.queues import Queues
from topics.testing.faulty_files import FaultyFiles
from topics.testing.rpc_pair import until

PORTION = 32


@pytest.fixture(autouse=True)
def small_steps(monkeypatch):
    """Others may go on after each, so that no test depends on how fast the machine is."""
    monkeypatch.setattr(limits, "YIELD_AFTER_NS", 1)
    monkeypatch.setattr(limits, "PORTION_JOBS", PORTION)


@pytest.fixture
def dealt(monkeypatch) -> Iterator[list[int]]:
    """How many jobs each step dealt."""
    counts: list[int] = []
    tasks: list[trio.lowlevel.Task] = []

    def count(topic: Any, leases: Any, wants: Any, *rest: Any) -> Any:
        due = deal(topic, leases, wants, *rest)
        counts.append(sum(len(want.picks) for want in wants))
        tasks.append(trio.lowlevel.current_task())
        return due

    monkeypatch.setattr(queue_passes, "deal", count)
    yield counts
    later = [task for task in tasks if "in_slices" in task.name]
    assert len(set(later)) == len(later)  # each in a turn of its own


async def produce_ranked(shard: QueueShard) -> list[int]:
    """Jobs with priorities; their seqs in the order in which they are to be given out."""
    await shard.make(priority_age_ms=0)
    priorities = [3, 9, 0, 5] * 50
    for priority in priorities:
        await shard.produce("x", priority=priority)
    return sorted(range(1, 201), key=lambda seq: (-priorities[seq - 1], seq))


@pytest.mark.parametrize("again", [False, True])
async def test_jobs_with_priorities_are_leased_in_portions_and_told_in_their_order(again, dealt):
    async with serving() as shard:
        order = await produce_ranked(shard)
        if again:
            held = seqs_of(await shard.claim(200))
            await shard.settle("nack", *held)
        dealt.clear()
        jobs = await shard.claim(150)
        assert seqs_of(jobs) == order[:150]
        assert len({job["lease_id"] for job in jobs}) == 150
        assert {(job["deadline"], job["deliveries"]) for job in jobs} == {(jobs[0]["deadline"], 1 + again)}
        assert (max(dealt), sum(dealt)) == (PORTION // queue_passes.LINE_COST, 150)
        assert await shard.counts() == (50, 150, 0)
        ids = [job["lease_id"] for job in jobs]
        assert (await shard.settle("ack", *seqs_of(jobs), lease_ids=ids))["acked"] == 150
        assert seqs_of(await shard.claim(100)) == order[150:]


@pytest.mark.parametrize("durable", [False, True])
async def test_a_large_claim_has_what_came_back_and_what_is_new_in_the_order_of_seqs(durable, dealt):
    async with serving() as shard:
        await shard.make(leases_durable=durable)
        await shard.produce(*range(100))
        await shard.claim(100)
        await shard.settle("nack", *range(20, 101, 2))
        await shard.produce(*range(100))
        dealt.clear()
        jobs = await shard.claim(120)
        assert seqs_of(jobs) == [*range(20, 101, 2), *range(101, 180)]
        assert [job["deliveries"] for job in jobs] == [2] * 41 + [1] * 79
        assert dealt == [PORTION] * 3 + [24]
        assert seqs_of(await shard.claim(120)) == [*range(180, 201)]


async def test_who_claims_while_another_is_served_in_portions_comes_behind_it():
    async with serving() as shard:
        await shard.make()
        await shard.produce(*range(100))
        got: dict[str, list[int]] = {}

        async def claim(name: str, most: int) -> None:
            got[name] = seqs_of(await shard.claim(most, node=name))

        found = shard.queues.find("q")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(claim, "much", 90)
            await until(lambda: found._passes.is_serving)
            nursery.start_soon(claim, "rest", 50)
        assert got == {"much": [*range(1, 91)], "rest": [*range(91, 101)]}


async def test_one_who_goes_amid_its_portions_leaves_all_of_them_undelivered(dealt):
    async with serving() as shard:
        await shard.make()
        await shard.produce(*range(100))
        found = shard.queues.find("q")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(shard.claim, 90)
            await until(lambda: found.leases.in_flight)
            assert found.leases.in_flight < 90
            nursery.cancel_scope.cancel()
        await until(lambda: not found.leases.in_flight)
        jobs = await shard.claim(100, node="v")
        assert [(job["$seq"], job["deliveries"]) for job in jobs] == [(seq, 1) for seq in range(1, 101)]


@pytest.mark.parametrize("kind", ["claim", "stream"])
async def test_a_log_without_room_amid_portions(kind, monkeypatch):
    """A claim is refused and leaves everything behind it; a stream has what it got before, and the rest later."""
    log, calls = Queue.log, []

    def refuse_third(self: Queue, made: Any, done: Any) -> bool:
        calls.append(made[0])
        if len(calls) == 3:
            raise TopicsError(errors.THROTTLED, "no room", {"retry_after_ms": 1})
        return log(self, made, done)

    async with serving() as shard:
        await shard.make(leases_durable=True)
        await shard.produce(*range(100))
        monkeypatch.setattr(Queue, "log", refuse_third)
        if kind == "claim":
            assert (await shard.refused("claim", "q", {"node": "w", "max": 90})).code == errors.THROTTLED
            jobs = await shard.claim(100, node="v")
            assert [(job["$seq"], job["deliveries"]) for job in jobs] == [(seq, 1) for seq in range(1, 101)]
        else:
            async with working(shard, max=90) as worker:
                assert await pushed(worker, 90) == [*range(1, 91)]


async def test_a_stream_with_much_room_gets_its_jobs_in_portions_and_together(dealt):
    async with serving() as shard:
        await shard.make()
        await shard.produce(*range(100))
        async with working(shard, max=90) as worker:
            assert await pushed(worker, 90) == [*range(1, 91)]
        assert dealt[:3] == [PORTION, PORTION, 26]
        await until(lambda: not shard.queues.find("q").leases.in_flight)
        assert await shard.counts() == (100, 0, 0)


async def test_portions_together_are_no_more_than_one_answer_may_hold(monkeypatch):
    async with serving() as shard:
        await shard.make()
        await shard.produce(*["x" * 1000] * 100)
        size = next(iter(shard.queues.find("q").topic.chunks)).sizes[0]
        monkeypatch.setattr(limits, "CLAIM_BYTES_MAX", size * PORTION + size // 2)
        assert seqs_of(await shard.claim(90)) == [*range(1, PORTION + 1)]
        assert seqs_of(await shard.claim(2)) == [PORTION + 1, PORTION + 2]


async def test_jobs_that_are_deleted_amid_portions_are_not_told_of(dealt, monkeypatch):
    add = Filling.add
    async with serving() as shard:
        await shard.make()
        await shard.produce(*range(100))

        def delete(self: Filling, *given: Any) -> None:
            add(self, *given)
            if self.left == 90 - PORTION:
                shard.queues.engine.delete_records(
                    shard.queues.find("q").topic, 40, None, lambda _: None, lambda _: None
                )

        monkeypatch.setattr(Filling, "add", delete)
        assert seqs_of(await shard.claim(90)) == [*range(40, 98)]
        assert await shard.counts() == (3, 58, 0)


async def test_a_job_that_does_not_fit_ends_a_filling_also_if_much_is_gone_behind_it(monkeypatch):
    """The pass over what is gone is cut short, and would be each time that it were tried again."""
    monkeypatch.setattr(limits, "PASS_STEP", 4)
    monkeypatch.setattr(limits, "CLAIM_BYTES_MAX", 64 * 1024)
    async with serving() as shard:
        await shard.make()
        await shard.produce(*["x" * 1500] * PORTION)
        await shard.produce("A" * 60_000)
        for _ in range(12):
            await shard.produce(*["y" * 40_000] * 10, tag="gone")
        [last] = await shard.produce("last")
        await shard.call("delete", "q", {"match": "gone"})
        with trio.fail_after(60):
            assert seqs_of(await shard.claim(100)) == list(range(1, PORTION + 1))
            assert seqs_of(await shard.claim(100)) == [PORTION + 1, last]


# --- what a pass looks past ---------------------------------------------------------------------------------------


async def lay_apart(shard: QueueShard, way: str) -> list[int]:
    """Jobs that are ready, with more between them than a step looks past; in the order in which they are claimed."""
    await shard.make(priority_age_ms=0, max_deliveries=1, dead_letter="dead")
    urgent: dict[str, Any] = {"priority": 5} if way == "less urgent" else {}
    later: dict[str, Any] = {"delay_ms": 10_000_000} if way == "scheduled" else {}
    ends, between = await shard.produce("end", **urgent), []
    for _ in range(3):
        for _ in range(10):
            between += await shard.produce("y" * 40_000, tag="between", **later)
        ends += await shard.produce("end", **urgent)
    if way in ("came back and deleted", "dead letters"):
        await shard.claim(100)
        await shard.settle("nack", *ends, penalty=False)
        await shard.settle("nack", *between)
    if way in ("deleted", "came back and deleted"):
        await shard.call("delete", "q", {"match": "between"})
    return ends + between if way == "less urgent" else ends


WAYS = ["deleted", "scheduled", "less urgent", "came back and deleted", "dead letters"]


@pytest.fixture
def short_steps(monkeypatch):
    monkeypatch.setattr(limits, "PASS_STEP", 4)
    monkeypatch.setattr(limits, "OVERDUE_STEP", 4)
    monkeypatch.setattr(limits, "DEAD_LETTERS_PER_PASS", 2)


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("way", WAYS)
async def test_a_claim_gets_all_that_is_ready_however_much_lies_between(way, durable, short_steps, dealt):
    """A worker that gets less than it asked for may take the queue for empty."""
    async with serving() as shard:
        ready = await lay_apart(shard, way)
        await shard.call("put", "q", {"leases_durable": durable})
        dealt.clear()
        with trio.fail_after(30):
            jobs = await shard.claim(PORTION // 2)  # no more than fit a step
        assert seqs_of(jobs) == ready[: PORTION // 2]
        assert len(dealt) > 1
        assert len({job["lease_id"] for job in jobs}) == len(jobs)
        assert {(job["deadline"], job["deliveries"]) for job in jobs} == {(jobs[0]["deadline"], 1)}
        assert (await shard.settle("ack", *seqs_of(jobs)))["acked"] == len(jobs)
        assert not shard.queues.find("q")._passes.is_serving


async def test_a_claim_looks_past_much_with_the_limits_as_they_are(monkeypatch):
    monkeypatch.setattr(limits, "PORTION_JOBS", limits.PASS_JOBS // 2)
    async with serving() as shard:
        await shard.make()
        first = await shard.produce("first")
        await shard.produce(*range(2 * limits.PASS_STEP), tag="between")
        last = await shard.produce("last")
        while held := seqs_of(await shard.claim(500)):
            await shard.settle("nack", *held, delay_ms=1)
        shard.clock.advance(2)
        assert await shard.counts() == (2 * limits.PASS_STEP + 2, 0, 0)
        await shard.call("delete", "q", {"match": "between"})
        assert seqs_of(await shard.claim(100)) == first + last


@pytest.mark.parametrize("way", WAYS[:-1])  # dead letters count as ready when that is divided
async def test_a_cohort_is_given_even_parts_of_all_that_is_ready(way, short_steps):
    async with serving() as shard:
        ready = await lay_apart(shard, way)
        await shard.call("put", "q", {"claim_jitter_ms": 20})
        got: dict[str, list[int]] = {}

        async def claim(name: str) -> None:
            jobs = await shard.claim(8, node=name)
            got[name] = seqs_of(jobs)
            assert {job["deliveries"] for job in jobs} == {1}

        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                for name in ("a", "b"):
                    nursery.start_soon(claim, name)
        each = 8 if way == "less urgent" else 2
        assert {name: len(seqs) for name, seqs in got.items()} == {"a": each, "b": each}
        assert sorted(got["a"] + got["b"]) == sorted(ready[: 2 * each])


async def test_one_who_goes_before_it_has_all_leaves_its_jobs_undelivered(short_steps):
    async with serving() as shard:
        ready = await lay_apart(shard, "deleted")
        found = shard.queues.find("q")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(shard.claim, 10)
            await until(lambda: found.leases.in_flight)
            assert found.leases.in_flight < len(ready)
            nursery.cancel_scope.cancel()
        await until(lambda: not found.leases.in_flight)
        assert not found._passes.is_serving
        jobs = await shard.claim(10, node="v")
        assert [(job["$seq"], job["deliveries"]) for job in jobs] == [(seq, 1) for seq in ready]


async def test_a_stream_is_pushed_all_that_is_ready_however_much_lies_between(short_steps):
    async with serving() as shard:
        ready = await lay_apart(shard, "deleted")
        async with working(shard, max=10) as worker:
            assert await pushed(worker, len(ready)) == ready


async def test_a_removed_queue_is_freed_without_a_collection():
    async with serving() as shard:
        await shard.make()
        queue = weakref.ref(shard.queues.find("q"))
        gc.disable()
        try:
            await shard.call("remove", "q")
            shard.queues._queues.clear()
            assert queue() is None
        finally:
            gc.enable()


# --- many ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("jitter_ms", [0, 20])
async def test_very_many_are_asked_some_at_a_time_and_get_even_parts_the_first_the_larger(jitter_ms, monkeypatch):
    monkeypatch.setattr(limits, "COHORT_STEP", 8)
    asked: list[int] = []
    count = Cohort.count

    def note(self: Cohort, most: int) -> bool:
        before = len(self._rooms)
        over = count(self, most)
        asked.append(len(self._rooms) - before)
        return over

    monkeypatch.setattr(Cohort, "count", note)
    sizes: dict[int, int] = {}
    told: list[int] = []
    async with serving() as shard:
        await shard.make(claim_jitter_ms=jitter_ms)

        async def claim(number: int) -> None:
            jobs = await shard.claim(10, node=f"n{number}", wait_ms=20_000)
            told.extend(seqs_of(jobs))
            sizes[number] = len(jobs)

        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                for number in range(40):
                    nursery.start_soon(claim, number)
                    await until(lambda: len(shard.queues.find("q")._takers) == number + 1)  # noqa: B023
                await shard.produce(*range(100))
        assert [sizes[number] for number in range(40)] == [3] * 20 + [2] * 20
        assert sorted(told) == list(range(1, 101))
        assert (max(asked), sum(asked)) == (8, 40)
        with trio.fail_after(10):  # and nothing of that is left
            await shard.produce("one more")
            assert seqs_of(await shard.claim(1)) == [101]
            assert shard.queues.find("q").idle
            assert not shard.queues.find("q")._passes.is_serving


async def test_a_cohort_that_goes_before_it_is_served_leaves_nothing_behind(monkeypatch):
    monkeypatch.setattr(limits, "COHORT_STEP", 8)
    async with serving() as shard:
        await shard.make()
        found = shard.queues.find("q")
        async with trio.open_nursery() as nursery:
            for number in range(40):
                nursery.start_soon(partial(shard.claim, 10, node=f"n{number}", wait_ms=20_000))
            await until(lambda: len(found._takers) == 40)
            nursery.start_soon(partial(shard.produce, *range(100)))
            await until(lambda: found._passes.is_serving)
            assert found._passes._cohort is not None
            nursery.cancel_scope.cancel()
        with trio.fail_after(10):
            await until(lambda: not found._takers)
            jobs = await shard.claim(100)
        assert [(job["$seq"], job["deliveries"]) for job in jobs] == [(seq, 1) for seq in range(1, 101)]
        assert not found._passes.is_serving


async def test_a_claim_whose_jobs_are_deleted_before_it_is_told_looks_again(monkeypatch):
    async with serving() as shard:
        await shard.make(leases_durable=True)
        await shard.produce(*range(10))
        found, log = shard.queues.find("q"), Queue.log

        def delete(self: Queue, *given: Any) -> bool:
            monkeypatch.setattr(Queue, "log", log)
            shard.queues.engine.delete_records(found.topic, 4, None, lambda _: None, lambda _: None)
            return log(self, *given)

        monkeypatch.setattr(Queue, "log", delete)
        with trio.fail_after(10):
            assert seqs_of(await shard.claim(2)) == [4, 5]
        assert await shard.counts() == (5, 2, 0)


async def test_one_whose_time_is_up_while_others_are_served_is_told_that_there_is_nothing():
    async with serving() as shard:
        await shard.make()
        answers: dict[str, list[int]] = {}

        async def claim(name: str, most: int, wait_ms: int) -> None:
            answers[name] = seqs_of(await shard.claim(most, node=name, wait_ms=wait_ms))

        found = shard.queues.find("q")
        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                for name in ("first", "second"):
                    nursery.start_soon(claim, name, 40, 20_000)
                    await until(lambda: len(found._takers) == len(answers) + (name == "second") + 1)  # noqa: B023
                second = [*found._takers][1]
                await shard.produce("one job: the first is asked, nobody else")
                await until(lambda: "first" in answers)
                shard.queues.behind.later(found)
                second._timer.fire()  # type: ignore[attr-defined]
                assert found._late == [second]
        assert answers == {"first": [1], "second": []}


async def test_those_who_wait_for_a_queue_that_is_deleted_are_told_some_a_step(monkeypatch):
    monkeypatch.setattr(limits, "LOSE_STEP", 8)
    tasks: list[trio.lowlevel.Task] = []
    lose = Queues.lose

    def note(self: Queues, *given: Any) -> None:
        tasks.append(trio.lowlevel.current_task())
        lose(self, *given)

    monkeypatch.setattr(Queues, "lose", note)
    refusals: list[str] = []
    async with serving(FaultyFiles()) as shard:
        await shard.make()
        found = shard.queues.find("q")

        async def claim() -> None:
            refusals.append((await shard.refused("claim", "q", {"node": "w", "wait_ms": 20_000})).code)

        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                for _ in range(50):
                    nursery.start_soon(claim)
                await until(lambda: len(found._takers) == 50)
                nursery.start_soon(partial(shard.call, "remove", "q"))
        assert refusals == [errors.TOPIC_NOT_FOUND] * 50
        assert len(set(tasks)) > 1
        assert found.idle


@pytest.mark.parametrize("deliveries", [0, 1])
async def test_a_claim_does_not_wait_for_more_until_what_it_has_is_over(deliveries, monkeypatch):
    """Nor is a job that nobody was told of a delivery, or a dead letter."""
    monkeypatch.setattr(limits, "PASS_STEP", 4)
    fill, portions = Passes._fill, []

    def fill_slowly(self: Passes, filling: Filling) -> None:
        portions.append(filling)
        shard.clock.advance(20)
        fill(self, filling)

    monkeypatch.setattr(Passes, "_fill", fill_slowly)
    async with serving() as shard:
        await shard.make(max_deliveries=deliveries, **({"dead_letter": "dead"} if deliveries else {}))
        await shard.produce("first")
        for _ in range(60):
            await shard.produce("y" * 40_000, tag="gone")
        await shard.produce("last")
        await shard.call("delete", "q", {"match": "gone"})
        (job,) = await shard.claim(2, lease_ms=100)
        assert (job["$seq"], job["deliveries"]) == (1, 1)
        assert job["deadline"] - shard.clock.now_ms() >= 100 - 2 * 20
        assert len(portions) > 1
        assert await shard.counts() == (1, 1, 0)


async def test_who_is_served_in_steps_does_not_take_from_those_of_the_next_window(monkeypatch):
    monkeypatch.setattr(limits, "PASS_STEP", 4)
    async with serving() as shard:
        await shard.make(claim_jitter_ms=1)
        await shard.produce("first")
        for _ in range(60):
            await shard.produce("y" * 40_000, tag="gone")
        await shard.produce("last")
        await shard.call("delete", "q", {"match": "gone"})
        fill, go_on = Passes._fill, trio.Event()
        answers: dict[str, int] = {}

        def wait(self: Passes, filling: Filling) -> None:
            if go_on.is_set():
                fill(self, filling)

        monkeypatch.setattr(Passes, "_fill", wait)

        async def claim(name: str, most: int) -> None:
            answers[name] = len(await shard.claim(most, node=name))

        found = shard.queues.find("q")
        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(claim, "large", 200)
                await until(lambda: bool(found._passes._fillings))
                nursery.start_soon(partial(shard.produce, *range(100)))
                await until(lambda: found.ready > 100)
                nursery.start_soon(claim, "small", 20)
                await until(lambda: bool(found._passes._unserved))
                go_on.set()
        assert answers == {"large": 2, "small": 20}
