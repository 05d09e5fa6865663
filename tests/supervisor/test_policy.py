"""The restart policy, over whole histories."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.supervisor.policy import (
    EXIT_DATA,
    EXIT_STORAGE,
    EXIT_USAGE,
    FAILED_DELAY_MAX_MS,
    FAILURES_MAX,
    READY_DELAY_MAX_MS,
    STABLE_MS,
    GiveUp,
    Life,
    Restart,
    describe,
    next_action,
)

KILLED = -9


def live(count, *, ready, lasted_ms=50, exit_status=KILLED):
    """`count` lives in a row, restarted as the policy says; its actions."""
    now, history, actions = 1_000_000, [], []
    for _ in range(count):
        started = now
        now += lasted_ms
        history.append(Life(started, started if ready else None, now, exit_status == KILLED))
        actions.append(next_action(history, exit_status, now))
        if isinstance(actions[-1], GiveUp):
            break
        now += actions[-1].delay_ms
    return actions


def test_a_child_that_was_ready_comes_back_at_once():
    assert live(1, ready=True) == [Restart(0)]


def test_fifty_restarts_in_a_row_of_a_child_that_gets_ready_are_never_given_up_and_never_slow():
    delays = [action.delay_ms for action in live(50, ready=True)]
    assert delays[:5] == [0, 100, 200, 400, 800]
    assert delays[5:] == [READY_DELAY_MAX_MS] * 45


def test_fifty_restarts_of_a_child_that_runs_for_long_are_all_at_once():
    assert live(50, ready=True, lasted_ms=STABLE_MS) == [Restart(0)] * 50


def test_a_stable_life_makes_the_past_forgotten():
    history = [Life(n, n, n + 1) for n in range(20)]
    assert next_action(history, KILLED, 20) == Restart(READY_DELAY_MAX_MS)
    history.append(Life(100, 100, 100 + STABLE_MS))
    assert next_action(history, KILLED, 100 + STABLE_MS) == Restart(0)


def test_a_child_that_never_gets_ready_waits_longer_each_time_and_is_given_up():
    actions = live(50, ready=False, exit_status=1)
    assert [action.delay_ms for action in actions[:-1]] == [100, 200, 400, 800, 1600, 3200, 6400]
    assert len(actions) == FAILURES_MAX
    assert "8 times in a row" in actions[-1].reason
    assert "ended with status 1" in actions[-1].reason


def test_a_child_that_others_kill_before_it_is_ready_is_never_given_up_and_never_slow():
    delays = [action.delay_ms for action in live(50, ready=False)]
    assert delays[:5] == [0, 100, 200, 400, 800]
    assert delays[5:] == [READY_DELAY_MAX_MS] * 45


def test_being_killed_neither_counts_as_a_failure_nor_makes_one_forgotten():
    failed, killed = Life(0, None, 1), Life(0, None, 1, killed=True)
    history = [failed, killed] * (FAILURES_MAX - 1)
    assert isinstance(next_action(history, KILLED, 1), Restart)
    assert isinstance(next_action([*history, failed], 1, 1), GiveUp)
    assert isinstance(next_action([*history, failed, killed], KILLED, 1), Restart)


def test_a_storage_failure_is_never_given_up():
    actions = live(50, ready=False, exit_status=EXIT_STORAGE)
    assert len(actions) == 50
    assert actions[-1] == Restart(FAILED_DELAY_MAX_MS)


@pytest.mark.parametrize("status", [EXIT_DATA, EXIT_USAGE])
def test_what_does_not_get_better_is_given_up_at_once(status):
    assert isinstance(live(1, ready=False, exit_status=status)[0], GiveUp)


def test_an_end_nobody_asked_for_is_a_failure_too_when_it_looks_clean():
    assert live(1, ready=True, exit_status=0) == [Restart(0)]


def test_a_late_decision_does_not_wait_twice():
    history = [Life(0, None, 10)]
    assert next_action(history, 1, 10) == Restart(100)
    assert next_action(history, 1, 70) == Restart(40)
    assert next_action(history, 1, 5_000) == Restart(0)


@given(
    st.lists(st.tuples(st.integers(0, 20_000), st.booleans()), min_size=1, max_size=60),
    st.sampled_from([0, 1, EXIT_STORAGE, KILLED]),
)
def test_a_delay_is_always_bounded(lives, status):
    now, history = 0, []
    for lasted_ms, ready in lives:
        history.append(Life(now, now if ready else None, now + lasted_ms, status == KILLED))
        now += lasted_ms
    action = next_action(history, status, now)
    if isinstance(action, Restart):
        assert 0 <= action.delay_ms <= (READY_DELAY_MAX_MS if history[-1].ready_ms is not None else FAILED_DELAY_MAX_MS)
    else:
        assert not any(ready for _, ready in lives[-FAILURES_MAX:])


def test_describe():
    assert describe(-9) == "was killed by SIGKILL"
    assert describe(-250) == "was killed by signal 250"
    assert describe(70) == "ended with status 70"
