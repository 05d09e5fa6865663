"""`python -m topics.gateway --boot-fd N`: the gateway process. The supervisor starts it and hands everything down.

The port answers from the first moment; topics answer when their shards do. SIGTERM or SIGINT drains and ends with
exit 0, and so does the end of the lifeline, which means that the supervisor is gone.
"""

import argparse
import gc
import logging
import os
import resource
import socket
import sys
from contextlib import suppress
from typing import Any

import trio

from topics import limits, logs
from topics.aside import give_way
from topics.board import Board, Phase
from topics.gateway.access import Door
from topics.gateway.control import ControlLock
from topics.gateway.dispatch import Gateway
from topics.gateway.live import Live
from topics.gateway.op_times import OpTimes
from topics.gateway.server import Server
from topics.gateway.shard_calls import Shards
from topics.gateway.slots import RequestSlots, StreamSlots
from topics.gateway.table import ROUTES
from topics.heap import keep_large_buffers
from topics.keys import KeyRing
from topics.rpc.calls import Call
from topics.rpc.peer import Peer
from topics.rpc.unix import serve_unix
from topics.settings import GatewayBoot
from topics.stopping import orphaned, stop_on_signal

log = logging.getLogger("topics.gateway")
CUT_EARLY_S = 1.0  # at most a quarter of the time there is
ORPHAN_GRACE_S = 3.0
PHASE_S = 0.05


async def _stop_when_orphaned(lifeline: int, stop: trio.Event, everything: trio.CancelScope) -> None:
    """The next server of the data directory waits until we have ended, so clients that hang get a moment only."""
    await orphaned(lifeline)
    log.warning("the supervisor is gone; stopping")
    stop.set()
    everything.deadline = trio.current_time() + ORPHAN_GRACE_S


def grace_s(stop_ms: int) -> float:
    """How long requests under way may take in a drain. The supervisor kills what has not ended by `stop_ms`, so
    connections are cut a little earlier: a client that hangs must not make a clean stop an unclean one."""
    whole_s = stop_ms / 1000
    return whole_s - min(CUT_EARLY_S, whole_s / 4)


def open_door(boot: GatewayBoot, board: Board) -> Door:
    caps = boot.settings.caps
    return Door(
        KeyRing(boot.key_digests),
        probe_auth=boot.settings.probe_auth,
        requests=RequestSlots(board, boot.index, caps.inflight_per_key),
        streams=StreamSlots(board, boot.index, caps),
    )


def _allow_many_files() -> None:
    """A connection is a file: as many as the system lets us have."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def make_app(gateway: Gateway) -> Any:
    """In a thread, while requests are served: so it gives way to the loop at once, and is not held up by the collector,
    which would look at all that was imported so far, again and again."""
    usual_s = sys.getswitchinterval()
    sys.setswitchinterval(limits.SWITCH_INTERVAL_S)
    gc.disable()
    try:
        import topics.gateway.handover
        import topics.gateway.openapi.document  # noqa: F401 - for docs_routes.py
        from topics.gateway.app import create_app

        return create_app(gateway)
    finally:
        gc.freeze()
        gc.enable()
        sys.setswitchinterval(usual_s)


async def serve(boot: GatewayBoot) -> None:
    stop = trio.Event()
    board = Board.open(boot.board)
    slot = board.gateway(boot.index)

    def publish(connections: int, busy: int) -> None:
        slot.set("connections", connections)
        slot.set("requests", busy)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(stop_on_signal, stop)
        nursery.start_soon(_stop_when_orphaned, boot.lifeline_fd, stop, nursery.cancel_scope)
        shards = Shards({shard: Peer(path, nursery) for shard, path in boot.shard_sockets.items()}, boot.slots)
        door = open_door(boot, board)
        live = Live(shards, nursery, boot.settings.limits)
        nursery.start_soon(live.run)
        gateway = Gateway(
            shards,
            ROUTES,
            boot.settings.limits,
            boot.started_ms,
            board=board,
            door=door,
            live=live,
            control=ControlLock(os.path.dirname(boot.board)),
            max_routers=boot.settings.caps.routers,
            times=OpTimes(board.times(boot.index)),
        )
        server = Server(
            gateway,
            make_app,
            publish=publish,
            max_connections=boot.settings.caps.connections,
            port_is_lent=boot.port_is_lent,
        )

        def health(call: Call) -> None:
            call.reply({"ready": not gateway.draining, "draining": gateway.draining})

        async def run(*, task_status: trio.TaskStatus[None]) -> None:
            listener = socket.socket(fileno=boot.listen_fd)
            await server.run(listener, stop, grace_s(boot.settings.gateway_stop_ms), task_status=task_status)
            nursery.cancel_scope.cancel()

        await nursery.start(run)
        await nursery.start(serve_unix, boot.socket, {"health": health})
        log.info("ready")
        while board.phase is not Phase.READY:  # noqa: ASYNC110 - memory that the supervisor writes
            await trio.sleep(PHASE_S)  # till then the processors are for the shards and their logs
        server.framework.ask()


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m topics.gateway", description="Serve HTTP for the shards.")
    parser.add_argument("--boot-fd", type=int, required=True, help="file descriptor to read the start-up data from")
    boot = GatewayBoot.read(parser.parse_args(argv).boot_fd)
    logs.inherit(f"gateway-{boot.index}")
    _allow_many_files()
    keep_large_buffers()
    give_way()
    gc.freeze()  # what was imported stays; the collector need not look at it again
    trio.run(serve, boot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
