"""`python -m topics.gateway --boot-fd N`: the gateway process. The supervisor starts it and hands everything down.

The port answers from the first moment; topics answer when their shards do. SIGTERM or SIGINT drains and ends with
exit 0, and so does the end of the lifeline, which means that the supervisor is gone.
"""

import argparse
import gc
import logging
import os
import signal
import socket
import sys

import trio

from topics import logs
from topics.board import Board
from topics.gateway.app import create_app
from topics.gateway.dispatch import Gateway
from topics.gateway.server import Server
from topics.gateway.shard_calls import Shards
from topics.gateway.table import ROUTES
from topics.rpc.calls import Call
from topics.rpc.peer import Peer
from topics.rpc.unix import serve_unix
from topics.settings import GatewayBoot

log = logging.getLogger("topics.gateway")


async def _stop_on_signal(stop: trio.Event) -> None:
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for _ in signals:
            stop.set()


async def _stop_when_orphaned(lifeline: int, stop: trio.Event) -> None:
    os.set_blocking(lifeline, False)
    while True:
        await trio.lowlevel.wait_readable(lifeline)
        if not os.read(lifeline, 1):
            log.warning("the supervisor is gone; stopping")
            stop.set()
            return


async def serve(boot: GatewayBoot) -> None:
    stop = trio.Event()
    board = Board.open(boot.board)
    slot = board.gateway(boot.index)

    def publish(connections: int, busy: int) -> None:
        slot.set("connections", connections)
        slot.set("requests", busy)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(_stop_on_signal, stop)
        nursery.start_soon(_stop_when_orphaned, boot.lifeline_fd, stop)
        shards = Shards({shard: Peer(path, nursery) for shard, path in boot.shard_sockets.items()}, boot.slots)
        gateway = Gateway(shards, ROUTES, boot.settings.limits, boot.started_ms, board=board)
        server = Server(gateway, create_app(gateway), publish=publish)

        def health(call: Call) -> None:
            call.reply({"ready": not gateway.draining, "draining": gateway.draining})

        async def run(*, task_status: trio.TaskStatus[None]) -> None:
            listener = socket.socket(fileno=boot.listen_fd)
            await server.run(listener, stop, boot.settings.gateway_stop_ms / 1000, task_status=task_status)
            nursery.cancel_scope.cancel()

        await nursery.start(run)
        await nursery.start(serve_unix, boot.socket, {"health": health})
        log.info("ready")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m topics.gateway", description="Serve HTTP for the shards.")
    parser.add_argument("--boot-fd", type=int, required=True, help="file descriptor to read the start-up data from")
    boot = GatewayBoot.read(parser.parse_args(argv).boot_fd)
    logs.inherit(f"gateway-{boot.index}")
    gc.freeze()  # what was imported stays; the collector need not look at it again
    trio.run(serve, boot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
