"""Compressed blocks that were read not long ago, unpacked: whoever reads a few records at a time meets a block often.

Bounded in bytes, the least recently used goes first. Blocks do not change once they are stored and the ids of data
files are never given out twice, so nothing here can be stale. Only the loop uses it.
"""

from collections import OrderedDict

from topics import limits
from topics.core.block import Block
from topics.core.chunk import Chunk
from topics.shards.tailcache import BLOCK_OVERHEAD

LARGEST_PART = 8  # a block that would take more than this part of the room is not kept


class UnpackedBlocks:
    def __init__(self, limit: int = limits.UNPACKED_CACHE_BYTES) -> None:
        self._limit = limit
        self._bytes = 0
        self._blocks: OrderedDict[tuple[int, int], Block] = OrderedDict()

    def get(self, chunk: Chunk) -> Block | None:
        if not self._blocks:
            return None
        key = _key(chunk)
        block = self._blocks.get(key)
        if block is not None:
            self._blocks.move_to_end(key)
        return block

    def add(self, chunk: Chunk, block: Block) -> None:
        key = _key(chunk)
        if key in self._blocks or _cost(block) > self._limit // LARGEST_PART:
            return
        self._blocks[key] = block
        self._bytes += _cost(block)
        while self._bytes > self._limit:
            _, oldest = self._blocks.popitem(last=False)
            self._bytes -= _cost(oldest)


def _key(chunk: Chunk) -> tuple[int, int]:
    assert chunk.file is not None
    return chunk.file.id, chunk.offset


def _cost(block: Block) -> int:
    return len(block.text) + BLOCK_OVERHEAD
