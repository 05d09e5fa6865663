"""HTTP/1.1 requests out of bytes, however they were cut. No I/O.

llhttp (by httptools) decides what is well-formed, in its strict mode: both Content-Length and Transfer-Encoding,
repeated lengths, bare line feeds, folded headers and the like are errors. Sizes, Host and versions are checked here.
llhttp knows a fixed set of methods; a request with another one is read as a POST would be, and keeps its own name, so
that the routes can say what the path takes instead.

All requests of one `feed` are in `queue`; the last may still lack (part of) its body. `error` is what is wrong with
the bytes after them. After an upgrade request nothing more is parsed: `rest` is what followed it.
"""

import re
from collections import deque
from time import perf_counter_ns

import httptools

from topics import limits
from topics.gateway.messages import WEBSOCKET_VERSION, Refusal, add_part

H2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HANDED_OVER = ("websocket", "h2c")
_METHOD = re.compile(rb"(?:\r\n)*([!#$%%&'*+.^_`|~0-9A-Za-z-]{1,%d})" % limits.HTTP_METHOD_BYTES)
_WEBSOCKET_KEY = re.compile(rb"[A-Za-z0-9+/]{22}==")


class Incoming:
    """One request as it arrives: the head is complete, the body grows."""

    __slots__ = (
        "complete",
        "expects",
        "headers",
        "http11",
        "keep_alive",
        "method",
        "parts",
        "received",
        "refusal",
        "started_ns",
        "target",
        "upgrade",
    )

    def __init__(self) -> None:
        self.method = ""
        self.target = b""
        self.headers: list[tuple[bytes, bytes]] = []  # names in lower case
        self.http11 = True
        self.keep_alive = False
        self.complete = False
        self.parts: list[bytes | bytearray] = []  # of the body, not yet taken
        self.received = 0  # bytes of body in all
        self.expects = False  # the client waits for 100 Continue
        self.upgrade = ""  # "websocket" or "h2c": hand the connection over
        self.refusal: Refusal | None = None  # what is wrong with the head
        self.started_ns = 0

    def peek(self) -> bytes:
        """The body, which stays."""
        body = self.take()
        self.parts = [body] if body else []
        return body

    def take(self) -> bytes:
        parts = self.take_parts()
        return parts[0] if len(parts) == 1 and type(parts[0]) is bytes else b"".join(parts)

    def take_parts(self) -> list[bytes | bytearray]:
        parts, self.parts = self.parts, []
        return parts

    def head_bytes(self, without: bytes = b"") -> bytes:
        """The head again, to be parsed by somebody else."""
        lines = [b"%b %b HTTP/1.1" % (self.method.encode(), self.target)]
        lines += [b"%b: %b" % header for header in self.headers if header[0] != without]
        return b"\r\n".join(lines) + b"\r\n\r\n"


class RequestParser:
    def __init__(self) -> None:
        self.queue: deque[Incoming] = deque()
        self.error: Refusal | None = None
        self.rest: bytes | None = None
        self.in_head = False  # a request has begun whose head is not complete
        self._between = True  # llhttp has been given nothing of the next request
        self._held = b""  # the beginning of a method
        self._odd_method = ""  # that llhttp does not know, of the request in `_now`
        self._head_fed = 0
        self._now = Incoming()
        self._parser = httptools.HttpRequestParser(self)

    def feed(self, data: bytes) -> None:
        between, began_in_head, before = self._between, self.in_head, len(self.queue)
        if between:
            data, self._held = self._held + data, b""
            if len(data) <= limits.HTTP_METHOD_BYTES and _METHOD.fullmatch(data):
                self._held, self.in_head = data, True  # llhttp would refuse it before the method is all there
                return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserInvalidMethodError as error:
            # Behind another request in the same bytes nobody knows where this one begins.
            method = _METHOD.match(data) if between and len(self.queue) == before else None
            if method is not None and data[method.end() : method.end() + 1] == b" ":
                self._restart()
                self._odd_method = method[1].decode()
                self.feed(b"POST" + data[method.end() :])
            else:
                self.error = _not_http(error)
        except httptools.HttpParserError as error:
            self.error = _not_http(error)
        if self.in_head and self.error is None:
            # llhttp keeps an endless header line to itself; count what it was given.
            self._head_fed = self._head_fed + len(data) if began_in_head else 0
            if self._head_fed > limits.HTTP_HEAD_BYTES:
                self.error = _head_too_large()

    def _upgrade(self, rest: bytes) -> None:
        request = self._now
        headers = dict(request.headers)
        wanted = headers.get(b"upgrade", b"").strip().lower().decode("latin-1")
        has_body = any(name in (b"content-length", b"transfer-encoding") for name, _ in request.headers)
        if request.method == "CONNECT":
            request.refusal = Refusal(400, "CONNECT is not supported")
        elif wanted in HANDED_OVER and request.method == "GET" and not has_body and request.http11:
            if wanted == "websocket":
                request.refusal = request.refusal or _check_handshake(headers)
            if request.refusal is None:
                request.upgrade, self.rest = wanted, rest
        elif request.refusal is None:
            # An upgrade that is not offered here is ignored: the same request once more, without it.
            self.queue.pop()
            self._restart()
            self.feed(request.head_bytes(without=b"upgrade") + rest)

    def _restart(self) -> None:
        """What is fed next begins a request."""
        self._parser = httptools.HttpRequestParser(self)
        self._between = True

    # --- called by httptools ----------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._now = Incoming()
        self.in_head = True
        self._between = False

    def on_url(self, url: bytes) -> None:
        self._now.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.in_head:  # else a trailer, which nothing here needs
            self._now.headers.append((name.lower(), value.rstrip(b" \t")))  # llhttp strips only what is in front

    def on_headers_complete(self) -> None:
        request, parser = self._now, self._parser
        request.started_ns = perf_counter_ns()
        request.method = self._odd_method or parser.get_method().decode()
        self._odd_method = ""
        version = parser.get_http_version()
        request.http11 = version == "1.1"
        request.keep_alive = parser.should_keep_alive()
        request.refusal = _check_head(request, version)
        self.in_head = False
        self.queue.append(request)

    def on_body(self, data: bytes) -> None:
        request = self._now
        request.received += len(data)
        add_part(request.parts, data)

    def on_message_complete(self) -> None:
        self._now.complete = True
        self._between = True


def _not_http(error: Exception) -> Refusal:
    return Refusal(400, f"this is not HTTP/1.1 as RFC 9112 defines it: {error}")


def _head_too_large() -> Refusal:
    return Refusal(431, f"the request's head is too large; the limit is {limits.HTTP_HEAD_BYTES} bytes")


def _check_handshake(headers: dict[bytes, bytes]) -> Refusal | None:
    """Hypercorn refuses some of these, with an empty body, and takes any key."""
    if headers.get(b"sec-websocket-version", b"").strip() != WEBSOCKET_VERSION:
        return Refusal(426, f"of WebSocket only version {WEBSOCKET_VERSION.decode()} is supported")
    if not _WEBSOCKET_KEY.fullmatch(headers.get(b"sec-websocket-key", b"").strip()):
        return Refusal(400, "a WebSocket begins with a Sec-WebSocket-Key, which is 16 bytes in Base64")
    return None


def _check_head(request: Incoming, version: str) -> Refusal | None:
    size = len(request.target)
    hosts = 0
    for name, value in request.headers:
        size += len(name) + len(value) + 4
        if name == b"host":
            hosts += 1
        elif name == b"expect":
            if value.lower() != b"100-continue":
                return Refusal(417, "of Expect only 100-continue is supported")
            request.expects = version == "1.1"
        elif name == b"transfer-encoding":
            if version != "1.1":
                return Refusal(400, f"HTTP/{version} has no Transfer-Encoding")
            if value.lower() != b"chunked":
                return Refusal(501, "of Transfer-Encoding only chunked is supported")
    if version not in ("1.1", "1.0"):
        return Refusal(505, "this port speaks HTTP/1.1, HTTP/1.0 and HTTP/2")
    if len(request.target) > limits.HTTP_URL_BYTES:
        return Refusal(414, f"the URL is too long; the limit is {limits.HTTP_URL_BYTES} bytes")
    if size > limits.HTTP_HEAD_BYTES:
        return _head_too_large()
    if len(request.headers) > limits.HTTP_HEADERS_MAX:
        return Refusal(431, f"more than {limits.HTTP_HEADERS_MAX} headers")
    if hosts != 1 and version == "1.1":
        return Refusal(400, "a request of HTTP/1.1 has exactly one Host header")
    return None


def split_target(target: bytes) -> tuple[bytes, bytes]:
    """Path and query of a request target; of an absolute one the authority is dropped."""
    if not target.startswith(b"/"):
        _, scheme, rest = target.partition(b"://")
        if scheme:
            slash = rest.find(b"/")
            target = rest[slash:] if slash >= 0 else b"/" + rest[rest.find(b"?") :] if b"?" in rest else b"/"
    path, _, query = target.partition(b"?")
    return path, query
