"""Routers (API §6): put, state, list, remove.

A put holds the control lock, so nobody else changes the graph between the check and the change. Everything that can
be refused is refused before a topic is made; if a topic cannot be made, the one that was made for it goes again. A
gateway that dies on the way leaves at most empty topics; sending the put again completes it. A put that moves a router
to another source drops the old one first: a gateway that dies right there leaves no router, as after a DELETE.
"""

import time
from typing import Any

import msgspec

from topics import errors
from topics.core.names import check_router_name
from topics.core.routes import Definition, check_graph, parse_router, shown
from topics.errors import TopicsError, topic_not_found
from topics.gateway.bodies import read_body
from topics.gateway.dispatch import Gateway
from topics.gateway.list_route import decode_cursor, merge_pages, page_size_of
from topics.gateway.messages import Request, Response
from topics.gateway.routing import Route
from topics.gateway.slots import throttled
from topics.keys import authorise
from topics.rpc.open_calls import Reply

Known = dict[str, tuple[int, Definition]]
_known = msgspec.msgpack.Decoder(Known)
_definition = msgspec.msgpack.Decoder(Definition)
_pack = msgspec.msgpack.Encoder().encode
_encode = msgspec.json.Encoder().encode


async def put(gateway: Gateway, request: Request) -> Response:
    name = check_router_name(request.name)
    wanted, create_dest = parse_router(await read_body(request, gateway.limits.request_bytes))
    authorise(request.principal, 0, wanted.source, wanted.dest)
    assert gateway.control is not None
    async with gateway.control.held():
        known = await _collect(gateway)
        current = known[name][1] if name in known else None
        if current is not None:
            authorise(request.principal, 0, *current.edge)
        if current != wanted:
            _check(gateway, name, wanted, known)
            await _establish(gateway, name, wanted, known, create_dest=create_dest)
    created = current is None
    fields = {"router": name, "created": created} | shown(name, wanted)
    return Response(_encode(fields)[:-1], 201 if created else 200, {})


async def _collect(gateway: Gateway) -> Known:
    """All routers of the instance. Of a name that two shards have, the newer one counts."""
    known: Known = {}
    for reply in await gateway.shards.ask_all("routers", {}):
        for name, (generation, definition) in _known.decode(reply.body).items():
            if name not in known or known[name][0] < generation:
                known[name] = generation, definition
    return known


def _check(gateway: Gateway, name: str, wanted: Definition, known: Known) -> None:
    check_graph(name, wanted, {router: definition for router, (_, definition) in known.items()})
    if name not in known and 0 < gateway.max_routers <= len(known):
        raise throttled("max_routers", gateway.max_routers, "the server holds as many routers as it may")


async def _establish(gateway: Gateway, name: str, wanted: Definition, known: Known, *, create_dest: bool) -> None:
    if not create_dest and not await _exists(gateway, wanted.dest):
        raise topic_not_found(wanted.dest, "and this router may not create it (create_dest:false)")
    made: list[str] = []
    try:
        for topic in (wanted.dest, wanted.source):
            if (await gateway.shards.call(topic, "put", {"topic": topic}, b"{}")).head["created"]:
                made.append(topic)
        if name in known and known[name][1].source != wanted.source:
            await gateway.shards.call(known[name][1].source, "router.drop", {"name": name})
        newest = max((generation for generation, _ in known.values()), default=0)
        head = {"name": name, "generation": max(time.time_ns() // 1000, newest + 1)}
        await gateway.shards.call(wanted.source, "router.put", head, _pack(wanted))
    except TopicsError:
        for topic in made:
            await _take_back(gateway, topic)
        raise


async def _exists(gateway: Gateway, topic: str) -> bool:
    try:
        await gateway.shards.call(topic, "state", {"topic": topic, "touch": False})
    except TopicsError as error:
        if error.code != errors.TOPIC_NOT_FOUND:
            raise
        return False
    return True


async def _take_back(gateway: Gateway, topic: str) -> None:
    """A topic that was made for a router that did not come about, unless somebody uses it by now."""
    try:
        await gateway.shards.call(topic, "remove", {"topic": topic, "if_empty": True})
    except TopicsError as error:
        if error.code not in (errors.TOPIC_NOT_EMPTY, errors.NOT_READY, errors.SHUTTING_DOWN):
            raise


async def state(gateway: Gateway, request: Request) -> Response:
    name = check_router_name(request.name)
    reply = await _find(gateway, name)
    definition = _definition.decode(reply.body)
    authorise(request.principal, 0, *definition.edge)
    fields = shown(name, definition) | {"forwarded_total": reply.head["forwarded_total"]}
    if reply.head["blocked"] is not None:
        fields["blocked"] = reply.head["blocked"]
    return Response(_encode(fields)[:-1], 200, {})


async def _find(gateway: Gateway, name: str) -> Reply:
    """The answer of the shard that has it; `not_ready` if that may be one that does not answer."""
    failed: TopicsError | None = None
    for answer in (await gateway.shards.call_all("router.state", {"name": name})).values():
        if isinstance(answer, TopicsError):
            failed = answer
        elif answer.head["found"]:
            return answer
    raise failed or TopicsError(errors.ROUTER_NOT_FOUND, f'router "{name}" does not exist', {"router": name})


async def list_routers(gateway: Gateway, request: Request) -> Response:
    args = request.args
    size = page_size_of(args.get("page_size"))
    head: dict[str, Any] = {
        "prefix": args.get("prefix", ""),
        "after": decode_cursor(args["cursor"]) if "cursor" in args else "",
        "limit": size,
        "prefixes": request.principal.prefixes,
        "source": args.get("source"),
        "dest": args.get("dest"),
    }
    return merge_pages("routers", await gateway.shards.ask_all("router.page", head), size)


async def remove(gateway: Gateway, request: Request) -> Response:
    name = check_router_name(request.name)
    assert gateway.control is not None
    async with gateway.control.held():
        if request.principal.prefixes and name in (known := await _collect(gateway)):
            authorise(request.principal, 0, *known[name][1].edge)
        answers = (await gateway.shards.call_all("router.drop", {"name": name})).values()
    replies = [answer for answer in answers if isinstance(answer, Reply)]
    deleted = any(reply.head["dropped"] for reply in replies)
    if not deleted:
        for answer in answers:
            if isinstance(answer, TopicsError):
                raise answer
    return Response(_encode({"router": name, "deleted": deleted})[:-1], 200, {})


ROUTES = (
    Route("PUT", "/v0/routers/:router", put, "router.put"),
    Route("GET", "/v0/routers/:router", state, "router.state"),
    Route("DELETE", "/v0/routers/:router", remove, "router.remove"),
    Route("GET", "/v0/routers", list_routers, "router.list"),
)
