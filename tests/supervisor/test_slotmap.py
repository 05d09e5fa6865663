"""Dealing slots, and the file that remembers it."""

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.ids import SLOTS
from topics.supervisor.datadir import DataDirError
from topics.supervisor.slotmap import deal, read_used, settle, shard_dir


def mark(data_dir, shard, *slots):
    """As the shard does: a bitmap of 128 bytes."""
    bits = bytearray(SLOTS // 8)
    for slot in slots:
        bits[slot // 8] |= 1 << slot % 8
    shard_dir(data_dir, shard).mkdir(exist_ok=True)
    (shard_dir(data_dir, shard) / "slots.used").write_bytes(bits)


@given(st.dictionaries(st.integers(0, SLOTS - 1), st.integers(0, 9), max_size=200), st.integers(1, 12))
def test_used_slots_stay_and_the_rest_is_spread(owners, shards):
    slots = deal(owners, shards)
    assert len(slots) == SLOTS
    assert all(slots[slot] == owner for slot, owner in owners.items())
    assert all(slots[slot] < shards for slot in range(SLOTS) if slot not in owners)
    counts = Counter(slots)
    dealt_to = {slots[slot] for slot in range(SLOTS) if slot not in owners}
    held = [counts[shard] for shard in dealt_to]
    assert max(held) - min(held) <= 1


def test_an_empty_directory_gets_a_map_and_its_shard_directories(tmp_path):
    slots, served = settle(tmp_path, 3)
    assert served == [0, 1, 2]
    assert json.loads((tmp_path / "SLOTS").read_text()) == {"version": 1, "shards": 3, "slots": slots}
    assert all(shard_dir(tmp_path, shard).is_dir() for shard in served)
    assert sorted(Counter(slots).values()) == [341, 341, 342]


def test_the_same_number_of_shards_changes_nothing(tmp_path):
    settle(tmp_path, 3)
    before = (tmp_path / "SLOTS").stat()
    settle(tmp_path, 3)
    after = (tmp_path / "SLOTS").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_more_shards_leave_used_slots_where_they_are(tmp_path):
    old, _ = settle(tmp_path, 1)
    mark(tmp_path, 0, 5, 1023)
    slots, served = settle(tmp_path, 4)
    assert served == [0, 1, 2, 3]
    assert slots[5] == slots[1023] == 0 == old[5]
    assert set(Counter(slots).values()) == {256}


def test_fewer_shards_still_serve_every_directory_that_holds_topics(tmp_path):
    old, _ = settle(tmp_path, 4)
    in_three = [slot for slot in range(SLOTS) if old[slot] == 3][:2]
    mark(tmp_path, 3, *in_three)
    slots, served = settle(tmp_path, 2)
    assert served == [0, 1, 3]  # nothing is in shard 2
    assert {slot for slot in range(SLOTS) if slots[slot] == 3} == set(in_three)
    assert settle(tmp_path, 2) == (slots, served)
    again, served = settle(tmp_path, 4)
    assert served == [0, 1, 2, 3]
    assert all(again[slot] == 3 for slot in in_three)


def test_a_lost_map_is_made_anew_from_what_the_shards_have_marked(tmp_path):
    settle(tmp_path, 4)
    mark(tmp_path, 2, 7)
    mark(tmp_path, 3, 8)
    (tmp_path / "SLOTS").unlink()
    slots, served = settle(tmp_path, 2)
    assert (slots[7], slots[8]) == (2, 3)
    assert served == [0, 1, 2, 3]


def test_other_names_in_the_data_directory_are_not_shards(tmp_path):
    (tmp_path / "shard-x").mkdir()
    (tmp_path / "lost+found").mkdir()
    mark(tmp_path, 12, 1)
    assert read_used(tmp_path) == {12: {1}}


def test_a_slot_that_two_shards_use_is_refused(tmp_path):
    mark(tmp_path, 0, 9)
    mark(tmp_path, 1, 9)
    with pytest.raises(DataDirError, match="slot 9 is used by shard 0 and by shard 1"):
        settle(tmp_path, 2)


def test_a_missing_shard_directory_is_noticed(tmp_path):
    settle(tmp_path, 3)
    shard_dir(tmp_path, 1).rmdir()
    with pytest.raises(DataDirError, match=r"lacks shard-01, .*restore"):
        settle(tmp_path, 3)


@pytest.mark.parametrize("text", ["", "{", '{"version":1,"shards":1,"slots":[0]}', '{"version":1}'])
def test_a_damaged_map_is_refused(tmp_path, text):
    (tmp_path / "SLOTS").write_text(text)
    with pytest.raises(DataDirError, match="is damaged"):
        settle(tmp_path, 1)
