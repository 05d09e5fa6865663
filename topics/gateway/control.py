"""The control lock: changes of routers happen one at a time over all gateways, so that a check of the graph holds.

A flock on a file in the run directory. The kernel frees it when its holder dies. A holder that lives but does not run
makes others fail with `not_ready` after a while.
"""

import fcntl
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from topics import errors, limits
from topics.errors import TopicsError

FILE = "control"


class ControlLock:
    def __init__(self, run_dir: str | None) -> None:
        """Without a run directory there is no other process."""
        self._fd: int | None = None
        if run_dir is not None:
            self._fd = os.open(os.path.join(run_dir, FILE), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._here = trio.Lock()  # a flock does not tell the tasks of one process apart

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Raises `not_ready` if others do not let go of it in time."""
        await self._take()
        try:
            yield
        finally:
            if self._fd is not None:
                fcntl.flock(self._fd, fcntl.LOCK_UN)
            self._here.release()

    async def _take(self) -> None:
        with trio.move_on_after(limits.CONTROL_LOCK_MS / 1000):
            await self._here.acquire()
            try:
                while not self._try():  # noqa: ASYNC110 - other processes cannot set an event here
                    await trio.sleep(limits.CONTROL_LOCK_RETRY_MS / 1000)
            except BaseException:
                self._here.release()
                raise
            return
        message = "other changes of routers take long; retry in a moment"
        raise TopicsError(errors.NOT_READY, message, {"retry_after_ms": 1000})

    def _try(self) -> bool:
        if self._fd is None:
            return True
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
