"""Recovery: the newest snapshot, the data files it names, then the log above it, through the same `apply` as live
traffic. Ends with a store that is ready to serve.

Idempotent: until the last step nothing is changed that a second run would not change in the same way. A crash during
recovery leads to the same recovery again.
"""

import logging
from collections import defaultdict
from collections.abc import Callable
from itertools import islice

from topics import limits
from topics.clock import Clock
from topics.core import lifetimes
from topics.core.bits import span
from topics.core.chunk import Chunk, DataFile
from topics.core.events import (
    IDLE,
    RECOVERED,
    Appended,
    CreatedAndAppended,
    Event,
    Marked,
    RangeLost,
    Recovered,
    TopicRemoved,
    WentIdle,
    decode_event,
)
from topics.core.loss import CORRUPT
from topics.core.ranges import SeqRanges
from topics.core.state import ShardState, apply
from topics.core.topic import Topic
from topics.limits import Limits
from topics.shards import datafile, slots, snapshot, wal, walscan
from topics.shards.cold import ColdTier, read_cold_index
from topics.shards.engine import Engine
from topics.shards.files import Files, Register, boot_mark
from topics.shards.losses import Known, find_losses, find_removed
from topics.shards.slots import UsedSlots
from topics.shards.snapshot import SnapshotState
from topics.shards.store import Store
from topics.shards.wal import WalWriter

log = logging.getLogger(__name__)
REGISTER = "heads.reg"
REGISTER_SPARE = 1024
RANGES_LOGGED_MAX = 20  # damaged ranges that a start tells of one by one

Progress = Callable[[float], None]


def recover(
    files: Files,
    clock: Clock,
    bounds: Limits | None = None,
    *,
    progress: Progress = lambda done: None,
    wal_file_bytes: int = limits.WAL_FILE_BYTES,
    wake: Callable[[], None] = lambda: None,
    cold: ColdTier | None = None,
    keep_spent: bool = False,
) -> Store:
    """Bring the shard in this directory back, or start an empty one. With `keep_spent` topics keep what is dead
    and still stored, or died in the replay, until `Routers` says who may want it."""
    bounds = bounds or Limits()
    _make_directories(files)
    _leave_cache(files)
    snap = snapshot.read_snapshot(files)
    check_that_log_meets(files, snap)
    state, unflipped = _load_topics(snap)
    state.keeps_spent = keep_spent
    for topic in state.by_id.values():
        topic.spent = [] if keep_spent else None
    unreadable = _load_chunks(files, snap, state, unflipped, cold)
    progress(0.2)
    vouched = max((topic.applied_lsn for topic in state.by_id.values()), default=0)
    report = walscan.WalReport(snap.commit.cut_lsn, vouched)
    touched = _lose_unreadable(state, unreadable)
    known = Known(state)
    unstored = _replay(files, state, report, known, touched, lambda done, total: progress(0.2 + 0.8 * done / total))
    walscan.settle(files, report)
    known.pass_over_ids(state)
    snapshot_log = snapshot.SnapshotLog(files, snap)
    _remove_litter(files, snap)

    register = files.map_register(REGISTER, state.next_cell + REGISTER_SPARE)
    state.boot = boot_mark(files)
    trusted = register.get(0) == state.boot
    marked = report.last_kind in (IDLE, RECOVERED) or report.last_lsn == snap.commit.idle_lsn
    idle = marked and not report.has_lost_end
    removed = _drop_removed(state, register, trusted, report.next_lsn)
    losses = list(find_losses(state, register, known, trusted=trusted, idle=idle))
    used = UsedSlots(files)
    next_lsn = report.next_lsn
    writer = WalWriter(files, next_lsn=next_lsn, next_number=report.next_number, file_bytes=wal_file_bytes)
    engine = Engine(state, register, clock, next_lsn=next_lsn, used_slots=used.all(), idle=idle, wake=wake)
    engine.log.bytes_since_checkpoint = unstored
    store = Store(
        files, engine, writer, used, snapshot_log, snap.files.values(),
        snap.commit.next_file_id, report.files, bounds, cold,
    )  # fmt: skip
    found = None
    if losses or removed or known.is_damaged:
        gaps = [(gap.first_lsn, gap.last_lsn) for gap in known.gaps]
        found = Recovered(losses, state.next_topic_id, state.next_epoch, gaps, removed)
    _finish(store, snap, touched, found)
    store.damaged_ranges = len(report.damage)
    _report(report, losses)
    progress(1.0)
    return store


def _make_directories(files: Files) -> None:
    """Make their names durable, and those that an earlier process made but did not live to sync: they are built on."""
    for directory in (wal.DIRECTORY, "packs", "segments"):
        files.make_dir(directory)
    files.sync_dir(".")


def _leave_cache(files: Files) -> None:
    """Begin with what the disk has: the last process may have ended because a sync failed.

    The cache then shows bytes as written that never were, and everything built on them would be lost with them. Data
    files are not in question: one whose sync failed is in no snapshot, and flags whose sync failed are still owed.
    """
    paths = [wal.file_path(number) for number in walscan.list_files(files)]
    paths += [snapshot.path_of(generation) for generation in snapshot.generations(files)]
    paths += [slots.PATH] if files.exists(slots.PATH) else []
    for path in paths:
        file = files.open(path)
        try:
            file.sync()  # what a killed process has written is as good as ever
            file.drop_cache()
        finally:
            file.close()


# --- the snapshot -------------------------------------------------------------------------------------------------


def check_that_log_meets(files: Files, snap: SnapshotState) -> None:
    """Log files go only when a checkpoint covers them: a log that begins later says that the checkpoint is gone."""
    first = walscan.first_lsn(files)
    if snap.generation and first is not None and first > snap.commit.cut_lsn + 1:
        raise snapshot.BadSnapshot(
            f"{snapshot.path_of(snap.generation)} ends at frame {snap.commit.cut_lsn}, but the log begins at {first}: "
            "the last checkpoint cannot be read. Nothing was changed. Restore this shard from a backup."
        )


def _load_topics(snap: SnapshotState) -> tuple[ShardState, dict[int, SeqRanges]]:
    """The topics without their logs, and the deletes that their files may not show."""
    state = ShardState()
    unflipped: dict[int, SeqRanges] = {}
    for topic_id, entry in snap.topics.items():
        topic, unflipped[topic_id] = snapshot.decode_topic(topic_id, entry, bytes(snap.keys.get(topic_id, b"")))
        topic.published = True
        state.topics[topic.name] = topic
        state.by_id[topic_id] = topic
        state.keys += len(topic.keys) if topic.keys is not None else 0
    state.names.update(name for name, topic in state.topics.items() if not topic.hidden)
    commit = snap.commit
    state.next_topic_id, state.next_epoch = commit.next_topic_id, commit.next_epoch
    state.next_cell, state.now_ms = commit.next_cell, commit.now_ms
    return state, unflipped


def _load_chunks(
    files: Files, snap: SnapshotState, state: ShardState, unflipped: dict[int, SeqRanges], cold: ColdTier | None
) -> list[DataFile]:
    """Hang the stored blocks under their topics; the files of which some cannot be told or read any more.

    Of a cold file only what the data directory has is looked at: a shard starts without its cold directory.
    """
    found: dict[int, list[Chunk]] = defaultdict(list)
    unreadable = []
    for info in snap.files.values():
        if info.cold:
            unreadable += [info] if _load_cold(files, info, state, found, cold) else []
            continue
        try:
            handle = files.open(info.path)
        except FileNotFoundError:
            log.error("%s is missing; what only it held is reported to readers as lost", info.path)
            unreadable.append(info)
            continue
        try:
            index = datafile.read_index(files, info)
            unreadable += [info] if index.lost_bytes else []
            for entry, chunk in datafile.chunks_of(info, index):
                topic = state.by_id.get(entry.topic_id)
                if topic is not None and _counts(topic, chunk) and not _is_superseded(topic, info):
                    info.live += chunk.live
                    chunk.kill(datafile.read_flags(handle, chunk))
                    _lay_over(topic, chunk, unflipped[topic.id])
                    found[entry.topic_id].append(chunk)
        finally:
            handle.close()
    for topic_id, chunks in found.items():
        _attach(state.by_id[topic_id], chunks)
        lifetimes.recall(state.by_id[topic_id])
    return unreadable


def _load_cold(
    files: Files, info: DataFile, state: ShardState, found: dict[int, list[Chunk]], cold: ColdTier | None
) -> bool:
    """Whether some of its blocks cannot be told apart."""
    topic = state.by_id.get(info.topic_id)
    if topic is None:
        return False
    deleted = SeqRanges.decode(info.deleted) if info.deleted else SeqRanges()
    index = read_cold_index(files, info, cold)
    for _, chunk in datafile.chunks_of(info, index):
        if _counts(topic, chunk):
            info.live += chunk.live
            chunk.kill(deleted.bits(chunk.first_seq, len(chunk))[0])
            found[topic.id].append(chunk)
    return bool(index.lost_bytes)


def _lose_unreadable(state: ShardState, unreadable: list[DataFile]) -> set[int]:
    """Seqs that no block holds, in topics a damaged file may have held blocks of, are lost; the topics' ids."""
    touched = set()
    for info in unreadable:
        for topic in list(state.by_id.values()):
            concerned = topic.id == info.topic_id if info.kind == datafile.SEGMENT else topic.packs_from <= info.id
            if concerned:
                touched.add(topic.id)
                for first, last in _uncovered(topic):
                    topic.lose(first, last, CORRUPT)
    return touched


def _uncovered(topic: Topic) -> list[tuple[int, int]]:
    """Stretches between the floor and the head that no chunk covers."""
    gaps = []
    at = _floor(topic)
    for chunk in topic.chunks:
        if chunk.first_seq > at:
            gaps.append((at, chunk.first_seq - 1))
        at = chunk.last_seq + 1
    if at <= topic.head_seq:
        gaps.append((at, topic.head_seq))
    return gaps


def _floor(topic: Topic) -> int:
    return max(topic.evicted.floor, topic.delete_below)


def _counts(topic: Topic, chunk: Chunk) -> bool:
    """Whether something in it may be live, or wanted by a destination although it is dead."""
    return chunk.last_seq >= _floor(topic) or topic.spent is not None


def _is_superseded(topic: Topic, info: DataFile) -> bool:
    """Packs that others still need keep copies of blocks that were rewritten, and perhaps deleted since."""
    return info.kind == datafile.PACK and info.id < topic.packs_from


def _lay_over(topic: Topic, chunk: Chunk, deleted: SeqRanges) -> None:
    """Kill what the snapshot knows to be deleted. Its flags are owed again, even if they can be read: not all that can
    be read was synced by the process that wrote it."""
    mask, _ = deleted.bits(chunk.first_seq, len(chunk))
    if mask:
        chunk.kill(mask)
        topic.owe_flags(chunk)


def _attach(topic: Topic, chunks: list[Chunk]) -> None:
    """Take the chunks over in order. Where two files hold the same records the newer one counts: it was rewritten."""
    floor = _floor(topic)
    kept: list[Chunk] = []
    for chunk in sorted(chunks, key=lambda chunk: (chunk.first_seq, -_file_of(chunk).id)):
        while kept and kept[-1].last_seq >= chunk.first_seq and _file_of(kept[-1]).id < _file_of(chunk).id:
            _file_of(kept[-1]).live -= kept[-1].live
            kept.pop()
        if kept and kept[-1].last_seq >= chunk.first_seq:
            _file_of(chunk).live -= chunk.live
            continue
        kept.append(chunk)
    for chunk in kept:
        if chunk.first_seq < floor:
            chunk.kill(span(0, min(len(chunk), floor - chunk.first_seq)))
        for hole in topic.holes.within(chunk.first_seq, chunk.last_seq):
            low, high = max(0, hole.first - chunk.first_seq), min(len(chunk), hole.last - chunk.first_seq + 1)
            chunk.kill(span(low, high))
        if chunk.live:
            _file_of(chunk).chunks += 1
            topic.chunks.append(chunk)
            topic.count += chunk.live
            topic.bytes += chunk.live_bytes
        elif topic.spent is not None:
            _file_of(chunk).chunks += 1
            topic.spent.append(chunk)


def _file_of(chunk: Chunk) -> DataFile:
    assert chunk.file is not None
    return chunk.file


# --- the log ------------------------------------------------------------------------------------------------------


def _replay(
    files: Files,
    state: ShardState,
    report: walscan.WalReport,
    known: Known,
    touched: set[int],
    progress: Callable[[int, int], None],
) -> int:
    """Apply every frame that stands. Note the ids of the topics they touch, and what they tell about them.

    Returns how many bytes of the log they take: no checkpoint has them."""
    first_new = state.next_topic_id  # from this id on the log tells of each topic how it came to be
    size, state.replaying = 0, True
    for found in walscan.read_log(files, report, progress):
        state.damaged = bool(report.gaps)
        event = decode_event(found.kind, found.body)
        apply(state, event, found.lsn)
        known.learn(state, event, found.lsn)
        if type(event) is Appended and event.topic_id not in state.by_id and event.topic_id >= first_new:
            report.orphans.append((report.reading, found.offset, found.end))
        touched.update(_topics_of(event))
        size += wal.FRAME_BYTES + len(found.body)
    known.gaps_in(report)
    state.replaying = state.damaged = False
    for topic in state.by_id.values():
        topic.published = True
        _bury(topic)
    return size


def _drop_removed(state: ShardState, register: Register, trusted: bool, lsn: int) -> list[int]:
    """Topics that only damage has brought back go again."""
    removed = find_removed(state, register, trusted)
    for topic in [state.by_id[topic_id] for topic_id in removed]:
        apply(state, TopicRemoved(topic.id), lsn)
        _bury(topic)
    return removed


def _bury(topic: Topic) -> None:
    """All in one go: nobody is served yet."""
    while topic.bury():
        pass


def _topics_of(event: Event) -> list[int]:
    if type(event) is CreatedAndAppended:
        return [event.created.topic_id]
    if type(event) is Marked:
        return [mark.topic_id for mark in event.marks]
    if type(event) is Recovered:
        return [*(loss.topic_id for loss in event.losses), *event.removed]
    return [] if type(event) is WentIdle else [event.topic_id]  # type: ignore[union-attr]


# --- getting ready ------------------------------------------------------------------------------------------------


def _finish(store: Store, snap: SnapshotState, touched: set[int], found: Recovered | None) -> None:
    """Log what was found to be lost, bring the register up to date, and note what the next checkpoint has to store."""
    engine, state = store.engine, store.engine.state
    for topic_id in touched:
        topic = state.by_id.get(topic_id)
        if topic is not None:
            topic.dirty = True
            engine.dirty.add(topic)
    engine.removed_topics = [topic_id for topic_id in snap.topics if topic_id not in state.by_id]
    for topic in state.by_id.values():
        if (topic.flips or (topic.derived is not None and topic.derived.missing)) and not topic.dirty:
            topic.dirty = True
            engine.dirty.add(topic)
    if found is not None:
        _tell(engine, found)
        store.commit_all()
    used = {topic.cell for topic in state.by_id.values()}
    state.free_cells = [cell for cell in range(1, state.next_cell) if cell not in used]
    for topic in state.by_id.values():
        engine.register.set(topic.cell, topic.head_seq)
    engine.register.set(0, state.boot)  # last: a mark over stale cells would make them believed


def _tell(engine: Engine, found: Recovered) -> None:
    """Enter it in the log and in the state. It is an idle mark as well: the next power loss must not be told as one
    that took something."""
    by_id = engine.state.by_id
    before = [(topic, topic.count, topic.bytes) for topic in (by_id[loss.topic_id] for loss in found.losses)]
    engine.log.idle_lsn = engine.log.put(found)
    apply(engine.state, found, engine.log.idle_lsn)
    for topic, records, size in before:
        engine.note_change(topic, records, size)


def _remove_litter(files: Files, snap: SnapshotState) -> None:
    """Files that no snapshot refers to: a checkpoint that a crash cut short, or one whose sweep it cut short."""
    known = {datafile.index_path(info.path) for info in snap.files.values()}
    known |= {info.path for info in snap.files.values() if not info.cold}
    found = [f"packs/{name}" for name in files.list("packs")]
    for topic_dir in files.list("segments"):
        found += [f"segments/{topic_dir}/{name}" for name in files.list(f"segments/{topic_dir}")]
    for path in found:
        if path not in known:
            files.unlink(path)
    for topic_dir in files.list("segments"):
        files.remove_dir(f"segments/{topic_dir}")
    for generation in snapshot.generations(files)[:-1]:
        files.unlink(snapshot.path_of(generation))


def _report(report: walscan.WalReport, losses: list[RangeLost]) -> None:
    for damage in islice(report.damage, RANGES_LOGGED_MAX):
        frames = f"frames {damage.first_lsn} to {damage.last_lsn}"
        if damage.offset == damage.end:
            log.error("log file %d or its end is missing (%s)", damage.file, frames)
            continue
        log.error(
            "log file %d is damaged between bytes %d and %d (%s); the bytes are kept in quarantine",
            damage.file, damage.offset, damage.end, frames,
        )  # fmt: skip
    if len(report.damage) > RANGES_LOGGED_MAX:
        log.error("and %d more damaged ranges", len(report.damage) - RANGES_LOGGED_MAX)
    if report.orphans:
        log.error("%d writes of topics whose creation is damaged are kept in quarantine", len(report.orphans))
    lost = [loss for loss in losses if loss.first <= loss.last]
    if lost:
        log.warning("%d topics may have lost acked records; their readers get a tombstone", len(lost))
