"""When an ended child is started again: a pure function.

A child that had been ready comes back at once, and with a growing but short delay if it keeps ending. One that never
gets ready waits longer each time and is given up after FAILURES_MAX tries in a row, except after a storage failure: a
disk may come back. Data that cannot be used does not get better by trying. A SIGKILL is somebody else's doing (a
person, the kernel for want of memory), says nothing about the child, and counts as no try.
"""

import signal
from collections.abc import Sequence
from dataclasses import dataclass

EXIT_USAGE = 2
EXIT_DATA = 65
EXIT_STORAGE = 70

STABLE_MS = 10_000  # ready for this long: what was before is forgotten
FIRST_DELAY_MS = 100
READY_DELAY_MAX_MS = 1_000  # of a child that gets ready and ends again
FAILED_DELAY_MAX_MS = 10_000  # of one that does not get ready
FAILURES_MAX = 8


@dataclass(frozen=True, slots=True)
class Life:
    """One run of a child, from its start to its end."""

    started_ms: int
    ready_ms: int | None  # None: it never was
    ended_ms: int
    killed: bool = False  # by SIGKILL

    @property
    def stable(self) -> bool:
        return self.ready_ms is not None and self.ended_ms - self.ready_ms >= STABLE_MS


@dataclass(frozen=True, slots=True)
class Restart:
    delay_ms: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    reason: str


def next_action(history: Sequence[Life], exit_status: int, now_ms: int) -> Restart | GiveUp:
    """What to do about a child whose lives so far, the one that just ended last, are `history`.

    `exit_status` is negative for a signal. The delay counts from the end of the last life, so that a late decision
    does not wait twice.
    """
    assert history
    if exit_status == EXIT_DATA:
        return GiveUp("what is on disk cannot be used as it is (see its log lines)")
    if exit_status == EXIT_USAGE:
        return GiveUp("it does not accept what the supervisor tells it")
    in_a_row = _failures_in_a_row(history)
    if in_a_row >= FAILURES_MAX and exit_status != EXIT_STORAGE and not history[-1].killed:
        return GiveUp(
            f"it ended {in_a_row} times in a row before it was ready; the last time it {describe(exit_status)}"
        )
    waited_ms = max(0, now_ms - history[-1].ended_ms)
    return Restart(max(0, _delay_ms(history, in_a_row) - waited_ms))


def _failures_in_a_row(history: Sequence[Life]) -> int:
    failures = 0
    for life in reversed(history):
        if life.ready_ms is not None:
            break
        failures += not life.killed
    return failures


def _delay_ms(history: Sequence[Life], failures: int) -> int:
    unsettled = 0  # lives since the last stable one, before the one that just ended
    for life in reversed(history):
        if life.stable:
            break
        unsettled += 1
    if unsettled <= 1 and failures == 0:
        return 0
    longest = FAILED_DELAY_MAX_MS if failures else READY_DELAY_MAX_MS
    doublings = min(max(unsettled - 2, failures - 1, 0), 20)
    return min(FIRST_DELAY_MS << doublings, longest)


def describe(exit_status: int) -> str:
    """ "ended with status 70", "was killed by SIGKILL"."""
    if exit_status >= 0:
        return f"ended with status {exit_status}"
    try:
        name = signal.Signals(-exit_status).name
    except ValueError:
        name = f"signal {-exit_status}"
    return f"was killed by {name}"
