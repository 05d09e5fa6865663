"""trio in a thread of its own, for callers in other threads.

The thread is a daemon: a program that ends without `close` ends at once, and the data directory is as after a crash.
A caller that is interrupted (Ctrl-C) while it waits cancels its call; whether it took effect is then unknown.
"""

import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, Generic, Protocol, TypeVar

import trio

from topics import errors
from topics.errors import TopicsError

T = TypeVar("T")


class Served(Protocol):
    """What runs in the loop."""

    def running(self) -> AbstractAsyncContextManager[None]:
        """Ready inside the block; stopped in good order at its end."""

    def drain(self) -> None:
        """No more calls come; those under way finish soon."""


class Task(Generic[T]):
    """One call on its way through the loop."""

    def __init__(self, work: Callable[[], Awaitable[T]]) -> None:
        self.result: Future[T] = Future()
        self.scope = trio.CancelScope()
        self._work = work

    async def run(self) -> None:
        try:
            with self.scope:
                self.result.set_result(await self._work())
        except Exception as error:
            self.result.set_exception(error)
        finally:
            self.refuse()

    def refuse(self) -> None:
        with suppress(InvalidStateError):  # it has its result
            self.result.set_exception(closed())


class Loop:
    def __init__(self, served: Served) -> None:
        self.failure: BaseException | None = None  # why it ended, if not because it was told to
        self._served = served
        self._ready: Future[None] = Future()
        self._stop = trio.Event()
        self._whole = trio.CancelScope()
        self._given_up = False
        self._token: trio.lowlevel.TrioToken | None = None
        self._calls: trio.Nursery | None = None
        self._open: set[Task[Any]] = set()  # calls that somebody waits for
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="topics", daemon=True)

    def start(self) -> None:
        """Returns when calls are served; raises what kept them from it."""
        self._thread.start()
        try:
            self._ready.result()
        except BaseException:
            self._give_up()
            self._thread.join()
            raise

    def call(self, work: Callable[[], Awaitable[T]]) -> T:
        """From any thread but the loop's own. Raises what `work` raises, `shutting_down` when the loop has ended."""
        task = Task(work)
        self._open.add(task)
        try:
            self._post(lambda: self._begin(task))
            if self._ended:  # by a failure that kept it from its last callbacks
                task.refuse()
            return task.result.result()
        except trio.RunFinishedError:
            raise self._reason() from None
        except TopicsError as error:
            if error.code == errors.SHUTTING_DOWN:
                raise self._reason() from None
            raise
        except BaseException:  # an interrupt: the call itself raises nothing but errors of the API
            with suppress(trio.RunFinishedError):
                self._post(task.scope.cancel)
            raise
        finally:
            self._open.discard(task)

    def stop(self) -> None:
        """End in good order and wait for it. Again, or after a failure, it only waits."""
        with suppress(trio.RunFinishedError):
            self._post(self._stop.set)
        self._thread.join()

    # --- in the thread --------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            trio.run(self._main)
        except BaseException as error:
            self.failure = error
            if not self._ready.done():
                self._ready.set_exception(error)
        finally:
            self._ended = True
            for task in tuple(self._open):
                task.refuse()

    async def _main(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        if self._given_up:
            return
        with self._whole:
            async with self._served.running():
                try:
                    async with trio.open_nursery() as self._calls:
                        self._ready.set_result(None)
                        await self._stop.wait()
                        self._served.drain()
                finally:
                    self._calls = None

    def _begin(self, task: Task[T]) -> None:
        if self._calls is None or self._stop.is_set():
            task.refuse()
            return
        try:
            self._calls.start_soon(task.run)
        except RuntimeError:  # the nursery has ended, and the next turn of the loop is about to tell us
            task.refuse()

    # --- everywhere -----------------------------------------------------------------------------------------------

    def _post(self, action: Callable[[], object]) -> None:
        assert self._token is not None
        self._token.run_sync_soon(action)

    def _give_up(self) -> None:
        """Either the thread sees the flag, or we see its token."""
        self._given_up = True
        if self._token is not None:
            with suppress(trio.RunFinishedError):
                self._post(self._whole.cancel)

    def _reason(self) -> TopicsError:
        """Asked when a call was refused: the loop is about to end, or has ended."""
        self._thread.join()
        return failed(self.failure) if self.failure is not None else closed()


def closed() -> TopicsError:
    return TopicsError(errors.SHUTTING_DOWN, "the database is closed")


def failed(failure: BaseException) -> TopicsError:
    while isinstance(failure, BaseExceptionGroup):
        failure = failure.exceptions[0]
    reason = str(failure) or repr(failure)
    said = f"the storage failed ({reason}); close the database and open it again"
    return TopicsError(errors.NOT_READY, said, {"reason": reason})
