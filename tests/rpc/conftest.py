"""The same tests over memory streams and over real Unix sockets, and a way to make the limits small."""

import socket
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from topics import limits
from topics.rpc import connect_unix, serve_unix, wire
from topics.testing.rpc_pair import rpc_pair


@pytest.fixture(autouse=True)
def a_hello_may_take_long(monkeypatch):
    """Where both ends share a loop, a test that keeps it busy keeps its own hello from being read."""
    monkeypatch.setattr(limits, "RPC_HELLO_TIMEOUT_MS", 60_000)


@pytest.fixture(params=["memory", "unix"])
def open_pair(request, tmp_path):
    """`async with open_pair(handlers) as connection`."""
    if request.param == "memory":
        return rpc_pair

    @asynccontextmanager
    async def unix_pair(handlers):
        path = str(tmp_path / "s")
        async with trio.open_nursery() as nursery:
            await nursery.start(serve_unix, path, handlers)
            yield await connect_unix(path, nursery)
            nursery.cancel_scope.cancel()

    return unix_pair


def open_sockets():
    ours, theirs = (trio.socket.from_stdlib_socket(end) for end in socket.socketpair())
    return trio.SocketStream(ours), trio.SocketStream(theirs)


@pytest.fixture(params=["memory", "unix"])
def open_streams(request):
    """Both ends, without a protocol: `ours, theirs = open_streams()`. What is sent is under way at once."""
    return trio.testing.memory_stream_pair if request.param == "memory" else open_sockets


@pytest.fixture(params=["memory", "unix"])
def open_narrow_streams(request):
    """As `open_streams`, but in memory a send lasts until the other end has read all of it."""
    return trio.testing.lockstep_stream_pair if request.param == "memory" else open_sockets


@pytest.fixture
def set_limits(monkeypatch):
    """`set_limits(RPC_CHUNK_BYTES=16)` for connections made afterwards."""

    def set_them(**values):
        for name, value in values.items():
            assert hasattr(limits, name)
            monkeypatch.setattr(limits, name, value)
        monkeypatch.setattr(wire, "_CHUNK_BYTES", limits.RPC_CHUNK_BYTES)

    return set_them
