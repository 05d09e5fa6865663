"""Peers that are killed, speak garbage, speak another version, or say nothing."""

import os
import signal
import subprocess
import sys
import textwrap

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from topics.errors import TopicsError
from topics.rpc import PeerLost, ProtocolError, VersionMismatch, connect, connect_unix, serve
from topics.rpc.wire import CALL, CREDIT, HELLO, ITEM, REPLY, Decoder, encode, hello, pack_head
from topics.testing.rpc_pair import until

GARBAGE = [
    b"GET / HTTP/1.1\r\nhost: x\r\n\r\n",
    b"\xff" * 17,
    encode(CALL, 1, b"\xc1"),
    encode(CALL, 1, pack_head("no list")),
    encode(CALL, 1, pack_head(["x", None, 0])),
    encode(CALL, 1, pack_head([1, None, 0, {}])),
    encode(CALL, 1, pack_head(["x", "soon", 0, {}])),
    encode(CALL, 1, pack_head(["x", None, -1, {}])),
    encode(CALL, 1, pack_head(["x", None, 0, []])),
    encode(CALL, 1, pack_head(["x", None, 0, {}])) * 2,
    encode(CREDIT, 1, pack_head("many")),
    encode(CREDIT, 1, pack_head(0)),
    encode(REPLY, 1, pack_head({})),
    hello(),
]


@pytest.mark.parametrize("garbage", GARBAGE)
async def test_a_client_of_garbage_is_cut_off(garbage, caplog):
    ours, theirs = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve, theirs, {"x": lambda call: None})
        await ours.send_all(hello() + garbage)
        with trio.fail_after(60):
            while await ours.receive_some():
                pass
    assert "closed an RPC connection" in caplog.text


@pytest.mark.parametrize(
    "garbage",
    [
        *GARBAGE[:3],
        encode(REPLY, 1, pack_head([])),
        encode(ITEM, 1, pack_head(None)),
        encode(4, 1, pack_head({"code": "unheard_of", "message": "", "detail": {}})),
        encode(4, 1, pack_head(1)),
        encode(CALL, 1, pack_head(["x", None, 0, {}])),
        hello(),
    ],
)
async def test_a_server_of_garbage_is_cut_off(garbage):
    ours, theirs = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        await theirs.send_all(hello())
        connection = await connect(ours, nursery)
        await theirs.send_all(garbage)
        with pytest.raises(ProtocolError):
            await connection.call("x", {})
        assert isinstance(connection.reason, ProtocolError)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200), st.booleans())
def test_no_bytes_crash_a_server(data, greeted):
    async def main():
        ours, theirs = trio.testing.memory_stream_pair()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve, theirs, {})
            await ours.send_all((hello() if greeted else b"") + data)
            await trio.testing.wait_all_tasks_blocked()
            await ours.aclose()

    trio.run(main)


async def test_versions_must_match(caplog):
    other = encode(HELLO, 0, pack_head({"version": 2}))
    ours, theirs = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        await theirs.send_all(other)
        with pytest.raises(VersionMismatch, match="speaks RPC version 2, this process speaks 1"):
            await connect(ours, nursery)
    ours, theirs = trio.testing.memory_stream_pair()
    await ours.send_all(other)
    await serve(theirs, {})
    assert "speaks RPC version 2" in caplog.text
    assert bytes(await ours.receive_some()) == hello()  # so that the other side can say so too
    assert await ours.receive_some() == b""


@pytest.mark.parametrize("first", [encode(CALL, 1, pack_head(1)), encode(HELLO, 0), encode(HELLO, 0, pack_head(1))])
async def test_the_hello_comes_first(first):
    ours, theirs = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        await theirs.send_all(first)
        with pytest.raises(ProtocolError):
            await connect(ours, nursery)


async def test_a_silent_peer_is_given_up(autojump_clock, set_limits):
    set_limits(RPC_HELLO_TIMEOUT_MS=5_000)
    ours, _theirs = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        with pytest.raises(ProtocolError, match="no hello"):
            await connect(ours, nursery)
        assert trio.current_time() == pytest.approx(5)
    ours, theirs = trio.testing.memory_stream_pair()
    await serve(theirs, {})
    assert trio.current_time() == pytest.approx(10)


async def test_what_comes_with_the_hello_is_not_lost():
    ours, theirs = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        await ours.send_all(hello() + encode(CALL, 1, pack_head(("x", None, 0, {}))))
        nursery.start_soon(serve, theirs, {"x": lambda call: call.reply({})})
        await trio.testing.wait_all_tasks_blocked()
        assert len(Decoder().feed(bytes(await ours.receive_some()))) == 2
        await ours.aclose()


SERVER = """
    import sys, trio
    from topics.rpc import serve_unix

    async def main():
        handlers = {"wait": lambda call: None, "large": lambda call: call.reply({}, bytes(64 * 1024 * 1024))}
        async with trio.open_nursery() as nursery:
            await nursery.start(serve_unix, sys.argv[1], handlers)
            print("ready", flush=True)

    trio.run(main)
"""


def start_server(path):
    command = [sys.executable, "-c", textwrap.dedent(SERVER), path]
    return subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": os.getcwd()})


@pytest.mark.parametrize("method", ["wait", "large"])
async def test_a_killed_process_fails_its_calls_at_once(tmp_path, method):
    path = str(tmp_path / "s")
    server = start_server(path)
    try:
        assert await trio.to_thread.run_sync(server.stdout.readline) == b"ready\n"
        failed: list[type[TopicsError]] = []

        async def caller():
            try:
                await connection.call(method, {})
            except TopicsError as error:
                failed.append(type(error))

        async with trio.open_nursery() as nursery:
            connection = await connect_unix(path, nursery)
            with trio.fail_after(60):
                async with trio.open_nursery() as callers:
                    for _ in range(20):
                        callers.start_soon(caller)
                    await until(lambda: method == "wait" or connection.decoder.unfinished_bytes)
                    await trio.lowlevel.checkpoint()
                    server.send_signal(signal.SIGKILL)
        assert failed == [PeerLost] * 20
    finally:
        server.kill()
        server.wait()
        server.stdout.close()
