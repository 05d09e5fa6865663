"""Checkpoints: move what the log holds into data files, so that the log can be cut.

In the loop, `capture` notes each dirty topic at one instant (its scalars and its chunks that have no segment yet;
from then on those chunks do not change). In a thread, `write` stores blocks, appends to the snapshot and flips delete
flags, in that order, each synced before the next. Back in the loop, `install` points the topics at the files. Last,
`sweep` retires log files and data files that nothing needs.

The snapshot never runs ahead of the log: `write` may begin when the log is durable up to `needs_lsn`. And flags never
run ahead of the snapshot, or a replay from an older one would count records that were live then as dead, and evict
others than it did. Until its flags are synced, a delete stands in its topic's snapshot entry.

A crash before the snapshot's commit leaves files nobody refers to (recovery removes them) and the whole log; after
it, the new state. Each topic carries the lsn up to which it was captured, so frames above the cut are replayed only
where they are news.

Segments that were copied to the cold tier (relocator.py) become cold with the commit, and their hot files go in the
sweep. Deletes in a cold segment are part of the commit instead of flags (moves.py).

A source of routers keeps what is dead until its destinations have stored their copies (remains.py). What a destination
may still want is stored like what is alive, with all its flags set, and found again by recovery.

Small topics share one pack per checkpoint. A topic gets a segment of its own when it has a segment's worth of
records or PACK_TOPIC_BYTES. Blocks that trickle into many packs are rewritten together now and then.
"""

import logging
import math
import os
from collections import defaultdict
from collections.abc import Iterator
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING

import msgspec

from topics import limits
from topics.aside import let_go
from topics.core.bits import span
from topics.core.blockform import flags_from_mask
from topics.core.chunk import Chunk, DataFile
from topics.core.keyruns import Run
from topics.core.ranges import SeqRanges
from topics.core.topic import Topic
from topics.limits import Limits
from topics.shards import datafile, snapshot, space, wal
from topics.shards.captures import Capture, Output, Source
from topics.shards.datafile import PACK, SEGMENT, Entry, Stored
from topics.shards.files import File, Files
from topics.shards.install import install
from topics.shards.moves import ColdDeletes
from topics.shards.regroup import coalesced, split
from topics.shards.removal import remove_blocks, remove_files

if TYPE_CHECKING:
    from topics.shards.store import Store

log = logging.getLogger(__name__)
Unneeded = list[tuple[Topic, list[Chunk]]]  # dead chunks of sources that no destination will want (remains.py)
PACK_CHUNKS_MAX = 64  # chunks of one topic in packs before they are rewritten as one run
PACKS_MAX = 32  # packs of a shard before the emptiest are merged
FLIP_STEP = 64  # chunks whose delete flags are seen to before others get their turn
PACK_MERGE_BYTES = 8 * limits.MIB  # what one checkpoint rewrites at most to merge packs
_first_seq = attrgetter("first_seq")


class Flip(msgspec.Struct):
    """Delete flags of one stored chunk, as they are at capture."""

    chunk: Chunk
    dead: int
    handle: File | None  # None in the cold tier: the commit has them
    done: bool = False


class Checkpoint:
    """One checkpoint, start to end."""

    def __init__(self, store: "Store", bounds: Limits, unneeded: Unneeded | None) -> None:
        """Other dead chunks of sources are stored; all may go if there are no sources, and `unneeded` is none."""
        engine = store.engine
        self._store = store
        self._bounds = bounds
        self.dirty, engine.dirty = engine.dirty, set()
        self.removed, engine.removed_topics = engine.removed_topics, []
        self.captures: list[Capture] = []
        self._behind: list[Capture] = []  # those with delete flags to write
        self.flips: dict[Topic, list[Flip]] = {}
        self.commit = snapshot.Commit()
        self.commit.cut_lsn = engine.log.durable_lsn  # everything up to here is applied
        self.retired: list[DataFile] = []
        self.moves: list[DataFile] = []  # segments that are cold from the commit on
        self._cold_deletes = ColdDeletes()
        self._unneeded = unneeded  # dead chunks that no destination needs once this is done
        self._leaving: set[int] = set()
        self._unused: set[int] = set()  # files that nobody needed when the capture began
        self.committing = False  # a failure now leaves the snapshot in doubt
        self.needs_lsn = 0  # the log must be durable up to here before `write`
        self.log_bytes, engine.log.bytes_since_checkpoint = engine.log.unstored, 0
        self.size = space.stored_size(self.log_bytes)  # of what it writes, about
        free = math.inf if engine.space_bytes is None else engine.space_bytes
        self._room = free - limits.SPACE_SHORT_BYTES  # for what is stored already and would be written anew

    # --- in the loop ----------------------------------------------------------------------------------------------

    def capture(self) -> Iterator[None]:
        """Capture every dirty topic, each at one instant; the caller may do other things between two of them."""
        state = self._store.engine.state
        self.commit.began_ms = state.now_ms
        self._unused = {info.id for info in self._unused_files()}
        self._sparse = self._sparse_packs()
        others: list[Topic] = []
        yield from self._add_topics_of_sparse_packs(others)
        if self._unneeded is None:
            self._unneeded = [(topic, list(topic.spent)) for topic in chain(self.dirty, others) if topic.spent]
        self._leaving = {id(chunk) for _, chunks in self._unneeded for chunk in chunks}
        for topic in chain(self.dirty, others):
            if topic.id in state.by_id:  # else the log tells that it was removed
                self._capture(topic)
            yield
        for capture in self._behind:
            yield from self._take_flips(capture)
        commit = self.commit
        commit.next_topic_id, commit.next_epoch = state.next_topic_id, state.next_epoch
        commit.next_cell, commit.now_ms = state.next_cell, state.now_ms
        commit.removed_topics = self.removed
        commit.idle_lsn = self._store.engine.log.idle_lsn
        self.retired = [info for info in self._unused_files() if self._may_go(info)]
        commit.removed_files = [info.id for info in self.retired]
        self.moves = self._store.take_copied(self.retired)

    def _unused_files(self) -> list[DataFile]:
        """As `is_unused` tells. All at one instant, of many thousands."""
        return [info for info in self._store.data_files.values() if not (info.live or info.chunks)]

    def _may_go(self, info: DataFile) -> bool:
        """An unused file may go only together with the reason why nobody needs it.

        That reason is in this checkpoint if the file was unused when it began: the topics concerned were dirty. What
        became unused during the capture is judged by its one topic: captured, and not changed since.
        """
        if info.id in self._unused:
            return True
        owner = self._store.engine.state.by_id.get(info.topic_id)
        return info.kind == SEGMENT and owner is not None and not owner.dirty

    def _capture(self, topic: Topic) -> None:
        """All of one instant, and quick however many records there are."""
        topic.dirty = False
        if not topic.published:  # its creation is not durable yet
            self._store.engine.dirty.add(topic)
            topic.dirty = True
            return
        flips = [(chunk, chunk.dead) for chunk in topic.flips or ()]
        if flips:
            topic.prune()  # a stored chunk without a live record no longer holds its file
            self._store.engine.graves.note(topic)
        sources, segment, whole = self._sources(topic)
        if sources:
            topic.close_tags()
        if sources and topic.chunks:
            topic.chunks[-1].open = False
        packs_from = self._store.next_file_id if whole else topic.packs_from
        entry = snapshot.encode_topic(topic, packs_from)
        last_seq = topic.resident_from - 1 if topic.resident_from else topic.head_seq
        capture = Capture(topic, entry, sources, last_seq, segment, packs_from, _take_keys(topic), flips)
        topic.flips = None  # not before: whatever fails until here must leave them owed
        self.captures.append(capture)
        if flips:
            self._behind.append(capture)
        self.needs_lsn = max(self.needs_lsn, topic.applied_lsn)

    def _is_stored(self, chunk: Chunk) -> bool:
        """Whether its file stays for now: a chunk that is dead as a whole still stands in it."""
        return chunk.file is not None and chunk.file.id in self._store.data_files and chunk.file.id not in self._unused

    def _take_flips(self, capture: Capture) -> Iterator[None]:
        """Only those in files that stay."""
        flips = self.flips[capture.topic] = []
        for index, (chunk, dead) in enumerate(capture.flips):
            if self._is_stored(chunk):
                flips.append(self._flip_of(chunk, dead))
            if index % FLIP_STEP == FLIP_STEP - 1:
                yield

    def _flip_of(self, chunk: Chunk, dead: int) -> Flip:
        file = chunk.file
        assert file is not None
        self._cold_deletes.note(file, chunk.first_seq, dead)
        return Flip(chunk, dead, None if file.cold else self._store.handles.get(file))

    def _sources(self, topic: Topic) -> tuple[list[Source], bool, bool]:
        """The chunks to write: those that are only in memory, or the whole unsealed end of the log.

        Also whether they make up a segment, and whether they are the whole end, which no older pack holds then.
        """
        unsealed: list[Chunk] = []
        for chunk in reversed(topic.logged_chunks()):
            if chunk.file is not None and chunk.file.kind == SEGMENT:
                if not topic.refilled:
                    break
                continue
            if chunk.live or topic.spent is not None:
                unsealed.append(chunk)
        unsealed.reverse()
        if topic.spent:
            dead = [chunk for chunk in topic.spent if self._is_kept(topic, chunk)]
            unsealed = sorted(unsealed + dead, key=_first_seq)
        fresh = [chunk for chunk in unsealed if chunk.file is None]
        segment = self._fills_segment(unsealed) or (bool(unsealed) and self._aged(topic, unsealed[0]))
        if not segment and len(unsealed) - len(fresh) < PACK_CHUNKS_MAX and not self._rewrites(unsealed):
            return self._sources_of(topic, fresh), False, False
        again = sum(chunk.length for chunk in unsealed if chunk.file is not None)
        if again > self._room:  # that can wait, and what is admitted cannot
            return self._sources_of(topic, fresh), False, False
        self._room -= again
        self.size += again
        return self._sources_of(topic, unsealed), segment, True

    def _fills_segment(self, chunks: list[Chunk]) -> bool:
        """Whether they are worth a segment of their own. No need to add up what is far more than that."""
        records, size = self._bounds.segment_events, min(limits.PACK_TOPIC_BYTES, self._bounds.segment_bytes)
        for chunk in chunks:
            records -= len(chunk)
            size -= sum(chunk.sizes)
            if records <= 0 or size <= 0:
                return True
        return False

    def _sources_of(self, topic: Topic, chunks: list[Chunk]) -> list[Source]:
        spent = {id(chunk) for chunk in topic.spent or ()}  # all dead, although nobody wrote that down one by one
        return [self._source(chunk, span(0, len(chunk)) if id(chunk) in spent else chunk.dead) for chunk in chunks]

    def _is_kept(self, topic: Topic, chunk: Chunk) -> bool:
        """Whether a dead chunk is to be stored with those of the unsealed end: a destination may want it."""
        sealed = chunk.file is not None and chunk.file.kind == SEGMENT
        logged = not topic.resident_from or chunk.last_seq < topic.resident_from
        return logged and not sealed and id(chunk) not in self._leaving

    def _aged(self, topic: Topic, oldest: Chunk) -> bool:
        """A topic that already has segments closes its unsealed end after the segment age."""
        first = topic.chunks[0].file if topic.chunks else None
        grown = first is not None and first.kind == SEGMENT
        return grown and self._store.engine.state.now_ms - oldest.base_ts > self._bounds.segment_age_ms

    def _rewrites(self, chunks: list[Chunk]) -> bool:
        return any(chunk.file is not None and chunk.file.id in self._sparse for chunk in chunks)

    def _source(self, chunk: Chunk, dead: int) -> Source:
        handle = None
        if chunk.block is None:
            assert chunk.file is not None
            handle = self._store.handles.get(chunk.file)
        return Source(chunk, chunk.block, dead, handle)

    def _sparse_packs(self) -> set[int]:
        """When packs pile up, the emptiest ones: what they still hold is stored anew, so that they can go."""
        packs = [info for info in self._store.data_files.values() if info.kind == PACK and info.chunks]
        sparse: set[int] = set()
        budget = PACK_MERGE_BYTES
        for info in sorted(packs, key=lambda info: info.size) if len(packs) > PACKS_MAX else ():
            if len(sparse) >= len(packs) // 2 or info.size > budget:
                break
            sparse.add(info.id)
            budget -= info.size
        return sparse

    def _add_topics_of_sparse_packs(self, others: list[Topic]) -> Iterator[None]:
        """They are captured, too. All topics are looked at for that, but not if there is no such pack."""
        for topic in list(self._store.engine.state.by_id.values()) if self._sparse else ():
            if topic not in self.dirty and topic.published and self._rewrites(topic.chunks):
                others.append(topic)
            yield

    # --- in a thread ----------------------------------------------------------------------------------------------

    def write(self) -> None:
        """Make it durable. After an OSError `abandon` it, or, if `committing`, restart the shard from disk."""
        assert self._store.engine.log.durable_lsn >= self.needs_lsn
        files = self._store.files
        packed: list[tuple[Capture, Stored]] = []
        for capture in self.captures:
            blocks = coalesced(capture)
            if capture.segment:
                blocks = self._write_segments(files, capture, blocks)
            packed += [(capture, stored) for stored in blocks]
        if packed:
            self._write_pack(files, packed)
            let_go(packed)
        self._move()
        self.commit.next_file_id = self._store.next_file_id
        try:
            keys = [(c.topic.id, run.encode()) for c in self.captures for run in c.keys]
            self._store.snapshot_log.commit(((c.topic.id, self._entry_of(c)) for c in self.captures), self.commit, keys)
        finally:
            self.committing = self._store.snapshot_log.in_doubt
        for capture in self.captures:
            while capture.keys:
                capture.keys.pop()  # forgotten meanwhile, they would all be freed at once, in the loop
        self._flip()

    def _entry_of(self, capture: Capture) -> bytes:
        flips = [flip for flip in self.flips.get(capture.topic, ()) if flip.handle is not None]
        if not flips:
            return capture.entry
        flips.sort(key=lambda flip: flip.chunk.first_seq)
        unflipped = SeqRanges.from_masks((flip.chunk.first_seq, flip.dead) for flip in flips)
        return snapshot.lay_over(capture.entry, unflipped)

    def _write_segments(self, files: Files, capture: Capture, blocks: list[Stored]) -> list[Stored]:
        """Store full segments; what is left over and small goes to the pack."""
        topic_id = capture.topic.id
        for index, (group, full) in enumerate(split(blocks, self._bounds)):
            size = sum(len(stored.block.text) for stored in group)
            if index and not full and size < limits.PACK_TOPIC_BYTES:
                return group
            directory = f"segments/{topic_id}"
            files.make_dir(directory)
            path = f"{directory}/seg-{group[0].block.first_seq:020d}.data"
            self._store_file(files, SEGMENT, path, topic_id, [(capture, stored) for stored in group])
            files.sync_dir(directory)
            files.sync_dir("segments")
        return []

    def _write_pack(self, files: Files, packed: list[tuple[Capture, Stored]]) -> None:
        files.make_dir("packs")
        path = f"packs/pack-{self._store.next_file_id:010d}.data"
        self._store_file(files, PACK, path, 0, packed)
        files.sync_dir("packs")
        files.sync_dir(".")

    def _store_file(
        self, files: Files, kind: str, path: str, topic_id: int, items: list[tuple[Capture, Stored]]
    ) -> None:
        info = DataFile(self._store.next_file_id, kind, path, int.from_bytes(os.urandom(8), "little"), topic_id)
        self._store.next_file_id += 1
        self.commit.added.append(info)  # before it is there: `remove_litter` finds what a failure leaves of it
        entries = datafile.write_data_file(files, info, [stored for _, stored in items])
        for (capture, stored), entry in zip(items, entries, strict=True):
            capture.outputs.append(Output(_chunk_of(stored, entry), stored.dead, info))
        let_go(entries)

    def _move(self) -> None:
        """What the commit says about cold segments. One whose flags cannot be read stays hot."""
        for info in list(self.moves):
            try:
                self.commit.changed.append(self._cold_deletes.move(self._store.files, info))
            except OSError as error:
                log.warning("%s stays in the data directory: %s", info.path, error)
                self.moves.remove(info)
                self._store.keep_hot(info)
        self.commit.changed += self._cold_deletes.changed()

    def _flip(self) -> None:
        """Write delete flags in place, then sync each touched file once. If that fails the snapshot still knows."""
        by_file: dict[int, list[Flip]] = defaultdict(list)
        for flip in chain.from_iterable(self.flips.values()):
            flip.done = flip.handle is None
            if not flip.done:
                by_file[id(flip.handle)].append(flip)
        for flips in by_file.values():
            handle = flips[0].handle
            assert handle is not None
            try:
                for flip in flips:
                    chunk, n = flip.chunk, len(flip.chunk)
                    handle.write_at(chunk.offset + chunk.length - n, [flags_from_mask(flip.dead, n)])
                handle.sync()
            except OSError as error:
                log.warning("delete flags could not be written, the next checkpoint tries again: %s", error)
                continue
            for flip in flips:
                flip.done = True

    # --- in the loop again ----------------------------------------------------------------------------------------

    def install(self) -> Iterator[None]:
        """The snapshot is durable: readers use the files from now on."""
        store = self._store
        for info in self.commit.added:
            store.data_files[info.id] = info
        for twin in self.commit.changed:
            info = store.data_files[twin.id]
            info.cold, info.deleted = True, twin.deleted
        for topic, flips in self.flips.items():
            yield from _settle_flips(store, topic, flips)
        self._behind.clear()
        self.captures.reverse()
        while self.captures:  # each goes when it is done: all of them at once would take longer than anything here
            capture = self.captures.pop()
            if store.engine.state.by_id.get(capture.topic.id) is capture.topic:
                capture.topic.packs_from = capture.packs_from
                if capture.sources:
                    yield from install(store, capture)
            yield
        for topic, chunks in self._unneeded or ():
            topic.let_go(chunks)
            store.engine.graves.note(topic)
            yield

    def abandon(self) -> Iterator[None]:
        """Nothing happened: everything captured is still dirty. No other checkpoint may begin before this is done, and
        what was written removed (`remove_litter`). A crash before leaves the log, which has all of it."""
        engine, self._store.under_way = self._store.engine, None
        engine.log.bytes_owed = self.log_bytes
        engine.removed_topics = self.removed + engine.removed_topics
        self._store.copied += self.moves
        for topic in self.dirty:
            if topic.id in engine.state.by_id:
                topic.dirty = True
                engine.dirty.add(topic)
            yield
        self._behind.clear()
        while self.captures:  # each goes when it is done, as in `install`
            yield from self._give_back(self.captures.pop())

    def _give_back(self, capture: Capture) -> Iterator[None]:
        """What was deleted meanwhile is owed with the rest: until now the chunk counted as seen to."""
        if capture.keys and capture.topic.keys is not None:
            capture.topic.keys.give_back(capture.keys)
        for index, (chunk, _) in enumerate(capture.flips):
            if self._is_stored(chunk):
                _owe_flags(self._store, capture.topic, chunk)
            if index % FLIP_STEP == FLIP_STEP - 1:
                yield
        yield

    # --- in a thread again ----------------------------------------------------------------------------------------

    def remove_litter(self) -> None:
        """After `abandon`: data files that nobody will refer to."""
        remove_files(self._store.files, self.commit.added)

    def sweep(self) -> None:
        """Retire what the snapshot no longer refers to. A crash here leaves litter that recovery removes."""
        files = self._store.files
        remove_files(files, self.retired)
        remove_blocks(files, self.moves)
        for number in self._store.take_trimmable(self.commit.cut_lsn):
            try:
                wal.retire(files, number)
            except OSError as error:
                log.warning("a log file that is no longer needed stays: %s", error)


def is_unused(info: DataFile) -> bool:
    return not info.live and not info.chunks


def _chunk_of(stored: Stored, entry: Entry) -> Chunk:
    """The resident side of a block that was just written. It gets its file when it takes its place."""
    block = stored.block
    chunk = Chunk(block.first_seq, block.base_ts, block.ts, block.sizes())
    chunk.block = block
    chunk.offset, chunk.length = entry.offset, entry.frame_len
    chunk.tagged = bool(block.tags)
    chunk.take_extras(block)
    return chunk


def _take_keys(topic: Topic) -> list[Run]:
    """Not those of records that only the memory has: a crash takes both."""
    return topic.keys.take_fresh(topic.resident_from or None) if topic.keys is not None else []


def _settle_flips(store: "Store", topic: Topic, flips: list[Flip]) -> Iterator[None]:
    """What was deleted meanwhile, or could not be written, is owed to the next checkpoint."""
    for index, flip in enumerate(flips):
        flip.chunk.flags_dirty = False
        if not flip.done or flip.dead != flip.chunk.dead:
            _owe_flags(store, topic, flip.chunk)
        if index % FLIP_STEP == FLIP_STEP - 1:
            yield


def _owe_flags(store: "Store", topic: Topic, chunk: Chunk) -> None:
    """The next checkpoint of the topic writes the chunk's flags again."""
    if topic.id not in store.engine.state.by_id:
        return
    topic.owe_flags(chunk)
    if not topic.dirty:
        topic.dirty = True
        store.engine.dirty.add(topic)
