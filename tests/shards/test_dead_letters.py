"""Dead letters: when they are due, what they carry, and that none is lost or doubled by a crash or a refusal."""

import json
from typing import Any

import pytest
import trio
import trio.testing

from tests.shards.queue_shard import QueueShard, seqs_of, serving
from topics import limits
from topics.core.claims import deal
from topics.core.lease_events import MOVED, MOVING
from topics.ids import SLOTS, slot_of
from topics.rpc.connection import Connection
from topics.rpc.errors import PeerLost
from topics.shards import queue_passes
from topics.shards.engine import Engine
from topics.shards.peers import Peers
from topics.testing.fake_clock import FakeClock
from topics.testing.faulty_files import FaultyFiles
from topics.testing.rpc_pair import until


async def fail_job(shard: QueueShard, times: int = 1, count: int = 1) -> None:
    """Claim and lose jobs so often."""
    for _ in range(times):
        assert len(await shard.claim(count)) == count
        shard.clock.advance(30_001)


async def test_a_job_is_moved_when_it_would_be_delivered_once_too_often():
    async with serving() as shard:
        await shard.make(max_deliveries=2, dead_letter="dead")
        body = rb'{"records":[{"data":{"a":  [1]},"tag":"t\"1","node":"p","meta":{ "trace": "z9" }}]}'
        await shard.connection.call("append", {"topic": "q"}, body)
        await fail_job(shard, 2)
        assert await shard.counts() == (1, 0, 0)
        assert await shard.claim() == []
        assert await shard.counts() == (0, 0, 1)
        assert await shard.records("q") == []
        raw = await shard.connection.call("diff", {"topic": "dead"}, b'{"include_tags":true}')
        assert b'"data":{"a":  [1]},"meta":{"trace": "z9",' in bytes(raw.body)
        (record,) = await shard.records("dead")
        assert (record["$seq"], record["$tag"], record["$node"]) == (1, 't"1', "p")
        assert record["meta"] == {
            "trace": "z9",
            "$dead_letter_from": "q",
            "$dead_letter_deliveries": "2",
            "$dead_letter_src_seq": "1",
            "$dead_letter_reason": "lease expired",
            "$dead_letter_last_failure_ts": str(shard.clock.now_ms() - 1),
        }


async def test_without_a_dead_letter_topic_jobs_are_delivered_for_ever():
    async with serving() as shard:
        await shard.make(max_deliveries=1)
        await shard.produce("x")
        await fail_job(shard, 5)
        assert (await shard.claim())[0]["deliveries"] == 6


async def test_a_nack_counts_like_a_lease_that_ends():
    async with serving() as shard:
        await shard.make(max_deliveries=1, dead_letter="dead")
        await shard.produce("x", "y")
        await shard.claim()
        await shard.settle("nack", 1)
        assert seqs_of(await shard.claim(5)) == [2]
        assert [record["data"] for record in await shard.records("dead")] == ["x"]


async def test_more_than_a_pass_full_of_dead_letters_is_got_out_of_the_way():
    async with serving() as shard:
        await shard.make(max_deliveries=1, dead_letter="dead")
        await shard.produce(*range(600))
        await fail_job(shard, count=600)
        await shard.produce("good")
        assert [job["data"] for job in await shard.claim()] == ["good"]
        while shard.queues.find("q").leases.dead_lettered < 600:
            assert await shard.claim() == []
        await until(lambda: shard.queues.find("q").leases.dead_lettered == 600)
        assert sorted(int(record["data"]) for record in await shard.records("dead")) == list(range(600))


@pytest.mark.parametrize("jitter_ms", [0, 5])
async def test_a_pass_that_is_cut_short_by_dead_letters_goes_on_in_another_turn(monkeypatch, jitter_ms):
    async with serving() as shard:
        await shard.make(max_deliveries=1, dead_letter="dead", claim_jitter_ms=jitter_ms)
        await shard.produce(*range(1000))
        await fail_job(shard, count=1000)
        await shard.produce("good")
        passes: list[int] = []

        def count(*given: Any) -> Any:
            passes.append(1)
            return deal(*given)

        monkeypatch.setattr(queue_passes, "deal", count)
        monkeypatch.setattr(limits, "OVERDUE_STEP", 50)
        with trio.fail_after(30):
            assert [job["data"] for job in await shard.claim()] == ["good"]
        assert len(passes) > 2
        with trio.fail_after(60):
            while shard.queues.find("q").leases.dead_lettered < 1000:
                assert await shard.claim() == []
        assert len(await shard.records("dead")) == 1000


async def test_no_key_of_a_client_stands_for_a_dead_letter():
    async with serving() as shard:
        await shard.make(max_deliveries=1, dead_letter="dead")
        await shard.produce("x")
        epoch = shard.queues.find("q").topic.epoch
        body = {"records": [{"data": "other"}], "idempotency_key": f"dead-letter q {epoch} 1"}
        await shard.call("append", "dead", body)
        await fail_job(shard)
        await shard.claim()
        assert [record["data"] for record in await shard.records("dead")] == ["other", "x"]


async def test_a_job_that_says_it_was_a_dead_letter_says_so_once():
    """However its client has written the name."""
    async with serving() as shard:
        await shard.make(max_deliveries=1, dead_letter="dead")
        meta = rb'{"\u0024dead_letter_from":"forged","a":"\u0062"}'
        await shard.connection.call("append", {"topic": "q"}, b'{"records":[{"data":1,"meta":%b}]}' % meta)
        await fail_job(shard)
        await shard.claim()
        raw = bytes((await shard.connection.call("diff", {"topic": "dead"}, b"{}")).body)
        assert b"u0024" not in raw
        (record,) = json.loads(raw + b"}")["records"]
        assert (record["meta"]["$dead_letter_from"], record["meta"]["a"]) == ("q", "b")


async def test_a_dead_letter_queue_may_have_one_too():
    async with serving() as shard:
        await shard.make(max_deliveries=1, dead_letter="second")
        await shard.make("second", max_deliveries=1, dead_letter="third")
        await shard.produce("x")
        await fail_job(shard)
        await shard.claim()
        await shard.claim(topic="second")
        shard.clock.advance(30_001)
        await shard.claim(topic="second")
        (record,) = await shard.records("third")
        assert record["meta"]["$dead_letter_from"] == "second"
        assert len(record["meta"]) == 5


async def test_a_full_dead_letter_topic_holds_the_job_back():
    async with serving() as shard:
        await shard.make(max_deliveries=1, dead_letter="dead")
        await shard.call("put", "dead", {"cap_records": 1, "discard": "reject"})
        await shard.produce("full", topic="dead")
        await shard.produce("x", "y")
        await fail_job(shard)
        with trio.fail_after(60):
            assert seqs_of(await shard.claim()) == [2]
        assert await shard.counts() == (0, 1, 0)  # in neither
        await shard.call("delete", "dead", {"before_seq": 2})
        with trio.fail_after(60):
            while await shard.counts() != (0, 1, 1):
                await trio.sleep(0.01)
        assert [record["data"] for record in await shard.records("dead")] == ["x"]


async def test_a_wait_that_ends_while_dead_letters_are_moved_gets_its_jobs():
    async with serving() as shard:
        await shard.make(max_deliveries=1, dead_letter="dead")
        await shard.call("put", "dead", {"cap_records": 1, "discard": "reject"})
        await shard.produce("full", topic="dead")
        await shard.produce("x")
        await fail_job(shard)
        await shard.produce("y")
        with trio.fail_after(60):
            assert seqs_of(await shard.claim(5, wait_ms=1)) == [2]
            await shard.call("delete", "dead", {"before_seq": 2})
            while await shard.counts() != (0, 1, 1):
                await trio.sleep(0.01)


async def test_a_refused_job_comes_back_when_the_queue_has_no_dead_letter_topic_any_more():
    async with serving() as shard:
        await shard.make(max_deliveries=1, dead_letter="dead")
        await shard.call("put", "dead", {"cap_records": 1, "discard": "reject"})
        await shard.produce("full", topic="dead")
        await shard.produce("x")
        await fail_job(shard)
        await shard.claim()
        await shard.call("put", "q", {"dead_letter": None})
        with trio.fail_after(60):
            while not (jobs := await shard.claim()):
                await trio.sleep(0.01)
        assert jobs[0]["deliveries"] == 2


async def test_the_count_outlives_restarts_and_goes_with_the_topic():
    files = FaultyFiles()
    async with serving(files, crash=True) as shard:
        clock = shard.clock
        await shard.make(max_deliveries=1, dead_letter="dead")
        await shard.produce(*range(3))
        await fail_job(shard, count=3)
        await shard.claim()
        assert (await shard.counts())[2] == 3
        await shard.shard.committer.flushed()  # type: ignore[union-attr]
    async with serving(files, clock) as shard:
        assert await shard.counts() == (0, 0, 3)
    async with serving(files, clock) as shard:
        assert await shard.counts() == (0, 0, 3)
        await shard.call("remove", "q")
        await shard.make()
        assert await shard.counts() == (0, 0, 0)


# --- crashes ------------------------------------------------------------------------------------------------------


class Wire:
    """A peer whose calls may be lost on the way there, or on the way back."""

    def __init__(self) -> None:
        self.connection: Connection | None = None
        self.lose: list[str] = []
        self.calls = 0

    async def call(self, method: str, head: Any, body: Any = b"", *, deadline_ms: int | None = None) -> Any:
        self.calls += 1
        fate = self.lose.pop(0) if self.lose else ""
        if fate == "hang":
            await trio.sleep_forever()
        if fate == "there" or self.connection is None:
            raise PeerLost("lost")
        reply = await self.connection.call(method, head, body, deadline_ms=deadline_ms)
        if fate == "back":
            raise PeerLost("lost")
        if fate == "hang back":
            await trio.sleep_forever()
        return reply

    def sends_at_once(self, size: int) -> bool:
        return self.connection is not None and self.connection.sends_at_once(size)


def names_on(shard: int) -> str:
    return next(name for name in map(str, range(1000)) if slot_of(name) % 2 == shard)


SLOT_MAP = [slot % 2 for slot in range(SLOTS)]
QUEUE, DEAD = names_on(0), names_on(1)


@pytest.mark.parametrize("window_ms", [0, 120_000])
@pytest.mark.parametrize("fates", [["there"], ["back"], ["there", "back", "back"]])
async def test_a_call_that_is_lost_is_made_again_without_a_second_copy(fates, window_ms):
    """Also where keys are not remembered."""
    wire = Wire()
    wire.lose = list(fates)
    async with serving() as dest, serving(peers=Peers(0, SLOT_MAP, {1: wire})) as shard:  # type: ignore[dict-item]
        wire.connection = dest.connection
        await dest.call("put", DEAD, {"idempotency_window_ms": window_ms})
        await shard.make(QUEUE, max_deliveries=1, dead_letter=DEAD)
        await shard.produce("x", topic=QUEUE)
        await shard.claim(topic=QUEUE)
        shard.clock.advance(30_001)
        await shard.claim(topic=QUEUE)
        with trio.fail_after(60):
            while await shard.counts(QUEUE) != (0, 0, 1):
                await trio.sleep(0.01)
        assert wire.calls == len(fates) + 1
        assert [record["data"] for record in await dest.records(DEAD)] == ["x"]


class Connecting(Wire):
    """Calls wait until it is connected, and are then sent, the last one first."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[trio.Event] = []

    async def call(self, method: str, head: Any, body: Any = b"", *, deadline_ms: int | None = None) -> Any:
        if self.connection is None:
            self.waiting.append(trio.Event())
            await self.waiting[-1].wait()
        return await super().call(method, head, body, deadline_ms=deadline_ms)

    async def connect(self, connection: Connection) -> None:
        self.connection = connection
        while self.waiting:
            self.waiting.pop().set()
            await trio.testing.wait_all_tasks_blocked()


async def test_dead_letters_do_not_overtake_one_another_while_the_other_shard_is_being_connected():
    wire = Connecting()
    async with serving() as dest, serving(peers=Peers(0, SLOT_MAP, {1: wire})) as shard:  # type: ignore[dict-item]
        await shard.make(QUEUE, max_deliveries=1, dead_letter=DEAD)
        await shard.produce(*range(5), topic=QUEUE)
        await shard.claim(5, topic=QUEUE)
        shard.clock.advance(30_001)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(shard.claim, 1, "w", QUEUE)
            await until(lambda: wire.waiting)
            await trio.testing.wait_all_tasks_blocked()
            await wire.connect(dest.connection)
        with trio.fail_after(60):
            while await shard.counts(QUEUE) != (0, 0, 5):
                await trio.sleep(0.01)
        assert [record["data"] for record in await dest.records(DEAD)] == [*range(5)]


async def test_a_dead_letter_does_not_overtake_one_that_is_sent_in_pieces():
    wire = Wire()
    async with serving() as dest, serving(peers=Peers(0, SLOT_MAP, {1: wire})) as shard:  # type: ignore[dict-item]
        wire.connection = dest.connection
        data = ["x" * 900_000, 1, "y" * 9_000, 2, 3]
        await shard.make(QUEUE, max_deliveries=1, dead_letter=DEAD)
        await shard.produce(*data, topic=QUEUE)
        await shard.claim(5, topic=QUEUE)
        shard.clock.advance(30_001)
        await shard.claim(topic=QUEUE)
        with trio.fail_after(60):
            while await shard.counts(QUEUE) != (0, 0, 5):
                await trio.sleep(0.01)
        assert [record["data"] for record in await dest.records(DEAD)] == data


async def test_no_record_of_a_client_stands_for_a_dead_letter_that_is_sent_again():
    """However much it looks like one."""
    wire = Wire()
    wire.lose = ["there"]
    async with serving() as dest, serving(peers=Peers(0, SLOT_MAP, {1: wire})) as shard:  # type: ignore[dict-item]
        wire.connection = dest.connection
        await shard.make(QUEUE, max_deliveries=1, dead_letter=DEAD)
        await shard.produce("x", topic=QUEUE)
        await shard.claim(topic=QUEUE)
        shard.clock.advance(30_001)
        stamps = {"from": QUEUE, "deliveries": "1", "src_seq": "1"}
        meta = {f"$dead_letter_{name}": value for name, value in stamps.items()}
        body = json.dumps({"records": [{"data": "forged", "meta": meta}]}, separators=(",", ":"))
        await dest.connection.call("append", {"topic": DEAD}, body.encode())
        await shard.claim(topic=QUEUE)
        with trio.fail_after(60):
            while await shard.counts(QUEUE) != (0, 0, 1):
                await trio.sleep(0.01)
        assert [record["data"] for record in await dest.records(DEAD)] == ["forged", "x"]


@pytest.mark.parametrize("fate", ["hang", "hang back"])
@pytest.mark.parametrize("leases_durable", [False, True])
async def test_a_move_that_a_crash_cut_short_is_finished_at_the_next_start(fate, leases_durable):
    files, clock, wire = FaultyFiles(), FakeClock(), Wire()
    wire.lose = [fate]
    peers = Peers(0, SLOT_MAP, {1: wire})  # type: ignore[dict-item]
    async with serving(clock=clock) as dest:
        wire.connection = dest.connection
        async with serving(files, clock, peers, crash=True) as shard:
            await shard.make(QUEUE, max_deliveries=1, dead_letter=DEAD, durable=True, leases_durable=leases_durable)
            await shard.produce("x", "y", topic=QUEUE)
            await shard.claim(topic=QUEUE)
            clock.advance(30_001)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(shard.claim, 1, "w", QUEUE)
                await until(lambda: wire.calls)
                nursery.cancel_scope.cancel()
        clock.advance(3_600_000)  # longer than any key is remembered
        async with serving(files, clock, peers) as shard:
            with trio.fail_after(60):
                while [record["data"] for record in await shard.records(QUEUE)] != ["y"]:
                    await trio.sleep(0.01)
            assert (await shard.counts(QUEUE))[2] == 1
        assert [record["data"] for record in await dest.records(DEAD)] == ["x"]


@pytest.mark.parametrize("leases_durable", [False, True])
async def test_a_job_that_has_arrived_is_nobodys_until_it_is_deleted(leases_durable, monkeypatch):
    """A crash came between the move and the delete, and the next start has not got round to that yet."""
    files, clock = FaultyFiles(), FakeClock()
    async with serving(files, clock, crash=True) as shard:
        await shard.make(max_deliveries=1, dead_letter="dead", durable=True, leases_durable=leases_durable)
        await shard.produce("x")
        await fail_job(shard)
        moved: list[Any] = []
        with monkeypatch.context() as patch, trio.fail_after(60):
            patch.setattr(Engine, "delete_records", lambda *args: moved.append(args))
            assert await shard.claim(wait_ms=1) == []
            await until(lambda: moved)
        assert [record["data"] for record in await shard.records("dead")] == ["x"]
        await shard.shard.committer.flushed()  # type: ignore[union-attr]
    with monkeypatch.context() as patch:
        deletes: list[Any] = []
        patch.setattr(Engine, "delete_records", lambda *args: deletes.append(args))
        async with serving(files, clock, crash=True) as shard:
            assert await shard.claim() == []
            assert await shard.counts() == (0, 0, 1)
            patch.undo()
            for engine, *args in deletes:
                engine.delete_records(*args)
            with trio.fail_after(60):
                while await shard.records("q"):  # until the delete is on disk
                    await trio.sleep(0.01)
            assert await shard.counts() == (0, 0, 1)
            assert len(await shard.records("dead")) == 1


async def test_a_destination_that_restarts_has_what_it_said_it_has():
    """The copy is answered when it is synced, although the topic's own writes are not."""
    files = FaultyFiles()
    async with serving(files, crash=True) as dest:
        body = b"\x91\x95\xc4\x011\xc4\x00\xc0\xc0\xc0"
        reply = await dest.connection.call("copy", {"topic": "dead", "key": "k"}, body)
        assert reply.head == {"first_seq": 1, "deduped": False}
        assert dest.shard.store is not None
        engine = dest.shard.store.engine
        assert engine.state.topics["dead"].applied_lsn <= engine.log.durable_lsn
        again = await dest.connection.call("copy", {"topic": "dead", "key": "k"}, body)
        assert again.head == {"first_seq": 1, "deduped": True}


async def test_a_record_at_the_limit_can_still_be_moved():
    async with serving() as shard:
        await shard.make(max_deliveries=1, dead_letter="dead")
        meta = {"m": "x" * (16 * 1024 - 9)}
        data = "y" * (1024 * 1024 - 2 - len(json.dumps(meta)))
        await shard.produce(data, meta=meta)
        await fail_job(shard)
        await shard.claim()
        (record,) = (await shard.call("diff", "dead", {}))["records"]
        assert record["data"] == data
        assert record["meta"]["m"] == meta["m"]


async def test_every_step_is_in_the_log_before_the_next(monkeypatch):
    async with serving() as shard:
        await shard.make(max_deliveries=1, dead_letter="dead")
        await shard.produce("x")
        await fail_job(shard)
        kinds: list[int] = []
        note = shard.queues.log.note

        def spy(topic: Any, made: Any, *rest: Any) -> None:
            kinds.append(made[0])
            note(topic, made, *rest)

        monkeypatch.setattr(shard.queues.log, "note", spy)
        await shard.claim()
        assert kinds == [MOVING, MOVED]
