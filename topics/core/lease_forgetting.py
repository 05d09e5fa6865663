"""Records that left the log, as long as it is still to be forgotten what is known of them as jobs."""

from collections import deque
from collections.abc import Iterator
from itertools import islice

from topics.core.ranges import SeqRanges


class Forgetting:
    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left: deque[tuple[Iterator[int], SeqRanges]] = deque()  # of these seqs, those

    def __bool__(self) -> bool:
        return bool(self._left)

    def add(self, seqs: Iterator[int], gone: SeqRanges) -> None:
        """Of these seqs, those that are gone."""
        self._left.append((seqs, gone))

    def take(self, most: int) -> list[int]:
        """The next that are gone; so many are looked at."""
        taken: list[int] = []
        while self._left:
            seqs, gone = self._left[0]
            some = list(islice(seqs, most))
            taken += [seq for seq in some if seq in gone]
            most -= len(some)
            if not most:
                break
            self._left.popleft()
        return taken
