"""Streams: order, credits, ends of every kind."""

import pytest
import trio
import trio.testing

from topics.errors import TopicsError, topic_not_found
from topics.rpc import Call, CallCancelled, DeadlineExceeded, PeerLost, ProtocolError, connect
from topics.rpc.wire import CALL, ITEM, Decoder, encode, hello, pack_head
from topics.testing.rpc_pair import rpc_pair, until


async def count(call):
    for n in range(call.head["count"]):
        await call.send({"n": n}, b"x" * (n % 7) if n % 11 else bytes(100_000 + n))
    call.reply({"done": True})


HANDLERS = {"count": lambda call: call.run(count, call)}


@pytest.mark.parametrize("credits", [1, 2, 3, 64, 1000])
async def test_messages_arrive_in_order(open_pair, credits):
    async with (
        open_pair(HANDLERS) as connection,
        connection.stream("count", {"count": 200}, credits=credits) as stream,
    ):
        found = [(item.head["n"], len(item.body)) async for item in stream]
        assert found == [(n, n % 7 if n % 11 else 100_000 + n) for n in range(200)]
        assert stream.result is not None
        assert stream.result.head == {"done": True}
        assert connection.calls == {}


async def test_credits_are_never_exceeded(autojump_clock):
    sent = 0

    async def endless(call):
        nonlocal sent
        while True:
            await call.send({})
            sent += 1

    async with (
        rpc_pair({"endless": lambda call: call.run(endless, call)}) as connection,
        connection.stream("endless", {}, credits=8) as stream,
    ):
        for consumed in range(50):
            await trio.sleep(1)
            assert consumed < sent <= consumed + 8
            await anext(stream)


async def test_try_send_stops_at_the_credits(open_pair):
    calls: list[Call] = []
    async with open_pair({"feed": calls.append}) as connection, connection.stream("feed", {}, credits=3) as stream:
        await until(lambda: calls)
        assert [calls[0].try_send({"n": n}) for n in range(5)] == [True, True, True, False, False]
        assert [(await anext(stream)).head["n"] for _ in range(3)] == [0, 1, 2]


async def test_leaving_early_cancels_the_server(open_pair):
    ended = trio.Event()

    async def endless(call):
        try:
            while True:
                await call.send({}, bytes(70_000))
        finally:
            ended.set()

    async with open_pair({"endless": lambda call: call.run(endless, call)}) as connection:
        async with connection.stream("endless", {}) as stream:
            await anext(stream)
        await ended.wait()
        assert connection.calls == {}


async def test_a_sender_outside_a_task_of_the_call_learns_of_the_cancellation(open_pair):
    calls: list[Call] = []
    async with open_pair({"feed": calls.append}) as connection:
        async with connection.stream("feed", {}, credits=1):
            await until(lambda: calls)
            await calls[0].send({})
        with pytest.raises(CallCancelled):
            await calls[0].send({})


async def test_an_error_comes_after_the_messages_before_it(open_pair):
    async def fails(call):
        await call.send({"n": 1})
        raise topic_not_found("a")

    async with open_pair({"fails": lambda call: call.run(fails, call)}) as connection:
        found = []
        async with connection.stream("fails", {}) as stream:
            found.append((await anext(stream)).head)
            with pytest.raises(TopicsError, match="does not exist"):
                await anext(stream)
        assert found == [{"n": 1}]


async def test_a_lost_peer_ends_the_stream(open_pair):
    async with open_pair({"feed": lambda call: call.try_send({"n": 1})}) as connection:
        async with connection.stream("feed", {}) as stream:
            assert (await anext(stream)).head == {"n": 1}
            await connection.aclose()
            with pytest.raises(PeerLost):
                await anext(stream)
        with pytest.raises(PeerLost):
            async with connection.stream("feed", {}):
                pass


async def test_a_stream_may_have_a_deadline(autojump_clock):
    async with rpc_pair({"feed": lambda call: None}) as connection:
        started = trio.current_time()
        async with connection.stream("feed", {}, deadline_ms=500) as stream:
            with pytest.raises(DeadlineExceeded):
                await anext(stream)
        assert 0.5 <= trio.current_time() - started < 0.53


async def test_a_plain_call_cannot_be_streamed_to(open_pair, caplog):
    async with open_pair(HANDLERS) as connection:
        with pytest.raises(TopicsError) as caught:
            await connection.call("count", {"count": 1})
        assert caught.value.code == "internal"
        assert "not for a stream" in caplog.text


async def test_a_cancelled_iteration_may_go_on(open_pair):
    calls: list[Call] = []
    async with open_pair({"feed": calls.append}) as connection, connection.stream("feed", {}) as stream:
        with trio.move_on_after(0):
            await anext(stream)
        await until(lambda: calls)
        await calls[0].send({"n": 1})
        assert (await anext(stream)).head == {"n": 1}


@pytest.mark.parametrize("granted", [0, 2])
async def test_a_server_that_ignores_credits_is_cut_off(granted):
    ours, theirs = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        await theirs.send_all(hello())
        connection = await connect(ours, nursery)

        async def rogue():
            decoder = Decoder()
            while not any(kind == CALL for kind, *_ in decoder.feed(bytes(await theirs.receive_some()))):
                pass
            for _ in range(granted + 1):
                await theirs.send_all(encode(ITEM, 1, pack_head({})))

        nursery.start_soon(rogue)
        if granted:
            async with connection.stream("x", {}, credits=granted) as stream:
                await trio.testing.wait_all_tasks_blocked()
                for _ in range(granted):
                    await anext(stream)
                with pytest.raises(ProtocolError):
                    await anext(stream)
        else:
            with pytest.raises(ProtocolError):
                await connection.call("x", {})
        assert isinstance(connection.reason, ProtocolError)
