"""`GET /v0/watch/:wid`: a session's stream, from where the session stands to where it ends (API §7.3–§7.6).

The session lives in the shard of its wid. A stream attaches to it with a call that stays open for as long as the stream
does: so the shard knows at once when a gateway dies, and can tell a stream that another one has taken its session over.
While that shard is down the stream goes on with its topics, and attaches again when it is back; a stream that is opened
meanwhile gets heartbeats until it can begin, since a browser's EventSource would give up on a 503.
"""

import secrets
from collections.abc import Iterable, Mapping
from contextlib import suppress
from math import inf

import trio

from topics import errors, limits
from topics.core import watching
from topics.core.cursors import decode_id
from topics.core.watching import Subscription
from topics.errors import TopicsError
from topics.gateway import sse
from topics.gateway.batches import View
from topics.gateway.feeds import next_pause_ms
from topics.gateway.live import Live
from topics.gateway.messages import ClientGone, Refusal, Sink
from topics.gateway.places import Place
from topics.gateway.sinks import TooSlow
from topics.gateway.slots import StreamSlot
from topics.gateway.statuses import STATUS
from topics.gateway.watcher import Watcher
from topics.keys import Principal, authorise
from topics.rpc.open_calls import Reply, Stream

DETACH_S = 2.0
TAKEN_OVER = "another connection has taken this session over"
LATER = (errors.NOT_READY, errors.SHUTTING_DOWN, errors.THROTTLED)
Cursors = Mapping[str, tuple[int, int]]  # by topic: seq, epoch


class SseWatcher(Watcher):
    """Puts the composite cursor in front of every frame."""

    def _id_line(self, place: Place) -> Iterable[bytes]:
        if len(self.places) == 1:
            return (sse.single_id(place.pair),)
        return (sse.id_line(self.cursor()),)


class Session:
    """What a shard says of a session."""

    def __init__(self, item: Reply) -> None:
        self.subscription: Subscription = watching.unpack(item.body)
        self.cursors: dict[str, tuple[int, int]] = {
            topic: (seq, epoch) for topic, (seq, epoch) in item.head["cursors"].items()
        }
        self.clean: bool = item.head["clean"]


def owner_of(principal: Principal) -> str:
    """As shards want it. Without keys every session is everybody's."""
    return principal.fingerprint() if principal.index >= 0 else "*"


class Attachment:
    """A stream's hold on its session."""

    def __init__(self, live: Live, wid: str, principal: Principal) -> None:
        self._peer = live.shards.peer_of(wid)
        self._wid = wid
        self._principal = principal
        self._owner = owner_of(principal)
        self._stream: Stream | None = None
        self.id = secrets.token_hex(8)

    async def open(self, cursors: Cursors | None = None) -> Session:
        """Take the session. With `cursors` it is taken back by a stream that never ended."""
        self.close()
        head: dict[str, object] = {"wid": self._wid, "owner": self._owner, "stream": self.id}
        if cursors is not None:
            head["cursors"] = cursors
        connection = await self._peer.connect()
        stream = connection.stream("watch.attach", head, credits=1)
        await stream.__aenter__()
        try:
            session = Session(await stream.__anext__())
            authorise(self._principal, 0, *session.subscription.topics)  # scopes were checked before
        except StopAsyncIteration:
            raise Refusal(409, TAKEN_OVER) from None
        except BaseException:
            stream.abandon()
            raise
        self._stream = stream
        return session

    async def ended(self) -> str:
        """Wait for the shard to end it; why. Raises when the shard is lost."""
        assert self._stream is not None
        async for _ in self._stream:
            pass
        assert self._stream.result is not None
        reason: str = self._stream.result.head["reason"]
        return reason

    async def detach(self, cursors: Cursors, *, exact: bool) -> None:
        """Tell the session where its stream ended."""
        if self._stream is not None:
            head = {"wid": self._wid, "stream": self.id, "cursors": cursors, "exact": exact}
            await self._peer.call("watch.detach", head, deadline_ms=int(DETACH_S * 1000))

    def close(self) -> None:
        if self._stream is not None:
            self._stream.abandon()
            self._stream = None


class WatchStream:
    def __init__(
        self, live: Live, wid: str, attachment: Attachment, session: Session | None, slot: StreamSlot, last_id: str
    ) -> None:
        self.wid = wid
        self.watcher: SseWatcher | None = None
        self.heartbeat_s = limits.HEARTBEAT_MS_MIN / 1000  # until the session says what its client expects
        self._live = live
        self._attachment = attachment
        self._session = session
        self._slot = slot
        self._last_id = last_id
        self._sink: Sink | None = None
        self._opened = inf
        self._over = trio.Event()
        self._farewell = b""

    @property
    def stream_id(self) -> str:
        return self._attachment.id

    async def run(self, sink: Sink) -> None:
        self._sink = sink
        self._opened = trio.current_time()
        sink.push([sse.opening(limits.RETRY_MS)])
        self._live.streams.add(self)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._serve, sink, nursery)
                await self._over.wait()
                nursery.cancel_scope.cancel()
        finally:
            self._live.streams.discard(self)
            await self._leave()
        if self._farewell:
            sink.push([self._farewell])

    def close(self) -> None:
        self._slot.close()
        self._attachment.close()

    def end(self, farewell: bytes = b"") -> None:
        """Finish, with a last frame for the client. The first to say so is right."""
        if not self._over.is_set():
            self._farewell = farewell
            self._over.set()

    def beat(self, now: float, now_ms: int) -> None:
        """A heartbeat if nothing was sent for a while."""
        last = self.watcher.last_sent if self.watcher is not None else self._opened
        if now - last >= self.heartbeat_s and self._sink is not None and not self._sink.stalled:
            self._opened = now
            if self.watcher is not None:
                self.watcher.push([sse.heartbeat(now_ms)])
            else:
                self._sink.push([sse.heartbeat(now_ms)])

    # --- inside -----------------------------------------------------------------------------------------------------

    async def _serve(self, sink: Sink, nursery: trio.Nursery) -> None:
        session = self._session or await self._wait_for_session()
        if session is None:
            return
        wanted = session.subscription
        self.heartbeat_s = wanted.heartbeat_ms / 1000
        view = self._live.feeds.view_of(wanted)
        live = self._live
        watcher = SseWatcher(live.feeds, sse.RENDERER, sink, nursery, self._gave_up, live.bounds, strong=wanted.strong)
        self.watcher = watcher
        self._begin(watcher, session, view)
        await self._hold(watcher)

    async def _wait_for_session(self) -> Session | None:
        """The session's shard is down."""
        pause_ms = 0
        while True:
            pause_ms = next_pause_ms(pause_ms)
            await trio.sleep(pause_ms / 1000)
            try:
                return await self._attachment.open()
            except TopicsError as error:
                if error.code not in LATER:
                    self.end(refusal_frame(error))
                    return None

    async def _hold(self, watcher: Watcher) -> None:
        """Keep the session until somebody else takes it."""
        pause_ms = 0
        while True:
            try:
                taken_over = await self._attachment.ended() == "taken_over"
                self.end(sse.RENDERER.error(409, TAKEN_OVER) if taken_over else b"")
                return
            except TopicsError:
                pass  # the shard is down; the stream stays, and takes its session back as soon as it can
            while True:
                pause_ms = next_pause_ms(pause_ms)
                await trio.sleep(pause_ms / 1000)
                try:
                    await self._attachment.open(watcher.cursors(watcher.places.values()))
                    pause_ms = 0
                    break
                except TopicsError as error:
                    if error.code not in LATER:
                        self.end(refusal_frame(error))
                        return

    def _begin(self, watcher: Watcher, session: Session, view: View) -> None:
        """Each topic where the session stands, rewound to the last id that the client has seen.

        After an unclean end the session may be behind its client. Then a later id is believed, unless the topic has
        never been there.
        """
        seen = decode_id(self._last_id, session.subscription.topics) if self._last_id else {}
        for topic in session.subscription.topics:
            stands, epoch = session.cursors[topic]
            seq = seen.get(topic, stands)
            ahead = seq > stands and not session.clean
            place = watcher.add(topic, seq if ahead else min(seq, stands), epoch, view)
            place.doubt = stands if ahead else None

    def _gave_up(self, error: Exception) -> None:
        if isinstance(error, TooSlow):
            self.end(sse.RENDERER.error(408, "this client takes its events too slowly; connect again to go on"))
        elif isinstance(error, ClientGone):
            self.end()
        else:
            self._live.log_failure(error)
            self.end(sse.RENDERER.error(500, "internal error; connect again to go on"))

    async def _leave(self) -> None:
        if self.watcher is None:
            return
        self.watcher.close()
        with trio.move_on_after(DETACH_S) as patience:
            patience.shield = True
            with suppress(TopicsError):  # if it fails, the session goes by the last id that the client has seen
                cursors = self.watcher.cursors(self.watcher.places.values())
                await self._attachment.detach(cursors, exact=not self.watcher.sink.stalled)


def refusal_frame(error: TopicsError) -> bytes:
    """A refusal that came too late to be a status."""
    code = error.status if isinstance(error, Refusal) else {errors.NOT_FOUND: 410}.get(error.code, STATUS[error.code])
    return sse.RENDERER.error(code, error.message)
