"""The body of a request that is answered in its connection's own task, without an app in between."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

import trio

from topics import limits
from topics.errors import TopicsError
from topics.gateway.bodies import too_large
from topics.gateway.messages import ClientGone, Parts
from topics.gateway.parser import Incoming

if TYPE_CHECKING:
    from topics.gateway.connection import Connection

T = TypeVar("T")


class HotBody:
    __slots__ = ("_connection", "_incoming")

    def __init__(self, connection: "Connection", incoming: Incoming) -> None:
        self._connection = connection
        self._incoming = incoming

    async def read(self, limit: int) -> Parts:
        incoming = self._incoming
        while not incoming.complete:
            if incoming.received > limit:
                raise too_large(limit)
            await self._connection.read_more(incoming)
            self._connection.visitor.reserve(incoming.received)
        if incoming.received > limit:
            raise too_large(limit)
        return incoming.take() if incoming.received <= limits.BODY_JOIN_BYTES else incoming.take_parts()

    async def while_connected(self, work: Callable[[], Awaitable[T]]) -> T:
        result: T | None = None
        error: TopicsError | None = None
        async with trio.open_nursery() as nursery:

            async def watch() -> None:
                await self._connection.watch()
                nursery.cancel_scope.cancel()

            nursery.start_soon(watch)
            try:
                result = await work()
            except TopicsError as refused:
                error = refused
            nursery.cancel_scope.cancel()
        if error is not None:
            raise error
        if self._connection.gone and result is None:
            raise ClientGone
        assert result is not None
        return result
