"""Data files: blocks at rest. A segment holds one topic's blocks, a pack the blocks of many small topics.

Both are written once, in full, and never change afterwards except for delete flags (see core/block.py).

`<name>.data`, little endian: a 64-byte header (magic "TOPICSDF", version u32, kind u32 (1 segment, 2 pack), seed u64,
file id u64, topic id u64 (segments), 16 bytes reserved, XXH3-64 of bytes 0..56), then block frames.

`<name>.idx`, the twin that spares recovery the data file; rebuilt from it if it is missing or bad:

    off  size  field
      0     8  magic "TOPICSIX"
      8    16  version u32, blocks u32, records u64
     24    16  tag entries u64, tag bytes u64
     40    24  data size u64, file id u64, reserved u64
     64  56·b  per block: topic id, epoch, first_seq, base_ts, offset (u64 each), frame_len u32, n u32, flags u32, 0 u32
      …   4·r  ts deltas of all records, in block order
      …   4·r  sizes of all records
      …  16·t  tag run: seq u64, offset of the tag u32, length u16, 0 u16, sorted by (tag, seq); segments only
      …     …  tag bytes (quoted tags, equal ones stored once)
      …     8  XXH3-64 of everything before
"""

import struct
from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import xxhash

from topics.core.block import BadBlock, Block, check_frame, decode_block, encode_frame, mask_from_flags
from topics.core.chunk import Chunk, DataFile
from topics.core.tags import Pattern
from topics.shards.files import File, Files

DATA_MAGIC, INDEX_MAGIC = b"TOPICSDF", b"TOPICSIX"
VERSION = 1
SEGMENT, PACK = "segment", "pack"
_KINDS = {SEGMENT: 1, PACK: 2}
_DATA_HEADER = struct.Struct("<8sIIQQQ16sQ")
_INDEX_HEADER = struct.Struct("<8sIIQQQQQQ")
_ENTRY = struct.Struct("<QQQQQIIII")
_TAG = struct.Struct("<QIHH")
_U64 = struct.Struct("<Q")
HEADER_BYTES = _DATA_HEADER.size
ENTRY_TAGGED = 1

assert HEADER_BYTES == _INDEX_HEADER.size == 64
assert _ENTRY.size == 56


class BadFile(ValueError):
    """A data or index file whose bytes do not check."""


class Stored(NamedTuple):
    """A block that is to be, or has been, written: who it belongs to, and which of its records are dead."""

    topic_id: int
    epoch: int
    block: Block
    dead: int


class Entry(NamedTuple):
    topic_id: int
    epoch: int
    first_seq: int
    base_ts: int
    offset: int
    frame_len: int
    n: int
    flags: int


def index_path(path: str) -> str:
    return path.removesuffix(".data") + ".idx"


def write_data_file(files: Files, info: DataFile, blocks: Sequence[Stored]) -> list[Entry]:
    """Write both twins and sync them. The names are final at once: nothing refers to them before the snapshot does."""
    for path in (info.path, index_path(info.path)):
        files.unlink(path)  # left over from a checkpoint that a crash cut short
    entries: list[Entry] = []
    file = files.create(info.path)
    try:
        position = _write_frames(file, info, blocks, entries)
        file.sync()
    finally:
        file.close()
    info.size = position
    twin = files.create(index_path(info.path))
    try:
        twin.write_at(0, encode_index(info, entries, [stored.block for stored in blocks]))
        twin.sync()
    finally:
        twin.close()
    return entries


def _write_frames(file: File, info: DataFile, blocks: Sequence[Stored], entries: list[Entry]) -> int:
    head = _DATA_HEADER.pack(
        DATA_MAGIC, VERSION, _KINDS[info.kind], info.seed, info.id, info.topic_id, bytes(16), 0
    )[:56]  # fmt: skip
    parts = [head + _U64.pack(xxhash.xxh3_64_intdigest(head))]
    start, position = 0, HEADER_BYTES
    for stored in blocks:
        frame = encode_frame(stored.block, stored.topic_id, stored.epoch, info.seed, stored.dead)
        block = stored.block
        entries.append(
            Entry(
                stored.topic_id, stored.epoch, block.first_seq, block.base_ts, position, len(frame), len(block),
                ENTRY_TAGGED if block.tags else 0,
            )
        )  # fmt: skip
        parts.append(frame)
        position += len(frame)
        if position - start > 1 << 20:
            file.write_at(start, parts)
            parts, start = [], position
    file.write_at(start, parts)
    return position


def encode_index(info: DataFile, entries: Sequence[Entry], blocks: Sequence[Block]) -> list[bytes]:
    run, blob = _tag_run(blocks) if info.kind == SEGMENT else (b"", b"")
    head = _INDEX_HEADER.pack(
        INDEX_MAGIC, VERSION, len(entries), sum(entry.n for entry in entries), len(run) // _TAG.size, len(blob),
        info.size, info.id, 0,
    )  # fmt: skip
    parts = [head, *[_ENTRY.pack(*entry, 0) for entry in entries]]
    parts += [block.ts.tobytes() for block in blocks]
    parts += [block.sizes().tobytes() for block in blocks]
    parts += [run, blob]
    digest = xxhash.xxh3_64()
    for part in parts:
        digest.update(part)
    return [*parts, _U64.pack(digest.intdigest())]


def _tag_run(blocks: Sequence[Block]) -> tuple[bytes, bytes]:
    tagged = []
    for block in blocks:
        start = 0
        tags = bytes(block.tags)
        for seq, end in enumerate(block.tag_ends, block.first_seq):
            if end != start:
                tagged.append((tags[start:end], seq))
                start = end
    tagged.sort()
    run, blob = bytearray(), bytearray()
    last, at = b"", 0
    for tag, seq in tagged:
        if tag != last:
            last, at = tag, len(blob)
            blob += tag
        run += _TAG.pack(seq, at, len(tag), 0)
    return bytes(run), bytes(blob)


class Index(NamedTuple):
    entries: list[Entry]
    ts: "array[int]"
    sizes: "array[int]"
    tag_count: int
    tag_at: int  # offset of the tag run in the index file


def read_index(files: Files, info: DataFile) -> Index:
    """The index twin; rebuilt from the data file if it cannot be read."""
    try:
        file = files.open(index_path(info.path))
    except FileNotFoundError:
        return rebuild_index(files, info)
    try:
        data = file.read_at(0, file.size())
    finally:
        file.close()
    try:
        return decode_index(data, info.id)
    except BadFile:
        return rebuild_index(files, info)


def decode_index(data: bytes, file_id: int) -> Index:
    if len(data) < _INDEX_HEADER.size + 8 or xxhash.xxh3_64_intdigest(memoryview(data)[:-8]) != _U64.unpack(data[-8:])[0]:
        raise BadFile("index checksum does not match")
    magic, version, blocks, records, tags, tag_bytes, _, owner, _ = _INDEX_HEADER.unpack_from(data)
    at = _INDEX_HEADER.size
    size = at + blocks * _ENTRY.size + records * 8 + tags * _TAG.size + tag_bytes + 8
    if magic != INDEX_MAGIC or version != VERSION or owner != file_id or size != len(data):
        raise BadFile("index header is not plausible")
    entries = [Entry(*fields[:8]) for fields in _ENTRY.iter_unpack(data[at : at + blocks * _ENTRY.size])]
    at += blocks * _ENTRY.size
    ts, sizes = array("I"), array("I")
    ts.frombytes(data[at : at + 4 * records])
    sizes.frombytes(data[at + 4 * records : at + 8 * records])
    return Index(entries, ts, sizes, tags, at + 8 * records)


def rebuild_index(files: Files, info: DataFile) -> Index:
    """Read every frame of the data file, and write a new index twin beside it."""
    entries: list[Entry] = []
    blocks: list[Block] = []
    for offset, block, topic_id, epoch, length in read_frames(files, info):
        flags = ENTRY_TAGGED if block.tags else 0
        entries.append(Entry(topic_id, epoch, block.first_seq, block.base_ts, offset, length, len(block), flags))
        blocks.append(block)
    path = index_path(info.path)
    files.unlink(path)
    twin = files.create(path)
    try:
        twin.write_at(0, encode_index(info, entries, blocks))
        twin.sync()
        return decode_index(twin.read_at(0, twin.size()), info.id)
    finally:
        twin.close()


def read_frames(files: Files, info: DataFile) -> Iterator[tuple[int, Block, int, int, int]]:
    """(offset, block, topic id, epoch, length) of every frame that checks; a bad one ends the file."""
    file = files.open(info.path)
    try:
        data = file.read_at(0, file.size())
    finally:
        file.close()
    view = memoryview(data)
    at = HEADER_BYTES
    while at < len(data):
        try:
            head = check_frame(view[at:], info.seed)
        except BadBlock:
            return
        block, _ = decode_block(view, at)
        yield at, block, head.topic_id, head.epoch, head.frame_len
        at += head.frame_len


def chunks_of(info: DataFile, index: Index) -> Iterator[tuple[Entry, Chunk]]:
    """A resident chunk for each block of the file; flags are read separately."""
    at = 0
    for entry in index.entries:
        chunk = Chunk(entry.first_seq, entry.base_ts, index.ts[at : at + entry.n], index.sizes[at : at + entry.n])
        chunk.file = info
        chunk.offset = entry.offset
        chunk.length = entry.frame_len
        chunk.tagged = bool(entry.flags & ENTRY_TAGGED)
        at += entry.n
        yield entry, chunk


def read_flags(handle: File, chunk: Chunk) -> int:
    """The bit mask of deleted records that the file knows of."""
    n = len(chunk)
    return mask_from_flags(handle.read_at(chunk.offset + chunk.length - n, n))


def decode_frame(data: bytes, seed: int) -> Block:
    """A block read from a data file; BadBlock if its checksum does not hold."""
    check_frame(data, seed)
    return decode_block(data)[0]


def find_tags(index_file: File, info: DataFile, pattern: Pattern) -> list[int]:
    """Seqs in a segment whose tag matches, by binary search in its tag run."""
    head = _INDEX_HEADER.unpack(index_file.read_at(0, _INDEX_HEADER.size))
    blocks, records, count = head[2], head[3], head[4]
    run_at = _INDEX_HEADER.size + blocks * _ENTRY.size + records * 8
    blob_at = run_at + count * _TAG.size

    def tag_at(index: int) -> tuple[bytes, int]:
        seq, offset, length, _ = _TAG.unpack(index_file.read_at(run_at + index * _TAG.size, _TAG.size))
        return index_file.read_at(blob_at + offset, length), seq

    wanted = pattern.exact or pattern.prefix
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if tag_at(middle)[0] < wanted:
            low = middle + 1
        else:
            high = middle
    seqs = []
    for index in range(low, count):
        tag, seq = tag_at(index)
        if not pattern.matches(tag):
            break
        seqs.append(seq)
    return sorted(seqs)


