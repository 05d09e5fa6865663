"""The same tests over memory streams and over real Unix sockets, and a way to make the limits small."""

from contextlib import asynccontextmanager

import pytest
import trio

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


@pytest.fixture
def set_limits(monkeypatch):
    """`set_limits(RPC_CHUNK_BYTES=16)` for connections made afterwards."""

    def set_them(**values):
        for name, value in values.items():
            assert hasattr(limits, name)
            monkeypatch.setattr(limits, name, value)
        monkeypatch.setattr(wire, "_CHUNK_BYTES", limits.RPC_CHUNK_BYTES)

    return set_them
