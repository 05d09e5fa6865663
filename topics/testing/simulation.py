"""One history of a whole shard: real code over a faulty disk, memory connections, several clients, virtual time.

A history is a few lives of the shard's process. Each life ends in a crash at some call of the disk or at some instant,
in a loss of power, in a failed write or sync, or cleanly, while clients are at work; the last one only when they are
done. Then everything is read once more, and the judge is asked (`topics/testing/judge.py`).
"""

import contextlib
import errno
import hashlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf

import trio
import trio.testing

from topics.rpc import Connection, PeerLost, connect, serve
from topics.shards.shard import Shard, ShardPoisoned
from topics.testing import judge, simulated_world
from topics.testing.disk_monitor import MonitoredFiles
from topics.testing.faulty_files import UNLIMITED_BYTES, SimulatedCrash
from topics.testing.fibers import FiberKilled, TurnThreads
from topics.testing.history import KILL, POWER, STOP, Crash, History
from topics.testing.simulated_clients import Client
from topics.testing.simulated_topics import LOGS, kind_of, pick_topics
from topics.testing.simulated_world import BOUNDS, WAL_FILE_BYTES, Chance, MortalStream, SimulatedDisk, VirtualClock

CLIENTS = 3
FAULTS = ("nothing", "nothing", "crash", "crash", "crash", "fail", "fail", "sync", "full", "read", "clock")
HISTORY_S_MAX = 600.0  # of virtual time: what takes longer hangs


class Hung(Exception):
    """Virtual time runs on, and nothing comes to an end."""


@dataclass
class Outcome:
    seed: int
    problems: list[str]
    trace: list[str]
    history: History

    @property
    def digest(self) -> str:
        """The same for the same history."""
        return hashlib.sha256("\n".join(self.trace).encode()).hexdigest()


def simulate(seed: int) -> Outcome:
    """The history of this seed, judged."""
    chance = Chance(seed)
    simulation = Simulation(chance, kind_of(seed))
    try:
        with _logged_to(simulation.trace):
            simulated_world.run(simulation.run, chance)
        problems = simulation.problems + judge.check(simulation.history)
    except BaseExceptionGroup as group:
        problems = [f"it broke: {error!r}" for error in _leaves(group)]
    except Exception as error:
        problems = [f"it broke: {error!r}"]
    return Outcome(seed, problems, simulation.trace, simulation.history)


@contextlib.contextmanager
def _logged_to(trace: list[str]) -> Iterator[None]:
    """What the product logs is a part of its history."""

    class IntoTrace(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            trace.append(f"        {record.levelname.lower()}: {record.getMessage()}")

    logger, handler = logging.getLogger("topics"), IntoTrace(logging.WARNING)
    before = logger.propagate, logger.level
    logger.addHandler(handler)
    logger.propagate, logger.level = False, logging.WARNING
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate, logger.level = before


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for part in error.exceptions for leaf in _leaves(part)]
    return [error]


class Life:
    """One process, from its start to its end. `quota` operations are begun in it, then it is made to end.

    `watched`: under the ordering monitor. It has to know which files count, so it is for disks that do not fail.
    """

    def __init__(
        self, disk: SimulatedDisk, nursery: trio.Nursery, clock: VirtualClock, quota: float, *, watched: bool
    ) -> None:
        self.disk = disk
        self.settled = trio.Event()  # it serves, or is over before it ever did
        self.over = trio.Event()
        self.enough = trio.Event()
        self._ops_left = quota
        self._nursery = nursery
        self._stop = trio.Event()
        threads = TurnThreads(nursery)
        files = MonitoredFiles(disk) if watched else disk
        self.shard = Shard(files, BOUNDS, clock, threads=threads, wal_file_bytes=WAL_FILE_BYTES)
        self._handlers = simulated_world.with_epochs(self.shard)
        self.stopped = False  # cleanly
        self._gone = False  # on its way to its end
        nursery.start_soon(self._run)
        nursery.start_soon(self._settle)
        nursery.start_soon(self._release_waiters)

    async def _run(self) -> None:
        await self.shard.run(self._stop)
        self.stopped = True
        self._nursery.cancel_scope.cancel()

    async def _settle(self) -> None:
        await self.shard.ready.wait()
        self.settled.set()

    async def _release_waiters(self) -> None:
        """A shielded checkpoint may wait for the committer, which is no more: then it has to see that it died too."""
        try:
            await trio.sleep_forever()
        finally:
            self._gone = True
            committer = self.shard.committer
            if committer is not None:
                committer._dead = True
                committer._wake_flushers()

    async def connect(self, nursery: trio.Nursery) -> Connection:
        if self._gone:
            raise PeerLost("nobody listens")
        ours, theirs = trio.testing.memory_stream_pair()
        self._nursery.start_soon(serve, MortalStream(theirs, self.disk), self._handlers)
        return await connect(ours, nursery)

    def count_op(self) -> None:
        self._ops_left -= 1
        if self._ops_left <= 0:
            self.enough.set()

    def stop(self) -> None:
        self._stop.set()

    @property
    def is_sudden(self) -> bool:
        """Whether an end now comes to a shard that serves and does not know."""
        return self.shard.ready.is_set() and not self._stop.is_set()

    def kill(self) -> None:
        self.disk.crash(0, power_loss=False)  # from here on it answers nobody
        self._nursery.cancel_scope.cancel()


class Simulation:
    """`trace` is everything that happened, in words, for people and for comparing."""

    def __init__(self, chance: Chance, kind: str) -> None:
        self.chance = chance
        self.kind = kind
        self.history = History()
        self.problems: list[str] = []
        self.trace: list[str] = []
        self.topics = pick_topics(kind, chance.dice)
        self.disk = SimulatedDisk(chance.dice.getrandbits(32), cold_reads=chance.hits(0.5))
        self.disk.chance = chance
        self.short_of_room = False  # the disk is full, or will be
        self.life: Life | None = None
        self.clock: VirtualClock
        self._next_life = trio.Event()
        self._steps = 0

    # --- for the clients ------------------------------------------------------------------------------------------

    def step(self) -> int:
        """A time that orders everything in this history."""
        self._steps += 1
        return self._steps

    def say(self, text: str) -> None:
        self.trace.append(f"{self.step():5} {self.clock.monotonic_ns() / 1e6:10.3f} ms  {text}")

    async def ready_life(self) -> Life:
        """The present one, or the next, once it serves."""
        while True:
            if self.life is None or self.life.over.is_set():
                await self._next_life.wait()
            life = self.life
            assert life is not None
            if not life.settled.is_set():
                await life.settled.wait()
            if not life.over.is_set():
                return life

    # --- its course -----------------------------------------------------------------------------------------------

    async def run(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.say(f"{self.kind}: topics {self.topics}")
        with trio.move_on_after(HISTORY_S_MAX) as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._live)
                async with trio.open_nursery() as working:
                    for number in range(CLIENTS):
                        working.start_soon(Client(f"c{number}", self, nursery).work)
                await Client("auditor", self, nursery).audit()
                life = await self.ready_life()
                life.stop()
                await life.over.wait()
                await Client("auditor", self, nursery).audit()
                nursery.cancel_scope.cancel()
        if scope.cancelled_caught:
            raise Hung

    async def _live(self) -> None:
        """One life after another. In the last ones nothing happens."""
        dice = self.chance.dice
        for _ in range(dice.randint(1, 3)):
            self._plan_fault()
            await self._run_life(dice.randint(2, 14))
        while True:
            self.disk.set_free_bytes(UNLIMITED_BYTES)
            self.short_of_room = False
            await self._run_life(inf)

    def _plan_fault(self) -> None:
        """Perhaps something happens at one of the disk's calls in the next life."""
        dice, disk = self.chance.dice, self.disk
        disk.set_free_bytes(UNLIMITED_BYTES)
        kind = dice.choice(FAULTS)
        at = dice.randint(0, dice.choice((20, 60, 150)))
        self.short_of_room = kind in ("full", "fail")
        if kind == "crash":
            disk.crash_at(at)
        elif kind == "fail":
            disk.fail_at(at, dice.choice((errno.EIO, errno.ENOSPC)))
        elif kind == "sync":
            disk.fail_log_sync(at // 10)
        elif kind == "full":
            disk.set_free_bytes(at * 200)
        elif kind == "read":
            disk.fail_read_at(at)
        elif kind == "clock" and self._may_skew:
            self.clock.skew_ms += dice.choice((-5000, -3, 7, 100_000))
        self.say(f"--- a life with {kind} at {at}")

    @property
    def _may_skew(self) -> bool:
        """Whether nothing that is judged depends on how long something takes."""
        return self.kind == LOGS and not any("ttl_ms" in config for config in self.topics.values())

    async def _run_life(self, quota: float) -> None:
        """Until it ends by itself or enough was done in it; then the disk is what that has left."""
        disk, how = self.disk, "ended"
        try:
            async with trio.open_nursery() as nursery:
                life = self.life = Life(disk, nursery, self.clock, quota, watched=not self.short_of_room)
                self._next_life.set()
                self._next_life = trio.Event()
                await life.enough.wait()
                await trio.sleep(self.chance.dice.choice((0.0, 0.0, 0.0005, 0.003)))
                if self.chance.hits(0.4):
                    life.stop()
                else:
                    life.kill()
        except* (SimulatedCrash, FiberKilled):
            how = "crashed"
        except* ShardPoisoned:
            how = "poisoned"
        except* OSError as group:
            how = f"did not start: {group.exceptions[0]}"
        self._bury(life, how)

    def _bury(self, life: Life, how: str) -> None:
        power = self.chance.hits(0.3 if life.stopped else 0.5)
        kind = STOP if life.stopped else POWER if power else KILL
        self.trace += [f"        disk {n}: {text}" for n, text in enumerate(life.disk.trace)]
        self.say(f"--- {how}{', then the power went' if power else ''}: {kind}")
        at = self.step()
        until = at + CLIENTS + 2  # answers that were on their way still arrive
        self.history.crashes.append(Crash(at, until, kind, life.is_sudden, self.short_of_room))
        self.disk = life.disk.after(self.chance.dice.getrandbits(32), power_loss=power)
        life.over.set()
        life.settled.set()
