"""From checked records to blocks: the one place where a record's text is written."""

from collections.abc import Sequence

from topics.core.block import Block
from topics.core.requests import RecordIn, quoted
from topics.limits import BLOCK_RECORDS_MAX, BLOCK_TEXT_BYTES


def render_blocks(records: Sequence[RecordIn], node: str | None, first_seq: int, ts: int) -> list[Block]:
    """The blocks of one append. Every record gets the same `ts`; seqs are contiguous from `first_seq`."""
    stamp = b',"$ts":%d' % ts
    batch_node = quoted(node) if node is not None else b""
    batch_mid = stamp + (b',"$node":' + batch_node if batch_node else b"")
    blocks: list[Block] = []
    block = Block(first_seq, ts)
    seq = first_seq
    for record in records:
        if record.node is None:
            mid, node_name = batch_mid, batch_node
        else:
            node_name = quoted(record.node)
            mid = stamp + b',"$node":' + node_name
        head = b'{"$seq":%d%b' % (seq, mid)
        meta = bytes(record.meta)
        if meta and meta != b"null":
            text = b'%b,"data":%b,"meta":%b}' % (head, record.data, meta)
            meta_len = len(meta)
        else:
            text = b'%b,"data":%b}' % (head, record.data)
            meta_len = 0
        held = len(block.ends)
        if held and (held == BLOCK_RECORDS_MAX or len(block.text) + len(text) >= BLOCK_TEXT_BYTES):
            blocks.append(block)
            block = Block(seq, ts)
        tag = quoted(record.tag) if record.tag is not None else b""
        block.add(text, ts, tag, node_name, len(head), meta_len)
        seq += 1
    blocks.append(block)
    return blocks
