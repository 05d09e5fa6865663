"""A request of HTTP/1.1 answered by an ASGI app, in the connection's task.

`receive` reads the socket only when the app asks, so a slow app slows its client down; once the body is through it
waits for the client to go. Quart asks at once, before the door has been passed; so a client that waits for `100
Continue` is told to go on only when a handler wants the body (`topics.want_body`). What goes wrong with the body (a
stall, bad chunks) ends the app as a disconnect would, and is answered here if the app has not begun to.
"""

import logging
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import trio
from trio.lowlevel import checkpoint

from topics import errors
from topics.errors import TopicsError
from topics.gateway import render
from topics.gateway.dispatch import finish
from topics.gateway.messages import ClientGone, Request, Response
from topics.gateway.parser import Incoming
from topics.gateway.statuses import error_response

if TYPE_CHECKING:
    from topics.gateway.connection import Connection

log = logging.getLogger(__name__)
NO_BODY = (204, 304)


async def run_app(connection: "Connection", incoming: Incoming, path: bytes, query: bytes) -> None:
    """Leaves the connection ready for its next request, or about to close."""
    exchange = Exchange(connection, incoming)
    try:
        app = await connection.server.framework.app()
        await app(exchange.scope(path, query), exchange.receive, exchange.send)
    except TopicsError as error:
        exchange.failure = error
    except ClientGone:
        raise
    except Exception:
        if exchange.cut_off:  # ClientGone, in the wrapping of the app's own nurseries
            raise ClientGone from None
        log.exception("the application failed")
        exchange.failure = TopicsError(errors.INTERNAL, "internal error; see the server's log")
    await exchange.settle()


class Exchange:
    """One request and its answer, as ASGI messages."""

    def __init__(self, connection: "Connection", incoming: Incoming) -> None:
        self._connection = connection
        self._incoming = incoming
        self._body_done = False
        self._body_wanted = trio.Event()
        self._status = 0
        self._headers: list[tuple[bytes, bytes]] = []
        self._started = False  # the head has been sent
        self._finished = False
        self._chunked = False
        self._sent = 0
        self.failure: TopicsError | None = None
        self.cut_off = False  # the client went while the answer was sent

    def scope(self, path: bytes, query: bytes) -> dict[str, Any]:
        incoming = self._incoming
        return {
            "type": "http",
            "asgi": {"spec_version": "2.3", "version": "3.0"},
            "http_version": "1.1" if incoming.http11 else "1.0",
            "method": incoming.method,
            "scheme": "http",
            "path": unquote(path.decode("ascii", "replace")) or "/",
            "raw_path": path,
            "query_string": query,
            "root_path": "",
            "headers": incoming.headers,
            "client": self._connection.client,
            "server": self._connection.server.address,
            "extensions": {},
            "state": {},
            "topics.started_ns": incoming.started_ns,
            "topics.visitor": self._connection.visitor,
            "topics.want_body": self._body_wanted.set,
        }

    async def receive(self) -> dict[str, Any]:
        incoming = self._incoming
        if self._body_done or self.failure is not None:
            if self.failure is None:
                await self._connection.watch()
            return {"type": "http.disconnect"}
        if not incoming.parts and not incoming.complete:
            if incoming.expects:
                await self._body_wanted.wait()
            try:
                await self._connection.read_more(incoming)
                self._connection.visitor.reserve(incoming.received)
            except ClientGone:
                self._connection.gone = True
                return {"type": "http.disconnect"}
            except TopicsError as error:
                self.failure = error
                return {"type": "http.disconnect"}
        self._body_done = incoming.complete
        return {"type": "http.request", "body": incoming.take(), "more_body": not incoming.complete}

    async def send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            self._headers = list(message["headers"])
        elif message["type"] == "http.response.body":
            more = bool(message.get("more_body"))
            await self._send_body(message.get("body", b""), more)
            if more:
                await checkpoint()

    async def _send_body(self, body: bytes, more: bool) -> None:
        if self._finished:
            return
        buffers: list[bytes] = []
        if not self._started:
            if more and not body:
                return  # nothing to send yet; keep the head for the first bytes
            buffers.append(self._start(len(body), more))
        self._sent += len(body)
        if self._silent:
            body = b""
        if self._chunked:
            buffers += [b"%x\r\n" % len(body), body, b"\r\n"] if body else []
            buffers += [] if more else [b"0\r\n\r\n"]
        elif body:
            buffers.append(body)
        self._finished = not more or self._is_whole
        if buffers:
            try:
                await self._connection.send(buffers)
            except ClientGone:
                self.cut_off = True
                raise

    @property
    def _silent(self) -> bool:
        return self._incoming.method == "HEAD" or self._status in NO_BODY

    def _start(self, size: int, more: bool) -> bytes:
        """The head, with what HTTP/1.1 needs and the app did not say."""
        self._started = True
        names = {name for name, _ in self._headers}
        lines = [render.status_line(self._status)]
        lines += [b"%b: %b\r\n" % header for header in self._headers if header[0] != b"connection"]
        if b"content-length" not in names and self._status not in NO_BODY:
            if not more:
                lines.append(b"content-length: %d\r\n" % size)
            elif self._incoming.http11:
                self._chunked = not self._silent
                lines.append(b"transfer-encoding: chunked\r\n")
            else:
                self._connection.close_after_this()  # the end of the connection is the end of the body
        if b"date" not in names:
            lines.append(render.date_line())
        lines += [self._connection.connection_line(self._incoming), b"\r\n"]
        return b"".join(lines)

    @property
    def _is_whole(self) -> bool:
        """Whether everything announced is sent. A client may go then, before the app says that this was all."""
        return self._started and dict(self._headers).get(b"content-length") == b"%d" % self._sent

    async def settle(self) -> None:
        """The app has returned: with an answer, because the client is gone, or for a reason of ours."""
        connection, incoming = self._connection, self._incoming
        if self._finished:
            connection.log_access(incoming, self._status, self._sent, dict(self._headers).get(b"x-request-id", b"-"))
            return
        if self._started or (connection.gone and self.failure is None):
            raise ClientGone  # half an answer cannot be mended
        named = {name: value for name, value in incoming.headers if name == b"x-request-id"}
        request = Request(incoming.method, b"", b"", named, _NOTHING, incoming.started_ns)
        error = self.failure or TopicsError(errors.INTERNAL, "the application gave no answer")
        response: Response = await finish(request, error_response(error))
        await connection.respond(incoming, response)


class _Nothing:
    async def read(self, limit: int) -> bytes:
        return b""

    async def while_connected(self, work: Any) -> Any:
        return await work()


_NOTHING = _Nothing()
