"""One file of a data directory as lines for a person: what stands where, and whether it checks.

Payloads stay out unless they are asked for: names, numbers and sizes tell most, and may be shown around.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import xxhash

from topics.core.block import BadBlock, Block
from topics.core.blockform import BlockHead, check_frame, decode_stored, mask_from_flags, stored_text
from topics.core.chunk import DataFile
from topics.core.events import Appended, BadEvent, CreatedAndAppended, Event, Marked, Recovered, decode_event
from topics.core.packing import compression_of
from topics.ids import SLOTS
from topics.shards import datafile, slots, snapshot, snapshot_form, wal, walscan
from topics.shards.cold import ID_PATH, OWNER_PATH
from topics.shards.files import REMOVED_CELL
from topics.shards.recovery import REGISTER

Line = dict[str, Any]
EVENT_NAMES = (
    "unknown", "topic created", "topic updated", "topic removed", "appended", "deleted", "ceiling reserved",
    "range lost", "went idle", "created and appended", "copies marked", "recovered",
)  # fmt: skip
HEADER_BYTES = 64  # of every format that has a magic


class NotOurs(Exception):
    """The file is none of topics', or of a version that this program does not read."""


def describe(path: Path, *, with_data: bool) -> Iterator[Line]:
    """The file's lines, in order of offset. `check` is False in one that does not check, absent where nothing can."""
    data = path.read_bytes()
    reader = _BY_MAGIC.get(data[:8]) or _BY_NAME.get(path.name)
    if reader is None and path.parent.name == walscan.QUARANTINE:
        reader = _quarantine
    if reader is None:
        raise NotOurs("neither its first bytes nor its name are those of a file of topics")
    try:
        yield from reader(data, with_data)
    except wal.BadLog as error:
        raise NotOurs(str(error)) from None


def _header(data: bytes, kind: str, **fields: Any) -> Line:
    version = int.from_bytes(data[8:12], "little")
    return {"offset": 0, "kind": kind, "version": version, **fields, "check": header_checks(data)}


def header_checks(data: bytes) -> bool:
    """The header of a log file, a data file or a snapshot: its last eight bytes are the checksum of the others."""
    return len(data) >= HEADER_BYTES and xxhash.xxh3_64_intdigest(data[:56]) == _u64(data, 56)


def _u64(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 8], "little")


# --- the log ------------------------------------------------------------------------------------------------------


def _log(data: bytes, with_data: bool) -> Iterator[Line]:
    scan = walscan.scan_file(data)
    yield _header(data, "log file", first_lsn=_u64(data, 24), bytes=len(data))
    at = HEADER_BYTES
    for found in scan.frames:
        if found.offset > at:
            yield {"offset": at, "kind": "bad bytes", "bytes": found.offset - at, **_claims(data, at), "check": False}
        name = EVENT_NAMES[found.kind] if found.kind < len(EVENT_NAMES) else EVENT_NAMES[0]
        line = {"offset": found.offset, "kind": name, "lsn": found.lsn, "synced": found.synced}
        yield from _frame(line, found, with_data)
        at = found.end
    if at < len(data):
        looks_written = bool(claims := _claims(data, at)) and claims["lsn"] >= _u64(data, 24)
        line = {"offset": at, "kind": "bad frame" if looks_written else "unused", "bytes": len(data) - at}
        yield line | claims | {"check": False} if looks_written else line


def _frame(line: Line, found: walscan.Found, with_data: bool) -> Iterator[Line]:
    line["bytes"] = found.end - found.offset
    try:
        event = decode_event(found.kind, found.body)
    except BadEvent as error:
        yield line | {"check": True, "error": str(error)}
        return
    yield line | _event_fields(event) | {"check": True}
    appended = event.appended if isinstance(event, CreatedAndAppended) else event
    if with_data and isinstance(appended, Appended):
        for block in appended.blocks:
            yield from _records(block, 0)


def _event_fields(event: Event) -> Line:
    """Its own names and numbers; of an append the ones of its head."""
    if isinstance(event, CreatedAndAppended):
        return _event_fields(event.created) | _event_fields(event.appended)
    fields = {name: getattr(event, name) for name in event.__struct_fields__}
    if isinstance(event, Appended):
        sizes: Line = {
            "n": event.count,
            "blocks": len(event.blocks),
            "text_bytes": sum(len(b.text) for b in event.blocks),
        }
        shown = {name: fields[name] for name in ("topic_id", "epoch", "ts", "first_seq")}
        sizes |= {"durability": event.durability} if event.durability else {}
        keys = {"key": event.key.hex()} if event.key else {}
        return shown | sizes | keys | ({"dedup_keys": event.dedup_count} if event.dedup_count else {})
    if "ranges" in fields and fields["ranges"] is not None:
        fields["n"] = fields.pop("ranges").count
    if "config" in fields:
        fields["durability"] = fields.pop("config").durability
    if isinstance(event, Marked):
        return {"marks": [msgspec.to_builtins(mark) for mark in event.marks]}
    if isinstance(event, Recovered):
        fields["losses"] = [msgspec.to_builtins(loss) for loss in event.losses]
    hidden = ("kept", "prepared")
    return {name: value for name, value in fields.items() if name not in hidden and value is not None}


def _claims(data: bytes, at: int) -> Line:
    """What a frame that does not check says about itself, if it still looks like one."""
    if not data.startswith(wal.FRAME_MAGIC, at) or at + wal.FRAME_BYTES > len(data):
        return {}
    lsn, synced, kind = wal.FRAME_REST.unpack_from(data, at + wal.FRAME_HEAD.size)
    return {"lsn": lsn, "synced": synced, "event": kind, "length": wal.FRAME_HEAD.unpack_from(data, at)[1]}


def _quarantine(data: bytes, with_data: bool) -> Iterator[Line]:
    """A piece of a log file without the seed that its checksums need: only what frames say about themselves."""
    yield {"offset": 0, "kind": "bytes of a log file", "bytes": len(data)}
    at = -1
    while (at := data.find(wal.FRAME_MAGIC, at + 1)) >= 0:
        if claims := _claims(data, at):
            yield {"offset": at, "kind": "frame, unchecked", **claims}


# --- data files ---------------------------------------------------------------------------------------------------


def _data_file(data: bytes, with_data: bool) -> Iterator[Line]:
    header = datafile.decode_data_header(data)
    kind = header.kind if header is not None else "data file"
    info = DataFile(_u64(data, 24), kind, "", _u64(data, 16), _u64(data, 32))  # the seed may be whole all the same
    yield _header(data, kind, file_id=info.id, topic_id=info.topic_id, bytes=len(data))
    at = HEADER_BYTES
    for offset, block, head in datafile.read_frames(data, info):
        if offset > at:
            yield {"offset": at, "kind": "bad bytes", "bytes": offset - at, "check": False}
        at = offset + head.frame_len
        yield from _stored(data[offset:at], offset, block, head, info.seed, with_data)
    if at < len(data):
        yield {"offset": at, "kind": "bad bytes", "bytes": len(data) - at, "check": False}


def _stored(frame: bytes, offset: int, block: Block, head: BlockHead, seed: int, with_data: bool) -> Iterator[Line]:
    try:
        check_frame(frame, seed)
        if head.packed:
            block, _ = decode_stored(frame)
        check = True
    except BadBlock:
        check = False
    dead = mask_from_flags(frame[-head.n :])
    yield {
        "offset": offset, "kind": "block", "topic_id": head.topic_id, "epoch": head.epoch, "first_seq": head.first_seq,
        "n": head.n, "deleted": dead.bit_count(), "base_ts": head.base_ts, "bytes": head.frame_len,
        "text_bytes": head.text_len, **_packing(frame, head), "tagged": bool(block.tags), **_numbers(block),
        "check": check,
    }  # fmt: skip
    if with_data and (check or not head.packed):
        yield from _records(block, dead)


def _packing(frame: bytes, head: BlockHead) -> Line:
    if not head.packed:
        return {}
    try:
        return {"stored_bytes": head.stored_len, "compression": compression_of(stored_text(frame, head))}
    except BadBlock:
        return {"stored_bytes": head.stored_len}


def _numbers(block: Block) -> Line:
    """How many of its records have what most have not."""
    extras = block.extras
    if extras is None:
        return {}
    numbers = {"priorities": len(block) - block.priorities.count(0), "origins": len(extras.origins)}
    for name, times in (("not_before", extras.dues), ("expires", extras.expiries)):
        numbers[name] = len(times.at) if times is not None else 0
    return {name: number for name, number in numbers.items() if number}


def _terms(block: Block, index: int) -> Line:
    """What a record has beside its text."""
    extras = block.extras
    if extras is None:
        return {}
    origin = extras.origins.get(index)
    terms = {
        "priority": block.priorities[index],
        "not_before": extras.dues.get(index) if extras.dues is not None else 0,
        "expires": extras.expiries.get(index) if extras.expiries is not None else 0,
        "origin": origin.hex() if origin is not None else "",
    }
    return {name: value for name, value in terms.items() if value}


def _records(block: Block, dead: int) -> Iterator[Line]:
    for index in range(len(block)):
        line: Line = {"kind": "record", "seq": block.first_seq + index}
        if block.tag(index):
            line["tag"] = block.tag(index).decode(errors="replace")
        if dead >> index & 1:
            line["deleted"] = True
        line |= _terms(block, index)
        yield line | {"text": block.record(index).decode(errors="replace")}


def _index(data: bytes, with_data: bool) -> Iterator[Line]:
    try:
        index = datafile.decode_index(data, _u64(data, 48))
    except datafile.BadFile as error:
        yield {"offset": 0, "kind": "index", "bytes": len(data), "check": False, "error": str(error)}
        return
    yield {
        "offset": 0, "kind": "index", "file_id": _u64(data, 48), "blocks": len(index.entries), "n": len(index.ts),
        "tags": index.tag_count, "data_bytes": _u64(data, 40), "lost_bytes": index.lost_bytes, "check": True,
    }  # fmt: skip
    for number, entry in enumerate(index.entries):
        fields = entry._asdict()
        yield {"offset": HEADER_BYTES + 56 * number, "kind": "entry", "at": fields.pop("offset"), **fields}


# --- the snapshot -------------------------------------------------------------------------------------------------


def _snapshot(data: bytes, with_data: bool) -> Iterator[Line]:
    yield _header(data, "snapshot", generation=_u64(data, 16), bytes=len(data))
    if len(data) < HEADER_BYTES:
        return
    for offset, end, record in snapshot.scan(data):
        line: Line = {"offset": offset, "bytes": end - offset}
        if record is None:
            yield line | {"kind": "bad bytes", "check": False}
            continue
        line |= {"kind": _RECORD_NAMES[record.kind], "group": record.group}
        try:
            body = snapshot_form.decode_record(record.kind, record.body)
            line |= _commit_fields(body) if isinstance(body, snapshot_form.CommitBody) else {"entries": len(body)}
        except ValueError as error:
            yield line | {"check": True, "error": str(error)}
            continue
        yield line | {"check": True}
        for topic_id, entry in body if isinstance(body, list) else ():
            yield from _snapshot_entry(record.kind, topic_id, entry)


def _commit_fields(body: snapshot_form.CommitBody) -> Line:
    state = snapshot.SnapshotState()
    state.fold((), (), body)
    commit = state.commit
    return {
        "cut_lsn": commit.cut_lsn, "next_topic_id": commit.next_topic_id, "next_epoch": commit.next_epoch,
        "next_file_id": commit.next_file_id, "now_ms": commit.now_ms, "idle_lsn": commit.idle_lsn,
        "files_added": [info.path for info in state.files.values() if not info.cold],
        "files_cold": [info.path for info in state.files.values() if info.cold], "files_removed": body.removed_files,
        "topics_removed": body.removed_topics,
    }  # fmt: skip


def _snapshot_entry(kind: int, topic_id: int, entry: bytes) -> Iterator[Line]:
    if kind == snapshot_form.KEYS:
        yield {"kind": "idempotency keys", "topic_id": topic_id, "n": len(entry) // 36}
        return
    try:
        topic, _ = snapshot.decode_topic(topic_id, entry)
    except snapshot.BadSnapshot as error:
        yield {"kind": "topic", "topic_id": topic_id, "error": str(error.__cause__)}
        return
    yield {
        "kind": "topic", "topic_id": topic_id, "epoch": topic.epoch, "name": topic.name, "head_seq": topic.head_seq,
        "applied_lsn": topic.applied_lsn, "durability": topic.config.durability, "cell": topic.cell,
    }  # fmt: skip


_RECORD_NAMES = {snapshot_form.TOPICS: "topics", snapshot_form.COMMIT: "commit", snapshot_form.KEYS: "keys"}


# --- files without a magic ----------------------------------------------------------------------------------------


def _slots(data: bytes, with_data: bool) -> Iterator[Line]:
    used = [slot for slot in range(min(SLOTS, 8 * len(data))) if data[slot // 8] >> slot % 8 & 1]
    yield {"offset": 0, "kind": "used slots", "n": len(used), "slots": used, "check": len(data) == SLOTS // 8}


def _register(data: bytes, with_data: bool) -> Iterator[Line]:
    cells = len(data) // 8
    yield {"offset": 0, "kind": "head register", "cells": cells, "boot_mark": f"{_u64(data, 0):016x}"}
    for cell in range(1, cells):
        if head := _u64(data, 8 * cell):
            fields: Line = {"removed": True} if head == REMOVED_CELL else {"head_seq": head}
            yield {"offset": 8 * cell, "kind": "cell", "cell": cell, **fields}


def _slot_map(data: bytes, with_data: bool) -> Iterator[Line]:
    try:
        found = msgspec.json.decode(data, type=dict)
        owners = list(found["slots"])
    except (msgspec.DecodeError, KeyError, TypeError) as error:
        yield {"offset": 0, "kind": "slot map", "bytes": len(data), "check": False, "error": str(error)}
        return
    yield {"offset": 0, "kind": "slot map", "shards": found.get("shards"), "check": len(owners) == SLOTS}
    for shard in sorted(set(owners)):
        yield {"kind": "shard", "shard": shard, "slots": owners.count(shard)}


def _text(data: bytes, with_data: bool) -> Iterator[Line]:
    yield {"offset": 0, "kind": "text", "text": data.decode(errors="replace").strip()}


_BY_MAGIC: dict[bytes, Callable[[bytes, bool], Iterator[Line]]] = {
    wal.FILE_MAGIC: _log,
    datafile.DATA_MAGIC: _data_file,
    datafile.INDEX_MAGIC: _index,
    snapshot.MAGIC: _snapshot,
}
_BY_NAME: dict[str, Callable[[bytes, bool], Iterator[Line]]] = {
    slots.PATH: _slots,
    REGISTER: _register,
    "SLOTS": _slot_map,
    "FORMAT": _text,
    "LOCK": _text,
    ID_PATH: _text,
    OWNER_PATH: _text,
}
