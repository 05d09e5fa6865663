"""The seam to Hypercorn: WebSockets and HTTP/2 in clear text are its business, with the same ASGI app.

Hypercorn's parts are no stable API. This is the only file that touches them (its version is pinned in
constraints.txt), and tests/gateway/test_handover.py fails loudly if they move.
"""

import logging
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.protocol import ws_stream
from hypercorn.trio.lifespan import Lifespan
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState, LifespanState
from wsproto.connection import Connection
from wsproto.connection import ConnectionState as Stage
from wsproto.events import CloseConnection, Event

from topics import limits
from topics.gateway.access import Door
from topics.gateway.h2 import H2Exchange
from topics.gateway.sinks import notice_loss

SEND_BYTES = 64 * limits.KIB  # of a large frame at once, to see that it moves
CLOSING_S = 0.1  # how often it is looked whether the client has closed its side


def hypercorn_config(body_bytes: int) -> Config:
    config = Config()
    config.include_server_header = False
    config.accesslog = None
    config.errorlog = logging.getLogger("topics.hypercorn")
    config.keep_alive_timeout = 10.0**9
    config.keep_alive_max_requests = 1 << 62
    config.websocket_max_message_size = min(body_bytes, limits.WS_MESSAGE_BYTES)
    config.websocket_ping_interval = limits.WS_PING_S
    config.h11_max_incomplete_size = limits.HTTP_HEAD_BYTES
    config.h2_max_header_list_size = limits.HTTP_HEAD_BYTES
    return config


class Handover:
    """The app's lifespan, and the connections that Hypercorn serves."""

    def __init__(self, app: Any, door: Door, send_s: float, body_bytes: int) -> None:
        self._app = app
        self._door = door
        self._send_s = send_s
        self._config = hypercorn_config(body_bytes)
        self._state: LifespanState = {}
        self._lifespan = Lifespan(ASGIWrapper(app), self._config, self._state)

    async def start(self, nursery: trio.Nursery) -> None:
        """Run the app's start-up."""
        await nursery.start(self._lifespan.handle_lifespan)
        await self._lifespan.wait_for_startup()

    async def stop(self) -> None:
        await self._lifespan.wait_for_shutdown()

    async def take(self, sock: socket.socket, data: bytes, busy: Callable[[bool], object]) -> None:
        """Serve a connection to its end; `data` is what was read from it so far.

        `busy` is told when requests are under way and when none are. Hypercorn's idle timer may start while a request
        of HTTP/2 is under way, or not at all; so idle connections are ended by our sweep and drain, as all others, and
        its timer and its own way of draining (`terminated`) are never used.
        """
        running = 0
        context = ConnectionContext()
        keys = self._door.connection_key()

        stream: Any = ReplayedStream(sock, data)
        notice_loss(sock)

        def cut() -> None:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

        async def counted(scope: Any, receive: Any, send: Any) -> None:
            nonlocal running
            running += 1
            busy(True)
            visitor = scope["topics.visitor"] = self._door.visitor(keys)
            scope["topics.cut"], scope["topics.moved"] = cut, lambda: stream.sent
            try:
                if scope["type"] == "http" and scope["http_version"] == "2":
                    exchange = H2Exchange(visitor, receive, send, self._send_s, cut)
                    await self._app(scope, exchange.receive, exchange.send)
                    await exchange.settle()
                else:
                    await self._app(scope, receive, send)
            finally:
                visitor.leave()
                if scope["type"] == "websocket":
                    context.over.set()
                running -= 1
                busy(running > 0)

        state = ConnectionState(self._state.copy())
        await TCPServer(ASGIWrapper(counted), self._config, context, state, stream).run()


class ConnectionContext(WorkerContext):
    """Hypercorn sleeps between the pings of a WebSocket, and the connection stays for as long as it does that."""

    def __init__(self) -> None:
        super().__init__(None)
        self.over = trio.Event()  # the app is done with the WebSocket

    async def sleep(self, wait: float) -> None:  # type: ignore[override]
        if self.over.is_set():
            await trio.sleep(min(wait, CLOSING_S))
        else:
            with trio.move_on_after(wait):
                await self.over.wait()


class TellingConnection(Connection):
    """A client that breaks the WebSocket protocol is told how (1002, 1007): Hypercorn answers only one that closes."""

    def events(self) -> Iterator[Event]:  # type: ignore[override]
        for event in super().events():
            if isinstance(event, CloseConnection) and self._state is Stage.OPEN:
                self._state = Stage.REMOTE_CLOSING
            yield event


ws_stream.Connection = TellingConnection  # type: ignore[attr-defined]


class ReplayedStream:
    """A socket of which some bytes were already read."""

    def __init__(self, sock: socket.socket, data: bytes) -> None:
        self.socket = trio.socket.from_stdlib_socket(sock)
        self._stream = trio.SocketStream(self.socket)
        self._data = data
        self.sent = 0

    async def receive_some(self, max_bytes: int) -> bytes:
        if self._data:
            data, self._data = self._data[:max_bytes], self._data[max_bytes:]
            await trio.lowlevel.checkpoint()
            return data
        return bytes(await self._stream.receive_some(max_bytes))

    async def send_all(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            await self._stream.send_all(view[:SEND_BYTES])
            self.sent += len(view[:SEND_BYTES])
            view = view[SEND_BYTES:]

    async def send_eof(self) -> None:
        await self._stream.send_eof()

    async def aclose(self) -> None:
        await self._stream.aclose()
