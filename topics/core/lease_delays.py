"""Jobs of a queue that were given back for later, and when each is free."""

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

    def put(self, seq: int, due: int) -> None:
        self.pop(seq)
        self.until.put(seq, due)
        self._calendar.add(due, seq)

    def pop(self, seq: int) -> None:
        """It is not delayed any more, if it was."""
        due = self.until.pop(seq)
        if due is not None:
            self._calendar.remove(due, seq)

    def pop_due(self, now: int, most: int) -> list[int]:
        """Take out so many of those that are over by now."""
        seqs = [seq for _, seq in self._calendar.pop_before(now + 1, most)]
        for seq in seqs:
            self.until.pop(seq)
        return seqs
