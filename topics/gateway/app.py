"""The Quart app: every route of the table once more, for requests that are not answered in the connection task.

A view does nothing of its own: it hands the request to `Gateway.answer`. So do Quart's "not found" and "method not
allowed", since paths are decoded and matched in one place only (routing.py).
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import quart
import trio
from quart_trio import QuartTrio
from werkzeug.exceptions import RequestEntityTooLarge
from werkzeug.routing import WebsocketMismatch

from topics import errors, limits
from topics.errors import TopicsError
from topics.gateway.bodies import too_large
from topics.gateway.dispatch import Gateway, finish, shutting_down
from topics.gateway.messages import Refusal, Request, Response, header_map
from topics.gateway.statuses import error_response
from topics.gateway.streaming import frames_of
from topics.gateway.watch_routes import live_of
from topics.gateway.websocket import WsSession
from topics.keys import identify

access_log = logging.getLogger("topics.access")
T = TypeVar("T")
BODY_TIMEOUT_S = 60.0


def create_app(gateway: Gateway) -> QuartTrio:
    app = QuartTrio("topics", static_folder=None)
    app.url_map.merge_slashes = False
    app.config["MAX_CONTENT_LENGTH"] = gateway.limits.body_bytes
    app.config["RESPONSE_TIMEOUT"] = None

    async def view(**_: str) -> quart.Response:
        request = from_quart(quart.request)  # its visitor leaves when the transport is done with the answer
        response = await gateway.answer(request)
        if quart.request.http_version == "2":  # the bridge logs the others
            path, name = request.path.decode("latin-1"), request.id.decode()
            fields = {"request_id": name, "status": response.status}
            access_log.debug("%s %s %d h2 %s", request.method, path, response.status, name, extra={"fields": fields})
        if response.stream is not None:
            assert gateway.live is not None
            assert request.visitor is not None
            request.visitor.stream = response.stream
            scope: Any = quart.request.scope
            return to_quart(response, frames_of(response.stream, gateway.live.nursery, scope["topics.moved"]))
        return to_quart(response)

    async def stray(error: Exception) -> quart.Response:
        if quart.has_request_context():
            return await view()
        return to_quart(await no_websocket())

    for template in dict.fromkeys(route.template for route in gateway.routes.table):
        methods = [route.method for route in gateway.routes.table if route.template == template]
        app.add_url_rule(
            quart_rule(template), template, view, methods=methods, provide_automatic_options=False, strict_slashes=False
        )

    async def open_websocket() -> quart.Response | None:
        scope: Any = quart.websocket.scope
        return await serve_websocket(gateway, scope)

    app.add_websocket("/v0/ws", "websocket", open_websocket)
    for kind in (404, 405, WebsocketMismatch):  # the last is a WebSocket where there is only a route of HTTP
        app.register_error_handler(kind, stray)
    return app


def quart_rule(template: str) -> str:
    """`/v0/topics/:topic/diff` as Quart writes it."""
    return "/".join(f"<{part[1:]}>" if part.startswith(":") else part for part in template.split("/"))


def from_quart(request: quart.Request) -> Request:
    scope: Any = request.scope
    return Request(
        scope["method"],
        scope["raw_path"],
        scope["query_string"],
        header_map(list(scope["headers"])),
        QuartBody(request, scope.get("topics.want_body")),
        scope.get("topics.started_ns"),
        scope["topics.visitor"],
    )


def to_quart(response: Response, frames: AsyncIterator[bytes] | None = None) -> quart.Response:
    body = response.body + response.tail if frames is None else frames
    made = quart.Response(body, response.status, content_type=response.content_type.decode())
    if frames is not None:
        made.timeout = None
    made.headers["x-request-id"] = response.request_id.decode()
    for name, value in response.headers:
        made.headers[name.decode("latin-1")] = value.decode("latin-1")
    return made


async def serve_websocket(gateway: Gateway, scope: Any) -> quart.Response | None:
    """A WebSocket to its end. A refusal is an ordinary answer: the socket was not opened."""
    request = Request("GET", scope["raw_path"], b"", header_map(list(scope["headers"])), _NO_BODY)
    try:
        if gateway.draining:
            raise shutting_down()
        principal = identify(scope["topics.visitor"].keys, request.headers.get(b"authorization"))
        session = WsSession(gateway, live_of(gateway), principal, scope["topics.moved"])
        slot = gateway.door.streams.take(principal.index)
    except TopicsError as error:
        return to_quart(await finish(request, error_response(error)))
    with slot:
        await quart.websocket.accept()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(cut_when_stuck, session.over, scope["topics.cut"])
            await quart.websocket.close(await session.run(quart.websocket))
            nursery.cancel_scope.cancel()
    return None


async def cut_when_stuck(over: trio.Event, cut: Callable[[], None]) -> None:
    """Hypercorn sends a frame whole, whatever happens. A client that does not take it would never be got rid of."""
    await over.wait()
    await trio.sleep(limits.WS_FAREWELL_S)
    cut()


async def no_websocket() -> Response:
    request = Request("GET", b"", b"", {}, _NO_BODY)
    return await finish(request, error_response(TopicsError(errors.NOT_FOUND, "there is no WebSocket at this path")))


class QuartBody:
    """A body that Quart collects. When the client goes, Quart cancels the request's task."""

    def __init__(self, request: quart.Request | None, want: Callable[[], object] | None = None) -> None:
        self._request = request
        self._want = want  # to be called before the body is read: the client may be waiting for it

    async def read(self, limit: int) -> bytes:
        if self._request is None:
            return b""
        if self._want is not None:
            self._want()
        try:
            with trio.fail_after(BODY_TIMEOUT_S):
                body: bytes = await self._request.body
        except RequestEntityTooLarge:
            raise too_large(limit) from None
        except trio.TooSlowError:
            raise Refusal(408, "the rest of the body did not come in time") from None
        return body

    async def while_connected(self, work: Callable[[], Awaitable[T]]) -> T:
        return await work()


_NO_BODY = QuartBody(None)
