"""Times of message ids in topics that routers lead to (core/ids.py).

The id of a copy has the time of its original, which is the same when the copy is made again after a crash; but never a
lower one than the record before it, so that ids sort as seqs do. The time of the newest id is kept while the shard
runs. After a start, and for copies that are put back, it is read from the record before.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from operator import attrgetter

from topics.core.block import BadBlock, Block
from topics.core.chunk import Chunk
from topics.core.ids import Ids, time_of
from topics.core.topic import Topic
from topics.shards import hidden
from topics.shards.store import Store

Floors = dict[int, Block]  # blocks that were read from files, by their first seq

_first_seq = attrgetter("first_seq")


async def newest(store: Store, topic: Topic) -> int:
    """The time in the id of the topic's last record; 0 if that is gone or has none."""
    chunk = _chunk_at(topic, topic.head_seq)
    block = await _fetch(store, chunk) if chunk is not None else None
    known = topic.derived.id_ts if topic.derived is not None else 0
    return max(0, known, time_of(block, len(block) - 1) if block is not None else 0)


async def before_missing(store: Store, topic: Topic) -> Floors:
    """The blocks in front of what has to be put back, as far as they are not in memory."""
    floors: Floors = {}
    if topic.config.message_ids and topic.derived is not None:
        for first, _ in tuple(topic.derived.missing):
            chunk = _chunk_at(topic, first - 1)
            block = await _fetch(store, chunk) if chunk is not None and chunk.block is None else None
            if chunk is not None and block is not None:
                floors[chunk.first_seq] = block
    return floors


def ids_behind(topic: Topic, seq: int, floors: Floors) -> Ids | None:
    """For copies that are put back from `seq` on; None if they had no ids."""
    config = topic.config
    if not config.message_ids or seq < config.ids_from:
        return None
    chunk = _chunk_at(topic, seq - 1)
    block = None if chunk is None else chunk.block if chunk.block is not None else floors.get(chunk.first_seq)
    if chunk is None or block is None:
        return Ids(config.id_salt, 0)
    return Ids(config.id_salt, time_of(block, min(seq - 1, block.last_seq) - block.first_seq))


def parted(topic: Topic, runs: Iterable[tuple[int, int]], seqs: list[int]) -> Iterator[tuple[int, int]]:
    """Runs of indexes, none of which has records both from before ids were turned on and from after."""
    for low, high in runs:
        cut = topic.config.ids_from - seqs[low]
        if topic.config.message_ids and 0 < cut < high - low:
            yield low, low + cut
            low += cut
        yield low, high


def _chunk_at(topic: Topic, seq: int) -> Chunk | None:
    """The chunk of the last record at or below `seq` that is there in any form."""
    index = bisect_right(topic.chunks, seq, key=_first_seq) - 1
    return topic.chunks[index] if index >= 0 else None


async def _fetch(store: Store, chunk: Chunk) -> Block | None:
    try:
        return chunk.block if chunk.block is not None else await hidden.fetch_block(store, chunk)
    except BadBlock:
        return None  # its readers are told
