"""How long answers took, by operation: histograms on the board, where whichever gateway is scraped adds all of them up.

A note costs a quarter of a microsecond: three cells of shared memory that nobody else writes.
"""

from array import array
from bisect import bisect_left
from collections.abc import MutableSequence

from topics.board import OP_BOUNDS_S, OP_CELLS, OP_CLASSES, OP_SUM, OPERATIONS

BOUNDS_NS = tuple(round(bound * 1e9) for bound in OP_BOUNDS_S)
FIRST = {operation: n * OP_CELLS for n, operation in enumerate(OPERATIONS)}
BEFORE_CLASSES = OP_CLASSES - 1  # statuses begin with 1


class OpTimes:
    def __init__(self, cells: "MutableSequence[int] | memoryview[int] | None" = None) -> None:
        """On a gateway's part of the board, or on its own."""
        self.cells = array("Q", bytes(8 * len(OPERATIONS) * OP_CELLS)) if cells is None else cells

    def note(self, operation: str, took_ns: int, status: int) -> None:
        """An answer with this status, whole or (of a stream) begun, so long after the end of the request's head."""
        cells, first = self.cells, FIRST[operation]
        cells[first + bisect_left(BOUNDS_NS, took_ns)] += 1
        cells[first + OP_SUM] += took_ns // 1000
        cells[first + BEFORE_CLASSES + status // 100] += 1
