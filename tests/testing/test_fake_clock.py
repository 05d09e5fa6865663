"""The fake clock moves only when told to."""

import pytest

from topics.clock import Clock
from topics.testing.fake_clock import FakeClock


def test_advance_moves_both_hands():
    clock: Clock = (fake := FakeClock(now_ms=1000))
    assert (clock.now_ms(), clock.monotonic_ns()) == (1000, 0)
    fake.advance(5)
    assert (clock.now_ms(), clock.monotonic_ns()) == (1005, 5_000_000)


def test_only_the_wall_clock_goes_back():
    clock = FakeClock(now_ms=1000)
    clock.jump_wall(-300)
    assert (clock.now_ms(), clock.monotonic_ns()) == (700, 0)
    with pytest.raises(ValueError, match="forwards"):
        clock.advance(-1)
