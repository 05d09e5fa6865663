"""A block as bytes: in the log, between processes and in data files.

Block body, little endian (in a WAL frame as it is; in a data file followed by a trailer):

    off   size  field
      0      4  frame_len      length of body, or of body + trailer in a data file
      4      4  version u8, kind u8 (0 direct, 1 derived), flags u16 (1 CR/LF in text, 2 tags, 4 compressed, 8 kept,
                16 extensions)
      8     16  first_seq u64, base_ts u64
     24     16  n u32, raw text_len u32, stored text_len u32, side_len u32
     40     32  topic id u64, epoch u64, source epoch u64, source seq u64 (derived blocks)
     72   20·n  columns: text end u32, ts delta u32, tag end u32, data offset u16, meta length u16, node index u16,
                priority u8, hops u8
      …   side  quoted tags, then the node dictionary (u16 count, then u16 length + quoted name each) if there are nodes
                or extensions, then with flag 16 the extensions (extras.py)
      …   text  {"$seq":…,"$ts":…[,"$node":…][,"$id":…],"data":…[,"meta":…]} joined by ",";
                compressed as a whole with flag 4

Trailer in a data file: XXH3-64 of the body (seeded per file, so that stale bytes of another file never check), then
n delete flags (0xD5 = deleted, every other value = live) which lie inside frame_len but outside the checksum: a
flag is flipped in place without rewriting anything, and a torn flip leaves a live record live.

Only data files hold compressed texts (packing.py): the log must not wait for a compressor, and what goes between
processes is used at once.

A reader refuses what it does not know (another version, kind or flag) instead of guessing: no writer of this version
sets kind 1 or flag 8, whose places are taken for later.
"""

import struct
import sys
from array import array

import xxhash

from topics.core.bits import spread
from topics.core.block import BadBlock, Block
from topics.core.extras import BadExtras
from topics.core.packing import unpack
from topics.limits import BLOCK_RECORDS_MAX, UNPACKED_MAX

HEADER = struct.Struct("<IBBHQQIIIIQQQQ")
VERSION = 1
DIRECT = 0
FLAG_CRLF, FLAG_TAGS, FLAG_PACKED, FLAG_EXTRAS = 1, 2, 4, 16
FLAGS_KNOWN = FLAG_CRLF | FLAG_TAGS | FLAG_PACKED | FLAG_EXTRAS
DELETED = 0xD5
COLUMN_BYTES = 20
CHECKSUM_BYTES = 8
FLAGS_AT = 6  # in the header
IDS_AT = 40
_TO_FLAGS = bytes.maketrans(b"\1", bytes((DELETED,)))
_TO_DIGITS = bytes(ord("1") if flag == DELETED else ord("0") for flag in range(256))
_U16 = struct.Struct("<H")
_U64 = struct.Struct("<Q")
_IDS = struct.Struct("<QQ")

assert HEADER.size == 72
assert sys.byteorder == "little", "columns are kept in machine order; only little-endian machines are supported"


def encode_body(block: Block, topic_id: int, epoch: int, *, trailer: int = 0, packed: bytes | None = None) -> bytes:
    """The block's body; `trailer` is how many bytes the caller will put behind it (see the table above).

    `packed` is its text compressed, if it is to be stored so.
    """
    return b"".join(_body_parts(block, topic_id, epoch, trailer, packed))


def encode_unaddressed(block: Block) -> bytearray:
    """The body of a block whose topic may not be there yet: `address` enters it."""
    return bytearray().join(_body_parts(block, 0, 0, 0, None))


def address(body: bytearray, topic_id: int, epoch: int) -> None:
    _IDS.pack_into(body, IDS_AT, topic_id, epoch)


def _body_parts(
    block: Block, topic_id: int, epoch: int, trailer: int, packed: bytes | None
) -> tuple[bytes | bytearray | memoryview, ...]:
    n = len(block.ends)
    names = block.nodes
    side: list[bytes] = [bytes(block.tags)]
    extensions = block.extras.encode() if block.extras is not None else b""
    if names or extensions:
        side.append(_U16.pack(len(names)))
        side.extend(_U16.pack(len(name)) + name for name in names)
        side.append(extensions)
    side_len = sum(map(len, side))
    text = block.text if packed is None else packed
    flags = (FLAG_CRLF if block.crlf else 0) | (FLAG_TAGS if block.tags else 0) | (FLAG_EXTRAS if extensions else 0)
    if packed is not None:
        flags |= FLAG_PACKED
    length = HEADER.size + COLUMN_BYTES * n + side_len + len(text) + trailer
    return (
        HEADER.pack(
            length, VERSION, DIRECT, flags, block.first_seq, block.base_ts, n, len(block.text), len(text), side_len,
            topic_id, epoch, 0, 0,
        ),
        block.ends.tobytes(),
        block.ts.tobytes(),
        block.tag_ends.tobytes(),
        block.data_offs.tobytes(),
        block.meta_lens.tobytes(),
        block.node_ids.tobytes(),
        block.priorities,
        block.hops,
        *side,
        text,
    )  # fmt: skip


def encode_frame(block: Block, topic_id: int, epoch: int, seed: int, dead: int, packed: bytes | None = None) -> bytes:
    """The block as a data file keeps it: body, checksum, delete flags taken from the bit mask `dead`."""
    n = len(block.ends)
    body = encode_body(block, topic_id, epoch, trailer=CHECKSUM_BYTES + n, packed=packed)
    return b"".join((body, _U64.pack(xxhash.xxh3_64_intdigest(body, seed)), flags_from_mask(dead, n)))


def flags_from_mask(dead: int, n: int) -> bytes:
    return spread(dead).translate(_TO_FLAGS).ljust(n, b"\0") if dead else bytes(n)


def mask_from_flags(flags: bytes) -> int:
    return int(flags.translate(_TO_DIGITS)[::-1], 2) if DELETED in flags else 0


class BlockHead:
    """What a block's fixed header says, checked for plausibility."""

    __slots__ = (
        "base_ts", "epoch", "first_seq", "flags", "frame_len", "n", "side_len", "stored_len", "text_len", "topic_id",
    )  # fmt: skip

    frame_len: int
    flags: int
    first_seq: int
    base_ts: int
    n: int
    text_len: int
    stored_len: int  # of the text as it stands here: less if it is compressed
    side_len: int
    topic_id: int
    epoch: int

    def __init__(self, data: bytes | bytearray | memoryview, offset: int = 0) -> None:
        if len(data) - offset < HEADER.size:
            raise BadBlock("block header is cut off")
        (
            self.frame_len, version, kind, self.flags, self.first_seq, self.base_ts, self.n, self.text_len,
            self.stored_len, self.side_len, self.topic_id, self.epoch, _source_epoch, _source_seq,
        ) = HEADER.unpack_from(data, offset)  # fmt: skip
        if version != VERSION or kind != DIRECT or self.flags & ~FLAGS_KNOWN:
            raise BadBlock(f"block version {version}, kind {kind}, flags {self.flags:#x} is not known")
        shorter = self.stored_len < self.text_len <= UNPACKED_MAX  # nobody makes room for more than a block can hold
        if not 1 <= self.n <= BLOCK_RECORDS_MAX or not (shorter if self.packed else self.stored_len == self.text_len):
            raise BadBlock("block header is not plausible")
        if self.frame_len not in (self.body_len, self.body_len + CHECKSUM_BYTES + self.n):
            raise BadBlock("block lengths do not add up")

    @property
    def packed(self) -> bool:
        """Whether the text is compressed."""
        return bool(self.flags & FLAG_PACKED)

    @property
    def body_len(self) -> int:
        return HEADER.size + COLUMN_BYTES * self.n + self.side_len + self.stored_len


def decode_block(data: bytes | bytearray | memoryview, offset: int = 0) -> tuple[Block, BlockHead]:
    """The block whose body starts at `offset`, in the log or a message; raises BadBlock on anything that is not one."""
    head = BlockHead(data, offset)
    if head.packed:
        raise BadBlock("a compressed block stands outside of a data file")
    block, text = _decode(data, offset, head)
    block.text = bytes(text)
    return block, head


def decode_stored(
    data: bytes | bytearray | memoryview, offset: int = 0, *, texts: bool = True
) -> tuple[Block, BlockHead]:
    """The same of a block in a data file. A plain text stays where it is: `data` must not change, and stays with it.

    Without `texts` a compressed text is left alone: the block has none, so whoever asks for it fails.
    """
    head = BlockHead(data, offset)
    block, text = _decode(data, offset, head)
    if not head.packed:
        block.text = text
    elif texts:
        block.text = unpack(text, head.text_len)
    return block, head


def is_packed(frame: bytes | bytearray | memoryview) -> bool:
    """Whether its text is compressed, if these bytes are a frame at all. Next to nothing for those that are not."""
    return len(frame) > FLAGS_AT and bool(frame[FLAGS_AT] & FLAG_PACKED)


def stored_text(frame: bytes | bytearray | memoryview, head: BlockHead) -> memoryview:
    """The text as it stands in a frame."""
    return memoryview(frame)[head.body_len - head.stored_len : head.body_len]


def _decode(data: bytes | bytearray | memoryview, offset: int, head: BlockHead) -> tuple[Block, memoryview]:
    """Everything but the text, and the text as it stands."""
    view = memoryview(data)[offset : offset + head.body_len]
    if len(view) != head.body_len:
        raise BadBlock("block is cut off")
    block = Block.__new__(Block)
    block.first_seq, block.base_ts = head.first_seq, head.base_ts
    at = _decode_columns(block, view, head.n)
    tags_len = block.tag_ends[-1]
    if tags_len > head.side_len:
        raise BadBlock("tags run past the side part")
    block.tags = bytes(view[at : at + tags_len])
    _decode_side(block, head, bytes(view[at + tags_len : at + head.side_len]))
    block.crlf = bool(head.flags & FLAG_CRLF)
    block.known_sizes = None
    _check_columns(block, head)
    return block, view[at + head.side_len :]


def _check_columns(block: Block, head: BlockHead) -> None:
    """Only a bug can get past the checksum, but lengths computed from bad columns would fail far from here."""
    ends, tag_ends = block.ends.tolist(), block.tag_ends
    if ends[-1] != head.text_len or not ends[0] or ends != sorted(ends):
        raise BadBlock("block columns do not fit its text")
    if bool(block.tags) != bool(head.flags & FLAG_TAGS) or (block.tags and sorted(tag_ends) != tag_ends.tolist()):
        raise BadBlock("block columns do not fit its tags")
    if any(block.node_ids) and max(block.node_ids) > len(block.nodes):
        raise BadBlock("a record names a node that the dictionary does not have")


def _decode_columns(block: Block, view: memoryview, n: int) -> int:
    """Fill the columns of a block; where they end."""
    at, data = HEADER.size, bytes(view[: HEADER.size + COLUMN_BYTES * n])
    block.ends = array("I", data[at : at + 4 * n])
    block.ts = array("I", data[at + 4 * n : at + 8 * n])
    block.tag_ends = array("I", data[at + 8 * n : at + 12 * n])
    block.data_offs = array("H", data[at + 12 * n : at + 14 * n])
    block.meta_lens = array("H", data[at + 14 * n : at + 16 * n])
    block.node_ids = array("H", data[at + 16 * n : at + 18 * n])
    block.priorities = bytearray(data[at + 18 * n : at + 19 * n])
    block.hops = bytearray(data[at + 19 * n : at + 20 * n])
    return at + COLUMN_BYTES * n


def _decode_side(block: Block, head: BlockHead, side: bytes) -> None:
    """The nodes and the extras of a block, from what follows its tags."""
    block.nodes, at = _decode_nodes(side)
    block.extras = None
    if block.priorities.count(0) != head.n:
        block.need_extras().ranked = True
    if head.flags & FLAG_EXTRAS:
        try:
            block.need_extras().decode(side[at:], head.n)
        except BadExtras as error:
            raise BadBlock(str(error)) from error
    elif at != len(side):
        raise BadBlock("node dictionary does not fill the side part")


def _decode_nodes(side: bytes) -> tuple[list[bytes], int]:
    """The node dictionary, and where it ends."""
    if not side:
        return [], 0
    names = []
    try:
        (count,) = _U16.unpack_from(side)
        at = 2
        for _ in range(count):
            (length,) = _U16.unpack_from(side, at)
            names.append(side[at + 2 : at + 2 + length])
            at += 2 + length
    except struct.error as error:
        raise BadBlock("node dictionary is cut off") from error
    return names, at


def check_frame(frame: bytes | bytearray | memoryview, seed: int) -> BlockHead:
    """The head of a data-file frame whose checksum holds; raises BadBlock otherwise."""
    head = BlockHead(frame)
    end = head.body_len
    if head.frame_len != end + CHECKSUM_BYTES + head.n or len(frame) < head.frame_len:
        raise BadBlock("frame is cut off")
    (stored,) = _U64.unpack_from(frame, end)
    if xxhash.xxh3_64_intdigest(memoryview(frame)[:end], seed) != stored:
        raise BadBlock("block checksum does not match")
    return head
