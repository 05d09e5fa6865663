"""Blocks that are stored but still resident, for readers near the tail. Oldest out first, bounded in bytes."""

from collections import deque

from topics import limits
from topics.core.chunk import Chunk

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
