"""Weighted bands: higher ones are favoured, none stands still, and first come is first served."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.core.priority import AGE_CAP_MS, effective
from topics.core.schedule import LOW_BANDS, WEIGHTS, Bands, band_of

BANDS = range(len(WEIGHTS))
ROUND = sum(WEIGHTS)


@pytest.mark.parametrize(
    ("priority", "band"),
    [(2000, 0), (750, 0), (749, 1), (500, 1), (499, 2), (250, 2), (249, 3), (0, 3), (-1, 4), (-1000, 4)],
)
def test_the_band_of_a_priority(priority, band):
    assert band_of(priority) == band


def test_a_round_serves_bands_by_their_weight_the_highest_first():
    bands: Bands[tuple[int, int]] = Bands()
    for band in BANDS:
        for number in range(20):
            bands.put((band, number), band)
    served = [bands.pop() for _ in range(ROUND)]
    assert Counter(item[0] for item in served if item) == dict(enumerate(WEIGHTS))
    assert [item[0] for item in served if item] == sorted(item[0] for item in served if item)


def test_a_band_without_work_costs_the_others_nothing():
    bands: Bands[str] = Bands()
    for name in "abc":
        bands.put(name, 4)
    assert [bands.pop() for _ in range(4)] == ["a", "b", "c", None]


@given(st.lists(st.integers(0, 4), max_size=60))
def test_everything_is_served_once_and_in_its_bands_order(choices):
    bands: Bands[tuple[int, int]] = Bands()
    for number, band in enumerate(choices):
        bands.put((band, number), band)
    served = []
    while (item := bands.pop()) is not None:
        served.append(item)
    assert len(bands) == 0
    assert sorted(served) == sorted((band, number) for number, band in enumerate(choices))
    for band in BANDS:
        mine = [number for served_band, number in served if served_band == band]
        assert mine == sorted(mine)


@given(st.integers(0, 200))
def test_nobody_starves_however_much_comes_to_the_highest_band(crowd):
    bands: Bands[str] = Bands()
    bands.put("low", 4)
    for _ in range(crowd):
        bands.put("high", 0)
    served = []
    for _ in range(ROUND):
        served.append(bands.pop())
        bands.put("high", 0)
    assert "low" in served


def test_bands_that_are_held_back_keep_their_place():
    bands: Bands[str] = Bands()
    for name, band in (("low", 4), ("lower", 3), ("high", 1)):
        bands.put(name, band)
    assert [bands.pop(LOW_BANDS), bands.pop(LOW_BANDS)] == ["high", None]
    assert len(bands) == 2
    assert {bands.pop(), bands.pop()} == {"low", "lower"}


def test_what_has_aged_moves_up_behind_what_waits_there():
    bands: Bands[str] = Bands()
    bands.put("old", 4)
    bands.put("new", 0)
    bands.sort_again(lambda item: 0)
    assert [bands.pop(LOW_BANDS), bands.pop(LOW_BANDS)] == ["new", "old"]


def test_waiting_lifts_any_priority_out_of_the_low_bands_but_the_lowest():
    """The rest is what the scheduler's last resort is for."""
    assert band_of(effective(None, True, None, AGE_CAP_MS, 0)) == 0
    assert band_of(effective(-700, True, None, AGE_CAP_MS, 0)) == 2
    assert band_of(effective(-1000, True, None, AGE_CAP_MS, 0)) in LOW_BANDS
