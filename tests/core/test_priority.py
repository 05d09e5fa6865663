"""Effective priority: the decay table, its smoothness, and what overrides what."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.core.priority import AUTO_FLOOR_MS, age_boost, auto_recency, effective

NOW_MS = 1_748_470_000_000

idle_times = st.integers(0, 400_000)


@pytest.mark.parametrize(
    ("idle_s", "recency"), [(0, 500), (15, 354), (30, 250), (60, 125), (120, 31), (300, 0), (301, 0), (10**9, 0)]
)
def test_decay_table(idle_s, recency):
    assert auto_recency(NOW_MS, NOW_MS - idle_s * 1000) == recency


@given(idle_times)
def test_decay_is_close_to_the_curve(idle_ms):
    curve = 500 * 2 ** (-idle_ms / 30_000) if idle_ms < AUTO_FLOOR_MS else 0
    assert abs(auto_recency(NOW_MS, NOW_MS - idle_ms) - curve) <= 0.51


def test_decay_never_rises():
    values = [auto_recency(NOW_MS, NOW_MS - idle_ms) for idle_ms in range(0, 310_000, 7)]
    assert values == sorted(values, reverse=True)
    assert set(range(501)) == set(values)


@given(idle_times, st.integers(0, 5000))
def test_decay_is_monotone_everywhere(idle_ms, more_ms):
    assert auto_recency(NOW_MS, NOW_MS - idle_ms - more_ms) <= auto_recency(NOW_MS, NOW_MS - idle_ms)


def test_never_consumed_and_clocks_that_go_back():
    assert auto_recency(NOW_MS, None) == 0
    assert auto_recency(NOW_MS, NOW_MS + 5000) == 500
    assert age_boost(NOW_MS, NOW_MS + 5000) == 0


@pytest.mark.parametrize(
    ("waited_ms", "boost"), [(0, 0), (9, 0), (10, 1), (1000, 100), (9999, 999), (10_000, 1000), (60_000, 1000)]
)
def test_age_boost(waited_ms, boost):
    assert age_boost(NOW_MS, NOW_MS - waited_ms) == boost
    assert age_boost(NOW_MS, None) == 0


@given(st.integers(-5000, 5000), st.booleans(), st.none() | idle_times, st.none() | idle_times)
def test_a_manual_priority_overrides_recency_but_not_ageing(priority, auto, idle_ms, waited_ms):
    last_consumed_ms = None if idle_ms is None else NOW_MS - idle_ms
    enqueued_ms = None if waited_ms is None else NOW_MS - waited_ms
    assert effective(priority, auto, last_consumed_ms, NOW_MS, enqueued_ms) == (
        max(-1000, min(1000, priority)) + age_boost(NOW_MS, enqueued_ms)
    )


@given(idle_times, idle_times)
def test_without_a_manual_priority(idle_ms, waited_ms):
    consumed_ms, enqueued_ms = NOW_MS - idle_ms, NOW_MS - waited_ms
    boost = age_boost(NOW_MS, enqueued_ms)
    assert effective(None, True, consumed_ms, NOW_MS, enqueued_ms) == auto_recency(NOW_MS, consumed_ms) + boost
    assert effective(None, False, consumed_ms, NOW_MS, enqueued_ms) == boost
    assert effective(None, True, consumed_ms, NOW_MS) == auto_recency(NOW_MS, consumed_ms)
    assert effective(0, True, consumed_ms, NOW_MS) == 0


def test_results_are_integers():
    assert all(type(auto_recency(NOW_MS, NOW_MS - idle_ms)) is int for idle_ms in range(0, 310_000, 1009))
