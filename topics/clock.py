"""Where time enters: one object, handed down, so that tests can hold it still."""

import time
from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int:
        """Wall-clock milliseconds since the Unix epoch."""
        ...

    def monotonic_ns(self) -> int:
        """For durations only."""
        ...


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ns(self) -> int:
        return time.perf_counter_ns()


class ForwardTime:
    """Wall-clock time that never goes back, whatever is done to the clock, and never stands still.

    While the clock is behind what was told before, time goes on from there, a little too slowly: leases and delays
    still end, and the clock catches up some day.
    """

    _SLOWER = 16  # a sixteenth, so that an hour takes sixteen to be caught up with

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since: tuple[int, int] | None = None  # while the clock is behind: a time, and when that was

    def after(self, last_ms: int) -> int:
        """The time by now; `last_ms` is the latest that anybody was told, or that a log or a snapshot has."""
        now = self._clock.now_ms()
        if self._since is None and now >= last_ms:
            return now
        ticks = self._clock.monotonic_ns()
        from_ms, from_ns = self._since or (last_ms, ticks)
        on = from_ms + (ticks - from_ns) * (self._SLOWER - 1) // (self._SLOWER * 1_000_000)
        if now >= max(on, last_ms):
            self._since = None
            return now
        self._since = (from_ms, from_ns) if on >= last_ms else (last_ms, ticks)
        return max(on, last_ms)
