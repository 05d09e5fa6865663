"""An ack, a nack or an extend of many jobs goes on in steps: others are served meanwhile, the queue's own commands wait
and see all of it, and it is answered once, as one step would have."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import trio

from tests.shards.queue_shard import QueueShard, seqs_of, serving
from topics import errors, limits
from topics.core.jobs import Jobs
from topics.core.leases import Leases
from topics.core.ranges import SeqRanges
from topics.errors import TopicsError
from topics.rpc.calls import Call
from topics.shards.queue import Queue
from topics.shards.unsynced import Unsynced
from topics.shards.verdicts import Verdicts
from topics.testing.faulty_files import FaultyFiles
from topics.testing.rpc_pair import until

JOBS = 100
STEP = 4
VERDICTS = [("ack", {}, "acked"), ("nack", {}, "nacked"), ("extend", {"lease_ms": 90_000}, "extended")]
each_verdict = pytest.mark.parametrize(("method", "more", "told"), VERDICTS, ids=["ack", "nack", "extend"])
each_log = pytest.mark.parametrize("config", [{}, {"leases_durable": True}, {"durability": "fsync"}], ids=str)


@pytest.fixture(autouse=True)
def small_steps(monkeypatch):
    """Others may go on after each, so that no test depends on how fast the machine is."""
    monkeypatch.setattr(limits, "YIELD_AFTER_NS", 1)
    monkeypatch.setattr(limits, "VERDICT_STEP", STEP)


@asynccontextmanager
async def holding(jobs: int = JOBS, files: FaultyFiles | None = None, **config: Any) -> AsyncIterator[QueueShard]:
    """A shard with a queue; a worker holds the first jobs of it, and there is one more."""
    async with serving(files) as shard:
        await shard.make(**config)
        await shard.produce(*range(jobs + 1))
        assert seqs_of(await shard.claim(jobs)) == [*range(1, jobs + 1)]
        yield shard


async def amid(shard: QueueShard, queue: Queue) -> None:
    await until(lambda: shard.queues.behind.is_behind(queue))


def nothing_leaves(queue: Queue) -> bool:
    return not queue.leases._leaving.count


# --- who else is there --------------------------------------------------------------------------------------------


@each_verdict
@each_log
async def test_others_are_served_amid_it_and_the_queue_itself_when_it_is_done(method, more, told, config):
    ready = {"ack": 1, "nack": JOBS + 1, "extend": 1}[method]
    leased = {"ack": 0, "nack": 0, "extend": JOBS}[method]
    async with holding(**config) as shard:
        await shard.make("other")
        found = shard.queues.find("q")
        order: list[str] = []

        async def settle() -> None:
            answer = await shard.settle(method, *range(1, JOBS + 1), **more)
            assert (answer[told], answer["skipped"]) == (JOBS, [])
            order.append("settled")

        async def look() -> None:
            assert await shard.counts() == (ready, leased, 0)
            order.append("seen")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(settle)
            await amid(shard, found)
            nursery.start_soon(look)
            await shard.produce("x", topic="other")
            order.append("other")
        assert order[0] == "other"
        assert nothing_leaves(found)


@each_verdict
async def test_a_claim_that_comes_amid_it_sees_all_of_it(method, more, told):
    async with holding() as shard:
        got: list[int] = []

        async def claim() -> None:
            got.extend(seqs_of(await shard.claim(2 * JOBS, node="v")))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(shard.settle, method, *range(1, JOBS + 1), **more))
            await amid(shard, shard.queues.find("q"))
            nursery.start_soon(claim)
        assert got == ([*range(1, JOBS + 2)] if method == "nack" else [JOBS + 1])


@each_verdict
async def test_of_two_who_settle_the_same_jobs_the_first_gets_all(method, more, told):
    async with holding() as shard:
        seqs = range(1, JOBS + 1)
        answers: dict[str, Any] = {}

        async def settle(name: str, method: str, **more: Any) -> None:
            answers[name] = await shard.settle(method, *seqs, **more)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(settle, "first", "ack")
            await amid(shard, shard.queues.find("q"))
            nursery.start_soon(partial(settle, "second", method, **more))
        assert (answers["first"]["acked"], answers["first"]["skipped"]) == (JOBS, [])
        assert answers["second"]["skipped"] == [*seqs]
        assert await shard.counts() == (1, 0, 0)


async def test_one_who_goes_amid_it_has_settled_all(monkeypatch):
    """It is on its way already: a retry is told what has become of it."""
    async with holding() as shard:
        found = shard.queues.find("q")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(shard.settle, "nack", *range(1, JOBS + 1))
            await amid(shard, found)
            nursery.cancel_scope.cancel()
        await until(lambda: not shard.queues.behind.is_behind(found))
        assert await shard.counts() == (JOBS + 1, 0, 0)


async def test_a_refusal_that_nobody_waits_for_any_more_is_no_failure(monkeypatch, caplog):
    calls: list[Call] = []

    def refuse_when_alone() -> None:
        if calls and calls[0].finished:
            raise TopicsError(errors.SHUTTING_DOWN, "the server is shutting down", {"retry_after_ms": 1000})

    def note(self: Verdicts, call: Call, *given: Any) -> Any:
        calls.append(call)
        return nack(self, call, *given)

    nack = Verdicts._nack
    async with holding() as shard:
        found = shard.queues.find("q")
        monkeypatch.setattr(shard.queues, "check_open", refuse_when_alone)
        monkeypatch.setattr(Verdicts, "_nack", note)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(shard.settle, "nack", *range(1, JOBS + 1))
            await until(lambda: calls)
            nursery.cancel_scope.cancel()
        await until(lambda: not shard.queues.behind.is_behind(found))
        assert 0 < found.leases.in_flight < JOBS
    assert caplog.messages == []


# --- what it names ------------------------------------------------------------------------------------------------


@each_verdict
async def test_each_seq_counts_once_and_held_if_one_of_its_leases_is(method, more, told):
    async with holding(10) as shard:
        names = {seq: f"lease_{lease.number:x}" for seq in range(1, 11) if (lease := lease_of(shard, seq))}
        named = [  # in parts of four
            *[(1, names[1]), (1, names[1]), (2, "lease_0"), (99, "lease_1")],
            *[(3, names[3]), (2, names[2]), (99, "lease_1"), (4, "nonsense")],
            *[(1, "lease_0"), (5, names[4]), (4, "lease_ffff"), (3, names[3])],
            (11, names[1]),
        ]
        seqs, ids = [seq for seq, _ in named], [name for _, name in named]
        answer = await shard.settle(method, *seqs, lease_ids=ids, **more)
        assert (answer[told], answer["skipped"]) == (3, [99, 4, 5, 11])
        if method == "extend":
            assert [*answer["deadlines"]] == ["1", "3", "2"]
        assert [seq for seq in range(1, 11) if lease_of(shard, seq)] == [
            *([] if method != "extend" else [1, 2, 3]),
            *range(4, 11),
        ]


def lease_of(shard: QueueShard, seq: int) -> Any:
    return shard.queues.find("q").leases.lease_of(seq)


@each_verdict
async def test_who_holds_none_of_them_is_told_so(method, more, told):
    async with holding() as shard:
        answer = await shard.settle(method, *range(JOBS, 0, -1), node="v", **more)
        assert (answer[told], answer["skipped"]) == (0, [*range(JOBS, 0, -1)])
        assert await shard.counts() == (1, JOBS, 0)


async def test_all_deadlines_of_an_extend_are_one():
    async with holding() as shard:
        answer = await shard.settle("extend", *range(1, JOBS + 1), lease_ms=77_000)
        assert [*answer["deadlines"]] == [str(seq) for seq in range(1, JOBS + 1)]
        assert len({*answer["deadlines"].values()}) == 1
        shard.clock.advance(76_000)
        assert await shard.counts() == (1, JOBS, 0)
        shard.clock.advance(2_000)
        assert await shard.counts() == (JOBS + 1, 0, 0)


# --- what goes wrong amid it --------------------------------------------------------------------------------------


@each_verdict
@each_log
async def test_a_queue_that_is_deleted_amid_it(method, more, told, config):
    async with holding(**config) as shard:
        found = shard.queues.find("q")
        ended: list[str] = []

        async def settle() -> None:
            try:
                await shard.settle(method, *range(1, JOBS + 1), **more)
                ended.append("told")
            except TopicsError as error:
                ended.append(error.code)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(settle)
            await amid(shard, found)
            await shard.call("remove", "q")
        assert ended == [errors.TOPIC_NOT_FOUND]
        await until(lambda: not shard.queues.behind.is_behind(found))
        await shard.make()
        assert await shard.counts() == (0, 0, 0)


@pytest.mark.parametrize(("method", "more"), [("nack", {}), ("extend", {"lease_ms": 90_000})])
async def test_a_log_without_room_amid_it(method, more, monkeypatch):
    """The first parts have happened, which is what a crash would leave, and the caller is told to come again."""
    log, calls = Queue.log, []

    def refuse_third(self: Queue, made: Any, done: Any) -> bool:
        calls.append(made[0])
        if len(calls) == 3:
            raise TopicsError(errors.THROTTLED, "no room", {"retry_after_ms": 1})
        return log(self, made, done)

    async with holding(leases_durable=True) as shard:
        monkeypatch.setattr(Queue, "log", refuse_third)
        body = {"node": "w", "seqs": [*range(1, JOBS + 1)], **more}
        assert (await shard.refused(method, "q", body)).code == errors.THROTTLED
        assert len(calls) == 3
        given_back = 2 * STEP if method == "nack" else 0
        assert await shard.counts() == (1 + given_back, JOBS - given_back, 0)
        again = await shard.settle(method, *range(1, JOBS + 1), **more)
        assert again["skipped"] == [*range(1, given_back + 1)]


@pytest.mark.parametrize("durability", ["disk", "fsync"])
async def test_an_ack_whose_delete_is_refused_leaves_the_jobs_to_their_worker(durability, monkeypatch):
    async with holding(durability=durability) as shard:
        engine = shard.queues.engine
        delete = engine.delete_records
        waiting: list[Callable[[Exception], None]] = []
        monkeypatch.setattr(engine, "delete_records", lambda *given: waiting.append(given[4]))
        async with trio.open_nursery() as nursery:

            async def ack() -> None:
                body = {"node": "w", "seqs": [*range(1, JOBS + 1)]}
                assert (await shard.refused("ack", "q", body)).code == errors.THROTTLED

            nursery.start_soon(ack)
            await until(lambda: bool(waiting))
            waiting[0](TopicsError(errors.THROTTLED, "no room", {"retry_after_ms": 1}))
        found = shard.queues.find("q")
        await until(lambda: not shard.queues.behind.is_behind(found))
        assert nothing_leaves(found)
        assert await shard.counts() == (1, JOBS, 0)
        monkeypatch.setattr(engine, "delete_records", delete)
        assert (await shard.settle("ack", *range(1, JOBS + 1)))["acked"] == JOBS


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
async def test_an_ack_leaves_nothing_behind_whenever_its_delete_is_applied(durability):
    async with holding(durability=durability) as shard:
        found = shard.queues.find("q")
        for first in range(1, JOBS, 20):
            assert (await shard.settle("ack", *range(first, first + 20)))["acked"] == 20
            assert nothing_leaves(found)
        assert await shard.counts() == (1, 0, 0)
        assert (await shard.call("state"))["count"] == 1
        assert [known.count for known in found.leases._by_state()] == [0] * 6


async def test_a_delete_of_the_same_jobs_amid_an_ack():
    """Whoever comes first: they are gone, the ack counts them, and nothing of them is left."""
    async with holding(durability="fsync") as shard:
        found = shard.queues.find("q")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(shard.call, "delete", "q", {"before_seq": 60})
            nursery.start_soon(shard.settle, "ack", *range(1, JOBS + 1))
        await until(lambda: not shard.queues.behind.is_behind(found))
        assert nothing_leaves(found)
        assert await shard.counts() == (1, 0, 0)
        assert (await shard.call("state"))["count"] == 1


@pytest.mark.parametrize("how", ["done", "refused"])
async def test_a_job_that_is_deleted_between_the_look_at_it_and_its_leaving_is_not_counted_as_leaving(how, monkeypatch):
    """One that is gone must not make a worker who waits believe that there is less than nothing."""
    async with holding(durability="ephemeral") as shard:
        engine, found = shard.queues.engine, shard.queues.find("q")
        assert seqs_of(await shard.claim(1, node="z")) == [JOBS + 1]
        delete = engine.delete_records
        acks: list[tuple[Any, ...]] = []

        def another_first(*ack: Any) -> None:
            acks.append(ack)
            delete(found.topic, 0, SeqRanges.from_ascending([1, 50]), lambda _: None, lambda _: None)

        async def ack() -> None:
            body = {"node": "w", "seqs": [*range(1, JOBS + 1)]}
            if how == "done":
                assert (await shard.call("ack", "q", body))["acked"] == JOBS
            else:
                await shard.refused("ack", "q", body)

        got: list[int] = []

        async def wait() -> None:
            got.extend(seqs_of(await shard.claim(1, node="v", wait_ms=60_000)))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await until(lambda: bool(found._takers))
            monkeypatch.setattr(engine, "delete_records", another_first)
            nursery.start_soon(ack)
            await until(lambda: bool(acks) and not shard.queues.behind.is_behind(found))
            assert (found.ready, found.leases._leaving.count) == (0, JOBS - 2)
            monkeypatch.setattr(engine, "delete_records", delete)
            if how == "done":
                delete(*acks[0])
            else:
                acks[0][4](TopicsError(errors.THROTTLED, "no room", {"retry_after_ms": 1}))
            await shard.produce("new")
        assert got == [JOBS + 2]
        assert nothing_leaves(found)
        assert await shard.counts() == (0, 2 + (JOBS - 2 if how == "refused" else 0), 0)


async def test_records_that_come_amid_a_large_ack_stay():
    """Its bits were counted in a chunk that the next records went into."""
    async with holding() as shard:
        found = shard.queues.find("q")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(shard.settle, "ack", *range(1, JOBS + 1))
            await amid(shard, found)
            made = 0
            while shard.queues.behind.is_behind(found):
                await shard.produce("new")
                made += 1
        assert made > 1
        assert [record["$seq"] for record in await shard.records("q")] == [*range(JOBS + 1, JOBS + 2 + made)]
        assert seqs_of(await shard.claim(JOBS)) == [*range(JOBS + 1, JOBS + 2 + made)]


@each_verdict
@pytest.mark.parametrize("crash", [False, True])
async def test_a_stop_amid_it_leaves_each_job_in_one_state(method, more, told, crash):
    """An ack whole or not at all; of the others the first parts, as told of or not."""
    files = FaultyFiles()
    async with serving(files, crash=crash) as shard:
        await shard.make(leases_durable=True, durability="fsync")
        await shard.produce(*range(JOBS))
        await shard.claim(JOBS)
        found = shard.queues.find("q")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(shard.settle, method, *range(1, JOBS + 1), **more))
            await amid(shard, found)
            nursery.cancel_scope.cancel()
    if crash:
        files = files.crash(seed=1)
    async with serving(files) as shard:
        ready, leased, _ = await shard.counts()
        kept = {"ack": {0, JOBS}, "nack": {JOBS}, "extend": {JOBS}}[method]
        assert ready + leased in kept
        if method == "extend":
            assert leased == JOBS
        assert ready % STEP == 0
        skipped = (await shard.settle("ack", *range(1, JOBS + 1)))["skipped"]
        assert len(skipped) == JOBS - leased


# --- answers to claims --------------------------------------------------------------------------------------------


@pytest.fixture
def small_renders(monkeypatch) -> None:
    monkeypatch.setattr(limits, "RENDER_STEP", 8)
    monkeypatch.setattr(limits, "GIVE_BACK_STEP", 8)


async def produce_apart(shard: QueueShard, jobs: int) -> None:
    """A chunk each few."""
    for first in range(0, jobs, 5):
        await shard.produce(*["x" * 20_000] * min(5, jobs - first))


async def test_the_texts_of_a_large_claim_are_put_together_in_steps(small_renders, monkeypatch):
    steps: list[int] = []
    render = Jobs.render

    def count(self: Jobs, leases: Leases, seqs: list[int], texts: list[bytes], prefix: bytes = b"") -> Any:
        for _ in render(self, leases, seqs, texts, prefix):
            steps.append(len(texts))
            yield
        steps.append(len(texts))

    monkeypatch.setattr(Jobs, "render", count)
    async with serving() as shard:
        await shard.make()
        await produce_apart(shard, 50)
        jobs = await shard.claim(50)
        assert seqs_of(jobs) == [*range(1, 51)]
        assert {job["data"] for job in jobs} == {"x" * 20_000}
        assert steps[-1] == 50
        assert all(8 <= after - before <= 13 for before, after in pairwise([0, *steps[:-1]]))  # up to a chunk more


async def test_one_who_goes_amid_its_answer_was_not_delivered_anything(small_renders, monkeypatch):
    render, gone = Jobs.render, trio.CancelScope()

    def leave(self: Jobs, *given: Any) -> Any:
        for at, _ in enumerate(render(self, *given)):
            if at == 1:
                gone.cancel()
            yield
        for _ in range(50):
            yield

    async with serving() as shard:
        await shard.make()
        await produce_apart(shard, 50)
        found = shard.queues.find("q")
        monkeypatch.setattr(Jobs, "render", leave)
        with gone:
            await shard.claim(50)
        assert gone.cancelled_caught
        monkeypatch.setattr(Jobs, "render", render)
        await until(lambda: not found.leases.in_flight)
        assert [(job["$seq"], job["deliveries"]) for job in await shard.claim(60)] == [(n, 1) for n in range(1, 51)]


async def test_what_is_ready_is_told_when_all_that_goes_amid_the_answer_has_gone(small_renders, monkeypatch):
    monkeypatch.setattr(limits, "FORGET_STEP", 2)
    render, gone = Jobs.render, range(1, 41)

    async with serving() as shard:
        await shard.make()
        await produce_apart(shard, 100)
        await shard.claim(50, node="v")
        engine, topic = shard.queues.engine, shard.queues.find("q").topic

        def delete(self: Jobs, *given: Any) -> Any:
            for at, _ in enumerate(render(self, *given)):
                if at == 1:
                    engine.delete_records(topic, gone.stop, None, lambda _: None, lambda _: None)
                yield

        monkeypatch.setattr(Jobs, "render", delete)
        answer = await shard.call("claim", "q", {"node": "w", "max": 45})
        assert (answer["count"], answer["ready"]) == (45, 5)


async def test_what_nobody_was_told_of_is_given_back_in_steps(small_renders, monkeypatch):
    steps: list[int] = []
    release = Leases.release

    def count(self: Leases, seqs: list[int], *rest: Any, **more: Any) -> None:
        steps.append(len(seqs))
        release(self, seqs, *rest, **more)

    async with holding() as shard:
        monkeypatch.setattr(Leases, "release", count)
        found = shard.queues.find("q")
        numbers = [(seq, lease_of(shard, seq).number) for seq in range(1, JOBS + 1)]
        await shard.settle("ack", 1)
        found.take_back([*numbers, (JOBS + 1, 77)])
        await until(lambda: not found.leases.in_flight)
        jobs = await shard.claim(2 * JOBS, node="v")
        assert [(job["$seq"], job["deliveries"]) for job in jobs] == [(seq, 1) for seq in range(2, JOBS + 2)]
        assert sum(steps) == JOBS - 1
        assert max(steps) == 8


# --- parts --------------------------------------------------------------------------------------------------------


def test_it_is_told_once_when_there_are_no_more_parts_and_all_are_there():
    told: list[str] = []
    none = Unsynced()
    none.then(lambda: told.append("none"))
    assert told == ["none"]
    parts = Unsynced()
    parts.more()
    parts.less()  # others may follow
    parts.more()
    parts.more()
    parts.then(lambda: told.append("parts"))
    parts.less()
    assert told == ["none"]
    parts.less()
    assert told == ["none", "parts"]
