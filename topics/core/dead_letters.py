"""A job as a dead letter, and a dead letter as a job again. The data is taken over as it stands; of the meta only the
members that say where it was and why come and go.
"""

import msgspec

from topics.core.block import Block
from topics.core.lease_parts import Move
from topics.core.requests import RecordIn, quoted

STAMP = "$dead_letter_"
_STAMP = b'"$dead_letter_'
_strings = msgspec.json.Decoder(dict[str, str])
_DATA = len(b',"data":')
_META = len(b',"meta":')


def dead_letter(block: Block, seq: int, queue: str, move: Move, meta_max: int) -> RecordIn:
    """The record as it is put into the dead-letter topic: its own, and where it comes from."""
    record, meta = _record_of(block, seq)
    return msgspec.structs.replace(record, meta=msgspec.Raw(_stamped(meta, queue, move, seq, meta_max)))


def revived(block: Block, seq: int) -> RecordIn:
    """A dead letter as it was before."""
    record, meta = _record_of(block, seq)
    bare = _unstamped(meta)
    return record if bare is meta else msgspec.structs.replace(record, meta=msgspec.Raw(b"" if bare == b"{}" else bare))


def _record_of(block: Block, seq: int) -> tuple[RecordIn, bytes]:
    index = seq - block.first_seq
    text, end, meta_len = block.text, block.ends[index], block.meta_lens[index]
    data_at = block.start(index) + block.data_offs[index] + _DATA
    data_end = end - 1 - (_META + meta_len if meta_len else 0)
    node_id, tag = block.node_ids[index], block.tag(index)
    meta = bytes(text[end - 1 - meta_len : end - 1])
    record = RecordIn(
        msgspec.Raw(bytes(text[data_at:data_end])),
        msgspec.json.decode(tag, type=str) if tag else None,
        msgspec.json.decode(block.nodes[node_id - 1], type=str) if node_id else None,
        msgspec.Raw(meta),
        priority=block.priorities[index] or None,
    )
    return record, meta


def _stamped(meta: bytes, queue: str, move: Move, seq: int, meta_max: int) -> bytes:
    """Meta stays as it is, with some members more; only one that has such members already is written anew."""
    meta = _unstamped(meta)
    inside = meta.strip()[1:-1].strip() if meta else b""
    source = b'"$dead_letter_from":%b,"$dead_letter_deliveries":"%d","$dead_letter_src_seq":"%d"' % (
        quoted(queue),
        move.deliveries,
        seq,
    )
    parts = [inside] if inside else []
    if move.failed:
        parts.append(b'"$dead_letter_last_failure_ts":"%d"' % move.failed)
        room = meta_max - sum(len(part) + 1 for part in parts) - len(source) - len(b'{"$dead_letter_reason":,}')
        parts.append(b'"$dead_letter_reason":' + _within(move.reason, room))
    return b"{%b}" % b",".join([*parts, source])


def _unstamped(meta: bytes) -> bytes:
    """Without such members; as it stands, if it has none. A name may be written with escapes."""
    if _STAMP in meta or b"\\" in meta:
        members = _strings.decode(meta)
        kept = {name: value for name, value in members.items() if not name.startswith(STAMP)}
        if len(kept) < len(members):
            return msgspec.json.encode(kept)
    return meta


def _within(reason: str, room: int) -> bytes:
    """The reason as it stands in JSON, cut so that the meta is none that a client could not have written."""
    text = quoted(reason)
    while len(text) > room and reason:
        reason = reason[: max(0, len(reason) - max(1, (len(text) - room) // 6))]
        text = quoted(reason)
    return text
