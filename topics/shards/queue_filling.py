"""Somebody who wants more jobs than fit a step: they are leased a portion at a time, and handed over together.

What is leased is logged like any claim, so a crash amid it leaves leases that nobody was told of, as one right behind a
claim does. Who goes meanwhile leaves them to the queue, which gives them back.
"""

from typing import TYPE_CHECKING

from topics import limits
from topics.core.claims import Want
from topics.core.jobs import Jobs
from topics.core.lease_parts import Grant
from topics.core.leases import Leases
from topics.core.line import has_levels
from topics.shards.unsynced import Unsynced

if TYPE_CHECKING:
    from topics.shards.queue_passes import Taker


class Filling:
    __slots__ = ("_bytes", "_lease_ms", "_portions", "deadline", "left", "moves", "taker", "unsynced")

    def __init__(self, taker: "Taker", jobs: int, lease_ms: int) -> None:
        self.taker = taker
        self.left = jobs  # that it may still get
        self.deadline = 0  # of all its leases, once it has one
        self._lease_ms = lease_ms
        self.moves: set[int] = set()  # dead letters that were come across
        self._bytes = taker.batch_bytes
        self._portions: list[Jobs] = []
        self.unsynced = Unsynced()  # portions whose leases are on their way to disk; it may be told when all are there

    @property
    def has_jobs(self) -> bool:
        return bool(self._portions)

    @property
    def leases(self) -> list[tuple[int, int]]:
        """The seqs it has got so far, and the numbers of their leases."""
        return [lease for jobs in self._portions for lease in jobs.leases]

    def has_time(self, now: int) -> bool:
        """Whether it may wait for more: its leases run already."""
        begun = self.deadline - self._lease_ms
        return not self._portions or now - begun <= min(self._lease_ms // 4, limits.FILLING_MS)

    def want(self, most: int) -> Want:
        """The next portion."""
        return Want(min(self.left, most, self.taker.room), max(0, self._bytes), [])

    def fits(self, want: Want) -> bool:
        """Whether it may have this, too: there is a job that nobody has asked the size of, the first one."""
        if not self._portions or not want.picks:
            return True
        seq, chunk = want.picks[0]
        return bool(chunk.sizes[seq - chunk.first_seq] <= self._bytes)

    def add(self, want: Want, grant: Grant, leases: Leases) -> None:
        """It was leased."""
        self.left -= len(want.picks)
        self._bytes -= sum([chunk.sizes[seq - chunk.first_seq] for seq, chunk in want.picks])
        self._portions.append(Jobs.of(want.picks, grant, leases))
        self.deadline = grant.deadline

    def all_jobs(self, leases: Leases) -> Jobs:
        return Jobs.joined(self._portions, sort=not has_levels(leases.line))
