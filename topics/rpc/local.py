"""A peer in the same process: the same frames over a pair of sockets that has no name.

So whoever calls it meets the same bounds, deadlines and errors as between processes.
"""

import socket
from collections.abc import Callable, Mapping

import trio

from topics.rpc.calls import Handler
from topics.rpc.connection import Connection, connect
from topics.rpc.peer import Peer
from topics.rpc.server import serve
from topics.rpc.unix import widen


class LocalPeer(Peer):
    """`handlers` is asked when the connection is made; both ends of it live in `nursery`."""

    def __init__(self, handlers: Callable[[], Mapping[str, Handler]], nursery: trio.Nursery) -> None:
        super().__init__("", nursery)
        self._handlers = handlers

    async def _dial(self) -> Connection:
        ours, theirs = map(_stream, socket.socketpair())
        self._nursery.start_soon(serve, theirs, self._handlers())
        return await connect(ours, self._nursery)


def _stream(end: socket.socket) -> trio.SocketStream:
    stream = trio.SocketStream(trio.socket.from_stdlib_socket(end))
    widen(stream)
    return stream
