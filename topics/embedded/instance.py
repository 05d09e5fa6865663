"""The shards of a data directory and the API in front of them, in one loop.

Shards call one another, and the routes call shards, as between processes but without sockets (topics/rpc/local.py). A
shard whose storage fails ends all of them, as a crash of the process would: the next `open` recovers. They share a
board of their own (topics/board.py), by which the caps over all of them hold as on a server.
"""

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import trio

from topics import errors, limits
from topics.board import Board
from topics.clock import SystemClock
from topics.errors import TopicsError
from topics.failpoints import Failpoint
from topics.gateway.bodies import too_large
from topics.gateway.control import ControlLock
from topics.gateway.dispatch import Gateway
from topics.gateway.messages import Request, Response
from topics.gateway.shard_calls import Shards
from topics.gateway.statuses import error_response
from topics.gateway.table import ROUTES
from topics.rpc.local import LocalPeer
from topics.settings import Settings
from topics.shards.boardslot import BoardSlot
from topics.shards.cold_files import RealColdFiles
from topics.shards.failing_files import FailingFiles
from topics.shards.files import Files, RealFiles
from topics.shards.peers import Peers
from topics.shards.shard import Shard
from topics.supervisor.slotmap import shard_dir

T = TypeVar("T")
HEADERS = {b"content-type": b"application/json"}


class Instance:
    def __init__(
        self, settings: Settings, data_dir: Path, slots: Sequence[int], served: Iterable[int],
        failpoints: Sequence[Failpoint] = (),
    ) -> None:  # fmt: skip
        """`slots` and `served` are those of the slot map. For one life; nothing is touched before `running`."""
        self._settings = settings
        self._data_dir = data_dir
        # The program may go to another directory while it has this one open.
        self._cold_dir = Path(settings.cold_dir).absolute() if settings.cold_dir is not None else None
        self._slots = slots
        self._served = tuple(served)
        self._failpoints = failpoints
        self._shards: dict[int, Shard] = {}
        self._gateway: Gateway | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Every shard has recovered inside the block, and has left a checkpoint after it. Cancelled, or if a shard
        fails, the files are as after a crash, and nobody writes to them any more."""
        stop = trio.Event()
        board = Board.private(self._served)
        try:
            async with trio.open_nursery() as links:
                for index in self._served:
                    self._shards[index] = self._make_shard(index, links, board)
                async with trio.open_nursery() as shards:
                    for shard in self._shards.values():
                        shards.start_soon(shard.run, stop)
                    for shard in self._shards.values():
                        await shard.ready.wait()
                    self._gateway = self._make_gateway(links)
                    yield
                    stop.set()
                links.cancel_scope.cancel()
        except BaseException:
            with trio.CancelScope(shield=True):
                for shard in self._shards.values():
                    await trio.to_thread.run_sync(shard.abandon)
            raise
        finally:
            board.close()

    def drain(self) -> None:
        if self._gateway is not None:
            self._gateway.drain()

    async def answer(self, method: str, path: bytes, query: bytes, body: bytes) -> Response:
        """As a gateway answers it. Refusals are answers."""
        assert self._gateway is not None
        if path.startswith(b"/v0/watch") or path.endswith(b"/work"):
            return error_response(TopicsError(errors.NOT_FOUND, "streams need a server; here are `follow` and `claim`"))
        request = Request(method, path, query, HEADERS, Given(body), visitor=self._gateway.door.visitor())
        try:
            return await self._gateway.answer(request)
        finally:
            if request.visitor is not None:
                request.visitor.leave()

    async def compact(self) -> dict[str, int]:
        """The sums over all shards."""
        assert self._gateway is not None
        total: Counter[str] = Counter()
        for answer in (await self._gateway.shards.call_all("compact", {}, limits.COMPACT_MS)).values():
            if isinstance(answer, TopicsError):
                raise answer
            total.update(answer.head)
        return dict(total)

    def _make_shard(self, index: int, links: trio.Nursery, board: Board) -> Shard:
        others = {other: self._peer(other, links) for other in self._served if other != index}
        directory = shard_dir(self._data_dir, index)
        files: Files = RealFiles(str(directory))
        if self._failpoints:
            files = FailingFiles(files, list(self._failpoints))
        cold = None
        if self._cold_dir is not None:
            cold = RealColdFiles(str(self._cold_dir / directory.name))
        peers = Peers(index, self._slots, others)
        caps = self._settings.caps
        slot = BoardSlot(board, index, max_topics=caps.topics, max_bytes=caps.total_bytes)
        return Shard(files, self._settings.limits, peers=peers, cold=cold, slot=slot, own_process=False)

    def _make_gateway(self, links: trio.Nursery) -> Gateway:
        shards = Shards({index: self._peer(index, links) for index in self._served}, self._slots)
        return Gateway(
            shards, ROUTES, self._settings.limits, SystemClock().now_ms(),
            control=ControlLock(None), max_routers=self._settings.caps.routers,
        )  # fmt: skip

    def _peer(self, index: int, links: trio.Nursery) -> LocalPeer:
        return LocalPeer(lambda: self._shards[index].handlers, links)


class Given:
    """A body that is there already, of a caller that stays."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    async def read(self, limit: int) -> bytes:
        if len(self._body) > limit:
            raise too_large(limit)
        return self._body

    async def while_connected(self, work: Callable[[], Awaitable[T]]) -> T:
        return await work()
