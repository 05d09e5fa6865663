"""A gateway in miniature that obeys the boot contract of topics.supervisor, for tests of the supervisor alone.

Every request is answered with what it knows, as JSON; GET /stuck is not answered. `--stubborn` ignores SIGTERM,
`--broken` ends at once.
"""

import json
import os
import signal
import socket
import sys
from functools import partial

import msgspec
import trio

from topics import logs
from topics.board import Board
from topics.rpc import serve_unix
from topics.settings import GatewayBoot


async def answer(boot, board, stream):
    request = await stream.receive_some(65536)
    if request.startswith(b"GET /stuck"):
        await trio.sleep_forever()
    ready = board.readiness()
    known = {
        "pid": os.getpid(),
        "index": boot.index,
        "phase": ready.phase.name,
        "progress": ready.progress,
        "not_ready": ready.not_ready,
        "slots": len(boot.slots),
        "shards": sorted(boot.shard_sockets),
        "environ": dict(os.environ),
        "keys": msgspec.to_builtins(boot.key_digests),
        "key_slots": board.key_count,
    }
    board.gateway(boot.index).add("requests", 1)
    body = json.dumps(known).encode()
    await stream.send_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
    await stream.aclose()


async def end_with_supervisor(lifeline_fd):
    os.set_blocking(lifeline_fd, False)
    await trio.lowlevel.wait_readable(lifeline_fd)
    os._exit(0)


async def main(boot):
    board = Board.open(boot.board)
    listener = trio.SocketListener(trio.socket.from_stdlib_socket(socket.socket(fileno=boot.listen_fd)))
    ignored = "--stubborn" in sys.argv
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(end_with_supervisor, boot.lifeline_fd)
            nursery.start_soon(trio.serve_listeners, partial(answer, boot, board), [listener])
            await nursery.start(serve_unix, boot.socket, {"health": lambda call: call.reply({"ready": True})})
            async for _ in signals:
                if not ignored:
                    nursery.cancel_scope.cancel()


if __name__ == "__main__":
    logs.inherit("gateway")
    if "--broken" in sys.argv:
        sys.exit(3)
    trio.run(main, GatewayBoot.read(int(sys.argv[sys.argv.index("--boot-fd") + 1])))
