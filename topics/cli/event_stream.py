"""Server-sent events, as far as our streams use them: bytes in, events out."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple


class Event(NamedTuple):
    kind: str
    data: bytes
    id: str | None


def parse(chunks: Iterable[bytes]) -> Iterator[Event]:
    """Complete events only: one that the end of the stream cut off was not sent. Comments (heartbeats) are skipped."""
    kind, id = "", None
    data: list[bytes] = []
    for text in _lines(chunks):
        if not text:
            if data:
                yield Event(kind or "message", b"\n".join(data), id)
            kind, data, id = "", [], None
            continue
        name, _, value = text.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"event":
            kind = value.decode()
        elif name == b"data":
            data.append(value)
        elif name == b"id":
            id = value.decode()


def _lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Our streams end lines with LF or CRLF. What the last chunk leaves open is not a line yet."""
    rest: list[bytes] = []
    for chunk in chunks:
        first, *more = chunk.split(b"\n")
        rest.append(first)
        for text in more:
            yield b"".join(rest).removesuffix(b"\r")
            rest = [text]
