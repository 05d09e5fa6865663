"""Bodies on their way in and out: content type, size, gzip. Payloads are never looked at here."""

import zlib
from collections.abc import Iterator, Sequence

import trio

from topics import errors, limits
from topics.aside import run_aside
from topics.errors import TopicsError, invalid
from topics.gateway.messages import Parts, Request, Response, add_part

GZIP_MAGIC = b"\x1f\x8b"
GZIP_WINDOW = 16 + zlib.MAX_WBITS
GZIP_LEVEL = 1  # clients ask for gzip on slow links; the server's time is worth more than the last per cent
COMPRESSIBLE = (b"application/json", b"text/plain", b"text/html")
UTF8 = ("utf-8", "utf8")
_inflating = trio.CapacityLimiter(limits.INFLATE_THREADS)


async def read_body(request: Request, limit: int) -> bytes:
    """The body, inflated."""
    body = await read_parts(request, limit)
    return body if isinstance(body, bytes) else b"".join(body)


async def read_parts(request: Request, limit: int) -> Parts:
    """The body, inflated; a large one as it came, in parts. Whatever can be refused by the head alone is refused before
    a byte is read."""
    headers = request.headers
    length = headers.get(b"content-length")
    if length is not None:
        request.reserve(check_length(length, limit))
        if length != b"0":
            check_type(headers.get(b"content-type"))
    encoding = headers.get(b"content-encoding")
    gzipped = encoding is not None and is_gzip(encoding)
    body = await request.source.read(limit)
    if isinstance(body, bytes) and len(body) > limit:  # Quart collects up to the largest body there is
        raise too_large(limit)
    if length is None and body:
        check_type(headers.get(b"content-type"))
    if gzipped and body:
        inflated = await inflate(body, limit)
        request.reserve(len(inflated) if isinstance(inflated, bytes) else sum(map(len, inflated)))
        return inflated
    return body


def check_length(length: bytes, limit: int) -> int:
    if not length.isdigit():
        raise invalid("Content-Length is not a number")
    if len(length) > 18 or int(length) > limit:
        raise too_large(limit)
    return int(length)


def too_large(limit: int) -> TopicsError:
    return TopicsError(errors.PAYLOAD_TOO_LARGE, f"the body is too large; the limit is {limit} bytes", {"max": limit})


def check_type(content_type: bytes | None) -> None:
    if content_type in (b"application/json", b"application/json; charset=utf-8"):
        return
    kind, _, parameters = (content_type or b"").decode("latin-1").partition(";")
    if kind.strip().lower() != "application/json":
        raise _unsupported("send the body as Content-Type: application/json")
    for parameter in parameters.split(";"):
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "charset" and value.strip().strip('"').lower() not in UTF8:
            raise _unsupported("JSON bodies are UTF-8; no other charset is supported")


def is_gzip(encoding: bytes) -> bool:
    name = encoding.strip().lower()
    if name in (b"gzip", b"x-gzip"):
        return True
    if name in (b"identity", b""):
        return False
    raise _unsupported("of Content-Encoding only gzip is supported")


def _unsupported(message: str) -> TopicsError:
    return TopicsError(errors.UNSUPPORTED_MEDIA_TYPE, message)


async def inflate(body: Parts, limit: int) -> Parts:
    """At most `limit` bytes are ever inflated, so a bomb costs no more than an honest body."""
    if isinstance(body, bytes) and len(body) <= limits.GZIP_THREAD_BYTES // 8:
        # Even so little may inflate to a thousand times as much: the loop only gives it a small chance.
        whole = _inflate([body], limit, stop_at=limits.GZIP_THREAD_BYTES * 4)
        if whole is not None:
            return whole
    parts = [body] if isinstance(body, bytes) else body
    whole = await run_aside(_inflate, parts, limit, limiter=_inflating)
    assert whole is not None
    return whole


def _inflate(packed: Sequence[bytes | bytearray], limit: int, stop_at: int | None = None) -> Parts | None:
    """All members of a gzip file; None if that would be more than `stop_at` bytes."""
    most = limit if stop_at is None else min(limit, stop_at)
    parts: list[bytes | bytearray] = []
    have = 0
    for part in _inflated(packed, most):
        add_part(parts, part)
        have += len(part)
        if have > most:
            if most < limit:
                return None
            raise too_large(limit)
    return b"".join(parts) if have <= limits.BODY_JOIN_BYTES else parts


def _inflated(packed: Sequence[bytes | bytearray], most: int) -> Iterator[bytes]:
    """What comes out, in parts: the interpreter is held while a long one is put together. A byte more than asked for at
    most."""
    member, start = None, b""
    broken = "the body is not valid gzip"
    for given in packed:
        data = bytes(given)
        more = False  # to come out, although nothing is left to go in
        while data or more:
            if member is None:
                member, start = zlib.decompressobj(GZIP_WINDOW), b""
            start += data[: len(GZIP_MAGIC) - len(start)]
            room = min(most + 1, limits.INFLATE_PART_BYTES)
            try:
                part = member.decompress(data, room)
            except zlib.error:
                raise invalid(broken) from None
            most -= len(part)
            yield part
            more = len(part) == room and not member.eof
            data = member.unconsumed_tail
            if member.eof:
                data, member = member.unused_data, None
                broken = "something that is not gzip follows the gzip body"
    if member is not None:
        raise invalid("the gzip body ends too early" if GZIP_MAGIC.startswith(start) else broken)


async def compress(request: Request, response: Response) -> None:
    """Gzip an answer in place, if the client takes it and it is worth it. Cancelled, nothing has changed."""
    if not is_worth_packing(request, response):
        return
    if len(response.body) + len(response.tail) <= limits.GZIP_THREAD_BYTES:
        packed = _gzip(response.body, response.tail)
    else:
        packed = await run_aside(_gzip, response.body, response.tail)
    response.body, response.tail = packed, b""
    response.headers = (*response.headers, (b"content-encoding", b"gzip"), (b"vary", b"accept-encoding"))


def is_worth_packing(request: Request, response: Response) -> bool:
    size = len(response.body) + len(response.tail)
    if size < limits.GZIP_MIN_BYTES or not response.content_type.startswith(COMPRESSIBLE):
        return False
    return accepts_gzip(request.headers.get(b"accept-encoding", b""))


def accepts_gzip(accept: bytes) -> bool:
    """Does Accept-Encoding name gzip (or `*`), with a weight above zero?"""
    wanted = False
    for choice in accept.lower().split(b","):
        name, _, weight = choice.partition(b";")
        name = name.strip()
        refused = weight.replace(b" ", b"").removeprefix(b"q=").strip(b"0.") == b"" and b"q=" in weight
        if name in (b"gzip", b"x-gzip"):
            return not refused
        if name == b"*":
            wanted = not refused
    return wanted


def _gzip(*pieces: bytes) -> bytes:
    packer = zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, GZIP_WINDOW)
    return b"".join([*(packer.compress(piece) for piece in pieces), packer.flush()])
