"""How long a child may be silent: pure, time is passed in.

A miss counts if the process was there and said nothing. One whose socket is gone is on its way to its end (a shard that
stores its last checkpoint), or not yet there; only its time to the first answer is bounded.
"""

from topics import limits
from topics.rpc import DeadlineExceeded, ProtocolError, RpcError


class Patience:
    def __init__(self, stuck_s: float) -> None:
        self._stuck_s = stuck_s
        self.begin(0.0)

    def begin(self, now: float) -> None:
        """A process was started."""
        self._quiet_since = now
        self._known = False  # it has answered, in this life
        self._misses = 0
        self._over = False

    def heard(self, now: float) -> None:
        self._quiet_since, self._known, self._misses = now, True, 0

    def missed(self, now: float, error: RpcError) -> bool:
        """Another look failed. True once in a life: when it is to be killed."""
        silent = isinstance(error, DeadlineExceeded | ProtocolError)
        self._misses += silent
        counts = silent and self._misses >= limits.STUCK_MISSES_MIN if self._known else True
        if self._over or not counts or now - self._quiet_since < self._limit_s:
            return False
        self._over = True
        return True

    @property
    def strained(self) -> bool:
        """It does not answer now, or was to be killed and is still there."""
        return self._over or self._misses >= limits.STUCK_MISSES_MIN

    @property
    def _limit_s(self) -> float:
        return self._stuck_s if self._known else self._stuck_s * limits.FIRST_ANSWER_TIMES
