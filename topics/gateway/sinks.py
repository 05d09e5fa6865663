"""Where a stream's frames go: straight into a socket, or through somebody else's hands (HTTP/2, WebSocket)."""

import socket
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import trio
from trio.lowlevel import wait_writable

from topics import limits
from topics.gateway.messages import ClientGone, Sink

if TYPE_CHECKING:
    from topics.gateway.connection import Connection

END_BUFFER_BYTES = 4 * limits.STREAM_SEND_BUFFER_BYTES


def notice_loss(sock: socket.socket) -> None:
    """A peer that vanished without a word is given up in time."""
    with suppress(OSError):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, limits.PEER_LOST_MS)


class TooSlow(Exception):
    """The client has not taken anything for too long."""


async def drain(sink: Sink, patience_s: float) -> None:
    """Until the client has taken its frames, for as long as it takes something now and then.

    Raises TooSlow, ClientGone.
    """
    while sink.stalled:
        taken = sink.taken
        with trio.move_on_after(patience_s) as patience:
            await sink.flush_some()
        if patience.cancelled_caught and sink.taken == taken:
            raise TooSlow


class SocketSink:
    """Non-blocking sends from whatever task has something; what the kernel does not take waits here.

    An HTTP/1.1 stream is chunked, one chunk a frame; to an older client it simply ends with the connection.
    """

    def __init__(self, connection: "Connection", *, chunked: bool) -> None:
        self.stalled = False
        self.taken = 0
        self._sock = connection.sock
        self._chunked = chunked
        self._unsent: deque[memoryview] = deque()
        notice_loss(self._sock)
        with suppress(OSError):  # a slow client does not fill the kernel
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

    async def flush_some(self) -> None:
        unsent = self._unsent
        await wait_writable(self._sock)
        try:
            sent = self._sock.send(unsent[0])
        except BlockingIOError:
            return
        except OSError:
            raise ClientGone from None
        self.taken += sent
        unsent[0] = unsent[0][sent:]
        if not unsent[0]:
            unsent.popleft()
        self.stalled = bool(unsent)

    def end(self) -> None:
        """Finish in good order as far as the kernel will take it. The caller closes the connection."""
        data = b"".join(self._unsent) + (b"0\r\n\r\n" if self._chunked else b"")
        if self.stalled:  # a little more room, so that a slow client is told why it was let go
            with suppress(OSError):
                self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, END_BUFFER_BYTES)
        self._try(data)


class QueueSink:
    """Frames for a transport that is fed by an async iterator: the transport's own flow control holds it up."""

    def __init__(self, moved: Callable[[], int]) -> None:
        """`moved` tells how many bytes the transport has sent; frames are large, and we see only that one is sent."""
        self.stalled = False
        self._moved = moved
        self._frames: deque[bytes] = deque()
        self._bytes = 0
        self._filled = trio.Event()
        self._taken = trio.Event()
        self._ended = False

    def push(self, buffers: list[bytes]) -> None:
        frame = b"".join(buffers)
        self._frames.append(frame)
        self._bytes += len(frame)
        self.stalled = self._bytes > limits.STREAM_SEND_BUFFER_BYTES
        self._filled.set()

    @property
    def taken(self) -> int:
        return self._moved()

    async def flush_some(self) -> None:
        await self._taken.wait()

    def end(self) -> None:
        self._ended = True
        self._filled.set()

    async def next(self) -> bytes | None:
        """The next frame, None after the end. Who asks has sent the one before."""
        self._note_taken()
        while not self._frames:
            if self._ended:
                return None
            self._filled = trio.Event()
            await self._filled.wait()
        frame = self._frames.popleft()
        self._bytes -= len(frame)
        self._note_taken()
        return frame

    def _note_taken(self) -> None:
        self.stalled = self.stalled and self._bytes > limits.STREAM_SEND_BUFFER_BYTES // 2
        self._taken.set()
        self._taken = trio.Event()
