"""Accepting connections, looking after their deadlines, and the drain.

A drain closes idle connections and lets requests under way finish; whatever comes meanwhile is refused with
`shutting_down`. If the whole server ends, that is so on new connections, too, as long as something is under way: a load
balancer sees that it is to go elsewhere. If the port goes on without this gateway (its supervisor replaces it, or
systemd holds the port), no more are accepted: they wait for whoever comes next.
"""

import errno
import logging
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any, Protocol

import trio

from topics import errors, limits
from topics.gateway import render
from topics.gateway.connection import Connection
from topics.gateway.dispatch import Gateway, performance
from topics.gateway.express import Lane
from topics.gateway.framework import Framework
from topics.gateway.messages import Refusal, new_id
from topics.gateway.statuses import error_response

log = logging.getLogger(__name__)
FULL_LOG_S = 10.0
OUT_OF_FILES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


@dataclass(frozen=True, slots=True)
class Patience:
    """How long the server waits for a client."""

    idle_s: float = 75.0  # between requests
    head_s: float = 10.0  # from the first byte of a head to its last
    body_s: float = 30.0  # between two pieces of a body
    send_s: float = 30.0  # for the client to take a piece of an answer
    linger_s: float = 2.0  # after a refusal, for what the client is still sending; in a drain, for a first request
    sweep_s: float = 0.25


class TaskStatus(Protocol):
    def started(self) -> None: ...


class Server:
    def __init__(
        self,
        gateway: Gateway,
        make_app: Callable[[Gateway], Any],
        patience: Patience | None = None,
        publish: Callable[[int, int], object] | None = None,
        max_connections: int = 0,
        *,
        port_is_lent: bool = False,
    ) -> None:
        """`make_app` is called once, in a thread, when the app is needed. `port_is_lent`: it is there before the
        server and after it."""
        self.gateway = gateway
        self.patience = patience or Patience()
        self.framework = Framework(
            partial(make_app, gateway), gateway.door, self.patience.send_s, gateway.limits.body_bytes
        )
        self.connections: set[Connection] = set()
        self.lane = Lane()
        self.address: tuple[str, int] | None = None
        self.now = 0.0  # coarse, for deadlines
        self._max_connections = max_connections  # 0: any number
        self._told_full = -inf
        self._port_is_lent = port_is_lent
        self._one_ended = trio.Event()  # of the connections that a drain waits for
        self._publish = publish  # told now and then: open connections, and how many of them are busy

    @property
    def draining(self) -> bool:
        return self.gateway.draining

    async def run(
        self,
        listener: socket.socket,
        stop: trio.Event,
        grace_s: float,
        *,
        task_status: TaskStatus = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve until `stop`, then drain for at most `grace_s`."""
        self.address = _address(listener.getsockname())
        self.now = trio.current_time()
        async with trio.open_nursery() as life:
            life.start_soon(self.framework.run)
            life.start_soon(self._sweep)
            life.start_soon(self.lane.run)
            async with trio.open_nursery() as open_connections:
                with listener:
                    async with trio.open_nursery() as accepting:
                        accepting.start_soon(self._accept, listener, open_connections)
                        task_status.started()
                        await stop.wait()
                        open_connections.cancel_scope.deadline = trio.current_time() + grace_s
                        self._drain()
                        if self.gateway.instance_draining() and not self._port_is_lent:
                            await self._end_of(set(self.connections))
                        accepting.cancel_scope.cancel()
                self._close_idle()
            await self.framework.stop()
            life.cancel_scope.cancel()

    async def _accept(self, listener: socket.socket, nursery: trio.Nursery) -> None:
        """A few at a time: with several gateways on one port, one of them must not take all connections."""
        listener.setblocking(False)
        while True:
            await trio.lowlevel.wait_readable(listener)
            try:
                for _ in range(limits.HTTP_ACCEPTS_PER_WAKE):
                    self._open(*listener.accept(), nursery)
            except BlockingIOError:
                pass
            except OSError as error:
                if error.errno in OUT_OF_FILES:
                    log.error("cannot accept connections: %s", error)
                    await trio.sleep(0.1)

    def _open(self, sock: socket.socket, client: Any, nursery: trio.Nursery) -> None:
        sock.setblocking(False)
        if 0 < self._max_connections <= len(self.connections):
            self._turn_away(sock)
            return
        with suppress(OSError):  # it may be gone already
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection = Connection(self, sock, _address(client))
        self.connections.add(connection)
        nursery.start_soon(self._run, connection)

    def _turn_away(self, sock: socket.socket) -> None:
        """One connection too many: an answer if it leaves at once, and the end."""
        if self.now - self._told_full > FULL_LOG_S:
            self._told_full = self.now
            log.warning("%d connections are open, more are turned away", self._max_connections)
        refusal = Refusal(503, "this server has as many connections as it may; retry", errors.NOT_READY)
        refusal.detail = {"limit": "max_connections", "max": self._max_connections}
        response = error_response(refusal)
        response.request_id, response.tail = new_id(), performance(0.0, {})
        with sock, suppress(OSError):
            sock.send(render.response_head(response, render.CLOSE) + response.body + response.tail)
            sock.shutdown(socket.SHUT_WR)
            sock.recv(limits.HTTP_RECEIVE_BYTES)  # what is not read makes the kernel drop the answer

    async def _run(self, connection: Connection) -> None:
        try:
            await connection.run()
        finally:
            self.connections.discard(connection)
            self._one_ended.set()

    async def _end_of(self, connections: set[Connection]) -> None:
        while not connections.isdisjoint(self.connections):
            self._one_ended = trio.Event()
            await self._one_ended.wait()

    async def _sweep(self) -> None:
        while True:
            self.now = trio.current_time()
            busy = 0
            for connection in self.connections:
                busy += not connection.idle
                if connection.deadline < self.now:
                    connection.cut()
            if self._publish is not None:
                self._publish(len(self.connections), busy)
            await trio.sleep(self.patience.sweep_s)

    def _drain(self) -> None:
        self.gateway.drain()
        self._close_idle()

    def _close_idle(self) -> None:
        soon = trio.current_time() + self.patience.linger_s
        for connection in self.connections:
            connection.drain(soon)


def _address(name: Any) -> tuple[str, int] | None:
    return (name[0], name[1]) if isinstance(name, tuple) else None
