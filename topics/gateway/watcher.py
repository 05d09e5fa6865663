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
from topics.core.loss import RECREATED, resumes_at
from topics.errors import TopicsError
from topics.gateway.batches import Batch, Gap, Renderer, View
from topics.gateway.feeds import Feeds, next_pause_ms
from topics.gateway.messages import Sink
from topics.gateway.places import Phase, Place
from topics.gateway.sinks import drain
from topics.limits import Limits
from topics.rpc.open_calls import Reply

TOO_OLD = "from_seq_too_old"
LOSSES = frozenset({"cap", "ttl", "mixed"})


class Watcher:
    def __init__(
        self,
        feeds: Feeds,
        renderer: Renderer,
        sink: Sink,
        nursery: trio.Nursery,
        give_up: Callable[[Exception], None],
        bounds: Limits,
        *,
        strong: bool = False,
    ) -> None:
        """`give_up` is told, once, why the reader's worker ended: ClientGone, TooSlow, or a bug."""
        self._grace_s = bounds.buffer_grace_ms / 1000
        self._patience_s = bounds.slow_consumer_ms / 1000
        self.places: dict[str, Place] = {}
        self.sink = sink
        self.renderer = renderer
        self.last_sent = trio.current_time()
        self.moved: set[Place] = set()  # since somebody last asked
        self.held: set[Place] = set()  # they follow no feed while they wait for credits
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

    def add(
        self, topic: str, seq: int, epoch: int, view: View, credits: int | None = None, head_seq: int | None = None
    ) -> Place:
        """With `credits` at most so many records are sent, until there are more (`grant`); `head_seq`, if known, tells
        whether there are any."""
        place = self.places[topic] = Place(self, topic, seq, epoch)
        place.credits = credits
        if head_seq is not None:
            place.head_seq = head_seq
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
        self.held.discard(place)

    def move(self, place: Place, seq: int, epoch: int, head_seq: int) -> Place:
        """Go on from elsewhere."""
        view = self._views[place]
        self.remove(place)
        return self.add(place.topic, seq, epoch, view, place.credits, head_seq)

    def grant(self, place: Place, credits: int) -> None:
        """The client takes so many more records."""
        assert place.credits is not None
        place.credits += credits
        if place.phase is Phase.HELD:
            self.held.discard(place)
            place.phase = Phase.BEHIND
            self._behind.append(place)
            self._work_on()

    def close(self) -> None:
        """The client is gone, or is to go."""
        for place in tuple(self.places.values()):
            if place.feed is not None:
                place.feed.leave(place)

    def cursors(self, places: Iterable[Place]) -> dict[str, tuple[int, int]]:
        """For the session: what the client has not taken whole counts as not sent."""
        found = {place.topic: (place.seq, place.epoch) for place in places}
        if self.sink.stalled and self._unsent is not None:
            place, seq = self._unsent
            if place.topic in found:
                found[place.topic] = (seq, place.epoch)
        return found

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
        if place.credits is not None:  # it reads for itself, as many as it may
            place.woken, place.head_seq = True, batch.head_seq
            self.fall_behind(place)
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
            self.push([self.renderer.throttled(place.topic, wait_ms)])

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
        self.held.discard(place)
        self._push(place, [self.renderer.topic_deleted(place.topic, place.head_seq)])

    # --- sending ----------------------------------------------------------------------------------------------------

    def _send(self, place: Place, to_seq: int, buffers: list[bytes]) -> None:
        before, place.seq = place.seq, to_seq
        self.moved.add(place)
        if buffers:
            self._push(place, buffers)
            if self.sink.stalled:
                self._unsent = (place, before)

    def _push(self, place: Place, buffers: list[bytes]) -> None:
        self.push([*self._id_line(place), *buffers])

    def push(self, buffers: list[bytes]) -> None:
        """One frame. If the client does not take it, the worker waits for that."""
        self.last_sent = trio.current_time()
        self.sink.push(buffers)
        if self.sink.stalled:
            self._work_on()

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
        """Wait for a client that does not take its frames."""
        began = trio.current_time()
        await drain(self.sink, self._patience_s)
        if self._unsent is not None:
            self.moved.add(self._unsent[0])
            self._unsent = None
        if trio.current_time() - began > self._grace_s:
            for place in self.places.values():
                place.late = True

    async def _catch_up(self) -> None:
        place = await self._next_behind()
        if place is None:
            return
        if place.credits == 0:
            self._hold(place)
            return
        try:
            reply = await self._feeds.read(place, self._views[place], self._strong)
        except TopicsError as error:
            self._read_failed(place, error)
            return
        if place.phase is not Phase.BEHIND:
            return
        if self._was_misled(place, reply):
            self._behind.append(place)
            return
        before, pause_ms, place.pause_ms = place.seq, place.pause_ms, 0
        self._show(place, reply)
        if self.sink.stalled or place.seq < place.head_seq:
            place.woken = False
            self._behind.append(place)
        elif not self._go_live(place):
            if place.seq == before:  # it is the feed that has to come here: its shard was lost, or the topic is another
                self._pause(place, pause_ms)
            self._behind.append(place)

    def _hold(self, place: Place) -> None:
        """No record until there are credits. One that has all there is goes on to be told what happens."""
        if place.seq == place.head_seq and self._go_live(place):
            return
        place.phase, place.woken = Phase.HELD, False
        self.held.add(place)

    def _was_misled(self, place: Place, reply: Reply) -> bool:
        """Whether the client was never where it said; then it begins where its session stands."""
        doubt, place.doubt = place.doubt, None
        gap = reply.head["tombstone"]
        if doubt is None or not gap or Gap(*gap).reason != RECREATED:
            return False
        place.seq = doubt
        return True

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
        self._tell_unavailable(place, error)
        self._pause(place, place.pause_ms)
        self._behind.append(place)

    def _tell_unavailable(self, place: Place, error: TopicsError) -> None:
        """Records that are there but cannot be had until somebody does something; a shard that is down comes back by
        itself, and nobody is told."""
        now = trio.current_time()
        if error.detail.get("reason") == errors.COLD_UNAVAILABLE and now >= place.next_notice:
            place.next_notice = now + limits.UNAVAILABLE_NOTICE_EVERY_MS / 1000
            self.push([self.renderer.unavailable(place.topic, error)])

    def _pause(self, place: Place, last_ms: int) -> None:
        place.pause_ms = next_pause_ms(last_ms)
        place.not_before = trio.current_time() + place.pause_ms / 1000

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
        if place.credits is not None:
            place.credits -= head["records"]
        self._send(place, head["to_seq"], buffers)

    def _show_gap(self, place: Place, gap: Gap, earliest_seq: int) -> int:
        """The position after the gap. In another life of the topic everything there is comes next."""
        if place.late and gap.reason in LOSSES:
            gap = gap._replace(reason=TOO_OLD)
        after = resumes_at(gap.reason, gap.gap_to, earliest_seq) - 1
        self._send(place, after, [self.renderer.tombstone(place.topic, gap, earliest_seq, place.head_seq)])
        return after

    def _go_live(self, place: Place) -> bool:
        missed = self._feeds.join(place, self._strong)
        if missed is None:
            return False
        if not place.woken:
            self._push(place, [self.renderer.caught_up(place.topic, place.head_seq)])
        place.woken = False
        for batch in missed:
            if place.phase is Phase.LIVE:
                self.deliver(place, batch)
        return True
