"""Crash and fail at every single file-system call of scripted workloads, and of the recovery from that.

After each crash the model says whether what was recovered is allowed: acked is there as its durability class promises,
unacked is there as a whole or not at all. Everything runs under the ordering monitor.
TOPICS_TEST_DEPTH multiplies how much is tried.
"""

import errno
import os
from collections.abc import Callable, Iterator

import pytest

from topics import limits
from topics.core.blockform import stored_text
from topics.core.match import TagMatch
from topics.core.packing import compression_of
from topics.limits import Limits
from topics.shards import checkpoint, datafile, snapshot
from topics.testing.cold_driver import COLD, ColdDriver
from topics.testing.drafts import Draft
from topics.testing.driver import Driver
from topics.testing.fake_clock import FakeClock
from topics.testing.faulty_files import FaultyFiles, SimulatedCrash
from topics.testing.outcomes import FailedStart, Poisoned

DEPTH = int(os.environ.get("TOPICS_TEST_DEPTH", "1"))

TAKES_NO_ROOM = ("unlink", "remove_dir", "sync_dir")  # no file system refuses these for want of space

Script = Callable[[ColdDriver], None]


@pytest.fixture(autouse=True)
def _small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CEILING_AHEAD", 8)
    monkeypatch.setattr(limits, "PACK_TOPIC_BYTES", 2000)
    monkeypatch.setattr(checkpoint, "PACK_CHUNKS_MAX", 3)
    monkeypatch.setattr(checkpoint, "PACKS_MAX", 2)
    monkeypatch.setattr(snapshot, "REWRITE_MIN_BYTES", 600)


# --- workloads ----------------------------------------------------------------------------------------------------


def records(n: int, tag: str | None = None) -> list[Draft]:
    return [Draft(b'{"n":%d}' % i, tag if tag is None or i % 2 else None, "n1" if i % 3 else None) for i in range(n)]


def append_and_rotate(driver: Driver) -> None:
    """All classes, batches, groups that are written but not synced, files that fill up."""
    driver.put("f", {"durability": "fsync"})
    driver.append("d", records(1))
    driver.append("m", records(1), config={"durability": "memory"}, key="k")
    driver.commit()
    for n in (1, 12, 3):
        driver.append("d", records(n, "t"))
        driver.append("f", records(n), key=f"k{n}")
        driver.write()
        driver.append("m", records(2))
        driver.commit()
    driver.append("d", records(2))
    driver.append("f", records(2))
    driver.append("f", records(1), key="k3")
    driver.write()
    driver.sync()
    driver.store.engine.go_idle()
    driver.commit()
    driver.append("d", records(1))
    driver.append("m", records(1))


def pack_and_seal(driver: Driver) -> None:
    """Packs, their rewrite and merge, segments, the snapshot's rewrite, trimmed log files."""
    driver.put("f", {"durability": "fsync"})
    driver.put("other", {"durability": "fsync", "cap_records": 4})
    for n in (3, 3, 12, 2, 1):
        driver.append("f", records(n, "t"))
        driver.append("d", records(2))
        driver.append("other", records(1))
        driver.commit()
        driver.checkpoint()
    driver.append("d", records(1))


def delete_and_drop(driver: Driver) -> None:
    """Flips, whole segments and packs that go, topics that go and come back, changed settings."""
    for name, config in (
        ("f", {"durability": "fsync"}),
        ("cap", {"durability": "fsync", "cap_records": 10}),
        ("d", {}),
    ):
        driver.append(name, records(10, "t"), config=config)
    driver.append("small", records(3, "t:1"))
    driver.commit()
    driver.checkpoint()
    driver.delete("f", None, TagMatch("Eq", "t"))
    driver.append("cap", records(3))
    driver.delete("cap", None, TagMatch("Glob", "t"))
    driver.delete("small", None, TagMatch("Glob", "t:"))
    driver.commit()
    driver.append("f", records(9))
    driver.commit()
    driver.checkpoint()
    driver.delete("f", 12, None)
    driver.delete("d", 6, TagMatch("Eq", "t"))
    driver.put("cap", {"cap_records": 2, "durability": "disk"})
    driver.commit()
    driver.remove("small")
    driver.commit()
    driver.append("small", records(2))
    driver.checkpoint()
    driver.commit()
    driver.delete("d", None, TagMatch("Glob", ""))
    driver.checkpoint()


def expire(driver: Driver) -> None:
    """Records that expire before and after they are stored."""
    driver.put("f", {"durability": "fsync", "ttl_ms": 50})
    for _ in range(3):
        driver.append("f", records(9))
        driver.append("d", records(2), config={"ttl_ms": 30})
        driver.commit()
        driver.checkpoint()
        driver.clock.advance(29)
        driver.topic("f")
        driver.topic("d")
    driver.put("f", {"ttl_ms": 0})
    driver.commit()
    driver.checkpoint()


def with_restarts(driver: Driver) -> None:
    """Clean stops in between, so that recovery itself is a part of what is cut short."""
    driver.append("f", records(5, "t"), config={"durability": "fsync"})
    driver.append("d", records(3))
    driver.commit()
    driver.restart_in_place()
    driver.append("f", records(5, "t"))
    driver.delete("f", None, TagMatch("Eq", "t"))
    driver.commit()
    driver.restart_in_place()
    driver.append("d", records(3))
    driver.commit()


def checkpoints_amid_traffic(driver: Driver) -> None:
    """Between any two steps of a checkpoint topics are written, emptied, changed, removed and made."""
    for name, config in (("f", {"durability": "fsync"}), ("d", {}), ("cap", {"cap_records": 6, "durability": "fsync"})):
        driver.append(name, records(9, "t"), config=config)
    driver.commit()
    driver.checkpoint()
    for turn in range(3):
        moves = iter(traffic(driver, turn))
        driver.append("f", records(2, "t"))
        driver.append("d", records(1))
        driver.append("cap", records(1))
        driver.commit()
        driver.checkpoint(between=lambda moves=moves: next(moves, lambda: None)())  # type: ignore[misc]
        for move in moves:
            move()
        driver.commit()
    driver.checkpoint()


def traffic(driver: Driver, turn: int) -> list[Callable[[], object]]:
    moves: list[Callable[[], object]] = [
        lambda: driver.append("cap", records(4)),
        lambda: driver.delete("f", None, TagMatch("Eq", "t")),
        driver.commit,
        lambda: driver.delete("d", 5 + turn, None),
        lambda: driver.append("d", records(3)),
        lambda: driver.append("new", records(2), config={"durability": "fsync"}),
        lambda: driver.append("f", records(9, "t")),
        driver.commit,
        lambda: driver.remove("new"),
        lambda: driver.delete("f", 8 * turn, None),
        driver.write,
    ]
    return moves[4 * turn :] + moves[: 4 * turn]


def relocate(driver: ColdDriver) -> None:
    """Segments that move to the cold tier, are deleted in there, and go from there; copies that come to nothing."""
    driver.append("f", records(24, "t"), config={"durability": "fsync"})
    driver.append("cap", records(20, "t"), config={"durability": "fsync", "cap_records": 20})
    driver.commit()
    driver.checkpoint()
    driver.delete("f", None, TagMatch("Eq", "t"))
    driver.commit()
    driver.relocate()
    driver.append("f", records(16, "u"))
    driver.delete("f", 4, None)
    driver.append("cap", records(7))
    driver.commit()
    driver.checkpoint()
    driver.relocate()
    driver.delete("f", None, TagMatch("Glob", "u"))
    driver.append("cap", records(13))
    driver.commit()
    driver.checkpoint()
    driver.relocate()
    driver.remove("cap")
    driver.delete("f", 20, None)
    driver.commit()
    driver.checkpoint()
    driver.relocate()


def relocate_amid_traffic(driver: ColdDriver) -> None:
    """Deletes and appends between any two steps of the checkpoints that make copies count."""
    driver.append("f", records(40, "t"), config={"durability": "fsync"})
    driver.append("d", records(9, "t"))
    driver.commit()
    driver.checkpoint()
    for turn in range(2):
        moves = iter(traffic(driver, turn))
        driver.copy_all()
        driver.checkpoint(between=lambda moves=moves: next(moves, lambda: None)())  # type: ignore[misc]
        driver.commit()
        driver.delete("f", 6 + turn, None)
        driver.commit()
        driver.relocate()


def compress(driver: ColdDriver) -> None:
    """Blocks stored in every way, next to one another, rewritten in another way, deleted in, moved to the cold tier."""
    for turn, way in enumerate(("zstd", "none", "gzip", "zstd")):
        driver.put("f", {"durability": "fsync", "compression": way, "compression_min_bytes": 0})
        driver.put("d", {"compression": way, "compression_min_bytes": 0})
        driver.commit()
        driver.append("f", records(11, "t"))
        driver.append("d", records(3, "t"))
        driver.commit()
        driver.checkpoint()
        if turn == 1:
            driver.delete("f", None, TagMatch("Eq", "t"))
            driver.delete("d", 2, None)
            driver.commit()
    driver.relocate()
    driver.delete("f", None, TagMatch("Eq", "t"))
    driver.append("d", records(2))
    driver.commit()
    driver.checkpoint()


SCRIPTS = (
    *(append_and_rotate, pack_and_seal, delete_and_drop, expire, with_restarts, checkpoints_amid_traffic),
    *(relocate, relocate_amid_traffic, compress),
)


def test_the_script_has_blocks_stored_in_every_way() -> None:
    driver = new_driver().start()
    compress(driver)
    assert ways_of(driver, "segment", cold=True) >= {"zstd", "none", "gzip"}
    assert "zstd" in ways_of(driver, "pack", cold=False)


def ways_of(driver: ColdDriver, kind: str, *, cold: bool) -> set[str]:
    ways: set[str] = set()
    for info in driver.store.data_files.values():
        if (info.kind, info.cold) == (kind, cold):
            file = driver.disk.open(f"{COLD}/{info.path}" if cold else info.path)
            data = file.read_at(0, file.size())
            for offset, _, head in datafile.read_frames(data, info):
                ways.add(compression_of(stored_text(data[offset:], head)) if head.packed else "none")
    return ways


# --- the sweep ----------------------------------------------------------------------------------------------------


def new_driver(seed: int = 0) -> ColdDriver:
    bounds = Limits(segment_events=8, segment_bytes=4096, hot_retain_segments=1)
    return ColdDriver(FaultyFiles(seed), clock=FakeClock(), bounds=bounds, wal_file_bytes=700)


def calls_of(script: Script) -> list[str]:
    driver = new_driver().start()
    script(driver)
    return driver.disk.trace


def count_calls(script: Script) -> int:
    return len(calls_of(script))


def run_until_crash(script: Script, call: int, seed: int) -> ColdDriver:
    driver = new_driver(seed)
    driver.disk.crash_at(call)
    with pytest.raises(SimulatedCrash):
        script(driver.start())
    return driver


def ends(call: int) -> Iterator[tuple[int, bool]]:
    """Which damage to try: (seed, power loss)."""
    yield 0, False
    for n in range(2 * DEPTH):
        yield 1000 * call + n, True


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_crash_at_every_call(script: Script) -> None:
    for call in range(count_calls(script)):
        driver = run_until_crash(script, call, seed=call)
        for seed, power_loss in ends(call):
            end = driver.fork()
            try:
                end.crash(seed, power_loss=power_loss)
                twice(end, seed)
            except BaseException as error:
                error.add_note(f"{script.__name__}: {driver.disk.trace[-1]} (call {call}), {seed=}, {power_loss=}")
                raise


def twice(driver: Driver, seed: int) -> None:
    """A recovered store is recovered to the same state again, and what it relies on is safe from the next crash.

    Also from one at once: what a killed process left unsynced was read as if it were there for good.
    """
    driver.fork().crash(seed, power_loss=True)
    driver.crash(seed, power_loss=False)
    driver.append("after", records(2), config={"durability": "fsync"})
    driver.commit()
    driver.checkpoint()
    driver.crash(seed, power_loss=True)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_crash_within_the_recovery_at_every_call(script: Script) -> None:
    total = count_calls(script)
    for call in range(0, total, 1 if DEPTH > 1 else max(9, total // 16)):
        driver = run_until_crash(script, call, seed=call)
        for seed, power_loss in ((call, False), (call, True)):
            found = driver.disk.crash(seed, power_loss=power_loss)
            for inner in recovery_calls(driver, found):
                end = driver.fork()
                end.disk = found.clone(seed + inner)
                end.disk.crash_at(inner)
                with pytest.raises(SimulatedCrash):
                    end.start()
                for again in (False, True):
                    last = end.fork()
                    try:
                        last.survive(end.disk.crash(seed, power_loss=again), power_loss=power_loss or again)
                    except BaseException as error:
                        error.add_note(
                            f"{script.__name__}: {driver.disk.trace[-1]} (call {call}), {power_loss=}, then "
                            f"{end.disk.trace[-1]} (call {inner}), {again=}"
                        )
                        raise


def recovery_calls(driver: Driver, found: FaultyFiles) -> range:
    twin = driver.fork()
    twin.disk = found.clone()
    twin.start()
    return range(twin.disk.calls)


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC], ids=["EIO", "ENOSPC"])
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_fail_at_every_call(script: Script, error: int) -> None:
    for call, text in enumerate(calls_of(script)):
        if error == errno.ENOSPC and text.startswith(TAKES_NO_ROOM):
            continue
        driver = new_driver(call)
        driver.disk.fail_at(call, error)
        try:
            run_with_failures(script, driver, seed=call)
        except BaseException as problem:
            problem.add_note(f"{script.__name__}: {driver.disk.trace[call]} (call {call})")
            raise


def reads_of_checkpoints(script: Script) -> list[range]:
    """For each checkpoint that a script makes, which `open` and `read_at` calls are its own."""
    driver = new_driver()
    found: list[range] = []
    checkpoint = driver.checkpoint

    def watched(between: Callable[[], None] = lambda: None) -> None:
        before = driver.disk.reads
        checkpoint(between)
        found.append(range(before, driver.disk.reads))

    driver.checkpoint = watched  # type: ignore[method-assign]
    script(driver.start())
    return found


@pytest.mark.parametrize("error", [errno.EIO, errno.EMFILE], ids=["EIO", "EMFILE"])
@pytest.mark.parametrize("script", [pack_and_seal, delete_and_drop, expire], ids=lambda script: script.__name__)
def test_a_checkpoint_that_cannot_read_is_put_off(script: Script, error: int) -> None:
    """Nothing else notices, and nothing is lost by it."""
    calls = [read for reads in reads_of_checkpoints(script) for read in reads]
    for read in calls:
        driver = new_driver()
        driver.disk.fail_read_at(read, error)
        try:
            script(driver.start())
            driver.commit()
            driver.check_all()
            (text,) = driver.disk.failed_reads
            swept = text.startswith("open wal/")  # after the commit: only an old log file stays for a while
            assert driver.abandoned == (0 if swept else 1)
            finish(driver, seed=read)
        except BaseException as problem:
            problem.add_note(f"{script.__name__}: {driver.disk.failed_reads} ({read=})")
            raise


def run_with_failures(script: Script, driver: ColdDriver, seed: int) -> None:
    try:
        script(driver.start())
        driver.commit()
        driver.check_all()
    except (Poisoned, FailedStart):
        pass  # the process ends
    # A name whose sync failed stays visible, and nothing makes the cache forget it: the machine's restart must come
    # before the next process builds on it.
    in_doubt = any(text.startswith("sync_dir") and " -> E" in text for text in driver.disk.trace)
    finish(driver, in_doubt=in_doubt, seed=seed)


def finish(driver: Driver, *, in_doubt: bool = False, seed: int = 0) -> None:
    for power_loss in (False, True):
        end = driver.fork()
        end.crash(seed, power_loss=power_loss)
        if power_loss or not in_doubt:
            twice(end, seed)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("durability", ["fsync", "disk", "memory"])
def test_a_restart_after_a_failed_sync_begins_with_what_the_disk_has(seed: int, durability: str) -> None:
    """The cache still shows the frames as if they were written; what is built on them must not go with them."""
    driver = new_driver(seed).start()
    driver.put("t", {"durability": durability})
    driver.commit()
    driver.append("t", records(9))
    driver.write()
    driver.disk.fail_at(driver.disk.calls)
    with pytest.raises(Poisoned):
        driver.sync()
    driver.crash(seed, power_loss=False)
    driver.append("t", records(3))
    driver.commit()
    head_seq = driver.topic("t").head_seq
    driver.crash(seed, power_loss=True)
    assert driver.topic("t").head_seq >= head_seq
