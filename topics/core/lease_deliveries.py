"""How often each job of a queue was delivered. Nothing is kept of those that were so once, or never: the cursor tells
which they are."""

from collections.abc import Collection

from topics.core.seqtable import SeqTable


class Deliveries:
    __slots__ = ("times",)

    def __init__(self) -> None:
        self.times: SeqTable[int] = SeqTable()  # where it is not just once

    def add(self, seq: int, before: int) -> None:
        """One more, of a job that had so many if nothing is kept of it."""
        times = self.times.get(seq)
        self.times.put(seq, (before if times is None else times) + 1)

    def add_all(self, seqs: Collection[int], cursor: int) -> bool:
        """One more of each, where the cursor was there. Whether some had any before."""
        times = self.times
        if min(seqs) > cursor and not (times.count and any(seq in times for seq in seqs)):
            return False
        for seq in seqs:
            before = times.get(seq)
            if before is None:
                before = 1 if seq <= cursor else 0
            if before:
                times.put(seq, before + 1)
            else:
                times.pop(seq)  # from now on it is just once
        return True

    def take_back(self, seq: int) -> None:
        """The last one was none."""
        times = self.times.get(seq)
        self.times.put(seq, max(0, (1 if times is None else times) - 1))

    def of_leased(self, seqs: Collection[int]) -> list[int]:
        times = self.times
        return [times.get(seq) or 1 for seq in seqs] if times.count else [1] * len(seqs)
