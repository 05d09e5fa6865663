"""A call as its server sees it.

A handler is a plain function, called by the reader; it answers at once, later from anywhere on the same trio thread,
or from a task of its own (`run`). Whatever happens a call is answered at most once, and a call whose caller is gone
(cancelled, past its deadline, disconnected) is `cancelled`: its callbacks fire, its task is cancelled, and answers to
it are silently dropped.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVarTuple, Unpack

import trio

from topics.rpc.errors import CallCancelled
from topics.rpc.failures import encode_error
from topics.rpc.wire import ERROR, ITEM, REPLY, Body, pack_head, pieces_of

if TYPE_CHECKING:
    from topics.rpc.server import ServerConnection

logger = logging.getLogger(__name__)

ArgsT = TypeVarTuple("ArgsT")
Handler = Callable[["Call"], None]


class Call:
    __slots__ = (
        "_body",
        "_callbacks",
        "_credits",
        "_id",
        "_link",
        "_lot",
        "_unheard",
        "cancelled",
        "deadline_ms",
        "expires",
        "finished",
        "head",
        "method",
    )

    def __init__(
        self,
        link: "ServerConnection",
        call_id: int,
        method: str,
        head: dict[str, Any],
        body: bytes | list[bytes],
        credits: int,
        deadline_ms: int | None,
        expires: float,
    ) -> None:
        self.method = method
        self.head = head
        self._body = body
        self.deadline_ms = deadline_ms  # what was left of the caller's deadline when it sent the call
        self.expires = expires
        self.cancelled = False  # nobody waits for an answer any more
        self.finished = False  # answered, or cancelled
        self._link = link
        self._id = call_id
        self._credits = credits
        self._lot = trio.lowlevel.ParkingLot() if credits else None  # senders that wait for credits
        self._callbacks: list[Callable[[], object]] | None = None
        self._unheard: Callable[[], object] | None = None

    @property
    def body(self) -> bytes:
        """One that is `in_parts` is put together now, which is work for a thread."""
        if isinstance(self._body, list):
            self._body = b"".join(self._body)
        return self._body

    def give_body(self) -> object:
        """For whoever has decoded it, to let go of where that may take its time: a large one takes a millisecond."""
        body, self._body = self._body, b""
        return body

    @property
    def in_parts(self) -> bool:
        return isinstance(self._body, list)

    @property
    def body_bytes(self) -> int:
        return sum(map(len, self._body)) if isinstance(self._body, list) else len(self._body)

    def reply(self, head: Mapping[str, Any], body: Body = b"") -> None:
        """Answer; ends a stream too. What cannot be sent (too large, not msgpack) becomes an error at the caller."""
        if self._refused():
            return
        try:
            self._link.outbox.put(REPLY, self._id, pack_head(head), body)
        except Exception as error:
            self.fail(error)
        else:
            self._finish()

    def fail(self, error: BaseException) -> None:
        """Answer with an error. Anything but a TopicsError is logged here and arrives as `internal`."""
        if self._refused():
            return
        self._link.outbox.put(ERROR, self._id, encode_error(error, self.method))
        self._finish()

    def run(self, async_fn: Callable[[Unpack[ArgsT]], Awaitable[object]], *args: *ArgsT) -> None:
        """Start a task for this call. It is cancelled with the call; an exception from it answers the call."""
        if self._refused():
            return
        self._link.tasks.start_soon(self._run, async_fn, args)

    def on_cancel(self, callback: Callable[[], object]) -> None:
        """Call back, synchronously, when nobody waits any more (at once if so already); not after an answer."""
        if self.cancelled:
            self._call_back(callback)
        elif not self.finished:
            self._callbacks = [*(self._callbacks or ()), callback]

    def if_unheard(self, callback: Callable[[], object]) -> None:
        """To be said before the answer: call back, synchronously, if the caller had gone before that reached it. It is
        told for as long as it is among the last such calls of its connection."""
        self._unheard = callback

    def try_send(self, head: Mapping[str, Any], body: Body = b"") -> bool:
        """One message of a stream, if there is a credit for it and room in the send queue."""
        return self._try_send(pack_head(head), body, pieces_of(body)[1])

    async def send(self, head: Mapping[str, Any], body: Body = b"") -> None:
        """One message of a stream; waits for a credit and for room. Cancelled, this message was not sent.

        Raises CallCancelled if the caller is gone. Other tasks run only when it has to wait, which is at the latest
        when the credits are used up: messages sent in between leave together.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        packed, size = pack_head(head), pieces_of(body)[1]
        while not self._try_send(packed, body, size):
            assert self._lot is not None
            await (self._link.room if self._credits else self._lot).park()

    def grant(self, credits: int) -> None:
        """For the connection: the caller takes that many more messages."""
        if self._lot is not None:
            self._credits += credits
            self._lot.unpark_all()

    def cancel(self) -> None:
        """For the connection: nobody waits any more. The caller has already forgotten the call."""
        self.cancelled = self.finished = True
        callbacks, self._callbacks = self._callbacks, None
        for callback in callbacks or ():
            self._call_back(callback)
        if self._lot is not None:
            self._lot.unpark_all()
            self._link.room.unpark_all()

    def _try_send(self, packed: bytes, body: Body, size: int) -> bool:
        if self.cancelled:
            raise CallCancelled(f"nobody waits for this call of {self.method} any more")
        if self.finished:
            raise RuntimeError(f"{self.method} sends a message after its answer")
        if self._lot is None:
            raise RuntimeError(f"{self.method} was called for one reply, not for a stream")
        if not self._credits or not self._link.outbox.has_room(len(packed) + size):
            return False
        self._credits -= 1
        self._link.outbox.put(ITEM, self._id, packed, body)
        return True

    def _refused(self) -> bool:
        if self.finished and not self.cancelled:
            raise RuntimeError(f"{self.method} was already answered")
        return self.finished

    def _finish(self) -> None:
        self.finished = True
        self._callbacks = None
        self._link.calls.pop(self._id, None)
        if self._unheard is not None:
            unheard, self._unheard = self._unheard, None  # it leads back here
            self._link.answered(self._id, partial(self._call_back, unheard))

    async def _run(self, async_fn: Callable[[Unpack[ArgsT]], Awaitable[object]], args: tuple[*ArgsT]) -> None:
        scope = trio.CancelScope()
        self.on_cancel(scope.cancel)
        try:
            with scope:
                await async_fn(*args)
        except Exception as error:
            self.failed(error)

    def failed(self, error: Exception) -> None:
        """For whoever runs the handler: it raised."""
        if isinstance(error, CallCancelled):
            return
        if self.finished:
            logger.error("%s failed after it was answered or cancelled", self.method, exc_info=error)
        else:
            self.fail(error)

    def _call_back(self, callback: Callable[[], object]) -> None:
        try:
            callback()
        except Exception:
            logger.exception("a cancel callback of %s failed", self.method)
