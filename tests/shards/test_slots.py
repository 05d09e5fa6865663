"""Used slots: marked before they are used, never forgotten, at worst one mark too many."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topics.ids import SLOTS as COUNT
from topics.shards.recovery import recover
from topics.shards.slots import PATH, UsedSlots
from topics.testing.fake_clock import FakeClock
from topics.testing.faulty_files import FaultyFiles, SimulatedCrash

slot_sets = st.sets(st.integers(0, COUNT - 1), max_size=20)


def used(files: FaultyFiles) -> set[int]:
    slots = UsedSlots(files)
    try:
        return slots.all()
    finally:
        slots.close()


def test_a_new_shard_has_used_none():
    files = FaultyFiles()
    assert used(files) == set()
    assert files.open(PATH).read_at(0, 1000) == bytes(128)


@given(st.lists(slot_sets, max_size=4))
@settings(deadline=None)
def test_marks_are_kept(marks):
    files = FaultyFiles()
    for slots in marks:
        owner = UsedSlots(files)
        owner.mark(slots)
        owner.close()
    assert used(files) == set().union(*marks)


@pytest.mark.parametrize(("slot", "byte", "bit"), [(0, 0, 1), (7, 0, 128), (8, 1, 1), (1023, 127, 128)])
def test_bits_count_from_the_lowest(slot, byte, bit):
    files = FaultyFiles()
    UsedSlots(files).mark({slot})
    data = files.open(PATH).read_at(0, 128)
    assert data == bytes(byte) + bytes((bit,)) + bytes(127 - byte)


def test_a_mark_is_durable_when_mark_returns():
    files = FaultyFiles()
    owner = UsedSlots(files)
    owner.mark({5})
    owner.mark({600})
    for seed in range(20):
        assert used(files.crash(seed)) == {5, 600}


def test_a_crash_at_any_step_leaves_all_old_marks():
    clean = FaultyFiles()
    UsedSlots(clean).mark({3})
    for step in range(clean.calls):
        for seed in range(10):
            files = FaultyFiles(seed)
            files.crash_at(step)
            with pytest.raises(SimulatedCrash):
                UsedSlots(files).mark({3})
            survivor = files.crash(seed, power_loss=seed % 2 == 0)
            assert used(survivor) <= {3}
            owner = UsedSlots(survivor)
            owner.mark({4})
            assert {4} <= used(survivor) <= {3, 4}


@given(st.binary(max_size=200))
@settings(deadline=None)
def test_any_file_is_read_as_marks(data):
    """There is no checksum: a mark too many is harmless, and short files are padded."""
    files = FaultyFiles()
    files.create(PATH).write_at(0, [data])
    bits = int.from_bytes(data[:128], "little")
    assert used(files) == {slot for slot in range(COUNT) if bits >> slot & 1}


def test_a_mark_that_a_killed_process_left_in_the_cache_is_durable_before_it_is_built_on():
    """The next process reads it and so does not mark that slot: a topic in it must not outlive the mark."""
    for seed in range(20):
        disk = FaultyFiles(seed)
        UsedSlots(disk).mark({600})
        disk.crash_at(disk.calls + 1)
        with pytest.raises(SimulatedCrash, match="sync"):
            UsedSlots(disk).mark({5})  # killed here: the bytes are only in the cache
        killed = disk.crash(seed, power_loss=False)
        assert used(killed) in ({600}, {5, 600})
        built_on = recover(killed, FakeClock()).slots.all()
        assert used(killed.crash(seed)) == built_on
