"""The route table: which handler answers which method and path. One table for every transport.

A route is `Route("POST", "/v0/topics/:topic/diff", handler, "topic.diff", hot=True)`. Its fourth field names a line of
`ROUTE_SCOPES` (topics/keys.py): what it asks of a key. A hot route is answered inside the connection task; all routes,
hot ones too, also exist in the Quart app, which HTTP/2 uses.
"""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes

from topics import errors, limits
from topics.errors import TopicsError, invalid
from topics.gateway.messages import Request, Response
from topics.keys import ROUTE_SCOPES, Access

if TYPE_CHECKING:
    from topics.gateway.dispatch import Gateway
    from topics.gateway.questions import Ask

Handle = Callable[["Gateway", Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Route:
    method: str
    template: str
    handle: Handle
    needs: str
    hot: bool = False
    probe: bool = False  # also answered while the server drains
    stream: bool = False  # stays open: its handler takes a place among the streams, not among its key's requests
    ask: "Ask | None" = None  # what it asks one shard, if that is all it does
    access: Access = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "access", ROUTE_SCOPES[self.needs])


Names = tuple[bytes, ...]  # the names in a path, decoded, in their order
Found = tuple[Route | None, Names, dict[str, Route]]


class Routes:
    """Paths as a tree of segments; `None` is the segment of a name."""

    def __init__(self, table: Iterable[Route]) -> None:
        self.table = tuple(table)
        self._root: dict[bytes | None, Any] = {}
        self._known: dict[tuple[str, bytes], Found] = {}  # paths that were looked up before
        for route in self.table:
            node = self._root
            for segment in route.template.encode().split(b"/")[1:]:
                node = node.setdefault(None if segment.startswith(b":") else segment, {})
            node.setdefault(b"/", {})[route.method] = route  # a real segment holds no slash

    def find(self, method: str, path: bytes) -> Found:
        """The route if there is one, the names in the path, and what the path takes by method."""
        found = self._known.get((method, path))
        if found is None:
            found = self._find(method, path)
            if found[0] is not None:
                if len(self._known) >= limits.HTTP_KNOWN_PATHS:
                    self._known.clear()
                self._known[method, path] = found
        return found

    def _find(self, method: str, path: bytes) -> Found:
        node = self._root
        names: list[bytes] = []
        for segment in path.split(b"/")[1:]:
            if b"%" in segment:
                segment = unquote_to_bytes(segment)
            child = node.get(segment) if segment != b"/" else None
            if child is None:
                child = node.get(None)
                if child is None or not segment:
                    return None, (), {}
                names.append(segment)
            node = child
        methods = node.get(b"/", {})
        return methods.get("GET" if method == "HEAD" else method), tuple(names), methods

    def match(self, request: Request) -> tuple[Route, Names]:
        """The route of a request and the names in its path. Raises `not_found`, `method_not_allowed`."""
        route, names, methods = self.find(request.method, request.path)
        if route is None:
            raise _no_route(request.method, methods)
        return route, names


def decode_name(name: bytes, field: str = "topic") -> str:
    try:
        return name.decode()
    except UnicodeDecodeError:
        raise invalid("the name in the path is not UTF-8", field=field) from None


def _no_route(method: str, methods: dict[str, Route]) -> TopicsError:
    if not methods:
        return TopicsError(errors.NOT_FOUND, "there is nothing at this path")
    allow = sorted({*methods, "HEAD"} if "GET" in methods else methods)
    return TopicsError(
        errors.METHOD_NOT_ALLOWED, f"this path takes {', '.join(allow)}, not {method[:32]}", {"allow": allow}
    )
