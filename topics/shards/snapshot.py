"""The snapshot: a log of checkpoints, `snapshot.<generation>`.

A checkpoint appends what changed since the one before (topics that were written, files that came and went) and one
commit record; only committed groups count. So a checkpoint costs what is dirty, not what exists. When the log has
grown to a multiple of what it would be anew, it is rewritten as one group in a file of the next generation (tmp,
sync, rename, sync of the directory), and only then does the old one go.

File: a 64-byte header (magic "TOPICSSN", version u32, 0 u32, generation u64, seed u64, 24 reserved, XXH3-64 of 0..56),
then records: magic "TSR1", length u32, kind u32 (1 topics, 2 commit, 3 keys), group u32 (1, 2, 3 … of the file),
XXH3-64 of the 12 bytes before and the body with the seed u64, body (msgpack).

Idempotency keys are too many to be in the topics' entries: a group has the new ones only, and a rewrite drops those
whose window has passed.

A crash leaves at most a torn group at the end, whose WAL files are all still there. A bad record with a good one of a
later group behind it is not that: the bad group was synced once, and what it replaced is gone. Then nothing is touched
and the shard refuses to start.
"""

import contextlib
import os
import struct
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import msgpack
import xxhash

from topics.core import residence
from topics.core.chunk import DataFile
from topics.core.config import from_wire, to_wire
from topics.core.derivation import Derived
from topics.core.idempotency import KeyWindow
from topics.core.keyruns import drop_older
from topics.core.ranges import SeqRanges
from topics.core.topic import Topic
from topics.limits import KIB
from topics.malformed import MALFORMED
from topics.shards.files import File, Files
from topics.shards.snapshot_form import (
    COLD,
    COMMIT,
    KEYS,
    TOPICS,
    CommitBody,
    Entry,
    Pair,
    decode_commit,
    decode_entry,
    decode_record,
)

MAGIC = b"TOPICSSN"
VERSION = 1
_HEADER = struct.Struct("<8sIIQQ24sQ")
_RECORD = struct.Struct("<4sIIIQ")
RECORD_MAGIC = b"TSR1"
_U64 = struct.Struct("<Q")
BATCH = 512  # topics in one record
KEYS_BYTES = 256 * KIB  # of keys in one record, about
REWRITE_FACTOR = 4
REWRITE_MIN_BYTES = 1 << 20
NO_SEQS = SeqRanges().encode()
UNFLIPPED_AT = 15  # among the fields of a topic
_ADVICE = (
    "Nothing was changed. Restore this shard from a backup, or move the file away to start from the WAL that is left."
)

_NUMBERS = ("cut_lsn", "next_topic_id", "next_epoch", "next_cell", "next_file_id", "now_ms", "idle_lsn")


class BadSnapshot(Exception):
    """The snapshot cannot be trusted; the message says which file and what to do."""


class Commit:
    """What a checkpoint states about the whole shard."""

    __slots__ = (
        "added",
        "began_ms",
        "changed",
        "cut_lsn",
        "idle_lsn",
        "next_cell",
        "next_epoch",
        "next_file_id",
        "next_topic_id",
        "now_ms",
        "removed_files",
        "removed_topics",
    )

    def __init__(self) -> None:
        self.cut_lsn = 0
        self.next_topic_id = 1
        self.next_epoch = 1
        self.next_cell = 1
        self.next_file_id = 1
        self.now_ms = 0
        self.began_ms = 0  # before any topic was captured; not stored
        self.idle_lsn = -1  # the newest idle mark, which the log may not have any more
        self.added: list[DataFile] = []
        self.changed: list[DataFile] = []  # known files, as they are from now on
        self.removed_files: list[int] = []
        self.removed_topics: list[int] = []

    def pack(self) -> bytes:
        files = [_pack_file(info) for info in self.added + self.changed]
        return _pack(
            [
                self.cut_lsn, self.next_topic_id, self.next_epoch, self.next_cell, self.next_file_id, self.now_ms,
                files, self.removed_files, self.removed_topics, self.idle_lsn,
            ]
        )  # fmt: skip


class SnapshotState:
    """All committed groups folded into one."""

    def __init__(self) -> None:
        self.generation = 0
        self.commit = Commit()
        self.topics: dict[int, bytes] = {}
        self.keys: dict[int, bytearray] = {}  # by topic id, in the order they came
        self.files: dict[int, DataFile] = {}
        self.end = 0
        self.seed = 0
        self.group = 0  # the last committed one
        self.base = 0  # where the first group ends, which holds what there was when the file was begun

    def fold(self, topics: Iterable[Pair], keys: Iterable[Pair], body: CommitBody) -> None:
        commit = self.commit
        for name in _NUMBERS:
            setattr(commit, name, getattr(body, name))
        self.topics.update(topics)
        for topic_id, added in keys:
            self.keys.setdefault(topic_id, bytearray()).extend(added)
        for topic_id in body.removed_topics:
            self.topics.pop(topic_id, None)
            self.keys.pop(topic_id, None)
        for stored in body.files:
            self.files[stored.id] = stored.unpack()
        for file_id in body.removed_files:
            self.files.pop(file_id, None)


def _pack_file(info: DataFile) -> list[Any]:
    """A cold one has more fields, so that a program that does not know of them cannot take the file for lost."""
    fields = [info.id, info.kind, info.path, info.seed, info.topic_id, info.size]
    return [*fields, COLD, info.deleted] if info.cold else fields


def encode_topic(topic: Topic, packs_from: int) -> bytes:
    """A topic's scalars. Deletes that its files do not show yet may be laid over."""
    return _pack(
        [
            topic.name, topic.epoch, to_wire(topic.config), topic.head_seq, topic.last_ts, topic.delete_below,
            topic.evicted.cap_seq, topic.evicted.ttl_seq, topic.evicted.ranges, topic.holes.items,
            topic.applied_lsn, topic.ceiling, topic.cell, topic.last_write_ms, packs_from, NO_SEQS, topic.resident_from,
            topic.derived.pack(topic) if topic.derived is not None else None, topic.created_ms,
            residence.last_live(topic.chunks) if residence.is_resident(topic) else None,
            topic.keys.floor if topic.keys is not None else 0,
        ]
    )  # fmt: skip


def lay_over(entry: bytes, unflipped: SeqRanges) -> bytes:
    """The entry with deletes that the topic's files do not show yet; some may have expired or been evicted."""
    fields = msgpack.unpackb(entry, raw=False, strict_map_key=False)
    assert fields[UNFLIPPED_AT] == NO_SEQS
    fields[UNFLIPPED_AT] = unflipped.encode()
    return _pack(fields)


def decode_topic(topic_id: int, data: bytes, keys: bytes = b"") -> tuple[Topic, SeqRanges]:
    """The topic without its log (chunks come from the data files), and the deletes to lay over that. Raises
    BadSnapshot."""
    try:
        return _decode_topic(topic_id, decode_entry(data), keys)
    except MALFORMED as error:
        what = f"the entry of topic {topic_id} checks, but cannot be read ({error})"
        raise BadSnapshot(f"the snapshot cannot be used: {what}. {_ADVICE}") from error


def _decode_topic(topic_id: int, entry: Entry, keys: bytes) -> tuple[Topic, SeqRanges]:
    topic = Topic(topic_id, entry.name, entry.epoch, from_wire(entry.config))
    topic.head_seq = entry.head_seq
    topic.next_seq = entry.head_seq + 1
    topic.last_ts = entry.last_ts
    topic.created_ms = entry.created_ms or 0
    topic.delete_below = entry.delete_below
    topic.evicted.cap_seq = entry.cap_seq
    topic.evicted.ttl_seq = entry.ttl_seq
    topic.evicted.ranges = entry.evicted
    topic.holes.items = entry.holes
    topic.applied_lsn = entry.applied_lsn
    topic.ceiling = topic.reserved = entry.ceiling
    topic.cell = entry.cell
    topic.packs_from = entry.packs_from
    topic.resident_from = entry.resident_from
    topic.stored_live = (entry.head_seq, entry.stored_live) if entry.stored_live is not None else None
    topic.last_write_ms = entry.last_write_ms
    topic.derived = Derived.unpack(entry.derived) if entry.derived is not None else None
    if keys:
        topic.keys = KeyWindow()
        topic.keys.load(keys)
        topic.keys.forget_before(entry.keys_floor or 0)
    return topic, SeqRanges.decode(entry.unflipped)


def generations(files: Files) -> list[int]:
    names = (name.removeprefix("snapshot.") for name in files.list(".") if name.startswith("snapshot."))
    return sorted(int(name) for name in names if name.isascii() and name.isdigit())


def path_of(generation: int) -> str:
    return f"snapshot.{generation}"


def read_snapshot(files: Files) -> SnapshotState:
    """The newest generation; an empty state if the shard is new."""
    known = generations(files)
    if not known:
        return SnapshotState()
    file = files.open(path_of(known[-1]))
    try:
        data = file.read_at(0, file.size())
    finally:
        file.close()
    return decode_snapshot(data, known[-1])


def decode_snapshot(data: bytes, generation: int) -> SnapshotState:
    state = SnapshotState()
    state.generation = generation
    if len(data) < _HEADER.size:
        raise BadSnapshot(_message(generation, "its header is cut off"))
    magic, version, _, _, seed, _, check = _HEADER.unpack_from(data)
    if magic != MAGIC or version != VERSION or xxhash.xxh3_64_intdigest(data[:56]) != check:
        raise BadSnapshot(_message(generation, "its header does not check"))
    state.seed = seed
    at = state.end = _HEADER.size
    waiting: dict[int, list[tuple[int, bytes]]] = {TOPICS: [], KEYS: []}
    while (record := _record_at(data, at, seed)) is not None and record.group == state.group + 1:
        at = record.end
        try:
            body = decode_record(record.kind, record.body)
            if isinstance(body, CommitBody):
                state.fold(waiting[TOPICS], waiting[KEYS], body)
            else:
                waiting[record.kind] += body
        except MALFORMED as error:
            what = f"the record that ends at byte {at} checks, but cannot be read ({error})"
            raise BadSnapshot(_message(generation, what)) from error
        if record.kind == COMMIT:
            state.group = record.group
            waiting = {TOPICS: [], KEYS: []}
            state.end = at
            state.base = state.base or at
    if _later_group(data, at, seed, state.group + 1):
        raise BadSnapshot(_message(generation, f"it is damaged near byte {at}, before a later checkpoint"))
    return state


class _Record(NamedTuple):
    kind: int
    group: int
    body: bytes
    end: int


def _record_at(data: bytes, at: int, seed: int) -> _Record | None:
    if at + _RECORD.size > len(data):
        return None
    magic, length, kind, group, check = _RECORD.unpack_from(data, at)
    body = data[at + _RECORD.size : at + _RECORD.size + length]
    if magic != RECORD_MAGIC or len(body) != length or kind not in (TOPICS, COMMIT, KEYS):
        return None
    if _check_of(data[at + 4 : at + 16], body, seed) != check:
        return None
    return _Record(kind, group, body, at + _RECORD.size + length)


def scan(data: bytes) -> Iterator[tuple[int, int, _Record | None]]:
    """(offset, end, record) of everything behind the header; None for bytes that do not check."""
    seed = _HEADER.unpack_from(data)[4]
    at = bad = _HEADER.size
    while at < len(data):
        record = _record_at(data, at, seed)
        if record is None:
            at = data.find(RECORD_MAGIC, at + 1)
            at = len(data) if at < 0 else at
            continue
        if bad < at:
            yield bad, at, None
        yield at, record.end, record
        at = bad = record.end
    if bad < at:
        yield bad, at, None


def _check_of(head: bytes, body: bytes, seed: int) -> int:
    digest = xxhash.xxh3_64(head, seed)
    digest.update(body)
    return digest.intdigest()


def _later_group(data: bytes, at: int, seed: int, group: int) -> bool:
    """Whether a good record of a group above `group` stands anywhere behind `at`."""
    while (at := data.find(RECORD_MAGIC, at)) >= 0:
        record = _record_at(data, at, seed)
        if record is not None and record.group > group:
            return True
        at = record.end if record is not None else at + 1
    return False


def _message(generation: int, what: str) -> str:
    return f"{path_of(generation)} cannot be used: {what}. {_ADVICE}"


class SnapshotLog:
    """The writer. One checkpoint at a time.

    After an OSError out of `commit` the checkpoint did not happen, unless `in_doubt`: then it may or may not have, and
    the shard must restart from disk.
    """

    def __init__(self, files: Files, state: SnapshotState) -> None:
        self._files = files
        self._generation = state.generation
        self._seed = state.seed
        self._end = state.end
        self._base = state.base
        self._group = state.group
        self.in_doubt = False
        self._file: File | None = files.open(path_of(state.generation)) if state.generation else None
        if self._file is not None:
            # A torn group must go before anything is written over its beginning: what is left of it could line up.
            # And the last whole one may not have been synced by the process that wrote it, but is built on from now.
            self._take_back(self._file)

    def commit(
        self, topics: Iterable[tuple[int, bytes]], commit: Commit, keys: Iterable[tuple[int, bytes]] = ()
    ) -> None:
        """Make a checkpoint durable; `keys` are the new ones."""
        entries, keys = list(topics), list(keys)
        if self._file is None or self._end > max(REWRITE_MIN_BYTES, REWRITE_FACTOR * self._base):
            self._rewrite(entries, keys, commit)
            return
        parts = _records(entries, keys, commit.pack(), self._seed, self._group + 1)
        self.in_doubt = True
        try:
            self._file.write_at(self._end, parts)
        except OSError:
            self._take_back(self._file)  # a full disk, most likely
            self.in_doubt = False
            raise
        self._file.sync()
        self.in_doubt = False
        self._end += sum(map(len, parts))
        self._group += 1

    def _take_back(self, file: File) -> None:
        if file.size() > self._end:
            file.truncate(self._end)
        file.sync()

    def _rewrite(self, entries: list[tuple[int, bytes]], keys: list[tuple[int, bytes]], commit: Commit) -> None:
        """Everything in one group, in a file of the next generation."""
        state = read_snapshot(self._files) if self._file is not None else SnapshotState()
        added = {info.id: info for info in commit.added + commit.changed}
        state.fold(entries, keys, decode_commit(commit.pack()))
        whole = state.commit
        whole.added = [added.get(info.id, info) for info in state.files.values()]
        generation = self._generation + 1
        seed = int.from_bytes(os.urandom(8), "little")
        head = _HEADER.pack(MAGIC, VERSION, 0, generation, seed, bytes(24), 0)[:56]
        parts = [head + _U64.pack(xxhash.xxh3_64_intdigest(head))]
        parts += _records(list(state.topics.items()), _open_keys(state, commit.began_ms), whole.pack(), seed, 1)
        tmp = "snapshot.tmp"
        self._files.unlink(tmp)
        file = self._files.create(tmp)
        file.write_at(0, parts)
        file.sync()
        self.in_doubt = True
        self._files.rename(tmp, path_of(generation))
        self._files.sync_dir(".")
        self.in_doubt = False
        if self._file is not None:
            self._file.close()
            with contextlib.suppress(OSError):  # recovery removes it
                self._files.unlink(path_of(self._generation))
        self._file, self._generation, self._seed = file, generation, seed
        self._end = self._base = sum(map(len, parts))
        self._group = 1

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def _open_keys(state: SnapshotState, at_ms: int) -> list[tuple[int, bytes]]:
    """The keys whose window had not passed then. It may be longer now than a topic's entry says."""
    kept = []
    for topic_id, stored in state.keys.items():
        config = from_wire(decode_entry(state.topics[topic_id]).config)
        oldest = at_ms - config.idempotency_window_ms
        kept += [(topic_id, piece) for piece in drop_older(stored, oldest)]
    return kept


def _records(
    entries: list[tuple[int, bytes]], keys: list[tuple[int, bytes]], commit: bytes, seed: int, group: int
) -> list[bytes]:
    parts: list[bytes] = []
    bodies = [(TOPICS, _pack(entries[at : at + BATCH])) for at in range(0, len(entries), BATCH)]
    bodies += [(KEYS, _pack(batch)) for batch in _batches(keys)]
    for kind, body in [*bodies, (COMMIT, commit)]:
        head = struct.pack("<III", len(body), kind, group)
        parts += (RECORD_MAGIC + head + _U64.pack(_check_of(head, body, seed)), body)
    return parts


def _batches(keys: list[tuple[int, bytes]]) -> Iterator[list[tuple[int, bytes]]]:
    """Those of one record each: packing it holds the interpreter."""
    batch: list[tuple[int, bytes]] = []
    size = 0
    for topic_id, stored in keys:
        batch.append((topic_id, stored))
        size += len(stored)
        if len(batch) == BATCH or size >= KEYS_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _pack(value: Any) -> bytes:
    packed: bytes = msgpack.packb(value, use_bin_type=True)
    return packed
