"""A peer by its socket path: connected when first needed, again after a loss, and never a place to hang.

After a failed attempt calls fail at once with PeerLost until a backoff has passed, so a dead peer costs a caller
nothing; the next call after that tries again. After a loss the first call tries at once.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import trio

from topics import limits
from topics.rpc.connection import Connection
from topics.rpc.errors import DeadlineExceeded, PeerLost, RpcError, TooManyCalls
from topics.rpc.open_calls import Reply, Stream, Told
from topics.rpc.unix import connect_unix
from topics.rpc.wire import Body


class Peer:
    """`nursery` owns the connection; it never sees an exception of it."""

    def __init__(self, path: str, nursery: trio.Nursery) -> None:
        self.when_lost: Callable[[], None] | None = None  # told of every connection that ends, idle or not
        self._path = path
        self._nursery = nursery
        self._connection: Connection | None = None
        self._attempt: trio.Event | None = None  # set when the connect under way has ended
        self._waiting = 0
        self._error: RpcError | None = None  # why the last attempt failed
        self._backoff_ms = 0
        self._retry_at = 0.0
        self._closed = False

    @property
    def connected(self) -> bool:
        return self._connection is not None and not self._connection.lost

    async def call(
        self, method: str, head: Mapping[str, Any], body: Body = b"", *, deadline_ms: int | None = None
    ) -> Reply:
        """As `Connection.call`; PeerLost while the peer is down."""
        connection = self._connection
        if connection is None or connection.lost:
            connection, deadline_ms = await self._connect_within(deadline_ms)
        return await connection.call(method, head, body, deadline_ms=deadline_ms)

    def begin(self, told: Told, method: str, head: Mapping[str, Any], body: bytes, deadline_ms: int) -> bool:
        """As `Connection.begin`; False also while there is no connection."""
        connection = self._connection
        return connection is not None and connection.begin(told, method, head, body, deadline_ms)

    def sends_at_once(self, size: int) -> bool:
        """As `Connection.sends_at_once`; False also while there is no connection: calls that wait for one are sent in
        any order."""
        return self._connection is not None and self._connection.sends_at_once(size)

    @asynccontextmanager
    async def stream(
        self,
        method: str,
        head: Mapping[str, Any],
        body: Body = b"",
        *,
        credits: int = limits.RPC_CREDITS_DEFAULT,
        deadline_ms: int | None = None,
    ) -> AsyncIterator[Stream]:
        """As `Connection.stream`; PeerLost while the peer is down."""
        connection, deadline_ms = await self._connect_within(deadline_ms)
        async with connection.stream(method, head, body, credits=credits, deadline_ms=deadline_ms) as stream:
            yield stream

    async def connect(self) -> Connection:
        """The live connection, made now if need be. One attempt serves all who ask meanwhile.

        Cancelled here, the attempt goes on for the others.
        """
        if self._connection is not None and not self._connection.lost:
            return self._connection
        if self._closed:
            raise PeerLost("the peer was closed at this side")
        if self._attempt is None:
            if trio.current_time() < self._retry_at:
                raise self._reason()
            self._attempt = trio.Event()
            self._nursery.start_soon(self._connect, self._attempt)
        if self._waiting >= limits.RPC_INFLIGHT_MAX:
            raise TooManyCalls(f"{limits.RPC_INFLIGHT_MAX} calls already wait for the peer")
        self._waiting += 1
        try:
            await self._attempt.wait()
        finally:
            self._waiting -= 1
        if self._connection is None or self._connection.lost:
            raise self._reason()
        return self._connection

    async def aclose(self) -> None:
        """Close for good; open calls fail with PeerLost."""
        self._closed = True
        if self._connection is not None:
            await self._connection.aclose()

    async def _connect_within(self, deadline_ms: int | None) -> tuple[Connection, int | None]:
        """The connection, and what is left of the deadline. The cancel scope is on the reconnect path only."""
        if deadline_ms is None:
            return await self.connect(), None
        started = trio.current_time()
        with trio.move_on_after(max(0, deadline_ms) / 1000):
            connection = await self.connect()
            return connection, deadline_ms - int((trio.current_time() - started) * 1000)
        raise DeadlineExceeded("the deadline passed while connecting to the peer")

    async def _connect(self, attempt: trio.Event) -> None:
        try:
            connection = await connect_unix(self._path, self._nursery)
        except RpcError as error:
            self._error = error
            self._backoff_ms = min(max(self._backoff_ms * 2, limits.RPC_BACKOFF_MIN_MS), limits.RPC_BACKOFF_MAX_MS)
            self._retry_at = trio.current_time() + self._backoff_ms / 1000
        else:
            self._connection = connection
            connection.when_lost = self.when_lost
            self._error = None
            self._backoff_ms = 0
            if self._closed:
                await connection.aclose()
        finally:
            # Also when the nursery is cancelled: those who wait learn it as PeerLost.
            self._attempt = None
            attempt.set()

    def _reason(self) -> RpcError:
        return PeerLost("the peer is down") if self._error is None else self._error.again()
