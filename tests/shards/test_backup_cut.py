"""When all shards note their cut: what is on its way from one to another is in both cuts or in neither."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from tests.shards.queue_shard import QueueShard, serving
from tests.shards.test_dead_letters import DEAD, QUEUE, SLOT_MAP
from topics import limits
from topics.cli.backups import take
from topics.rpc.connection import Connection
from topics.shards.peers import Peers
from topics.testing.fake_clock import FakeClock
from topics.testing.rpc_pair import until

PATIENCE_S = 60  # only bounds a failing test


class SlowWire:
    """A peer whose calls arrive, and are answered, when the test says so."""

    def __init__(self) -> None:
        self.connection: Connection | None = None
        self.arrived = self.answered = 0
        self.sent = 0
        self.may_arrive, self.may_be_answered = trio.Event(), trio.Event()

    async def call(self, method: str, head: Any, body: Any = b"", *, deadline_ms: int | None = None) -> Any:
        self.sent += 1
        await self.may_arrive.wait()
        assert self.connection is not None
        reply = await self.connection.call(method, head, body)
        self.arrived += 1
        await self.may_be_answered.wait()
        self.answered += 1
        return reply

    def sends_at_once(self, size: int) -> bool:
        return True


class Pair:
    def __init__(self, source: QueueShard, dest: QueueShard, wire: SlowWire) -> None:
        self.source, self.dest, self.wire = source, dest, wire
        self.connections = {0: source.connection, 1: dest.connection}
        self.cuts: Any = None

    async def cut(self) -> None:
        self.cuts = await take._cut(self.connections)

    def cut_lsns(self) -> dict[int, int]:
        return {shard: lsn for shard, (lsn, _) in self.cuts.items()}

    async def lose_a_job(self) -> None:
        """A claim that finds a job due for the dead-letter topic, which is on the other shard."""
        await self.source.claim(topic=QUEUE)

    def lsns(self) -> dict[int, int]:
        found = {}
        for number, shard in enumerate((self.source, self.dest)):
            assert shard.shard.store is not None
            found[number] = shard.shard.store.engine.log.last_lsn
        return found


@asynccontextmanager
async def two_shards() -> AsyncIterator[Pair]:
    """Files hold still in both, and a job is due."""
    wire, clock = SlowWire(), FakeClock()
    async with serving(clock=clock) as dest, serving(clock=clock, peers=Peers(0, SLOT_MAP, {1: wire})) as source:  # type: ignore[dict-item]
        wire.connection = dest.connection
        await source.make(QUEUE, max_deliveries=1, dead_letter=DEAD, durable=True)
        await source.produce("x", topic=QUEUE)
        await source.claim(topic=QUEUE)
        clock.advance(30_001)
        async with AsyncExitStack() as held:
            for shard in (source, dest):
                hold = await held.enter_async_context(shard.connection.stream("backup.hold", {}))
                await hold.__anext__()
            yield Pair(source, dest, wire)
            wire.may_arrive.set()
            wire.may_be_answered.set()


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BACKUP_PAUSE_MS", PATIENCE_S * 1000)


@pytest.mark.parametrize("stage", ["on its way", "there"])
async def test_a_cut_waits_for_a_copy_that_is_on_its_way(stage: str) -> None:
    async with two_shards() as pair, trio.open_nursery() as nursery:
        before = pair.lsns()[1]
        nursery.start_soon(pair.lose_a_job)
        with trio.fail_after(PATIENCE_S):
            await until(lambda: pair.wire.sent == 1)
            if stage == "there":
                pair.wire.may_arrive.set()
                await until(lambda: pair.wire.arrived == 1)
            nursery.start_soon(pair.cut)
            gate = pair.source.shard._peers.gate
            await until(lambda: gate._open is not None)  # it is closed, and somebody is inside
            for _ in range(50):  # as often as anything could happen
                await pair.source.connection.call("health", {})
                await pair.dest.connection.call("health", {})
            assert pair.cuts is None, "the source must not note its cut while the copy is between the two"
            pair.wire.may_arrive.set()
            pair.wire.may_be_answered.set()
            await until(lambda: pair.cuts is not None)
            assert (pair.wire.arrived, pair.wire.answered) == (1, 1)
            lsns = pair.cut_lsns()
            assert [r["data"] for r in await pair.dest.records(DEAD)] == ["x"]
            assert lsns[1] > before, "the destination's cut has the copy"
        nursery.cancel_scope.cancel()


async def test_nothing_sets_out_between_the_cuts_of_two_shards() -> None:
    """The source has noted its cut, the destination has not: a copy that set out now would be in one and not gone from
    the other."""
    async with two_shards() as pair, trio.open_nursery() as nursery:
        pair.wire.may_arrive.set()
        pair.wire.may_be_answered.set()
        for connection in pair.connections.values():
            await connection.call("backup.pause", {})
        first = (await pair.source.connection.call("backup.cut", {})).head["lsn"]
        nursery.start_soon(pair.lose_a_job)
        with trio.fail_after(PATIENCE_S):
            await until(lambda: pair.lsns()[0] > first)  # the claim has begun, and wants to move the job
            for _ in range(50):
                await pair.source.connection.call("health", {})
                await pair.dest.connection.call("health", {})
            assert pair.wire.sent == 0
            second = (await pair.dest.connection.call("backup.cut", {})).head["lsn"]
            assert second == pair.lsns()[1]
            assert [await connection.call("backup.resume", {}) for connection in pair.connections.values()]
            await until(lambda: pair.wire.answered == 1)
            assert pair.lsns()[1] > second, "the copy came after both cuts"
        nursery.cancel_scope.cancel()
