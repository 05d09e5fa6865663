"""`python -m topics.shards`: the shard process. The supervisor starts it; it also runs on its own.

It ends cleanly (exit 0, checkpoint written) on SIGTERM or SIGINT, and when the other end of its lifeline is closed,
which happens when the supervisor dies by whatever cause. Exit 70 means that storage failed: start it again. Exit 65
means that what is on disk cannot be used as it is: it is damaged, or another user's.
"""

import argparse
import gc
import logging
import sys
from pathlib import Path

import trio

from topics import limits, logs
from topics.aside import give_way
from topics.board import Board
from topics.core.events import BadEvent
from topics.failpoints import BadFailpoint, Failpoint, parse
from topics.heap import share_one_heap
from topics.limits import Limits
from topics.owners import explain, is_denied
from topics.rpc.peer import Peer
from topics.rpc.unix import serve_unix
from topics.settings import ShardPeers
from topics.shards.boardslot import BoardSlot
from topics.shards.cold import ColdIndexLost
from topics.shards.cold_files import ColdFiles, RealColdFiles
from topics.shards.failing_files import FailingColdFiles, FailingFiles
from topics.shards.files import Files, RealFiles
from topics.shards.peers import Peers
from topics.shards.shard import Shard, ShardPoisoned
from topics.shards.snapshot import BadSnapshot
from topics.shards.wal import BadLog
from topics.stopping import orphaned, stop_on_signal

log = logging.getLogger("topics.shards")
EXIT_STORAGE = 70
EXIT_DATA = 65


class Denied(Exception):
    """A file may not be used by this user, and has not been from the start: trying again does not mend it."""


def _failpoints(text: str) -> list[Failpoint]:
    try:
        return parse(text)
    except BadFailpoint as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m topics.shards", description="Serve one shard over a Unix socket.")
    parser.add_argument("--dir", required=True, help="the shard's data directory; made if absent")
    parser.add_argument("--socket", required=True, help="path of the Unix socket to serve on (at most 107 bytes)")
    parser.add_argument("--cold-dir", help="this shard's part of the cold directory; without it segments stay")
    parser.add_argument("--lifeline", type=int, help="file descriptor; the shard stops when its other end closes")
    parser.add_argument("--board", help="the instance's board; without it the shard has no caps and reports to nobody")
    parser.add_argument("--index", type=int, default=0, help="this shard's number on the board")
    parser.add_argument("--max-topics", type=int, default=0, help="cap over all shards of the board; 0 is off")
    parser.add_argument("--max-total-bytes", type=int, default=0, help="cap over all shards of the board; 0 is off")
    parser.add_argument("--max-watch-sessions", type=int, default=0, help="cap over all shards of the board; 0 is off")
    parser.add_argument("--failpoints", type=_failpoints, help="for tests only, see topics/failpoints.py")
    parser.add_argument("--peers-fd", type=int, help="file descriptor to read from how to reach the other shards")
    bounds = Limits()
    for name in Limits.__dataclass_fields__:
        flag = "--" + name.replace("_", "-")
        parser.add_argument(flag, type=int, default=getattr(bounds, name), help="limit (default %(default)s)")
    return parser.parse_args(argv)


async def _stop_when_orphaned(lifeline: int, shard: Shard, stop: trio.Event) -> None:
    await orphaned(lifeline)
    log.warning("the supervisor is gone; stopping")
    shard.orphaned = True
    stop.set()


def _board_slot(args: argparse.Namespace) -> BoardSlot | None:
    if args.board is None:
        return None
    board = Board.open(args.board)
    caps = {"max_topics": args.max_topics, "max_bytes": args.max_total_bytes, "max_sessions": args.max_watch_sessions}
    return BoardSlot(board, args.index, **caps)


def _files(args: argparse.Namespace) -> Files:
    files: Files = RealFiles(args.dir)
    if args.failpoints:
        log.warning("failpoints are set, so storage fails on purpose: this is for tests only")
        files = FailingFiles(files, args.failpoints)
    return files


def _cold_files(args: argparse.Namespace) -> ColdFiles | None:
    if args.cold_dir is None:
        return None
    files: ColdFiles = RealColdFiles(args.cold_dir)
    return FailingColdFiles(files, args.failpoints) if args.failpoints else files


def _peers(args: argparse.Namespace, nursery: trio.Nursery) -> Peers:
    if args.peers_fd is None:
        return Peers()
    found = ShardPeers.read(args.peers_fd)
    others = {shard: Peer(path, nursery) for shard, path in found.sockets.items() if shard != args.index}
    return Peers(args.index, found.slots, others)


async def serve(args: argparse.Namespace) -> None:
    bounds = Limits(**{name: getattr(args, name) for name in Limits.__dataclass_fields__})
    stop = trio.Event()
    async with trio.open_nursery() as nursery:
        peers, slot = _peers(args, nursery), _board_slot(args)
        shard = Shard(_files(args), bounds, slot=slot, peers=peers, cold=_cold_files(args))
        nursery.start_soon(stop_on_signal, stop)
        if args.lifeline is not None:
            nursery.start_soon(_stop_when_orphaned, args.lifeline, shard, stop)
        await nursery.start(serve_unix, args.socket, shard.handlers)
        try:
            await shard.run(stop)
        except OSError as error:
            if not shard.ready.is_set() and is_denied(error, Path(args.dir)):
                raise Denied(f"cannot use {args.dir}: {explain(error, Path(args.dir))}") from error
            raise
        nursery.cancel_scope.cancel()


def settle_in() -> None:
    """Make the interpreter that of a shard."""
    sys.setswitchinterval(limits.SWITCH_INTERVAL_S)  # else the committer waits 5 ms for the interpreter
    # A shard holds millions of objects and makes next to no cycles: full collections would stop the loop for seconds
    # and find nothing. Young ones go on, each over a few thousand objects: about a millisecond (more after tens of
    # thousands of old ones were freed, which the interpreter sets off against new ones). What lives is frozen after
    # recovery and after each checkpoint. So a cycle that is left behind by what waits for long (a poll, a claim) is
    # never freed: there must be none.
    gc.set_threshold(*limits.GC_THRESHOLDS)
    share_one_heap()
    give_way()


def main(argv: list[str] | None = None) -> int:
    args = parse_args(argv)
    logs.inherit("shard")
    settle_in()
    status = 0
    try:
        trio.run(serve, args)
    except* ShardPoisoned as group:
        log.error("stopped after a storage failure: %s", _first(group))
        status = EXIT_STORAGE
    except* (BadSnapshot, BadLog, BadEvent, ColdIndexLost, Denied) as group:
        log.error("%s", _first(group))
        status = EXIT_DATA
    except* OSError as group:
        log.error("storage failed: %s", _first(group))
        status = EXIT_STORAGE
    return status


def _first(error: BaseException) -> BaseException:
    """What happened, out of the groups that nurseries wrap around it."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


if __name__ == "__main__":
    sys.exit(main())
