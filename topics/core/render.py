"""From checked records to blocks: the one place where a record's text is written.

Works on columns (all texts, all tags, …) because a batch of plain records is then a handful of operations on lists.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from operator import add

import msgspec

from topics.core.block import Block
from topics.core.ids import Ids, members
from topics.core.requests import RecordIn, quoted
from topics.limits import BLOCK_RECORDS_MAX, BLOCK_TEXT_BYTES


def render_blocks(
    records: Sequence[RecordIn], node: str | None, first_seq: int, ts: int, ids: Ids | None = None
) -> list[Block]:
    """The blocks of one append. Every record gets the same `ts`; seqs are contiguous from `first_seq`.

    With `ids` each gets one (ids.py).
    """
    if len(records) == 1:
        return [_one(records[0], node, first_seq, ts, ids)]
    if node is None and _are_plain(records):
        return _plain(records, first_seq, ts, ids)
    texts, data_offs, meta_lens, tags, nodes = _mixed(records, node, first_seq, ts, ids)
    blocks = []
    for low, high in cut_texts(texts):
        block = Block(first_seq + low, ts)
        block.fill(texts[low:high], data_offs[low:high], meta_lens[low:high], tags[low:high], nodes[low:high])
        blocks.append(block)
    return blocks


def _are_plain(records: Sequence[RecordIn]) -> bool:
    """Whether all of them have data alone."""
    n = len(records)
    return (
        [record.tag for record in records].count(None) == n
        and [record.node for record in records].count(None) == n
        and not any(map(len, [record.meta for record in records]))
    )


def _plain(records: Sequence[RecordIn], first_seq: int, ts: int, ids: Ids | None) -> list[Block]:
    """Records that have data alone: no text is made on its own, a block's is joined from everybody's two halves."""
    if ids is None:
        opening = b'},{"$seq":%%d,"$ts":%d,"data":' % ts  # the first two bytes close the text before it
        heads = [opening % seq for seq in range(first_seq, first_seq + len(records))]
    else:
        opening = b'},{"$seq":%%d,"$ts":%d%%b,"data":' % ts
        named = members([ids.ts] * len(records), first_seq, ids.salt)
        heads = [opening % pair for pair in enumerate(named, first_seq)]
    datas = [record.data for record in records]
    spans = list(map(add, map(len, heads), map(len, datas)))  # "}," in front, instead of "}" and a comma behind
    data_offs = [len(head) - len(b'},,"data":') for head in heads]
    blocks = []
    for low, high in _cuts(spans):
        halves: list[bytes | msgspec.Raw] = [b"}"] * (2 * (high - low) + 1)
        halves[0:-1:2] = heads[low:high]
        halves[1::2] = datas[low:high]
        halves[0] = heads[low][2:]
        block = Block(first_seq + low, ts)
        block.fill_joined(b"".join(halves), spans[low:high], data_offs[low:high])
        blocks.append(block)
    return blocks


Columns = tuple[list[bytes], list[int], list[int], list[bytes], list[bytes]]


def _mixed(records: Sequence[RecordIn], node: str | None, first_seq: int, ts: int, ids: Ids | None) -> Columns:
    """The columns of any records."""
    stamp = b',"$ts":%d' % ts
    batch_node = quoted(node) if node is not None else b""
    batch_mid = stamp + (b',"$node":' + batch_node if batch_node else b"")
    texts, data_offs, meta_lens, tags, nodes = [], [], [], [], []
    named = members([ids.ts] * len(records), first_seq, ids.salt) if ids is not None else None
    for seq, record in enumerate(records, first_seq):
        if record.node is None:
            mid, name = batch_mid, batch_node
        else:
            name = quoted(record.node)
            mid = stamp + b',"$node":' + name
        head = b'{"$seq":%d%b' % (seq, mid)
        if named is not None:
            head += named[seq - first_seq]
        text, meta_len = _closed(head, record)
        texts.append(text)
        meta_lens.append(meta_len)
        data_offs.append(len(head))
        tags.append(quoted(record.tag) if record.tag is not None else b"")
        nodes.append(name)
    return texts, data_offs, meta_lens, tags, nodes


def _one(record: RecordIn, node: str | None, seq: int, ts: int, ids: Ids | None) -> Block:
    """A write of one record: the columns would cost several times as much as its text."""
    node = record.node if record.node is not None else node
    head = b'{"$seq":%d,"$ts":%d' % (seq, ts)
    name = b""
    if node is not None:
        name = quoted(node)
        head += b',"$node":' + name
    if ids is not None:
        head += members((ids.ts,), seq, ids.salt)[0]
    text, meta_len = _closed(head, record)
    tag = quoted(record.tag) if record.tag is not None else b""
    return Block.of_one(seq, ts, text, len(head), meta_len, tag, name)


def _closed(head: bytes, record: RecordIn) -> tuple[bytes, int]:
    """A record's text, which begins with `head`, and the length of its meta."""
    if len(record.meta):
        meta = bytes(record.meta)
        if meta != b"null":
            return b'%b,"data":%b,"meta":%b}' % (head, record.data, meta), len(meta)
    return b'%b,"data":%b}' % (head, record.data), 0


def cut_texts(texts: Sequence[bytes]) -> list[tuple[int, int]]:
    """Where blocks begin and end: at most so many records and bytes, one record at least."""
    return _cuts([len(text) + 1 for text in texts])


def _cuts(spans: Sequence[int]) -> list[tuple[int, int]]:
    """The same, by the lengths of texts and their commas."""
    ends = list(accumulate(spans))
    cuts = []
    low = before = 0
    while low < len(spans):
        high = bisect_right(ends, before + BLOCK_TEXT_BYTES, low)
        high = min(max(high, low + 1), low + BLOCK_RECORDS_MAX)
        cuts.append((low, high))
        low, before = high, ends[high - 1]
    return cuts
