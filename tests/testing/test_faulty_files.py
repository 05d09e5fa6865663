"""The faulty twin: the real disk's equal while nothing goes wrong, and as treacherous as one when something does."""

import errno
import random
import shutil
import tempfile
import threading
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from topics.shards.files import File, Files, RealFiles
from topics.testing.faulty_files import UNLIMITED_BYTES, FaultyFiles, SimulatedCrash
from topics.testing.faulty_nodes import SECTOR_BYTES

SEEDS = range(300)


def contents(files: Files, path: str) -> bytes:
    file = files.open(path)
    data = file.read_at(0, file.size())
    file.close()
    return data


def put(files: Files, path: str, data: bytes) -> File:
    """A file whose bytes and name are durable."""
    file = files.create(path)
    file.write_at(0, [data])
    file.sync()
    files.sync_dir(path.rpartition("/")[0])
    return file


def outcomes(files: FaultyFiles, look: Callable[[FaultyFiles], object], **how: bool) -> set[object]:
    """Everything that a crash of this disk was seen to leave."""
    return {look(files.crash(seed, **how)) for seed in SEEDS}


# -- the same as the real disk

DIRECTORIES = ("", "d", "d/e")
PATHS = ("a", "b", "d/a", "d/b", "d/e/a")


class Twins(RuleBasedStateMachine):
    """Every step is taken on both; they answer alike and show the same tree."""

    @initialize()
    def begin(self):
        self.root = tempfile.mkdtemp()
        self.real: Files = RealFiles(self.root)
        self.faulty = FaultyFiles(cold_reads=True)
        self.handles: list[tuple[File, File]] = []

    def teardown(self):
        if hasattr(self, "root"):
            shutil.rmtree(self.root)

    def on_both(self, step: Callable[[Files], object]) -> list[object]:
        answers: list[object] = []
        for files in (self.real, self.faulty):
            try:
                answers.append(step(files))
            except OSError as error:
                answers.append(type(error))
        return answers

    def alike(self, step: Callable[[Files], object]) -> None:
        real, faulty = self.on_both(step)
        assert real == faulty

    def keep(self, step: Callable[[Files], File]) -> None:
        real, faulty = self.on_both(step)
        if isinstance(real, type) or isinstance(faulty, type):
            assert real == faulty
        else:
            self.handles.append((real, faulty))  # type: ignore[arg-type]

    @rule(path=st.sampled_from(PATHS))
    def create(self, path):
        self.keep(lambda files: files.create(path))

    @rule(path=st.sampled_from(PATHS))
    def open(self, path):
        self.keep(lambda files: files.open(path))

    @rule(path=st.sampled_from(DIRECTORIES))
    def make_dir(self, path):
        self.alike(lambda files: files.make_dir(path))

    @rule(path=st.sampled_from(DIRECTORIES[1:]))
    def remove_dir(self, path):
        self.alike(lambda files: files.remove_dir(path))

    @rule(old=st.sampled_from(PATHS), new=st.sampled_from(PATHS + DIRECTORIES[1:]))
    def rename(self, old, new):
        if new in DIRECTORIES and (not self.faulty.exists(new) or old.startswith(f"{new}/")):
            return  # the twin has no opinion on paths below a file, nor on which error a file moved onto its parent is
        self.alike(lambda files: files.rename(old, new))

    @rule(path=st.sampled_from(PATHS + DIRECTORIES[1:]))
    def unlink(self, path):
        self.alike(lambda files: files.unlink(path))

    @rule(path=st.sampled_from(DIRECTORIES))
    def sync_dir(self, path):
        self.alike(lambda files: files.sync_dir(path))

    @rule(data=st.data(), offset=st.integers(0, 3000), parts=st.lists(st.binary(max_size=40), max_size=4))
    def write_at(self, data, offset, parts):
        for file in self.pick(data):
            file.write_at(offset, parts * 20)

    @rule(data=st.data(), size=st.integers(0, 3000))
    def truncate(self, data, size):
        for file in self.pick(data):
            file.truncate(size)

    @rule(data=st.data())
    def sync(self, data):
        for file in self.pick(data):
            file.sync()

    @rule(data=st.data())
    def close(self, data):
        pair = self.pick(data)
        for file in pair:
            file.close()
        self.handles = [known for known in self.handles if known is not pair]

    @rule(data=st.data(), offset=st.integers(0, 4000), size=st.integers(0, 4000))
    def read(self, data, offset, size):
        pair = self.pick(data)
        assert len({file.read_at(offset, size) for file in pair}) <= 1
        for file in pair:
            assert file.read_cached(offset, size) in (None, file.read_at(offset, size))

    @rule(seed=st.integers(0, 10))
    def kill(self, seed):
        for pair in self.handles:
            pair[0].close()
        self.handles = []
        self.faulty = self.faulty.crash(seed, power_loss=False)

    @rule()
    def clone(self):
        if not self.handles:
            self.faulty = self.faulty.clone()

    def pick(self, data: st.DataObject) -> tuple[File, ...]:
        return data.draw(st.sampled_from(self.handles)) if self.handles else ()

    @invariant()
    def same_tree(self):
        if not hasattr(self, "root"):
            return
        self.alike(lambda files: [files.list(directory) for directory in DIRECTORIES])
        self.alike(lambda files: {path: contents(files, path) for path in PATHS if files.exists(path)})
        for real, faulty in self.handles:
            assert real.size() == faulty.size()


Twins.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestTwins = Twins.TestCase


# -- bytes


def test_synced_bytes_survive_everything():
    files = FaultyFiles()
    file = put(files, "a", b"kept" * 1000)
    file.write_at(4000, [b"lost" * 1000])
    for seed in SEEDS:
        assert contents(files.crash(seed), "a")[:4000] == b"kept" * 1000


def test_a_kill_loses_nothing_but_makes_nothing_durable():
    files = FaultyFiles()
    files.make_dir("d")
    files.create("d/a").write_at(0, [b"x" * 2000])
    killed = files.crash(1, power_loss=False)
    assert contents(killed, "d/a") == b"x" * 2000
    assert killed.boot_id() == "boot-1"
    killed = killed.crash(2, power_loss=False)
    assert outcomes(killed, lambda disk: disk.exists("d/a")) == {True, False}


def test_an_unsynced_write_is_lost_whole_or_torn_at_sectors():
    files = FaultyFiles()
    sectors = 4
    file = put(files, "a", b"o" * SECTOR_BYTES * sectors)
    file.write_at(0, [b"n" * SECTOR_BYTES * sectors])

    def landed(disk: FaultyFiles) -> str:
        data = contents(disk, "a")
        split = [data[n * SECTOR_BYTES : (n + 1) * SECTOR_BYTES] for n in range(sectors)]
        assert all(len(set(sector)) == 1 for sector in split)
        return "".join(chr(sector[0]) for sector in split)

    seen = outcomes(files, landed)
    assert {"oooo", "nnnn", "nnoo", "oonn"} <= seen
    assert len(seen) > 10


def test_the_sector_grid_belongs_to_the_file_not_to_the_write():
    files = FaultyFiles()
    put(files, "a", b"o" * 1024).write_at(500, [b"n" * 24])
    seen = outcomes(files, lambda disk: contents(disk, "a")[500:524])
    assert seen == {b"o" * 24, b"n" * 24, b"n" * 12 + b"o" * 12, b"o" * 12 + b"n" * 12}


def test_later_writes_may_outlive_earlier_ones():
    files = FaultyFiles()
    file = put(files, "a", b"o" * 1024)
    file.write_at(0, [b"1"])
    file.write_at(512, [b"2"])
    seen = outcomes(files, lambda disk: contents(disk, "a")[::512])
    assert seen == {b"oo", b"1o", b"o2", b"12"}


def test_one_sector_keeps_the_order_of_its_writes():
    files = FaultyFiles()
    file = put(files, "a", b"old")
    file.write_at(0, [b"1"])
    file.write_at(1, [b"2"])
    file.write_at(0, [b"3"])
    assert outcomes(files, lambda disk: contents(disk, "a")) == {b"old", b"1ld", b"12d", b"32d"}


def test_the_size_may_lag_or_lead_the_bytes():
    files = FaultyFiles()
    put(files, "a", b"o").write_at(1, [b"n" * 2000])
    sizes = outcomes(files, lambda disk: disk.open("a").size())
    assert sizes == {1, 512, 1024, 1536, 2001}
    blank = b"o" + bytes(2000)
    assert {blank, b"o" + b"n" * 2000, b"o"} <= outcomes(files, lambda disk: contents(disk, "a"))


def test_an_unsynced_truncation():
    files = FaultyFiles()
    file = put(files, "a", b"o" * 1024)
    file.truncate(512)
    seen = outcomes(files, lambda disk: contents(disk, "a"))
    assert {b"o" * 512, b"o" * 1024} <= seen <= {b"o" * 512, b"o" * 1024, b"o" * 512 + bytes(512)}


def test_what_a_landed_truncation_cut_off_never_comes_back():
    files = FaultyFiles()
    file = put(files, "a", b"o" * 2048)
    file.truncate(0)
    file.write_at(0, [b"n" * 1000])
    for seed in SEEDS:
        data = contents(files.crash(seed), "a")
        assert len(data) in (2048, 0, 512, 1000)
        assert len(data) == 2048 or b"o" not in data


def test_a_file_that_was_named_but_never_synced_may_be_empty():
    files = FaultyFiles()
    files.create("a").write_at(0, [b"x" * 100])
    files.sync_dir("")
    assert {b"", b"x" * 100, bytes(100)} == outcomes(files, lambda disk: contents(disk, "a"))


def test_what_survived_a_power_loss_is_durable():
    files = FaultyFiles()
    put(files, "a", b"o" * 4096).write_at(0, [b"n" * 4096])
    files.create("b")
    once = files.crash(7)
    left = contents(once, "a"), once.list("")
    assert outcomes(once, lambda disk: (contents(disk, "a"), tuple(disk.list("")))) == {(left[0], tuple(left[1]))}


@given(
    st.lists(st.tuples(st.integers(0, 3000), st.binary(min_size=1, max_size=900), st.booleans())), st.integers(0, 99)
)
@settings(max_examples=150, deadline=None)
def test_up_to_the_last_sync_nothing_is_lost(writes, seed):
    files = FaultyFiles()
    file = put(files, "a", b"")
    synced = b""
    dirty: set[int] = set()
    for offset, data, sync in writes:
        file.write_at(offset, [data])
        dirty.update(range(offset // SECTOR_BYTES, (offset + len(data) - 1) // SECTOR_BYTES + 1))
        if sync:
            file.sync()
            synced, dirty = contents(files, "a"), set()
    left = contents(files.crash(seed), "a")
    assert len(left) >= len(synced)
    for at, byte in enumerate(synced):
        assert left[at] == byte or at // SECTOR_BYTES in dirty


# -- names


def test_an_unsynced_name_may_be_lost_and_a_synced_one_not():
    files = FaultyFiles()
    put(files, "a", b"")
    files.create("b").sync()
    assert outcomes(files, lambda disk: tuple(disk.list(""))) == {("a",), ("a", "b")}


def test_an_unsynced_unlink_may_be_undone():
    files = FaultyFiles()
    put(files, "a", b"data")
    files.unlink("a")
    assert outcomes(files, lambda disk: disk.exists("a") and contents(disk, "a")) == {False, b"data"}
    files = FaultyFiles()
    put(files, "a", b"data")
    files.unlink("a")
    files.sync_dir("")
    assert outcomes(files, lambda disk: disk.exists("a")) == {False}


def test_a_name_below_a_lost_directory_is_lost():
    files = FaultyFiles()
    files.make_dir("d/e")
    put(files, "d/e/a", b"x")
    files.sync_dir("d")
    assert outcomes(files, lambda disk: disk.exists("d/e/a")) == {True, False}
    again = files.clone()
    again.sync_dir("")
    assert outcomes(again, lambda disk: disk.exists("d/e/a")) == {True}


def replaced() -> FaultyFiles:
    files = FaultyFiles()
    put(files, "a", b"old")
    put(files, "a.tmp", b"new")
    files.rename("a.tmp", "a")
    return files


@pytest.mark.parametrize("ordered", [True, False])
def test_a_rename_is_atomic(ordered):
    files = replaced()
    seen = outcomes(files, lambda disk: (tuple(disk.list("")), contents(disk, "a")), ordered_dirs=ordered)
    assert seen == {(("a", "a.tmp"), b"old"), (("a",), b"new")}


def test_a_synced_rename_is_there():
    files = replaced()
    files.sync_dir("")
    assert outcomes(files, lambda disk: (tuple(disk.list("")), contents(disk, "a"))) == {(("a",), b"new")}


def test_a_rename_of_unsynced_data_may_leave_an_empty_file():
    files = FaultyFiles()
    put(files, "a", b"old")
    files.create("a.tmp").write_at(0, [b"new"])
    files.rename("a.tmp", "a")
    files.sync_dir("")
    assert b"" in outcomes(files, lambda disk: contents(disk, "a"))


def test_a_move_is_durable_with_the_directory_it_goes_to():
    files = FaultyFiles()
    files.make_dir("d")
    files.sync_dir("")
    put(files, "a", b"x")
    files.rename("a", "d/a")
    files.sync_dir("")
    look = lambda disk: (disk.exists("a"), disk.exists("d/a"))  # noqa: E731
    assert outcomes(files, look) == {(True, False), (False, True)}
    again = files.clone()
    again.sync_dir("d")
    assert outcomes(again, look) == {(False, True)}


def test_unordered_names_survive_in_any_subset_and_ordered_ones_as_a_prefix():
    files = FaultyFiles()
    for name in "abc":
        files.create(name)
    look = lambda disk: "".join(disk.list(""))  # noqa: E731
    assert outcomes(files, look) == {"", "a", "b", "c", "ab", "ac", "bc", "abc"}
    assert outcomes(files, look, ordered_dirs=True) == {"", "a", "ab", "abc"}


def test_changes_of_one_name_keep_their_order():
    files = FaultyFiles()
    put(files, "a", b"1")
    files.unlink("a")
    files.create("a").sync()
    assert outcomes(files, lambda disk: disk.exists("a") and contents(disk, "a")) == {b"1", False, b""}


def test_a_removed_directory_takes_its_old_names_along():
    files = FaultyFiles()
    files.make_dir("d")
    put(files, "d/a", b"x")
    files.sync_dir("")
    files.unlink("d/a")
    files.remove_dir("d")
    files.make_dir("d")
    files.sync_dir("")
    assert outcomes(files, lambda disk: tuple(disk.list("d"))) == {()}


# -- crashes and clones


def test_the_dead_say_nothing():
    files = FaultyFiles()
    file, register = files.create("a"), files.map_register("r", 1)
    files.crash(1)
    last_words: list[Callable[[], object]] = [
        lambda: file.read_at(0, 1),
        lambda: file.write_at(0, [b"x"]),
        lambda: file.size(),
        lambda: register.get(0),
        lambda: register.set(0, 1),
        lambda: files.list(""),
        lambda: files.exists("a"),
        lambda: files.open("a"),
        lambda: files.remove_dir("d"),
        lambda: files.free_bytes(),
        lambda: files.boot_id(),
    ]
    for word in last_words:
        with pytest.raises(SimulatedCrash):
            word()
    file.close()
    register.close()


def test_a_power_loss_is_another_boot():
    files = FaultyFiles()
    once = files.crash(1)
    assert (once.boot_id(), once.crash(1).boot_id()) == ("boot-2", "boot-3")


def test_the_same_seed_leaves_the_same_disk():
    def left(seed: int) -> tuple:
        files = FaultyFiles()
        for name in "abcdef":
            files.create(name).write_at(0, [name.encode() * 3000])
        disk = files.crash(seed)
        return tuple((name, contents(disk, name)) for name in disk.list(""))

    assert [left(seed) for seed in range(20)] == [left(seed) for seed in range(20)]
    assert len({left(seed) for seed in range(20)}) > 10


def test_a_clone_is_independent_and_keeps_what_is_unsynced():
    files = FaultyFiles()
    file = put(files, "a", b"old")
    file.write_at(0, [b"new"])
    files.create("b")
    twin = files.clone()
    assert (twin.calls, twin.trace) == (0, [])
    file.write_at(0, [b"XXX"])
    file.sync()
    files.unlink("b")
    assert (contents(twin, "a"), twin.list("")) == (b"new", ["a", "b"])
    twin.open("a").write_at(3, [b"er"])
    assert contents(files, "a") == b"XXX"
    assert {b"old", b"new"} <= outcomes(twin, lambda disk: contents(disk, "a"))
    assert {True, False} == outcomes(twin, lambda disk: disk.exists("b"))
    assert outcomes(files, lambda disk: contents(disk, "a")) == {b"XXX"}


# -- the register


def test_a_register_survives_a_kill_and_maybe_a_power_loss():
    files = FaultyFiles()
    register = files.map_register("r", 1024)
    files.sync_dir("")
    files.open("r").sync()
    register.set(0, 1)
    register.set(1023, 2)

    def cells(disk: FaultyFiles) -> tuple[int, int]:
        register = disk.map_register("r", 1024)
        return register.get(0), register.get(1023)

    assert outcomes(files, cells, power_loss=False) == {(1, 2)}
    assert outcomes(files, cells) == {(0, 0), (1, 0), (0, 2), (1, 2)}


def test_a_grown_register_may_be_short_after_a_power_loss():
    files = FaultyFiles()
    register = files.map_register("r", 10)
    register.set(3, 7)
    files.sync_dir("")
    files.open("r").sync()
    register.grow(20)
    assert outcomes(files, lambda disk: disk.open("r").size()) == {80, 160}
    assert outcomes(files, lambda disk: disk.map_register("r", 20).get(3)) == {7}


# -- injected faults


def test_the_trace_names_each_mutating_call():
    files = FaultyFiles()
    files.make_dir("d")
    file = files.create("d/a")
    file.write_at(3, [b"xy", b"z"])
    file.truncate(4)
    file.sync()
    files.sync_dir("d")
    files.rename("d/a", "d/b")
    files.unlink("d/b")
    files.remove_dir("d")
    register = files.map_register("r", 2)
    register.grow(4)
    register.set(0, 1)
    file.read_at(0, 1)
    assert files.trace == [
        "make_dir d",
        "create d/a",
        "write_at d/a @3 +3",
        "truncate d/a to 4",
        "sync d/a",
        "sync_dir d",
        "rename d/a -> d/b",
        "unlink d/b",
        "remove_dir d",
        "map_register r 2",
        "grow r to 4",
    ]
    assert files.calls == len(files.trace)


def story(files: FaultyFiles) -> None:
    """A small life of a shard, with every kind of call that can fail."""
    files.make_dir("wal")
    files.sync_dir("")
    register = files.map_register("heads", 1)
    log = files.create("wal/1")
    for frame in range(3):
        log.write_at(frame * 1000, [b"f" * 1000])
        log.sync()
        register.set(0, frame)
    files.sync_dir("wal")
    register.grow(2)
    snapshot = files.create("snapshot.tmp")
    snapshot.write_at(0, [b"s" * 3000])
    snapshot.sync()
    files.rename("snapshot.tmp", "snapshot")
    files.sync_dir("")
    log.truncate(0)
    files.unlink("wal/1")
    files.remove_dir("wal")


def story_calls() -> int:
    files = FaultyFiles()
    story(files)
    return files.calls


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_each_call_can_fail(error):
    for index in range(story_calls()):
        files = FaultyFiles(seed=index)
        files.fail_at(index, error)
        if index == story_calls() - 1:  # as on the real disk, remove_dir never complains
            story(files)
        else:
            with pytest.raises(OSError, match=r".") as caught:
                story(files)
            assert caught.value.errno == error
        assert files.trace[-1].endswith(f" -> {errno.errorcode[error]}")
        assert files.calls == index + 1
        files.exists("a")  # the disk lives on


def test_each_call_can_be_the_last():
    after = 0
    for index in range(story_calls()):
        for seed in range(4):
            files = FaultyFiles(seed=seed)
            files.crash_at(index)
            with pytest.raises(SimulatedCrash):
                story(files)
            assert files.trace[-1].endswith(" -> crash")
            with pytest.raises(SimulatedCrash):
                files.exists("a")
            next_life = files.crash(seed, power_loss=False)
            next_life.list("")
            after += index == 0 and next_life.exists("wal")
    assert 0 < after < 4


def test_a_failed_write_leaves_a_prefix():
    left = set()
    for seed in SEEDS:
        files = FaultyFiles(seed)
        file = files.create("a")
        files.fail_at(files.calls, errno.ENOSPC)
        with pytest.raises(OSError, match="write_at a"):
            file.write_at(0, [b"0123456789"])
        left.add(contents(files, "a"))
        file.write_at(0, [b"again"])
    assert left == {b"0123456789"[:size] for size in range(11)}


def test_a_crash_may_tear_the_write_it_hits():
    left = set()
    for seed in SEEDS:
        files = FaultyFiles(seed)
        file = files.create("a")
        files.crash_at(files.calls)
        with pytest.raises(SimulatedCrash):
            file.write_at(0, [b"0123456789"])
        left.add(contents(files.crash(seed, power_loss=False), "a"))
    assert left == {b"0123456789"[:size] for size in range(11)}


def test_a_later_sync_does_not_make_up_for_a_failed_one():
    left = set()
    for seed in range(50):
        files = FaultyFiles(seed)
        file = put(files, "a", b"old" + bytes(509))
        file.write_at(0, [b"new"])
        files.fail_at(files.calls)
        with pytest.raises(OSError, match="sync a"):
            file.sync()
        file.write_at(512, [b"later"])
        file.sync()
        assert contents(files, "a")[:3] == b"new"  # the cache still shows it
        disk = files.crash(seed)
        assert contents(disk, "a")[512:] == b"later"
        left.add(contents(disk, "a")[:3])
    assert left == {b"old", b"new"}


def test_writing_again_makes_up_for_a_failed_sync():
    files = FaultyFiles()
    file = put(files, "a", b"old")
    file.write_at(0, [b"new"])
    files.fail_at(files.calls)
    with pytest.raises(OSError, match="sync a"):
        file.sync()
    file.write_at(0, [b"new"])
    file.sync()
    assert outcomes(files, lambda disk: contents(disk, "a")) == {b"new"}


def test_bytes_whose_sync_failed_are_seen_until_the_cache_is_dropped():
    seen = set()
    for seed in range(50):
        files = FaultyFiles(seed)
        file = files.create("a")
        file.write_at(0, [b"old" * 400])
        file.sync()
        files.sync_dir("")
        file.write_at(0, [b"new" * 400])
        files.fail_at(files.calls)
        with pytest.raises(OSError, match="sync a"):
            file.sync()
        files = files.crash(seed, power_loss=False)
        file = files.open("a")
        file.sync()
        assert contents(files, "a") == b"new" * 400
        file.drop_cache()
        shown = contents(files, "a")
        assert contents(files.crash(seed), "a") == shown
        seen.add(shown[:3])
    assert seen == {b"old", b"new"}


def test_a_later_sync_dir_does_not_make_up_for_a_failed_one():
    left: set[object] = set()
    for seed in range(50):
        files = FaultyFiles(seed)
        files.create("a")
        files.fail_at(files.calls)
        with pytest.raises(OSError, match="sync_dir"):
            files.sync_dir("")
        files.sync_dir("")
        assert files.exists("a")
        left |= outcomes(files, lambda disk: disk.exists("a")) if seed < 5 else {files.crash(seed).exists("a")}
    assert left == {True, False}


# -- a full disk


def test_a_full_disk_takes_what_fits():
    files = FaultyFiles()
    assert files.free_bytes() == UNLIMITED_BYTES
    file = files.create("a")
    file.write_at(0, [b"x" * 100])
    files.set_free_bytes(50)
    with pytest.raises(OSError, match="room") as caught:
        file.write_at(90, [b"y" * 100])
    assert caught.value.errno == errno.ENOSPC
    assert contents(files, "a") == b"x" * 90 + b"y" * 60
    assert files.free_bytes() == 0
    file.write_at(0, [b"z" * 150])  # no longer than before: there is room
    for grow in (lambda: file.truncate(151), lambda: files.map_register("r", 1)):
        with pytest.raises(OSError, match="room"):
            grow()
    with pytest.raises(OSError, match="room"):
        file.write_at(1000, [b"far"])
    assert file.size() == 150


def test_unlinking_and_cutting_make_room():
    files = FaultyFiles()
    put(files, "a", b"x" * 100)
    file = put(files, "b", b"x" * 100)
    files.set_free_bytes(0)
    files.unlink("a")
    file.truncate(30)
    assert files.free_bytes() == 170
    assert files.clone().free_bytes() == 170
    file.write_at(0, [b"x" * 200])


# -- reads and threads


def test_cold_reads_answer_none_now_and_then():
    files = FaultyFiles(3, cold_reads=True)
    file = put(files, "a", b"x")
    answers = [file.read_cached(0, 1) for _ in range(100)]
    assert set(answers) == {None, b"x"}
    warm = FaultyFiles(3)
    assert {put(warm, "a", b"x").read_cached(0, 1) for _ in range(1)} == {b"x"}


def test_threads_may_share_the_disk():
    files = FaultyFiles()

    def work(name: str) -> None:
        file = files.create(name)
        for number in range(200):
            file.write_at(number * 10, [name.encode() * 10])
            if number % 10 == 0:
                file.sync()
        file.sync()

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    files.sync_dir("")
    disk = files.crash(random.Random(1).randrange(1000))
    assert [contents(disk, name) for name in "abcd"] == [name.encode() * 2000 for name in "abcd"]
    assert files.calls == len(files.trace) == 4 * (1 + 200 + 21) + 1


def test_a_path_stays_below_the_root():
    for path in ("../a", "/a"):
        with pytest.raises(ValueError, match="below the root"):
            FaultyFiles().exists(path)


def test_an_open_or_a_read_fails_as_told_and_changes_nothing():
    files = FaultyFiles()
    put(files, "a", b"abc")
    files.fail_read_at(files.reads, errno.EMFILE)
    files.fail_read_at(files.reads + 2)
    with pytest.raises(OSError, match="open a") as refused:
        files.open("a")
    assert refused.value.errno == errno.EMFILE
    file = files.open("a")
    with pytest.raises(OSError, match="read_at a"):
        file.read_at(0, 3)
    assert file.read_at(0, 3) == b"abc"
    assert files.failed_reads == ["open a", "read_at a @0 +3"]
