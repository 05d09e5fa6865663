"""The serving end of a connection: opens calls, hands them to handlers, cancels them when nobody waits any more.

Backpressure: while more than RPC_SEND_QUEUE_BYTES of answers wait to be read by the peer, no further request is read
from it. The calling end always reads, so the two can never wait for each other.
"""

import time
from collections.abc import Callable, Mapping
from math import inf
from typing import Any

import trio

from topics import limits
from topics.errors import INTERNAL, TopicsError
from topics.rpc.calls import Call, Handler
from topics.rpc.errors import ProtocolError, RpcError, TooManyCalls
from topics.rpc.link import Link, logger
from topics.rpc.wire import CALL, CANCEL, CREDIT, Message


class ServerConnection(Link[Call]):
    def __init__(self, stream: trio.abc.Stream, handlers: Mapping[str, Handler]) -> None:
        super().__init__(stream, collect_all=True)
        self.tasks: trio.Nursery  # of calls that have one; set while `run` runs
        self._handlers = handlers
        self._answered: dict[int, Callable[[], None]] = {}  # what to do if the answer reached nobody, the oldest first

    async def run(self) -> None:
        async with trio.open_nursery() as self.tasks:
            await super().run()
            # The stream is closed and every call cancelled; a task that is still cleaning up is waited for.
            self.tasks.cancel_scope.cancel()

    async def _handle(self, messages: list[Message]) -> None:
        """Slice by slice: other tasks get their turn, and answers leave (and the peer works) while we still do."""
        outbox, queue_bytes = self.outbox, limits.RPC_SEND_QUEUE_BYTES
        until = time.perf_counter_ns() + limits.RPC_SLICE_NS if len(messages) > 1 else 0
        for done, message in enumerate(messages):
            if done and (done % limits.RPC_SLICE_MESSAGES == 0 or time.perf_counter_ns() > until):
                await trio.lowlevel.checkpoint()
                until = time.perf_counter_ns() + limits.RPC_SLICE_NS
            while outbox.queued_bytes > queue_bytes:
                await self.room.park()
            if self.reason is not None:
                return
            self._dispatch(*message)
        while outbox.queued_bytes > queue_bytes:
            await self.room.park()

    def _dispatch(self, kind: int, call_id: int, head: Any, body: bytes | list[bytes]) -> None:
        if kind == CALL:
            self._open(call_id, head, body)
        elif kind == CANCEL:
            self._cancel(call_id)
        elif kind == CREDIT:
            self._grant(call_id, head)
        else:
            raise ProtocolError(f"a client does not send frames of kind {kind}")

    def _open(self, call_id: int, head: Any, body: bytes | list[bytes]) -> None:
        method, deadline_ms, credits, fields = self._check_call(call_id, head)
        expires = inf if deadline_ms is None else self.expiry(deadline_ms)
        call = Call(self, call_id, method, fields, body, credits, deadline_ms, expires)
        if len(self.calls) >= limits.RPC_INFLIGHT_MAX:
            call.fail(TooManyCalls(f"{limits.RPC_INFLIGHT_MAX} calls are open on this connection"))
            return
        self.calls[call_id] = call
        handler = self._handlers.get(method)
        if handler is None:
            call.fail(TopicsError(INTERNAL, f'method "{method}" is not served here'))
            return
        try:
            handler(call)
        except Exception as error:
            call.failed(error)

    def _check_call(self, call_id: int, head: Any) -> tuple[str, int | None, int, dict[str, Any]]:
        if type(head) is not list or len(head) != 4:
            raise ProtocolError("the peer sent a call of unknown form")
        method, deadline_ms, credits, fields = head
        if (
            type(method) is not str
            or type(fields) is not dict
            or type(credits) is not int
            or not (deadline_ms is None or type(deadline_ms) is int)
            or credits < 0
        ):
            raise ProtocolError("the peer sent a call of unknown form")
        if call_id in self.calls:
            raise ProtocolError(f"the peer opened call {call_id} twice")
        return method, deadline_ms, credits, fields

    def _cancel(self, call_id: int) -> None:
        call = self.calls.pop(call_id, None)
        self.outbox.drop(call_id)  # also of a call that is answered but not yet sent
        if call is not None:
            call.cancel()
        elif call_id in self._answered:  # the two crossed, or the caller has no use for the answer
            self._answered.pop(call_id)()

    def answered(self, call_id: int, unheard: Callable[[], None]) -> None:
        """For a call: somebody wants to know if its answer reaches nobody."""
        self._answered[call_id] = unheard
        if len(self._answered) > limits.RPC_UNHEARD_MAX:
            del self._answered[next(iter(self._answered))]

    def _grant(self, call_id: int, credits: Any) -> None:
        if type(credits) is not int or credits < 1:
            raise ProtocolError("the peer sent invalid credits")
        call = self.calls.get(call_id)
        if call is not None:
            call.grant(credits)

    def _expired(self, call_id: int, call: Call) -> None:
        # The caller has its own timer: nothing is sent, and what is queued of this call still leaves.
        call.cancel()

    def _losing(self) -> None:
        for call in self.calls.values():  # whatever they answer from now on is dropped
            call.cancelled = call.finished = True

    def _lost(self, call: Call, reason: RpcError) -> None:
        call.cancel()


async def serve(stream: trio.abc.Stream, handlers: Mapping[str, Handler]) -> None:
    """Serve one client until it is gone. Cancelled, the connection closes; never raises for what a peer does."""
    connection = ServerConnection(stream, handlers)
    try:
        await connection.greet()
        await connection.run()
    except RpcError:
        pass  # the hello failed; `reason` has it
    except Exception:
        logger.exception("a task of an RPC call failed while its connection closed")
    if isinstance(connection.reason, ProtocolError):
        logger.warning("closed an RPC connection: %s", connection.reason.message)
