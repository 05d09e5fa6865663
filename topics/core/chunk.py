"""A chunk: what a topic keeps resident about one block, whether the block itself is in memory or in a file.

Per record that is eight bytes (time and size) and one bit (dead or not); the text stays in the block. Counting,
eviction, expiry and deletion need nothing else, so they never read a file. Where records have priorities that is a byte
more each, and ten for each that has a time before which it must not be claimed.
"""

from array import array
from itertools import compress

from topics.core.bits import spread
from topics.core.block import Block
from topics.core.extras import Times


class DataFile:
    """A data file as the core sees it: an identity, and how many live records still need it."""

    __slots__ = ("chunks", "cold", "deleted", "id", "kind", "live", "path", "seed", "size", "topic_id")

    def __init__(self, file_id: int, kind: str, path: str, seed: int, topic_id: int = 0) -> None:
        self.id = file_id
        self.kind = kind
        self.path = path
        self.seed = seed
        self.topic_id = topic_id
        self.live = 0
        self.size = 0
        self.chunks = 0
        self.cold = False  # its blocks are in the cold tier, and never change there
        self.deleted = b""  # of a cold one: which of its records are deleted, as encoded SeqRanges


class Chunk:
    """One block's worth of a topic's log."""

    __slots__ = (
        "base_ts", "block", "dead", "dues", "expiries", "file", "first_seq", "flags_dirty", "gone", "length", "live",
        "live_bytes", "offset", "open", "ranks", "sizes", "tagged", "ts",
    )  # fmt: skip

    def __init__(self, first_seq: int, base_ts: int, ts: "array[int]", sizes: "array[int]") -> None:
        self.first_seq = first_seq
        self.base_ts = base_ts
        self.ts = ts
        self.sizes = sizes
        self.dead = 0
        self.live = len(sizes)
        self.live_bytes = sum(sizes)
        self.block: Block | None = None
        self.open = False  # more records may still be appended to its block
        self.file: DataFile | None = None
        self.offset = 0
        self.length = 0
        self.tagged = False
        self.gone = False  # no longer part of its topic's log
        self.ranks: bytes | bytearray | None = None  # priorities, if some are not 0
        self.dues: Times | None = None  # when records may first be claimed, if some have to wait
        self.expiries: Times | None = None  # as a start has found them, until the topic has taken them over
        self.flags_dirty = False  # deleted since its file's delete flags were last written

    @classmethod
    def of(cls, block: Block) -> "Chunk":
        """A chunk that may grow at its end, around a block that nobody else holds."""
        block.thaw()
        chunk = cls(block.first_seq, block.base_ts, block.ts, block.sizes())
        chunk.block = block
        chunk.open = True
        chunk.tagged = bool(block.tags)
        chunk.take_extras(block)
        return chunk

    def take_extras(self, block: Block) -> None:
        """What has to stay resident of the block's extras; it grows with them."""
        if block.extras is not None:
            self.ranks = block.priorities if block.extras.ranked else None
            self.dues = block.extras.dues

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def last_seq(self) -> int:
        return self.first_seq + len(self.sizes) - 1

    @property
    def last_ts(self) -> int:
        return self.base_ts + self.ts[-1]

    def extend(self, block: Block) -> int:
        """Append `block` to the open tail; the bytes that added."""
        assert self.open and self.block is not None
        added = block.size
        self.block.extend(block)  # also grows self.ts and self.sizes, which are the block's own columns
        self.live += len(block.ends)
        self.live_bytes += added
        self.tagged = self.tagged or bool(block.tags)
        if block.extras is not None:
            self.take_extras(self.block)
        return added

    def weigh(self, mask: int) -> tuple[int, int]:
        """(records, bytes) of those in the mask that are live."""
        fresh = mask & ~self.dead
        count = fresh.bit_count()
        if not count:
            return 0, 0
        if count == self.live:
            return count, self.live_bytes
        return count, sum(compress(self.sizes, spread(fresh)))

    def kill(self, mask: int) -> tuple[int, int]:
        """Mark the records in the mask dead; (records, bytes) that were live until now."""
        count, size = self.weigh(mask)
        if count:
            self.dead |= mask
            self.live -= count
            self.live_bytes -= size
            if self.file is not None:
                self.file.live -= count
        return count, size


def excess_in(chunk: Chunk, records: int, size: int) -> int:
    """How many of the chunk's records have to go, from its front, to be rid of so many live ones and live bytes."""
    high = _index_of_live(chunk, records) + 1 if records > 0 else 0
    return max(high, _index_of_bytes(chunk, size) + 1) if size > 0 else high


def _index_of_live(chunk: Chunk, nth: int) -> int:
    """Index of the nth live record (1-based)."""
    if not chunk.dead:
        return nth - 1
    for index in range(len(chunk)):
        if not chunk.dead >> index & 1:
            nth -= 1
            if not nth:
                return index
    raise AssertionError("fewer live records than asked for")


def _index_of_bytes(chunk: Chunk, excess: int) -> int:
    """Index of the live record at which the live bytes up to and including it reach `excess`."""
    for index, size in enumerate(chunk.sizes):
        if not chunk.dead >> index & 1:
            excess -= size
            if excess <= 0:
                return index
    raise AssertionError("fewer live bytes than asked for")
