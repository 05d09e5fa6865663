"""What stands in the records of a snapshot (snapshot.py), with the types that a reader can count on.

Arrays may grow at the end: members that this version does not know are passed over, and those that an earlier one did
not write have a default.
"""

from typing import Any, Literal

import msgspec

from topics.core.chunk import DataFile
from topics.core.loss import Hole
from topics.core.ranges import SeqRanges
from topics.malformed import MALFORMED

TOPICS, COMMIT, KEYS = 1, 2, 3  # kinds of records
COLD = 1  # the tier of a file in the cold directory

Pair = tuple[int, bytes]  # of a topic's id


class StoredFile(msgspec.Struct, frozen=True, array_like=True):
    id: int
    kind: Literal["segment", "pack"]
    path: str
    seed: int
    topic_id: int
    size: int
    tier: int = 0
    deleted: bytes = b""

    def unpack(self) -> DataFile:
        """ValueError if its deletes are no ranges."""
        info = DataFile(self.id, self.kind, self.path, self.seed, self.topic_id)
        info.size, info.cold, info.deleted = self.size, self.tier == COLD, self.deleted
        if self.deleted:
            SeqRanges.decode(self.deleted)
        return info


class CommitBody(msgspec.Struct, frozen=True, array_like=True):
    """A commit record as it stands in the file."""

    cut_lsn: int
    next_topic_id: int
    next_epoch: int
    next_cell: int
    next_file_id: int
    now_ms: int
    files: list[StoredFile]
    removed_files: list[int]
    removed_topics: list[int]
    idle_lsn: int


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """A topic as it stands in the file."""

    name: str
    epoch: int
    config: dict[str, Any]
    head_seq: int
    last_ts: int
    delete_below: int
    cap_seq: int
    ttl_seq: int
    evicted: list[tuple[int, int]]
    holes: list[Hole]
    applied_lsn: int
    ceiling: int
    cell: int
    last_write_ms: int | None
    packs_from: int
    unflipped: bytes
    resident_from: int
    derived: list[Any] | None = None
    created_ms: int | None = None
    stored_live: int | None = None
    keys_floor: int | None = None


decode_commit = msgspec.msgpack.Decoder(CommitBody).decode
_pairs = msgspec.msgpack.Decoder(list[Pair]).decode
decode_entry = msgspec.msgpack.Decoder(Entry).decode


def decode_record(kind: int, body: bytes) -> CommitBody | list[Pair]:
    """The body of a record whose checksum holds. ValueError if it is none of its kind."""
    try:
        return decode_commit(body) if kind == COMMIT else _pairs(body)
    except MALFORMED as error:
        raise ValueError(str(error)) from error
