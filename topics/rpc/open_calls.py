"""What a caller waits with: for one reply (`OpenCall`), or for a stream of messages (`Stream`)."""

from collections import deque
from collections.abc import Mapping
from math import inf
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import trio
from outcome import Error
from trio.lowlevel import reschedule

from topics.errors import TopicsError
from topics.rpc.errors import ProtocolError

if TYPE_CHECKING:
    from topics.rpc.connection import Connection
    from topics.rpc.wire import Body


class Reply(NamedTuple):
    head: dict[str, Any]
    body: bytes


class Told:
    """Somebody who is told the outcome of one call instead of waiting for it: `resolve` or `reject` runs in the link's
    reader, must be quick and must not raise. See `Connection.begin`.
    """

    __slots__ = ("_call_id", "_connection", "expires")

    expires: float

    def began(self, connection: "Connection", call_id: int) -> None:
        self._connection = connection
        self._call_id = call_id

    def abandon(self) -> None:
        """Not interested any more: the server is told, and nothing more is heard."""
        self._connection.abandon(self._call_id)

    def disown(self) -> None:
        """The answer has come and is of no use to anybody."""
        self._connection.disown(self._call_id)

    def resolve(self, reply: Reply) -> None:
        raise NotImplementedError

    def reject(self, error: TopicsError) -> None:
        raise NotImplementedError

    def receive(self, item: Reply) -> None:
        raise ProtocolError("the peer streams on a call that asked for one reply")


class OpenCall:
    """A task parked until its one reply comes.

    It is itself the outcome its task resumes with: trio only asks that for `unwrap`, and an `outcome.Value` per call
    would cost a tenth of the whole round trip.
    """

    __slots__ = ("expires", "reply", "task")

    def __init__(self, task: trio.lowlevel.Task, expires: float) -> None:
        self.task = task
        self.expires = expires

    def resolve(self, reply: Reply) -> None:
        self.reply = reply
        reschedule(self.task, self)  # type: ignore[arg-type]

    def unwrap(self) -> Reply:
        return self.reply

    def reject(self, error: TopicsError) -> None:
        reschedule(self.task, Error(error))

    def receive(self, item: Reply) -> None:
        raise ProtocolError("the peer streams on a call that asked for one reply")


class Stream:
    """The messages of one call: `async with connection.stream(…) as stream: async for message in stream: …`.

    At most `credits` messages are buffered here; consumed ones are paid back to the server in halves of that. The
    server's final reply ends the iteration and is then in `result`; its error, or the loss of the peer, is raised
    once the messages before it are consumed. Leaving the block early cancels the call at the server.

    Taking a buffered message is no checkpoint: after at most `credits` of them the iteration parks.
    """

    def __init__(
        self,
        connection: "Connection",
        method: str,
        head: Mapping[str, Any],
        body: "Body",
        *,
        credits: int,
        deadline_ms: int | None,
    ) -> None:
        if credits < 1:
            raise ValueError("a stream needs at least one credit")
        self.expires = inf
        self.result: Reply | None = None
        self._connection = connection
        self._request = (method, head, body)
        self._deadline_ms = deadline_ms
        self._credits = credits
        self._granted = credits  # messages the server may still send
        self._consumed = 0  # since credits were last paid back
        self._buffer: deque[Reply] = deque()
        self._error: TopicsError | None = None
        self._task: trio.lowlevel.Task | None = None
        self._id = 0

    async def __aenter__(self) -> Self:
        method, head, body = self._request
        self._id = await self._connection.open_stream(self, method, head, body, self._credits, self._deadline_ms)
        self._request = ("", {}, b"")  # the body is not needed for the life of the stream
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.abandon()

    def abandon(self) -> None:
        """Cancel the call at the server, if it is not over."""
        if not self._ended:
            self._connection.abandon(self._id)
        self._buffer.clear()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Reply:
        while not self._buffer:
            if self._error is not None:
                raise self._error
            if self.result is not None:
                raise StopAsyncIteration
            await self._park()
        item = self._buffer.popleft()
        self._consumed += 1
        if self._consumed * 2 >= self._credits and not self._ended:
            self._connection.grant(self._id, self._consumed)
            self._granted += self._consumed
            self._consumed = 0
        return item

    @property
    def _ended(self) -> bool:
        return self.result is not None or self._error is not None

    def resolve(self, reply: Reply) -> None:
        self.result = reply
        self._wake()

    def reject(self, error: TopicsError) -> None:
        self._error = error
        self._wake()

    def receive(self, item: Reply) -> None:
        if not self._granted:
            raise ProtocolError("the peer sent more messages than it had credits for")
        self._granted -= 1
        self._buffer.append(item)
        self._wake()

    def _wake(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            reschedule(task)

    async def _park(self) -> None:
        """Cancelled here, the stream is unchanged and may be iterated again."""
        if self._task is not None:
            raise trio.BusyResourceError("another task already iterates this stream")
        self._task = trio.lowlevel.current_task()

        def abort(_: object) -> trio.lowlevel.Abort:
            self._task = None
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)
