"""Everything live of one gateway: its feeds, its open streams, their heartbeats, and what sessions are told of them."""

import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple, Protocol, Self

import trio
from msgspec import UNSET

from topics import limits
from topics.clock import SystemClock
from topics.core.watching import Start
from topics.errors import TopicsError
from topics.gateway.feeds import Feeds
from topics.gateway.places import Phase, Place
from topics.gateway.shard_calls import Shards
from topics.gateway.watcher import Watcher
from topics.limits import Limits
from topics.rpc.peer import Peer

log = logging.getLogger(__name__)
TICK_S = 0.25
PLACES_DEADLINE_MS = 2_000


class Standing(NamedTuple):
    """Where a topic stands, and where a reader of it begins."""

    from_seq: int
    head_seq: int
    earliest_seq: int
    epoch: int

    @classmethod
    def of(cls, start: Start, head_seq: int, earliest_seq: int, epoch: int, cursor: int) -> Self:
        """`cursor` is that of the start's time, or the head."""
        if start.tail or start.from_ts is not UNSET:
            return cls(head_seq if start.tail else cursor, head_seq, earliest_seq, epoch)
        return cls(0 if start.from_seq is UNSET else start.from_seq, head_seq, earliest_seq, epoch)

    def shown(self) -> dict[str, int]:
        return {"from_seq": self.from_seq, "head_seq": self.head_seq, "earliest_seq": self.earliest_seq}


class OpenStream(Protocol):
    """What ends with a drain and gets heartbeats. Those of sessions have a wid."""

    wid: str

    @property
    def watcher(self) -> Watcher | None: ...

    @property
    def stream_id(self) -> str: ...

    def beat(self, now: float, now_ms: int) -> None: ...

    def end(self, farewell: bytes = b"") -> None: ...


class Live:
    def __init__(self, shards: Shards, nursery: trio.Nursery, bounds: Limits) -> None:
        self.shards = shards
        self.nursery = nursery
        self.bounds = bounds
        self.feeds = Feeds(shards, nursery)
        self.streams: set[OpenStream] = set()
        self.draining = False

    async def run(self) -> None:
        """Until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._look_for_deleted)
            nursery.start_soon(self._beat)

    async def _beat(self) -> None:
        """Heartbeats and progress."""
        clock = SystemClock()
        told = trio.current_time()
        while True:
            await trio.sleep(TICK_S)
            now, now_ms = trio.current_time(), clock.now_ms()
            for stream in tuple(self.streams):
                stream.beat(now, now_ms)
            if now - told >= limits.PROGRESS_MS / 1000:
                told = now
                await self._tell_progress()

    async def _look_for_deleted(self) -> None:
        """For readers that wait for credits: no feed tells them that their topic is gone."""
        while True:
            await trio.sleep(limits.HELD_LOOK_MS / 1000)
            held: dict[str, list[Place]] = {}
            for stream in self.streams:
                for place in stream.watcher.held if stream.watcher is not None else ():
                    held.setdefault(place.topic, []).append(place)
            names = list(held)
            for first in range(0, len(names), limits.WATCH_TOPICS_HARD_MAX):
                some = names[first : first + limits.WATCH_TOPICS_HARD_MAX]
                with suppress(TopicsError):  # a shard is down: later
                    found = await self.places(dict.fromkeys(some, Start()))
                    for place in (place for topic in some if topic not in found for place in held[topic]):
                        if place.phase is Phase.HELD:
                            place.watcher.topic_deleted(place)

    def drain(self) -> None:
        """Streams end in good order; clients connect again, and find another server or a later one."""
        self.draining = True
        for stream in tuple(self.streams):
            stream.end()

    def log_failure(self, error: Exception) -> None:
        log.error("a stream failed", exc_info=error)

    async def _tell_progress(self) -> None:
        """Cursors that moved, to the shards of their sessions: what a killed gateway has sent is not sent again."""
        by_wid = {stream.wid: stream for stream in self.streams if stream.wid and stream.watcher is not None}
        moved = {wid: stream for wid, stream in by_wid.items() if stream.watcher is not None and stream.watcher.moved}
        async with trio.open_nursery() as nursery:
            for peer, wids in self.shards.group(moved).items():
                sessions: dict[str, object] = {}
                size = 0
                for wid in wids:
                    watcher = moved[wid].watcher
                    assert watcher is not None
                    cursors = watcher.cursors(watcher.moved)
                    watcher.moved.clear()
                    sessions[wid] = (moved[wid].stream_id, cursors)
                    size += len(cursors)
                    if size >= limits.PROGRESS_CURSORS:
                        nursery.start_soon(self._tell, peer, sessions)
                        sessions, size = {}, 0
                if sessions:
                    nursery.start_soon(self._tell, peer, sessions)

    async def _tell(self, peer: Peer, sessions: Mapping[str, object]) -> None:
        with suppress(TopicsError):  # the shard is down: streams take their sessions back with their cursors
            await peer.call("watch.progress", {"sessions": sessions}, deadline_ms=limits.PROGRESS_MS)

    async def places(self, starts: Mapping[str, Start]) -> dict[str, Standing]:
        """Where those topics stand that there are. Raises if a shard does not answer."""
        times = {topic: start.from_ts for topic, start in starts.items() if start.from_ts is not UNSET}
        found: dict[str, Standing] = {}
        failures: list[TopicsError] = []

        async def ask(names: list[str]) -> None:
            try:
                head = {"topics": names, "times": {name: times[name] for name in names if name in times}}
                reply = await self.shards.call(names[0], "places", head, deadline_ms=PLACES_DEADLINE_MS)
                found.update({name: Standing.of(starts[name], *place) for name, place in reply.head.items()})
            except TopicsError as error:
                failures.append(error)

        async with trio.open_nursery() as nursery:
            for names in self.shards.group(starts).values():
                nursery.start_soon(ask, names)
        if failures:
            raise failures[0]
        return found
