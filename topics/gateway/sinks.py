"""Where a stream's frames go: straight into a socket, or through somebody else's hands (HTTP/2, WebSocket)."""

import socket
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

import trio
from trio.lowlevel import wait_writable

from topics import limits
from topics.gateway.messages import ClientGone

if TYPE_CHECKING:
    from topics.gateway.connection import Connection

END_BUFFER_BYTES = 4 * limits.STREAM_SEND_BUFFER_BYTES
USER_TIMEOUT_MS = limits.SLOW_CONSUMER_MS


class SocketSink:
    """Non-blocking sends from whatever task has something; what the kernel does not take waits here.

    An HTTP/1.1 stream is chunked, one chunk a frame; to an older client it simply ends with the connection.
    """

    def __init__(self, connection: "Connection", *, chunked: bool) -> None:
        self.stalled = False
        self._sock = connection.sock
        self._chunked = chunked
        self._unsent: deque[memoryview] = deque()
        with suppress(OSError):  # a peer that vanished is noticed in time, and a slow one does not fill the kernel
            self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, USER_TIMEOUT_MS)
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, limits.STREAM_SEND_BUFFER_BYTES)

    def push(self, buffers: list[bytes]) -> None:
        if self._chunked:
            buffers = [b"%x\r\n" % sum(map(len, buffers)), *buffers, b"\r\n"]
        data = b"".join(buffers)
        if self.stalled:
            self._unsent.append(memoryview(data))
            return
        sent = self._try(data)
        if sent < len(data):
            self._unsent.append(memoryview(data)[sent:])
            self.stalled = True

    def _try(self, data: bytes) -> int:
        try:
            return self._sock.send(data)
        except OSError:  # full; or the client is gone, which the connection's own task notices
            return 0

    async def flush(self) -> None:
        unsent = self._unsent
        while unsent:
            await wait_writable(self._sock)
            try:
                sent = self._sock.send(unsent[0])
            except BlockingIOError:
                continue
            except OSError:
                raise ClientGone from None
            unsent[0] = unsent[0][sent:]
            if not unsent[0]:
                unsent.popleft()
        self.stalled = False

    def end(self) -> None:
        """Finish in good order as far as the kernel will take it. The caller closes the connection."""
        data = b"".join(self._unsent) + (b"0\r\n\r\n" if self._chunked else b"")
        if self.stalled:  # a little more room, so that a slow client is told why it was let go
            with suppress(OSError):
                self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, END_BUFFER_BYTES)
        self._try(data)


class QueueSink:
    """Frames for a transport that is fed by an async iterator: the transport's own flow control holds it up."""

    def __init__(self) -> None:
        self.stalled = False
        self._frames: deque[bytes] = deque()
        self._bytes = 0
        self._filled = trio.Event()
        self._emptied = trio.Event()
        self._ended = False

    def push(self, buffers: list[bytes]) -> None:
        frame = b"".join(buffers)
        self._frames.append(frame)
        self._bytes += len(frame)
        self.stalled = self._bytes > limits.STREAM_SEND_BUFFER_BYTES
        if self.stalled and self._emptied.is_set():
            self._emptied = trio.Event()
        self._filled.set()

    async def flush(self) -> None:
        while self.stalled:
            await self._emptied.wait()

    def end(self) -> None:
        self._ended = True
        self._filled.set()

    async def next(self) -> bytes | None:
        """The next frame, None after the end. It counts until the one after it is asked for."""
        while not self._frames:
            self.stalled = False
            self._emptied.set()
            if self._ended:
                return None
            self._filled = trio.Event()
            await self._filled.wait()
        frame = self._frames.popleft()
        self._bytes -= len(frame)
        if self.stalled and self._bytes <= limits.STREAM_SEND_BUFFER_BYTES // 2:
            self.stalled = False
            self._emptied.set()
        return frame
