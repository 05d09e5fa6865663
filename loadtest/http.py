"""An HTTP client that costs as little as Python can: one socket, one buffer, no headers but those that matter."""

import socket
from typing import Self

from loadtest.workload import WrongAnswer

Address = tuple[str, int]
BUFFER_BYTES = 1 << 16


def post(path: str, body: bytes, method: str = "POST", key: str = "") -> bytes:
    """A request with a JSON body, and with an API key if there is one."""
    head = f"{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    if key:
        head += f"authorization: Bearer {key}\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


class Connection:
    """One connection with one request under way. The body of an answer is a view, good until the next request."""

    def __init__(self, address: Address) -> None:
        self.sock = socket.create_connection(address)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray(BUFFER_BYTES)
        self._have = 0
        self._body_at = 0
        self._end = 0  # of the answer; 0 while its head is not complete

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def send(self, request: bytes | bytearray) -> None:
        self._have = self._end = 0
        self.sock.sendall(request)

    def receive(self) -> memoryview | None:
        """Read once; the body when the answer is complete. Raises WrongAnswer unless its status is 2xx."""
        if self._have == len(self._buffer):
            self._grow(2 * self._have)
        count = self.sock.recv_into(memoryview(self._buffer)[self._have :])
        if not count:
            raise WrongAnswer("the server closed a connection")
        self._have += count
        if not self._end:
            self._read_head()
        if not self._end or self._have < self._end:
            return None
        return memoryview(self._buffer)[self._body_at : self._end]

    def _read_head(self) -> None:
        end = self._buffer.find(b"\r\n\r\n", 0, self._have)
        if end < 0:
            return
        if self._buffer[9] != 0x32:  # the 2 of 2xx
            raise WrongAnswer(bytes(self._buffer[: self._have]).decode(errors="replace"))
        start = self._buffer.index(b"content-length: ", 0, end) + 16
        self._body_at = end + 4
        self._end = self._body_at + int(self._buffer[start : self._buffer.index(b"\r", start)])
        if self._end > len(self._buffer):
            self._grow(self._end)

    def _grow(self, size: int) -> None:
        bigger = bytearray(size)
        bigger[: self._have] = self._buffer[: self._have]
        self._buffer = bigger

    def ask(self, request: bytes | bytearray) -> memoryview:
        self.send(request)
        while (body := self.receive()) is None:
            pass
        return body


def number_after(name: bytes, body: bytes | memoryview) -> int:
    """The integer behind `"name":` in a small JSON text."""
    text = bytes(body)
    start = text.find(name)
    if start < 0:
        raise WrongAnswer(f"no {name.decode()} in {text[:200]!r}")
    start += len(name)
    end = start
    while text[end : end + 1].isdigit():
        end += 1
    return int(text[start:end])
