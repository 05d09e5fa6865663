"""The call `work`: jobs pushed while there is room, and given back when the stream ends."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from tests.shards.queue_shard import QueueShard, seqs_of, serving
from topics import errors, limits
from topics.clock import SystemClock
from topics.core.leases import Leases
from topics.errors import TopicsError
from topics.rpc.open_calls import Stream
from topics.shards.logqueue import LogQueue
from topics.shards.slices import in_slices
from topics.testing.faulty_files import FaultyFiles
from topics.testing.rpc_pair import until


class Worker:
    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self.jobs: list[dict[str, Any]] = []
        self.error: TopicsError | None = None
        self.paced: list[Any] = []

    async def run(self) -> None:
        try:
            async for item in self._stream:
                at = 0
                self.paced += item.head.get("paced", ())
                for size in item.head.get("sizes", ()):
                    self.jobs.append(json.loads(bytes(item.body[at : at + size])))
                    at += size
        except TopicsError as error:
            self.error = error

    @property
    def seqs(self) -> list[int]:
        return seqs_of(self.jobs)


@asynccontextmanager
async def working(shard: QueueShard, **head: Any) -> AsyncIterator[Worker]:
    head = {"topic": "q", "node": "w", "max": 2, **head}
    async with trio.open_nursery() as nursery, shard.connection.stream("work", head) as stream:
        assert (await stream.__anext__()).head == {"open": True}
        worker = Worker(stream)
        nursery.start_soon(worker.run)
        yield worker
        nursery.cancel_scope.cancel()


async def pushed(worker: Worker, count: int) -> list[int]:
    await until(lambda: len(worker.jobs) >= count)
    await trio.testing.wait_all_tasks_blocked()
    return worker.seqs


async def test_it_keeps_as_many_jobs_leased_as_were_asked_for():
    async with serving() as shard:
        await shard.make()
        await shard.produce(*range(5), tag="t")
        async with working(shard) as worker:
            assert await pushed(worker, 2) == [1, 2]
            assert worker.jobs[0]["topic"] == "q"
            assert (worker.jobs[0]["$tag"], worker.jobs[0]["deliveries"]) == ("t", 1)
            assert await shard.counts() == (3, 2, 0)
            await shard.settle("ack", 1)
            assert await pushed(worker, 3) == [1, 2, 3]
            await shard.settle("nack", 2, delay_ms=5000)
            assert await pushed(worker, 4) == [1, 2, 3, 4]
            await shard.settle("ack", 3, 4)
            assert await pushed(worker, 5) == [1, 2, 3, 4, 5]
            await shard.produce("new")
            assert await pushed(worker, 6) == [1, 2, 3, 4, 5, 6]
            assert await shard.counts() == (0, 2, 0)
        await until(lambda: shard.queues.find("q").leases.in_flight == 0)
        assert await shard.counts() == (2, 0, 0)


async def test_a_lease_that_ends_makes_room_without_anybody_asking():
    async with serving(clock=SystemClock()) as shard:
        await shard.make()
        await shard.produce("x")
        async with working(shard, lease_ms=100) as worker:
            with trio.fail_after(60):
                while len(worker.jobs) < 2:
                    await trio.sleep(0.01)
            assert [(job["$seq"], job["deliveries"]) for job in worker.jobs[:2]] == [(1, 1), (1, 2)]


async def test_its_end_frees_its_own_leases_alone():
    async with serving() as shard:
        await shard.make()
        await shard.produce(*range(4))
        claimed = await shard.claim(1)
        async with working(shard) as worker:
            assert await pushed(worker, 2) == [2, 3]
        await until(lambda: shard.queues.find("q").leases.in_flight == 1)
        assert seqs_of(claimed) == [1]
        jobs = await shard.claim(9, node="other")
        assert [(job["$seq"], job["deliveries"]) for job in jobs] == [(2, 2), (3, 2), (4, 1)]
        assert (await shard.settle("ack", 1))["acked"] == 1


async def test_streams_and_claims_share_a_cohort():
    async with serving() as shard:
        await shard.make(claim_jitter_ms=200)
        async with working(shard, max=10) as first, working(shard, node="v", max=10) as second:
            got: list[list[int]] = []

            async def claim() -> None:
                got.append(seqs_of(await shard.claim(10, node="c", wait_ms=30_000)))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(claim)
                await trio.testing.wait_all_tasks_blocked()
                await shard.produce(*range(15))
            await until(lambda: len(first.jobs) + len(second.jobs) >= 10)
            assert sorted((len(got[0]), len(first.jobs), len(second.jobs))) == [5, 5, 5]
            assert sorted([*got[0], *first.seqs, *second.seqs]) == list(range(1, 16))


async def test_many_idle_streams_take_turns():
    async with serving() as shard:
        await shard.make()
        async with working(shard, node="a", max=1000) as first, working(shard, node="b", max=1000) as second:
            for number in range(10):
                await shard.produce(number)
                while len(first.jobs) + len(second.jobs) == number:
                    await trio.lowlevel.checkpoint()
                await trio.testing.wait_all_tasks_blocked()
            assert (len(first.jobs), len(second.jobs)) == (5, 5)


@pytest.mark.parametrize(
    ("successor", "code"),
    [(None, errors.TOPIC_NOT_FOUND), ("queue", errors.TOPIC_NOT_FOUND), ("log", errors.NOT_A_QUEUE)],
)
async def test_a_stream_ends_with_its_queue(successor, code):
    async with serving() as shard:
        await shard.make()
        async with working(shard) as worker:
            await shard.call("remove", "q")
            if successor is not None:
                await shard.call("put", "q", {"type": successor})
            with trio.fail_after(60):
                while worker.error is None:
                    await trio.sleep(0.01)
            assert worker.error.code == code


@pytest.mark.parametrize(
    ("head", "code"),
    [
        ({"max": 0}, errors.INVALID_REQUEST),
        ({"node": ""}, errors.INVALID_REQUEST),
        ({"lease_ms": -1}, errors.INVALID_REQUEST),
        ({"topic": "log"}, errors.NOT_A_QUEUE),
        ({"topic": "none"}, errors.TOPIC_NOT_FOUND),
    ],
)
async def test_what_cannot_be_is_refused(head, code):
    async with serving() as shard:
        await shard.make()
        await shard.call("put", "log", {})
        async with shard.connection.stream("work", {"topic": "q", "node": "w", **head}) as stream:
            with pytest.raises(TopicsError) as caught:
                await stream.__anext__()
            assert caught.value.code == code


async def test_durable_leases_of_a_stream_are_given_back_in_the_log_too():
    async with serving() as shard:
        await shard.make(leases_durable=True)
        await shard.produce(*range(3))
        async with working(shard) as worker:
            assert await pushed(worker, 2) == [1, 2]
        await until(lambda: shard.queues.find("q").leases.in_flight == 0)
        assert await shard.counts() == (3, 0, 0)


@pytest.mark.parametrize("anew", [False, True])
async def test_durable_leases_of_a_stream_end_with_its_shard(anew):
    """Those of claims stay. Also when the log was written anew in between."""
    files = FaultyFiles()
    async with serving(files) as shard:
        await shard.make(leases_durable=True, dead_letter="dead", max_deliveries=9)
        await shard.produce(*range(6))
        await shard.claim(1, node="c")
        async with working(shard) as worker:
            assert await pushed(worker, 2) == [2, 3]
            if anew:
                await in_slices(shard.queues.log.write_anew())
                await shard.shard.committer.flushed()  # type: ignore[union-attr]
            files = files.clone()  # the disk as a kill leaves it
    for deliveries in (2, 3):
        async with serving(files) as shard:
            assert await shard.counts() == (5, 1, 0)
            async with working(shard) as worker:
                assert await pushed(worker, 2) == [2, 3]
                assert [job["deliveries"] for job in worker.jobs] == [deliveries, deliveries]
                files = files.clone()


async def test_a_stream_is_paced_and_keeps_its_jobs_while_the_log_has_no_room(monkeypatch):
    async with serving() as shard:
        await shard.make(leases_durable=True)
        await shard.produce(*range(4))
        async with working(shard) as worker:
            assert await pushed(worker, 2) == [1, 2]
            with monkeypatch.context() as full:
                full.setattr(LogQueue, "has_room", lambda *_: False)
                await shard.settle("ack", 1)
                with trio.fail_after(30):
                    await until(lambda: worker.paced)
                assert worker.paced[0] == errors.THROTTLED
                assert await shard.counts() == (2, 1, 0)
            with trio.fail_after(30):
                while len(worker.jobs) < 3:
                    await trio.sleep(0.01)
            assert (worker.seqs, worker.error) == ([1, 2, 3], None)
            assert await shard.counts() == (1, 2, 0)


async def test_a_worker_that_does_not_read_is_given_no_more_than_it_may_hold():
    async with serving() as shard:
        await shard.make()
        await shard.produce(*range(50))
        head = {"topic": "q", "node": "w", "max": 50}
        async with shard.connection.stream("work", head, credits=1):
            await until(lambda: shard.queues.find("q").leases.in_flight == 50)
            await shard.produce("more")
            await trio.testing.wait_all_tasks_blocked()
            assert await shard.counts() == (1, 50, 0)


async def test_the_end_of_streams_that_hold_very_much_gives_it_back_in_steps(monkeypatch):
    monkeypatch.setattr(limits, "YIELD_AFTER_NS", 1)
    monkeypatch.setattr(limits, "GIVE_BACK_STEP", 8)
    steps: list[int] = []
    release = Leases.release

    def count(self: Leases, seqs: list[int], *rest: Any, **more: Any) -> None:
        steps.append(len(seqs))
        release(self, seqs, *rest, **more)

    monkeypatch.setattr(Leases, "release", count)
    async with serving() as shard:
        await shard.make()
        await shard.produce(*range(205))
        await shard.produce("x", topic="other")
        async with working(shard, max=100) as first, working(shard, node="v", max=100) as second:
            await until(lambda: len(first.jobs) + len(second.jobs) == 200)
        turns = 0
        with trio.fail_after(30):
            while shard.queues.find("q").leases.in_flight:
                await shard.produce("x", topic="other")
                turns += 1
        assert turns > 1
        assert sum(steps) == 200
        assert max(steps) == 8
        jobs = await shard.claim(300, node="other")
        assert [(job["$seq"], job["deliveries"]) for job in jobs[199:201]] == [(200, 2), (201, 1)]
        assert len(jobs) == 205


async def test_a_queue_that_is_deleted_while_a_stream_gives_back_is_gone(monkeypatch):
    monkeypatch.setattr(limits, "YIELD_AFTER_NS", 1)
    monkeypatch.setattr(limits, "GIVE_BACK_STEP", 8)
    async with serving() as shard:
        await shard.make()
        await shard.produce(*range(200))
        async with working(shard, max=200) as worker:
            await until(lambda: len(worker.jobs) == 200)
            queue = shard.queues.find("q")
        await until(lambda: shard.queues.behind.is_behind(queue))
        await shard.call("remove", "q")
        await until(lambda: not shard.queues.behind.is_behind(queue))
        assert (await shard.refused("claim", "q", {"node": "v"})).code == errors.TOPIC_NOT_FOUND


async def test_a_stream_that_begins_on_a_queue_that_was_deleted_meanwhile_is_told(monkeypatch):
    monkeypatch.setattr(limits, "WORK_GONE_MS", 1)
    async with serving() as shard:
        await shard.make()
        found = shard.queues.find("q")
        async with working(shard) as told:
            await until(lambda: len(found._streams) == 1)
            late: list[Any] = []
            add_stream = found.add_stream
            monkeypatch.setattr(found, "add_stream", late.append)  # it is still being told that it is open
            async with working(shard) as worker:
                await until(lambda: bool(late))
                await shard.call("remove", "q")
                with trio.fail_after(30):
                    await until(lambda: told.error is not None)
                    add_stream(late[0])
                    await until(lambda: worker.error is not None)
                assert worker.error is not None
                assert worker.error.code == errors.TOPIC_NOT_FOUND
