"""Queues: claim, ack, nack, extend, and the stream of jobs (API §10).

Bodies go to the queue's shard untouched, and its answers come back as they are.
"""

import re
from functools import partial
from typing import Any

from topics import limits
from topics.core.config import CLAIM_JITTER_MS_MAX
from topics.core.names import check_topic_name
from topics.errors import invalid
from topics.gateway import sse
from topics.gateway.bodies import read_body
from topics.gateway.dispatch import Gateway
from topics.gateway.long_poll import long_poll
from topics.gateway.messages import Request, Response
from topics.gateway.routing import Handle, Route
from topics.gateway.watch_routes import check_accept, live_of
from topics.gateway.work_stream import WorkStream

DEADLINE_MS = limits.CLAIM_WAIT_MS_MAX + CLAIM_JITTER_MS_MAX + limits.CALL_DEADLINE_MS


async def claim(gateway: Gateway, request: Request) -> Response:
    name = check_topic_name(request.name)
    body = await read_body(request, gateway.limits.body_bytes)
    head = {"topic": name}
    if b"wait_ms" not in body:  # the body is not parsed here; a false alarm costs a little, nothing else
        reply = await gateway.shards.call(name, "claim", head, body, DEADLINE_MS)
    else:
        wait = partial(long_poll, gateway, name, "claim", head, body, DEADLINE_MS)
        reply = await request.source.while_connected(wait)
    return Response(reply.body, 200, reply.head["perf"])


def _settle(method: str) -> Handle:
    async def handle(gateway: Gateway, request: Request) -> Response:
        name = check_topic_name(request.name)
        body = await read_body(request, gateway.limits.body_bytes)
        reply = await gateway.shards.call(name, method, {"topic": name}, body)
        return Response(reply.body, 200, reply.head["perf"])

    return handle


async def work(gateway: Gateway, request: Request) -> Response:
    live = live_of(gateway)
    check_accept(request)
    name = check_topic_name(request.name)
    head: dict[str, Any] = {"topic": name, "node": request.args.get("node", "")}
    for field in ("max", "lease_ms"):
        if field in request.args:
            head[field] = _whole(field, request.args[field])
    if request.method == "HEAD":  # must not lease anything
        return Response(b"", content_type=sse.CONTENT_TYPE, headers=sse.HEADERS)
    slot = gateway.door.streams.take(request.principal.index)
    body = WorkStream(live, name, head, slot)
    try:
        await body.open()
    except BaseException:
        body.close()
        raise
    return Response(b"", content_type=sse.CONTENT_TYPE, headers=sse.HEADERS, stream=body)


def _whole(field: str, text: str) -> int:
    if not re.fullmatch(r"-?[0-9]{1,18}", text):
        raise invalid(f"{field} must be a whole number", field=field)
    return int(text)


ROUTES = (
    Route("GET", "/v0/topics/:topic/work", work, "queue.work", hot=True, stream=True),
    Route("POST", "/v0/topics/:topic/claim", claim, "queue.claim", hot=True),
    Route("POST", "/v0/topics/:topic/ack", _settle("ack"), "queue.ack", hot=True),
    Route("POST", "/v0/topics/:topic/nack", _settle("nack"), "queue.nack", hot=True),
    Route("POST", "/v0/topics/:topic/extend", _settle("extend"), "queue.extend", hot=True),
)
