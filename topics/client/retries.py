"""When to try a request again, and after what pause: pure."""

import random
from collections.abc import Callable
from dataclasses import dataclass

AGAIN = frozenset({429, 502, 503, 504, 507})


@dataclass(frozen=True, slots=True)
class Retries:
    """Pauses double from `first_s` to `longest_s`, each between half and all of that; the server's Retry-After is the
    least. No attempt begins later than `total_s` after the first."""

    first_s: float = 0.1
    longest_s: float = 5.0
    total_s: float = 30.0

    def pause(
        self,
        attempt: int,
        spent_s: float,
        retry_after_s: float = 0.0,
        chance: Callable[[], float] = random.random,
    ) -> float | None:
        """Seconds to wait before the next attempt, after `attempt` (1, 2, …) has failed; None: give up."""
        longest = min(self.longest_s, self.first_s * 2.0 ** min(attempt - 1, 32))
        pause = max(longest * (0.5 + chance() / 2), retry_after_s)
        return pause if spent_s + pause <= self.total_s else None


NEVER = Retries(total_s=0.0)
