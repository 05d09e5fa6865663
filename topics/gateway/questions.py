"""Routes that ask one shard one thing: the request's body goes there untouched, and its answer comes back as it is.

Such a route is one function, from a request to its `Question`. It is answered by a task (`asking`) or, if nothing about
the request is unusual, without one (express.py).
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from topics import limits
from topics.gateway.bodies import read_body, read_parts
from topics.gateway.dispatch import Gateway
from topics.gateway.long_poll import long_poll
from topics.gateway.messages import Request, Response
from topics.gateway.routing import Handle, Route
from topics.rpc.open_calls import Reply
from topics.rpc.wire import Body


class Question(NamedTuple):
    method: str
    head: Mapping[str, Any]
    deadline_ms: int = limits.CALL_DEADLINE_MS
    wait_ms_max: int = 0  # how long the shard may wait on top of that, if the body says so
    large: bool = False  # whether the body may be as large as that of an append
    gives: bool = False  # whether the answer gives something away, which is to come back if the client is gone by then

    def waits(self, body: bytes) -> bool:
        """Bodies are not parsed here; a false alarm costs a little, nothing else."""
        return self.wait_ms_max > 0 and b"wait_ms" in body


Ask = Callable[[Request], Question]


def asking_route(method: str, template: str, ask: Ask, needs: str) -> Route:
    return Route(method, template, asking(ask), needs, hot=True, ask=ask)


def asking(ask: Ask) -> Handle:
    async def handle(gateway: Gateway, request: Request) -> Response:
        question = ask(request)
        method, head, deadline_ms, wait_ms_max, large, _ = question
        body: Body
        if large:
            body = await read_parts(request, gateway.limits.body_bytes)
        elif question.waits(body := await read_body(request, gateway.limits.request_bytes)):
            wait = partial(long_poll, gateway, request.name, method, head, body, deadline_ms + wait_ms_max)
            return answer_of(await request.source.while_connected(wait))
        call = partial(gateway.shards.call, request.name, method, head, body, deadline_ms)
        return answer_of(await (request.source.while_connected(call) if question.gives else call()))

    return handle


def answer_of(reply: Reply) -> Response:
    head = reply.head
    return Response(reply.body, 201 if head.get("created") else 200, head["perf"])
