"""Response heads of HTTP/1.1, as bytes."""

import time
from email.utils import formatdate
from http import HTTPStatus

from topics.gateway.messages import Response

STATUS_LINES = {status.value: b"HTTP/1.1 %d %b\r\n" % (status, status.phrase.encode()) for status in HTTPStatus}
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
CLOSE = b"connection: close\r\n"
KEEP_ALIVE = b"connection: keep-alive\r\n"  # only HTTP/1.0 has to be told


class _Date:
    second = 0
    line = b""


def date_line() -> bytes:
    """`date: …`, rendered once a second."""
    now = int(time.time())
    if now != _Date.second:
        _Date.second = now
        _Date.line = b"date: %b\r\n" % formatdate(now, usegmt=True).encode()
    return _Date.line


def status_line(status: int) -> bytes:
    return STATUS_LINES.get(status) or b"HTTP/1.1 %d Status\r\n" % status


def response_head(response: Response, connection: bytes) -> bytes:
    """The head of a whole answer. `connection` is CLOSE, KEEP_ALIVE or nothing."""
    extra = b""
    if response.headers:
        extra = b"".join([b"%b: %b\r\n" % header for header in response.headers])
    return b"%bcontent-type: %b\r\ncontent-length: %d\r\nx-request-id: %b\r\n%b%b%b\r\n" % (
        status_line(response.status),
        response.content_type,
        len(response.body) + len(response.tail),
        response.request_id,
        extra,
        date_line(),
        connection,
    )


def stream_head(response: Response, *, chunked: bool) -> bytes:
    """The head of an answer that goes on. HTTP/1.0 has no chunks: its end is that of the connection."""
    lines = [status_line(response.status), b"content-type: %b\r\n" % response.content_type]
    lines.append(b"x-request-id: %b\r\n" % response.request_id)
    lines += [b"%b: %b\r\n" % header for header in response.headers]
    lines += [b"transfer-encoding: chunked\r\n", KEEP_ALIVE] if chunked else [CLOSE]
    return b"".join([*lines, date_line(), b"\r\n"])
