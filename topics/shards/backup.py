"""A shard's part in a backup: hold still, and say where the log is.

    method          head   reply head
    backup.hold            a stream: one message when files hold still; they do so until the caller ends the stream.
                           Copies that routers make again after a crash are waited for, for a while
    backup.pause           (empty) when nothing is under way to other shards any more
    backup.cut             lsn, now_ms: everything acked so far is in the log up to this lsn, and durable
    backup.held            (empty) if the files have held still until now
    backup.resume          paused: whether nothing went to other shards from the pause until now

Whoever makes the backup copies the files itself (topics/cli/backups). While they hold still no checkpoint is made: no
file goes, no delete flag flips, and the snapshot and the log from it on are one state. The log grows meanwhile, so this
ends after BACKUP_HOLD_MS, or when the log has grown by BACKUP_LOG_BYTES: a slow backup fails rather than the writes. It
also ends with its caller and when the shard stops. A pause ends by itself after BACKUP_PAUSE_MS. Nothing is stored.
"""

from collections.abc import Awaitable, Callable, Mapping

import trio

from topics import errors, limits
from topics.errors import TopicsError
from topics.rpc.calls import Call, Handler
from topics.shards.committer import Committer
from topics.shards.peers import Gate
from topics.shards.store import Store

Parts = Callable[[], tuple[Store, Committer]]
CHECK_S = 0.05


class Backups:
    """`parts` are the shard's once it is ready; it raises `not_ready` before."""

    def __init__(self, parts: Parts, checkpoint: Callable[[], Awaitable[object]], still: trio.Lock, gate: Gate) -> None:
        self._parts = parts
        self._checkpoint = checkpoint
        self._still = still
        self._gate = gate
        self._held = False
        self._paused: trio.Event | None = None  # set when the pause there is ends
        self._scope: trio.CancelScope | None = None  # of the hold there is

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "backup.hold": lambda call: call.run(self._hold, call),
            "backup.pause": lambda call: call.run(self._pause, call),
            "backup.cut": lambda call: call.run(self._cut, call),
            "backup.resume": self._resume,
            "backup.held": self._confirm,
        }

    def end(self) -> None:
        """The shard stops: let go."""
        if self._scope is not None:
            self._scope.cancel()

    async def _hold(self, call: Call) -> None:
        store, _ = self._parts()
        if self._scope is not None:
            raise _later("another backup is being made")
        with trio.CancelScope() as self._scope:
            try:
                await _until_refilled(store)
                await self._checkpoint()  # so that little of the log has to be copied
                async with self._still:
                    self._held = True
                    await call.send({})
                    await self._until_too_long(store)
            finally:
                self._held = False
                self._scope = None
                self._open()
        raise _later("files could not hold still any longer: the backup took too long, or the shard stops")

    async def _until_too_long(self, store: Store) -> None:
        grown = store.engine.log.bytes_since_checkpoint + limits.BACKUP_LOG_BYTES
        with trio.move_on_after(limits.BACKUP_HOLD_MS / 1000):
            while True:
                await trio.sleep(CHECK_S)
                if store.engine.log.bytes_since_checkpoint >= grown:
                    return

    async def _pause(self, call: Call) -> None:
        self._check_held()
        with trio.move_on_after(limits.BACKUP_PAUSE_MS / 1000):
            await self._gate.close()
            over = self._paused = trio.Event()
            call.reply({})
            await over.wait()
            return
        self._open()
        if not call.finished:
            raise _later("what is under way to other shards does not come to an end")

    async def _cut(self, call: Call) -> None:
        store, committer = self._parts()
        self._check_held()
        lsn, now_ms = store.engine.log.last_lsn, store.engine.now()
        await committer.flushed(lsn)
        if store.engine.log.durable_lsn < lsn:
            raise _later("the log has failed")
        call.reply({"lsn": lsn, "now_ms": now_ms})

    def _resume(self, call: Call) -> None:
        paused = self._paused is not None
        self._open()
        call.reply({"paused": paused})

    def _confirm(self, call: Call) -> None:
        self._check_held()
        call.reply({})

    def _open(self) -> None:
        if self._paused is not None:
            self._paused.set()
            self._paused = None
        self._gate.open()

    def _check_held(self) -> None:
        if not self._held:
            raise _later("files do not hold still")


async def _until_refilled(store: Store) -> None:
    """Copies that a crash took are being made again: better with them than with the note that they are missing.

    If they do not come, the note is as good in the backup as it is here.
    """
    with trio.move_on_after(limits.BACKUP_REFILL_MS / 1000):
        while True:
            topics = store.engine.state.by_id.values()
            if not any(topic.derived is not None and topic.derived.missing for topic in topics):
                return
            await trio.sleep(CHECK_S)


def _later(message: str) -> TopicsError:
    return TopicsError(errors.NOT_READY, message, {"retry_after_ms": 1000})
