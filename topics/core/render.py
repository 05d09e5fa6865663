"""From checked records to blocks: the one place where a record's text is written.

Works on columns (all texts, all tags, …) because a batch of plain records is then a handful of operations on lists.
"""

from collections.abc import Sequence

from topics.core.block import Block
from topics.core.requests import RecordIn, quoted
from topics.limits import BLOCK_RECORDS_MAX, BLOCK_TEXT_BYTES

_SEQ = b'{"$seq":'


def render_blocks(records: Sequence[RecordIn], node: str | None, first_seq: int, ts: int) -> list[Block]:
    """The blocks of one append. Every record gets the same `ts`; seqs are contiguous from `first_seq`."""
    if len(records) == 1:
        return [_one(records[0], node, first_seq, ts)]
    columns = _plain(records, node, first_seq, ts) or _mixed(records, node, first_seq, ts)
    texts, data_offs, meta_lens, tags, nodes = columns
    blocks = []
    for low, high in cut_texts(texts):
        block = Block(first_seq + low, ts)
        block.fill(texts[low:high], data_offs[low:high], meta_lens[low:high], tags[low:high], nodes[low:high])
        blocks.append(block)
    return blocks


Columns = tuple[Sequence[bytes], Sequence[int], Sequence[int], Sequence[bytes], Sequence[bytes]]


def _plain(records: Sequence[RecordIn], node: str | None, first_seq: int, ts: int) -> Columns | None:
    """The columns of records that have data alone; None if one has more."""
    n = len(records)
    if (
        node is not None
        or [record.tag for record in records].count(None) < n
        or [record.node for record in records].count(None) < n
        or any(map(len, [record.meta for record in records]))
    ):
        return None
    stamp = b',"$ts":%d' % ts
    lead = stamp + b',"data":'
    texts = [b'{"$seq":%d%b%b}' % (seq, lead, record.data) for seq, record in enumerate(records, first_seq)]
    fixed = len(_SEQ) + len(stamp)
    width = len(str(first_seq))
    if len(str(first_seq + n - 1)) == width:
        return texts, [fixed + width] * n, (), (), ()
    return texts, [fixed + len(str(seq)) for seq in range(first_seq, first_seq + n)], (), (), ()


def _mixed(records: Sequence[RecordIn], node: str | None, first_seq: int, ts: int) -> Columns:
    """The columns of any records."""
    stamp = b',"$ts":%d' % ts
    batch_node = quoted(node) if node is not None else b""
    batch_mid = stamp + (b',"$node":' + batch_node if batch_node else b"")
    texts, data_offs, meta_lens, tags, nodes = [], [], [], [], []
    for seq, record in enumerate(records, first_seq):
        if record.node is None:
            mid, name = batch_mid, batch_node
        else:
            name = quoted(record.node)
            mid = stamp + b',"$node":' + name
        head = b'{"$seq":%d%b' % (seq, mid)
        text, meta_len = _closed(head, record)
        texts.append(text)
        meta_lens.append(meta_len)
        data_offs.append(len(head))
        tags.append(quoted(record.tag) if record.tag is not None else b"")
        nodes.append(name)
    return texts, data_offs, meta_lens, tags, nodes


def _one(record: RecordIn, node: str | None, seq: int, ts: int) -> Block:
    """A write of one record: the columns would cost several times as much as its text."""
    node = record.node if record.node is not None else node
    head = b'{"$seq":%d,"$ts":%d' % (seq, ts)
    name = b""
    if node is not None:
        name = quoted(node)
        head += b',"$node":' + name
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
    cuts = []
    low, size = 0, 0
    for high, text in enumerate(texts):
        size += len(text) + 1
        if high > low and (high - low == BLOCK_RECORDS_MAX or size > BLOCK_TEXT_BYTES):
            cuts.append((low, high))
            low, size = high, len(text) + 1
    return [*cuts, (low, len(texts))]
