"""Routers as data: what a definition says, how a request is read, and which graphs are allowed.

A router forwards every record of `source` that passes `filter` to `dest`. Sources and destinations make up a directed
graph. A router that would close a cycle is refused unless it says `allow_cycle`; then records are forwarded around the
cycle until they have gone over HOPS_MAX routers. A destination has one source: a second router into it is refused if
its source is another one. One with the same source is let in (with another filter, say): every record still has one
place in the order of the destination, so copies can be derived again.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec

from topics import errors
from topics.core.match import TagMatch, parse_match
from topics.core.names import TOPIC_RULE, is_topic_name
from topics.errors import TopicsError, invalid

Guarantee = Literal["at_least_once", "exactly_once"]
GUARANTEES = ("at_least_once", "exactly_once")


class Definition(msgspec.Struct, frozen=True, array_like=True):
    """What a client asked for. This is also how it is stored."""

    source: str
    dest: str
    preserve_node: bool = True
    preserve_tag: bool = True
    filter: TagMatch | None = None
    allow_cycle: bool = False
    guarantee: Guarantee = "at_least_once"

    @property
    def edge(self) -> tuple[str, str]:
        return self.source, self.dest


# --- requests and replies -------------------------------------------------------------------------------------------

_REQUIRED = ("source", "dest")
_FIELDS = (*Definition.__struct_fields__[:4], "create_dest", *Definition.__struct_fields__[4:])


def parse_router(body: bytes) -> tuple[Definition, bool]:
    """The definition in the body of a PUT, and whether `dest` may be created. Raises `invalid_request`."""
    fields = _decode(body)
    for field in fields:
        if field not in _FIELDS:
            shown = str(field)[:64]
            raise invalid(f'unknown field "{shown}"; the fields of a router are {", ".join(_FIELDS)}', field=shown)
    fields = {field: value for field, value in fields.items() if value is not None or field in _REQUIRED}
    source, dest = _topic_name(fields, "source"), _topic_name(fields, "dest")
    if source == dest:
        raise invalid("dest must differ from source", field="dest")
    guarantee = fields.get("guarantee", GUARANTEES[0])
    if guarantee not in GUARANTEES:
        raise invalid(f"guarantee must be one of {', '.join(GUARANTEES)}", field="guarantee")
    definition = Definition(
        source,
        dest,
        _boolean(fields, "preserve_node", True),
        _boolean(fields, "preserve_tag", True),
        _filter(fields.get("filter")),
        _boolean(fields, "allow_cycle", False),
        guarantee,
    )
    return definition, _boolean(fields, "create_dest", True)


def _decode(body: bytes) -> Mapping[str, Any]:
    try:
        fields = msgspec.json.decode(body) if body.strip() else {}
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise invalid(f"the body is not valid JSON: {error}") from None
    if not isinstance(fields, dict):
        raise invalid("the body must be a JSON object")
    return fields


def _topic_name(fields: Mapping[str, Any], field: str) -> str:
    if field not in fields:
        raise invalid(f"{field} is missing: a router names its source and its dest", field=field)
    name = fields[field]
    if not isinstance(name, str) or not is_topic_name(name):
        raise invalid(f"{field} must be the name of a topic, which has {TOPIC_RULE}", field=field)
    return name


def _boolean(fields: Mapping[str, Any], field: str, default: bool) -> bool:
    value = fields.get(field, default)
    if not isinstance(value, bool):
        raise invalid(f"{field} must be true or false", field=field)
    return value


def _filter(value: Any) -> TagMatch | None:
    if value is None:
        return None
    try:
        return parse_match(value)
    except TopicsError as error:
        raise invalid(f"filter: {error.message}", field="filter") from None


def shown_filter(match: TagMatch | None) -> list[str] | None:
    if match is None:
        return None
    return ["tag", match.op, match.value if match.op == "Eq" else match.value + "*"]


def shown(name: str, definition: Definition) -> dict[str, Any]:
    """The members that replies to PUT and GET have in common, in their order."""
    return {
        "router": name,
        "source": definition.source,
        "dest": definition.dest,
        "preserve_node": definition.preserve_node,
        "preserve_tag": definition.preserve_tag,
        "filter": shown_filter(definition.filter),
        "allow_cycle": definition.allow_cycle,
        "guarantee": definition.guarantee,
    }


# --- the graph ------------------------------------------------------------------------------------------------------


def check_graph(name: str, wanted: Definition, known: Mapping[str, Definition]) -> None:
    """May `name` be what is wanted beside all other routers? `known` may hold what it is now.

    Raises `topic_exists_incompatible` for a second source into one destination, `router_cycle`.
    """
    current = known.get(name)
    others = {router: definition for router, definition in known.items() if router != name}
    _check_single_source(wanted, others)
    stays = current is not None and current.edge == wanted.edge and current.allow_cycle <= wanted.allow_cycle
    if wanted.allow_cycle or stays:  # a router that stays where it is introduces nothing
        return
    way = find_way(others.values(), wanted.dest, wanted.source)
    if way is not None:
        cycle = [wanted.source, *way]
        message = f"this router would close the cycle {' -> '.join(cycle)}; allow_cycle permits that"
        raise TopicsError(errors.ROUTER_CYCLE, message, {"cycle": cycle})


def _check_single_source(wanted: Definition, others: Mapping[str, Definition]) -> None:
    for router, other in others.items():
        if other.dest == wanted.dest and other.source != wanted.source:
            raise TopicsError(
                errors.TOPIC_EXISTS_INCOMPATIBLE,
                f'"{wanted.dest}" already gets the records of "{other.source}" (router "{router}"); a destination has '
                "one source",
                {"reason": "router_dest_fan_in", "dest": wanted.dest, "source": other.source, "router": router},
            )


def find_way(definitions: Iterable[Definition], start: str, end: str) -> list[str] | None:
    """The shortest way from one topic to another along routers, both included; None if there is none."""
    onward: dict[str, list[str]] = {}
    for definition in definitions:
        onward.setdefault(definition.source, []).append(definition.dest)
    came_from = {start: start}
    todo = deque([start])
    while todo:
        at = todo.popleft()
        if at == end:
            way = [at]
            while at != start:
                at = came_from[at]
                way.append(at)
            return way[::-1]
        for after in onward.get(at, ()):
            if after not in came_from:
                came_from[after] = at
                todo.append(after)
    return None
