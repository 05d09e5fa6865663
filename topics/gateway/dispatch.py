"""The one way from a request to its answer: route, pass the door, handle, finish.

The hot path and the Quart app both end here, so no rule has two implementations.
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Any

import msgspec
import trio

from topics import errors
from topics.board import Board, Phase
from topics.errors import TopicsError
from topics.gateway import bodies
from topics.gateway.access import Door
from topics.gateway.control import ControlLock
from topics.gateway.live import Live
from topics.gateway.messages import ClientGone, Request, Response
from topics.gateway.op_times import OpTimes
from topics.gateway.routing import Names, Route, Routes
from topics.gateway.shard_calls import Shards
from topics.gateway.statuses import error_response
from topics.limits import Limits

log = logging.getLogger(__name__)
_encode = msgspec.json.Encoder().encode


@dataclass(slots=True)
class Gateway:
    """What handlers work with."""

    shards: Shards
    routes: Routes
    limits: Limits = field(default_factory=Limits)
    started_ms: int = 0
    draining: bool = False
    door: Door = field(default_factory=Door)
    board: Board | None = None
    first_ready: bool = False  # every shard has been ready once
    polls: set[trio.CancelScope] = field(default_factory=set)  # long-polls that a drain ends early
    live: Live | None = None
    control: ControlLock | None = None  # for changes of routers
    max_routers: int = 0
    times: OpTimes = field(default_factory=OpTimes)

    def drain(self) -> None:
        """From now on requests are refused; those under way finish, long-polls at once."""
        self.draining = True
        for scope in tuple(self.polls):
            scope.cancel()
        if self.live is not None:
            self.live.drain()

    def was_ready(self, *, now_ready: bool) -> bool:
        """Has the instance been ready, ever? The board remembers it over a restart of this gateway."""
        if now_ready or (self.board is not None and self.board.phase is not Phase.STARTING):
            self.first_ready = True
        return self.first_ready

    def told_by(self, shards: Iterable[int], field: str) -> int:
        """What these shards said last: those that are down still have it, on disk."""
        return sum(self.board.shard(shard).get(field) for shard in shards) if self.board is not None else 0

    def instance_draining(self) -> bool:
        return self.board is not None and self.board.phase is Phase.DRAINING

    async def answer(self, request: Request) -> Response:
        """Any request's answer. Raises nothing but ClientGone and cancellation."""
        try:
            route, names = self.routes.match(request)
        except TopicsError as error:
            return await finish(request, error_response(error))
        return await self.run(route, names, request)

    async def run(self, route: Route, names: Names, request: Request) -> Response:
        """The answer of a request whose route, and names in the path, are known."""
        try:
            if self.draining and not route.probe:
                if route.stream:  # a browser's EventSource gives up on any answer but 200; without one it tries again
                    raise ClientGone
                raise shutting_down()
            self.door.admit(route, names, request)
            response = await route.handle(self, request)
        except TopicsError as error:
            response = error_response(error)
        except ClientGone:
            raise
        except Exception:
            response = failed(request, route.template)
        response = await finish(request, response)
        self.times.note(route.needs, perf_counter_ns() - request.started_ns, response.status)
        return response


def failed(request: Request, where: str) -> Response:
    """To be called while the exception is handled."""
    name = request.id.decode()
    fields = {"request_id": name}
    log.exception("%s %s failed, request %s", request.method, where, name, extra={"fields": fields})
    return error_response(TopicsError(errors.INTERNAL, f"internal error; see the server's log for request {name}"))


def shutting_down() -> TopicsError:
    return TopicsError(errors.SHUTTING_DOWN, "the server is shutting down; retry", {"retry_after_ms": 1000})


def seal(request: Request, response: Response) -> None:
    """Close the JSON object with `performance`, name the request."""
    response.request_id = request.id
    if response.perf is not None:
        response.tail = performance((perf_counter_ns() - request.started_ns) / 1e6, response.perf)


async def finish(request: Request, response: Response) -> Response:
    """Seal it; compress if asked."""
    seal(request, response)
    if b"accept-encoding" in request.headers:
        await bodies.compress(request, response)
    return response


def performance(total_ms: float, perf: Mapping[str, Any]) -> bytes:
    """The end of an open object."""
    if not perf:
        return b',"performance":{"server_total_ms":%.3f}}' % total_ms
    return b',"performance":{"server_total_ms":%.3f,%b}' % (total_ms, _encode(perf)[1:])
