"""Unix sockets: how processes of one instance find each other.

The kernel limits socket paths to about 107 bytes, so they live in a short private run directory.
"""

import os
import socket
import stat
from collections.abc import Mapping
from contextlib import suppress
from typing import Protocol

import trio

from topics import limits
from topics.rpc.calls import Handler
from topics.rpc.connection import Connection, connect
from topics.rpc.errors import PeerLost
from topics.rpc.link import logger
from topics.rpc.server import serve


class TaskStatus(Protocol):
    """What `nursery.start` hands over."""

    def started(self) -> None: ...


async def connect_unix(path: str, nursery: trio.Nursery) -> Connection:
    """Connect to the server at `path`; the connection's tasks live in `nursery`. Raises PeerLost if nobody is there."""
    try:
        with trio.fail_after(limits.RPC_HELLO_TIMEOUT_MS / 1000):
            stream = await trio.open_unix_socket(path)
            _widen(stream)
    except (OSError, trio.TooSlowError) as error:
        raise PeerLost("nobody answers at the peer's socket", {"socket": os.path.basename(path)}) from error
    return await connect(stream, nursery)


async def serve_unix(
    path: str,
    handlers: Mapping[str, Handler],
    *,
    task_status: TaskStatus = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve `handlers` at `path` until cancelled; then all connections close and the path is removed.

    A socket that a dead process left at `path` is replaced; anything else there is an error.
    """
    listener = _listen(path)
    ours = _identity(path)

    connections = 0

    async def serve_stream(stream: trio.SocketStream) -> None:
        nonlocal connections
        if connections >= limits.RPC_CONNECTIONS_MAX:
            logger.warning("%s has %d connections; another one is refused", os.path.basename(path), connections)
            await stream.aclose()  # before the hello: the other side sees PeerLost, which is not_ready
            return
        connections += 1
        _widen(stream)
        try:
            await serve(stream, handlers)
        finally:
            connections -= 1

    try:
        async with listener:
            task_status.started()
            await trio.serve_listeners(serve_stream, [listener])
    finally:
        # A successor may have put its own socket there already.
        if _identity(path) == ours:
            os.unlink(path)


def _widen(stream: trio.SocketStream) -> None:
    """Room for a large message in the kernel, so that one side can write it while the other is busy."""
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, limits.RPC_SOCKET_BYTES)


def _listen(path: str) -> trio.SocketListener:
    with suppress(FileNotFoundError):
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise FileExistsError(f"{path} exists and is not a socket")
        os.unlink(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(path)
        os.chmod(path, 0o600)  # before listen, so nobody else can ever connect
        sock.listen(limits.RPC_BACKLOG)
        return trio.SocketListener(trio.socket.from_stdlib_socket(sock))
    except BaseException:
        sock.close()
        raise


def _identity(path: str) -> tuple[int, int] | None:
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino
