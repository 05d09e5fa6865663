"""One shard, from an empty process to a clean stop.

The socket answers from the first moment: `health` always, everything else with `not_ready` and the replay's progress
until recovery is through. Then five things run beside the calls: the committer's thread, the checkpoint task, the
watch over free space, the timer of long-polls, and the end of idle watch sessions. All tasks live in one nursery; a
failed log ends it.
"""

import gc
import logging
import math
import time
from collections.abc import Callable, Mapping
from functools import partial

import trio

from topics import errors, limits
from topics.aside import run_aside
from topics.clock import Clock, SystemClock
from topics.core.topic import Topic
from topics.errors import TopicsError
from topics.limits import Limits
from topics.rpc.calls import Call, Handler
from topics.shards import space, wal
from topics.shards.backup import Backups
from topics.shards.boardslot import IDLE_SWEEP_S, SWEEP_S, BoardSlot
from topics.shards.checkpoint import Checkpoint, Unneeded
from topics.shards.cold import ColdTier
from topics.shards.cold_files import ColdFiles
from topics.shards.committer import Committer, Threads
from topics.shards.compaction import compact
from topics.shards.expiry import expire_all
from topics.shards.files import Files
from topics.shards.grouplog import GroupLog
from topics.shards.heads import MetricsHead, read_head
from topics.shards.metrics import Totals, collect
from topics.shards.peers import Peers
from topics.shards.queues import Queues
from topics.shards.recovery import Progress, recover
from topics.shards.relocator import Relocator
from topics.shards.routers import Routers
from topics.shards.service import METHODS, Service
from topics.shards.sessions import Sessions
from topics.shards.slices import in_slices
from topics.shards.store import Store
from topics.shards.young import YoungCollections

log = logging.getLogger(__name__)
IDLE_AFTER_S = 1.0
SPACE_CHECK_S = 0.2
MAKE_ROOM_S = 1.0
CHECKPOINT_CHECK_S = 0.25
CHECKPOINT_RETRY_S = (1.0, 15.0)  # the pause after one that failed, doubling up to the second
DRAIN_S = 10.0


class RecoveryStopped(Exception):
    """The shard was asked to stop before its log was replayed. Nothing was changed; the next start begins again."""


class ShardPoisoned(Exception):
    """A write or sync of the log failed; the process must end and start again from disk."""


class Shard:
    def __init__(
        self,
        files: Files,
        bounds: Limits | None = None,
        clock: Clock | None = None,
        slot: BoardSlot | None = None,
        *,
        threads: Threads | None = None,
        peers: Peers | None = None,
        cold: ColdFiles | None = None,
        wal_file_bytes: int = limits.WAL_FILE_BYTES,
        own_process: bool = True,
    ) -> None:
        """Without a `slot` on a board the shard is on its own: it has no caps and tells nobody what it holds. In a
        process that is not its own it leaves the garbage collector as it is."""
        self._slot = slot
        self._files = files
        self._bounds = bounds or Limits()
        self._clock = clock or SystemClock()
        self._threads = threads or Threads()
        self._peers = peers or Peers()
        self._cold = ColdTier(files, cold) if cold is not None else None
        self.relocator: Relocator | None = None
        self._wal_file_bytes = wal_file_bytes
        self._own_process = own_process
        self._closed = False
        self._young = YoungCollections()
        self._progress = 0.0
        self._poisoned = trio.Event()
        self._reason = ""
        self._checkpoints = trio.Lock()
        self._begun = self._made = 0  # numbers of checkpoints: the last that began, and the last that was made
        keep_all = partial(self._checkpoint_alone, [])  # another shard may hold still already: nobody is asked
        self._backups = Backups(self._parts, keep_all, self._checkpoints, self._peers.gate)
        self.store: Store | None = None
        self.service: Service | None = None
        self.committer: Committer | None = None
        self.ready = trio.Event()
        self.orphaned = False  # the server was killed: leases that are not durable end with it, as in any crash
        self.handlers: Mapping[str, Handler] = {
            "health": self.health,
            "metrics": self.metrics,
            "checkpoint": self.checkpoint_now,
            "compact": self.compact,
            **self._backups.handlers(),
            **{name: self._when_ready(name) for name in METHODS},
        }
        self._served: Mapping[str, Handler] = {}

    # --- handlers -------------------------------------------------------------------------------------------------

    def _when_ready(self, method: str) -> Handler:
        def handle(call: Call) -> None:
            handler = self._served.get(method)
            if handler is None or self.store is None:
                raise self._not_ready()
            if self._own_process:
                self._young.note_call(self.store.engine.log)
            handler(call)

        return handle

    def _not_ready(self) -> TopicsError:
        detail = {"replay_progress": round(self._progress, 3), "retry_after_ms": 500}
        return TopicsError(errors.NOT_READY, "the shard is replaying its log", detail)

    def _parts(self) -> tuple[Store, Committer]:
        if self.store is None or self.committer is None:
            raise self._not_ready()
        return self.store, self.committer

    def health(self, call: Call) -> None:
        store = self.store
        call.reply(
            {
                "ready": self.ready.is_set() and not self._poisoned.is_set(),
                "replay_progress": round(self._progress, 3),
                "poisoned": self._reason,
                "draining": self.service is not None and self.service.draining,
                "topics": len(store.engine.state.names) if store is not None else 0,
            }
        )

    def metrics(self, call: Call) -> None:
        if self.store is None or self.committer is None:
            call.reply({"ready": False, "replay_progress": round(self._progress, 3)})
            return
        call.run(self._metrics, call, self.store, self.committer)

    async def _metrics(self, call: Call, store: Store, committer: Committer) -> None:
        totals = Totals()
        await in_slices(totals.add_all(store))
        head = read_head(call.head, MetricsHead)
        rows, prefixes = head.topics, head.prefixes or ()
        await in_slices(totals.add_rows(store, rows, prefixes))
        service = self.service
        assert service is not None
        await in_slices(totals.add_groups(service.groups, rows, prefixes))
        call.reply(collect(store, committer, totals, service.groups, service.reader.damaged_blocks))

    def checkpoint_now(self, call: Call) -> None:
        async def run() -> None:
            await self.checkpoint()
            call.reply({})

        call.run(run)

    def compact(self, call: Call) -> None:
        store, _ = self._parts()

        async def run() -> None:
            call.reply(await compact(store, self._leave_log_file, self.checkpoint))

        call.run(run)

    # --- life -----------------------------------------------------------------------------------------------------

    async def run(self, stop: trio.Event) -> None:
        """Recover, serve until `stop`, then leave a checkpoint behind. Raises ShardPoisoned if the log failed."""
        began = time.perf_counter()
        try:
            await self._recover(stop)
        except RecoveryStopped:
            log.info("stopped before the log was replayed")
            return
        log.info("ready after %.0f ms", (time.perf_counter() - began) * 1000)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch_space)
            nursery.start_soon(self._make_room)
            nursery.start_soon(self._checkpoint_when_due)
            nursery.start_soon(self._prepare_spares)
            nursery.start_soon(self._mark_idle)
            assert self.service is not None and self.store is not None
            self.store.engine.endings.open(nursery)
            nursery.start_soon(self.service.polls.run)
            nursery.start_soon(self.service.sessions.keep_collecting)
            nursery.start_soon(self.service.scheduler.run)
            nursery.start_soon(self.service.queues.run)
            nursery.start_soon(self.service.routers.run)
            nursery.start_soon(self._fail_when_poisoned)
            nursery.start_soon(self._keep_slot)
            nursery.start_soon(self._relocate)
            await stop.wait()
            await self._drain()
            nursery.cancel_scope.cancel()
        self.store.engine.endings.close()
        await self._finish()
        if self._poisoned.is_set():  # asked to stop before it could end by itself: the end is not a clean one
            raise ShardPoisoned(self._reason)

    async def _recover(self, stop: trio.Event) -> None:
        def note(done: float) -> None:
            if stop.is_set():
                raise RecoveryStopped
            self._progress = done
            if self._slot is not None:
                self._slot.set_progress(done)

        committer: Committer | None = None

        def wake() -> None:
            if committer is not None:
                committer.kick()

        if self._own_process:
            gc.disable()  # nothing that recovery makes is garbage
        store, sessions, queues, routers, groups = await trio.to_thread.run_sync(self._bring_back, note, wake)
        store.engine.space_bytes = space.available(store)
        if self._slot is not None:
            self._slot.open(store.engine)
        self.store = store
        committer = self.committer = Committer(store, self._poison, self._threads)
        self.service = Service(store, committer, sessions, queues, routers, groups)
        routers.links.stored = self.stored
        self._served = self.service.handlers()
        if self._own_process:
            gc.freeze()
            gc.enable()
        self.ready.set()

    def _bring_back(
        self, note: Progress, wake: Callable[[], None]
    ) -> tuple[Store, Sessions, Queues, Routers, GroupLog]:
        """In a thread."""
        store = recover(
            self._files, self._clock, self._bounds, progress=note, wal_file_bytes=self._wal_file_bytes, wake=wake,
            cold=self._cold, keep_spent=True,
        )  # fmt: skip
        routers = Routers(store, self._peers)
        return store, Sessions(store), Queues(store, self._peers), routers, GroupLog(store)

    def _poison(self, reason: str) -> None:
        log.error("the log failed, no more writes are taken: %s", reason)
        self._reason = reason
        self._poisoned.set()

    async def _fail_when_poisoned(self) -> None:
        await self._poisoned.wait()
        await trio.sleep(0.05)  # let the refusals reach their callers
        raise ShardPoisoned(self._reason)

    async def _drain(self) -> None:
        """Refuse new writes, let those under way finish, and store what only memory knows."""
        assert self.service is not None and self.committer is not None
        self.service.draining = True
        self._backups.end()
        with trio.move_on_after(DRAIN_S):
            await self.committer.flushed()
            await in_slices(self.service.sessions.save())
            if not self.orphaned:
                self.service.queues.save()
            await self.committer.flushed()

    async def _finish(self) -> None:
        """Store everything, mark the log complete, close."""
        assert self.store is not None and self.committer is not None
        await self._checkpoint_alone([])  # other shards stop too: nobody is asked what it wants
        engine = self.store.engine
        engine.is_ending = True
        with trio.move_on_after(DRAIN_S):  # without the mark the next start reads the log as after a crash
            while not engine.log.ends_idle and engine.poisoned is None:
                engine.go_idle()
                await self.committer.flushed()
        self.committer.end()  # in this very step: behind the mark nothing may follow
        await trio.to_thread.run_sync(self.committer.stop)
        self.store.close()
        self._closed = True

    def abandon(self) -> None:
        """For a process that goes on although `run` failed: nothing touches the files any more when this returns. What
        the disk has is what a crash would have left. Not in the loop: it may block."""
        if self.store is not None and self.committer is not None and not self._closed:
            self.committer.stop()
            self.store.close()

    # --- beside the calls -----------------------------------------------------------------------------------------

    async def checkpoint(self) -> bool:
        """One checkpoint, and whether it was made; only one runs at a time. Cancellation waits until it is whole."""
        assert self.service is not None
        return await self._checkpoint_alone(await self.service.remains.unneeded())

    async def stored(self, topic: Topic) -> bool:
        """Whether a checkpoint has everything that is in a topic now; one is made for it if need be."""
        return await self._checkpoint_alone([], topic)

    async def _checkpoint_alone(self, unneeded: Unneeded, only_for: Topic | None = None) -> bool:
        """One at a time. For a topic that has to be stored, one that began after this was asked for will do."""
        assert self.store is not None
        done, came = True, self._begun
        async with self._checkpoints:
            with trio.CancelScope(shield=True):
                if only_for is None or (only_for.dirty and self._made <= came):
                    number = self._begun = self._begun + 1
                    done = await self._checkpoint(self.store, unneeded)
                    self._made = number if done else self._made
        return done

    async def _checkpoint(self, store: Store, unneeded: Unneeded) -> bool:
        assert self.committer is not None
        work = store.begin_checkpoint(unneeded)
        try:
            await in_slices(work.capture())
            await self.committer.flushed(work.needs_lsn)
            if self._poisoned.is_set():
                await self._abandon(work)
                return False
            await self._store_in_thread(work.write)
        except Exception as error:
            # Whatever it was (no file handle, no space, a bug), what was captured must count as not stored.
            if work.committing:
                self._poison(f"snapshot: {error}")
                return False
            log.warning("checkpoint put off: %s", error, exc_info=not isinstance(error, OSError))
            await self._abandon(work)
            return False
        await in_slices(work.install())
        store.forget(work)
        await self._store_in_thread(work.sweep)
        if self._own_process:
            gc.freeze()
        return True

    async def _abandon(self, work: Checkpoint) -> None:
        """Not cancelled, as all of a checkpoint: what was captured and not given back would never be stored."""
        await in_slices(work.abandon())
        await self._store_in_thread(work.remove_litter)

    async def _store_in_thread(self, work: Callable[[], None]) -> None:
        """Beside other work, and the last thing before the end at once."""
        assert self.service is not None
        await (trio.to_thread.run_sync(work) if self.service.draining else run_aside(work))

    async def _checkpoint_when_due(self) -> None:
        assert self.store is not None
        engine = self.store.engine
        is_damaged = self.store.damaged_ranges > 0  # covered at once: more damage could take what was told
        last = -math.inf if is_damaged else trio.current_time()
        # Of a long replay at once: writes may wait for it. Nobody is asked, as other shards may not be there yet.
        done = not self._has_long_log() or await self._checkpoint_alone([])
        failures = 0 if done else 1
        while True:
            await trio.sleep(pause_before_checkpoint(failures))
            aged = trio.current_time() - last >= limits.CHECKPOINT_INTERVAL_MS / 1000 and (engine.dirty or is_damaged)
            if self._has_long_log() or aged:
                done = await self.checkpoint()
                is_damaged = not done and is_damaged
                failures = 0 if done else failures + 1
                last = trio.current_time()

    def _has_long_log(self) -> bool:
        assert self.store is not None
        return self.store.engine.log.unstored >= limits.CHECKPOINT_WAL_BYTES

    async def _watch_space(self) -> None:
        """Ask how much is free, and give back what many records or keys that left at once still take."""
        assert self.store is not None
        engine = self.store.engine
        while True:
            engine.space_bytes = space.available(self.store)
            await in_slices(engine.memory.sweep(engine.now()))
            await in_slices(engine.graves.bury())
            await trio.sleep(SPACE_CHECK_S)

    async def _make_room(self) -> None:
        """While space is short, or was for somebody, store what the log holds as soon as it holds something.

        Then the log can be cut, and what was deleted goes. Else a full disk would stay so until a checkpoint is due.
        """
        assert self.store is not None
        store, engine, writer = self.store, self.store.engine, self.store.writer
        failures = 0
        while True:
            await trio.sleep(max(MAKE_ROOM_S, pause_before_checkpoint(failures)) if failures else MAKE_ROOM_S)
            short = engine.lacked_space or self._space_bytes() < limits.SPACE_SHORT_BYTES
            engine.lacked_space = False
            unstored = engine.dirty or engine.log.unstored > limits.MIB  # that may all have gone since
            if not short or not (unstored or writer.grown or store.has_unused_files()):
                continue
            await self._leave_log_file()
            failures = 0 if await self.checkpoint() else failures + 1

    def _space_bytes(self) -> float:
        """What is free for new data. Also for threads."""
        known = self.store.engine.space_bytes if self.store is not None else None
        return math.inf if known is None else known

    async def _leave_log_file(self) -> None:
        """Go on in a new log file, so that a checkpoint can let the old one go."""
        assert self.store is not None and self.committer is not None
        if self.store.writer.grown:
            self.store.writer.leave_file = True
            self.store.engine.go_idle(again=True)  # a frame for the new file, so that the old one is complete
            await self.committer.flushed(self.store.engine.log.last_lsn)

    async def _keep_slot(self) -> None:
        """Tell the board how this shard is, and let go what expired in topics that nobody touches."""
        assert self.store is not None and self.committer is not None
        async with trio.open_nursery() as nursery:
            if self._slot is not None:
                nursery.start_soon(self._slot.keep_up_to_date, self.store, self.committer)
            while True:
                await in_slices(expire_all(self.store.engine))
                await trio.sleep(SWEEP_S if self._slot is not None and self._slot.max_bytes else IDLE_SWEEP_S)

    async def _relocate(self) -> None:
        assert self.store is not None
        if self._cold is not None:
            self.relocator = Relocator(self.store, self._cold, self.checkpoint)
            await self.relocator.run()

    async def _prepare_spares(self) -> None:
        assert self.committer is not None
        service = self.service
        assert service is not None

        def go_on(left: int = 0) -> bool:  # whoever ends waits for the thread, and what is admitted comes first
            roomy = self._space_bytes() >= limits.SPACE_SHORT_BYTES + left
            return roomy and not service.draining and not self._poisoned.is_set()

        while True:
            rotated = self.committer.rotated
            try:
                if go_on(self._wal_file_bytes):
                    await run_aside(partial(wal.prepare_spare, go_on=go_on), self._files, self._wal_file_bytes)
            except OSError as error:
                log.warning("no spare log file prepared: %s", error)
            await rotated.wait()

    async def _mark_idle(self) -> None:
        """When nothing has been written for a while, say so in the log."""
        assert self.store is not None
        engine = self.store.engine
        while True:
            before = engine.log.last_lsn
            await trio.sleep(IDLE_AFTER_S)
            if engine.log.last_lsn == before and before:
                engine.go_idle()


def pause_before_checkpoint(failures: int) -> float:
    """How long until the next look at whether one is due: what the log holds would be due again at once."""
    first, longest = CHECKPOINT_RETRY_S
    return min(longest, first * 2 ** min(failures - 1, 10)) if failures else CHECKPOINT_CHECK_S
