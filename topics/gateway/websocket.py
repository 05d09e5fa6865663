"""`GET /v0/ws`: commands and live records over one connection, through the same engine paths as HTTP (API §7.7).

Commands that fail are answered with an error frame and leave the socket open. Publishes to one topic are made one after
another, in the order they came; everything else goes on beside them. What the client does not read is not kept: the
watcher behind the socket falls behind, as that of an event stream does.
"""

import logging
from collections.abc import Awaitable, Callable
from time import perf_counter_ns
from typing import Any, Protocol

import msgspec
import trio

from topics import errors, limits
from topics.core.names import check_topic_name
from topics.core.watching import check_starts, checked_view
from topics.errors import TopicsError, invalid, topic_not_found
from topics.gateway import ws_frames
from topics.gateway.dispatch import Gateway, performance, shutting_down
from topics.gateway.live import Live
from topics.gateway.messages import ClientGone
from topics.gateway.sinks import QueueSink, TooSlow
from topics.gateway.visitor import Visitor
from topics.gateway.watcher import Watcher
from topics.gateway.ws_frames import Head, Publish, RequestId, Subscribe
from topics.keys import ADMIN, ROUTE_SCOPES, Principal, authorise

log = logging.getLogger(__name__)
SUBSCRIBE = ROUTE_SCOPES["ws.subscribe"].scopes
PUBLISH = ROUTE_SCOPES["ws.publish"].scopes
CONFIGURE = ROUTE_SCOPES["ws.publish_config"].scopes
NORMAL, GOING_AWAY, INTERNAL, TRY_AGAIN = 1000, 1001, 1011, 1013


class Socket(Protocol):
    """What the transport offers."""

    async def receive(self) -> str | bytes: ...

    async def send(self, text: str) -> None: ...


class WsSession:
    """One open WebSocket."""

    wid = ""  # it has no session that outlives it
    stream_id = ""

    def __init__(self, gateway: Gateway, live: Live, principal: Principal, moved: Callable[[], int]) -> None:
        self._gateway = gateway
        self._live = live
        self._principal = principal
        self._sink = QueueSink(moved)
        self.over = trio.Event()  # it is to end; frames that are being sent may hold it up
        self._code = NORMAL
        self._publishing: dict[str, trio.Event] = {}  # by topic: the last publish under way
        self._busy = trio.Semaphore(limits.WS_COMMANDS_MAX)
        self._keys = gateway.door.connection_key()
        self.watcher: Watcher | None = None

    async def run(self, socket: Socket) -> int:
        """Until the client goes or is to go; the close code."""
        self._live.streams.add(self)
        try:
            async with trio.open_nursery() as nursery:
                feeds, bounds = self._live.feeds, self._live.bounds
                self.watcher = Watcher(feeds, ws_frames.RENDERER, self._sink, nursery, self._gave_up, bounds)
                nursery.start_soon(self._receive, socket, nursery)
                nursery.start_soon(self._send, socket)
                await self.over.wait()
                nursery.cancel_scope.cancel()
        finally:
            self._live.streams.discard(self)
            if self.watcher is not None:
                self.watcher.close()
        return self._code

    def end(self, farewell: bytes = b"") -> None:
        self._end(GOING_AWAY)

    def beat(self, now: float, now_ms: int) -> None:
        """Hypercorn sends the pings."""

    def _end(self, code: int) -> None:
        if not self.over.is_set():
            self._code = code
            self.over.set()

    def _gave_up(self, error: Exception) -> None:
        if isinstance(error, TooSlow):
            self._end(TRY_AGAIN)
        elif isinstance(error, ClientGone):
            self._end(NORMAL)
        else:
            self._live.log_failure(error)
            self._end(INTERNAL)

    # --- frames out -------------------------------------------------------------------------------------------------

    async def _send(self, socket: Socket) -> None:
        while (frame := await self._sink.next()) is not None:
            await socket.send(frame.decode())

    async def _reply(self, frame: bytes) -> None:
        """Answers to commands wait for a client that does not read, and so do its next commands."""
        while self._sink.stalled:
            await self._sink.flush_some()
        assert self.watcher is not None
        self.watcher.push([frame])

    # --- commands in ------------------------------------------------------------------------------------------------

    async def _receive(self, socket: Socket, nursery: trio.Nursery) -> None:
        while True:
            message = await socket.receive()
            await self._busy.acquire()
            started = perf_counter_ns()
            memory = self._gateway.door.visitor(self._keys)
            try:
                text = _text(message)
                memory.reserve(len(text))
                head = ws_frames.decode_head(text, self._gateway.limits)
            except TopicsError as error:
                self._busy.release()
                memory.leave()
                await self._reply(ws_frames.error(_request_id(message), error))
                continue
            run = self._prepare(head, text, started)
            nursery.start_soon(self._run, head.request_id, run, memory)

    def _prepare(self, head: Head, message: bytes, started: int) -> Callable[[], Awaitable[None]]:
        """What a command will do. A publish takes its turn here, in the order of arrival."""
        if head.op == "publish":
            try:
                command: Publish = ws_frames.decode_command("publish", message, self._gateway.limits)
            except TopicsError as error:
                return _failing(error)
            before = self._publishing.get(command.topic)
            mine = self._publishing[command.topic] = trio.Event()
            return lambda: self._publish(head.request_id, command, started, before, mine)
        if head.op == "ping":
            return lambda: self._reply(ws_frames.pong(head.request_id))
        act = self._subscribe if head.op == "subscribe" else self._unsubscribe
        return lambda: act(head.request_id, message)

    async def _run(self, request_id: RequestId, act: Callable[[], Awaitable[None]], memory: Visitor) -> None:
        try:
            if self._gateway.draining:
                raise shutting_down()
            await act()
        except TopicsError as error:
            await self._reply(ws_frames.error(request_id, error))
        except Exception:
            log.exception("a command failed")
            failure = TopicsError(errors.INTERNAL, "internal error; see the server's log")
            await self._reply(ws_frames.error(request_id, failure))
        finally:
            memory.leave()
            self._busy.release()

    async def _subscribe(self, request_id: RequestId, message: bytes) -> None:
        command: Subscribe = ws_frames.decode_command("subscribe", message, self._gateway.limits)
        bounds = self._gateway.limits
        starts = check_starts(command.starts(), bounds)
        if not starts:
            raise invalid("topics must name at least one topic", field="topics")
        authorise(self._principal, SUBSCRIBE, *starts)
        view = self._live.feeds.view_of(checked_view(command, bounds))
        found = await self._live.places(starts)
        for topic in starts:
            if topic not in found:
                raise topic_not_found(topic)
        watcher = self.watcher
        assert watcher is not None
        total = len(watcher.places.keys() | starts.keys())
        if total > bounds.watch_topics:
            raise TopicsError(
                errors.INVALID_REQUEST,
                f"this socket would follow {total} topics; the limit is {bounds.watch_topics}",
                {"field": "topics", "max": bounds.watch_topics},
            )
        await self._reply(ws_frames.subscribed(request_id, {topic: found[topic].shown() for topic in starts}))
        for topic in starts:
            if topic in watcher.places:
                watcher.remove(watcher.places[topic])
            watcher.add(topic, found[topic].from_seq, found[topic].epoch, view)

    async def _unsubscribe(self, request_id: RequestId, message: bytes) -> None:
        topic = check_topic_name(ws_frames.decode_command("unsubscribe", message, self._gateway.limits).topic)
        authorise(self._principal, SUBSCRIBE, topic)
        watcher = self.watcher
        if watcher is not None and topic in watcher.places:
            watcher.remove(watcher.places[topic])
        await self._reply(ws_frames.unsubscribed(request_id, topic))

    async def _publish(
        self, request_id: RequestId, command: Publish, started: int, before: trio.Event | None, mine: trio.Event
    ) -> None:
        try:
            if before is not None:
                await before.wait()  # also before a refusal: what comes next must not overtake what was before
            name = check_topic_name(command.topic)
            authorise(self._principal, CONFIGURE if command.configures else PUBLISH, name)
            reply = await self._live.shards.call(name, "append", self._append_head(command), command.body())
        finally:
            mine.set()
            if self._publishing.get(command.topic) is mine:
                del self._publishing[command.topic]
        tail = performance((perf_counter_ns() - started) / 1e6, reply.head["perf"])
        await self._reply(ws_frames.ack(request_id, reply.body, tail))

    def _append_head(self, command: Publish) -> dict[str, Any]:
        head: dict[str, Any] = {"topic": command.topic, "return_seqs": command.return_seqs}
        if not self._principal.allows(ADMIN):
            head["may_configure"] = False
        if self._principal.prefixes:
            head["prefixes"] = self._principal.prefixes
        return head


def _failing(error: TopicsError) -> Callable[[], Awaitable[None]]:
    async def fail() -> None:
        raise error

    return fail


def _text(message: str | bytes) -> bytes:
    if isinstance(message, bytes):
        raise TopicsError(errors.INVALID_REQUEST, "commands are JSON text messages, not binary ones")
    return message.encode()


class _Id(msgspec.Struct):
    request_id: RequestId = None


def _request_id(message: str | bytes) -> RequestId:
    """Of a command that could not be read, if that much can be."""
    try:
        return msgspec.json.decode(message, type=_Id).request_id
    except (msgspec.DecodeError, RecursionError):
        return None
