"""A calendar against a set of entries: all come out when their time has come, and what was taken out leaves nothing."""

import random
import sys

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from topics.core.calendar import STALE_MIN, Calendar

DAY = 86_400_000
times = st.one_of(st.integers(0, 20), st.integers(4090, 4100), st.integers(0, DAY))
seqs = st.integers(1, 12)


class Model(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.calendar = Calendar()
        self.entries: set[tuple[int, int]] = set()

    @rule(when=times, seq=seqs)
    def add(self, when, seq):
        self.calendar.add(when, seq)
        self.entries.add((when, seq))

    @rule(when=times, seqs=st.lists(seqs, unique=True))
    def add_all(self, when, seqs):
        self.calendar.add_all(when, seqs)
        self.entries.update((when, seq) for seq in seqs)

    @rule(when=times, seq=seqs)
    def remove_any(self, when, seq):
        self.calendar.remove(when, seq)
        self.entries.discard((when, seq))

    @rule(data=st.data(), most=st.integers(1, 5))
    def remove_some(self, data, most):
        for _ in range(min(most, len(self.entries))):
            self.remove_any(*data.draw(st.sampled_from(sorted(self.entries))))

    @rule(data=st.data(), strangers=st.lists(st.tuples(times, seqs), max_size=3), most=st.integers(0, 12))
    def remove_each(self, data, strangers, most):
        there = st.sampled_from(sorted(self.entries)) if self.entries else st.nothing()
        gone = data.draw(st.lists(there, max_size=most if self.entries else 0)) + strangers
        self.calendar.remove_each(gone)
        self.entries -= {*gone}

    @rule(when=times, most=st.integers(0, 8))
    def pop(self, when, most):
        taken = self.calendar.pop_before(when, most)
        due = sorted(entry for entry in self.entries if entry[0] < when)
        assert [time for time, _ in taken] == [time for time, _ in due[:most]]
        assert len({*taken}) == len(taken)
        assert {*taken} <= {*due}
        self.entries -= {*taken}
        if most and len(due) < most:
            assert self.calendar.first == min((time for time, _ in self.entries), default=None) or not due

    @invariant()
    def it_has_what_there_is_and_no_more(self):
        calendar = self.calendar
        assert calendar.size == len(self.entries)
        assert (calendar.first is None) == (not self.entries)
        assert all(calendar.first <= when for when, _ in self.entries)  # type: ignore[operator]
        assert len(calendar._pages) <= len(self.entries)
        assert len(calendar._heap) <= 2 * len(self.entries) + STALE_MIN
        assert sum(map(len, calendar._pages.values())) <= len(self.entries)

    def teardown(self):
        left = []
        while some := self.calendar.pop_before(DAY + 1, 3):
            left += some
        assert sorted(left) == sorted(self.entries)


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)


def room(calendar: Calendar) -> int:
    """Bytes, roughly."""
    pages = calendar._pages
    buckets = [there for page in pages.values() for there in page.values()]
    return sum(map(sys.getsizeof, (pages, calendar._heap, *pages.values(), *buckets)))


@pytest.mark.parametrize("at_once", [1, 10, 997])
def test_stragglers_do_not_keep_the_room_of_those_they_came_with(at_once):
    calendar = Calendar()
    for batch in range(100):
        calendar.add_all(batch, range(1000))
    full = room(calendar)
    for batch in range(100):
        for first in range(3, 1000, at_once):
            gone = [(batch, seq) for seq in range(first, min(1000, first + at_once))]
            if at_once > 1:
                calendar.remove_each(gone)
            else:
                calendar.remove(*gone[0])
    assert calendar.size == 300
    assert room(calendar) < full / 50


def test_a_day_of_leases_that_end_at_once_leaves_nothing():
    calendar = Calendar()
    for when in range(0, DAY, 500):
        calendar.add(when, 7)
        calendar.remove(when - 5000, 7)
    assert (calendar.size, calendar.first) == (10, 0)  # no later than the first
    assert len(calendar._heap) <= STALE_MIN + 20
    assert calendar.pop_before(DAY - 4500, 100) == [(DAY - 5000, 7)]
    assert calendar.first == DAY - 4500


def test_entries_that_share_a_time_come_out_in_steps_and_all_of_them():
    calendar, chosen = Calendar(), random.Random(1)
    calendar.add_all(5, range(10_000))
    gone = chosen.sample(range(10_000), 3000)
    for seq in gone:
        calendar.remove(5, seq)
    taken = [calendar.pop_before(6, 256) for _ in range(40)]
    assert max(map(len, taken)) == 256
    assert sorted(seq for some in taken for _, seq in some) == sorted({*range(10_000)} - {*gone})
    assert (calendar.size, calendar.first) == (0, None)
