"""Jobs of a queue that were given back for later, and when each is free."""

from collections.abc import Collection
from itertools import repeat

from topics.core.calendar import Calendar
from topics.core.seqtable import SeqTable


class Delays:
    __slots__ = ("_calendar", "until")

    def __init__(self, until: SeqTable[int] | None = None) -> None:
        """Those there are, which are this one's from now on."""
        self.until: SeqTable[int] = until if until is not None else SeqTable()
        self._calendar = Calendar()
        for seq, due in self.until.items():
            self._calendar.add(due, seq)

    def __contains__(self, seq: int) -> bool:
        return seq in self.until

    @property
    def count(self) -> int:
        return self.until.count

    @property
    def first(self) -> int | None:
        """None is over before this time."""
        return self._calendar.first

    def put_all(self, seqs: Collection[int], due: int) -> None:
        self.pop_all(seqs)
        self.until.put_all(seqs, repeat(due))
        self._calendar.add_all(due, seqs)

    def pop_all(self, seqs: Collection[int]) -> None:
        """They are not delayed any more, those that were."""
        if self.until.count:
            ends = zip(self.until.pop_all(seqs), seqs, strict=True)
            self._calendar.remove_each((due, seq) for due, seq in ends if due is not None)

    def pop_due(self, now: int, most: int) -> list[int]:
        """Take out so many of those that are over by now."""
        seqs = [seq for _, seq in self._calendar.pop_before(now + 1, most)]
        self.until.pop_all(seqs)
        return seqs
