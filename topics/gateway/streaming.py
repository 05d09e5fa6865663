"""Answers that go on: how a stream's body (messages.Body) runs on each transport.

Over HTTP/1 frames go from wherever they arise straight into the socket, and the connection's task only watches for the
client to go. Over HTTP/2, Quart asks for frames one by one.
"""

import logging
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

import trio

from topics.gateway import render
from topics.gateway.messages import Body, Response
from topics.gateway.parser import Incoming
from topics.gateway.sinks import QueueSink, SocketSink

if TYPE_CHECKING:
    from topics.gateway.connection import Connection


log = logging.getLogger(__name__)


async def stream_to_socket(connection: "Connection", incoming: Incoming, response: Response) -> None:
    """The whole life of a stream. The connection is closed after it."""
    body = response.stream
    assert body is not None
    try:
        connection.close_after_this()
        await connection.send([render.stream_head(response, chunked=incoming.http11)])
        sink = SocketSink(connection, chunked=incoming.http11)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_end_when_gone, connection, nursery.cancel_scope)
            await body.run(sink)
            nursery.cancel_scope.cancel()
        sink.end()
    finally:
        body.close()


async def _end_when_gone(connection: "Connection", scope: trio.CancelScope) -> None:
    await connection.watch()
    scope.cancel()


async def frames_of(body: Body, nursery: trio.Nursery, moved: Callable[[], int]) -> AsyncIterator[bytes]:
    """For Quart. Closed early (the client is gone), the body's task is cancelled."""
    sink, scope = QueueSink(moved), trio.CancelScope()

    async def run() -> None:
        try:
            with scope:
                await body.run(sink)
        except Exception:  # must not end the gateway
            log.exception("a stream failed")
        finally:
            body.close()
            sink.end()

    nursery.start_soon(run)
    try:
        while (frame := await sink.next()) is not None:
            yield frame
    finally:
        scope.cancel()
