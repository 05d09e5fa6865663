"""Dead letters on their way back: what they are then, what is refused, and that none is lost or doubled by a crash."""

from typing import Any

import pytest
import trio

from tests.shards.queue_shard import QueueShard, seqs_of, serving
from tests.shards.test_dead_letters import DEAD, QUEUE, SLOT_MAP, Wire
from topics import errors, limits
from topics.core.lease_parts import Grant
from topics.core.ranges import SeqRanges
from topics.errors import TopicsError
from topics.shards.deadletters import DeadLetters
from topics.shards.peers import Peers
from topics.shards.redrive import _Letters
from topics.testing.fake_clock import FakeClock
from topics.testing.faulty_files import FaultyFiles
from topics.testing.rpc_pair import until


async def make_letters(shard: QueueShard, *data: Any, queue: str = "q", dead: str = "dead", **record: Any) -> None:
    await shard.make(queue, max_deliveries=1, dead_letter=dead, durable=True)
    await shard.produce(*data, topic=queue, **record)
    await shard.claim(len(data), topic=queue)
    state = await shard.call("state", queue)
    await shard.settle("nack", *range(1, state["next_seq"]), topic=queue, reason="no")
    await shard.claim(topic=queue)
    await until(lambda: shard.queues.find(queue).leases.dead_lettered == len(data))


async def redrive(shard: QueueShard, topic: str = "dead", to: str = "q", **more: Any) -> tuple[int, int, int]:
    answer = await shard.call("redrive", topic, {"to": to, **more})
    assert (answer["topic"], answer["to"]) == (topic, to)
    return answer["moved"], answer["remaining"], answer["pending"]


async def test_a_dead_letter_is_the_job_it_was_with_no_delivery_counted():
    async with serving() as shard:
        body = rb'{"records":[{"data":{"a":  [1]},"tag":"t","node":"p","meta":{"trace":"z9"},"priority":7}]}'
        await shard.make(max_deliveries=1, dead_letter="dead")
        await shard.connection.call("append", {"topic": "q"}, body)
        await shard.claim()
        await shard.settle("nack", 1, reason="no")
        assert await shard.claim() == []
        assert await redrive(shard) == (1, 0, 0)
        assert await shard.records("dead") == []
        assert await shard.counts() == (1, 0, 1)
        (job,) = await shard.claim()
        assert (job["$seq"], job["deliveries"], job["priority"]) == (2, 1, 7)
        assert (job["$tag"], job["$node"], job["meta"]) == ("t", "p", {"trace": "z9"})
        raw = await shard.connection.call("diff", {"topic": "q"}, b"{}")
        assert b'"data":{"a":  [1]},"meta":{"trace":"z9"}}' in bytes(raw.body)


async def test_letters_come_and_go_in_the_order_of_their_seqs():
    async with serving() as shard:
        await make_letters(shard, *range(40))
        assert [record["data"] for record in await shard.records("dead")] == list(range(40))
        assert await redrive(shard, limit=25) == (25, 15, 0)
        assert await redrive(shard) == (15, 0, 0)
        assert [job["data"] for job in await shard.claim(40)] == list(range(40))


async def test_no_key_of_a_client_stands_for_a_dead_letter_that_goes_back():
    async with serving() as shard:
        await make_letters(shard, "x")
        epoch = shard.shard.store.engine.state.topics["dead"].epoch  # type: ignore[union-attr]
        body = {"records": [{"data": "other"}], "idempotency_key": f"redrive dead {epoch} 1"}
        await shard.call("append", "q", body)
        assert await redrive(shard) == (1, 0, 0)
        assert [job["data"] for job in await shard.claim(5)] == ["other", "x"]


async def test_a_job_without_meta_has_none_again():
    async with serving() as shard:
        await make_letters(shard, "x")
        assert await redrive(shard) == (1, 0, 0)
        assert "meta" not in (await shard.claim())[0]
        assert shard.queues.find("q").leases.line is None  # it is a job like any other


async def test_limits_and_matches_choose_the_oldest_first():
    async with serving() as shard:
        await shard.call("put", "dead", {})
        for n in range(6):
            await shard.produce(n, topic="dead", tag=f"t{n % 2}:{n}")
        await shard.make()
        assert await redrive(shard, limit=1) == (1, 5, 0)
        assert await redrive(shard, match=["tag", "Glob", "t1:*"], limit=2) == (2, 1, 0)
        assert await redrive(shard, match="t0:4") == (1, 0, 0)
        assert await redrive(shard, match="none") == (0, 0, 0)
        assert [record["data"] for record in await shard.records("dead")] == [2, 5]
        assert {job["data"] for job in await shard.claim(9)} == {0, 1, 3, 4}
        assert await redrive(shard) == (2, 0, 0)
        assert await redrive(shard) == (0, 0, 0)


async def test_what_a_worker_holds_in_a_queue_of_dead_letters_stays():
    async with serving() as shard:
        await shard.make()
        await shard.make("dead")
        await shard.produce(*range(4), topic="dead")
        await shard.produce("later", topic="dead", delay_ms=1000)
        await shard.claim(2, topic="dead")
        await shard.settle("nack", 2, topic="dead", delay_ms=500)
        assert await redrive(shard) == (2, 3, 0)
        assert [record["$seq"] for record in await shard.records("dead")] == [1, 2, 5]
        shard.clock.advance(30_001)
        assert await redrive(shard) == (3, 0, 0)
        assert len(await shard.claim(9)) == 5


async def test_many_are_moved_in_one_call(monkeypatch):
    monkeypatch.setattr("topics.limits.REDRIVE_WAIT_MS", 600_000)
    async with serving() as shard:
        await shard.call("put", "dead", {})
        await shard.produce(*range(1500), topic="dead")
        await shard.make()
        assert await redrive(shard) == (1000, 500, 0)
        assert await redrive(shard, limit=10**9) == (500, 0, 0)
        assert sorted(job["data"] for job in [*await shard.claim(1000), *await shard.claim(1000)]) == list(range(1500))


async def test_however_many_are_moved_a_step_begins_a_few_and_few_are_under_way(monkeypatch):
    monkeypatch.setattr("topics.limits.REDRIVE_WAIT_MS", 600_000)
    began: list[int] = []
    at_work: list[int] = [0, 0]
    start_back, move = DeadLetters.start_back, DeadLetters._move

    def begin(self: DeadLetters, queue: Any, seqs: list[int], *rest: Any) -> None:
        began.append(len(seqs))
        start_back(self, queue, seqs, *rest)

    async def count(self: DeadLetters, *given: Any) -> None:
        at_work[0] += 1
        at_work[1] = max(at_work)
        await move(self, *given)
        at_work[0] -= 1

    monkeypatch.setattr(DeadLetters, "start_back", begin)
    monkeypatch.setattr(DeadLetters, "_move", count)
    async with serving() as shard:
        await shard.call("put", "dead", {})
        await shard.produce(*range(1000), topic="dead")
        await shard.make()
        assert await redrive(shard, limit=900) == (900, 100, 0)
        assert began == [256, 256, 256, 132]
        assert at_work[1] <= limits.DEAD_LETTERS_AT_ONCE + 1
        assert [job["data"] for job in await shard.claim(1000)] == list(range(900))


@pytest.mark.parametrize("match", [False, True])
async def test_letters_are_looked_for_a_chunk_a_step_and_counted_as_they_are_at_its_end(match):
    async with serving() as shard:
        await shard.make("dead")
        await shard.produce(*range(3000), topic="dead")
        queue = shard.queues.find("dead")
        ranges = SeqRanges.from_ascending(list(range(2, 3001, 2))) if match else None
        letters = _Letters(queue, ranges)
        steps = letters.find(2500)
        for _ in range(4):
            next(steps)
        await shard.call("delete", "dead", {"before_seq": 300})
        await shard.claim(2, topic="dead")
        later = sum(1 for _ in steps)
        assert later + 4 >= 2500 // limits.BLOCK_RECORDS_MAX
        assert letters.count() == sum(seq % 2 == 0 or not match for seq in range(300, 3001))
        assert letters.seqs == sorted(letters.seqs)
        assert len(letters.seqs) == (1500 if match else 2500)


async def test_what_was_taken_while_others_began_stays(monkeypatch):
    monkeypatch.setattr("topics.limits.REDRIVE_STEP", 10)
    async with serving() as shard:
        await shard.make("dead")
        await shard.produce(*range(50), topic="dead")
        await shard.make()
        queue = shard.queues.find("dead")
        start_back = DeadLetters.start_back

        def begin(self: DeadLetters, *given: Any) -> None:
            start_back(self, *given)
            if not queue.leases.in_flight:  # a worker of the dead letters gets the last ones
                queue.leases.claim([Grant("w", 1, 10**15, list(range(41, 51)))])

        monkeypatch.setattr(DeadLetters, "start_back", begin)
        assert await redrive(shard) == (40, 10, 0)
        assert [record["$seq"] for record in await shard.records("dead")] == list(range(41, 51))


async def test_a_log_that_has_no_room_for_all_moves_some(monkeypatch):
    monkeypatch.setattr("topics.limits.REDRIVE_STEP", 10)
    async with serving() as shard:
        await shard.call("put", "dead", {})
        await shard.produce(*range(50), topic="dead")
        await shard.make()
        start_back = DeadLetters.start_back
        calls: list[int] = []

        def begin(self: DeadLetters, *given: Any) -> None:
            calls.append(1)
            if len(calls) == 3:
                raise TopicsError(errors.STORAGE_FULL, "no room", {})
            start_back(self, *given)

        monkeypatch.setattr(DeadLetters, "start_back", begin)
        refusal = await shard.refused("redrive", "dead", {"to": "q"})
        assert (refusal.code, refusal.detail["moved"]) == (errors.STORAGE_FULL, 20)
        assert len(await shard.records("dead")) == 30
        assert await redrive(shard) == (30, 0, 0)
        assert [job["data"] for job in await shard.claim(50)] == list(range(50))


@pytest.mark.parametrize(
    ("body", "code", "field"),
    [
        ({}, "invalid_request", "to"),
        ({"to": 5}, "invalid_request", "to"),
        ({"to": "no name!"}, "invalid_request", "to"),
        ({"to": "$leases"}, "invalid_request", "to"),
        ({"to": "dead"}, "invalid_request", "to"),
        ({"to": "q", "limit": 0}, "invalid_request", "limit"),
        ({"to": "q", "limit": "all"}, "invalid_request", "limit"),
        ({"to": "q", "match": ["data", "Eq", "x"]}, "invalid_request", "match"),
        ({"to": "q", "matches": "x"}, "invalid_request", "matches"),
        ({"to": "log"}, "not_a_queue", None),
        ({"to": "nowhere"}, "topic_not_found", None),
    ],
)
async def test_what_is_wrong_is_refused_and_moves_nothing(body, code, field):
    async with serving() as shard:
        await shard.make()
        await shard.call("put", "log", {})
        await shard.produce("x", topic="dead")
        error = await shard.refused("redrive", "dead", body)
        assert error.code == code
        assert error.detail.get("field") == field
        assert len(await shard.records("dead")) == 1
        assert await shard.records("q") == []


async def test_a_topic_that_is_not_there_has_no_dead_letters():
    async with serving() as shard:
        await shard.make()
        assert (await shard.refused("redrive", "dead", {"to": "q"})).code == "topic_not_found"


@pytest.mark.parametrize("kind", ["log", "queue"])
async def test_what_the_queue_refuses_stays_and_the_caller_is_told(kind):
    async with serving() as shard:
        await shard.call("put", "dead", {"type": kind})
        await shard.make(cap_records=2, discard="reject")
        await shard.produce(*range(5), topic="dead")
        error = await shard.refused("redrive", "dead", {"to": "q"})
        assert (error.code, error.detail["moved"], error.detail["topic"]) == ("topic_full", 2, "q")
        left = {record["data"] for record in await shard.records("dead")}
        there = {record["data"] for record in await shard.records("q")}
        assert (len(left), len(there), left | there) == (3, 2, set(range(5)))
        if kind == "queue":
            assert await shard.counts("dead") == (3, 0, 0)
            assert {job["data"] for job in await shard.claim(9, topic="dead")} == left
        else:
            await shard.settle("ack", *seqs_of(await shard.claim(2)))
            error = await shard.refused("redrive", "dead", {"to": "q"})
            assert error.detail["moved"] == 2


async def test_a_dead_letter_that_is_deleted_on_its_way_is_not_deleted_twice():
    wire = Wire()
    async with serving() as dest, serving(peers=Peers(0, SLOT_MAP, {1: wire})) as shard:  # type: ignore[dict-item]
        wire.connection = dest.connection
        await dest.make(DEAD)
        await shard.produce("x", "y", topic=QUEUE)
        wire.lose = ["", "there", "there"]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(redrive, shard, QUEUE, DEAD)
            await until(lambda: wire.calls >= 3)
            await shard.call("delete", QUEUE, {"before_seq": 3})
        assert await shard.records(QUEUE) == []


# --- two shards ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("window_ms", [0, 120_000])
@pytest.mark.parametrize("fates", [["there"], ["back"], ["there", "back", "back"]])
async def test_a_call_that_is_lost_is_made_again_without_a_second_copy(fates, window_ms):
    """Also where keys are not remembered."""
    wire = Wire()
    async with serving() as dest, serving(peers=Peers(0, SLOT_MAP, {1: wire})) as shard:  # type: ignore[dict-item]
        wire.connection = dest.connection
        await dest.make(DEAD, idempotency_window_ms=window_ms)
        await shard.produce("x", topic=QUEUE, meta={"$dead_letter_from": "q", "a": "b"})
        wire.lose = ["", *fates]  # the first asks what kind of topic it is
        with trio.fail_after(60):
            assert await redrive(shard, QUEUE, DEAD) == (1, 0, 0)
        assert wire.calls == len(fates) + 2
        (record,) = await dest.records(DEAD)
        assert (record["data"], record["meta"]) == ("x", {"a": "b"})


@pytest.mark.parametrize("fate", ["hang", "hang back"])
@pytest.mark.parametrize("kind", ["log", "queue"])
@pytest.mark.parametrize("stored", [False, True])
async def test_a_move_that_a_crash_cut_short_is_finished_at_the_next_start(fate, kind, stored):
    """Here QUEUE holds the dead letters and DEAD is the queue: these are the names on the two shards."""
    files, clock, wire = FaultyFiles(), FakeClock(), Wire()
    peers = Peers(0, SLOT_MAP, {1: wire})  # type: ignore[dict-item]
    async with serving(clock=clock) as dest:
        wire.connection = dest.connection
        await dest.make(DEAD)
        async with serving(files, clock, peers, crash=True) as shard:
            await shard.call("put", QUEUE, {"type": kind, "durable": True})
            await shard.produce("x", "y", topic=QUEUE, meta={"$dead_letter_reason": "no"})
            if stored:
                await shard.shard.checkpoint()
            wire.lose = ["", fate, fate]
            async with trio.open_nursery() as nursery:
                nursery.start_soon(redrive, shard, QUEUE, DEAD)
                await until(lambda: wire.calls == 3)
                if fate == "hang back":
                    with trio.fail_after(60):
                        while len(await dest.records(DEAD)) < 2:
                            await trio.sleep(0.01)
                nursery.cancel_scope.cancel()
        if stored:
            await dest.shard.checkpoint()
        clock.advance(3_600_000)  # longer than any key is remembered
        files = files.crash(5, power_loss=True)
        async with serving(files, clock, peers) as shard:
            with trio.fail_after(60):
                while await shard.records(QUEUE):
                    await trio.sleep(0.01)
        records = await dest.records(DEAD)
        assert sorted(record["data"] for record in records) == ["x", "y"]
        assert all("meta" not in record for record in records)


async def test_a_destination_that_loses_power_in_between_has_each_once():
    """The copy was answered, so it is there; what was not answered is made again."""
    files, clock, wire = FaultyFiles(), FakeClock(), Wire()
    peers = Peers(0, SLOT_MAP, {1: wire})  # type: ignore[dict-item]
    async with serving(clock=clock, peers=peers) as shard:
        await shard.produce(*range(20), topic=QUEUE)
        async with serving(files, clock, crash=True) as dest:
            wire.connection = dest.connection
            await dest.make(DEAD)
            wire.lose = [""] + ["back"] * 7
            async with trio.open_nursery() as nursery:
                nursery.start_soon(redrive, shard, QUEUE, DEAD)
                await until(lambda: wire.calls >= 10)
                wire.connection = None
                nursery.cancel_scope.cancel()
        files = files.crash(9, power_loss=True)
        async with serving(files, clock) as dest:
            wire.connection = dest.connection
            with trio.fail_after(30):
                while await shard.records(QUEUE):
                    await trio.sleep(0.01)
            assert sorted(record["data"] for record in await dest.records(DEAD)) == list(range(20))


async def test_a_shard_that_does_not_answer_is_a_503_and_nothing_is_moved():
    wire = Wire()
    async with serving(peers=Peers(0, SLOT_MAP, {1: wire})) as shard:  # type: ignore[dict-item]
        await shard.produce("x", topic=QUEUE)
        error = await shard.refused("redrive", QUEUE, {"to": DEAD})
        assert (error.code, error.detail["retry_after_ms"]) == ("not_ready", 1000)
        assert len(await shard.records(QUEUE)) == 1


async def test_an_answer_does_not_wait_for_ever(monkeypatch):
    monkeypatch.setattr("topics.limits.REDRIVE_WAIT_MS", 50)
    wire = Wire()
    async with serving() as dest, serving(peers=Peers(0, SLOT_MAP, {1: wire})) as shard:  # type: ignore[dict-item]
        wire.connection = dest.connection
        await dest.make(DEAD)
        await shard.produce("x", "y", topic=QUEUE)
        wire.lose = ["", "hang", "hang"]
        assert await redrive(shard, QUEUE, DEAD) == (0, 0, 2)
        assert await redrive(shard, QUEUE, DEAD) == (0, 0, 0)  # they are on their way, and not moved twice
        assert wire.calls == 4
