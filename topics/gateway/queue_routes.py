"""Queues: claim, ack, nack, extend, the stream of jobs (API §10), and dead letters that go back.

Bodies go to the queue's shard untouched, and its answers come back as they are.
"""

import re
from typing import Any

import msgspec

from topics import limits
from topics.core.config import CLAIM_JITTER_MS_MAX
from topics.core.names import check_topic_name
from topics.core.queue_requests import check_worker, clamp_jobs, clamp_lease, decode_redrive
from topics.errors import invalid, not_a_queue
from topics.gateway import sse
from topics.gateway.bodies import read_body
from topics.gateway.dispatch import Gateway
from topics.gateway.messages import Request, Response
from topics.gateway.questions import Ask, Question, asking_route
from topics.gateway.routing import Route
from topics.gateway.watch_routes import check_accept, live_of
from topics.gateway.work_stream import WorkStream
from topics.keys import authorise

REDRIVE_DEADLINE_MS = limits.REDRIVE_WAIT_MS + limits.CALL_DEADLINE_MS
CLAIM_DEADLINE_MS = CLAIM_JITTER_MS_MAX + limits.CALL_DEADLINE_MS


class _Typed(msgspec.Struct):
    type: str


def claim(request: Request) -> Question:
    head = {"topic": check_topic_name(request.name)}
    return Question("claim", head, CLAIM_DEADLINE_MS, limits.CLAIM_WAIT_MS_MAX, gives=True)


def _settle(method: str) -> Ask:
    def ask(request: Request) -> Question:
        return Question(method, {"topic": check_topic_name(request.name)})

    return ask


async def work(gateway: Gateway, request: Request) -> Response:
    live = live_of(gateway)
    check_accept(request)
    name = check_topic_name(request.name)
    args, bounds = request.args, gateway.limits
    head: dict[str, Any] = {"topic": name, "node": check_worker(args.get("node", ""), bounds)}
    if "max" in args:
        head["max"] = clamp_jobs(_whole("max", args["max"]), bounds)
    if "lease_ms" in args:
        head["lease_ms"] = clamp_lease(_whole("lease_ms", args["lease_ms"]))
    if request.method == "HEAD":  # must not lease anything
        await _check_queue(gateway, name)
        return Response(b"", content_type=sse.CONTENT_TYPE, headers=sse.HEADERS)
    slot = gateway.door.streams.take(request.principal.index)
    body = WorkStream(live, name, head, slot)
    try:
        await body.open()
    except BaseException:
        body.close()
        raise
    return Response(b"", content_type=sse.CONTENT_TYPE, headers=sse.HEADERS, stream=body)


async def redrive(gateway: Gateway, request: Request) -> Response:
    """The destination is named in the body, so that has to be looked at for the key's prefixes."""
    name = check_topic_name(request.name)
    body = await read_body(request, gateway.limits.request_bytes)
    authorise(request.principal, 0, decode_redrive(body, name, gateway.limits).to)
    reply = await gateway.shards.call(name, "redrive", {"topic": name}, body, REDRIVE_DEADLINE_MS)
    return Response(reply.body, 200, reply.head["perf"])


async def _check_queue(gateway: Gateway, name: str) -> None:
    reply = await gateway.shards.call(name, "state", {"topic": name, "touch": False})
    if msgspec.json.decode(bytes(reply.body) + b"}", type=_Typed).type != "queue":
        raise not_a_queue(name)


def _whole(field: str, text: str) -> int:
    if not re.fullmatch(r"-?[0-9]{1,40}", text):
        raise invalid(f"{field} must be a whole number", field=field)
    return int(text)


ROUTES = (
    Route("GET", "/v0/topics/:topic/work", work, "queue.work", hot=True, stream=True),
    asking_route("POST", "/v0/topics/:topic/claim", claim, "queue.claim"),
    asking_route("POST", "/v0/topics/:topic/ack", _settle("ack"), "queue.ack"),
    asking_route("POST", "/v0/topics/:topic/nack", _settle("nack"), "queue.nack"),
    asking_route("POST", "/v0/topics/:topic/extend", _settle("extend"), "queue.extend"),
    Route("POST", "/v0/topics/:topic/redrive", redrive, "queue.redrive"),
)
