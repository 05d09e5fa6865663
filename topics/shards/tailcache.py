"""Blocks that are stored but still resident, for readers near the tail. Oldest out first, bounded in bytes."""

from collections import deque
from collections.abc import Collection

from topics import limits
from topics.core.chunk import Chunk, DataFile

BLOCK_OVERHEAD = 1500  # what a resident block costs beside its text: columns and objects


class TailCache:
    def __init__(self, limit: int = limits.TAIL_CACHE_BYTES) -> None:
        self._limit = limit
        self._bytes = 0
        self._chunks: deque[tuple[Chunk, int]] = deque()

    def add(self, chunk: Chunk) -> None:
        """`chunk` has just been stored and keeps its block for now."""
        assert chunk.block is not None
        cost = len(chunk.block.text) + BLOCK_OVERHEAD
        self._chunks.append((chunk, cost))
        self._bytes += cost
        while self._bytes > self._limit:
            oldest, freed = self._chunks.popleft()
            oldest.block = None
            self._bytes -= freed

    def let_go(self, moved: Collection[DataFile]) -> None:
        """Of files in the cold tier nothing is kept: they are no longer near the tail."""
        if not moved:
            return
        ids = {info.id for info in moved}
        kept: deque[tuple[Chunk, int]] = deque()
        for chunk, cost in self._chunks:
            if chunk.file is not None and chunk.file.id in ids:
                chunk.block = None
                self._bytes -= cost
            else:
                kept.append((chunk, cost))
        self._chunks = kept
