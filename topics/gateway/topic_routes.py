"""One topic: create, state, remove, append, diff, seek, delete (API §1, §2, §3, §5).

Bodies go to the topic's shard untouched, and its answers come back as they are.
"""

from typing import Any

from topics import limits
from topics.core.names import check_topic_name
from topics.core.requests import U64_MAX
from topics.errors import invalid
from topics.gateway.bodies import read_body
from topics.gateway.dispatch import Gateway
from topics.gateway.messages import Request, Response
from topics.gateway.questions import Question, answer_of, asking_route
from topics.gateway.routing import Route


async def put(gateway: Gateway, request: Request) -> Response:
    name = check_topic_name(request.name)
    body = await read_body(request, gateway.limits.request_bytes)
    head: dict[str, Any] = {"topic": name}
    if request.principal.prefixes:
        head["prefixes"] = request.principal.prefixes
    return answer_of(await gateway.shards.call(name, "put", head, body))


async def state(gateway: Gateway, request: Request) -> Response:
    name = check_topic_name(request.name)
    reply = await gateway.shards.call(name, "state", {"topic": name, "touch": request.flag("touch", True)})
    return Response(reply.body, 200, reply.head["perf"])


async def remove(gateway: Gateway, request: Request) -> Response:
    name = check_topic_name(request.name)
    reply = await gateway.shards.call(name, "remove", {"topic": name, "if_empty": request.flag("if_empty", False)})
    return Response(reply.body, 200, reply.head["perf"])


def append(request: Request) -> Question:
    head: dict[str, Any] = {"topic": check_topic_name(request.name)}
    if request.query and (request.query == b"return_seqs=false" or not request.flag("return_seqs", True)):
        head["return_seqs"] = False
    if b"idempotency-key" in request.headers:  # an empty one is refused: to pass it over would be to write twice
        head["key"] = _header_key(request.headers[b"idempotency-key"])
    if request.principal.prefixes:
        head["prefixes"] = request.principal.prefixes
    return Question("append", head, large=True)


def diff(request: Request) -> Question:
    return Question("diff", {"topic": check_topic_name(request.name)}, wait_ms_max=limits.DIFF_WAIT_MS_MAX)


async def seek(gateway: Gateway, request: Request) -> Response:
    name = check_topic_name(request.name)
    ts = request.args.get("ts", "")
    if not ts.isascii() or not ts.isdigit() or int(ts[:21]) > U64_MAX:
        raise invalid("ts must be given: a time in ms since 1970, as a whole number", field="ts")
    reply = await gateway.shards.call(name, "seek", {"topic": name, "ts": int(ts)})
    return Response(reply.body, 200, reply.head["perf"])


async def delete(gateway: Gateway, request: Request) -> Response:
    name = check_topic_name(request.name)
    body = await read_body(request, gateway.limits.request_bytes)
    reply = await gateway.shards.call(name, "delete", {"topic": name}, body)
    return Response(reply.body, 200, reply.head["perf"])


def _header_key(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise invalid("Idempotency-Key must be UTF-8", field="idempotency_key") from None


ROUTES = (
    asking_route("POST", "/v0/topics/:topic", append, "topic.append"),
    asking_route("POST", "/v0/topics/:topic/diff", diff, "topic.diff"),
    Route("PUT", "/v0/topics/:topic", put, "topic.put"),
    Route("GET", "/v0/topics/:topic", state, "topic.state"),
    Route("DELETE", "/v0/topics/:topic", remove, "topic.remove"),
    Route("GET", "/v0/topics/:topic/seek", seek, "topic.seek"),
    Route("POST", "/v0/topics/:topic/delete", delete, "topic.delete"),
)
