"""The server's socket: private, replaced when stale, removed at the end."""

import os
import socket
import stat

import pytest
import trio

from topics import limits
from topics.rpc import PeerLost, connect_unix, serve_unix

HANDLERS = {"echo": lambda call: call.reply(call.head)}


async def test_the_socket_is_private_and_goes_with_the_server(tmp_path):
    path = str(tmp_path / "s")
    async with trio.open_nursery() as nursery:
        await nursery.start(serve_unix, path, HANDLERS)
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        nursery.cancel_scope.cancel()
    assert list(tmp_path.iterdir()) == []


async def test_a_stale_socket_is_replaced(tmp_path):
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(path)
    async with trio.open_nursery() as nursery:
        with pytest.raises(PeerLost):
            await connect_unix(path, nursery)
        await nursery.start(serve_unix, path, HANDLERS)
        connection = await connect_unix(path, nursery)
        assert (await connection.call("echo", {"a": 1})).head == {"a": 1}
        nursery.cancel_scope.cancel()


async def test_a_file_that_is_no_socket_stays(tmp_path):
    path = tmp_path / "s"
    path.write_text("precious")
    with pytest.raises(FileExistsError):
        await serve_unix(str(path), HANDLERS)
    assert path.read_text() == "precious"


async def test_a_successor_keeps_its_socket(tmp_path):
    path = str(tmp_path / "s")
    async with trio.open_nursery() as nursery:
        async with trio.open_nursery() as old:
            await old.start(serve_unix, path, HANDLERS)
            await nursery.start(serve_unix, path, HANDLERS)
            old.cancel_scope.cancel()
        connection = await connect_unix(path, nursery)
        await connection.call("echo", {})
        nursery.cancel_scope.cancel()
    assert list(tmp_path.iterdir()) == []


async def test_nobody_there(tmp_path):
    async with trio.open_nursery() as nursery:
        with pytest.raises(PeerLost, match="nobody answers"):
            await connect_unix(str(tmp_path / "missing"), nursery)
        with pytest.raises(PeerLost):
            await connect_unix(str(tmp_path / ("x" * 200)), nursery)


async def test_connections_are_bounded(tmp_path, monkeypatch, caplog):
    """Who comes when a server has enough is told at once, and served when somebody has gone."""
    monkeypatch.setattr(limits, "RPC_CONNECTIONS_MAX", 3)
    path = str(tmp_path / "s")
    async with trio.open_nursery() as nursery:
        await nursery.start(serve_unix, path, HANDLERS)
        kept = [await connect_unix(path, nursery) for _ in range(3)]
        for _ in range(50):
            with pytest.raises(PeerLost):
                await connect_unix(path, nursery)
        assert (await kept[0].call("echo", {"a": 1})).head == {"a": 1}
        await kept.pop().aclose()
        with trio.fail_after(60):
            while True:
                try:
                    connection = await connect_unix(path, nursery)
                    break
                except PeerLost:
                    await trio.sleep(0.01)
        assert (await connection.call("echo", {"b": 2})).head == {"b": 2}
        nursery.cancel_scope.cancel()
    assert "s has 3 connections" in caplog.text
