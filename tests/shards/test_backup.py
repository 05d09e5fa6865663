"""A shard that holds still for a backup: for how long, and what goes on meanwhile."""

import pytest
import trio
import trio.testing

from tests.shards.test_shard import ONE, serving
from topics import errors, limits
from topics.core.derivation import Derived, Mark
from topics.errors import TopicsError
from topics.shards.peers import Gate
from topics.testing.faulty_files import FaultyFiles


async def refused(connection, method) -> str:
    with pytest.raises(TopicsError) as caught:
        await connection.call(method, {})
    assert caught.value.code == errors.NOT_READY
    return caught.value.message


async def test_no_checkpoint_is_made_while_files_hold_still():
    async with serving(FaultyFiles()) as (shard, connection, _):
        await connection.call("append", {"topic": "t"}, ONE)
        async with connection.stream("backup.hold", {}) as hold, trio.open_nursery() as nursery:
            await hold.__anext__()
            await connection.call("append", {"topic": "t"}, ONE)
            nursery.start_soon(connection.call, "checkpoint", {})
            for _ in range(20):
                await connection.call("health", {})
            assert shard.store is not None
            assert shard.store.engine.dirty  # it waits
            cut = (await connection.call("backup.cut", {})).head
            assert cut["lsn"] == shard.store.engine.log.durable_lsn
            await connection.call("backup.held", {})
            hold.abandon()  # and now it is made
        assert not shard.store.engine.dirty
        assert "hold still" in await refused(connection, "backup.held")


async def test_one_backup_at_a_time():
    async with serving(FaultyFiles()) as (_, connection, _), connection.stream("backup.hold", {}) as first:
        await first.__anext__()
        async with connection.stream("backup.hold", {}) as second:
            with pytest.raises(TopicsError, match="another backup"):
                await second.__anext__()
        await connection.call("backup.held", {})


@pytest.mark.parametrize(("limit", "value"), [("BACKUP_HOLD_MS", 1), ("BACKUP_LOG_BYTES", 1)])
async def test_a_hold_ends_by_itself(monkeypatch, limit, value):
    monkeypatch.setattr(limits, limit, value)
    async with serving(FaultyFiles()) as (_, connection, _), connection.stream("backup.hold", {}) as hold:
        await hold.__anext__()
        await connection.call("append", {"topic": "t"}, ONE)
        with pytest.raises(TopicsError, match="any longer"):
            await hold.__anext__()
        assert "hold still" in await refused(connection, "backup.cut")
        await connection.call("checkpoint", {})


async def test_a_shard_that_stops_does_not_wait_for_a_backup():
    async with serving(FaultyFiles()) as (_, connection, _):
        hold = connection.stream("backup.hold", {})
        await hold.__aenter__()
        await hold.__anext__()
    # `serving` has ended: the shard stopped, with its last checkpoint, though nobody ended the hold


async def test_a_pause_ends_by_itself_and_that_is_told(monkeypatch):
    monkeypatch.setattr(limits, "BACKUP_PAUSE_MS", 1)
    async with serving(FaultyFiles()) as (shard, connection, _), connection.stream("backup.hold", {}) as hold:
        assert "hold still" in await refused(connection, "backup.pause")
        await hold.__anext__()
        await connection.call("backup.pause", {})
        await shard._peers.gate.enter()
        shard._peers.gate.leave()
        assert (await connection.call("backup.resume", {})).head == {"paused": False}
        monkeypatch.setattr(limits, "BACKUP_PAUSE_MS", 60_000)
        await connection.call("backup.pause", {})
        assert (await connection.call("backup.resume", {})).head == {"paused": True}


async def test_a_pause_waits_for_what_is_under_way_and_gives_up(monkeypatch):
    monkeypatch.setattr(limits, "BACKUP_PAUSE_MS", 1)
    async with serving(FaultyFiles()) as (shard, connection, _), connection.stream("backup.hold", {}) as hold:
        await hold.__anext__()
        await shard._peers.gate.enter()
        assert "under way" in await refused(connection, "backup.pause")
        await shard._peers.gate.enter()  # it is open again
        shard._peers.gate.leave()
        shard._peers.gate.leave()


async def test_a_closed_gate_lets_nobody_in(autojump_clock):
    gate, seen = Gate(), []

    async def pass_through() -> None:
        await gate.enter()
        seen.append("in")
        gate.leave()

    async def close() -> None:
        await gate.close()
        seen.append("closed")

    await gate.enter()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(close)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(pass_through)
        await trio.testing.wait_all_tasks_blocked()
        assert seen == []
        gate.leave()
        await trio.testing.wait_all_tasks_blocked()
        assert seen == ["closed"]
        gate.open()
    assert seen == ["closed", "in"]


@pytest.mark.parametrize("refilled", [True, False])
async def test_a_hold_waits_for_copies_that_are_made_again_but_not_for_ever(monkeypatch, refilled):
    monkeypatch.setattr(limits, "BACKUP_REFILL_MS", 60_000 if refilled else 1)
    async with serving(FaultyFiles()) as (shard, connection, _):
        await connection.call("append", {"topic": "t"}, ONE)
        assert shard.store is not None
        topic = shard.store.engine.state.topics["t"]
        topic.derived = Derived(Mark(topic.id, 1, "source"))
        topic.derived.missing = [(1, 1)]
        async with connection.stream("backup.hold", {}) as hold:
            if refilled:
                for _ in range(20):
                    await connection.call("health", {})
                assert "hold still" in await refused(connection, "backup.held")
                topic.derived.missing = []
            with trio.fail_after(30):
                await hold.__anext__()
            await connection.call("backup.held", {})
        topic.derived = None
