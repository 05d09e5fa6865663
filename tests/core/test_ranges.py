"""Seq ranges against a plain set of integers."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.core import ranges as module
from topics.core.ranges import SEQ_MAX, SeqRanges

seqs = st.integers(0, 200)
pairs = st.tuples(seqs, seqs).map(sorted).map(tuple)
wide_seqs = st.integers(0, SEQ_MAX)
wide_pairs = st.tuples(wide_seqs, wide_seqs).map(sorted).map(tuple)


def built(ranges) -> SeqRanges:
    result = SeqRanges()
    for first, last in ranges:
        result.add(first, last)
    return result


def members(ranges: SeqRanges) -> set[int]:
    return {seq for first, last in ranges for seq in range(first, last + 1)}


def assert_well_formed(ranges: SeqRanges) -> None:
    listed = list(ranges)
    assert all(first <= last for first, last in listed)
    assert all(before[1] + 1 < after[0] for before, after in itertools.pairwise(listed))
    assert ranges.range_count == len(listed)
    assert ranges.count == sum(last - first + 1 for first, last in listed)
    assert bool(ranges) is bool(listed)
    assert ranges.first == (listed[0][0] if listed else None)
    assert ranges.last == (listed[-1][1] if listed else None)


@given(st.lists(pairs, max_size=40))
def test_add_against_a_set(added):
    ranges = SeqRanges()
    model: set[int] = set()
    for first, last in added:
        ranges.add(first, last)
        model.update(range(first, last + 1))
        assert_well_formed(ranges)
        assert members(ranges) == model
    assert all((seq in ranges) == (seq in model) for seq in range(-1, 203))


@given(st.lists(pairs, max_size=15), seqs, seqs)
def test_count_between_against_a_set(added, first, last):
    ranges = built(added)
    assert ranges.count_between(first, last) == sum(first <= seq <= last for seq in members(ranges))


@given(st.lists(seqs))
def test_from_ascending(given_seqs):
    ranges = SeqRanges.from_ascending(sorted(given_seqs))
    assert_well_formed(ranges)
    assert members(ranges) == set(given_seqs)
    assert ranges == built((seq, seq) for seq in given_seqs)
    assert SeqRanges.from_ascending(iter(sorted(given_seqs))) == ranges


@given(st.integers(0, 50), st.integers(0, 50), st.integers(1, 3))
def test_from_a_range_object(start, stop, step):
    assert members(SeqRanges.from_ascending(range(start, stop, step))) == set(range(start, stop, step))


@given(st.lists(wide_pairs | pairs, max_size=20))
def test_encode_and_back(added):
    ranges = built(added)
    decoded = SeqRanges.decode(ranges.encode())
    assert decoded == ranges
    assert_well_formed(decoded)


@given(st.lists(pairs, max_size=20))
def test_equal_sets_have_equal_bytes(added):
    assert built(added).encode() == built(reversed(added)).encode()


@given(st.binary(max_size=40) | st.lists(pairs, min_size=1).map(lambda added: built(added).encode()), st.data())
def test_decode_takes_only_what_encode_writes(encoded, data):
    garbled = bytearray(encoded)
    for _ in range(data.draw(st.integers(0, 2))):
        if garbled:
            garbled[data.draw(st.integers(0, len(garbled) - 1))] = data.draw(st.integers(0, 255))
    raw = bytes(garbled)
    try:
        ranges = SeqRanges.decode(raw)
    except ValueError:
        return
    assert_well_formed(ranges)
    assert ranges.encode() == raw


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"\x01",
        b"\x01\x05",
        b"\x01\x05\x00\x00",
        b"\x80",
        b"\x80\x00",
        b"\x01\x85\x00\x00",
        b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        b"\x01" + b"\xff" * 9 + b"\x01\x01",
        b"\x01" + b"\xff" * 9 + b"\x02\x00",
        b"\x01" + b"\xff" * 20 + b"\x00",
    ],
)
def test_garbage_is_refused(bad):
    with pytest.raises(ValueError, match="seq ranges"):
        SeqRanges.decode(bad)


@pytest.mark.parametrize(("first", "last"), [(2, 1), (-1, 1), (0, SEQ_MAX + 1)])
def test_what_is_no_range_is_refused(first, last):
    ranges = SeqRanges()
    with pytest.raises(ValueError, match="not a range"):
        ranges.add(first, last)
    assert not ranges


@pytest.mark.parametrize("bad", [[2, 1], [1, 3, 2], [-1], [SEQ_MAX + 1]])
def test_seqs_that_go_back_or_do_not_fit(bad):
    with pytest.raises(ValueError, match="seq"):
        SeqRanges.from_ascending(bad)


def test_the_whole_number_range():
    ranges = built([(0, SEQ_MAX)])
    assert ranges.count == 2**64
    assert SeqRanges.decode(ranges.encode()) == ranges
    ranges.add(5, 6)
    assert list(ranges) == [(0, SEQ_MAX)]


def test_a_million_contiguous_are_a_few_bytes():
    ranges = SeqRanges.from_ascending(iter(range(1, 1_000_001)))
    assert list(ranges) == [(1, 1_000_000)]
    assert len(ranges.encode()) <= 8


def test_a_million_scattered_are_two_bytes_each():
    ranges = SeqRanges.from_ascending(range(1, 2_000_001, 2))
    assert ranges.range_count == ranges.count == 1_000_000
    encoded = ranges.encode()
    assert len(encoded) < 2_000_010
    assert SeqRanges.decode(encoded) == ranges
    assert ranges.count_between(1, 1_000_000) == 500_000


def test_shown_short():
    assert repr(built([(1, 5), (9, 9)])) == "SeqRanges(1..5, 9..9)"
    assert len(repr(SeqRanges.from_ascending(range(0, 1000, 2)))) < 100


def test_many_ranges_are_put_in_a_part_at_a_time(monkeypatch):
    seqs = [seq for seq in range(100) if seq % 3]
    whole = SeqRanges.from_ascending(seqs)
    monkeypatch.setattr(module, "FILL_STEP", 4)
    parts = SeqRanges.from_ascending(seqs)
    assert parts == whole
    assert (parts.count, parts.range_count, parts.encode()) == (66, 33, whole.encode())
