"""What one pass over a queue may still spend on looking past what cannot be claimed: jobs that are gone, entries that
no longer stand. There may be a million of them behind a delete.

When it is used up the pass ends where it is. It has cleared away what it looked at, so the next one goes on from there
(claims.py).
"""


class Effort:
    __slots__ = ("left",)

    def __init__(self, left: int) -> None:
        self.left = left

    @property
    def used_up(self) -> bool:
        return self.left <= 0
