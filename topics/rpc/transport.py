"""How bytes leave and come in: on a socket without trio's detours, on any other stream by its own methods.

On a socket a send is one system call, and no checkpoint while the kernel takes it all; a read is always one. What is
read of a large frame goes where it belongs (`Decoder.room`), as long as the kernel has more of it.
"""

import os
from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio
from trio.lowlevel import checkpoint, wait_readable, wait_writable

from topics import limits
from topics.rpc.errors import PeerLost
from topics.rpc.wire import Buffer, Decoder, Message

LOST = (OSError, trio.BrokenResourceError, trio.ClosedResourceError)  # what a stream raises when its peer is gone

IOV_MANY = 256  # above this the pieces are small, and one copy is cheaper than so many vectors

T = TypeVar("T")
Send = Callable[[list[Buffer]], Awaitable[None]]
Receive = Callable[[], Awaitable[list[Message]]]


def socket_of(stream: trio.abc.Stream) -> trio.socket.SocketType | None:
    return stream.socket if isinstance(stream, trio.SocketStream) else None


def write_some(fileno: int, buffers: list[Buffer]) -> list[Buffer]:
    """What is left of them when the kernel has taken what it takes at once."""
    if len(buffers) > IOV_MANY:
        buffers = [b"".join(buffers)]
    try:
        return _rest(buffers, os.writev(fileno, buffers))
    except BlockingIOError:
        return buffers


def sender_of(stream: trio.abc.SendStream) -> Send:
    if isinstance(stream, trio.SocketStream):
        sock = stream.socket

        async def send_on_socket(buffers: list[Buffer]) -> None:
            while buffers := write_some(sock.fileno(), buffers):  # asked each time: a closed socket has none
                await wait_writable(sock)

        return send_on_socket

    async def send_on_stream(buffers: list[Buffer]) -> None:
        await stream.send_all(b"".join(buffers))

    return send_on_stream


def _rest(buffers: list[Buffer], sent: int) -> list[Buffer]:
    whole = 0
    while whole < len(buffers) and sent >= len(buffers[whole]):
        sent -= len(buffers[whole])
        whole += 1
    buffers = buffers[whole:]
    if sent:
        buffers[0] = memoryview(buffers[0])[sent:]
    return buffers


def receiver_of(stream: trio.abc.ReceiveStream, decoder: Decoder) -> Receive:
    """Some messages, or none yet. Raises PeerLost at the end of the stream. Cancelled, nothing is lost."""
    if isinstance(stream, trio.SocketStream):
        sock, rest = stream.socket, b""

        def decode(data: bytes) -> list[Message]:
            """As much as small messages may come to in one turn, or what belongs to a large one."""
            nonlocal rest
            cut = max(limits.RPC_DECODE_BYTES, decoder.missing)
            rest = data[cut:]
            return decoder.feed(data[:cut])

        async def receive_on_socket() -> list[Message]:
            if rest:
                await checkpoint()
                return decode(rest)
            await wait_readable(sock)
            while True:
                room = decoder.room()
                try:
                    if room is None:
                        return decode(_checked(os.read(sock.fileno(), limits.RPC_READ_BYTES)))
                    messages = decoder.filled(_checked(os.readv(sock.fileno(), [room])))
                except BlockingIOError:
                    await wait_readable(sock)
                    continue
                if messages:
                    return messages

        return receive_on_socket

    async def receive_on_stream() -> list[Message]:
        return decoder.feed(bytes(_checked(await stream.receive_some(limits.RPC_READ_BYTES))))

    return receive_on_stream


def _checked(received: T) -> T:
    if not received:
        raise PeerLost("the peer closed the connection")
    return received
