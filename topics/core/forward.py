"""Copies on their way from a source to a destination: chosen and cut out there, put together again here.

A copy keeps the bytes of `data` and `meta` as they stand in the source's block; only the members in front of them are
written anew, with the seq and the time of the destination. Nothing is parsed. `exactly_once` routers put a member in
front of the others of `meta`, which no client can send.
"""

from collections.abc import Iterable, Sequence

import msgspec

from topics.core.bits import runs, span
from topics.core.block import Block
from topics.core.diff import Slice
from topics.core.ids import Ids, members, order_times, time_of
from topics.core.render import cut_texts
from topics.core.requests import ROUTER_STAMP
from topics.core.routes import Definition
from topics.core.tags import Pattern
from topics.limits import HOPS_MAX

_META = b',"meta":'
_STAMP = b'{"' + ROUTER_STAMP + b'":"'
HOPS_CEILING = 255


class Copies(msgspec.Struct, array_like=True):
    """Columns, one item a copy, in the order of the source. This is also how they travel."""

    seqs: list[int] = []  # of the source
    tags: list[bytes] = []  # quoted, or empty
    nodes: list[bytes] = []
    tails: list[bytes] = []  # `,"data":…[,"meta":…]}`
    meta_lens: list[int] = []
    hops: list[int] = []
    routers: list[int] = []  # index of the router
    dead: list[bool] = []  # gone from the source meanwhile
    times: list[int] = []  # of the originals, for message ids

    def __len__(self) -> int:
        return len(self.seqs)

    def part(self, low: int, high: int) -> "Copies":
        return Copies(*(column[low:high] for column in msgspec.structs.astuple(self)))

    def pick(self, indexes: Sequence[int]) -> "Copies":
        return Copies(*([column[index] for index in indexes] for column in msgspec.structs.astuple(self)))

    @property
    def size(self) -> int:
        return sum(map(len, self.tails)) + sum(map(len, self.tags))


class Selector:
    """One router's share of the work."""

    __slots__ = ("_has_ids", "_hop_cap", "_pattern", "_preserve_node", "_preserve_tag", "_stamp", "_start", "index")

    def __init__(
        self,
        index: int,
        name: str,
        definition: Definition,
        start: int,
        source: tuple[int, int],
        *,
        has_ids: bool = False,
    ) -> None:
        """`source` is the id and the epoch of the topic; `has_ids` if there may be ids in it."""
        self._has_ids = has_ids
        self.index = index
        self._start = start
        self._pattern = Pattern(definition.filter) if definition.filter is not None else None
        self._preserve_node = definition.preserve_node
        self._preserve_tag = definition.preserve_tag
        self._hop_cap = HOPS_MAX if definition.allow_cycle else HOPS_CEILING + 1
        exactly_once = definition.guarantee == "exactly_once"
        self._stamp = b"%b:%d:%d:" % (name.encode(), *source) if exactly_once else b""

    def add(self, copies: Copies, block: Block, index: int, *, dead: bool) -> None:
        """Take a record over if it is for this router."""
        seq, hops = block.first_seq + index, block.hops[index]
        if seq <= self._start or hops >= self._hop_cap:
            return
        tag = block.tag(index) if block.tags else b""
        if self._pattern is not None and not (tag and self._pattern.matches(tag)):
            return
        start, end = block.start(index) + block.data_offs[index], block.ends[index]
        tail, meta_len = bytes(block.text[start:end]), block.meta_lens[index]
        if self._stamp:
            tail, meta_len = _stamped(tail, meta_len, self._stamp + b"%d" % seq)
        node = block.node_ids[index] if self._preserve_node else 0
        copies.seqs.append(seq)
        copies.tags.append(tag if self._preserve_tag else b"")
        copies.nodes.append(block.nodes[node - 1] if node else b"")
        copies.tails.append(tail)
        copies.meta_lens.append(meta_len)
        copies.hops.append(min(hops + 1, HOPS_CEILING))
        copies.routers.append(self.index)
        copies.dead.append(dead)
        copies.times.append((self._has_ids and time_of(block, index)) or block.base_ts + block.ts[index])


def _stamped(tail: bytes, meta_len: int, key: bytes) -> tuple[bytes, int]:
    """With the router's key as the first member of `meta`, instead of the key of a router before."""
    data = tail[: len(tail) - 1 - (len(_META) + meta_len if meta_len else 0)]
    rest = tail[len(tail) - 1 - meta_len : -1].lstrip()[1:].lstrip() if meta_len else b"}"
    if meta_len and tail[len(tail) - 1 - meta_len : -1].startswith(_STAMP):
        rest = rest[rest.index(b'"', len(_STAMP) - 1) + 1 :].lstrip(b",")
    meta = _STAMP + key + (b'"' if rest.startswith(b"}") else b'",') + rest
    return data + _META + meta + b"}", len(meta)


def collect(windows: Iterable[Slice], selectors: Sequence[Selector]) -> Copies:
    """Copies of the live records of some windows, for every router whose they are."""
    copies = Copies()
    for window in windows:
        assert window.block is not None
        for low, high in runs(span(window.low, window.high) & ~window.dead):
            for index in range(low, high):
                for selector in selectors:
                    selector.add(copies, window.block, index, dead=False)
    return copies


def collect_all(windows: Iterable[Slice], selectors: Sequence[Selector]) -> Copies:
    """The same, of dead records too."""
    copies = Copies()
    for window in windows:
        assert window.block is not None
        for index in range(window.low, window.high):
            for selector in selectors:
                selector.add(copies, window.block, index, dead=bool(window.dead >> index & 1))
    return copies


def gaps_in(windows: Iterable[Slice], after: int, through: int) -> list[tuple[int, int]]:
    """Ranges of seqs from `after` on that no live record of the windows has."""
    gaps, at = [], after + 1
    for window in windows:
        assert window.block is not None
        first_seq = window.block.first_seq
        for low, high in runs(span(window.low, window.high) & ~window.dead):
            if first_seq + low > at:
                gaps.append((at, first_seq + low - 1))
            at = first_seq + high
    return [*gaps, (at, through)] if at <= through else gaps


def render(copies: Copies, first_seq: int, ts: int, ids: Ids | None = None) -> list[Block]:
    """The blocks of copies at consecutive seqs. Their ids have the times of the originals, from that of `ids` on."""
    texts, data_offs = [], []
    stamp = b',"$ts":%d' % ts
    named = members(order_times(copies.times, ids.ts), first_seq, ids.salt) if ids is not None else None
    for seq, (node, tail) in enumerate(zip(copies.nodes, copies.tails, strict=True), first_seq):
        head = b'{"$seq":%d%b%b' % (seq, stamp, b',"$node":' + node if node else b"")
        if named is not None:
            head += named[seq - first_seq]
        texts.append(head + tail)
        data_offs.append(len(head))
    blocks = []
    for low, high in cut_texts(texts):
        block = Block(first_seq + low, ts)
        tags, nodes = copies.tags[low:high], copies.nodes[low:high]
        block.fill(
            texts[low:high],
            data_offs[low:high],
            copies.meta_lens[low:high],
            tags if any(tags) else (),
            nodes if any(nodes) else (),
        )
        block.hops = bytearray(copies.hops[low:high])
        blocks.append(block)
    return blocks
