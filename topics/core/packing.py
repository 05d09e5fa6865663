"""Compression of a block's text, for data files.

A compressed text says itself which way it was made: gzip begins with 1F 8B, Zstandard with 28 B5 2F FD. So the two and
plain blocks stand next to one another in any file, whatever the topic's config says by then.

Unpacking never takes more memory than the length that the block's header names, which is bounded (blockform.py): a text
that is longer or shorter, that ends early or has something behind it is refused. zstandard is loaded by whoever first
needs it; most processes never do.
"""

import sys
import zlib
from typing import TYPE_CHECKING, Literal, NamedTuple

from topics.core.block import BadBlock

if TYPE_CHECKING:
    import zstandard

Compression = Literal["none", "gzip", "zstd"]
Buffer = bytes | bytearray | memoryview

GZIP_WINDOW = 16 + zlib.MAX_WBITS
GZIP_LEVEL = 3  # three times as fast as the usual 6, for a seventh more bytes
ZSTD_LEVEL = 3
GZIP_MAGIC, ZSTD_MAGIC = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


class Packing(NamedTuple):
    """How a topic wants its blocks to be stored; shorter texts than `min_bytes` stay plain."""

    compression: Compression = "none"
    min_bytes: int = 0


PLAIN = Packing()


class Packer:
    """Compresses texts one after another, for one thread: a compressor that is used again is a third faster."""

    def __init__(self) -> None:
        self._zstd: zstandard.ZstdCompressor | None = None

    def pack(self, text: Buffer, packing: Packing) -> bytes | None:
        """The text compressed; None if it is to stay as it is, also because too little would be saved."""
        if packing.compression == "none" or len(text) < packing.min_bytes:
            return None
        packed = _gzip(text) if packing.compression == "gzip" else self._compress(text)
        return packed if saves_enough(len(text), len(packed)) else None

    def _compress(self, text: Buffer) -> bytes:
        if self._zstd is None:
            import zstandard

            self._zstd = zstandard.ZstdCompressor(level=ZSTD_LEVEL)
        return self._zstd.compress(text)


def saves_enough(size: int, packed: int) -> bool:
    """At least 5 %: for less, reading would cost more than it is worth."""
    return packed * 20 <= size * 19


def _gzip(text: Buffer) -> bytes:
    packer = zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, GZIP_WINDOW)
    return packer.compress(text) + packer.flush()


def compression_of(packed: Buffer) -> Compression:
    """Which way a text is compressed; raises BadBlock if that is not known."""
    magic = bytes(packed[:4])
    if magic == ZSTD_MAGIC:
        return "zstd"
    if magic[:2] == GZIP_MAGIC:
        return "gzip"
    raise BadBlock("a block is compressed in a way that is not known")


def is_loaded(compression: Compression) -> bool:
    """Whether nothing has to be loaded first to unpack such a text, which takes longer than the unpacking."""
    return compression != "zstd" or "zstandard" in sys.modules


def unpack(packed: Buffer, size: int) -> bytes:
    """The text, which has exactly `size` bytes; raises BadBlock on anything else."""
    return _decompress(packed, size) if compression_of(packed) == "zstd" else _gunzip(packed, size)


def _gunzip(packed: Buffer, size: int) -> bytes:
    stream = zlib.decompressobj(GZIP_WINDOW)
    try:
        text = stream.decompress(packed, size + 1)
    except zlib.error as error:
        raise BadBlock(f"a block cannot be decompressed: {error}") from error
    if len(text) != size or not stream.eof or stream.unused_data:
        raise BadBlock("a compressed block is not as long as it says")
    return text


def _decompress(packed: Buffer, size: int) -> bytes:
    import zstandard

    try:
        # What the frame says of its own length is what zstandard makes room for, whatever limit it is given.
        if zstandard.frame_content_size(packed) != size:
            raise BadBlock("a compressed block is not as long as it says")
        return zstandard.ZstdDecompressor().decompress(packed, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise BadBlock(f"a block cannot be decompressed: {error}") from error
