"""A world in which a shard's history is a function of a seed: virtual time, threads that take turns, seeded chance.

`deterministic` replaces everything by which real time or chance could get in: the order in which trio runs tasks, its
threads, the clocks that slices of work look at, random bytes and the garbage collector's moments. It also makes limits
so small that a few records fill a segment, a pack, a log file and a ceiling, and need a thread.
"""

import contextlib
import gc
import os
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from typing import Any
from unittest import mock

import trio
import trio._core._run as trio_run
import trio.testing

from topics import limits
from topics.limits import Limits
from topics.rpc.calls import Call, Handler
from topics.rpc.wire import Body
from topics.shards import checkpoint, snapshot
from topics.shards.shard import Shard
from topics.testing.faulty_files import FaultyFiles, SimulatedCrash
from topics.testing.fibers import Fiber, current_fiber

START_MS = 1_700_000_000_000
WAL_FILE_BYTES = 4096
BOUNDS = Limits(segment_events=8, segment_bytes=4096)
SMALL_LIMITS = {
    "CEILING_AHEAD": 8,
    "PACK_TOPIC_BYTES": 1500,
    "CHECKPOINT_WAL_BYTES": 6000,
    "WAL_FILE_BYTES": WAL_FILE_BYTES,
    "WAL_FIRST_FILE_BYTES": 512,
    "SPACE_RESERVE_BYTES": 3000,
    "INLINE_BODY_BYTES": 300,
    "THREAD_BODY_BYTES": 700,
    "INLINE_DELETES": 2,
    "INLINE_BLOCKS": 1,
    "LEASE_EVENTS_MIN": 5,
    "GROUP_EVENTS_MIN": 5,
    "SETTLE_STEP": 3,
    "VERDICT_STEP": 1,
    "RENDER_STEP": 1,
    "WAKE_AT_ONCE": 1,
    "INLINE_VIEWS": 1,
    "FORGET_STEP": 3,
    "DEAD_LETTERS_PER_PASS": 2,
}


class Chance:
    """Every choice of one history."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)

    def hits(self, probability: float) -> bool:
        return self.dice.random() < probability

    def pause_s(self) -> float:
        """How long a thread is away: mostly a moment, sometimes as long as a slow disk takes."""
        return self.dice.choice((0.0, 0.0, 0.0, 0.0001, 0.0004, 0.002, 0.02))


class VirtualClock:
    """The product's clock over trio's virtual one; `skew_ms` is what an operator or NTP does to it."""

    def __init__(self, clock: trio.testing.MockClock) -> None:
        self._clock = clock
        self.skew_ms = 0

    def now_ms(self) -> int:
        return START_MS + self.skew_ms + int(self._clock.current_time() * 1000)

    def monotonic_ns(self) -> int:
        return int(self._clock.current_time() * 1e9)


class SimulatedDisk(FaultyFiles):
    """A disk in memory at whose calls a thread may lose its turn."""

    chance: Chance | None = None
    _log_syncs_left = 0  # until one fails; 0: none will

    def fail_log_sync(self, after: int) -> None:
        """The sync of the log after so many fails."""
        self._log_syncs_left = after + 1

    def _call(self, text: str, *args: Any, **options: Any) -> None:
        self._pause(0.5 if text.startswith("sync") else 0.15)
        if self._log_syncs_left and text.startswith("sync wal/"):
            self._log_syncs_left -= 1
            if not self._log_syncs_left:
                self.fail_at(self.calls)
        super()._call(text, *args, **options)

    def note_read(self, text: str) -> None:
        self._pause(0.15)
        super().note_read(text)

    def sync_dir(self, path: str) -> None:
        """If it fails, the names are as unsynced as before: file systems keep them in a journal, unlike bytes."""
        self._call(f"sync_dir {path}", lambda: self._names.sync_dir(path))

    def _pause(self, probability: float) -> None:
        fiber, chance = current_fiber(), self.chance
        if fiber is not None and chance is not None and chance.hits(probability):
            fiber.wait(partial(trio.sleep, chance.pause_s()))

    def after(self, seed: int, *, power_loss: bool) -> "SimulatedDisk":
        """What the next process finds."""
        survivor = self.crash(seed, power_loss=power_loss)
        survivor.__class__ = SimulatedDisk
        assert isinstance(survivor, SimulatedDisk)
        survivor.chance = self.chance
        return survivor


class MortalStream(trio.abc.Stream):
    """The server's end of a connection. A dead process sends nothing, however far its tasks are still unwinding."""

    def __init__(self, inner: trio.abc.Stream, disk: SimulatedDisk) -> None:
        self._inner = inner
        self._disk = disk

    async def send_all(self, data: Any) -> None:
        self._disk.check_alive()
        await self._inner.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._inner.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        return await self._inner.receive_some(max_bytes)

    async def aclose(self) -> None:
        await self._inner.aclose()


class MortalToken:
    """How threads of a process reach its loop. What arrives after its death finds nobody."""

    def __init__(self) -> None:
        self._token = _current_token()

    def run_sync_soon(self, work: Callable[..., object], *args: object) -> None:
        def arrive() -> None:
            with contextlib.suppress(SimulatedCrash):
                work(*args)

        self._token.run_sync_soon(arrive)


_current_token = trio.lowlevel.current_trio_token


class EpochCall:
    """A call whose reply also says which epochs of its topic it may speak of; clients are never told, checkers are."""

    def __init__(self, call: Call, epoch: Callable[[str], int]) -> None:
        self._call = call
        self._epoch = epoch
        self._first = epoch(call.head.get("topic", ""))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._call, name)

    def reply(self, head: Mapping[str, Any], body: Body = b"") -> None:
        now = self._epoch(self._call.head.get("topic", ""))
        self._call.reply({**head, "epochs": [self._first, now]}, body)


def with_epochs(shard: Shard) -> dict[str, Handler]:
    """The shard's handlers; replies carry `epochs`."""

    def epoch(name: str) -> int:
        topic = shard.store.engine.state.topics.get(name) if shard.store is not None else None
        return topic.epoch if topic is not None else 0

    def wrap(handler: Handler) -> Handler:
        return lambda call: handler(EpochCall(call, epoch))  # type: ignore[arg-type]

    return {name: wrap(handler) for name, handler in shard.handlers.items()}


@contextlib.contextmanager
def deterministic(chance: Chance) -> Iterator[None]:
    """Keep real time and chance out."""
    dice = random.Random(chance.dice.getrandbits(64))
    ticks = 0

    def tick_ns() -> int:
        """A clock that only slices of work look at: they yield after a few steps, now sooner, now later."""
        nonlocal ticks
        ticks += dice.choice((1_000, limits.YIELD_AFTER_NS // 2, limits.YIELD_AFTER_NS + 1))
        return ticks

    async def run_sync(
        work: Callable[..., Any], *args: Any, abandon_on_cancel: bool = False, limiter: object = None
    ) -> Any:
        with trio.CancelScope(shield=not abandon_on_cancel):
            await trio.sleep(chance.pause_s())
            return await Fiber(lambda: work(*args)).drive()

    with contextlib.ExitStack() as stack:
        if gc.isenabled():
            stack.callback(gc.enable)
            gc.disable()

        def put(owner: object, name: str, value: object) -> None:
            stack.enter_context(mock.patch.object(owner, name, value))

        put(trio_run, "_ALLOW_DETERMINISTIC_SCHEDULING", True)
        trio_run._r.seed(dice.getrandbits(64))
        put(trio.to_thread, "run_sync", run_sync)
        put(trio.lowlevel, "current_trio_token", MortalToken)
        put(time, "perf_counter_ns", tick_ns)
        put(os, "urandom", dice.randbytes)
        put(random, "_urandom", dice.randbytes)  # what `secrets` draws from
        for name in ("freeze", "enable", "disable"):
            put(gc, name, lambda: None)
        for name, value in SMALL_LIMITS.items():
            put(limits, name, value)
        for name in ("PACK_CHUNKS_MAX", "PACKS_MAX"):
            put(checkpoint, name, 3)
        put(snapshot, "REWRITE_MIN_BYTES", 1500)
        yield


def run(main: Callable[[VirtualClock], Awaitable[Any]], chance: Chance) -> Any:
    """Run `main` in such a world; time passes only when everybody waits."""
    clock = trio.testing.MockClock(autojump_threshold=0)
    with deterministic(chance):
        return trio.run(main, VirtualClock(clock), clock=clock)
