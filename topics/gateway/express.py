"""Requests that need no task: read and asked in one function call, answered in another.

Nearly all requests arrive whole, ask one shard one thing and get an answer that the socket takes at once. The lane
watches the sockets of all connections that wait for their next request, with one epoll of its own: edge-triggered, so
that a request costs no system call beside its read and its send, and no turn of the loop for itself alone. Its answer
is sent by the reader of the shard's replies. The connection's task sleeps meanwhile; whatever is unusual about a
request, before or after, is left to it (connection.py).
"""

import logging
import select
from functools import partial
from time import perf_counter_ns
from typing import TYPE_CHECKING

from trio.lowlevel import wait_readable

from topics import limits
from topics.errors import TopicsError
from topics.gateway import bodies
from topics.gateway.dispatch import failed, seal
from topics.gateway.hot_body import HotBody
from topics.gateway.messages import Request, Response, header_map
from topics.gateway.parser import Incoming, split_target
from topics.gateway.questions import answer_of
from topics.gateway.routing import Names, Route
from topics.gateway.statuses import error_response
from topics.rpc.open_calls import Reply, Told

if TYPE_CHECKING:
    from topics.gateway.connection import Connection

log = logging.getLogger(__name__)


class Lane:
    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._connections: dict[int, Connection] = {}

    async def run(self) -> None:
        """A few connections at a time: the answers of shards are waiting, too."""
        while True:
            await wait_readable(self._epoll.fileno())
            for fileno, _ in self._epoll.poll(0, limits.HTTP_READY_PER_TURN):
                connection = self._connections.get(fileno)
                if connection is not None:
                    connection.on_readable()

    def add(self, connection: "Connection", fileno: int) -> None:
        self._connections[fileno] = connection
        self._epoll.register(fileno, select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET)

    def remove(self, fileno: int) -> None:
        """Before the socket is closed, or somebody else has it."""
        del self._connections[fileno]
        self._epoll.unregister(fileno)


class Express(Told):
    """A request under way."""

    __slots__ = ("_client", "_gives", "_incoming", "_request", "_route")

    def __init__(self, client: "Connection", incoming: Incoming, request: Request, route: Route) -> None:
        self._client = client
        self._incoming = incoming
        self._request = request
        self._route = route
        self._gives = False

    def resolve(self, reply: Reply) -> None:
        if self._gives and self._client.has_left():
            self.disown()
            self._client.express = None
            self._client.wake(self._client.give_up)
        else:
            self._answer(answer_of(reply))

    def reject(self, error: TopicsError) -> None:
        self._answer(error_response(error))

    def ask(self, names: Names) -> bool:
        """False if a task is needed; nothing has happened then."""
        client, request, route = self._client, self._request, self._route
        try:
            client.server.gateway.door.admit(route, names, request)
            return self._sent(route)
        except TopicsError as error:
            self.reject(error)
        except Exception:
            self._answer(failed(request, route.template))
        return True

    def _sent(self, route: Route) -> bool:
        client, request, incoming = self._client, self._request, self._incoming
        assert route.ask is not None
        question = route.ask(request)
        if incoming.received:
            bodies.check_type(request.headers.get(b"content-type"))
        body = incoming.peek()
        if not question.waits(body):
            method, head, deadline_ms, _, _, self._gives = question
            if client.server.gateway.shards.begin(request.name, self, method, head, body, deadline_ms):
                client.express = self
                return True
        client.visitor.leave()
        return False

    def _answer(self, response: Response) -> None:
        """In the reader of the shard's replies, to which no exception may get."""
        client, request = self._client, self._request
        client.express = None
        try:
            seal(request, response)
            client.server.gateway.times.note(self._route.needs, perf_counter_ns() - request.started_ns, response.status)
            if b"accept-encoding" in request.headers and bodies.is_worth_packing(request, response):
                client.wake(partial(self._pack_and_answer, response))
            else:
                client.answer_now(self._incoming, response)
        except Exception:
            log.exception("the answer to request %s failed", request.id.decode())
            client.wake(client.give_up)

    async def _pack_and_answer(self, response: Response) -> bool:
        await bodies.compress(self._request, response)
        await self._client.respond(self._incoming, response)
        return self._client.answered()


def begin(client: "Connection", incoming: Incoming) -> bool:
    """Answer this request, or see to it that it is. False if that needs a task; nothing has happened then."""
    gateway = client.server.gateway
    if incoming.refusal is not None or not incoming.complete or incoming.received > limits.HTTP_FREE_BODY_BYTES:
        return False
    path, query = split_target(incoming.target)
    route, names, _ = gateway.routes.find(incoming.method, path)
    if route is None or route.ask is None or gateway.draining or incoming.upgrade:
        return False
    headers = header_map(incoming.headers)
    if b"content-encoding" in headers or incoming.received > gateway.limits.body_bytes:
        return False
    request = Request(
        incoming.method, path, query, headers, HotBody(client, incoming), incoming.started_ns, client.visitor
    )
    return Express(client, incoming, request, route).ask(names)
