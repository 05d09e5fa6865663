"""One client connection: the bridge between its bytes and whoever answers.

Requests are answered one after another: usual ones without this connection's task (express.py), which sleeps while
there are no others. Else the task reads the socket, feeds the parser and answers: hot routes right here, with one send
for head and body; everything else through the ASGI app (asgi.py); a WebSocket, or HTTP/2 in clear text, is handed to
Hypercorn with its bytes (handover.py).

There is no timer per connection. Whoever waits for the client sets `deadline`; the server's sweep (server.py) looks at
it now and then and shuts the socket down, so that the wait ends as if the client had closed.
"""

import logging
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from math import inf
from time import perf_counter_ns
from typing import TYPE_CHECKING, TypeVar

import outcome
import trio
from trio.lowlevel import checkpoint, wait_readable, wait_writable

from topics import limits
from topics.aside import next_please
from topics.gateway import render
from topics.gateway.asgi import run_app
from topics.gateway.dispatch import finish
from topics.gateway.express import Express, begin
from topics.gateway.hot_body import HotBody
from topics.gateway.messages import ClientGone, Refusal, Request, Response, header_map
from topics.gateway.parser import H2_PREFACE, Incoming, RequestParser, split_target
from topics.gateway.routing import Names, Route
from topics.gateway.statuses import error_response
from topics.gateway.streaming import stream_to_socket

if TYPE_CHECKING:
    from topics.gateway.server import Server

log = logging.getLogger(__name__)
access_log = logging.getLogger("topics.access")
T = TypeVar("T")
Todo = Callable[[], Awaitable[bool]]


class Connection:
    def __init__(self, server: "Server", sock: socket.socket, client: tuple[str, int] | None) -> None:
        self.server = server
        self.sock = sock
        self.client = client
        self.deadline = inf
        self.idle = True  # between requests: a drain may close it
        self.timed_out = False
        self.gone = False
        self.handed_over = False
        self.parser = RequestParser()
        self.visitor = server.gateway.door.visitor()
        self.express: Express | None = None  # the request that is under way without the task
        self._task: trio.lowlevel.Task | None = None  # while it sleeps
        self._lane_fileno = -1
        self._unread = False  # the lane saw bytes that were not for it to read
        self._ahead = b""  # read while a request was under way, not parsed yet
        self._closing = False
        self._head_until = inf
        self._sending = False
        self._body_of: Incoming | None = None
        self._body_began = 0.0

    async def run(self) -> None:
        try:
            await self._serve()
        except (ClientGone, OSError):
            pass
        except Exception:
            log.exception("a connection failed")
        finally:
            self._leave_lane()
            self.sock.close()

    def cut(self) -> None:
        """The client took too long: end the wait. A wait for bytes sees an end, a wait to send an error."""
        self.timed_out = True
        self.deadline = inf
        with suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR if self._sending else socket.SHUT_RD)

    def drain(self, soon: float) -> None:
        """Close if nothing is under way. Bytes that have already arrived are still read, and refused."""
        if self.idle:
            with suppress(OSError):
                self.sock.shutdown(socket.SHUT_RD)
        elif not self.parser.queue and not self.handed_over:  # a request has begun to arrive
            self.deadline = min(self.deadline, soon)

    # --- reading ----------------------------------------------------------------------------------------------------

    async def receive(self) -> bytes:
        """Some bytes, or none at the end. Cancelled, nothing is lost."""
        while True:
            await wait_readable(self.sock)
            try:
                return self.sock.recv(limits.HTTP_RECEIVE_BYTES)
            except BlockingIOError:
                continue
            except OSError:
                return b""

    async def watch(self) -> None:
        """Returns when the client is gone; what it sends meanwhile is kept, up to a bound."""
        while not self.gone:
            if len(self._ahead) >= limits.HTTP_AHEAD_BYTES:
                await trio.sleep_forever()
            data = await self.receive()
            self._ahead += data
            self.gone = not data

    async def read_more(self, request: Incoming) -> None:
        """More of the body of the request under way. Raises ClientGone, Refusal 408 or 400."""
        if self.parser.error is not None:
            raise self.parser.error
        if request.expects:
            request.expects = False
            await self.send([render.CONTINUE])
        data, self._ahead = self._ahead, b""
        if not data:
            if self._body_of is not request:
                self._body_of, self._body_began = request, self.server.now
            self.deadline = self._until(self._body_began, request.received, self.server.patience.body_s)
            data = await self.receive()
            self.deadline = inf
        if not data:
            if self.timed_out:
                raise Refusal(408, "the rest of the body did not come in time")
            raise ClientGone
        self.parser.feed(data)
        if len(data) == limits.HTTP_RECEIVE_BYTES:
            next_please()
        if self.parser.error is not None and not request.complete:
            raise self.parser.error

    # --- writing ----------------------------------------------------------------------------------------------------

    async def send(self, buffers: list[bytes]) -> None:
        """Without a checkpoint while the client keeps up."""
        for rest in self._send_now(buffers):
            await self._send(rest)

    def _send_now(self, buffers: list[bytes]) -> list[memoryview]:
        """In one go; what the kernel did not take. A large answer is left to `_send`."""
        size = sum(map(len, buffers))
        if size > limits.HTTP_SEND_BYTES:
            return [memoryview(buffer) for buffer in buffers if buffer]
        if size <= limits.HTTP_JOIN_BYTES:
            buffers = [b"".join(buffers)]
            sent = self._try(self.sock.send, buffers[0])
        else:
            sent = self._try(self.sock.sendmsg, buffers)
        rest = []
        if sent < size:
            for buffer in buffers:
                if sent < len(buffer):
                    rest.append(memoryview(buffer)[sent:])
                sent = max(0, sent - len(buffer))
        return rest

    def _try(self, send: Callable[[T], int], data: T) -> int:
        """The bytes the kernel took."""
        try:
            return send(data)
        except BlockingIOError:
            return 0
        except OSError:
            raise ClientGone from None

    async def _send(self, data: memoryview) -> None:
        """Others have their turn after each piece: a copy into the kernel takes as long as an answer of theirs."""
        began, size = self.server.now, len(data)
        while True:
            piece = data[: limits.HTTP_SEND_BYTES]
            sent = self._try(self.sock.send, piece)
            data = data[sent:]
            if not data:
                self.deadline = inf
                self._sending = False
                return
            self.deadline = self._until(began, size - len(data), self.server.patience.send_s)
            self._sending = True
            if sent == len(piece):
                next_please()
                await checkpoint()
            else:
                await wait_writable(self.sock)

    def _until(self, began: float, moved: int, patience_s: float) -> float:
        """How long to wait for the next piece of what began to move then: not for ever, however small the pieces."""
        return min(self.server.now, began + moved / limits.HTTP_BYTES_PER_S) + patience_s

    # --- the life of a connection -----------------------------------------------------------------------------------

    async def _serve(self) -> None:
        data = await self._first_bytes()
        if data.startswith(H2_PREFACE):
            await self._hand_over(data)
            return
        self.parser.feed(data)
        more = bool(data)
        while more:
            if not await self._answer_queue():
                await self._linger()
                return
            more = await self._read_next()
        if self.timed_out and self.parser.in_head:
            await self._refuse(Refusal(408, "the request's head did not come in time"))

    async def _first_bytes(self) -> bytes:
        self.deadline = self._first_deadline()
        data = await self.receive()
        while len(data) < len(H2_PREFACE) and data and H2_PREFACE.startswith(data):
            self.idle = False
            more = await self.receive()
            if not more:
                return data
            data += more
        return data

    def _first_deadline(self) -> float:
        """For the first request of a connection. One that comes in a drain is there to be refused."""
        patience = self.server.patience
        return self.server.now + (patience.linger_s if self.server.draining else patience.idle_s)

    async def _read_next(self) -> bool:
        """Wait for the next request, or for the rest of a head (whose time runs from its first byte)."""
        data, self._ahead = self._ahead, b""
        if not data and not self.gone:
            if self.parser.in_head:
                self.idle = False
                if self._head_until is inf:
                    self._head_until = self.server.now + self.server.patience.head_s
                self.deadline = self._head_until
                data = await self.receive()
            elif self.server.draining:
                return False
            else:
                self._head_until = inf
                return await self._sleep()
        self.parser.feed(data)
        return bool(data)

    # --- without the task -------------------------------------------------------------------------------------------

    async def _sleep(self) -> bool:
        """Until there is something that needs this task; False at the end of the connection."""
        self._rest()
        if self._lane_fileno < 0:
            self._lane_fileno = self.sock.fileno()
            self.server.lane.add(self, self._lane_fileno)
        if self._unread:
            self._unread = False
            await checkpoint()
            with suppress(BlockingIOError):
                data = self.sock.recv(limits.HTTP_RECEIVE_BYTES)
                self.parser.feed(data)
                return bool(data)
        self._task = trio.lowlevel.current_task()
        todo: Todo = await trio.lowlevel.wait_task_rescheduled(self._abort)
        return await todo()

    def _abort(self, _: object) -> trio.lowlevel.Abort:
        self._task = None
        if self.express is not None:
            self.express.abandon()
            self.express = None
        return trio.lowlevel.Abort.SUCCEEDED

    def _rest(self) -> None:
        self.idle = True
        self.deadline = self.server.now + self.server.patience.idle_s

    def _leave_lane(self) -> None:
        if self._lane_fileno >= 0:
            self.server.lane.remove(self._lane_fileno)
            self._lane_fileno = -1

    def on_readable(self) -> None:
        """Called by the lane, whoever is to read."""
        if self._task is None or self.express is not None:
            self._unread = True
            return
        try:
            data = self.sock.recv(limits.HTTP_RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.wake(self.give_up)
            return
        self._unread = len(data) == limits.HTTP_RECEIVE_BYTES
        parser = self.parser
        parser.feed(data)
        if len(parser.queue) == 1 and parser.error is None and not parser.in_head:
            self.idle = False
            self.deadline = inf
            if begin(self, parser.queue[0]):
                return
        self.wake(self._go_on)

    def has_left(self) -> bool:
        """Whether the client has closed its end, or both. As while a request waits, that counts as gone."""
        try:
            return not self.sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def answer_now(self, incoming: Incoming, response: Response) -> None:
        """The answer to a request that went without the task."""
        head = render.response_head(response, self.connection_line(incoming))
        try:
            rest = self._send_now([head, response.body, response.tail])
        except ClientGone:
            self.wake(self.give_up)
            return
        self.log_access(incoming, response.status, len(response.body) + len(response.tail), response.request_id)
        if rest:
            self.wake(partial(self._send_rest, rest))
        elif not self.answered():
            self.wake(self.give_up)
        elif self._unread:
            self.wake(self._go_on)
        else:
            self._rest()

    def answered(self) -> bool:
        """The first request in the queue is over; False if the connection is, too."""
        self.visitor.leave()
        self.parser.queue.popleft()
        return not self._closing

    def wake(self, todo: Todo) -> None:
        """There is something for the task to do. Its result: whether the connection goes on."""
        task, self._task = self._task, None
        if task is not None:  # else it is being cancelled
            trio.lowlevel.reschedule(task, outcome.Value(todo))

    async def _go_on(self) -> bool:
        return True

    async def give_up(self) -> bool:
        return False

    async def _send_rest(self, rest: list[memoryview]) -> bool:
        for data in rest:
            await self._send(data)
        return self.answered()

    # --- with the task ----------------------------------------------------------------------------------------------

    async def _answer_queue(self) -> bool:
        """Answer what has been parsed; False if the connection is to be closed."""
        queue = self.parser.queue
        self.idle = self.idle and not queue
        answered = 0
        while queue:
            self.deadline = inf
            request = queue[0]
            if request.upgrade:
                await self._hand_over(request.head_bytes() + (self.parser.rest or b"") + self._ahead)
                return False
            await self._answer(request)
            if self._closing:
                return False  # the request stays first in the queue: `_linger` wants to know whether it is complete
            queue.popleft()
            answered += 1
            if not answered % limits.HTTP_PIPELINED_MAX:
                await checkpoint()
        if self.parser.error is not None:
            await self._refuse(self.parser.error)
            return False
        return True

    async def _answer(self, request: Incoming) -> None:
        if request.refusal is not None:
            await self._refuse(request.refusal)
            return
        path, query = split_target(request.target)
        route, names, _ = self.server.gateway.routes.find(request.method, path)
        try:
            if route is not None and route.hot:
                await self._answer_hot(request, route, names, path, query)
            else:
                await run_app(self, request, path, query)
        finally:
            self.visitor.leave()

    async def _answer_hot(self, incoming: Incoming, route: Route, names: Names, path: bytes, query: bytes) -> None:
        headers, body = header_map(incoming.headers), HotBody(self, incoming)
        request = Request(incoming.method, path, query, headers, body, incoming.started_ns, self.visitor)
        response = await self.server.gateway.run(route, names, request)
        if response.stream is None:
            await self.respond(incoming, response)
            return
        self.visitor.leave()
        await stream_to_socket(self, incoming, response)
        self.log_access(incoming, response.status, 0, response.request_id)

    async def respond(self, incoming: Incoming, response: Response) -> None:
        """A whole answer in one send."""
        head = render.response_head(response, self.connection_line(incoming))
        if incoming.method == "HEAD":
            await self.send([head])
        else:
            await self.send([head, response.body, response.tail])
        self.log_access(incoming, response.status, len(response.body) + len(response.tail), response.request_id)

    def connection_line(self, incoming: Incoming) -> bytes:
        """The connection header of an answer that starts now. What it announces is kept.

        A body that is not complete by now will not be read: the connection cannot be used again.
        """
        if not incoming.keep_alive or not incoming.complete or self.server.draining:
            self._closing = True
        if self._closing:
            return render.CLOSE
        return b"" if incoming.http11 else render.KEEP_ALIVE

    def close_after_this(self) -> None:
        self._closing = True

    async def _refuse(self, refusal: Refusal) -> None:
        """Answer what is no proper request; nothing after it can be trusted."""
        self._closing = True
        incoming = Incoming()
        request = Request("", b"", b"", {}, HotBody(self, incoming))
        incoming.started_ns = request.started_ns
        await self.respond(incoming, await finish(request, error_response(refusal)))

    async def _hand_over(self, data: bytes) -> None:
        self.handed_over = True
        self._leave_lane()
        self.idle, self.deadline = False, inf  # it is the client who waits
        handover = await self.server.framework.handover()
        self.idle = True
        self.deadline = self._first_deadline()
        await handover.take(self.sock, data, self._note_busy)

    def _note_busy(self, busy: bool) -> None:
        """For a connection that Hypercorn serves."""
        self.idle = not busy
        self.deadline = inf if busy else self.server.now + self.server.patience.idle_s
        if self.idle and self.server.draining:
            self.drain(self.server.now)

    async def _linger(self) -> None:
        """Closing with unread bytes resets the connection, and the client might lose the answer: read them first."""
        if self.handed_over:
            return
        request = self.parser.queue[0] if self.parser.queue else None
        if (request is None or request.complete) and self.parser.error is None:
            return
        self.sock.shutdown(socket.SHUT_WR)
        self.deadline = self.server.now + self.server.patience.linger_s
        left = limits.HTTP_LINGER_BYTES
        while left > 0:
            data = await self.receive()
            if not data:
                return
            left -= len(data)

    def log_access(self, incoming: Incoming, status: int, size: int, request_id: bytes) -> None:
        """Never the query string, which may hold a token."""
        if access_log.isEnabledFor(logging.DEBUG):
            path = split_target(incoming.target)[0].decode("latin-1")
            took_ms = (perf_counter_ns() - incoming.started_ns) / 1e6
            host = self.client[0] if self.client else "-"
            what = (host, incoming.method or "-", path, status, size, took_ms, request_id.decode())
            fields = {"request_id": what[-1], "status": status, "took_ms": round(took_ms, 3)}
            access_log.debug("%s %s %s %d %d %.3f %s", *what, extra={"fields": fields})
