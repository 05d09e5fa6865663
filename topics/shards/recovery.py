"""Recovery: the newest snapshot, the data files it names, then the log above it, through the same `apply` as live
traffic. Ends with a store that is ready to serve.

Idempotent: until the last step nothing is changed that a second run would not change in the same way. A crash during
recovery leads to the same recovery again.
"""

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable

from topics import limits
from topics.clock import Clock
from topics.core import derivation, lifetimes
from topics.core.bits import span
from topics.core.chunk import Chunk, DataFile
from topics.core.events import (
    IDLE,
    Appended,
    CreatedAndAppended,
    Event,
    Marked,
    RangeLost,
    TopicCreated,
    TopicUpdated,
    WentIdle,
    decode_event,
)
from topics.core.loss import CORRUPT, CRASH
from topics.core.ranges import SeqRanges
from topics.core.state import ShardState, apply
from topics.core.topic import Topic
from topics.limits import Limits
from topics.shards import datafile, slots, snapshot, wal, walscan
from topics.shards.cold import ColdTier, read_cold_index
from topics.shards.engine import Engine
from topics.shards.files import Files, Register, boot_mark
from topics.shards.slots import UsedSlots
from topics.shards.snapshot import SnapshotState
from topics.shards.store import Store
from topics.shards.wal import WalWriter

log = logging.getLogger(__name__)
REGISTER = "heads.reg"
REGISTER_SPARE = 1024
# Where such a frame stands, the head of its topic is known: what is missing in front of it is a gap in the seqs.
TELLS_HEAD = (Appended, CreatedAndAppended, RangeLost, TopicCreated, TopicUpdated)

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
    report = walscan.WalReport(snap.commit.cut_lsn)
    touched = _lose_unreadable(state, unreadable)
    heads = {topic.id: topic.applied_lsn for topic in state.by_id.values()}
    _replay(files, state, report, heads, touched, lambda done, total: progress(0.2 + 0.8 * done / total))
    walscan.settle(files, report)
    _pass_over_ids(state, report)
    snapshot_log = snapshot.SnapshotLog(files, snap)
    _remove_litter(files, snap)

    register = files.map_register(REGISTER, state.next_cell + REGISTER_SPARE)
    state.boot = boot_mark(files)
    trusted = register.get(0) == state.boot
    marked = report.last_kind == IDLE or report.last_lsn == snap.commit.idle_lsn
    idle = marked and not report.has_lost_end
    missing = _count_missing(report, heads, bounds.batch_records)
    frames = _frames_in(_gaps(report))
    losses = list(_find_losses(state, register, missing, trusted=trusted, idle=idle, damaged_frames=frames))
    used = UsedSlots(files)
    writer = WalWriter(files, next_lsn=report.last_lsn + 1, next_number=report.next_number, file_bytes=wal_file_bytes)
    engine = Engine(state, register, clock, next_lsn=report.last_lsn + 1, used_slots=used.all(), idle=idle, wake=wake)
    store = Store(
        files, engine, writer, used, snapshot_log, snap.files.values(),
        snap.commit.next_file_id, report.files, bounds, cold,
    )  # fmt: skip
    _finish(store, snap, touched, losses)
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
    deleted = SeqRanges.decode(info.deleted)
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
    heads: dict[int, int],
    touched: set[int],
    progress: Callable[[int, int], None],
) -> None:
    """Apply every frame that stands. Note the ids of the topics they touch, and in `heads` the lsn of the last frame
    that tells where the head of a topic was."""
    state.replaying = True
    for found in walscan.read_log(files, report, progress):
        state.damaged = bool(report.damage)
        event = decode_event(found.kind, found.body)
        apply(state, event, found.lsn)
        for topic_id in _topics_of(event):
            touched.add(topic_id)
            if type(event) in TELLS_HEAD:
                heads[topic_id] = max(heads.get(topic_id, 0), found.lsn)
    state.replaying = False
    for topic in state.by_id.values():
        topic.published = True
        while topic.bury():
            pass


def _topics_of(event: Event) -> tuple[int, ...]:
    if type(event) is CreatedAndAppended:
        return (event.created.topic_id,)
    if type(event) is Marked:
        return tuple(mark.topic_id for mark in event.marks)
    assert type(event) is not CreatedAndAppended
    return () if type(event) is WentIdle else (event.topic_id,)  # type: ignore[union-attr]


def _pass_over_ids(state: ShardState, report: walscan.WalReport) -> None:
    """A damaged frame may have made a topic, whose id and epoch others still name."""
    damaged_frames = _frames_in(_gaps(report))
    state.next_topic_id += damaged_frames
    state.next_epoch += damaged_frames


def _gaps(report: walscan.WalReport) -> set[tuple[int, int]]:
    """The first and last lsn of each run of damaged frames: one may be in several places."""
    return {(damage.first_lsn, damage.last_lsn) for damage in report.damage}


def _frames_in(gaps: Iterable[tuple[int, int]]) -> int:
    return sum(last - first + 1 for first, last in gaps)


def _count_missing(report: walscan.WalReport, heads: dict[int, int], in_frame: int) -> Callable[[Topic], int]:
    """How many records of a topic there may have been in damaged frames, behind all that tells where its head was."""
    gaps = _gaps(report)
    return lambda topic: in_frame * _frames_in(gap for gap in gaps if gap[0] > heads.get(topic.id, 0))


def _find_losses(
    state: ShardState,
    register: Register,
    missing: Callable[[Topic], int],
    *,
    trusted: bool,
    idle: bool,
    damaged_frames: int,
) -> "list[RangeLost]":
    """What was acked and did not come back.

    The register tells exactly, unless the machine went down; then an open ceiling is all there is to go by, and a
    log that ends with an idle mark is known to be complete, but for what is damaged. An `fsync` topic has no ceiling:
    what damage can have taken from it at most is known by the number of frames. Any of them may also have raised the
    ceiling of a `disk` topic.
    """
    losses = []
    for topic in state.by_id.values():
        reason = CORRUPT if damaged_frames else CRASH
        known = register.get(topic.cell) if trusted and topic.cell < register.capacity() else 0
        durability = topic.config.durability
        last = known
        if not trusted and durability == "disk" and (not idle or missing(topic)):
            last = topic.ceiling + damaged_frames * limits.CEILING_AHEAD
        else:
            derivation.doubt(topic, state.boot)
        if not trusted and durability == "fsync" and topic.derived is None:
            last = topic.head_seq + missing(topic)
        fresh_epoch = 0
        if not trusted and durability in ("memory", "ephemeral"):  # the head may have gone back
            fresh_epoch = state.next_epoch
            state.next_epoch += 1
        first = topic.head_seq + 1
        if durability == "ephemeral":  # its deletes were not logged, so nothing of what came back can stand
            first, reason = _first_untold(topic), CRASH
        last = max(last, topic.head_seq)
        if topic.derived is not None and durability != "ephemeral":  # these were copies, perhaps: the source tells
            derivation.miss(topic, last)
            first = last + 1
        elif topic.derived is not None:
            topic.derived.filled(last)  # none of them come back
        if first <= last or fresh_epoch:
            losses.append(RangeLost(topic.id, first, last, reason, fresh_epoch))
    return losses


def _first_untold(topic: Topic) -> int:
    """The first seq that is live, or gone without a reason that readers are told; head_seq + 1 if there is none."""
    at = _floor(topic)
    while (hole := topic.holes.after(at - 1)) is not None and hole.first <= at:
        at = hole.last + 1
    return min(at, topic.earliest_seq)


# --- getting ready ------------------------------------------------------------------------------------------------


def _finish(store: Store, snap: SnapshotState, touched: set[int], losses: list[RangeLost]) -> None:
    """Log the losses, bring the register up to date, and note what the next checkpoint has to store."""
    engine, state = store.engine, store.engine.state
    for topic_id in touched | {loss.topic_id for loss in losses}:
        topic = state.by_id.get(topic_id)
        if topic is not None:
            topic.dirty = True
            engine.dirty.add(topic)
    engine.removed_topics = [topic_id for topic_id in snap.topics if topic_id not in state.by_id]
    for topic in state.by_id.values():
        if (topic.flips or (topic.derived is not None and topic.derived.missing)) and not topic.dirty:
            topic.dirty = True
            engine.dirty.add(topic)
    for loss in losses:
        engine.record_loss(state.by_id[loss.topic_id], loss)
    store.commit_all()
    if losses:  # and nothing is at risk again: the next power loss must not be told as one that took something
        engine.go_idle()
        store.commit_all()
    used = {topic.cell for topic in state.by_id.values()}
    state.free_cells = [cell for cell in range(1, state.next_cell) if cell not in used]
    for topic in state.by_id.values():
        engine.register.set(topic.cell, topic.head_seq)
    engine.register.set(0, state.boot)  # last: a mark over stale cells would make them believed


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
    for damage in report.damage:
        log.error(
            "log file %d is damaged between bytes %d and %d (frames %d to %d); the bytes are kept in quarantine",
            damage.file, damage.offset, damage.end, damage.first_lsn, damage.last_lsn,
        )  # fmt: skip
    lost = [loss for loss in losses if loss.first <= loss.last]
    if lost:
        log.warning("%d topics lost acked records that were not synced yet; their readers get a tombstone", len(lost))
