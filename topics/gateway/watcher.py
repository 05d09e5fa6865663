"""One live reader of some topics: an event stream or a WebSocket.

Live records are sent from the feed's task the moment they come (`deliver`). Everything that may take time happens in
the reader's own worker, which exists only while there is such work: reading a backlog, waiting for a client that does
not take what it was sent. So a reader that is up to date costs a send for each batch and nothing else, and a slow one
costs its own cursor: what it does not take is not kept for it, but read again when it goes on.
"""

from collections import deque
from collections.abc import Callable, Iterable
from math import inf

import trio

from topics import errors, limits
from topics.core.cursors import encode_map, encode_token
from topics.core.loss import RECREATED
from topics.errors import TopicsError
from topics.gateway.batches import Batch, Gap, Renderer, View
from topics.gateway.feeds import Feeds, next_pause_ms
from topics.gateway.messages import Sink
from topics.gateway.places import Phase, Place
from topics.rpc.open_calls import Reply

TOO_OLD = "from_seq_too_old"
LOSSES = frozenset({"cap", "ttl", "mixed"})


class TooSlow(Exception):
    """The client has not taken anything for too long."""


class Watcher:
    def __init__(
        self,
        feeds: Feeds,
        renderer: Renderer,
        sink: Sink,
        nursery: trio.Nursery,
        give_up: Callable[[Exception], None],
        *,
        strong: bool = False,
    ) -> None:
        """`give_up` is told, once, why the reader's worker ended: ClientGone, TooSlow, or a bug."""
        self.places: dict[str, Place] = {}
        self.sink = sink
        self.renderer = renderer
        self.last_sent = trio.current_time()
        self.moved: set[Place] = set()  # since somebody last asked
        self._feeds = feeds
        self._nursery = nursery
        self._give_up = give_up
        self._strong = strong
        self._views: dict[Place, View] = {}
        self._behind: deque[Place] = deque()
        self._working = False
        self._next_notice = 0.0
        self._wake = trio.Event()
        self._unsent: tuple[Place, int] | None = None  # the frame that the client has not taken whole, and where before

    # --- places -----------------------------------------------------------------------------------------------------

    def add(self, topic: str, seq: int, epoch: int, view: View) -> Place:
        place = self.places[topic] = Place(self, topic, seq, epoch)
        self._views[place] = view
        self._behind.append(place)
        self._work_on()
        return place

    def remove(self, place: Place) -> None:
        place.phase = Phase.OVER
        if place.feed is not None:
            place.feed.leave(place)
        if self.places.get(place.topic) is place:
            del self.places[place.topic]
        self._views.pop(place, None)
        self.moved.discard(place)

    def close(self) -> None:
        """The client is gone, or is to go. What it has not taken whole counts as not sent."""
        if self.sink.stalled and self._unsent is not None:
            place, seq = self._unsent
            place.seq = seq
            self.moved.add(place)
        for place in tuple(self.places.values()):
            if place.feed is not None:
                place.feed.leave(place)

    def cursor(self) -> bytes:
        """Where the stream stands, as an id."""
        if len(self.places) <= limits.CURSOR_MAP_TOPICS:
            return encode_map(place.pair for place in self.places.values())
        return encode_token(place.seq for place in self.places.values())

    # --- from feeds -------------------------------------------------------------------------------------------------

    def deliver(self, place: Place, batch: Batch) -> None:
        """New records, in the feed's task: never waits."""
        if batch.gap is not None or batch.epoch != place.epoch:
            self.fall_behind(place)  # it reads for itself, and is told what it missed
            return
        if place.seq >= batch.to_seq:
            return
        if batch.throttle_ms >= limits.THROTTLE_NOTICE_MS:
            self._tell_throttled(place, batch.throttle_ms)
        for frame in batch.frames(self._views[place], self.renderer, place.seq):
            if self.sink.stalled:
                self.fall_behind(place)
                return
            self._send(place, frame.to_seq, frame.buffers)
        place.head_seq = batch.head_seq

    def _tell_throttled(self, place: Place, wait_ms: int) -> None:
        """Advice now and then; the stream goes on."""
        now = trio.current_time()
        if now >= self._next_notice and not self.sink.stalled:
            self._next_notice = now + limits.THROTTLE_NOTICE_EVERY_MS / 1000
            self.sink.push([self.renderer.throttled(place.topic, wait_ms)])

    def fall_behind(self, place: Place) -> None:
        """Read for itself from now on, until it is at the head again."""
        if place.phase is Phase.OVER:
            return
        if place.feed is not None:
            place.feed.leave(place)
        if place.phase is Phase.LIVE:
            place.phase = Phase.BEHIND
            self._behind.append(place)
        self._work_on()

    def topic_deleted(self, place: Place) -> None:
        if place.phase is Phase.OVER:
            return
        place.phase, place.feed = Phase.OVER, None
        self._push(place, [self.renderer.topic_deleted(place.topic, place.head_seq)])

    # --- sending ----------------------------------------------------------------------------------------------------

    def _send(self, place: Place, to_seq: int, buffers: list[bytes]) -> None:
        before, place.seq = place.seq, to_seq
        self.moved.add(place)
        if buffers:
            self._push(place, buffers)
            if self.sink.stalled:
                self._unsent = (place, before)
                self._work_on()

    def _push(self, place: Place, buffers: list[bytes]) -> None:
        self.last_sent = trio.current_time()
        self.sink.push([*self._id_line(place), *buffers])

    def _id_line(self, place: Place) -> Iterable[bytes]:
        return ()

    # --- the worker -------------------------------------------------------------------------------------------------

    def _work_on(self) -> None:
        self._wake.set()
        if not self._working:
            self._working = True
            self._nursery.start_soon(self._work)

    async def _work(self) -> None:
        try:
            while self.sink.stalled or self._behind:
                if self.sink.stalled:
                    await self._drain()
                else:
                    await self._catch_up()
        except Exception as error:
            self._give_up(error)
        finally:
            self._working = False

    async def _drain(self) -> None:
        """Wait for a client that does not take its frames, but not for ever."""
        began = trio.current_time()
        with trio.move_on_after(limits.SLOW_CONSUMER_MS / 1000) as patience:
            await self.sink.flush()
        if patience.cancelled_caught and self.sink.stalled:
            raise TooSlow
        self._unsent = None
        if trio.current_time() - began > limits.BUFFER_GRACE_MS / 1000:
            for place in self.places.values():
                place.late = True

    async def _catch_up(self) -> None:
        place = await self._next_behind()
        if place is None:
            return
        try:
            reply = await self._feeds.read(place, self._views[place], self._strong)
        except TopicsError as error:
            self._read_failed(place, error)
            return
        if place.phase is not Phase.BEHIND:
            return
        place.pause_ms = 0
        self._show(place, reply)
        if self.sink.stalled or place.seq < place.head_seq:
            self._behind.append(place)
        else:
            self._go_live(place)

    async def _next_behind(self) -> Place | None:
        """The next place to read for. Those whose shard is down are left alone for a while."""
        now, soonest = trio.current_time(), inf
        for _ in range(len(self._behind)):
            place = self._behind.popleft()
            if place.phase is not Phase.BEHIND:
                continue
            if place.not_before <= now:
                return place
            soonest = min(soonest, place.not_before)
            self._behind.append(place)
        if self._behind:
            self._wake = trio.Event()
            with trio.move_on_at(soonest):
                await self._wake.wait()
        return None

    def _read_failed(self, place: Place, error: TopicsError) -> None:
        if error.code == errors.TOPIC_NOT_FOUND:
            self.topic_deleted(place)
            return
        place.pause_ms = next_pause_ms(place.pause_ms)
        place.not_before = trio.current_time() + place.pause_ms / 1000
        self._behind.append(place)

    def _show(self, place: Place, reply: Reply) -> None:
        """What a read found: a gap first, then records."""
        head = reply.head
        place.head_seq, place.epoch = head["head_seq"], head["epoch"]
        from_seq: int = place.seq
        if head["tombstone"]:
            gap = Gap(*head["tombstone"])
            from_seq = self._show_gap(place, gap, head["earliest_seq"])
        place.late = False
        buffers: list[bytes] = []
        if reply.body:
            buffers = self.renderer.record(place.topic, [reply.body], from_seq, head["to_seq"], place.head_seq)
        if self.sink.stalled and reply.body:
            return  # after the gap; the records are read again
        self._send(place, head["to_seq"], buffers)

    def _show_gap(self, place: Place, gap: Gap, earliest_seq: int) -> int:
        """The position after the gap. In another life of the topic everything there is comes next."""
        if place.late and gap.reason in LOSSES:
            gap = gap._replace(reason=TOO_OLD)
        after = earliest_seq - 1 if gap.reason == RECREATED else gap.gap_to
        self._send(place, after, [self.renderer.tombstone(place.topic, gap, earliest_seq, place.head_seq)])
        return after

    def _go_live(self, place: Place) -> None:
        missed = self._feeds.join(place, self._strong)
        if missed is None:
            self._behind.append(place)
            return
        self._push(place, [self.renderer.caught_up(place.topic, place.head_seq)])
        for batch in missed:
            if place.phase is Phase.LIVE:
                self.deliver(place, batch)
