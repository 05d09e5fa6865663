"""`GET /v0/ws`: commands and live records over one connection, through the same engine paths as HTTP (API §7.7).

Commands that fail are answered with an error frame and leave the socket open. Those about one topic are done one after
another, in the order they came (ws_turns.py); others go on beside them. What the client does not read is not kept: the
watcher behind the socket falls behind, as that of an event stream does.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack
from time import perf_counter_ns
from typing import Any, Protocol

import msgspec
import trio

from topics import errors, limits
from topics.aside import run_aside
from topics.core.names import check_topic_name
from topics.core.watching import Start, check_starts, checked_view
from topics.errors import TopicsError, invalid, topic_not_found
from topics.gateway import ws_frames
from topics.gateway.batches import View
from topics.gateway.dispatch import Gateway, performance, shutting_down
from topics.gateway.live import Live, Standing
from topics.gateway.messages import ClientGone
from topics.gateway.places import Place
from topics.gateway.sinks import QueueSink, TooSlow
from topics.gateway.statuses import STATUS
from topics.gateway.visitor import Visitor
from topics.gateway.watcher import Watcher
from topics.gateway.ws_frames import Ack, Command, Credit, Head, Publish, RequestId, Subscribe, Unsubscribe
from topics.gateway.ws_groups import GroupSubscription, check_credits, check_group_fields, check_same
from topics.gateway.ws_turns import Turn, Turns
from topics.keys import ROUTE_SCOPES, Principal, authorise

log = logging.getLogger(__name__)
SUBSCRIBE = ROUTE_SCOPES["ws.subscribe"].scopes
CREDIT = ROUTE_SCOPES["ws.credit"].scopes
ACK = ROUTE_SCOPES["ws.ack"].scopes
PUBLISH = ROUTE_SCOPES["ws.publish"].scopes
CONFIGURE = ROUTE_SCOPES["ws.publish_config"].scopes
SHARED = ("ack", "credit")  # they add to what is there: any order of them comes to the same
NORMAL, GOING_AWAY, INTERNAL, TRY_AGAIN = 1000, 1001, 1011, 1013


class Socket(Protocol):
    """What the transport offers."""

    async def receive(self) -> str | bytes: ...

    async def send(self, text: str) -> None: ...


class WsWatcher(Watcher):
    """A topic that is gone takes no room on a socket. (The ids of an event stream go on naming it.)"""

    def topic_deleted(self, place: Place) -> None:
        super().topic_deleted(place)
        self.remove(place)


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
        self._turns = Turns()
        self._busy = trio.Semaphore(limits.WS_COMMANDS_MAX)
        self._keys = gateway.door.connection_key()
        self.watcher: Watcher | None = None
        self._groups: dict[str, GroupSubscription] = {}  # by topic
        self._lost: dict[str, TopicsError] = {}  # by topic: why the group's subscription ended, the latest last
        self._nursery: trio.Nursery | None = None
        self._acts: Mapping[str, Callable[[RequestId, Any, int], Awaitable[None]]] = {
            "subscribe": self._subscribe,
            "unsubscribe": self._unsubscribe,
            "credit": self._credit,
            "ack": self._ack,
            "publish": self._publish,
        }

    async def run(self, socket: Socket) -> int:
        """Until the client goes or is to go; the close code."""
        self._live.streams.add(self)
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                feeds, bounds = self._live.feeds, self._live.bounds
                self.watcher = WsWatcher(feeds, ws_frames.RENDERER, self._sink, nursery, self._gave_up, bounds)
                nursery.start_soon(self._receive, socket, nursery)
                nursery.start_soon(self._send, socket)
                await self.over.wait()
                nursery.cancel_scope.cancel()
        finally:
            self._live.streams.discard(self)
            if self.watcher is not None:
                self.watcher.close()
            for subscription in self._groups.values():
                subscription.close()
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
            with ExitStack() as unless_taken:
                unless_taken.callback(self._busy.release)
                unless_taken.callback(memory.leave)
                try:
                    head, command = await self._decode(message, memory)
                except TopicsError as error:
                    unless_taken.close()
                    await self._reply(ws_frames.error(_request_id(message), error))
                    continue
                turn = self._turns.take(command.names, shared=head.op in SHARED)  # here, where they come in order
                nursery.start_soon(self._run, head, command, started, turn, memory)
                unless_taken.pop_all()

    async def _decode(self, message: str | bytes, memory: Visitor) -> tuple[Head, Any]:
        text = _text(message)
        memory.reserve(len(text))
        if len(text) <= limits.THREAD_BODY_BYTES:
            return ws_frames.decode(text, self._gateway.limits)
        return await run_aside(ws_frames.decode, text, self._gateway.limits)

    async def _run(self, head: Head, command: Command, started: int, turn: Turn, memory: Visitor) -> None:
        try:
            await turn.begin()
            if self._gateway.draining:
                raise shutting_down()
            if head.op == "ping":
                await self._reply(ws_frames.pong(head.request_id))
            else:
                await self._acts[head.op](head.request_id, command, started)
        except TopicsError as error:
            await self._reply(ws_frames.error(head.request_id, error))
        except Exception:
            log.exception("a command failed")
            failure = TopicsError(errors.INTERNAL, "internal error; see the server's log")
            await self._reply(ws_frames.error(head.request_id, failure))
        finally:
            turn.end()
            memory.leave()
            self._busy.release()

    async def _subscribe(self, request_id: RequestId, command: Subscribe, started: int) -> None:
        bounds = self._gateway.limits
        starts = check_starts(command.starts(), bounds)
        if not starts:
            raise invalid("topics must name at least one topic", field="topics")
        check_group_fields(command)
        check_credits(command.credits, "credits", 0)
        authorise(self._principal, SUBSCRIBE, *starts)
        view = self._live.feeds.view_of(checked_view(command, bounds))
        found = await self._live.places(starts)
        for topic in starts:
            if topic not in found:
                raise topic_not_found(topic)
        self._check_room(starts)
        if command.group is not None:
            await self._subscribe_group(request_id, command, view)
            return
        await self._reply(ws_frames.subscribed(request_id, {topic: found[topic].shown() for topic in starts}))
        for topic in starts:
            self._follow(topic, found[topic], view, command.credits)

    def _check_room(self, starts: Mapping[str, Start]) -> None:
        bounds, watcher = self._gateway.limits, self.watcher
        assert watcher is not None
        total = len(watcher.places.keys() | starts.keys())
        if total > bounds.watch_topics:
            raise TopicsError(
                errors.INVALID_REQUEST,
                f"this socket would follow {total} topics; the limit is {bounds.watch_topics}",
                {"field": "topics", "max": bounds.watch_topics},
            )

    def _follow(self, topic: str, place: Standing, view: View, credits: int | None) -> None:
        self._leave(topic)
        assert self.watcher is not None
        self.watcher.add(topic, place.from_seq, place.epoch, view, credits, place.head_seq)

    def _leave(self, topic: str) -> None:
        """Whatever there was of it on this socket is over."""
        watcher = self.watcher
        assert watcher is not None
        if topic in watcher.places:
            watcher.remove(watcher.places[topic])
        self._lost.pop(topic, None)
        group = self._groups.pop(topic, None)
        if group is not None:
            group.close()

    async def _unsubscribe(self, request_id: RequestId, command: Unsubscribe, started: int) -> None:
        topic = check_topic_name(command.topic)
        authorise(self._principal, SUBSCRIBE, topic)
        self._leave(topic)
        await self._reply(ws_frames.unsubscribed(request_id, topic))

    async def _credit(self, request_id: RequestId, command: Credit, started: int) -> None:
        topic = check_topic_name(command.topic)
        authorise(self._principal, CREDIT, topic)
        watcher = self.watcher
        assert watcher is not None
        place = watcher.places.get(topic)
        if place is None:
            self._check_not_lost(topic)
        if place is None or place.credits is None:
            raise invalid("this socket has no subscription of the topic that counts credits", field="topic")
        check_credits(command.n, "n", 1, limits.WS_CREDITS_MAX - place.credits)
        watcher.grant(place, command.n)
        await self._reply(ws_frames.credited(request_id, topic, place.credits))

    # --- groups -----------------------------------------------------------------------------------------------------

    async def _subscribe_group(self, request_id: RequestId, command: Subscribe, view: View) -> None:
        group = GroupSubscription(self._live, command)
        topic = group.topic
        place = await group.open()  # one that was there stays if this is refused
        try:
            shown = place.shown() | {"group": group.group, "consumer": group.consumer}
            await self._reply(ws_frames.subscribed(request_id, {topic: shown}))
        except BaseException:
            group.close()
            raise
        self._follow(topic, place, view, command.credits)
        self._groups[topic] = group
        assert self._nursery is not None
        self._nursery.start_soon(self._keep_group, group)

    async def _keep_group(self, group: GroupSubscription) -> None:
        """Until the subscription is over, or the socket. Only then may another one have taken its place."""

        def moved(place: Standing) -> None:
            assert self.watcher is not None
            if group.topic in self.watcher.places:  # else it is gone, and the group with it
                self.watcher.move(self.watcher.places[group.topic], place.from_seq, place.epoch, place.head_seq)

        error = await group.keep(moved)
        if error is None:
            return
        turn = self._turns.take((group.topic,))  # a subscribe under way may be what took it over: then nobody is told
        try:
            await turn.begin()
            if self._groups.get(group.topic) is group:
                await self._lose(group, error)
        finally:
            turn.end()

    async def _lose(self, group: GroupSubscription, error: TopicsError) -> None:
        topic, watcher = group.topic, self.watcher
        assert watcher is not None
        if error.code == errors.TOPIC_NOT_FOUND:
            if topic in watcher.places:  # else a reader noticed first
                watcher.topic_deleted(watcher.places[topic])
            del self._groups[topic]
            return
        self._leave(topic)
        self._lost[topic] = error.with_traceback(None)
        if len(self._lost) > self._gateway.limits.watch_topics:
            del self._lost[next(iter(self._lost))]
        await self._reply(ws_frames.ended(topic, group.group, STATUS[error.code], error))

    def _check_not_lost(self, topic: str) -> None:
        lost = self._lost.get(topic)
        if lost is not None:
            raise TopicsError(lost.code, lost.message, lost.detail)  # a new one: what is raised keeps where it was

    async def _ack(self, request_id: RequestId, command: Ack, started: int) -> None:
        topic = check_topic_name(command.topic)
        authorise(self._principal, ACK, topic)
        group = self._groups.get(topic)
        if group is None:
            self._check_not_lost(topic)
            raise invalid("this socket has no subscription of the topic with a group", field="topic")
        check_same(command, group)
        reply = await group.ack(command.seq)
        tail = performance((perf_counter_ns() - started) / 1e6, reply.head["perf"])
        await self._reply(ws_frames.acked(request_id, reply.body, tail))

    async def _publish(self, request_id: RequestId, command: Publish, started: int) -> None:
        name = check_topic_name(command.topic)
        authorise(self._principal, CONFIGURE if command.configures else PUBLISH, name)
        reply = await self._live.shards.call(name, "append", self._append_head(command), command.body())
        tail = performance((perf_counter_ns() - started) / 1e6, reply.head["perf"])
        await self._reply(ws_frames.ack(request_id, reply.body, tail))

    def _append_head(self, command: Publish) -> dict[str, Any]:
        head: dict[str, Any] = {"topic": command.topic, "return_seqs": command.return_seqs is not False}
        if self._principal.prefixes:
            head["prefixes"] = self._principal.prefixes
        return head


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
