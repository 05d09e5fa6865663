"""One topic: create, state, remove, append, diff, seek, delete (API §1, §2, §3, §5).

Bodies go to the topic's shard untouched, and its answers come back as they are.
"""

from functools import partial
from typing import Any

from topics import limits
from topics.core.names import check_topic_name
from topics.core.requests import U64_MAX
from topics.errors import invalid
from topics.gateway.bodies import read_body
from topics.gateway.dispatch import Gateway
from topics.gateway.long_poll import long_poll
from topics.gateway.messages import Request, Response
from topics.gateway.routing import Route
from topics.keys import ADMIN
from topics.rpc.open_calls import Reply

DIFF_DEADLINE_MS = limits.DIFF_WAIT_MS_MAX + limits.CALL_DEADLINE_MS


async def put(gateway: Gateway, request: Request) -> Response:
    name = check_topic_name(request.name)
    body = await read_body(request, gateway.limits.body_bytes)
    head: dict[str, Any] = {"topic": name}
    if request.principal.prefixes:
        head["prefixes"] = request.principal.prefixes
    return _created(await gateway.shards.call(name, "put", head, body))


async def state(gateway: Gateway, request: Request) -> Response:
    name = check_topic_name(request.name)
    reply = await gateway.shards.call(name, "state", {"topic": name, "touch": request.flag("touch", True)})
    return Response(reply.body, 200, reply.head["perf"])


async def remove(gateway: Gateway, request: Request) -> Response:
    name = check_topic_name(request.name)
    reply = await gateway.shards.call(name, "remove", {"topic": name, "if_empty": request.flag("if_empty", False)})
    return Response(reply.body, 200, reply.head["perf"])


async def append(gateway: Gateway, request: Request) -> Response:
    name = check_topic_name(request.name)
    head: dict[str, Any] = {"topic": name}
    if request.query and (request.query == b"return_seqs=false" or not request.flag("return_seqs", True)):
        head["return_seqs"] = False
    if b"idempotency-key" in request.headers:
        head["key"] = _header_key(request.headers[b"idempotency-key"])
    if not request.principal.allows(ADMIN):
        head["may_configure"] = False  # only the shard looks into the body
    if request.principal.prefixes:
        head["prefixes"] = request.principal.prefixes
    body = await read_body(request, gateway.limits.body_bytes)
    return _created(await gateway.shards.call(name, "append", head, body))


async def diff(gateway: Gateway, request: Request) -> Response:
    name = check_topic_name(request.name)
    body = await read_body(request, gateway.limits.body_bytes)
    head = {"topic": name}
    if b"wait_ms" not in body:  # the body is not parsed here; a false alarm costs a little, nothing else
        reply = await gateway.shards.call(name, "diff", head, body)
    else:
        wait = partial(long_poll, gateway, name, "diff", head, body, DIFF_DEADLINE_MS)
        reply = await request.source.while_connected(wait)
    return Response(reply.body, 200, reply.head["perf"])


async def seek(gateway: Gateway, request: Request) -> Response:
    name = check_topic_name(request.name)
    ts = request.args.get("ts", "")
    if not ts.isascii() or not ts.isdigit() or int(ts[:21]) > U64_MAX:
        raise invalid("ts must be given: a time in ms since 1970, as a whole number", field="ts")
    reply = await gateway.shards.call(name, "seek", {"topic": name, "ts": int(ts)})
    return Response(reply.body, 200, reply.head["perf"])


async def delete(gateway: Gateway, request: Request) -> Response:
    name = check_topic_name(request.name)
    body = await read_body(request, gateway.limits.body_bytes)
    reply = await gateway.shards.call(name, "delete", {"topic": name}, body)
    return Response(reply.body, 200, reply.head["perf"])


def _created(reply: Reply) -> Response:
    return Response(reply.body, 201 if reply.head["created"] else 200, reply.head["perf"])


def _header_key(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise invalid("Idempotency-Key must be UTF-8", field="idempotency_key") from None


ROUTES = (
    Route("POST", "/v0/topics/:topic", append, "topic.append", hot=True),
    Route("POST", "/v0/topics/:topic/diff", diff, "topic.diff", hot=True),
    Route("PUT", "/v0/topics/:topic", put, "topic.put"),
    Route("GET", "/v0/topics/:topic", state, "topic.state"),
    Route("DELETE", "/v0/topics/:topic", remove, "topic.remove"),
    Route("GET", "/v0/topics/:topic/seek", seek, "topic.seek"),
    Route("POST", "/v0/topics/:topic/delete", delete, "topic.delete"),
)
