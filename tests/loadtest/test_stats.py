"""Percentiles, medians, spread."""

import pytest

from loadtest.stats import latency_ms, percentile, spread


def test_percentiles_are_nearest_ranks():
    values = list(range(100, 0, -1))
    assert [percentile(values, share) for share in (0.0, 0.5, 0.99, 1.0)] == [1, 50, 99, 100]
    assert percentile([7.0], 0.99) == 7.0


def test_one_stall_shows_in_the_maximum_and_not_in_the_median():
    seen = latency_ms([0.001] * 99 + [0.5])
    assert seen == pytest.approx({"p50": 1.0, "p99": 1.0, "max": 500.0})


def test_no_answer_at_all_is_no_latency():
    with pytest.raises(ValueError, match="no request was answered"):
        latency_ms([])


def test_spread_is_a_share_of_the_median():
    assert spread([90.0, 100.0, 120.0]) == pytest.approx(0.3)
    assert spread([5.0]) == 0.0
