"""Fetching blocks: what the page cache has is read in the loop, everything else in a thread."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from topics import limits
from topics.core.block import Block
from topics.core.blockform import encode_frame
from topics.core.chunk import Chunk, DataFile
from topics.core.diff import Plan, Window
from topics.shards import hidden
from topics.shards.datafile import SEGMENT
from topics.shards.reader import BlockReader
from topics.shards.unpacked import UnpackedBlocks

FILE = DataFile(1, SEGMENT, "s.data", 0x5EED, 7)


class Disk:
    """A file of stored blocks, of which the page cache has some; it notes how, and in which thread, it was read."""

    def __init__(self, cached: set[int]) -> None:
        self._cached = cached
        self._data = b""
        self.chunks: list[Chunk] = []
        self.reads: list[tuple[str, int, bool]] = []
        self._loop = threading.get_ident()

    def store(self, number: int) -> None:
        block = Block(number, 0)
        block.add(b'{"data":%d}' % number, 0, b"", b"", 0, 0)
        data = encode_frame(block, 7, 1, FILE.seed, 0)
        chunk = Chunk.of(block)
        chunk.file, chunk.offset, chunk.length, chunk.block = FILE, len(self._data), len(data), None
        self._data += data
        self.chunks.append(chunk)

    def _note(self, how: str, offset: int) -> int:
        number = next(chunk.first_seq for chunk in self.chunks if chunk.offset == offset)
        self.reads.append((how, number, threading.get_ident() == self._loop))
        return number

    def read_at(self, offset: int, size: int) -> bytes:
        self._note("from the disk", offset)
        return self._data[offset : offset + size]

    def read_cached(self, offset: int, size: int) -> bytes | None:
        number = self._note("from the cache", offset)
        return self._data[offset : offset + size] if number in self._cached else None


def opened(cached: set[int], blocks: int) -> tuple[Disk, Any]:
    disk = Disk(cached)
    for number in range(1, blocks + 1):
        disk.store(number)
    return disk, SimpleNamespace(unpacked=UnpackedBlocks(), handles=SimpleNamespace(get=lambda file: disk))


def plan_of(chunks: list[Chunk]) -> Plan:
    windows = [Window(chunk.block, 0, 0, 1, chunk) for chunk in chunks]
    return Plan(windows, None, len(chunks), len(chunks), 1, len(chunks))


def texts(plan: Plan) -> list[bytes]:
    return [bytes(window.block.text) for window in plan.windows if window.block is not None]


@pytest.mark.parametrize("blocks", [limits.INLINE_BLOCKS, limits.INLINE_BLOCKS + 5])
async def test_the_loop_reads_what_is_cached_and_never_waits_for_the_disk(blocks: int) -> None:
    """A few at once, more in short turns."""
    cached = set(range(1, blocks + 1)) - {2, blocks}
    disk, store = opened(cached, blocks)
    plan, reader = plan_of(disk.chunks), BlockReader(store)
    missing = reader.missing(plan)
    assert [window.chunk.first_seq for window, _ in missing] == (
        [2, blocks] if blocks <= limits.INLINE_BLOCKS else [*range(1, blocks + 1)]
    )
    assert await reader.fill(missing) == 0
    assert texts(plan) == [b'{"data":%d}' % number for number in range(1, blocks + 1)]
    assert [read for read in disk.reads if read[0] == "from the disk"] == [
        ("from the disk", 2, False),
        ("from the disk", blocks, False),
    ]
    assert {in_loop for how, _, in_loop in disk.reads if how == "from the cache"} == {True}


@pytest.mark.parametrize("cached", [True, False])
async def test_so_does_whoever_wants_a_single_block(cached: bool) -> None:
    disk, store = opened({1} if cached else set(), 1)
    block = await hidden.fetch_block(store, disk.chunks[0])
    assert bytes(block.text) == b'{"data":1}'
    assert disk.reads == [("from the cache", 1, True)] + ([] if cached else [("from the disk", 1, False)])
