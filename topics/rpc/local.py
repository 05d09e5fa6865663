"""A peer in the same process: a call is the handler's call, without sockets or frames.

What passes is copied as if it had travelled (heads through msgpack, bodies into bytes), so neither side sees objects of
the other, and errors arrive as they do between processes. There are no streams.
"""

from collections.abc import Awaitable, Callable, Mapping
from math import inf
from typing import Any, TypeVarTuple, Unpack

import trio
from trio.lowlevel import Abort, cancel_shielded_checkpoint, current_task, reschedule, wait_task_rescheduled

from topics.errors import INTERNAL, TopicsError
from topics.rpc.calls import Call, Handler
from topics.rpc.connection import Connection
from topics.rpc.errors import DeadlineExceeded
from topics.rpc.failures import decode_error, encode_error
from topics.rpc.open_calls import Reply
from topics.rpc.peer import Peer
from topics.rpc.wire import Body, pack_head, pieces_of, unpack_head

ArgsT = TypeVarTuple("ArgsT")


class LocalPeer(Peer):
    """`handlers` is asked at each call; tasks that handlers start live in `nursery`."""

    def __init__(self, handlers: Callable[[], Mapping[str, Handler]], nursery: trio.Nursery) -> None:
        super().__init__("", nursery)
        self._handlers = handlers

    async def call(
        self, method: str, head: Mapping[str, Any], body: Body = b"", *, deadline_ms: int | None = None
    ) -> Reply:
        """As `Connection.call`. Cancelled, or past its deadline, the handler is told as if its caller had gone."""
        call = LocalCall(self._nursery, method, unpack_head(pack_head(head)), whole(body), deadline_ms)
        self._open(call)
        if call.finished:
            await cancel_shielded_checkpoint()
        elif deadline_ms is None:
            await call.wait()
        else:
            with trio.move_on_after(deadline_ms / 1000):
                await call.wait()
        if call.answer is None:
            raise DeadlineExceeded("the deadline passed before the peer answered")
        if isinstance(call.answer, TopicsError):
            raise call.answer
        return call.answer

    def sends_at_once(self, size: int) -> bool:
        return True

    async def connect(self) -> Connection:
        raise RuntimeError("calls within a process have no connection, and no streams")

    def _open(self, call: "LocalCall") -> None:
        handler = self._handlers().get(call.method)
        try:
            if handler is None:
                raise TopicsError(INTERNAL, f'method "{call.method}" is not served here')
            handler(call)
        except Exception as error:
            call.failed(error)


class LocalCall(Call):
    """A call whose caller waits in the same loop."""

    __slots__ = ("_task", "_tasks", "answer")

    def __init__(
        self, tasks: trio.Nursery, method: str, head: dict[str, Any], body: bytes, deadline_ms: int | None
    ) -> None:
        self.method, self.head, self._body = method, head, body
        self.deadline_ms, self.expires = deadline_ms, inf
        self.cancelled = self.finished = False
        self.answer: Reply | TopicsError | None = None
        self._tasks = tasks
        self._task: trio.lowlevel.Task | None = None
        self._lot = self._callbacks = None
        self._credits = 0

    async def wait(self) -> None:
        """Until it is answered."""
        self._task = current_task()

        def abort(_: object) -> Abort:
            self._task = None
            self.cancel()
            return Abort.SUCCEEDED

        await wait_task_rescheduled(abort)

    def reply(self, head: Mapping[str, Any], body: Body = b"") -> None:
        if self._refused():
            return
        try:
            self._answer(Reply(unpack_head(pack_head(head)), whole(body)))
        except Exception as error:
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        if not self._refused():
            self._answer(decode_error(unpack_head(encode_error(error, self.method))))

    def run(self, async_fn: Callable[[Unpack[ArgsT]], Awaitable[object]], *args: *ArgsT) -> None:
        if not self._refused():
            self._tasks.start_soon(self._run, async_fn, args)

    def _answer(self, answer: Reply | TopicsError) -> None:
        self.finished = True
        self._callbacks = None
        self.answer = answer
        task, self._task = self._task, None
        if task is not None:
            reschedule(task)


def whole(body: Body) -> bytes:
    return body if type(body) is bytes else b"".join(pieces_of(body)[0])
