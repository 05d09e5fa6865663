"""Bounds and backpressure: nothing grows without limit, and a large body is in nobody's way."""

import socket

import pytest
import trio
import trio.testing

from topics.rpc import Call, DeadlineExceeded, PeerLost, SendQueueFull, TooManyCalls, connect, connect_unix, serve_unix
from topics.rpc.server import ServerConnection
from topics.rpc.wire import CALL, ERROR, Decoder, encode, hello, pack_head
from topics.testing.rpc_pair import rpc_pair, until

KIB = 1024
MIB = 1024 * KIB


def socket_streams():
    return [trio.SocketStream(trio.socket.from_stdlib_socket(end)) for end in socket.socketpair()]


async def expect(error, connection, *args, **options):
    with pytest.raises(error):
        await connection.call(*args, **options)


async def test_calls_in_flight_are_bounded(open_pair, set_limits):
    set_limits(RPC_INFLIGHT_MAX=5)
    calls: list[Call] = []
    async with open_pair({"wait": calls.append}) as connection, trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(connection.call, "wait", {})
        await until(lambda: len(calls) >= 5)
        with pytest.raises(TooManyCalls):
            await connection.call("wait", {})
        for call in calls:
            call.reply({})


async def test_the_server_bounds_calls_too(set_limits):
    set_limits(RPC_INFLIGHT_MAX=5)
    ours, theirs = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        server = ServerConnection(theirs, {"wait": lambda call: None})
        await ours.send_all(hello())
        await server.greet()
        nursery.start_soon(server.run)
        for call_id in range(1, 8):
            await ours.send_all(encode(CALL, call_id, pack_head(("wait", None, 0, {}))))
        await trio.testing.wait_all_tasks_blocked()
        assert len(server.calls) == 5
        answers = Decoder().feed(bytes(await ours.receive_some()))
        assert [(kind, call_id) for kind, call_id, *_ in answers[1:]] == [(ERROR, 6), (ERROR, 7)]
        assert answers[1][2]["code"] == "throttled"
        nursery.cancel_scope.cancel()


async def test_callers_wait_for_a_peer_that_does_not_read_then_are_refused(autojump_clock, set_limits):
    set_limits(RPC_SEND_QUEUE_BYTES=1 * MIB, RPC_SEND_WAIT_MS=3000)
    ours, theirs = socket_streams()
    async with trio.open_nursery() as nursery:
        await theirs.send_all(hello())
        connection = await connect(ours, nursery)
        for _ in range(200):
            nursery.start_soon(expect, SendQueueFull, connection, "x", {}, bytes(100 * KIB))
        await trio.testing.wait_all_tasks_blocked()
        assert len(connection.calls) < 20  # the others wait outside of the queue
        assert connection.outbox.queued_bytes <= 1 * MIB
        await expect(DeadlineExceeded, connection, "x", {}, bytes(100 * KIB), deadline_ms=500)
        with trio.move_on_after(0.1) as scope:
            await connection.call("x", {}, bytes(100 * KIB))
        assert scope.cancelled_caught
        started = trio.current_time()
        await expect(SendQueueFull, connection, "x", {}, bytes(100 * KIB))
        assert trio.current_time() - started == pytest.approx(3)
        assert connection.outbox.queued_bytes <= 1 * MIB
        # There is still room for a small call, though nobody reads it.
        nursery.start_soon(expect, DeadlineExceeded, connection, "small", {})
        await trio.testing.wait_all_tasks_blocked()
        assert connection.outbox.queued_bytes > 0
        nursery.cancel_scope.cancel()


async def test_waiting_callers_go_on_when_the_peer_reads_again(set_limits):
    set_limits(RPC_SEND_QUEUE_BYTES=1 * MIB)
    ours, theirs = socket_streams()
    sizes = []

    def count(call):
        sizes.append(len(call.body))
        call.reply({})

    async with trio.open_nursery() as nursery:
        server = ServerConnection(theirs, {"count": count})
        nursery.start_soon(server.greet)
        connection = await connect(ours, nursery)
        async with trio.open_nursery() as callers:
            for _ in range(100):
                callers.start_soon(connection.call, "count", {}, bytes(100 * KIB))
            await trio.testing.wait_all_tasks_blocked()
            assert sizes == []
            nursery.start_soon(server.run)
        assert sizes == [100 * KIB] * 100
        nursery.cancel_scope.cancel()


async def test_a_lost_peer_frees_those_who_wait_for_room(set_limits):
    set_limits(RPC_SEND_QUEUE_BYTES=1 * MIB)
    ours, theirs = socket_streams()
    async with trio.open_nursery() as nursery:
        await theirs.send_all(hello())
        connection = await connect(ours, nursery)
        for _ in range(50):
            nursery.start_soon(expect, PeerLost, connection, "x", {}, bytes(100 * KIB))
        await trio.testing.wait_all_tasks_blocked()
        await theirs.aclose()


@pytest.mark.parametrize("size", [100, 100 * KIB])
async def test_answers_to_a_client_that_does_not_read_stop_the_reading_of_requests(set_limits, size):
    set_limits(RPC_SEND_QUEUE_BYTES=1 * MIB, RPC_INFLIGHT_MAX=100_000)
    ours, theirs = socket_streams()
    most = 0

    def answer(call):
        nonlocal most
        call.reply({}, bytes(size))
        most = max(most, server.outbox.queued_bytes)

    async with trio.open_nursery() as nursery:
        server = ServerConnection(theirs, {"answer": answer})
        await ours.send_all(hello())
        await server.greet()
        nursery.start_soon(server.run)

        async def ask():
            frames = b"".join(encode(CALL, n, pack_head(("answer", None, 0, {}))) for n in range(1, 40_001))
            await ours.send_all(frames)

        nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        assert 1 * MIB < most <= 1 * MIB + size + 200
        received = 0
        decoder = Decoder()
        while received < 3000:  # it goes on as soon as the client reads
            received += len(decoder.feed(bytes(await ours.receive_some(65_536))))
        nursery.cancel_scope.cancel()
    assert most <= 1 * MIB + size + 200


async def test_stream_senders_wait_for_room(set_limits):
    set_limits(RPC_SEND_QUEUE_BYTES=1 * MIB)
    ours, theirs = socket_streams()

    async def flood(call):
        while True:
            await call.send({}, bytes(100 * KIB))

    async with trio.open_nursery() as nursery:
        server = ServerConnection(theirs, {"flood": lambda call: call.run(flood, call)})
        await ours.send_all(hello())
        await server.greet()
        nursery.start_soon(server.run)
        await ours.send_all(encode(CALL, 1, pack_head(("flood", None, 1000, {}))))
        await trio.testing.wait_all_tasks_blocked()
        assert server.outbox.queued_bytes <= 1 * MIB
        nursery.cancel_scope.cancel()


async def test_small_replies_overtake_a_64_mib_reply(tmp_path):
    done = []
    handlers = {
        "large": lambda call: call.reply({}, bytes(64 * MIB)),
        "medium": lambda call: call.reply({}, bytes(40 * KIB)),
        "small": lambda call: call.reply({}),
    }
    path = str(tmp_path / "s")
    async with trio.open_nursery() as nursery:
        await nursery.start(serve_unix, path, handlers)
        connection = await connect_unix(path, nursery)

        async def large():
            assert len((await connection.call("large", {})).body) == 64 * MIB
            done.append("large")

        async with trio.open_nursery() as callers:
            callers.start_soon(large)
            await until(lambda: connection.decoder.unfinished_bytes)
            for method in ("small", "medium", "small"):
                await connection.call(method, {})
                done.append(method)
                assert connection.decoder.unfinished_bytes == 64 * MIB
        assert done == ["small", "medium", "small", "large"]
        nursery.cancel_scope.cancel()


async def test_small_calls_overtake_a_64_mib_call():
    order = []

    def note(call):
        order.append(call.method)
        call.reply({})

    async with rpc_pair({"large": note, "small": note}) as connection, trio.open_nursery() as nursery:
        nursery.start_soon(connection.call, "large", {}, bytes(64 * MIB))
        await trio.lowlevel.checkpoint()
        for _ in range(3):
            nursery.start_soon(connection.call, "small", {})
    assert order == ["small", "small", "small", "large"]


async def test_all_frames_of_one_turn_leave_in_one_send(monkeypatch):
    sends: list[int] = []
    ours, theirs = trio.testing.memory_stream_pair()
    original = ours.send_stream.send_all

    async def recording(data):
        sends.append(len(Decoder().feed(bytes(data))))
        await original(data)

    monkeypatch.setattr(ours.send_stream, "send_all", recording)
    async with trio.open_nursery() as nursery:
        await theirs.send_all(hello())
        connection = await connect(ours, nursery)
        await trio.testing.wait_all_tasks_blocked()
        for _ in range(100):
            nursery.start_soon(connection.call, "x", {})
        await trio.testing.wait_all_tasks_blocked()
        assert sends == [1, 100]
        nursery.cancel_scope.cancel()
