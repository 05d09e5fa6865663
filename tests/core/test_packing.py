"""Compression of texts: what it saves, what it refuses, and that nothing makes it take more memory than a block may."""

import contextlib
import gzip
import random
import subprocess
import sys
import tracemalloc

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from tests.core.strategies import many
from topics import limits
from topics.core.block import BadBlock, Block
from topics.core.blockform import HEADER, BlockHead, decode_block, decode_stored, encode_body
from topics.core.packing import PLAIN, Compression, Packer, Packing, compression_of, saves_enough, unpack

WAYS: tuple[Compression, ...] = ("gzip", "zstd")
NOISE = random.Random(1).randbytes(1 << 16)
BOMB_BYTES = 256 << 20
LIBRARIES = {"gzip": gzip.compress, "zstd": zstandard.ZstdCompressor().compress}

ways = pytest.mark.parametrize("way", WAYS)


def pack(text: bytes, way: Compression, min_bytes: int = 0) -> bytes | None:
    return Packer().pack(text, Packing(way, min_bytes))


@given(st.binary(min_size=1, max_size=300), st.integers(1, 200), st.sampled_from(WAYS))
@many
def test_a_text_comes_back_or_is_left_alone(piece, times, way):
    text = piece * times
    packed = pack(text, way)
    if packed is not None:
        assert compression_of(packed) == way
        assert unpack(packed, len(text)) == text
        assert len(packed) <= 0.95 * len(text)


@ways
@pytest.mark.parametrize("form", [bytes, bytearray, memoryview])
def test_every_form_of_a_text_is_taken(way, form):
    packed = pack(form(b"abc" * 1000), way)
    assert packed is not None
    assert unpack(memoryview(packed), 3000) == b"abc" * 1000


@ways
def test_one_packer_takes_many_texts(way):
    packer = Packer()
    for n in range(1, 20):
        packed = packer.pack(b"x" * 500 * n, Packing(way))
        assert packed is not None
        assert unpack(packed, 500 * n) == b"x" * 500 * n


@ways
def test_texts_below_the_bound_stay_plain(way):
    assert pack(b"a" * 1023, way, 1024) is None
    assert pack(b"a" * 1024, way, 1024) is not None


def test_nothing_is_done_without_compression():
    assert Packer().pack(b"a" * 10_000, PLAIN) is None


def test_what_saves_less_than_a_twentieth_stays_plain():
    assert saves_enough(1000, 950)
    assert not saves_enough(1000, 951)


@ways
def test_noise_stays_plain(way):
    assert pack(NOISE, way) is None
    assert pack(NOISE[:60_000] + bytes(2_800), way) is None  # saves 4 %
    assert pack(NOISE[:60_000] + bytes(3_600), way) is not None  # saves 5 %


# -- what is refused


@ways
@pytest.mark.parametrize("size", [0, 1, 2999, 3001, 10**6])
def test_another_length_than_the_header_says_is_refused(way, size):
    with pytest.raises(BadBlock, match="as long as it says"):
        unpack(LIBRARIES[way](b"abc" * 1000), size)


@ways
def test_every_cut_and_anything_behind_is_refused(way):
    text = b"".join(b"%d," % n for n in range(300))
    packed = LIBRARIES[way](text)
    for end in range(len(packed)):
        with pytest.raises(BadBlock):
            unpack(packed[:end], len(text))
    for more in (b"x", b"\0", packed):
        with pytest.raises(BadBlock):
            unpack(packed + more, len(text))


@given(st.sampled_from(WAYS), st.integers(0), st.integers(1, 255))
@many
def test_a_changed_byte_is_refused_or_gives_a_text_of_that_length(way, at, change):
    text = b"".join(b"%d," % n for n in range(300))
    packed = bytearray(LIBRARIES[way](text))
    packed[at % len(packed)] ^= change
    with contextlib.suppress(BadBlock):
        assert len(unpack(packed, len(text))) == len(text)


@given(st.binary(max_size=64), st.sampled_from([b"", b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd"]), st.integers(0, 1000))
@many
def test_arbitrary_bytes_are_refused(data, magic, size):
    with contextlib.suppress(BadBlock):
        assert len(unpack(magic + data, size)) == size


def without_its_size(packed: bytes) -> bytes:
    """The same as a stream whose length nobody knew."""
    packer = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    return packer.compress(zstandard.decompress(packed)) + packer.flush()


def test_a_zstd_text_that_does_not_say_how_long_it_is_is_refused():
    with pytest.raises(BadBlock):
        unpack(without_its_size(LIBRARIES["zstd"](b"a" * 1000)), 1000)


@pytest.fixture(scope="module")
def bombs() -> dict[str, bytes]:
    return {way: library(bytes(BOMB_BYTES)) for way, library in LIBRARIES.items()}


@ways
@pytest.mark.parametrize("size", [100, 1 << 16])
def test_a_bomb_takes_no_more_memory_than_the_block_may_have(bombs, way, size):
    tracemalloc.start()
    try:
        with pytest.raises(BadBlock):
            unpack(bombs[way], size)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < len(bombs[way]) + 2 * size + (1 << 16)  # gzip keeps a copy of what it did not get to


# -- blocks


def block_of(text: bytes) -> Block:
    block = Block(1, 0)
    block.add(text, 0, b'"t"', b"", 0, 0)
    return block


TEXT = b'{"$seq":1,"$ts":0,"data":"%b"}' % (b"x" * 500)


@ways
def test_a_compressed_block_is_read_from_a_data_file_and_nowhere_else(way):
    body = encode_body(block_of(TEXT), 1, 1, packed=pack(TEXT, way))
    decoded, head = decode_stored(body)
    assert (decoded.record(0), decoded.tag(0), head.packed) == (TEXT, b'"t"', True)
    assert head.stored_len < head.text_len == len(TEXT)
    with pytest.raises(BadBlock, match="outside of a data file"):
        decode_block(body)


@ways
def test_without_its_text_a_compressed_block_has_everything_else(way):
    decoded, _ = decode_stored(encode_body(block_of(TEXT), 1, 1, packed=pack(TEXT, way)), texts=False)
    assert (decoded.tag(0), decoded.size, list(decoded.sizes())) == (b'"t"', len(TEXT) + 3, [len(TEXT) + 3])
    with pytest.raises(AttributeError):
        decoded.record(0)


@pytest.mark.parametrize(
    ("text_len", "stored_len"),
    [(500, 500), (499, 500), (limits.UNPACKED_MAX + 1, 500), (2**32 - 1, 500), (0, 0)],
)
def test_lengths_that_no_compressed_block_has_are_refused(text_len, stored_len):
    body_len = HEADER.size + 20 + stored_len
    with pytest.raises(BadBlock, match="not plausible"):
        BlockHead(HEADER.pack(body_len, 1, 0, 4, 1, 1, 1, text_len, stored_len, 0, 1, 1, 0, 0))


def test_who_does_not_compress_does_not_load_a_compressor():
    code = "import sys, topics.shards.__main__, topics.gateway.__main__; print('zstandard' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-P", "-c", code], text=True).strip() == "False"
