"""The committer: one thread that writes groups of frames and syncs them, while the loop goes on.

Frames that wait when the thread is free make up the next group, so the group grows with the load and a lone write is
synced at once. A group in which nobody waits for the sync is written at once too, but synced only when a later one
needs it or SYNC_TIMER_MS have passed; so a killed process loses nothing that reached `write`.

A failed write or sync is never tried again: the thread ends, and the shard is poisoned.
"""

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

import trio

from topics import limits
from topics.board import FSYNC_BOUNDS_US as BUCKETS_US
from topics.rpc.turns import turns
from topics.shards.store import Store
from topics.shards.wal import Frame

Group = tuple[list[Frame], bool]  # frames, and whether somebody waits for their sync


class Groups(Protocol):
    """A queue between the loop and the committer's thread; `get` blocks the thread, and raises queue.Empty."""

    def put(self, group: Group | None) -> None: ...
    def get(self, *, timeout: float | None = None) -> Group | None: ...


class Joinable(Protocol):
    def join(self) -> None: ...


class Threads:
    """Where the committer gets its thread from; a simulation has its own kind, whose turns it chooses."""

    def groups(self) -> Groups:
        return queue.SimpleQueue[Any]()

    def end_of_turn(self) -> Callable[[Callable[[], None]], None]:
        """How to have something done at the end of this turn of the loop."""
        return turns().at_end

    def start(self, work: Callable[[], None]) -> Joinable:
        thread = threading.Thread(target=work, name="committer", daemon=True)
        thread.start()
        return thread


class SyncTimes:
    """How long syncs took, as a histogram. Written by the committer's thread only."""

    def __init__(self) -> None:
        self.buckets = [0] * (len(BUCKETS_US) + 1)
        self.count = 0
        self.sum_us = 0
        self.last_us = 0

    def add(self, seconds: float) -> None:
        micros = int(seconds * 1_000_000)
        self.buckets[next((i for i, bound in enumerate(BUCKETS_US) if micros <= bound), len(BUCKETS_US))] += 1
        self.count += 1
        self.sum_us += micros
        self.last_us = micros


class Committer:
    """Owns the log while it runs. All methods are for the loop's thread unless they say otherwise."""

    def __init__(self, store: Store, on_poison: Callable[[str], None], threads: Threads) -> None:
        self._store = store
        self._engine = store.engine
        self._on_poison = on_poison
        self._token = trio.lowlevel.current_trio_token()
        self._groups = threads.groups()
        self._at_end_of_turn = threads.end_of_turn()
        self._busy = False
        self._scheduled = False
        self._dead = False
        self._applying = False  # there is more of what is durable, or may go on, than fitted into a turn
        self._engine.crowds.on_more = self._go_on
        self._synced = trio.Event()
        self.rotated = trio.Event()
        self.sync_times = SyncTimes()
        self.batches = 0
        self._unsynced_since_ns: int | None = None  # the thread's own
        self._thread = threads.start(self._run)

    def kick(self) -> None:
        """A frame was queued. The group is closed at the end of this turn of the loop."""
        if not self._busy and not self._scheduled:
            self._scheduled = True
            self._at_end_of_turn(self._hand_over)

    async def flushed(self, lsn: int | None = None) -> None:
        """Wait until everything up to `lsn` is durable; without it until nothing is under way: all that was ever queued
        is, and what waited for it has gone on. Returns if the log has failed."""
        engine = self._engine
        while not self._dead:
            below = engine.log.last_lsn if lsn is None else lsn
            if engine.log.durable_lsn >= below and not (lsn is None and engine.crowds.waits):
                break
            await self._synced.wait()

    def end(self) -> None:
        """From now on nothing is written any more but what the thread was given before."""
        self._groups.put(None)

    def stop(self) -> None:
        """End the thread after what it was given; blocks until it has ended."""
        self.end()
        self._thread.join()

    def _hand_over(self) -> None:
        self._scheduled = False
        if self._busy or self._dead:
            return
        awaited = self._engine.awaits_sync
        frames = self._engine.log.take()
        if frames:
            self._busy = True
            self._groups.put((frames, awaited))

    def _done(self, wrote: bool, rotations: int, durable_lsn: int) -> None:
        """The thread is through with a group. It gets the next one first: answers may go out while it works."""
        log = self._engine.log
        log.synced_lsn = max(log.synced_lsn, durable_lsn)
        if wrote:
            self._written(rotations)
        if durable_lsn:
            self._durable(durable_lsn)

    def _written(self, rotations: int) -> None:
        self._busy = False
        self.batches += 1
        if rotations:
            self.rotated.set()
            self.rotated = trio.Event()
        self._hand_over()

    def _durable(self, lsn: int) -> None:
        self._engine.log.synced_lsn = max(self._engine.log.synced_lsn, lsn)
        if not self._applying:
            self._apply()

    def _go_on(self) -> None:
        if not self._applying:
            self._applying = True
            self._tell(self._apply)

    def _apply(self) -> None:
        """Let what is durable happen: now, if that fits a millisecond, else the rest in the next turns of the loop. So
        with those who waited for something else."""
        self._applying = True
        until = time.perf_counter_ns() + limits.YIELD_AFTER_NS

        def has_time(records: int) -> bool:
            return time.perf_counter_ns() + records * limits.TAKE_IN_NS < until

        applied = self._engine.durable(self._engine.log.synced_lsn, has_time)
        self._applying = not (self._engine.crowds.run() and applied)
        self._wake_flushers()
        if self._applying:
            self._tell(self._apply)

    def _wake_flushers(self) -> None:
        self._synced.set()
        self._synced = trio.Event()

    def _failed(self, reason: str) -> None:
        self._dead = True
        self._engine.durable(self._engine.log.synced_lsn)  # what was said to be durable before has happened
        self._engine.poison(reason)
        self._wake_flushers()
        self._on_poison(reason)

    # --- in the thread --------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while (group := self._next_group()) is not None:
                frames, awaited = group
                rotations = self._store.writer.rotations
                if frames:
                    self._store.write_group(frames)
                    if self._unsynced_since_ns is None:
                        self._unsynced_since_ns = self._now_ns()
                lsn = self._sync() if awaited else 0
                self._tell(self._done, frames != [], self._store.writer.rotations - rotations, lsn)
            if self._unsynced_since_ns is not None:
                self._tell(self._durable, self._sync())
        except Exception as error:  # whatever it is, the log's state is unknown from here on
            self._tell(self._failed, f"{type(error).__name__}: {error}")

    def _next_group(self) -> Group | None:
        """The next group; an empty one that awaits a sync when the timer has run out; None at the end."""
        if self._unsynced_since_ns is None:
            return self._groups.get()
        left = limits.SYNC_TIMER_MS / 1e3 - (self._now_ns() - self._unsynced_since_ns) / 1e9
        if left <= 0:
            return [], True
        try:
            return self._groups.get(timeout=left)
        except queue.Empty:
            return [], True

    def _sync(self) -> int:
        """The lsn up to which all is durable now."""
        start = self._now_ns()
        lsn = self._store.sync_log()
        self.sync_times.add((self._now_ns() - start) / 1e9)
        self._unsynced_since_ns = None
        return lsn

    def _now_ns(self) -> int:
        return self._engine.clock.monotonic_ns()

    def _tell(self, report: Callable[..., None], *args: object) -> None:
        with contextlib.suppress(trio.RunFinishedError):  # the loop is gone, nobody waits
            self._token.run_sync_soon(report, *args)
