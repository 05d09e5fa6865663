"""The calling end of a connection.

A caller puts its message into the outbox and parks; the reader wakes it with the reply. There is no task, lock,
event or cancel scope per call. If the caller is cancelled, or its deadline passes, the server is told with a CANCEL and
a late reply is ignored.
"""

from collections.abc import Callable, Mapping
from math import inf
from typing import Any

import trio
from trio.lowlevel import current_task, wait_task_rescheduled

from topics import limits
from topics.rpc.errors import (
    DeadlineExceeded,
    PeerLost,
    ProtocolError,
    RpcError,
    SendQueueFull,
    TooManyCalls,
)
from topics.rpc.failures import decode_error
from topics.rpc.link import Link
from topics.rpc.open_calls import OpenCall, Reply, Stream, Told
from topics.rpc.wire import CALL, CANCEL, CREDIT, ERROR, ITEM, REPLY, Body, Message, encode, pack_head, pieces_of


class Connection(Link[OpenCall | Told | Stream]):
    """Calls to one peer. Made by `connect` or `connect_unix`; of no use any more once it is `lost`."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        super().__init__(stream, collect_all=False)
        self.when_lost: Callable[[], None] | None = None
        self._last_id = 0
        self._waiting = 0  # callers that wait for room in the send queue
        self._calls_max = limits.RPC_INFLIGHT_MAX
        # Up to so many bytes queued there is room for any message; negative once the connection is lost.
        self._easy_bytes = min(limits.RPC_SEND_QUEUE_BYTES // 4, limits.RPC_BODY_MAX)

    @property
    def lost(self) -> bool:
        return self.reason is not None

    async def call(
        self, method: str, head: Mapping[str, Any], body: Body = b"", *, deadline_ms: int | None = None
    ) -> Reply:
        """One message there, one back.

        Raises the TopicsError the server failed with, or PeerLost, DeadlineExceeded, TooManyCalls, SendQueueFull,
        HeadTooLarge, BodyTooLarge. Cancelled, it tells the server; whether the call took effect is then unknown.
        """
        packed = pack_head((method, deadline_ms, 0, head))
        size = len(packed) + (len(body) if type(body) is bytes else pieces_of(body)[1])
        outbox, calls = self.outbox, self.calls
        if outbox.queued_bytes + size > self._easy_bytes or len(calls) + self._waiting >= self._calls_max:
            deadline_ms = await self._admit(size, body, deadline_ms)
            packed = pack_head((method, deadline_ms, 0, head))
        expires = inf if deadline_ms is None else self._deadline(deadline_ms)
        call_id = self._last_id = self._last_id + 1
        outbox.put(CALL, call_id, packed, body)
        calls[call_id] = OpenCall(current_task(), expires)

        def abort(_: object) -> trio.lowlevel.Abort:
            self.abandon(call_id)
            return trio.lowlevel.Abort.SUCCEEDED

        reply: Reply = await wait_task_rescheduled(abort)
        return reply

    def begin(self, told: Told, method: str, head: Mapping[str, Any], body: bytes, deadline_ms: int) -> bool:
        """As `call`, without a task that waits. False if it would have to wait for room: nothing was sent then."""
        packed = pack_head((method, deadline_ms, 0, head))
        outbox, calls = self.outbox, self.calls
        if outbox.queued_bytes + len(packed) + len(body) > self._easy_bytes:
            return False
        if len(calls) + self._waiting >= self._calls_max:
            return False
        told.expires = self.expiry(deadline_ms)
        call_id = self._last_id = self._last_id + 1
        outbox.put(CALL, call_id, packed, body)
        calls[call_id] = told
        told.began(self, call_id)
        return True

    def sends_at_once(self, size: int) -> bool:
        """Whether a call of so many bytes, made now, arrives before all that are made after it. Larger ones leave
        piece by piece, and others overtake them."""
        if size > limits.RPC_JOIN_BYTES or self.outbox.queued_bytes + size > self._easy_bytes:
            return False
        return len(self.calls) + self._waiting < self._calls_max

    def stream(
        self,
        method: str,
        head: Mapping[str, Any],
        body: Body = b"",
        *,
        credits: int = limits.RPC_CREDITS_DEFAULT,
        deadline_ms: int | None = None,
    ) -> Stream:
        """One message there, many back, at most `credits` of them ahead of the consumer."""
        return Stream(self, method, head, body, credits=credits, deadline_ms=deadline_ms)

    def lose(self, reason: RpcError) -> None:
        self._easy_bytes = -1
        super().lose(reason)
        tell, self.when_lost = self.when_lost, None
        if tell is not None:
            tell()

    async def aclose(self) -> None:
        """Close now; open calls fail with PeerLost."""
        self.lose(PeerLost("the connection was closed at this side"))
        await trio.aclose_forcefully(self._stream)

    async def open_stream(
        self, entry: Stream, method: str, head: Mapping[str, Any], body: Body, credits: int, deadline_ms: int | None
    ) -> int:
        packed = pack_head((method, deadline_ms, credits, head))
        size = len(packed) + pieces_of(body)[1]
        await trio.lowlevel.checkpoint()
        deadline_ms = await self._admit(size, body, deadline_ms)
        packed = pack_head((method, deadline_ms, credits, head))
        entry.expires = inf if deadline_ms is None else self._deadline(deadline_ms)
        call_id = self._last_id = self._last_id + 1
        self.outbox.put(CALL, call_id, packed, body)
        self.calls[call_id] = entry
        return call_id

    def grant(self, call_id: int, credits: int) -> None:
        if self.reason is None:
            self.outbox.put(CREDIT, call_id, pack_head(credits))

    def abandon(self, call_id: int) -> None:
        """Nobody waits for this call any more: tell the server, ignore what still comes."""
        if self.calls.pop(call_id, None) is not None:
            self._tell_cancelled(call_id)

    def disown(self, call_id: int) -> None:
        """The answer of this call is of no use to anybody: tell the server, which may care (`Call.if_unheard`)."""
        self.outbox.drop(call_id, encode(CANCEL, call_id))

    def _tell_cancelled(self, call_id: int) -> None:
        self.decoder.forget(call_id)
        self.outbox.drop(call_id, encode(CANCEL, call_id))

    def _raise_if_lost(self) -> None:
        if self.reason is not None:
            raise self.reason.again()

    def _deadline(self, deadline_ms: int) -> float:
        if deadline_ms <= 0:
            raise DeadlineExceeded("the deadline had passed before the call was sent")
        return self.expiry(deadline_ms)

    async def _admit(self, size: int, body: Body, deadline_ms: int | None) -> int | None:
        """A closer look at a call: may it ever go out, and does it have to wait? What is left of its deadline."""
        self._raise_if_lost()
        pieces_of(body)  # raises if it is too large
        if len(self.calls) + self._waiting >= self._calls_max:
            raise TooManyCalls(f"{self._calls_max} calls are open on this connection")
        if self.outbox.has_room(size):
            return deadline_ms
        return await self._wait_for_room(size, deadline_ms)

    async def _wait_for_room(self, size: int, deadline_ms: int | None) -> int | None:
        """Wait until the send queue takes this message; what is left of the deadline then.

        Bounded by the deadline, by RPC_SEND_WAIT_MS, and in number by RPC_INFLIGHT_MAX. Cancelled here, nothing was
        sent. The cancel scope is affordable: only calls to a peer that does not keep up come here.
        """
        started = trio.current_time()
        patience_ms = min(limits.RPC_SEND_WAIT_MS, inf if deadline_ms is None else deadline_ms)
        self._waiting += 1
        try:
            with trio.move_on_after(patience_ms / 1000) as scope:
                while not self.outbox.has_room(size):
                    await self.room.park()
                    self._raise_if_lost()
        finally:
            self._waiting -= 1
        if scope.cancelled_caught and patience_ms != deadline_ms:
            raise SendQueueFull(f"the peer left the send queue full for {patience_ms} ms")
        if deadline_ms is None:
            return None
        left_ms = deadline_ms - int((trio.current_time() - started) * 1000)
        if scope.cancelled_caught or left_ms <= 0:
            raise DeadlineExceeded("the deadline passed while the call waited for room in the send queue")
        return left_ms

    async def _handle(self, messages: list[Message]) -> None:
        calls = self.calls
        for kind, call_id, head, body in messages:
            if kind == ERROR:
                error = decode_error(head)
                call = calls.pop(call_id, None)
                if call is not None:
                    call.reject(error)
            elif type(head) is not dict:
                raise ProtocolError(f"the peer sent a frame of kind {kind} without a map")
            elif kind == REPLY:
                call = calls.pop(call_id, None)
                if call is not None:  # else its caller was cancelled meanwhile
                    call.resolve(Reply(head, body))
            elif kind == ITEM:
                call = calls.get(call_id)
                if call is not None:
                    call.receive(Reply(head, body))
            else:
                raise ProtocolError(f"a server does not send frames of kind {kind}")

    def _expired(self, call_id: int, call: OpenCall | Told | Stream) -> None:
        self._tell_cancelled(call_id)
        call.reject(DeadlineExceeded("the deadline passed before the peer answered"))

    def _lost(self, call: OpenCall | Told | Stream, reason: RpcError) -> None:
        call.reject(reason.again())


async def connect(stream: trio.abc.Stream, nursery: trio.Nursery) -> Connection:
    """Greet the server at the other end of `stream`; the connection's tasks then live in `nursery`.

    The nursery never sees an exception of the connection. Cancelled here, the stream is closed.
    """
    connection = Connection(stream)
    await connection.greet()
    nursery.start_soon(connection.run)
    return connection
