"""Bit runs against a loop over single bits."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from topics.core.bits import runs, span


@given(st.one_of(st.integers(0, 2**256 - 1), st.lists(st.integers(0, 255)).map(lambda s: sum(1 << i for i in set(s)))))
def test_runs_are_maximal_and_cover_just_the_set_bits(mask: int):
    found = list(runs(mask))
    assert [i for low, high in found for i in range(low, high)] == [i for i in range(256) if mask >> i & 1]
    assert all(low < high for low, high in found)
    assert all(high < low for (_, high), (low, _) in pairwise(found))


def test_spans():
    assert (span(0, 0), span(0, 3), span(2, 4), span(5, 5)) == (0, 0b111, 0b1100, 0)
