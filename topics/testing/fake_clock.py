"""A clock that stands still until a test moves it; implements `topics.clock.Clock`."""


class FakeClock:
    """Both hands move together in `advance`; `jump_wall` moves only the wall clock, as an operator or NTP may."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._monotonic_ns = 0

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic_ns(self) -> int:
        return self._monotonic_ns

    def advance(self, ms: int) -> None:
        """Let `ms` milliseconds pass."""
        if ms < 0:
            raise ValueError("time passes forwards; jump_wall sets the wall clock back")
        self._now_ms += ms
        self._monotonic_ns += ms * 1_000_000

    def jump_wall(self, ms: int) -> None:
        """Set the wall clock forward or back, while no time passes."""
        self._now_ms += ms
