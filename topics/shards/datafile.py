"""Data files: blocks at rest. A segment holds one topic's blocks, a pack the blocks of many small topics.

Both are written once, in full, and never change afterwards except for delete flags (see core/blockform.py).

`<name>.data`, little endian: a 64-byte header (magic "TOPICSDF", version u32, kind u32 (1 segment, 2 pack), seed u64,
file id u64, topic id u64 (segments), 16 bytes reserved, XXH3-64 of bytes 0..56), then block frames.

`<name>.idx`, the twin that spares recovery the data file; rebuilt from it if it is missing or bad:

    off  size  field
      0     8  magic "TOPICSIX"
      8    16  version u32, blocks u32, records u64
     24    16  tag entries u64, tag bytes u64
     40    24  data size u64, file id u64, bytes of the jobs' columns u64
     64  56·b  per block: topic id, epoch, first_seq, base_ts, offset (u64 each), frame_len u32, n u32, flags u32, 0 u32
      …   4·r  ts deltas of all records, in block order
      …   4·r  sizes of all records
      …  16·t  tag run: seq u64, offset of the tag u32, length u16, 0 u16, sorted by (tag, seq); segments only
      …     …  tag bytes (quoted tags, equal ones stored once)
      …     …  columns of jobs (jobcolumns.py)
      …     8  XXH3-64 of everything before

A block that no longer checks stays in the index, so that a reader who meets it finds out and its range is reported.
Only bytes in which not even the header of a block can be read are left out, and `Index.lost_bytes` says so.
"""

import logging
import struct
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import xxhash

from topics.core.block import BadBlock, Block
from topics.core.blockform import (
    DIRECT,
    HEADER,
    BlockHead,
    check_frame,
    decode_stored,
    encode_frame,
    mask_from_flags,
    stored_text,
)
from topics.core.blockform import VERSION as BLOCK_VERSION
from topics.core.chunk import Chunk, DataFile
from topics.core.extras import BadExtras
from topics.core.match import prefix_end
from topics.core.packing import PLAIN, Packer, Packing, unpack
from topics.core.tags import Pattern
from topics.limits import BLOCK_RECORDS_MAX
from topics.shards import jobcolumns
from topics.shards.files import File, Files
from topics.shards.jobcolumns import JobColumns

log = logging.getLogger(__name__)
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
STRETCH = 128  # tag entries that are looked at in one read at the end of a search
SLICE_BYTES = 1 << 16  # of the tag run in one read

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
    packing: Packing = PLAIN


class Entry(NamedTuple):
    topic_id: int
    epoch: int
    first_seq: int
    base_ts: int
    offset: int
    frame_len: int
    n: int
    flags: int


def entry_flags(block: Block) -> int:
    return (ENTRY_TAGGED if block.tags else 0) | jobcolumns.flags_of(block)


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
    packer = Packer()
    for stored in blocks:
        block = stored.block
        packed = packer.pack(block.text, stored.packing)
        frame = encode_frame(block, stored.topic_id, stored.epoch, info.seed, stored.dead, packed)
        entries.append(
            Entry(
                stored.topic_id, stored.epoch, block.first_seq, block.base_ts, position, len(frame), len(block),
                entry_flags(block),
            )
        )  # fmt: skip
        parts.append(frame)
        position += len(frame)
        if position - start > 1 << 20:
            file.write_at(start, parts)
            parts, start = [], position
            info.size = position  # so far, for those who ask how much is still to come
    file.write_at(start, parts)
    return position


class DataHeader(NamedTuple):
    kind: str
    seed: int
    file_id: int
    topic_id: int


def decode_data_header(data: bytes) -> DataHeader | None:
    """The header of a data file, or None if it does not check. Serving needs none of it: the snapshot says the same."""
    if len(data) < HEADER_BYTES:
        return None
    magic, version, code, seed, file_id, topic_id, _, check = _DATA_HEADER.unpack_from(data)
    kind = next((kind for kind, number in _KINDS.items() if number == code), None)
    if magic != DATA_MAGIC or version != VERSION or kind is None or xxhash.xxh3_64_intdigest(data[:56]) != check:
        return None
    return DataHeader(kind, seed, file_id, topic_id)


def encode_index(info: DataFile, entries: Sequence[Entry], blocks: Sequence[Block]) -> list[bytes]:
    run, blob = _tag_run(blocks) if info.kind == SEGMENT else (b"", b"")
    jobs = jobcolumns.encode(blocks)
    head = _INDEX_HEADER.pack(
        INDEX_MAGIC, VERSION, len(entries), sum(entry.n for entry in entries), len(run) // _TAG.size, len(blob),
        info.size, info.id, len(jobs),
    )  # fmt: skip
    parts = [head, *[_ENTRY.pack(*entry, 0) for entry in entries]]
    parts += [block.ts.tobytes() for block in blocks]
    parts += [block.sizes().tobytes() for block in blocks]
    parts += [run, blob, jobs]
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
    lost_bytes: int  # of the data file that belong to no entry: blocks that cannot even be told apart
    jobs: dict[int, JobColumns]  # by the offset of a block, of those that have any


def read_index(files: Files, info: DataFile) -> Index:
    """The index twin; rebuilt from the data file if it cannot be read."""
    try:
        index = load_index(files, info)
    except (FileNotFoundError, BadFile) as error:
        log.warning("%s has no usable index (%s); it is made anew from the blocks", info.path, error)
        index = rebuild_index(files, info, _read_all(files, info.path))
    if index.lost_bytes:
        log.error("%s is damaged: %d bytes can no longer be read as blocks", info.path, index.lost_bytes)
    return index


def load_index(files: Files, info: DataFile) -> Index:
    """The index twin as it stands. Raises FileNotFoundError or BadFile."""
    return decode_index(_read_all(files, index_path(info.path)), info.id)


def _read_all(files: Files, path: str) -> bytes:
    file = files.open(path)
    try:
        return file.read_at(0, file.size())
    finally:
        file.close()


def decode_index(data: bytes, file_id: int) -> Index:
    """BadFile on anything but the whole index of this file."""
    if len(data) < _INDEX_HEADER.size + 8:
        raise BadFile("index is cut off")
    if xxhash.xxh3_64_intdigest(memoryview(data)[:-8]) != _U64.unpack(data[-8:])[0]:
        raise BadFile("index checksum does not match")
    magic, version, blocks, records, tags, tag_bytes, data_size, owner, job_bytes = _INDEX_HEADER.unpack_from(data)
    at = _INDEX_HEADER.size
    size = at + blocks * _ENTRY.size + records * 8 + tags * _TAG.size + tag_bytes + job_bytes + 8
    if magic != INDEX_MAGIC or version != VERSION or owner != file_id or size != len(data):
        raise BadFile("index header is not plausible")
    entries = [Entry(*fields[:8]) for fields in _ENTRY.iter_unpack(data[at : at + blocks * _ENTRY.size])]
    if sum(entry.n for entry in entries) != records or not all(map(_is_plausible, entries)):
        raise BadFile("index entries do not add up")
    at += blocks * _ENTRY.size
    ts, sizes = array("I"), array("I")
    ts.frombytes(data[at : at + 4 * records])
    sizes.frombytes(data[at + 4 * records : at + 8 * records])
    lost_bytes = data_size - HEADER_BYTES - sum(entry.frame_len for entry in entries)
    try:
        jobs = (
            jobcolumns.decode(data[-8 - job_bytes : -8], [(entry.offset, entry.n, entry.flags) for entry in entries])
            if job_bytes
            else {}
        )
    except BadExtras as error:
        raise BadFile(str(error)) from error
    return Index(entries, ts, sizes, tags, at + 8 * records, lost_bytes, jobs)


def _is_plausible(entry: Entry) -> bool:
    return 1 <= entry.n <= min(BLOCK_RECORDS_MAX, entry.frame_len) and entry.offset >= HEADER_BYTES


def rebuild_index(files: Files, info: DataFile, data: bytes) -> Index:
    """Look at every frame of the data file, and write a new index twin. A crash leaves the old one or the new one."""
    entries: list[Entry] = []
    blocks: list[Block] = []
    for offset, block, head in read_frames(data, info):
        flags = entry_flags(block)
        entries.append(
            Entry(head.topic_id, head.epoch, head.first_seq, head.base_ts, offset, head.frame_len, head.n, flags)
        )
        blocks.append(block)
    path = index_path(info.path)
    tmp = path + ".tmp"
    files.unlink(tmp)
    twin = files.create(tmp)
    try:
        twin.write_at(0, encode_index(info, entries, blocks))
        twin.sync()
        index = decode_index(twin.read_at(0, twin.size()), info.id)
    finally:
        twin.close()
    files.rename(tmp, path)
    files.sync_dir(path.rpartition("/")[0])
    return index


def read_frames(data: bytes, info: DataFile) -> Iterator[tuple[int, Block, BlockHead]]:
    """(offset, block, head) of every frame, also of one that does not check if it is still plain which it was.

    Compressed blocks have no text here, so they have to check.
    """
    view = memoryview(data)
    at = HEADER_BYTES
    while at < len(data):
        try:
            block, head = decode_stored(view, at, texts=False)
            if not _checks(view[at:], info.seed) and not _recognised(block, head, info):
                raise BadBlock("neither the checksum nor the records fit the header")
        except BadBlock:
            at = _next_good(data, at + 1, info.seed)
            continue
        yield at, block, head
        at += head.frame_len


def _checks(frame: memoryview, seed: int) -> bool:
    try:
        check_frame(frame, seed)
    except BadBlock:
        return False
    return True


def _recognised(block: Block, head: BlockHead, info: DataFile) -> bool:
    """Whether a frame whose checksum fails still says which records it held: its first text repeats seq and time."""
    if head.packed:
        return False
    stamp = b'{"$seq":%d,"$ts":%d,' % (head.first_seq, head.base_ts + block.ts[0])
    return block.record(0).startswith(stamp) and info.topic_id in (0, head.topic_id)


def _next_good(data: bytes, at: int, seed: int) -> int:
    """Offset of the next frame that checks, or the end of the data."""
    view = memoryview(data)
    start = bytes((BLOCK_VERSION, DIRECT))  # at byte 4 of every block
    while (found := data.find(start, at + 4)) >= 0:
        at = found - 4
        if _checks(view[at:], seed):
            return at
        at += 1
    return len(data)


def chunks_of(info: DataFile, index: Index) -> Iterator[tuple[Entry, Chunk]]:
    """A resident chunk for each block of the file; flags are read separately."""
    at = 0
    for entry in index.entries:
        chunk = Chunk(entry.first_seq, entry.base_ts, index.ts[at : at + entry.n], index.sizes[at : at + entry.n])
        chunk.file = info
        chunk.offset = entry.offset
        chunk.length = entry.frame_len
        chunk.tagged = bool(entry.flags & ENTRY_TAGGED)
        jobcolumns.hang(chunk, index.jobs.get(entry.offset))
        at += entry.n
        yield entry, chunk


def read_flags(handle: File, chunk: Chunk) -> int:
    """The bit mask of deleted records that the file knows of."""
    n = len(chunk)
    return mask_from_flags(handle.read_at(chunk.offset + chunk.length - n, n))


def decode_frame(data: bytes | bytearray, seed: int) -> Block:
    """A block read from a data file; BadBlock if its checksum does not hold. A plain text stays in `data`."""
    check_frame(data, seed)
    return decode_stored(data)[0]


def decode_tags(data: bytes | bytearray, seed: int) -> Block:
    """The same without the work of unpacking: a compressed block then has no text."""
    check_frame(data, seed)
    return decode_stored(data, texts=False)[0]


def decode_texts(data: bytes | bytearray, seed: int) -> Block:
    """The same with nothing but the texts and where they end: all that a plain read needs, for a quarter of the time.

    The other columns are not there at all, so whoever asks for one fails instead of being told something wrong.
    """
    head = check_frame(data, seed)
    block = Block.__new__(Block)
    block.first_seq, block.base_ts = head.first_seq, head.base_ts
    block.ends = array("I", bytes(data[HEADER.size : HEADER.size + 4 * head.n]))
    if block.ends[-1] != head.text_len:
        raise BadBlock("block columns do not fit its text")
    text = stored_text(data, head)
    block.text = unpack(text, head.text_len) if head.packed else text
    return block


# --- tags ---------------------------------------------------------------------------------------------------------


def find_tags(index_file: File, info: DataFile, pattern: Pattern) -> list[int]:
    """Seqs in a segment whose tag matches, ascending. A few bounded reads: the run is never read as a whole.

    Matching tags stand next to one another, so only the two ends of the stretch are searched for.
    """
    run = _TagRun(index_file, info)
    first = pattern.exact or pattern.prefix
    end = pattern.exact + b"\0" if pattern.exact else prefix_end(pattern.prefix)
    if not run.count or run.tag(run.count - 1) < first or (end is not None and run.tag(0) >= end):
        return []
    low = run.find(first, 0, run.count)
    return sorted(run.seqs(low, run.find_end(end, low)))


class _TagRun:
    """The sorted tag run of an open index file."""

    def __init__(self, file: File, info: DataFile) -> None:
        self._file = file
        self._size = file.size()
        head = _INDEX_HEADER.unpack(self._read(0, _INDEX_HEADER.size))
        magic, version, blocks, records, count, _, _, owner, _ = head
        if magic != INDEX_MAGIC or version != VERSION or owner != info.id:
            raise BadFile("index header is not plausible")
        self.count: int = count
        self._run_at: int = _INDEX_HEADER.size + blocks * _ENTRY.size + records * 8
        self._blob_at: int = self._run_at + self.count * _TAG.size

    def _read(self, offset: int, size: int) -> bytes:
        if not 0 <= size <= self._size - offset:
            raise BadFile("index is cut off, or its tags do not stand where it says")
        data = self._file.read_at(offset, size)
        if len(data) != size:
            raise BadFile("index is cut off")
        return data

    def tags(self, low: int, high: int) -> list[bytes]:
        """The tags of the entries [low, high), in two reads: they stand in the blob in the same order."""
        entries = list(_TAG.iter_unpack(self._read(self._run_at + low * _TAG.size, (high - low) * _TAG.size)))
        start = entries[0][1]
        blob = self._read(self._blob_at + start, entries[-1][1] + entries[-1][2] - start)
        return [blob[offset - start : offset - start + length] for _, offset, length, _ in entries]

    def tag(self, index: int) -> bytes:
        return self.tags(index, index + 1)[0]

    def find(self, key: bytes, low: int, high: int) -> int:
        """The first entry in [low, high) whose tag is not below `key`; `high` if there is none."""
        while high - low > STRETCH:
            middle = (low + high) // 2
            if self.tag(middle) < key:
                low = middle + 1
            else:
                high = middle
        return low + bisect_left(self.tags(low, high), key) if low < high else low

    def find_end(self, key: bytes | None, low: int) -> int:
        """As `find` from `low` on, in growing steps: matches are usually few. None is above every tag."""
        if key is None:
            return self.count
        step = STRETCH
        while low + step < self.count and self.tag(low + step) < key:
            low += step
            step *= 2
        return self.find(key, low, min(low + step, self.count))

    def seqs(self, low: int, high: int) -> list[int]:
        found: list[int] = []
        step = SLICE_BYTES // _TAG.size
        for start in range(low, high, step):
            count = min(step, high - start)
            words = array("Q", self._read(self._run_at + start * _TAG.size, count * _TAG.size))
            found += words[::2]  # an entry is two words, the first is the seq
        return found
