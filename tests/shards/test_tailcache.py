"""Blocks that stay resident when they are stored: for how long, and what then."""

from types import SimpleNamespace
from typing import Any

import msgspec

from topics import limits
from topics.core.block import Block
from topics.core.chunk import Chunk, DataFile
from topics.core.requests import Append, RecordIn
from topics.limits import Limits
from topics.shards.datafile import SEGMENT
from topics.shards.recovery import recover
from topics.shards.tailcache import BLOCK_OVERHEAD, TailCache
from topics.testing.fake_clock import FakeClock
from topics.testing.faulty_files import FaultyFiles

COST = 1000 + BLOCK_OVERHEAD


def stored(number: int, size: int = 1000, file_id: int = 1) -> Chunk:
    """A chunk that has just been stored, with its block."""
    block = Block(number, 0)
    block.add(b"x" * size, 0, b"", b"", 0, 0)
    chunk = Chunk.of(block)
    chunk.file = DataFile(file_id, SEGMENT, f"{file_id}.data", 5, 7)
    return chunk


def resident(chunks: list[Chunk]) -> list[int]:
    return [chunk.first_seq for chunk in chunks if chunk.block is not None]


def test_as_many_stay_as_there_is_room_for_the_newest() -> None:
    cache, chunks = TailCache(3 * COST), list[Chunk]()
    for number in range(1, 11):
        chunks.append(stored(number))
        cache.add(chunks[-1])
        assert resident(chunks) == list(range(max(1, number - 2), number + 1))


def test_a_small_block_costs_more_than_its_text() -> None:
    cache, chunks = TailCache(10 * BLOCK_OVERHEAD), [stored(number, size=1) for number in range(1, 101)]
    for chunk in chunks:
        cache.add(chunk)
    assert resident(chunks) == list(range(92, 101))


def test_a_large_one_takes_the_room_of_many_and_one_that_is_too_large_does_not_stay() -> None:
    cache, chunks = TailCache(10 * COST), [stored(number) for number in range(1, 11)]
    for chunk in chunks:
        cache.add(chunk)
    chunks.append(stored(11, size=1000 + 4 * COST))
    cache.add(chunks[-1])
    assert resident(chunks) == [6, 7, 8, 9, 10, 11]
    chunks.append(stored(12, size=10 * COST))
    cache.add(chunks[-1])
    assert resident(chunks) == []
    chunks.append(stored(13))
    cache.add(chunks[-1])
    assert resident(chunks) == [13]


def test_nothing_stays_of_files_that_have_moved_and_their_room_is_free() -> None:
    cache, chunks = TailCache(4 * COST), [stored(number, file_id=1 + number % 2) for number in range(1, 5)]
    for chunk in chunks:
        cache.add(chunk)
    cache.let_go([])
    assert resident(chunks) == [1, 2, 3, 4]
    cache.let_go([file_of(chunks[0]), DataFile(9, SEGMENT, "9.data", 5, 7)])
    assert resident(chunks) == [2, 4]
    more = [stored(number, file_id=3) for number in range(5, 7)]
    for chunk in more:
        cache.add(chunk)
    assert resident(chunks + more) == [2, 4, 5, 6]
    cache.add(stored(7))
    assert resident(chunks + more) == [4, 5, 6]


def file_of(chunk: Chunk) -> DataFile:
    assert chunk.file is not None
    return chunk.file


def refused(error: Exception) -> None:
    raise error


def test_a_shards_cache_is_bounded_and_a_checkpoint_fills_it() -> None:
    store: Any = recover(FaultyFiles(), FakeClock(), Limits(segment_events=10))
    assert store.cache._limit == limits.TAIL_CACHE_BYTES
    store.cache = TailCache(20_000)
    for _ in range(20):
        records = [RecordIn(msgspec.Raw(b'"%s"' % (b"x" * 500))) for _ in range(10)]
        store.engine.append("t", Append(records, None, None, None, None, True), lambda _: None, refused)
        store.checkpoint()
    chunks = store.engine.state.topics["t"].chunks
    kept = resident(chunks)
    assert 0 < len(kept) < len(chunks)
    assert kept == [chunk.first_seq for chunk in chunks[-len(kept) :]]
    texts = [len(chunk.block.text) + BLOCK_OVERHEAD for chunk in chunks[-len(kept) :]]
    assert 20_000 - max(texts) < sum(texts) <= 20_000
    store.forget(SimpleNamespace(retired=[], moves=[file_of(chunks[-1])]))  # a checkpoint that made copies count
    assert resident(chunks) == kept[:-1]
