"""The supervisor's own RPC, at admin.sock in the run directory, which only the owner can enter.

    method    head            reply head
    status                    pid, version, phase, address, started_ms, data_dir, shards, gateways, rss_bytes, children
                              and totals, see report.py
    restart   kind, index     pid (of the process that was asked to end; the policy starts it again)

LOCK in the data directory says where the run directory is.
"""

import signal
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from topics.board import Board
from topics.errors import invalid
from topics.rpc import Call, Handler
from topics.supervisor.child import Child
from topics.supervisor.report import report

SOCKET = "admin.sock"


def handlers(summary: Callable[[], Mapping[str, Any]], children: Sequence[Child], board: Board) -> dict[str, Handler]:
    def status(call: Call) -> None:
        call.reply({**summary(), **report(board, children)})

    def restart(call: Call) -> None:
        kind, index = call.head.get("kind"), call.head.get("index")
        for child in children:
            if (child.kind, child.index) == (kind, index):
                pid = child.pid
                child.signal(signal.SIGTERM)
                call.reply({"pid": pid})
                return
        raise invalid(f"there is no {kind} {index}")

    return {"status": status, "restart": restart}
