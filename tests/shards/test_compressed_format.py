"""A golden segment with compressed blocks, kept in tests/golden_compressed: it must stay readable for good.

Unlike the other golden files it is not compared byte for byte with what is written now: two versions of a compressor
may make other bytes of the same text, and both are right. Written anew like those of test_formats.py.
"""

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest
import xxhash
import zstandard

from tests.core.strategies import facts
from tests.shards.test_formats import REGENERATE, block, by_hand, u
from topics.core import blockform
from topics.core.block import BadBlock
from topics.core.chunk import DataFile
from topics.core.match import TagMatch
from topics.core.packing import Packing
from topics.core.tags import Pattern
from topics.shards import datafile
from topics.shards.datafile import SEGMENT, Stored
from topics.shards.files import RealFiles
from topics.testing.faulty_files import FaultyFiles

GOLDEN = Path(__file__).resolve().parents[1] / "golden_compressed"
INFO = DataFile(1, SEGMENT, "seg.data", 0x5EED0003, 7)
BLOCKS = [
    Stored(7, 3, block(1, 1000, 40), 0b1001, Packing("gzip")),
    Stored(7, 3, block(41, 2000, 40), 0, Packing("zstd")),
    Stored(7, 3, block(81, 3000, 2), 0b10, Packing("zstd", 1024)),  # too short
]
FLAGS = (7, 7, 2)  # 1 line breaks, 2 tags, 4 compressed
UNPACK: tuple[Callable[[bytes], bytes], ...] = (gzip.decompress, zstandard.decompress, bytes)


@pytest.fixture(scope="module")
def golden() -> RealFiles:
    files = RealFiles(str(GOLDEN))
    if REGENERATE:
        GOLDEN.mkdir(exist_ok=True)
        datafile.write_data_file(files, INFO, BLOCKS)
    return files


def test_the_golden_blocks_are_read(golden):
    index = datafile.load_index(golden, INFO)
    handle = golden.open(INFO.path)
    assert len(index.entries) == len(BLOCKS)
    for (_, chunk), item in zip(datafile.chunks_of(INFO, index), BLOCKS, strict=True):
        frame = handle.read_at(chunk.offset, chunk.length)
        assert facts(datafile.decode_frame(frame, INFO.seed)) == facts(item.block)
        assert bytes(datafile.decode_texts(frame, INFO.seed).text) == bytes(item.block.text)
        assert datafile.read_flags(handle, chunk) == item.dead
        assert (chunk.ts, chunk.sizes) == (item.block.ts, item.block.sizes())
    found = datafile.find_tags(golden.open("seg.idx"), INFO, Pattern(TagMatch("Eq", "tenant42:job-1")))
    assert found == [fact.seq for item in BLOCKS for fact in facts(item.block) if fact.tag == b'"tenant42:job-1"']


def test_an_index_is_made_anew_without_unpacking(golden, monkeypatch):
    monkeypatch.delattr(blockform, "unpack")
    data = (GOLDEN / INFO.path).read_bytes()
    twin = DataFile(INFO.id, INFO.kind, INFO.path, INFO.seed, INFO.topic_id)
    twin.size = len(data)
    assert datafile.rebuild_index(FaultyFiles(), twin, data) == datafile.load_index(golden, INFO)


def test_the_table_of_a_compressed_block(golden):
    data = (GOLDEN / INFO.path).read_bytes()
    at = 64
    for item, flags, unpack in zip(BLOCKS, FLAGS, UNPACK, strict=True):
        n, text_len, stored_len, side_len = (
            u(data, at + 24, 4),
            u(data, at + 28, 4),
            u(data, at + 32, 4),
            u(data, at + 36, 4),
        )
        text_at = at + 72 + 20 * n + side_len
        end = text_at + stored_len
        text = unpack(data[text_at:end])
        assert len(text) == text_len
        assert u(data, end, 8) == xxhash.xxh3_64_intdigest(data[at:end], INFO.seed)
        assert u(data, at, 4) == end + 8 + n - at
        assert u(data, at + 6, 2) == flags
        plain = data[at : at + 32] + text_len.to_bytes(4, "little") + data[at + 36 : text_at] + text
        assert by_hand(plain, 0)["records"] == [
            tuple(fact)[2:3] + tuple(fact)[1:2] + tuple(fact)[3:] for fact in facts(item.block)
        ]
        at = end + 8 + n
    assert at == len(data)


def test_a_flipped_bit_anywhere_in_a_block_is_found(golden):
    handle = golden.open(INFO.path)
    for _, chunk in datafile.chunks_of(INFO, datafile.load_index(golden, INFO)):
        frame = handle.read_at(chunk.offset, chunk.length)
        for at in range(len(frame) - len(chunk)):
            broken = frame[:at] + bytes((frame[at] ^ 0x20,)) + frame[at + 1 :]
            for decode in (datafile.decode_frame, datafile.decode_texts, datafile.decode_tags):
                with pytest.raises(BadBlock):
                    decode(broken, INFO.seed)


def test_what_is_written_now_says_the_same(golden):
    files = FaultyFiles()
    twin = DataFile(INFO.id, INFO.kind, INFO.path, INFO.seed, INFO.topic_id)
    entries = datafile.write_data_file(files, twin, BLOCKS)
    for entry, old in zip(entries, datafile.load_index(golden, INFO).entries, strict=True):
        assert entry._replace(offset=0, frame_len=0) == old._replace(offset=0, frame_len=0)
    data = files.open(INFO.path).read_at(0, twin.size)
    assert [head.flags for _, _, head in datafile.read_frames(data, twin)] == list(FLAGS)
