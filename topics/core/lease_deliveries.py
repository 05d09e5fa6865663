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
        if not times.count and min(seqs) > cursor:
            return False
        kept = times.get_all(seqs)
        if min(seqs) > cursor and not any(before is not None for before in kept):
            return False
        again, counts, once = [], [], []
        for seq, before in zip(seqs, kept, strict=True):
            if before or (before is None and seq <= cursor):
                again.append(seq)
                counts.append((before or 1) + 1)
            elif before is not None:
                once.append(seq)  # from now on it is
        times.put_all(again, counts)
        times.pop_all(once)
        return True

    def take_back(self, seq: int) -> None:
        """The last one was none."""
        times = self.times.get(seq)
        self.times.put(seq, max(0, (1 if times is None else times) - 1))

    def of_leased(self, seqs: Collection[int]) -> list[int]:
        return [times or 1 for times in self.times.get_all(seqs)] if self.times.count else [1] * len(seqs)
