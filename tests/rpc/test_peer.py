"""A peer that comes and goes."""

import itertools

import pytest
import trio
import trio.testing

from topics.rpc import DeadlineExceeded, Peer, PeerLost, TooManyCalls, peer, serve_unix
from topics.rpc.errors import RpcError
from topics.rpc.unix import connect_unix


def echo(call):
    call.reply(call.head, call.body)


async def feed(call):
    for n in range(call.head["count"]):
        await call.send({"n": n})
    call.reply({})


HANDLERS = {"echo": echo, "feed": lambda call: call.run(feed, call), "wait": lambda call: None}


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "s")


@pytest.fixture
def attempts(monkeypatch):
    """The times at which a connect was tried."""
    times = []

    async def counted(path, nursery):
        times.append(trio.current_time())
        return await connect_unix(path, nursery)

    monkeypatch.setattr(peer, "connect_unix", counted)
    return times


async def test_one_lazy_connection_for_all(path, attempts):
    async with trio.open_nursery() as nursery:
        await nursery.start(serve_unix, path, HANDLERS)
        shard = Peer(path, nursery)
        assert not shard.connected
        assert attempts == []
        async with trio.open_nursery() as callers:
            for _ in range(50):
                callers.start_soon(shard.call, "echo", {})
        assert shard.connected
        assert len(attempts) == 1
        async with shard.stream("feed", {"count": 3}) as stream:
            assert [item.head["n"] async for item in stream] == [0, 1, 2]
        nursery.cancel_scope.cancel()


async def test_what_is_sent_at_once(path, set_limits):
    set_limits(RPC_JOIN_BYTES=1000, RPC_SEND_QUEUE_BYTES=8000)
    async with trio.open_nursery() as nursery:
        await nursery.start(serve_unix, path, HANDLERS)
        shard = Peer(path, nursery)
        assert not shard.sends_at_once(1)  # calls that wait for a connection may overtake one another
        connection = await shard.connect()
        assert shard.sends_at_once(1000)
        assert not shard.sends_at_once(1001)
        connection.outbox.queued_bytes += 1500
        assert not shard.sends_at_once(1000)  # it might have to wait for room
        connection.outbox.queued_bytes -= 1500
        assert shard.sends_at_once(1000)
        await shard.aclose()
        assert not shard.sends_at_once(1)
        nursery.cancel_scope.cancel()


async def test_it_comes_back_after_a_restart(path, attempts):
    async with trio.open_nursery() as nursery:
        shard = Peer(path, nursery)
        for turn in range(3):
            async with trio.open_nursery() as server:
                await server.start(serve_unix, path, HANDLERS)
                assert (await shard.call("echo", {"turn": turn})).head == {"turn": turn}
                server.start_soon(expect_lost, shard, "wait")
                await trio.testing.wait_all_tasks_blocked()
                await (await shard.connect()).aclose()
                server.cancel_scope.cancel()
            assert not shard.connected
        assert len(attempts) == 3
        await shard.aclose()


async def expect_lost(shard, method):
    with pytest.raises(PeerLost):
        await shard.call(method, {})


async def test_while_it_is_down_calls_fail_at_once_and_attempts_back_off(autojump_clock, path, attempts):
    async with trio.open_nursery() as nursery:
        shard = Peer(path, nursery)
        for _ in range(1000):
            before = trio.current_time()
            with pytest.raises(PeerLost):
                await shard.call("echo", {})
            assert trio.current_time() == before
            await trio.sleep(0.01)
        assert 10 < len(attempts) < 20  # in ten seconds
        gaps = [round(later - earlier, 6) for earlier, later in itertools.pairwise(attempts)]
        assert gaps == sorted(gaps)
        assert max(gaps) < 1.1
        await nursery.start(serve_unix, path, HANDLERS)
        await trio.sleep(1)
        await shard.call("echo", {})
        nursery.cancel_scope.cancel()


async def test_a_connect_that_hangs(autojump_clock, path, monkeypatch, set_limits):
    set_limits(RPC_INFLIGHT_MAX=3)
    hold = trio.Event()

    async def slow(path, nursery):
        await hold.wait()
        raise PeerLost("gave up")

    monkeypatch.setattr(peer, "connect_unix", slow)
    async with trio.open_nursery() as nursery:
        shard = Peer(path, nursery)
        with pytest.raises(DeadlineExceeded):
            await shard.call("echo", {}, deadline_ms=100)
        with trio.move_on_after(1) as scope:
            await shard.call("echo", {})
        assert scope.cancelled_caught
        errors = []

        async def caller():
            try:
                await shard.call("echo", {})
            except RpcError as error:
                errors.append(type(error))

        for _ in range(5):
            nursery.start_soon(caller)
        await trio.testing.wait_all_tasks_blocked()
        assert errors == [TooManyCalls] * 2
        hold.set()
        await trio.testing.wait_all_tasks_blocked()
        assert errors[2:] == [PeerLost] * 3


async def test_closed_is_closed(path):
    async with trio.open_nursery() as nursery:
        await nursery.start(serve_unix, path, HANDLERS)
        shard = Peer(path, nursery)
        await shard.call("echo", {})
        await shard.aclose()
        with pytest.raises(PeerLost):
            await shard.call("echo", {})
        nursery.cancel_scope.cancel()


async def test_the_loss_of_a_connection_is_told_although_nobody_calls(path):
    async with trio.open_nursery() as nursery:
        told = trio.Event()
        shard = Peer(path, nursery)
        shard.when_lost = told.set
        async with trio.open_nursery() as server:
            await server.start(serve_unix, path, HANDLERS)
            await shard.call("echo", {})
            assert not told.is_set()
            server.cancel_scope.cancel()
        with trio.fail_after(60):
            await told.wait()
        assert not shard.connected
        nursery.cancel_scope.cancel()
