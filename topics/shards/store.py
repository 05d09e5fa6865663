"""A shard's storage, put together: engine, log, data files, snapshot. Synchronous; callers choose the threads.

`commit` belongs to the one committer thread, `checkpoint` steps run as checkpoint.py says, everything else in the loop.
"""

from collections.abc import Iterable, Sequence

from topics.core.block import BadBlock, Block
from topics.core.chunk import Chunk, DataFile
from topics.core.tags import Pattern
from topics.core.topic import Topic
from topics.limits import Limits
from topics.shards import datafile
from topics.shards.checkpoint import Checkpoint, Unneeded, is_unused
from topics.shards.cold import NOT_SET, ColdTier, ColdUnavailable, place_of
from topics.shards.engine import Engine
from topics.shards.files import Files
from topics.shards.handles import Handles
from topics.shards.match import MatchPlan, Packed
from topics.shards.slots import UsedSlots
from topics.shards.snapshot import SnapshotLog
from topics.shards.tailcache import TailCache
from topics.shards.unpacked import UnpackedBlocks
from topics.shards.wal import Frame, WalWriter


class Store:
    def __init__(
        self,
        files: Files,
        engine: Engine,
        writer: WalWriter,
        slots: UsedSlots,
        snapshot_log: SnapshotLog,
        data_files: Iterable[DataFile],
        next_file_id: int,
        old_wal: list[tuple[int, int]],
        bounds: Limits,
        cold: ColdTier | None = None,
    ) -> None:
        self.files = files
        self.engine = engine
        self.writer = writer
        self.slots = slots
        self.snapshot_log = snapshot_log
        self.data_files = {info.id: info for info in data_files}
        self.next_file_id = next_file_id
        self.handles = Handles(files)
        self.cache = TailCache()
        self.unpacked = UnpackedBlocks()
        self.cold = cold
        self.copied: list[DataFile] = []  # segments that the cold tier has, and the snapshot does not know of yet
        self.cold_litter: list[str] = []  # paths in the cold tier that nobody needs any more
        self._kept_hot: set[int] = set()
        self.bounds = bounds
        self.damaged_ranges = 0  # stretches of the log that recovery found unreadable
        self.under_way: Checkpoint | None = None
        self._old_wal = old_wal

    # --- the committer's thread -----------------------------------------------------------------------------------

    def write_group(self, frames: Sequence[Frame]) -> None:
        """Write frames; durable only after `sync_log`. OSError: the caller poisons the shard."""
        marks = {slot for frame in frames for slot in frame.slots}
        if marks:
            self.slots.mark(marks)
        self.writer.write(frames)

    def sync_log(self) -> int:
        """The lsn up to which everything is durable now. OSError: the caller poisons the shard."""
        self.writer.sync()
        return self.writer.synced_lsn

    def commit(self, frames: Sequence[Frame]) -> int:
        self.write_group(frames)
        return self.sync_log()

    # --- checkpoints ----------------------------------------------------------------------------------------------

    def begin_checkpoint(self, unneeded: Unneeded | None = None) -> Checkpoint:
        self.under_way = Checkpoint(self, self.bounds, unneeded)
        return self.under_way

    def checkpoint(self, unneeded: Unneeded | None = None) -> None:
        """A whole checkpoint in one go, for callers with nothing else to do."""
        work = self.begin_checkpoint(unneeded)
        for _ in work.capture():
            pass
        self.commit_all()
        work.write()
        for _ in work.install():
            pass
        self.forget(work)
        work.sweep()

    def has_unused_files(self) -> bool:
        """Whether there are data files that nobody needs any more, which the next checkpoint lets go."""
        return any(map(is_unused, self.data_files.values()))

    def forget(self, work: Checkpoint) -> None:
        """Drop files that the checkpoint retired or moved; in the loop, before `sweep` unlinks them."""
        self.under_way, self.engine.log.bytes_owed = None, 0
        for info in work.retired:
            self.data_files.pop(info.id, None)
            self.handles.drop(info)
            if info.cold:
                self.cold_litter.append(info.path)
        for info in work.moves:
            self.handles.drop(info)
        self.cache.let_go(work.moves)

    def take_copied(self, retired: Sequence[DataFile]) -> list[DataFile]:
        """The copies that a checkpoint may make count; those of segments that went meanwhile are litter."""
        copied, self.copied = self.copied, []
        gone = {info.id for info in retired}
        moves = []
        for info in copied:
            if info.id in self.data_files and info.id not in gone:
                moves.append(info)
            else:
                self.cold_litter.append(info.path)
        return moves

    def keep_hot(self, info: DataFile) -> None:
        """It cannot be moved; until the next start nobody tries again."""
        self._kept_hot.add(info.id)
        self.cold_litter.append(info.path)

    def is_kept_hot(self, info: DataFile) -> bool:
        topic = self.engine.state.by_id.get(info.topic_id)
        return info.id in self._kept_hot or topic is None or self.keeps_hot(topic)

    def keeps_hot(self, topic: Topic) -> bool:
        """What must be at hand whatever happens to the cold directory.

        That is what the shard keeps for itself, and queues, whose oldest records are the ones that are needed next.
        """
        return topic.hidden or topic.config.type == "queue"

    def take_trimmable(self, cut_lsn: int) -> list[int]:
        """Numbers of log files that hold no frame above `cut_lsn`."""
        numbers = []
        for files in (self._old_wal, self.writer.sealed):  # ascending; the committer may append to the second meanwhile
            while files and files[0][1] <= cut_lsn:
                numbers.append(files.pop(0)[0])
        return numbers

    def commit_all(self) -> None:
        """Commit what waits, in this thread."""
        while frames := self.engine.log.take():
            self.engine.durable(self.commit(frames))

    def close(self) -> None:
        self.writer.close()
        self.slots.close()
        self.snapshot_log.close()
        self.engine.register.close()

    def read_block(self, chunk: Chunk) -> Block:
        """The chunk's block, from its file if need be. It may block. Raises BadBlock, OSError or ColdUnavailable."""
        if chunk.block is not None:
            return chunk.block
        file = chunk.file
        assert file is not None
        if not file.cold:
            return datafile.decode_frame(self.handles.get(file).read_at(chunk.offset, chunk.length), file.seed)
        if self.cold is None:
            raise ColdUnavailable(NOT_SET)
        (block,) = self.cold.read_blocks([place_of(chunk)])
        if block is None:
            raise BadBlock("a block in the cold tier does not check")
        return block

    # --- tag deletes ----------------------------------------------------------------------------------------------

    def plan_match(self, topic: Topic, pattern: Pattern, before_seq: int | None) -> MatchPlan:
        """Everything a match delete must look at, as it is at this instant."""
        bound = topic.head_seq + 1 if before_seq is None else min(before_seq, topic.head_seq + 1)
        ended, growing = topic.split_tags()
        resident = list(growing.scan(pattern)) if growing is not None else []
        plan = MatchPlan(self.files, pattern, bound, resident, ended, self.cold)
        last: DataFile | None = None
        for chunk in topic.chunks:
            if chunk.first_seq >= bound:
                break
            file = chunk.file
            if file is None or file is last or not chunk.tagged or not chunk.live:
                continue
            if file.kind == datafile.SEGMENT:
                plan.segments.append(file)
                last = file
            else:
                plan.packed.append(Packed(chunk, chunk.offset, chunk.length, file, self.handles.get(file)))
        return plan
