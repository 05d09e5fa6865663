"""An event stream as its client sees it: raw bytes off the socket, parsed by the rules of the HTML standard."""

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

WAIT_S = 60.0


class Event(NamedTuple):
    name: str  # "message" if it has none; ":" for a comment, "retry" for that field
    data: Any
    id: Any


class EventStream:
    """One connection. `wait` is bounded only so that a test fails instead of hanging."""

    def __init__(
        self, address: tuple[str, int], path: str, headers: dict[str, str] | None = None, receive_buffer: int = 0
    ) -> None:
        self._sock = socket.socket()
        if receive_buffer:  # the kernel's, for a client that is to be slow
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self._sock.settimeout(WAIT_S)
        self._sock.connect(address)
        lines = {"host": "test", "accept": "text/event-stream"} | (headers or {})
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        self._sock.sendall(f"GET {path} HTTP/1.1\r\n{head}\r\n".encode())
        self._raw = b""
        self._text = b""
        self.ended = False
        self.last_id = ""
        self.status, self.headers = self._read_head()
        self.seen: list[Event] = []
        self._events = self._parse() if self.status == 200 else iter(())

    def next(self, *names: str) -> Event:
        """The next event with one of these names, or any; others are kept in `seen`."""
        for event in self._events:
            self.seen.append(event)
            if not names or event.name in names:
                return event
        raise AssertionError(f"the stream ended before {names}; seen: {self.seen[-5:]}")

    def __iter__(self) -> Iterator[Event]:
        """Until the stream ends, however it does."""
        with suppress(OSError):
            yield from self._events

    def until(self, found: Callable[[Event], bool]) -> list[Event]:
        """Events up to and with the first for which it holds."""
        events = []
        while True:
            events.append(self.next())
            if found(events[-1]):
                return events

    def records(self, count: int) -> list[dict[str, Any]]:
        """The next `count` records at least."""
        records: list[dict[str, Any]] = []
        while len(records) < count:
            records += self.next("record").data["records"]
        return records

    def body(self) -> Any:
        """Of an answer that is no stream."""
        length = int(self.headers["content-length"])
        while len(self._raw) < length:
            self._raw += self._receive()
        return json.loads(self._raw[:length])

    def rest(self) -> list[Event]:
        """Everything until the end."""
        return list(self._events)

    def close(self) -> None:
        self._sock.close()

    def _receive(self) -> bytes:
        data = self._sock.recv(65536)
        if not data:
            raise EOFError
        return data

    def _read_head(self) -> tuple[int, dict[str, str]]:
        while b"\r\n\r\n" not in self._raw:
            self._raw += self._receive()
        head, _, self._raw = self._raw.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        return int(first.split()[1]), {name.lower(): value for name, _, value in (x.partition(": ") for x in lines)}

    def _chunks(self) -> Iterator[bytes]:
        while True:
            while b"\r\n" not in self._raw:
                self._raw += self._receive()
            size, _, self._raw = self._raw.partition(b"\r\n")
            length = int(size, 16)
            while len(self._raw) < length + 2:
                self._raw += self._receive()
            data, self._raw = self._raw[:length], self._raw[length + 2 :]
            if not length:
                self.ended = True
                return
            yield data

    def _parse(self) -> Iterator[Event]:
        try:
            for chunk in self._chunks():
                self._text += chunk
                while b"\n\n" in self._text:
                    block, _, self._text = self._text.partition(b"\n\n")
                    yield self._event(block.decode())
        except EOFError:
            return

    def _event(self, block: str) -> Event:
        name, data, event_id = "message", [], None
        for line in block.split("\n"):
            if line.startswith(":"):
                return Event(":", line[1:].strip(), None)
            field, _, value = line.partition(": ")
            if field == "retry":
                return Event("retry", int(value), None)
            if field == "event":
                name = value
            elif field == "data":
                data.append(value)
            elif field == "id":
                event_id = self.last_id = value
            else:
                raise AssertionError(f"not a field of an event: {line!r}")
        return Event(name, json.loads("\n".join(data)), event_id)


@contextmanager
def watching(
    http: Any, topics: dict[str, Any], *, headers: dict[str, str] | None = None, **options: Any
) -> Iterator[EventStream]:
    """Create a session and open its stream."""
    answer = http.post("/v0/watch", json={"topics": topics, **options}, headers=headers)
    assert answer.status_code == 200, answer.text
    stream = open_stream(http, answer.json()["wid"], headers=headers)
    try:
        yield stream
    finally:
        stream.close()


def open_stream(
    http: Any, wid: str, *, headers: dict[str, str] | None = None, query: str = "", receive_buffer: int = 0
) -> EventStream:
    url = http.base_url
    return EventStream((url.host, url.port), f"/v0/watch/{wid}{query}", headers, receive_buffer)


def eventually(found: Callable[[], Any], seconds: float = WAIT_S) -> Any:
    until = time.monotonic() + seconds
    while not (value := found()):
        assert time.monotonic() < until
        time.sleep(0.01)
    return value
