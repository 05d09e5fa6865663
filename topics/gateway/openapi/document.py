"""The OpenAPI document, put together from the route table, the operations, the types and the rules."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

import topics
from topics import errors
from topics.core.names import ROUTER_PATTERN, TOPIC_PATTERN
from topics.gateway.openapi import bodies, replies
from topics.gateway.openapi.operation import Operation, Parameter
from topics.gateway.openapi.operations import OPERATIONS, WEBSOCKET
from topics.gateway.openapi.rules import CONDITIONS, Rule, rules
from topics.gateway.routing import Route
from topics.gateway.statuses import RETRY, STATUS
from topics.gateway.watch_routes import WID_PATTERN
from topics.keys import scope_names
from topics.limits import Limits

REF = "#/components/schemas/"
JSON = "application/json"
ABOUT = """\
A persistent event engine. Times are milliseconds; seqs are whole numbers below 2^64. Every answer outside 2xx is the
error envelope; branch on `error.code`. More fields may come to any answer: ignore what you do not know.

GET routes also answer HEAD. A wrong path is 404, a wrong method 405 with `Allow`. What is no proper HTTP is refused
with the same envelope before a route is looked for (400, 414, 417, 431, 501, 505). Bodies may be gzipped, and
answers are if that is asked for. Null in an optional field of a body (but for a topic's config) and an empty parameter
are the same as none; only an empty `if_empty` is refused."""
STARTS = ("DiffBody", "Start", "Subscribe")  # they begin at a seq or at a time
ONE_START = {
    "required": ["from_seq", "from_ts"],
    "properties": {"from_seq": {"type": "integer"}, "from_ts": {"type": "integer"}},
}
NUMERIC = ("minimum", "maximum")
PATHS = {
    "topic": f"^{TOPIC_PATTERN}$",
    "group": f"^{TOPIC_PATTERN}$",
    "router": f"^{ROUTER_PATTERN}$",
    "wid": f"^{WID_PATTERN}$",
}
EXAMPLE_GROUP = "billing"
# Statuses of the HTTP layer, for which no code of its own stands.
REFUSALS = {408: "The body did not come in time.", 414: "The URL is too long.", 431: "The headers are too large."}
UPGRADE = 426
MEANINGS = {
    400: "The request is wrong; sending it again will not help.",
    401: "There is no valid API key in it.",
    403: "The key lacks a scope, or may not touch this name.",
    404: "There is no such thing.",
    406: "This is an event stream: accept it.",
    409: "It is at odds with what is there.",
    413: "The body is too large.",
    415: "The body is not JSON, or packed in an unknown way.",
    422: "The topic is full, and refuses writes.",
    429: "Too much at once, or a cap is reached; `Retry-After` says when to try again.",
    500: "A defect of the server; its log says more.",
    503: "Not ready, or shutting down; `Retry-After` says when to try again.",
    507: "The disk is full: no writes for now, reads go on.",
    UPGRADE: "This is no WebSocket handshake.",
} | REFUSALS


def document(routes: Iterable[Route], bounds: Limits) -> dict[str, Any]:
    paths: dict[str, Any] = {}
    used = []
    for route in routes:
        operation = OPERATIONS[route.needs]
        used.append(operation)
        paths.setdefault(path_of(route), {})[route.method.lower()] = _operation(route, operation)
    return {
        "openapi": "3.1.0",
        "info": {"title": "topics", "version": topics.__version__, "description": ABOUT},
        "tags": [{"name": name} for name in dict.fromkeys(operation.group for operation in used)],
        "paths": paths,
        "x-websocket": {"path": "/v0/ws", "commands": _commands()},
        "components": {
            "schemas": _schemas(used, bounds),
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer", "description": "An API key, if the server has any."}
            },
        },
    }


def path_of(route: Route) -> str:
    """`/v0/topics/:topic` as OpenAPI writes it."""
    return "/".join(f"{{{part[1:]}}}" if part.startswith(":") else part for part in route.template.split("/"))


def _operation(route: Route, operation: Operation) -> dict[str, Any]:
    alias = "" if route.template.startswith("/v0/") else "_alias"
    fields: dict[str, Any] = {
        "operationId": route.needs.replace(".", "_") + alias,
        "tags": [operation.group],
        "summary": operation.summary,
    }
    if operation.description:
        fields["description"] = operation.description
    parameters = [*_path_parameters(route, operation), *(_parameter(one) for one in operation.parameters)]
    if parameters:
        fields["parameters"] = parameters
    if operation.body is not None:
        examples = {name: {"value": value} for name, value in operation.examples.items()}
        content = {JSON: {"schema": _ref(operation.body), "examples": examples}}
        fields["requestBody"] = {"required": operation.body_required, "content": content}
    fields["responses"] = _answers(operation) | _refusals(route, operation)
    fields["security"] = [{"key": []}] if route.access.needs_key else []
    fields["x-scopes"] = scope_names(route.access.scopes)
    return fields


def _path_parameters(route: Route, operation: Operation) -> Iterable[dict[str, Any]]:
    for part in route.template.split("/"):
        if part.startswith(":"):
            schema = {"type": "string", "pattern": PATHS[part[1:]]}
            example = EXAMPLE_GROUP if part == ":group" else operation.path
            yield {"name": part[1:], "in": "path", "required": True, "schema": schema, "example": example}


def _parameter(one: Parameter) -> dict[str, Any]:
    fields: dict[str, Any] = {"name": one.name, "in": one.place, "description": one.description, "schema": one.schema}
    if one.required:
        fields["required"] = True
    if one.example is not None:
        fields["example"] = one.example
    return fields


def _answers(operation: Operation) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for status, struct in operation.answers.items():
        shown: dict[str, Any] = {**operation.shown}
        shown["performance"] = {"server_total_ms": 0.41} | shown.get("performance", {})
        if "created" in shown:
            shown["created"] = status == 201
        text = "It was created." if status == 201 else "Done."
        found[str(status)] = {"description": text, "content": {JSON: {"schema": _ref(struct), "example": shown}}}
    if operation.media:
        found["200"] = {"description": "Done.", "content": dict(operation.media)}
    return found or {"101": {"description": "The WebSocket is open."}}


def _refusals(route: Route, operation: Operation) -> dict[str, Any]:
    """By status; an example for each code."""
    codes = {errors.INVALID_REQUEST, errors.UNAUTHORIZED, errors.THROTTLED, errors.INTERNAL, *operation.errors}
    if route.access.needs_key:
        codes.add(errors.FORBIDDEN)
    if not route.probe or route.needs == "ready":
        codes |= {errors.NOT_READY, errors.SHUTTING_DOWN}
    if operation.body is not None:
        codes |= {errors.PAYLOAD_TOO_LARGE, errors.UNSUPPORTED_MEDIA_TYPE}
    by_status: dict[int, list[str]] = {}
    for code in sorted(codes):
        by_status.setdefault(STATUS[code], []).append(code)
    for status in REFUSALS:
        if status != 408 or operation.body is not None:
            by_status[status] = [errors.INVALID_REQUEST]
    if route.needs == "ws.open":
        by_status[UPGRADE] = [errors.INVALID_REQUEST]
    return {str(status): _refusal(status, by_status[status]) for status in sorted(by_status)}


def _refusal(status: int, codes: list[str]) -> dict[str, Any]:
    examples = {code: {"value": {"error": {"code": code, "message": MEANINGS[status]}}} for code in codes}
    content = {JSON: {"schema": _ref(replies.Error), "examples": examples}}
    answer: dict[str, Any] = {"description": MEANINGS[status], "content": content}
    if RETRY & set(codes):
        seconds = {"schema": {"type": "integer", "minimum": 1}, "description": "Seconds.", "required": True}
        answer["headers"] = {"Retry-After": seconds}
    return answer


def _commands() -> dict[str, Any]:
    return {
        op: {"example": example} | ({"schema": _ref(struct)} if struct is not None else {})
        for op, (struct, example) in WEBSOCKET.items()
    }


# --- schemas ----------------------------------------------------------------------------------------------------------


def _ref(struct: type[msgspec.Struct]) -> dict[str, Any]:
    return {"$ref": REF + struct.__name__}


def _schemas(used: Iterable[Operation], bounds: Limits) -> dict[str, Any]:
    structs: dict[type[msgspec.Struct], None] = {replies.Error: None}
    for operation in used:
        if operation.body is not None:
            structs[operation.body] = None
        structs |= dict.fromkeys(operation.answers.values())
    structs |= {struct: None for struct, _ in WEBSOCKET.values() if struct is not None}
    _, schemas = msgspec.json.schema_components(structs, ref_template=REF + "{name}")
    known = rules(bounds)
    for name, schema in schemas.items():
        request = hasattr(bodies, name)
        for field, shape in schema.get("properties", {}).items():
            _apply(shape, known.get(f"{name}.{field}") or known.get(field), request=request)
    schemas[bodies.DeleteBody.__name__]["anyOf"] = [
        {"required": ["before_seq"], "properties": {"before_seq": {"type": "integer"}}},
        {"required": ["match"], "properties": {"match": {"type": ["string", "array"]}}},
    ]
    for name in STARTS:
        schemas[name]["not"] = ONE_START
    for name, conditions in CONDITIONS.items():
        schemas[name]["allOf"] = [dict(condition) for condition in conditions]
    return dict(sorted(schemas.items()))


def _apply(shape: dict[str, Any], rule: Rule | None, *, request: bool) -> None:
    """Put a rule into a field's schema. Answers get the words alone, and what bounds a number."""
    if rule is None:
        return
    words, keywords = rule
    shape["description"] = words
    if not request:
        keywords = {key: value for key, value in keywords.items() if key == "minimum"}
    if "anyOf" in keywords:
        shape["anyOf"] = [*keywords["anyOf"]]
        return
    kinds = [kind for kind in shape.get("anyOf", [shape]) if kind.get("type") != "null"]
    if keywords:
        _bound(kinds, keywords)


def _bound(kinds: list[Any], keywords: Mapping[str, Any]) -> None:
    """What bounds a number is put where one may stand."""
    for kind in kinds:
        is_number = kind.get("type") in ("integer", "number")
        kind.update({key: value for key, value in keywords.items() if is_number or key not in NUMERIC})
