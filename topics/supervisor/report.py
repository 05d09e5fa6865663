"""What `status` tells: of each process what the supervisor sees and what it says on the board, and sums over all."""

import os
from collections.abc import Sequence
from typing import Any

from topics.board import FSYNC_BOUNDS_US, Board
from topics.supervisor.child import Child

SHARD = (
    "topics",
    "records_live",
    "bytes_live",
    "sessions",
    "routers",
    "wal_queue_depth",
    "wal_queue_depth_peak",
    "wal_fsyncs",
    "wal_bytes_written",
    "wal_read_only",
)
GATEWAY = ("connections", "requests", "streams")
TOTALS = ("topics", "records_live", "bytes_live", "sessions", "routers", "wal_bytes_written", *GATEWAY)


def report(board: Board, children: Sequence[Child]) -> dict[str, Any]:
    return {
        "rss_bytes": rss_bytes(os.getpid()),
        "children": [_child(board, child) for child in children],
        "totals": {name: board.total(name) for name in TOTALS},
    }


def _child(board: Board, child: Child) -> dict[str, Any]:
    seen = {**child.describe(), "rss_bytes": rss_bytes(child.pid)}
    if child.kind == "gateway":
        slot = board.gateway(child.index)
        return seen | {name: slot.get(name) for name in GATEWAY}
    slot = board.shard(child.index)
    counts = [slot.get(f"fsync_bucket_{n}") for n in range(len(FSYNC_BOUNDS_US) + 1)]
    times = {f"fsync_p{q}_us": quantile(FSYNC_BOUNDS_US, counts, q / 100) for q in (50, 99)}
    return seen | {name: slot.get(name) for name in SHARD} | times


def quantile(bounds: Sequence[int], counts: Sequence[int], q: float) -> int | None:
    """Estimated from a histogram as Prometheus does: evenly spread within a bucket. None if it is empty; beyond the
    last bound all that is known is that bound."""
    wanted, seen, low = q * sum(counts), 0, 0
    if not wanted:
        return None
    for bound, count in zip(bounds, counts, strict=False):
        if seen + count >= wanted:
            return round(low + (bound - low) * (wanted - seen) / count)
        seen, low = seen + count, bound
    return bounds[-1]


def rss_bytes(pid: int) -> int:
    """Memory of a process that is in RAM; 0 if there is none (any more)."""
    if not pid:
        return 0
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0
