"""The jobs of a queue that may be claimed again, in the order in which they are.

That is the order of their seqs, or, where jobs have priorities or times, of how long they have waited in each priority
(line.py). A job that is picked stays free until it is leased or leaves, but is not picked again unless it is put back.
"""

from collections.abc import Callable, Collection, Iterator
from heapq import heappop, heappush
from itertools import repeat
from typing import Any

from topics.core.chunk import Chunk
from topics.core.effort import Effort
from topics.core.line import Line, Pick, chunk_of
from topics.core.seqtable import SeqTable


class FreeJobs:
    __slots__ = ("_deliveries", "_heap", "_line", "seqs", "spared")

    def __init__(self) -> None:
        self.seqs: SeqTable[bool] = SeqTable()
        self.spared: SeqTable[int] = SeqTable()  # deliveries that do not count but kept others waiting; of any job
        self._heap: list[int] = []  # these in their order, and some that are free no longer
        self._line: Line | None = None
        self._deliveries: Callable[[int], int] = lambda _: 0

    def add(self, seq: int) -> None:
        self.seqs.put(seq, True)
        self.put_back(seq)

    def add_all(self, seqs: Collection[int]) -> None:
        self.seqs.put_all(seqs, repeat(True))
        for seq in seqs:
            if self._line is None:
                heappush(self._heap, seq)
            else:
                self._line.set_free(seq, self._rounds(seq))

    def withdraw(self, seq: int) -> bool:
        """It is free no longer although nobody has picked it; whether it was. That may happen to it again and again
        while nobody picks any, so those that are first in the order and free no longer leave it."""
        if not self.seqs.count or not self.seqs.pop(seq):
            return False
        line = self._line
        heap: list[Any] = self._heap if line is None else line.heaps[line.priority(seq)]
        for _ in range(2):
            if heap and (heap[0] if line is None else heap[0][1]) not in self.seqs:
                heappop(heap)
        return True

    def put_back(self, seq: int) -> None:
        """It was picked and is not wanted."""
        if seq not in self.seqs:
            return
        if self._line is None:
            heappush(self._heap, seq)
        else:
            self._line.set_free(seq, self._rounds(seq))

    def _rounds(self, seq: int) -> int:
        """How often it was delivered, counted or not; never less than before."""
        return self._deliveries(seq) + (self.spared.get(seq) or 0)

    def pick(self, effort: Effort) -> int | None:
        """The lowest, while there is no line."""
        while self._heap:
            seq = heappop(self._heap)
            if seq in self.seqs:
                return seq
            effort.left -= 1
            if effort.left <= 0:
                return None
        return None

    # --- with a line ----------------------------------------------------------------------------------------------

    def line_up(self, line: Line, deliveries: Callable[[int], int]) -> None:
        """From now on they stand in this line; those that are free already get there by `move_up`."""
        self._line = line
        self._deliveries = deliveries

    def move_up(self, most: int) -> int:
        """Put so many of those into the line that were free before it was there; how many there were."""
        if not self._heap or most <= 0:
            return 0
        moved = self._heap[-most:]
        del self._heap[-most:]
        for seq in moved:
            self.put_back(seq)
        return len(moved)

    def of(self, priority: int, effort: Effort) -> Iterator[Pick]:
        """Those of a priority; the one that was given last is the first of its heap. Whoever takes it says so with
        `take` before asking for the next."""
        assert self._line is not None
        topic, heap = self._line.topic, self._line.heaps[priority]
        seen: set[int] = set()  # a job may stand there twice
        chunk: Chunk | None = None
        while heap:
            _, seq, rounds = heap[0]
            stands = seq in self.seqs and seq not in seen and rounds == self._rounds(seq)  # else it was free before
            if stands and (chunk := chunk_of(topic, seq, chunk)) is not None:
                seen.add(seq)
                yield seq, chunk
                continue
            heappop(heap)
            effort.left -= 1
            if effort.left <= 0:
                return

    def take(self, priority: int) -> None:
        """The first of a priority is picked."""
        assert self._line is not None
        heappop(self._line.heaps[priority])
