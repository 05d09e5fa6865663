"""Peers that die at every byte: of what they send, and of what they read while we send."""

import itertools

import pytest
import trio
import trio.testing

from topics.rpc import Call, PeerLost, connect, serve
from topics.rpc.outbox import Outbox
from topics.rpc.wire import CALL, CANCEL, CREDIT, ITEM, REPLY, Decoder, encode, hello, pack_head

STREAM_CALL: tuple[object, ...] = ("x", None, 1, {})


@pytest.fixture
def tiny_chunks(set_limits):
    set_limits(RPC_CHUNK_BYTES=16, RPC_JOIN_BYTES=8)


def message(kind, head, body=b""):
    outbox = Outbox()
    outbox.put(kind, 1, pack_head(head), body)
    data = b""
    while not outbox.empty:
        data += b"".join(outbox.take())
        outbox.sent()
    return data


# --- of what they send ----------------------------------------------------------------------------------------------


async def test_a_server_that_dies_at_every_byte_of_its_hello(open_streams):
    for length in range(len(hello())):
        ours, theirs = open_streams()
        async with trio.open_nursery() as nursery:
            await theirs.send_all(hello()[:length])
            await theirs.aclose()
            with pytest.raises(PeerLost):
                await connect(ours, nursery)


async def test_a_client_that_dies_at_every_byte_of_its_hello(open_streams):
    for length in range(len(hello()) + 1):
        ours, theirs = open_streams()
        await ours.send_all(hello()[:length])
        await ours.aclose()
        await serve(theirs, {})


@pytest.mark.parametrize("size", [0, 5, 100])
async def test_a_server_that_dies_at_every_byte_of_its_reply(tiny_chunks, open_streams, size):
    answer = message(REPLY, {"ok": True}, bytes(size))
    for length in range(len(answer) + 1):
        ours, theirs = open_streams()

        async def die(theirs=theirs, length=length):
            await read_a_call(theirs)
            await theirs.send_all(answer[:length])
            await theirs.aclose()

        async with trio.open_nursery() as nursery:
            await theirs.send_all(hello())
            connection = await connect(ours, nursery)
            nursery.start_soon(die)
            if length == len(answer):
                assert await connection.call("x", {}) == ({"ok": True}, bytes(size))
            else:
                with pytest.raises(PeerLost):
                    await connection.call("x", {})


async def test_a_server_that_dies_at_every_byte_of_a_stream(tiny_chunks, open_streams):
    """What came whole is there, then the loss is told; never a part, never an end that looks like one."""
    parts = [message(ITEM, {"n": 1}, b"x" * 5), message(ITEM, {"n": 2}, b"y" * 40), message(REPLY, {"ok": True})]
    ends = list(itertools.accumulate(map(len, parts)))
    for length in range(ends[-1] + 1):
        ours, theirs = open_streams()

        async def die(theirs=theirs, length=length):
            await read_a_call(theirs)
            await theirs.send_all(b"".join(parts)[:length])
            await theirs.aclose()

        async with trio.open_nursery() as nursery:
            await theirs.send_all(hello())
            connection = await connect(ours, nursery)
            nursery.start_soon(die)
            found = []
            async with connection.stream("x", {}) as stream:
                try:
                    async for item in stream:
                        found.append((item.head["n"], bytes(item.body)))
                except PeerLost:
                    assert length < ends[-1]
                else:
                    assert length == ends[-1]
            assert found == [(1, b"x" * 5), (2, b"y" * 40)][: sum(end <= length for end in ends[:2])]
            await connection.aclose()


async def read_a_call(stream):
    decoder = Decoder()
    while not any(kind == CALL for kind, *_ in decoder.feed(bytes(await stream.receive_some()))):
        pass


class Calls:
    """What a server's handler has seen."""

    def __init__(self):
        self.calls: list[Call] = []
        self.cancelled: list[Call] = []

    def __call__(self, call):
        self.calls.append(call)
        call.on_cancel(lambda: self.cancelled.append(call))


@pytest.mark.parametrize("size", [0, 5, 100])
async def test_a_client_that_dies_at_every_byte_of_its_request(tiny_chunks, open_streams, size):
    request = hello() + message(CALL, ("x", None, 0, {}), bytes(size))
    for length in range(len(request) + 1):
        ours, theirs = open_streams()
        seen = Calls()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve, theirs, {"x": seen})
            await ours.send_all(request[:length])
            await trio.testing.wait_all_tasks_blocked()
            await ours.aclose()
        assert len(seen.calls) == (length == len(request))
        assert seen.cancelled == seen.calls


async def test_a_client_that_dies_at_every_byte_of_a_credit(open_streams):
    """Only a whole one counts."""
    credit = message(CREDIT, 300)
    for length in range(len(credit) + 1):
        ours, theirs = open_streams()
        seen = Calls()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve, theirs, {"x": seen})
            await ours.send_all(hello() + message(CALL, STREAM_CALL))
            await trio.testing.wait_all_tasks_blocked()
            assert seen.calls[0].try_send({})
            await ours.send_all(credit[:length])
            await trio.testing.wait_all_tasks_blocked()
            assert seen.calls[0].try_send({}) == (length == len(credit))
            assert seen.cancelled == []
            await ours.aclose()
        assert seen.cancelled == seen.calls


async def test_a_client_that_dies_at_every_byte_of_a_cancel(open_streams):
    """The call is cancelled once, by the whole frame or by the death."""
    cancel = encode(CANCEL, 1)
    for length in range(len(cancel) + 1):
        ours, theirs = open_streams()
        seen = Calls()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve, theirs, {"x": seen})
            await ours.send_all(hello() + message(CALL, STREAM_CALL))
            await trio.testing.wait_all_tasks_blocked()
            await ours.send_all(cancel[:length])
            await trio.testing.wait_all_tasks_blocked()
            assert len(seen.cancelled) == (length == len(cancel))
            await ours.aclose()
        assert seen.cancelled == seen.calls


# --- of what they read ----------------------------------------------------------------------------------------------


class DyingPeer:
    """It reads so many bytes of what we send, then dies. Until then it says what its lines are."""

    def __init__(self, stream, length):
        self.got = b""
        self._stream = stream
        self._length = length

    async def live(self, *lines):
        """Each line is what it says, or how much it has to have read before it goes on."""
        say, said = trio.open_memory_channel(len(lines))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._speak, said)
            for line in lines:
                if isinstance(line, bytes):
                    say.send_nowait(line)
                else:
                    await self._read(line)
                    if len(self.got) < line:
                        break
            await self._read(self._length)
            await trio.testing.wait_all_tasks_blocked()  # what it has said is heard, if anybody listens
            nursery.cancel_scope.cancel()
        await self._stream.aclose()

    async def _read(self, whole):
        while missing := min(whole, self._length) - len(self.got):
            self.got += bytes(await self._stream.receive_some(missing))

    async def _speak(self, said):
        """Beside what is read: in memory it is not heard by who waits for its own words to be read first."""
        async for data in said:
            await self._stream.send_all(data)


def lengths_of(sent, step):
    return sorted({*range(0, len(sent), step), *range(len(sent) - 2, len(sent) + 1)})


async def die_under_a_call(streams, body, length):
    """What a server reads of our hello and call before it dies."""
    ours, theirs = streams
    peer = DyingPeer(theirs, length)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(peer.live, hello())
        with pytest.raises(PeerLost):
            await (await connect(ours, nursery)).call("x", {}, body)
    return peer.got


@pytest.mark.parametrize("size", [0, 5, 100])
async def test_a_server_that_dies_when_it_has_read_so_much_of_a_request(tiny_chunks, open_narrow_streams, size):
    body = bytes(range(size))
    sent = hello() + message(CALL, ("x", None, 0, {}), body)
    for length in range(len(sent) + 1):
        assert await die_under_a_call(open_narrow_streams(), body, length) == sent[:length]


async def test_a_server_that_dies_while_the_kernel_takes_no_more_of_a_request(open_narrow_streams):
    body = bytes(range(256)) * 2400
    sent = hello() + message(CALL, ("x", None, 0, {}), body)
    for length in lengths_of(sent, 31_013):
        assert await die_under_a_call(open_narrow_streams(), body, length) == sent[:length]


async def test_a_server_that_dies_when_it_has_read_so_much_of_a_credit_or_a_cancel(open_narrow_streams):
    """The stream's client pays one credit back and leaves."""
    called = hello() + message(CALL, STREAM_CALL)
    sent = called + message(CREDIT, 1) + encode(CANCEL, 1)
    for length in range(len(called), len(sent) + 1):
        ours, theirs = open_narrow_streams()
        peer = DyingPeer(theirs, length)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(peer.live, hello(), len(called), message(ITEM, {"n": 1}))
            connection, lost = await connect(ours, nursery), trio.Event()
            connection.when_lost = lost.set
            async with connection.stream("x", {}, credits=1) as stream:
                assert (await anext(stream)).head == {"n": 1}
            await lost.wait()
            assert isinstance(connection.reason, PeerLost)
            assert connection.calls == {}
        assert peer.got == sent[:length]


async def answer(call):
    await call.send({"n": 1}, b"x" * 5)
    await call.send({"n": 2}, b"y" * 40)
    call.reply({"ok": True}, bytes(100))


ANSWER = [(ITEM, {"n": 1}, b"x" * 5), (ITEM, {"n": 2}, b"y" * 40), (REPLY, {"ok": True}, bytes(100))]


async def die_under_an_answer(streams, handler, length, credits):
    """What a client reads of our hello and answer before it dies."""
    ours, theirs = streams
    peer = DyingPeer(ours, length)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(peer.live, hello(), len(hello()), message(CALL, ("x", None, credits, {})))
        await serve(theirs, {"x": handler})
    return peer.got


@pytest.mark.parametrize("credits", [1, 2])
async def test_a_client_that_dies_when_it_has_read_so_much_of_a_stream(
    tiny_chunks, open_narrow_streams, caplog, credits
):
    """With one credit the server waits for another one when the client dies; with two all is said."""
    sent = hello() + b"".join(message(*part) for part in (ANSWER[:1] if credits == 1 else ANSWER))
    for length in range(len(sent) + 1):
        seen = Calls()

        def handler(call, seen=seen):
            seen(call)
            call.run(answer, call)

        assert await die_under_an_answer(open_narrow_streams(), handler, length, credits) == sent[:length]
        assert len(seen.calls) == (length >= len(hello()))
        assert all(call.finished for call in seen.calls)
        assert seen.cancelled == (seen.calls if credits == 1 else [])
    assert caplog.text == ""


async def test_a_client_that_dies_while_the_kernel_takes_no_more_of_an_answer(open_narrow_streams, caplog):
    body = bytes(range(256)) * 2400
    sent = hello() + message(REPLY, {"ok": True}, body)
    for length in lengths_of(sent, 31_013):
        streams = open_narrow_streams()
        got = await die_under_an_answer(streams, lambda call: call.reply({"ok": True}, body), length, 0)
        assert got == sent[:length]
    assert caplog.text == ""


async def test_a_call_that_meets_a_server_that_has_just_died(open_streams, caplog):
    """The loss is found where the call is sent, before a read can tell."""
    ours, theirs = open_streams()
    async with trio.open_nursery() as nursery:
        await theirs.send_all(hello())
        connection = await connect(ours, nursery)
        await trio.testing.wait_all_tasks_blocked()
        is_socket = isinstance(theirs, trio.SocketStream)
        for end in [theirs.socket] if is_socket else [theirs.send_stream, theirs.receive_stream]:
            end.close()  # at once: nobody else runs until the call is on its way
        with pytest.raises(PeerLost):
            await connection.call("x", {})
    assert caplog.text == ""
