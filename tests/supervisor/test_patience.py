"""When a silent child is killed."""

import pytest

from topics import limits
from topics.rpc import DeadlineExceeded, PeerLost, ProtocolError
from topics.supervisor.notify import ping_interval_s
from topics.supervisor.patience import Patience

SILENT, AWAY = DeadlineExceeded("late"), PeerLost("no socket")


def heard_at(now: float) -> Patience:
    patience = Patience(30)
    patience.begin(0)
    patience.heard(now)
    return patience


def test_two_looks_in_vain_and_the_time_are_needed():
    patience = heard_at(10)
    assert [patience.missed(now, SILENT) for now in (15, 20, 39)] == [False] * 3
    assert patience.strained
    assert patience.missed(40, SILENT)
    assert not patience.missed(41, SILENT)  # once


def test_a_machine_that_slept_kills_nobody():
    patience = heard_at(10)
    assert not patience.missed(10_000, SILENT)  # the look that was under way
    assert not patience.strained
    patience.heard(10_001)
    assert not patience.missed(10_020, ProtocolError("no hello"))


def test_one_that_has_closed_its_socket_is_on_its_way_to_the_end():
    patience = heard_at(10)
    assert not any(patience.missed(now, AWAY) for now in range(20, 2000, 10))
    assert not patience.strained


@pytest.mark.parametrize("error", [SILENT, AWAY])
def test_the_first_answer_may_take_longer_but_not_for_ever(error):
    patience = Patience(30)
    patience.begin(100)
    most = 100 + 30 * limits.FIRST_ANSWER_TIMES
    assert not patience.missed(most - 1, error)
    assert patience.missed(most, error)
    assert patience.strained
    patience.begin(most)
    assert not patience.strained


@pytest.mark.parametrize(
    ("environ", "interval"),
    [
        ({}, 0),
        ({"WATCHDOG_USEC": "90000000"}, 45),
        ({"WATCHDOG_USEC": "90000000", "WATCHDOG_PID": "7"}, 45),
        ({"WATCHDOG_USEC": "90000000", "WATCHDOG_PID": "8"}, 0),
        ({"WATCHDOG_USEC": "soon"}, 0),
    ],
)
def test_how_often_the_watchdog_is_fed(environ, interval):
    assert ping_interval_s(environ, 7) == interval
