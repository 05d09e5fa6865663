"""How a batch of buffers leaves: one `sendmsg` on a socket, one `send_all` on any other stream."""

from collections.abc import Awaitable, Callable

import trio

from topics.rpc.wire import Buffer

LOST = (OSError, trio.BrokenResourceError, trio.ClosedResourceError)  # what a stream raises when its peer is gone

IOV_MANY = 256  # above this the pieces are small, and one copy is cheaper than so many vectors

Send = Callable[[list[Buffer]], Awaitable[None]]


def sender_of(stream: trio.abc.SendStream) -> Send:
    if isinstance(stream, trio.SocketStream):
        sock = stream.socket

        async def send_on_socket(buffers: list[Buffer]) -> None:
            if 1 < len(buffers) <= IOV_MANY:
                await _send_vectors(sock, buffers)
            else:
                await _send_one(sock, buffers[0] if len(buffers) == 1 else b"".join(buffers))

        return send_on_socket

    async def send_on_stream(buffers: list[Buffer]) -> None:
        await stream.send_all(b"".join(buffers))

    return send_on_stream


async def _send_one(sock: trio.socket.SocketType, data: Buffer) -> None:
    sent = await sock.send(data)
    while sent < len(data):
        data = memoryview(data)[sent:]
        sent = await sock.send(data)


async def _send_vectors(sock: trio.socket.SocketType, buffers: list[Buffer]) -> None:
    while buffers:
        sent = await sock.sendmsg(buffers)
        whole = 0
        while whole < len(buffers) and sent >= len(buffers[whole]):
            sent -= len(buffers[whole])
            whole += 1
        buffers = buffers[whole:]
        if sent:
            buffers[0] = memoryview(buffers[0])[sent:]
