"""Hidden topics: what a shard has to remember for itself, kept by the machinery that keeps everybody's records.

Log, checkpoints, data files, recovery and deletes are those of any topic. But nobody outside the shard sees one: its
name begins with `$`, which no request can name; it is in no list and no count, no cap applies to it, and it does not
tie its hash slot to the shard. Its records need not be JSON: nothing parses them.

They are written with `engine.append` and removed with `engine.delete_records`. An append is refused like any other
while the disk is full or the log has failed.
"""

from bisect import bisect_left
from collections.abc import Iterator

import trio

from topics.core.block import BadBlock, Block
from topics.core.blockform import is_packed
from topics.core.chunk import Chunk
from topics.core.config import ConfigPatch, Durability
from topics.core.names import is_hidden_name
from topics.core.topic import Topic
from topics.shards import datafile
from topics.shards.cold import ColdUnavailable, place_of, read_in_thread, refusal
from topics.shards.engine import Engine
from topics.shards.store import Store

_DATA = len(b',"data":')


def open(engine: Engine, name: str, durability: Durability = "fsync") -> Topic:
    """The topic, made if it is not there. It takes records at once; they are durable only after it is."""
    assert is_hidden_name(name)
    topic = engine.state.topics.get(name)
    if topic is None:
        engine.put_topic(name, ConfigPatch({"durability": durability}), lambda _: None, lambda _: None)
        topic = engine.state.topics[name]
    return topic


def find(topic: Topic, seq: int) -> Chunk | None:
    """The chunk with this record, if the record is applied and live."""
    index = bisect_left(topic.chunks, seq, key=lambda chunk: chunk.last_seq)
    chunk = topic.chunks[index] if index < len(topic.chunks) else None
    if chunk is None or seq < chunk.first_seq or chunk.dead >> (seq - chunk.first_seq) & 1:
        return None
    return chunk


def read_block(store: Store, chunk: Chunk) -> Block:
    """The chunk's block, from its file if need be. Raises BadBlock or OSError. For recovery: it may block."""
    return store.read_block(chunk)


async def fetch_block(store: Store, chunk: Chunk) -> Block:
    """As `read_block`, for the loop: what the page cache does not have is read, and unpacked, in a thread."""
    file, offset, length = chunk.file, chunk.offset, chunk.length
    if chunk.block is not None:
        return chunk.block
    assert file is not None
    if file.cold:
        return await _fetch_cold(store, chunk)
    handle = store.handles.get(file)  # stays readable if a checkpoint retires the file meanwhile
    data = handle.read_cached(offset, length)
    if data is None:
        data = await trio.to_thread.run_sync(handle.read_at, offset, length)
    if is_packed(data):  # perhaps a large record of a queue's
        return await trio.to_thread.run_sync(datafile.decode_frame, data, file.seed)
    return datafile.decode_frame(data, file.seed)


async def _fetch_cold(store: Store, chunk: Chunk) -> Block:
    """Hidden topics stay hot, but others use `fetch_block`, too. Refused if it cannot be had now."""
    try:
        (block,) = await read_in_thread(store.cold, [place_of(chunk)])
    except ColdUnavailable as error:
        raise refusal(str(error)) from error
    if block is None:
        raise BadBlock("a block in the cold tier does not check")
    return block


def data_of(block: Block, index: int) -> bytes:
    """A record's bytes as they were appended, without meta."""
    start = block.start(index) + block.data_offs[index] + _DATA
    return bytes(block.text[start : block.ends[index] - 1])


def live_in(chunk: Chunk) -> Iterator[int]:
    """Indexes of the chunk's live records."""
    return (index for index in range(len(chunk)) if not chunk.dead >> index & 1)
