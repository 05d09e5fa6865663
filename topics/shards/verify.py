"""Checking one shard's directory at rest, every byte that counts, and changing none.

The files are read with the codecs and scanners that a start uses. Added to that is what the files say about one
another, because two of them have no checksum: the head register and the slot marks are held against the topics that
the snapshot and the log know. A bit of theirs that contradicts nobody cannot be found.
"""

import struct
from collections.abc import Generator, Iterator

from topics.core.chunk import DataFile
from topics.core.names import is_hidden_name
from topics.ids import SLOTS, slot_of
from topics.shards import datafile, slots, snapshot, wal, walscan
from topics.shards.cold import ID_PATH, OWNER_PATH
from topics.shards.files import REMOVED_CELL, Files, boot_mark
from topics.shards.findings import (
    CORRUPT,
    MISSING,
    QUARANTINED,
    TORN,
    CannotCheck,
    Finding,
    Note,
    Tally,
    read_whole,
    unreadable,
)
from topics.shards.inspect import HEADER_BYTES, header_checks
from topics.shards.readonly_files import ReadOnlyFiles
from topics.shards.recovery import REGISTER
from topics.shards.snapshot import BadSnapshot, SnapshotState
from topics.shards.verify_data import DataFileCheck
from topics.shards.verify_log import KnownTopic, LogCheck

RESTORE = "The shard does not start, and nothing is changed by trying. Restore it from a backup."
_CELL = struct.Struct("<Q")


def work_bytes(files: ReadOnlyFiles) -> int:
    """Roughly how many bytes `check_shard` reports to its `note`."""
    logs = sum(files.size(wal.file_path(number)) for number in walscan.list_files(files))
    return logs + sum(files.size(path) for path in _data_paths(files))


def check_shard(files: Files, tally: Tally, note: Note, cold: Files | None = None) -> Iterator[Finding]:
    """Everything that is wrong in this directory. Raises CannotCheck where nothing can be said.

    `cold` is this shard's part of the cold directory. Without it cold segments are counted, and not looked at.
    """
    tally.shards += 1
    snap = yield from _check_snapshot(files, tally)
    topics: dict[int, KnownTopic] = {}
    if snap is not None:
        yield from _load_topics(snap, topics)
    log = LogCheck(files, snap.commit.cut_lsn if snap is not None else 0, topics, tally)
    if snap is not None:
        yield from log.run(note)
    else:
        yield from log.frames_only(note)
    infos = list(snap.files.values()) if snap is not None else list(_infos_by_header(files))
    for info in infos:
        if not info.cold:
            yield from DataFileCheck(files, info, tally).run(note)
    yield from _check_cold(files, cold, [info for info in infos if info.cold], tally, note)
    tally.leftovers += _count_leftovers(files, infos)
    tally.topics += len(topics)
    if walscan.list_files(files):  # else no start ever got as far as to need the rest
        yield from _check_slots(files, topics, tally)
        yield from _check_register(files, topics, log.damaged or snap is None, tally)
    yield from _check_quarantine(files, tally)


# --- the snapshot -------------------------------------------------------------------------------------------------


def _check_snapshot(files: Files, tally: Tally) -> Generator[Finding, None, SnapshotState | None]:
    """The state that it gives; None if it cannot be used."""
    known = snapshot.generations(files)
    first = walscan.first_lsn(files)
    if not known:
        if first is not None and first > 1:
            what = f"the log begins with frame {first}, and there is no snapshot of what was before"
            yield Finding(MISSING, "snapshot.*", None, None, what, "Restore this shard from a backup.")
            return None
        return SnapshotState()
    path = snapshot.path_of(known[-1])
    try:
        data = read_whole(files, path)
    except OSError as error:
        yield unreadable(path, error)
        return None
    tally.files += 1
    tally.bytes += len(data)
    try:
        state = snapshot.decode_snapshot(data, known[-1])
    except BadSnapshot:
        yield _bad_snapshot(path, data)
        return None
    tally.checkpoints += state.group
    if not state.group:
        yield Finding(CORRUPT, path, state.end, None, "not even its first checkpoint can be read", RESTORE)
        return None
    if first is not None and first > state.commit.cut_lsn + 1:
        what = f"the last checkpoint cannot be read: this one ends at frame {state.commit.cut_lsn}, the log begins at "
        yield Finding(CORRUPT, path, state.end, None, f"{what}{first}", RESTORE)
        return None
    if state.end < len(data):
        yield Finding(
            TORN, path, state.end, len(data), "a checkpoint that was not finished",
            "Usual after a crash: the log still has all of it. The next start cuts it off.",
        )  # fmt: skip
    return state


def _bad_snapshot(path: str, data: bytes) -> Finding:
    offset, end = 0, HEADER_BYTES
    if header_checks(data):
        bad = (span[:2] for span in snapshot.scan(data) if span[2] is None)
        offset, end = next(bad, (HEADER_BYTES, len(data)))
    return Finding(CORRUPT, path, offset, end, "the checkpoints in it cannot be trusted", RESTORE)


def _load_topics(snap: SnapshotState, topics: dict[int, KnownTopic]) -> Iterator[Finding]:
    for topic_id, entry in snap.topics.items():
        try:
            topic, _ = snapshot.decode_topic(topic_id, entry, bytes(snap.keys.get(topic_id, b"")))
        except BadSnapshot as error:
            path = snapshot.path_of(snap.generation)
            what = f"the entry of topic {topic_id} checks, but cannot be read: {error.__cause__}"
            yield Finding(CORRUPT, path, None, None, what, RESTORE)
            continue
        topics[topic_id] = KnownTopic(topic)


# --- data files ---------------------------------------------------------------------------------------------------


def _data_paths(files: Files) -> list[str]:
    """Every file in the two directories, whether anybody refers to it or not."""
    found = [f"packs/{name}" for name in files.list("packs")]
    for owner in files.list("segments"):
        found += [f"segments/{owner}/{name}" for name in files.list(f"segments/{owner}")]
    return found


def _infos_by_header(files: Files) -> Iterator[DataFile]:
    """The data files as they describe themselves, for want of a snapshot that does."""
    for path in _data_paths(files):
        if path.endswith(".data"):
            file = files.open(path)
            header = datafile.decode_data_header(file.read_at(0, datafile.HEADER_BYTES))
            if header is not None:
                info = DataFile(header.file_id, header.kind, path, header.seed, header.topic_id)
                info.size = file.size()
                yield info
            file.close()


def _count_leftovers(files: Files, infos: list[DataFile]) -> int:
    named = {datafile.index_path(info.path) for info in infos} | {info.path for info in infos if not info.cold}
    temporary = [name for folder in (".", wal.DIRECTORY) for name in files.list(folder) if name.endswith(".tmp")]
    return len(set(_data_paths(files)) - named) + len(temporary) + max(0, len(snapshot.generations(files)) - 1)


def _check_cold(files: Files, cold: Files | None, infos: list[DataFile], tally: Tally, note: Note) -> Iterator[Finding]:
    tally.cold_segments += len(infos)
    if cold is None or not infos:
        return
    try:
        is_ours = read_whole(files, ID_PATH).startswith(read_whole(cold, OWNER_PATH))
    except OSError as error:
        raise CannotCheck(f"it cannot be told whose the cold directory is: {error}") from None
    if not is_ours:
        raise CannotCheck("the cold directory belongs to another data directory, as OWNER in it says")
    for info in infos:
        yield from DataFileCheck(files, info, tally, cold).run(note)
    tally.leftovers += len(set(_data_paths(cold)) - {info.path for info in infos})


# --- files without a checksum -------------------------------------------------------------------------------------


def _check_slots(files: Files, topics: dict[int, KnownTopic], tally: Tally) -> Iterator[Finding]:
    try:
        data = read_whole(files, slots.PATH)
    except FileNotFoundError:
        what, todo = "the marks of used slots are not there", "Restore this file from a backup before the next start."
        yield Finding(MISSING, slots.PATH, None, None, what, todo)
        return
    tally.files += 1
    if len(data) != SLOTS // 8:
        what = f"{len(data)} bytes instead of {SLOTS // 8}"
        yield Finding(CORRUPT, slots.PATH, None, None, what, "Restore this file from a backup before the next start.")
        return
    for topic in topics.values():
        slot = slot_of(topic.name)
        if not data[slot // 8] >> slot % 8 & 1 and not is_hidden_name(topic.name):
            what = f"slot {slot} is not marked, although topic {topic.name!r} is in it"
            todo = "Do not change the number of shards, and restore this file from a backup."
            yield Finding(CORRUPT, slots.PATH, slot // 8, slot // 8 + 1, what, todo)


def _check_register(files: Files, topics: dict[int, KnownTopic], damaged: bool, tally: Tally) -> Iterator[Finding]:
    """`damaged`: the log is known to lack something, so that heads above it are no news."""
    try:
        data = read_whole(files, REGISTER)
    except FileNotFoundError:
        todo = "The next start makes a new one, and reports the open ceilings of disk topics as lost."
        yield Finding(MISSING, REGISTER, None, None, "the head register is not there", todo)
        return
    tally.files += 1
    if len(data) % _CELL.size:
        what = f"{len(data)} bytes are no whole number of cells"
        yield Finding(CORRUPT, REGISTER, None, None, what, "The next start takes the cells that are whole.")
    if len(data) < _CELL.size or _CELL.unpack_from(data)[0] != boot_mark(files):
        return  # of another boot, or another machine: nobody believes it
    for topic in topics.values():
        at = topic.cell * _CELL.size
        if at + _CELL.size > len(data):
            what = f"the cell of topic {topic.name!r} is not there"
            todo = "The next start makes a new one. What this topic lost, if anything, is not reported."
            yield Finding(MISSING, REGISTER, at, at + _CELL.size, what, todo)
        elif (head := _CELL.unpack_from(data, at)[0]) == REMOVED_CELL:
            what = f"topic {topic.name!r} was removed, but the log does not say so"
            todo = "The frame that says it is damaged or gone, or this cell is. The next start removes the topic."
            yield Finding(CORRUPT, REGISTER, at, at + _CELL.size, what, todo)
        elif topic.durability == "fsync" and not (damaged or topic.derived) and head > topic.head_seq:
            what = f"topic {topic.name!r} was acked up to seq {head}, but the log gives {topic.head_seq}"
            todo = "The end of the log, or this cell, is not as written. Readers get a tombstone for the difference."
            yield Finding(CORRUPT, REGISTER, at, at + _CELL.size, what, todo)


def _check_quarantine(files: Files, tally: Tally) -> Iterator[Finding]:
    for name in files.list(walscan.QUARANTINE):
        if name.endswith(".tmp"):
            tally.leftovers += 1
            continue
        tally.files += 1
        path = f"{walscan.QUARANTINE}/{name}"
        match = walscan.QUARANTINE_NAME.fullmatch(name)
        what = "not a name that topics gives"
        if match is not None:
            number, low, high = (int(part) for part in match.groups())
            what = f"bytes {low} to {high} of {wal.file_path(number)}, set aside by an earlier start"
        todo = "Readers were told. Move the file away when you have seen to it; nothing reads it."
        yield Finding(QUARANTINED, path, None, None, what, todo)
