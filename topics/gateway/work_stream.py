"""`GET /v0/topics/:q/work`: jobs pushed to one worker (API §10.8).

The queue's shard decides what is pushed, in one call that stays open for as long as the stream does: so it knows at
once when the client or this gateway is gone, and gives the jobs back. A client that does not read holds up that call,
and gets no more jobs. While the shard is down the stream stays and is taken up again; what was leased on it before is
then anybody's.
"""

from collections.abc import Mapping
from math import inf
from typing import Any

import trio

from topics import errors, limits
from topics.clock import SystemClock
from topics.errors import TopicsError
from topics.gateway import sse
from topics.gateway.feeds import next_pause_ms
from topics.gateway.live import Live
from topics.gateway.messages import ClientGone, Sink
from topics.gateway.sinks import TooSlow, drain
from topics.gateway.slots import StreamSlot
from topics.gateway.statuses import STATUS
from topics.gateway.watcher import Watcher
from topics.rpc.open_calls import Reply, Stream

CREDITS = 4  # pushes ahead of the client, each of at most WORK_BATCH_BYTES or one job
LATER = (errors.NOT_READY, errors.SHUTTING_DOWN)
TOO_SLOW = "this client takes its jobs too slowly; connect again to go on"


class WorkStream:
    wid = ""
    watcher: Watcher | None = None
    stream_id = ""

    def __init__(self, live: Live, topic: str, head: Mapping[str, Any], slot: StreamSlot) -> None:
        self._live = live
        self._peer = live.shards.peer_of(topic)
        self._head = head
        self._slot = slot
        self._call: Stream | None = None
        self._sink: Sink | None = None
        self._last_sent = inf
        self._over = trio.Event()
        self._farewell = b""

    async def open(self) -> None:
        """Begin to take jobs. Raises what the shard refuses it with."""
        connection = await self._peer.connect()
        call = connection.stream("work", self._head, credits=CREDITS)
        await call.__aenter__()
        try:
            await call.__anext__()
        except BaseException:
            call.abandon()
            raise
        self._call = call

    async def run(self, sink: Sink) -> None:
        self._sink = sink
        self._push([sse.opening(limits.RETRY_MS), sse.heartbeat(SystemClock().now_ms())])
        self._live.streams.add(self)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._serve)
                await self._over.wait()
                nursery.cancel_scope.cancel()
        finally:
            self._live.streams.discard(self)
        if self._farewell:
            sink.push([self._farewell])

    def close(self) -> None:
        self._slot.close()
        if self._call is not None:
            self._call.abandon()
            self._call = None

    def end(self, farewell: bytes = b"") -> None:
        """Finish, with a last frame for the client. The first to say so is right."""
        if not self._over.is_set():
            self._farewell = farewell
            self._over.set()

    def beat(self, now: float, now_ms: int) -> None:
        """A heartbeat if nothing was sent for a while."""
        idle = now - self._last_sent >= limits.HEARTBEAT_MS_DEFAULT / 1000
        if idle and self._sink is not None and not self._sink.stalled:
            self._push([sse.heartbeat(now_ms)])

    # --- inside -----------------------------------------------------------------------------------------------------

    async def _serve(self) -> None:
        pause_ms = 0
        while True:
            try:
                if self._call is None:
                    await self.open()
                pause_ms = 0
                await self._pass_on()
            except ClientGone:
                self.end()
                return
            except TooSlow:
                self.end(sse.RENDERER.error(408, TOO_SLOW))
                return
            except TopicsError as error:
                if error.code not in LATER:
                    self.end(sse.RENDERER.error(STATUS[error.code], error.message))
                    return
            self._call = None
            pause_ms = next_pause_ms(pause_ms)
            await trio.sleep(pause_ms / 1000)

    async def _pass_on(self) -> None:
        """Jobs as they come, until the shard ends it. Raises why."""
        assert self._call is not None and self._sink is not None
        async for item in self._call:
            self._push(self._paced(*item.head["paced"]) if "paced" in item.head else _frames(item))
            await drain(self._sink, self._live.bounds.slow_consumer_ms / 1000)

    def _paced(self, code: str, message: str, wait_ms: int) -> list[bytes]:
        """The stream stays open, and its jobs stay leased."""
        return [sse.RENDERER.error(STATUS[code], message, retry_after_ms=wait_ms, topics=[self._head["topic"]])]

    def _push(self, frames: list[bytes]) -> None:
        assert self._sink is not None
        self._sink.push(frames)
        self._last_sent = trio.current_time()


def _frames(item: Reply) -> list[bytes]:
    frames, at, body = [], 0, item.body
    for seq, size in zip(item.head["seqs"], item.head["sizes"], strict=True):
        frames.append(sse.job(seq, bytes(body[at : at + size])))
        at += size
    return frames
