"""What both ends of a connection share: the hello, one reader, one writer, one sweeper for deadlines.

A link ends exactly once, in `lose`: the reason is kept, the three tasks are cancelled, and every open call learns of
it, in slices if there are many; from the first moment on nothing comes or leaves. No exception of a link ever leaves
it, so one bad peer cannot take a process down.
"""

import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Generic

import outcome
import trio

from topics import limits
from topics.aside import next_please
from topics.rpc.deadlines import Deadlines, EntryT
from topics.rpc.errors import PeerLost, ProtocolError, RpcError, VersionMismatch
from topics.rpc.outbox import Outbox
from topics.rpc.transport import LOST, receiver_of, sender_of, socket_of, write_some
from topics.rpc.turns import turns
from topics.rpc.wire import HELLO, VERSION, Buffer, Decoder, Message, hello

logger = logging.getLogger(__name__)


class Link(Generic[EntryT]):
    def __init__(self, stream: trio.abc.Stream, *, collect_all: bool) -> None:
        self.reason: RpcError | None = None  # why it ended
        self.calls: dict[int, EntryT] = {}
        self.outbox = Outbox()
        self.room = trio.lowlevel.ParkingLot()  # tasks that wait for the send queue to drain
        self.decoder = Decoder(wanted=None if collect_all else self.calls)
        self._stream = stream
        self._receive = receiver_of(stream, self.decoder)
        self._scope = trio.CancelScope()
        self._early: list[Message] = []  # what came in one read with the hello
        self._untold: Iterator[int] = iter(())  # once it is lost: calls that have not learned of it
        self._deadlines = Deadlines(self.calls)
        self._sweeping = False
        self._sweep_wanted = trio.Event()

    async def greet(self) -> None:
        """Exchange hellos. On any failure, and on cancellation, the stream is closed."""
        try:
            with trio.move_on_after(limits.RPC_HELLO_TIMEOUT_MS / 1000):
                await self._stream.send_all(hello())
                self._check_hello(await self._first_messages())
                return
            raise ProtocolError(f"the peer sent no hello within {limits.RPC_HELLO_TIMEOUT_MS} ms")
        except LOST as error:
            await self._give_up(PeerLost("the peer closed the connection before its hello"), error)
        except RpcError as error:
            await self._give_up(error, error.__cause__)
        except BaseException:
            await trio.aclose_forcefully(self._stream)
            raise

    async def run(self) -> None:
        """Serve the connection until it is lost; returns then. Cancelling it closes the connection."""
        self._turns, self._token = turns(), trio.lowlevel.current_trio_token()
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._guard, self._write)
                    nursery.start_soon(self._guard, self._sweep)
                    await self._guard(self._read)
        finally:
            self.lose(PeerLost("the connection was closed at this side"))
            try:
                await trio.aclose_forcefully(self._stream)
            finally:
                while not self._tell_lost():  # also if everything ends: it is not for long
                    await trio.lowlevel.cancel_shielded_checkpoint()

    def lose(self, reason: RpcError) -> None:
        """End the link now: open calls fail or are cancelled, its tasks stop. Only the first reason counts."""
        if self.reason is not None:
            return
        self.reason = reason
        self._scope.cancel()
        self._losing()
        self.room.unpark_all()
        self._untold = iter(list(self.calls))
        self._tell_lost()

    def _tell_lost(self) -> bool:
        """Calls learn that the link is lost, as many as fit into a turn; whether all have."""
        assert self.reason is not None
        until = time.perf_counter_ns() + limits.YIELD_AFTER_NS
        for call_id in self._untold:
            call = self.calls.pop(call_id, None)
            if call is not None:  # else its caller has given it up meanwhile
                self._lost(call, self.reason)
            if time.perf_counter_ns() > until:
                return False
        return True

    def expiry(self, deadline_ms: int) -> float:
        """When a call opened now runs out. The call must be in `calls` before the next await."""
        if not self._sweeping:
            self._sweeping = True
            self._sweep_wanted.set()
        return trio.current_time() + deadline_ms / 1000

    async def _handle(self, messages: list[Message]) -> None:
        """Act on messages; nothing more is read until it returns. An RpcError from here ends the link."""
        raise NotImplementedError

    def _expired(self, call_id: int, call: EntryT) -> None:
        raise NotImplementedError

    def _losing(self) -> None:
        """Before calls learn one by one that the link is lost."""

    def _lost(self, call: EntryT, reason: RpcError) -> None:
        raise NotImplementedError

    async def _give_up(self, error: RpcError, cause: BaseException | None) -> None:
        self.lose(error)
        await trio.aclose_forcefully(self._stream)
        raise error from cause

    async def _first_messages(self) -> list[Message]:
        while True:
            messages = await self._receive()
            if self.decoder.error is not None and not messages:
                raise self.decoder.error
            if messages:
                return messages

    def _check_hello(self, messages: list[Message]) -> None:
        (kind, _, head, _), *self._early = messages
        if kind != HELLO or not isinstance(head, dict):
            raise ProtocolError("the peer did not begin with a hello")
        if head.get("version") != VERSION:
            raise VersionMismatch(
                f"the peer speaks RPC version {head.get('version')!r}, this process speaks {VERSION}",
                {"ours": VERSION, "theirs": repr(head.get("version"))},
            )

    async def _guard(self, loop: Callable[[], Awaitable[None]]) -> None:
        try:
            await loop()
        except RpcError as error:
            self.lose(error)
        except LOST as error:
            reason = PeerLost("the connection to the peer broke")
            reason.__cause__ = error
            self.lose(reason)
        except Exception:
            logger.exception("the RPC link failed")
            self.lose(PeerLost("the connection failed at this side"))

    async def _read(self) -> None:
        messages, self._early = self._early, []
        decoder = self.decoder
        while True:
            await self._handle(messages)
            if decoder.error is not None:
                raise decoder.error
            messages = await self._receive()

    async def _write(self) -> None:
        outbox, send = self.outbox, sender_of(self._stream)
        while True:
            batch = outbox.take() if not outbox.empty else await self._sleep_until_pending()
            if batch:
                await send(batch)
            outbox.sent()
            if not outbox.empty:
                next_please()
                await trio.lowlevel.checkpoint()  # a send is none while the kernel takes it
            if self._may_go_on:
                self.room.unpark_all()

    @property
    def _may_go_on(self) -> bool:
        """Whether somebody waits for room, and there is. Half empty, so that they do not wake for every send."""
        return bool(self.room) and self.outbox.queued_bytes <= limits.RPC_SEND_QUEUE_BYTES // 2

    async def _sleep_until_pending(self) -> list[Buffer]:
        """Until there is something to send that needs this task; it has been taken from the outbox.

        All that is put in one turn of the loop leaves in one send. On a socket it leaves at the end of that turn, and
        this task sleeps on unless the kernel does not take it all.
        """
        task = trio.lowlevel.current_task()
        outbox, sock = self.outbox, socket_of(self._stream)
        asleep = True

        def resume(batch: list[Buffer]) -> None:
            nonlocal asleep
            if asleep:
                asleep = False
                trio.lowlevel.reschedule(task, outcome.Value(batch))

        def flush() -> None:
            if not asleep:
                return
            assert sock is not None
            batch = outbox.take()
            try:
                batch = write_some(sock.fileno(), batch)
            except OSError:
                pass  # the task is to find that out
            else:
                if not batch and not self._may_go_on:
                    outbox.sent()
                    if outbox.empty:
                        outbox.wake = wake
                        return
            self._token.run_sync_soon(resume, batch)

        def wake() -> None:
            outbox.wake = None
            if sock is not None:
                self._turns.at_end(flush)
            else:
                resume([])

        def abort(_: object) -> trio.lowlevel.Abort:
            nonlocal asleep
            asleep, outbox.wake = False, None
            return trio.lowlevel.Abort.SUCCEEDED

        outbox.wake = wake
        batch: list[Buffer] = await trio.lowlevel.wait_task_rescheduled(abort)
        return batch

    async def _sweep(self) -> None:
        """All deadlines of the link by one timer; it sleeps while no open call has one."""
        while True:
            if not self._sweeping:
                self._sweep_wanted = trio.Event()
                await self._sweep_wanted.wait()
            await trio.sleep_until(self._deadlines.next_sweep(trio.current_time()))
            until = time.perf_counter_ns() + limits.YIELD_AFTER_NS
            for passed in self._deadlines.sweep(trio.current_time()):
                if passed is not None and self.calls.pop(passed[0], None) is not None:
                    self._expired(*passed)
                if time.perf_counter_ns() > until:
                    await trio.lowlevel.checkpoint()
                    until = time.perf_counter_ns() + limits.YIELD_AFTER_NS
            self._sweeping = not self._deadlines.is_idle
