"""A block: up to 256 records of one topic, kept in the form they have on the wire.

A record is rendered once, when it is written. A block joins the texts by commas, so that the default read of a run
of live records is one slice of bytes. Everything else a reader may ask for (tags, no meta, no data) is cut or spliced
with the help of the columns; the payload is never parsed again. Its form as bytes is in blockform.py.
"""

from array import array
from collections.abc import Sequence
from itertools import accumulate
from operator import add

from topics.core.extras import Extras
from topics.limits import BLOCK_RECORDS_MAX, BLOCK_TEXT_BYTES

TS_DELTA_MAX = 0xFFFFFFFF
_ZERO_32, _ZERO_16 = array("I", (0,)), array("H", (0,))


class BadBlock(ValueError):
    """These bytes are not a block."""


class Block:
    """The records of one contiguous run of seqs. Grows at the end while it is a topic's open tail."""

    __slots__ = (
        "base_ts",
        "crlf",
        "data_offs",
        "ends",
        "extras",
        "first_seq",
        "hops",
        "known_sizes",
        "meta_lens",
        "node_ids",
        "nodes",
        "priorities",
        "tag_ends",
        "tags",
        "text",
        "ts",
    )

    def __init__(self, first_seq: int, base_ts: int) -> None:
        self.first_seq = first_seq
        self.base_ts = base_ts
        self.text: bytes | bytearray | memoryview = bytearray()
        self.ends = array("I")
        self.ts = array("I")
        self.tag_ends = array("I")
        self.tags: bytes | bytearray = bytearray()
        self.data_offs = array("H")
        self.meta_lens = array("H")
        self.node_ids = array("H")
        self.nodes: list[bytes] = []
        self.priorities = bytearray()
        self.hops = bytearray()
        self.crlf = False
        self.extras: Extras | None = None  # most blocks have none
        self.known_sizes: array[int] | None = None  # once somebody asked, see `sizes`

    @classmethod
    def of_one(
        cls, seq: int, ts: int, text: bytes, data_off: int, meta_len: int = 0, tag: bytes = b"", node: bytes = b""
    ) -> "Block":
        """A block of one record: most writes are of one. Copies of columns cost a third of new ones."""
        block = cls.__new__(cls)
        block.first_seq = seq
        block.base_ts = ts
        block.text = bytearray(text)
        block.ends = ends = _ZERO_32[:]
        ends[0] = len(text)
        block.ts = _ZERO_32[:]
        block.tag_ends = tag_ends = _ZERO_32[:]
        tag_ends[0] = len(tag)
        block.tags = bytearray(tag)
        block.data_offs = data_offs = _ZERO_16[:]
        data_offs[0] = data_off
        block.meta_lens = meta_lens = _ZERO_16[:]
        meta_lens[0] = meta_len
        block.node_ids = node_ids = _ZERO_16[:]
        node_ids[0] = 1 if node else 0
        block.nodes = [node] if node else []
        block.priorities = bytearray(1)
        block.hops = bytearray(1)
        block.crlf = b"\n" in text or b"\r" in text
        block.extras = None
        block.known_sizes = None
        return block

    def __len__(self) -> int:
        return len(self.ends)

    @property
    def last_seq(self) -> int:
        return self.first_seq + len(self.ends) - 1

    def add(
        self,
        text: bytes,
        ts: int,
        tag: bytes,
        node: bytes,
        data_off: int,
        meta_len: int,
        *,
        priority: int = 0,
        hops: int = 0,
    ) -> None:
        """Append one rendered record; `tag` and `node` are quoted JSON strings or empty."""
        body = self.text
        assert isinstance(body, bytearray)
        if body:
            body += b","
        body += text
        self.ends.append(len(body))
        self.ts.append(ts - self.base_ts)
        if tag:
            self.tags += tag
        self.tag_ends.append(len(self.tags))
        self.data_offs.append(data_off)
        self.meta_lens.append(meta_len)
        self.node_ids.append(self._node_id(node) if node else 0)
        self.priorities.append(priority)
        if priority:
            self.need_extras().ranked = True
        self.hops.append(hops)
        if not self.crlf and (b"\n" in text or b"\r" in text):
            self.crlf = True
        if self.known_sizes is not None:
            self.known_sizes.append(len(text) + len(tag))

    def fill(
        self,
        texts: Sequence[bytes],
        data_offs: Sequence[int],
        meta_lens: Sequence[int] = (),
        tags: Sequence[bytes] = (),
        nodes: Sequence[bytes] = (),
    ) -> None:
        """Give an empty block all its records at once, all at `base_ts`. Empty columns: no record has such a thing."""
        self.fill_joined(b",".join(texts), [len(text) + 1 for text in texts], data_offs, meta_lens, tags, nodes)

    def fill_joined(
        self,
        text: bytes,
        spans: Sequence[int],
        data_offs: Sequence[int],
        meta_lens: Sequence[int] = (),
        tags: Sequence[bytes] = (),
        nodes: Sequence[bytes] = (),
    ) -> None:
        """The same, with the texts already joined; `spans` are their lengths, each with the comma behind it."""
        n = len(spans)
        self.text = bytearray(text)
        self.ends = array("I", [end - 1 for end in accumulate(spans)])
        self.ts = array("I", bytes(4 * n))
        self.tags = bytearray(b"".join(tags))
        self.tag_ends = array("I", accumulate(map(len, tags))) if tags else array("I", bytes(4 * n))
        self.data_offs = array("H", data_offs)
        self.meta_lens = array("H", meta_lens) if meta_lens else array("H", bytes(2 * n))
        self.node_ids = array("H", [self._node_id(node) if node else 0 for node in nodes] or bytes(2 * n))
        self.priorities = bytearray(n)
        self.hops = bytearray(n)
        self.crlf = b"\n" in text or b"\r" in text
        sizes = [span - 1 for span in spans]
        self.known_sizes = array("I", list(map(add, sizes, map(len, tags))) if tags else sizes)

    def _node_id(self, node: bytes) -> int:
        try:
            return self.nodes.index(node) + 1
        except ValueError:
            self.nodes.append(node)
            return len(self.nodes)

    def thaw(self) -> None:
        """Make a block that was decoded from bytes able to grow."""
        if not isinstance(self.text, bytearray):
            self.text = bytearray(self.text)
            self.tags = bytearray(self.tags)

    def takes(self, other: "Block") -> bool:
        """Whether `other`, which follows in seq, still fits into this open block."""
        return (
            len(self.ends) + len(other.ends) <= BLOCK_RECORDS_MAX
            and len(self.text) + len(other.text) < BLOCK_TEXT_BYTES
            and self.base_ts <= other.base_ts
            and other.base_ts + other.ts[-1] - self.base_ts <= TS_DELTA_MAX
        )

    def extend(self, other: "Block") -> None:
        """Take over the records of `other` (see `takes`)."""
        if other.extras is not None:
            self._extend_extras(other, 0, len(other), len(self))
        body = self.text
        assert isinstance(body, bytearray)
        if body:
            body += b","
        shift = len(body)
        body += other.text
        tag_shift = len(self.tags)
        self.tags += other.tags
        ts_shift = other.base_ts - self.base_ts
        if len(other.ends) == 1:  # by far the most common case
            self.ends.append(shift + other.ends[0])
            self.ts.append(ts_shift + other.ts[0])
            self.tag_ends.append(tag_shift + other.tag_ends[0])
            self.data_offs.append(other.data_offs[0])
            self.meta_lens.append(other.meta_lens[0])
        else:
            self.ends.extend([shift + end for end in other.ends])
            self.ts.extend([ts_shift + ts for ts in other.ts])
            self.tag_ends.extend([tag_shift + end for end in other.tag_ends])
            self.data_offs.extend(other.data_offs)
            self.meta_lens.extend(other.meta_lens)
        if other.nodes:
            ids = [0, *(self._node_id(node) for node in other.nodes)]
            self.node_ids.extend([ids[i] for i in other.node_ids])
        else:
            self.node_ids.extend(other.node_ids)
        self.priorities += other.priorities
        self.hops += other.hops
        self.crlf = self.crlf or other.crlf
        if self.known_sizes is not None:
            if len(other.ends) == 1:
                self.known_sizes.append(other.size)
            else:
                self.known_sizes.extend(other.sizes())

    def _extend_extras(self, other: "Block", low: int, high: int, shift: int) -> None:
        assert other.extras is not None
        extras = self.need_extras()
        extras.take(other.extras, low, high, shift)
        extras.ranked = extras.ranked or any(other.priorities[low:high])
        if not extras:
            self.extras = None

    def need_extras(self) -> Extras:
        """Its extras, to be added to."""
        if self.extras is None:
            self.extras = Extras()
        return self.extras

    @property
    def size(self) -> int:
        """The sum of `sizes`: all texts without the commas between them, and all tags."""
        return self.ends[-1] - len(self.ends) + 1 + self.tag_ends[-1]

    def sizes(self) -> "array[int]":
        """What each record counts for in `bytes`: its text and its tag. One column, which grows with the block."""
        if self.known_sizes is None:
            self.known_sizes = self._sizes()
        return self.known_sizes

    def _sizes(self) -> "array[int]":
        ends, tag_ends = self.ends.tolist(), self.tag_ends.tolist()
        starts = [0, *[end + 1 for end in ends[:-1]]]
        if not self.tags:
            return array("I", [end - start for end, start in zip(ends, starts, strict=True)])
        tag_starts = [0, *tag_ends[:-1]]
        return array(
            "I",
            [e - s + te - ts for e, s, te, ts in zip(ends, starts, tag_ends, tag_starts, strict=True)],
        )

    def tag(self, index: int) -> bytes:
        """The quoted tag of a record, empty if it has none."""
        start = self.tag_ends[index - 1] if index else 0
        return bytes(self.tags[start : self.tag_ends[index]])

    def start(self, index: int) -> int:
        return self.ends[index - 1] + 1 if index else 0

    def record(self, index: int) -> bytes:
        return bytes(self.text[self.start(index) : self.ends[index]])

    def cut(self, low: int, high: int) -> "Block":
        """A new block with the records [low, high)."""
        part = Block(self.first_seq + low, self.base_ts)
        for i in range(low, high):
            node = self.nodes[self.node_ids[i] - 1] if self.node_ids[i] else b""
            part.add(
                self.record(i),
                self.base_ts + self.ts[i],
                self.tag(i),
                node,
                self.data_offs[i],
                self.meta_lens[i],
                priority=self.priorities[i],
                hops=self.hops[i],
            )
        if self.extras is not None:
            part._extend_extras(self, low, high, 0)
        return part


def coalesce(blocks: Sequence[Block]) -> list[Block]:
    """The same records in as few blocks as the limits allow. Blocks must be in seq order; gaps are kept apart."""
    out: list[Block] = []
    own = False  # whether the last block out is a copy that may grow; blocks given are never changed
    for block in blocks:
        if out and out[-1].last_seq + 1 == block.first_seq and out[-1].takes(block):
            if not own:
                fresh = Block(out[-1].first_seq, out[-1].base_ts)
                fresh.extend(out[-1])
                out[-1] = fresh
                own = True
            out[-1].extend(block)
        else:
            out.append(block)
            own = False
    return out
