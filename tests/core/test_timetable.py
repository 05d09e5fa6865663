"""Records that wait for a time, against a plain dict of them."""

from array import array
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tests.core.strategies import many
from topics.core import timetable
from topics.core.extras import Times
from topics.core.ranges import SeqRanges
from topics.core.timetable import Timetable

steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 3), st.integers(1, 400)),  # a gap to the seq before, a time
        st.tuples(st.just("run"), st.integers(1, 700), st.integers(1, 400)),  # so many neighbours of one time
        st.tuples(st.just("block"), st.integers(1, 256), st.integers(1, 400)),  # neighbours, of times from this one on
        st.tuples(st.just("gaps"), st.integers(1, 256), st.integers(1, 400)),  # the same, every other one
        st.tuples(st.just("drop"), st.integers(0, 900), st.integers(0, 600)),
        st.tuples(st.just("scatter"), st.integers(0, 900), st.integers(2, 300)),  # a seq of so many
        st.tuples(st.just("cut"), st.integers(0, 2000), st.just(0)),
        st.tuples(st.just("pop"), st.booleans(), st.integers(1, 450)),
        st.tuples(st.just("pop some"), st.integers(1, 600), st.integers(1, 450)),
    ),
    max_size=40,
)


@given(steps=steps)
@many
def test_what_is_due_comes_once_and_what_was_dropped_does_not(steps):
    table, waiting, last = Timetable(), dict[int, int](), 0
    for what, number, value in steps:
        if what == "add":
            last += number
            table.add(last, value)
            waiting[last] = value
        elif what == "run":
            for _ in range(number):
                last += 1
                table.add(last, value)
                waiting[last] = value
        elif what in ("block", "gaps"):
            gap = 1 if what == "block" else 2
            times = Times(array("H", range(0, number * gap, gap)), array("Q", range(value, value + number)))
            table.add_all(times.seqs(last + 1), times.when, *times.bounds)
            waiting |= {last + 1 + index: when for index, when in times}
            last += number * gap
            times.add(300, 0)  # it may grow, and nobody minds
        elif what == "drop":
            table.drop_range(number, number + value)
            waiting = {seq: due for seq, due in waiting.items() if not number <= seq <= number + value}
        elif what == "scatter":
            gone = SeqRanges.from_ascending(range(number, last + 1, value))
            table.drop_later(gone)
            while not table.catch_up():
                pass
            waiting = {seq: due for seq, due in waiting.items() if seq not in gone}
        elif what == "cut":
            table.drop_below(number)
            waiting = {seq: due for seq, due in waiting.items() if seq >= number}
        elif what == "pop some":
            some = [seq for low, high in table.pop_ranges(value, number) for seq in range(low, high + 1)]
            assert sorted(some) == some
            assert all(waiting[seq] <= value for seq in some)
            assert len(some) < number + timetable.PAGE
            assert len(some) >= min(number, sum(due <= value for due in waiting.values()))
            waiting = {seq: due for seq, due in waiting.items() if seq not in set(some)}
        else:
            due = {seq: time for seq, time in waiting.items() if time <= value}
            waiting = {seq: time for seq, time in waiting.items() if time > value}
            if number:
                assert [seq for low, high in table.pop_ranges(value) for seq in range(low, high + 1)] == sorted(due)
            else:
                assert {seq: time for time, seq in table.pop_due(value)} == due
        assert table.count == len(waiting)
        assert table.first is None or not waiting or table.first <= min(waiting.values())
        assert not waiting or table.first_seq <= min(waiting)


def test_what_goes_before_its_time_leaves_nothing_behind(monkeypatch):
    monkeypatch.setattr(timetable, "STALE_MIN", 8)
    table = Timetable()
    for seq in range(1, 100_001):
        table.add(seq, 10**9 - seq)  # every one is sooner than those before
        table.drop_range(seq - 300, seq - 300)
    assert table.count == 300
    assert len(table._heap) < 1000


def test_what_is_cut_off_at_the_front_goes_in_steps_that_are_small(monkeypatch):
    monkeypatch.setattr(timetable, "FRONT_STEP", 4)
    table = Timetable()
    for seq in range(1, 10 * timetable.PAGE + 1):
        table.add(seq, 10)
    counts = []
    for _ in range(3):
        table.drop_below(9 * timetable.PAGE + 11)
        counts.append(table.count)
    assert counts == [6 * timetable.PAGE, 2 * timetable.PAGE, timetable.PAGE - 10]


def test_many_scattered_ones_are_forgotten_a_few_pages_a_step():
    table = Timetable()
    for seq in range(1, 40 * timetable.PAGE + 1):
        table.add(seq, 10)
    before, steps = table.count, 1
    table.drop_later(SeqRanges.from_ascending(range(1, 40 * timetable.PAGE + 1, 2)))
    while True:
        assert before - table.count <= timetable.DROP_STEP * timetable.PAGE // 2
        before = table.count
        if table.catch_up():
            break
        steps += 1
    assert (table.count, steps) == (20 * timetable.PAGE, 40 // timetable.DROP_STEP)


def test_one_long_range_is_forgotten_many_pages_a_step(monkeypatch):
    monkeypatch.setattr(timetable, "CUT_STEP", 4)
    table, gone = Timetable(), SeqRanges()
    for seq in range(1, 40 * timetable.PAGE + 1):
        table.add(seq, 10)
    gone.add(11, 39 * timetable.PAGE)
    counts = [table.count]
    table.drop_later(gone)
    counts.append(table.count)
    while not table.catch_up():
        counts.append(table.count)
    counts.append(table.count)
    assert max(before - after for before, after in pairwise(counts)) <= timetable.DROP_STEP * 4 * timetable.PAGE
    assert counts[-1] == 10 + timetable.PAGE


def test_one_that_is_given_up_comes_apart_in_small_pieces():
    table, pages = Timetable(), 3 * timetable.FREE_STEP + 1
    for seq in range(1, timetable.PAGE * pages + 1):
        table.add(seq, 1)
    pieces = table.take_apart()
    assert [len(piece) for piece in pieces] == [timetable.FREE_STEP] * 3 + [1]
    assert (table.count, table.first, table.pop_due(10)) == (0, None, [])
