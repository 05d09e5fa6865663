"""Seqs by the time at which something happens to them: a lease ends, a delay is over.

Many seqs share a time (a batch is leased in one go), so there is one list a time and a heap of the times. Nothing is
ever taken out ahead of its time: who asks checks whether an entry still stands (the job may be finished).
"""

from collections.abc import Collection
from heapq import heappop, heappush

from topics.core.seqtable import SeqTable


class Calendar:
    __slots__ = ("_heap", "_seqs", "size")

    def __init__(self) -> None:
        self._seqs: SeqTable[list[int]] = SeqTable()
        self._heap: list[int] = []
        self.size = 0  # entries, also those that no longer stand

    def add(self, when: int, seq: int) -> None:
        seqs = self._seqs.get(when)
        if seqs is None:
            self._seqs.put(when, [seq])
            heappush(self._heap, when)
        else:
            seqs.append(seq)
        self.size += 1

    def add_all(self, when: int, seqs: Collection[int]) -> None:
        there = self._seqs.get(when)
        if there is None:
            self._seqs.put(when, [*seqs])
            heappush(self._heap, when)
        else:
            there += seqs
        self.size += len(seqs)

    def pop_before(self, when: int, most: int) -> list[tuple[int, int]]:
        """Take out so many of the entries below `when`: (time, seq), the earliest first."""
        taken: list[tuple[int, int]] = []
        while self._heap and self._heap[0] < when and len(taken) < most:
            due = self._heap[0]
            seqs = self._seqs.get(due)
            assert seqs is not None
            some = seqs[len(taken) - most :]
            taken += [(due, seq) for seq in some]
            del seqs[-len(some) :]
            if not seqs:
                heappop(self._heap)
                self._seqs.pop(due)
        self.size -= len(taken)
        return taken

    @property
    def first(self) -> int | None:
        """The earliest time of an entry, which may no longer stand."""
        return self._heap[0] if self._heap else None
