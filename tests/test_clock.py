"""Time as a shard tells it: it never goes back, and it always passes."""

from hypothesis import given
from hypothesis import strategies as st

from topics.clock import ForwardTime
from topics.testing.fake_clock import FakeClock

HOUR_MS = 3_600_000
steps = st.lists(st.tuples(st.sampled_from(["advance", "jump_wall"]), st.integers(-10 * HOUR_MS, 10 * HOUR_MS)))


@given(steps)
def test_it_never_goes_back_and_passes_whatever_the_clock_does(moves):
    clock = FakeClock()
    time = ForwardTime(clock)
    told = time.after(0)
    for how, ms in moves:
        passed = abs(ms) if how == "advance" else 0
        clock.advance(passed) if how == "advance" else clock.jump_wall(ms)
        now = time.after(told)
        assert now >= told + passed * 15 // 16 - 1
        assert now >= clock.now_ms()
        told = now


def test_while_the_clock_is_behind_it_is_slower_until_they_agree():
    clock = FakeClock()
    time = ForwardTime(clock)
    told = time.after(0)
    clock.jump_wall(-1_600)
    assert time.after(told) == told
    clock.advance(16_000)
    assert (now := time.after(told)) == told + 15_000
    clock.advance(16_000)
    assert time.after(now) == clock.now_ms()


def test_what_a_log_tells_is_where_it_goes_on():
    clock = FakeClock()
    time = ForwardTime(clock)
    later = clock.now_ms() + HOUR_MS
    assert time.after(later) == later
    clock.advance(160)
    assert time.after(later) == later + 150
    assert time.after(later + 500) == later + 500
    clock.advance(160)
    assert time.after(later + 500) == later + 650
