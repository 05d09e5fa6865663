"""Calls that are given up, as the other end of the stream sees it: what is told, what is dropped, what is forgotten."""

import pytest
import trio
import trio.testing

from topics.rpc import DeadlineExceeded, connect, serve
from topics.rpc.open_calls import Told
from topics.rpc.wire import CALL, CANCEL, HEADER, HELLO, REPLY, Decoder, encode, hello, pack_head
from topics.testing.rpc_pair import until

KIB = 1024
MIB = 1024 * KIB


class Other:
    """The other end: it speaks frames and notes what it is told."""

    def __init__(self, stream):
        self.stream = stream
        self.told = []
        self.read_bytes = 0
        self._decoder = Decoder()

    async def greet(self):
        async with trio.open_nursery() as nursery:  # in memory a narrow stream wants both at the same time
            nursery.start_soon(self.say, hello())
            nursery.start_soon(self.hear, HELLO, 0)

    async def say(self, *frames):
        await self.stream.send_all(b"".join(frames))

    async def hear(self, kind, call_id):
        """Read until such a message has come; its head."""
        while True:
            for message in self.told:
                if message[:2] == (kind, call_id):
                    return message[2]
            data = bytes(await self.stream.receive_some(64 * KIB))
            assert data, "the connection was closed"
            self.read_bytes += len(data)
            self.told += self._decoder.feed(data)


async def connected(ours, other, nursery):
    async with trio.open_nursery() as greeting:
        greeting.start_soon(other.greet)
        return await connect(ours, nursery)


# --- a client's deadline --------------------------------------------------------------------------------------------


class Teller(Told):
    def __init__(self):
        self.errors = []

    def reject(self, error):
        self.errors.append(type(error))


async def call(connection, body=b"", deadline_ms=50):
    with pytest.raises(DeadlineExceeded):
        await connection.call("x", {}, body, deadline_ms=deadline_ms)


async def begin(connection):
    teller = Teller()
    assert connection.begin(teller, "x", {}, b"", 50)
    await trio.sleep(0.1)
    assert teller.errors == [DeadlineExceeded]


async def stream(connection, body=b"", deadline_ms=50):
    async with connection.stream("x", {}, body, deadline_ms=deadline_ms) as messages:
        with pytest.raises(DeadlineExceeded):
            await anext(messages)


@pytest.mark.parametrize("ask", [call, begin, stream])
async def test_at_its_deadline_a_client_tells_the_server(autojump_clock, open_streams, ask):
    """The server knows the deadline, too, but what it has queued of its answer it drops only when it is told."""
    ours, theirs = open_streams()
    other = Other(theirs)
    async with trio.open_nursery() as nursery:
        connection = await connected(ours, other, nursery)
        await ask(connection)
        with trio.fail_after(60):
            await other.hear(CANCEL, 1)
        assert [message[:2] for message in other.told] == [(HELLO, 0), (CALL, 1), (CANCEL, 1)]
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("ask", [call, stream])
async def test_what_a_call_waits_for_room_is_part_of_its_deadline(autojump_clock, open_narrow_streams, set_limits, ask):
    """The server is told what is left of it, and the caller learns of its end in time."""
    set_limits(RPC_SEND_QUEUE_BYTES=1 * MIB)
    ours, theirs = open_narrow_streams()
    other = Other(theirs)
    async with trio.open_nursery() as nursery:
        connection = await connected(ours, other, nursery)
        nursery.start_soon(connection.call, "x", {}, bytes(2 * MIB))
        await trio.testing.wait_all_tasks_blocked()
        async with trio.open_nursery() as callers:
            started = trio.current_time()
            callers.start_soon(ask, connection, bytes(2 * MIB), 1000)
            await trio.sleep(0.4)
            assert list(connection.calls) == [1]  # there is room for one so large
            _, deadline_ms, _, _ = await other.hear(CALL, 2)
            assert 600 <= deadline_ms <= 601
        assert 1.0 <= trio.current_time() - started < 1.03
        nursery.cancel_scope.cancel()


async def test_room_that_comes_with_the_deadline_comes_too_late(autojump_clock, open_narrow_streams, set_limits):
    set_limits(RPC_SEND_QUEUE_BYTES=1 * MIB)
    ours, theirs = open_narrow_streams()
    other = Other(theirs)
    refused: list[DeadlineExceeded] = []

    async def ask():
        with pytest.raises(DeadlineExceeded, match="waited for room") as caught:
            await connection.call("x", {}, bytes(2 * MIB), deadline_ms=1000)
        refused.append(caught.value)

    async with trio.open_nursery() as nursery:
        connection = await connected(ours, other, nursery)
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as callers:
                callers.start_soon(connection.call, "x", {}, bytes(2 * MIB))
                await trio.testing.wait_all_tasks_blocked()
                nursery.start_soon(ask)
                await trio.testing.wait_all_tasks_blocked()
                scope.cancel()
        assert connection.outbox.has_room(2 * MIB)
        connection.room.unpark_all()
        autojump_clock.jump(1)
        await until(lambda: refused)
        assert connection.calls == {}
        await other.hear(CANCEL, 1)
        nursery.cancel_scope.cancel()


# --- what is on its way ---------------------------------------------------------------------------------------------


async def test_what_is_queued_of_a_cancelled_calls_answer_is_not_sent(open_narrow_streams):
    ours, theirs = open_narrow_streams()
    other = Other(ours)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve, theirs, {"x": lambda call: call.reply({}, bytes(4 * MIB))})
        await other.greet()
        await other.say(encode(CALL, 1, pack_head(("x", None, 0, {}))))
        await trio.testing.wait_all_tasks_blocked()  # the answer is under way, and we do not read
        await other.say(encode(CANCEL, 1), encode(CALL, 2, pack_head(("x", None, 0, {}))))
        await other.hear(REPLY, 2)
        assert 4 * MIB < other.read_bytes < 6 * MIB
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("ends_by", ["cancel", "deadline"])
async def test_what_has_come_of_an_answer_that_was_given_up_is_forgotten(
    autojump_clock, open_streams, set_limits, ends_by
):
    """One such answer is all that may be unfinished at a time: a second one would end the connection."""
    set_limits(RPC_CHUNK_BYTES=16, RPC_PARTIAL_BYTES=1000, RPC_BODY_MAX=1000)
    ours, theirs = open_streams()
    other = Other(theirs)

    async def ask(connection, scope):
        with scope:
            if ends_by == "deadline":
                await call(connection)
            else:
                await connection.call("x", {})

    async with trio.open_nursery() as nursery:
        connection = await connected(ours, other, nursery)
        for call_id in (1, 2, 3):
            scope = trio.CancelScope()
            async with trio.open_nursery() as callers:
                callers.start_soon(ask, connection, scope)
                await other.hear(CALL, call_id)
                head = pack_head({})
                await other.say(HEADER.pack(REPLY, len(head), 1000, call_id), head, bytes(16))
                await until(lambda: connection.decoder.unfinished_bytes == 1000)
                if ends_by == "cancel":
                    scope.cancel()
            assert connection.decoder.unfinished_bytes == 0
        assert not connection.lost
        nursery.cancel_scope.cancel()
