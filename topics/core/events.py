"""The events of a shard: what is logged is what is applied, when it happens and when it is replayed.

An event is one WAL frame: a kind and a body. `Appended` is laid out by hand because it is the hot one; the rest are
msgpack arrays.

Appended body: topic id u64, epoch u64, ts u64, first_seq u64, n u32, key length u8 (0 or 16), flags u8, blocks u16,
then the key's digest; with flag 1 the dedup keys: k u32, then k times index of the record u32, digest 16; then the
blocks' bodies one after another (see blockform.py). Without records there are no blocks: the key alone is remembered.
Bits 1 to 3 of the flags are the durability class of the topic then (DURABILITIES; 0: not said).
"""

import struct
from collections.abc import Sequence
from typing import Any

import msgpack
import msgspec

from topics.core.block import BadBlock, Block
from topics.core.blockform import address, decode_block, encode_body, encode_unaddressed
from topics.core.config import TopicConfig, from_wire, to_wire
from topics.core.deletion import Deletion
from topics.core.derivation import Mark
from topics.core.keyruns import DEDUP_BYTES, Dedups, NewKeys, pack_dedups, unpack_dedups
from topics.core.ranges import SEQ_MAX, SeqRanges
from topics.core.residence import Kept
from topics.malformed import MALFORMED

CREATED, UPDATED, REMOVED, APPENDED, DELETED, RESERVED, LOST, IDLE, BOTH, MARKED, RECOVERED = range(1, 12)
_APPENDED = struct.Struct("<QQQQIBBH")
_LENGTH = struct.Struct("<I")
_DEDUPS = 1  # flag of an append
_CLASS_SHIFT = 1  # where its durability class stands in the flags
DURABILITIES = ("", "ephemeral", "memory", "disk", "fsync")  # by the number that stands for them there
_CLASS_FLAGS = {durability: number << _CLASS_SHIFT for number, durability in enumerate(DURABILITIES)}


class BadEvent(ValueError):
    """A frame whose checksum holds but whose body is not an event of this version."""


class TopicCreated(msgspec.Struct, frozen=True):
    topic_id: int
    name: str
    epoch: int
    config: TopicConfig
    ts: int
    ceiling: int
    cell: int


class TopicUpdated(msgspec.Struct, frozen=True):
    """`head_seq` is the head at that moment: the log alone does not know it while a topic is resident-only.

    `kept` is what is left of a topic that leaves `ephemeral`.
    """

    topic_id: int
    config: TopicConfig
    ts: int
    head_seq: int
    kept: Kept | None = None


class TopicRemoved(msgspec.Struct, frozen=True):
    topic_id: int


Part = bytes | bytearray  # of a frame's body


class Encoded:
    """The bytes of a large append's blocks. Made in a thread: all of its texts are copied.

    They are those of the event, whatever its blocks grow to later. Whoever logs it takes them, so that they go with the
    frame.
    """

    __slots__ = ("_bodies",)

    def __init__(self, blocks: Sequence[Block]) -> None:
        self._bodies = [encode_unaddressed(block) for block in blocks]

    def take(self, topic_id: int, epoch: int) -> Sequence[Part]:
        bodies, self._bodies = self._bodies, []
        for body in bodies:
            address(body, topic_id, epoch)
        return bodies


class Appended(msgspec.Struct, frozen=True):
    """`durability` is the class of the topic at that moment: a start whose log is damaged has to know that it did not
    change there. `encoded` is what it is logged as, if that was made ahead.
    """

    topic_id: int
    epoch: int
    ts: int
    first_seq: int
    count: int
    key: bytes  # digest of the idempotency key, or empty
    blocks: list[Block]
    dedups: Dedups = ()
    prepared: NewKeys | None = None  # instead of them, if they were made ready ahead
    encoded: Encoded | None = None
    durability: str = ""

    @property
    def dedup_count(self) -> int:
        return len(self.dedups) if self.prepared is None else len(self.prepared.digests)

    @property
    def size(self) -> int:
        """What its records count for in `bytes`. To be asked before it is applied: a tail's block goes on growing."""
        blocks = self.blocks
        return blocks[0].size if len(blocks) == 1 else sum([block.size for block in blocks])


class RecordsDeleted(msgspec.Struct, frozen=True):
    """Everything below `before_seq` (0: nothing by position) and the seqs in `ranges` (a match, already resolved).

    What had expired by `ts` is not deleted: it was lost before, and readers are told. `prepared` is not logged.
    """

    topic_id: int
    before_seq: int
    ranges: SeqRanges | None
    ts: int
    prepared: Deletion | None = None


class CeilingReserved(msgspec.Struct, frozen=True):
    """No seq above `ceiling` is acked before another reservation is durable."""

    topic_id: int
    ceiling: int


class RangeLost(msgspec.Struct, frozen=True):
    """[first, last] was acked and is gone. An empty range (first > last) only sets the epoch."""

    topic_id: int
    first: int
    last: int
    reason: str
    epoch: int


class WentIdle(msgspec.Struct, frozen=True):
    """Everything acked so far is durable, and the next write is gated: a log that ends here has lost nothing."""


class Recovered(msgspec.Struct, frozen=True):
    """All that a start has found to be lost, and the ids that it leaves out since others may still name them.

    One frame, so that a crash keeps all of it or nothing. The gaps of the log that it tells of are told by no later
    start, and when it is written nothing that was acked is at risk.
    """

    losses: list[RangeLost]
    next_topic_id: int
    next_epoch: int
    gaps: list[tuple[int, int]] = []  # first and last lsn of the frames that are missing
    removed: list[int] = []  # topics of which something else told that the frame that removed them is missing


class CreatedAndAppended(msgspec.Struct, frozen=True):
    """A write that made its topic: both or neither."""

    created: TopicCreated
    appended: Appended


class Marked(msgspec.Struct, frozen=True):
    """How far derived topics have come, several in one frame."""

    marks: list[Mark]


Event = (
    TopicCreated | TopicUpdated | TopicRemoved | Appended | RecordsDeleted | CeilingReserved | RangeLost | WentIdle
    | CreatedAndAppended | Marked | Recovered
)  # fmt: skip


def encode_event(event: Event) -> tuple[int, list[Part]]:
    """The frame's kind and the parts of its body."""
    if type(event) is Appended:
        return APPENDED, _encode_appended(event)
    if type(event) is RecordsDeleted:
        return DELETED, [_pack([event.topic_id, event.before_seq, _encoded_ranges(event), event.ts])]
    if type(event) is CreatedAndAppended:
        created = _encode_created(event.created)
        return BOTH, [_LENGTH.pack(len(created)), created, *_encode_appended(event.appended)]
    if type(event) is TopicCreated:
        return CREATED, [_encode_created(event)]
    if type(event) is TopicUpdated:
        kept = event.kept.pack() if event.kept is not None else None
        return UPDATED, [_pack([event.topic_id, to_wire(event.config), event.ts, event.head_seq, kept])]
    if type(event) is TopicRemoved:
        return REMOVED, [_pack([event.topic_id])]
    if type(event) is CeilingReserved:
        return RESERVED, [_pack([event.topic_id, event.ceiling])]
    if type(event) is RangeLost:
        return LOST, [_pack(_loss_fields(event))]
    if type(event) is Recovered:
        losses = list(map(_loss_fields, event.losses))
        return RECOVERED, [_pack([losses, event.next_topic_id, event.next_epoch, event.gaps, event.removed])]
    if type(event) is Marked:
        return MARKED, [_pack([msgspec.to_builtins(mark) for mark in event.marks])]
    assert type(event) is WentIdle
    return IDLE, []


def decode_event(kind: int, body: bytes | memoryview) -> Event:
    """The event of a frame; BadEvent for anything this version does not know."""
    try:
        event = _decode(kind, body)
        _check_types(event.created if type(event) is CreatedAndAppended else event)
        return event
    except BadEvent:
        raise
    except MALFORMED as error:
        raise BadEvent(f"event of kind {kind} cannot be read: {error}") from error


def _decode(kind: int, body: bytes | memoryview) -> Event:
    if kind == APPENDED:
        return _decode_appended(memoryview(body))
    if kind == BOTH:
        (length,) = _LENGTH.unpack_from(body)
        view = memoryview(body)
        created = _decode_created(_unpack(view[4 : 4 + length]))
        return CreatedAndAppended(created, _decode_appended(view[4 + length :]))
    if kind == IDLE:
        return WentIdle()
    fields = _unpack(body)
    if kind == CREATED:
        return _decode_created(fields)
    if kind == UPDATED:
        kept = Kept.unpack(fields[4]) if fields[4] is not None else None
        return TopicUpdated(fields[0], from_wire(fields[1]), fields[2], fields[3], kept)
    if kind == REMOVED:
        return TopicRemoved(fields[0])
    if kind == DELETED:
        if not isinstance(fields[2], bytes | None):
            raise BadEvent("the ranges of a delete must be bytes")
        ranges = SeqRanges.decode(fields[2]) if fields[2] is not None else None
        return RecordsDeleted(fields[0], fields[1], ranges, fields[3])
    if kind == RESERVED:
        return CeilingReserved(fields[0], fields[1])
    if kind == LOST:
        return RangeLost(*fields[:5])
    if kind == RECOVERED:
        losses, *rest = msgspec.convert([[loss[:5] for loss in fields[0]], *fields[1:5]], _RecoveredFields)
        return Recovered([RangeLost(*loss) for loss in losses], *rest)
    if kind == MARKED:
        return Marked([msgspec.convert(mark, Mark) for mark in fields])
    raise BadEvent(f"event kind {kind} is not known")


_RecoveredFields = tuple[list[tuple[int, int, int, str, int]], int, int, list[tuple[int, int]], list[int]]
_PLAIN: dict[type, list[tuple[str, Any]]] = {
    kind: [(field.name, field.type) for field in msgspec.structs.fields(kind) if field.type in (int, str)]
    for kind in (TopicCreated, TopicUpdated, TopicRemoved, RecordsDeleted, CeilingReserved, RangeLost)
}


def _check_types(event: Event) -> None:
    """So that it can be applied. Of the others every field is checked where it is decoded."""
    for name, wanted in _PLAIN.get(type(event), ()):
        if type(getattr(event, name)) is not wanted:
            raise BadEvent(f"{name} of an event is of another type")
    ranges = [pair for mark in event.marks for pair in mark.skipped] if type(event) is Marked else []
    ranges += event.gaps if type(event) is Recovered else []
    if not all(0 <= first <= last <= SEQ_MAX for first, last in ranges):
        raise BadEvent("an event names a range that is none")


def _encoded_ranges(event: RecordsDeleted) -> bytes | None:
    if event.prepared is not None:
        return event.prepared.encoded
    return event.ranges.encode() if event.ranges is not None else None


def _loss_fields(event: RangeLost) -> list[Any]:
    return [event.topic_id, event.first, event.last, event.reason, event.epoch]


def _encode_created(event: TopicCreated) -> bytes:
    fields = [event.topic_id, event.name, event.epoch, to_wire(event.config), event.ts, event.ceiling, event.cell]
    return _pack(fields)


def _decode_created(fields: list[Any]) -> TopicCreated:
    return TopicCreated(fields[0], fields[1], fields[2], from_wire(fields[3]), fields[4], fields[5], fields[6])


def _encode_appended(event: Appended) -> list[Part]:
    dedups = event.dedup_count
    head = _APPENDED.pack(
        event.topic_id, event.epoch, event.ts, event.first_seq, event.count, len(event.key),
        _CLASS_FLAGS[event.durability] | (_DEDUPS if dedups else 0), len(event.blocks),
    )  # fmt: skip
    blocks: Sequence[Part]
    if event.encoded is not None:
        blocks = event.encoded.take(event.topic_id, event.epoch)
    else:
        blocks = [encode_body(block, event.topic_id, event.epoch) for block in event.blocks]
    if dedups:
        packed = event.prepared.packed if event.prepared is not None else pack_dedups(event.dedups)
        return [head, event.key, _LENGTH.pack(dedups), packed, *blocks]
    return [head, event.key, *blocks]


def _decode_appended(view: memoryview) -> Appended:
    topic_id, epoch, ts, first_seq, count, key_len, flags, block_count = _APPENDED.unpack_from(view)
    at = _APPENDED.size + key_len
    key = bytes(view[_APPENDED.size : at])
    dedups: Dedups = ()
    if flags & _DEDUPS:
        dedups, at = _decode_dedups(view, at, count)
    blocks = []
    for _ in range(block_count):
        try:
            block, head = decode_block(view, at)
        except BadBlock as error:
            raise BadEvent(str(error)) from error
        blocks.append(block)
        at += head.frame_len
    if sum(map(len, blocks)) != count or (blocks and blocks[0].first_seq != first_seq):
        raise BadEvent("the blocks of an append do not add up")
    if not (blocks or key) or len(key) != key_len:
        raise BadEvent("an append has neither records nor a key, or its key is cut off")
    durability = DURABILITIES[flags >> _CLASS_SHIFT & 7]
    return Appended(topic_id, epoch, ts, first_seq, count, key, blocks, dedups, durability=durability)


def _decode_dedups(view: memoryview, at: int, count: int) -> tuple[Dedups, int]:
    """The dedup keys of an append of `count` records, and where they end."""
    (number,) = _LENGTH.unpack_from(view, at)
    at += _LENGTH.size
    end = at + number * DEDUP_BYTES
    dedups = unpack_dedups(view[at:end])
    if len(dedups) != number or any(index >= count for index, _ in dedups):
        raise BadEvent("the dedup keys of an append do not fit its records")
    return dedups, end


def _pack(fields: list[Any]) -> bytes:
    packed: bytes = msgpack.packb(fields, use_bin_type=True)
    return packed


def _unpack(body: bytes | memoryview) -> list[Any]:
    fields = msgpack.unpackb(body, raw=False, strict_map_key=False)
    if not isinstance(fields, list):
        raise BadEvent("an event body must be an array")
    return fields
