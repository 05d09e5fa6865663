"""What a handler sees and returns, whatever carried it: the hot path, Quart over the bridge, or HTTP/2.

A handler is `async def handle(gateway, request) -> Response`. It raises TopicsError to refuse.
"""

import os
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cached_property
from itertools import count
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from urllib.parse import parse_qsl

from topics import limits
from topics.errors import INVALID_REQUEST, TopicsError, invalid
from topics.keys import Principal

if TYPE_CHECKING:
    from topics.gateway.visitor import Visitor

T = TypeVar("T")
Parts = bytes | list[bytes | bytearray]  # of a body; to put the parts of a large one together takes a while
JSON = b"application/json"
WEBSOCKET_VERSION = b"13"


def add_part(parts: list[bytes | bytearray], data: bytes) -> None:
    """More of a body. Very many small parts would cost more than their bytes: they are gathered."""
    if not parts or len(data) > limits.BODY_PART_BYTES // 2:
        parts.append(data)
        return
    last = parts[-1]
    if type(last) is bytearray and len(last) < limits.BODY_PART_BYTES:
        last += data
    else:
        parts.append(bytearray(data))


class ClientGone(Exception):
    """The client closed its connection; there is nobody to answer."""


class Refusal(TopicsError):
    """A refusal of the HTTP layer itself, for statuses that no code of the taxonomy stands for (408, 414, 431 …)."""

    def __init__(self, status: int, message: str, code: str = INVALID_REQUEST) -> None:
        super().__init__(code, message)
        self.status = status


class Source(Protocol):
    """Where a request's body comes from."""

    async def read(self, limit: int) -> Parts:
        """The whole body, a large one in parts. Raises Refusal 413 as soon as it is longer than `limit`, 408 if the
        client stalls."""

    async def while_connected(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run `work`, cancelled as soon as the client is gone (ClientGone, or the cancellation of this task)."""


def header_map(pairs: Sequence[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Of a repeated header the last one; but several Authorization headers, of whatever content, hold no key."""
    headers = dict(pairs)
    if len(headers) != len(pairs) and sum(name == b"authorization" for name, _ in pairs) > 1:
        headers[b"authorization"] = b""
    return headers


# An id that a client chose is used if it can stand in a header, a log line and a shell. Ours: this process, a count.
SANE_ID = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._:@/+=-]{0,127}")
_ids = count(1)
_id_format = b""


def _name_process() -> None:
    global _id_format
    _id_format = os.urandom(6).hex().encode() + b"-%x"


_name_process()
os.register_at_fork(after_in_child=_name_process)  # gateways are forks of a process that has imported this


def new_id() -> bytes:
    return _id_format % next(_ids)


class Request:
    """One request. `path` is raw: percent-decoding happens once, in the routes.

    `principal`, `name` (the topic of the path) and `group` are set at the door, see access.py; only handlers read them.
    """

    principal: Principal

    def __init__(
        self,
        method: str,
        path: bytes,
        query: bytes,
        headers: Mapping[bytes, bytes],
        source: Source,
        started_ns: int | None = None,
        visitor: "Visitor | None" = None,
    ) -> None:
        self.method = method
        self.path = path
        self.query = query
        self.headers = headers  # names in lower case, see `header_map`
        self.source = source
        self.started_ns = perf_counter_ns() if started_ns is None else started_ns
        self.visitor = visitor
        self.name = ""
        self.group = ""
        self._id: bytes | None = None

    @property
    def id(self) -> bytes:
        """What logs and the answer call this request (X-Request-Id). Made when it is first asked for."""
        if self._id is None:
            given = self.headers.get(b"x-request-id")
            self._id = given if given is not None and SANE_ID.fullmatch(given) else new_id()
        return self._id

    def reserve(self, body_bytes: int) -> None:
        """Memory for the body, until the request is over. Raises `throttled`."""
        if self.visitor is not None:
            self.visitor.reserve(body_bytes)

    @cached_property
    def args(self) -> dict[str, str]:
        """The query's parameters; of a repeated one the last. One without a value is absent."""
        try:
            given = dict(parse_qsl(self.query.decode("ascii"), keep_blank_values=True, errors="strict"))
        except ValueError:
            raise invalid("the query string is not valid percent-encoded UTF-8") from None
        return {name: value for name, value in given.items() if value or name in _NEEDS_VALUE}

    def flag(self, name: str, default: bool) -> bool:
        if not self.query:
            return default
        text = self.args.get(name)
        if text is None:
            return default
        if text not in _FLAGS:
            raise invalid(f"{name} must be true or false", field=name)
        return _FLAGS[text]


_NEEDS_VALUE = ("if_empty",)  # to pass it over would remove what it was to guard
_FLAGS = {"true": True, "1": True, "false": False, "0": False}


class Sink(Protocol):
    """Where a stream's frames go. Never blocks; what the client does not take at once is kept: it is `stalled` then."""

    stalled: bool

    @property
    def taken(self) -> int:
        """Goes up whenever the client takes something."""

    def push(self, buffers: list[bytes]) -> None:
        """One frame, while not stalled (a few small ones may come anyway)."""

    async def flush_some(self) -> None:
        """Until the client has taken something more, while stalled. Raises ClientGone."""


class Body(Protocol):
    """The body of an answer that goes on until somebody ends it."""

    async def run(self, sink: Sink) -> None:
        """Send frames; returns when the stream is over. Cancelled when the client is gone."""

    def close(self) -> None:
        """Give back what it holds, whether it ran or not."""


class Response:
    """An answer. With `perf` the body is an open JSON object: `performance` is added and the object closed."""

    __slots__ = ("body", "content_type", "headers", "perf", "request_id", "status", "stream", "tail")

    def __init__(
        self,
        body: bytes,
        status: int = 200,
        perf: Mapping[str, Any] | None = None,
        content_type: bytes = JSON,
        headers: tuple[tuple[bytes, bytes], ...] = (),
        stream: Body | None = None,
    ) -> None:
        self.status = status
        self.stream = stream  # instead of a body
        self.body = body
        self.request_id = b""
        self.tail = b""  # sent right after the body; spares a copy of it
        self.perf = perf
        self.content_type = content_type
        self.headers = headers
