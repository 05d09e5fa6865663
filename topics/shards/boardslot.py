"""A shard's slot on the board: its caps, what it holds, what its log has done, how far its replay is.

The slot outlives the process. Until replay is through, what an earlier life said it holds stands; it is still on disk.
"""

import trio

from topics.board import FSYNC_BOUNDS_US, PROGRESS_WHOLE, Board
from topics.shards.committer import Committer
from topics.shards.engine import Engine
from topics.shards.quota import BoardQuota
from topics.shards.store import Store

TICK_S = 0.1
SWEEP_S = 1.0  # if bytes are counted, what expired is let go this often
IDLE_SWEEP_S = 15.0  # and else this often, so that its files go although nobody touches the topic
BUCKETS = tuple(f"fsync_bucket_{n}" for n in range(len(FSYNC_BOUNDS_US) + 1))


class BoardSlot:
    def __init__(
        self, board: Board, index: int, *, max_topics: int = 0, max_bytes: int = 0, max_sessions: int = 0
    ) -> None:
        self._board = board
        self._index = index
        self._slot = board.shard(index)
        self._max_topics = max_topics
        self.max_bytes = max_bytes
        self._max_sessions = max_sessions
        self._quota: BoardQuota | None = None

    def set_progress(self, progress: float) -> None:
        """Also from the thread that replays: nobody else writes this cell."""
        self._slot.set("replay_progress", int(progress * PROGRESS_WHOLE))

    def open(self, engine: Engine) -> None:
        """Replay is through: tell what there is, and let the engine ask before it takes more."""
        caps = {"max_topics": self._max_topics, "max_bytes": self.max_bytes, "max_sessions": self._max_sessions}
        self._quota = engine.quota = BoardQuota(self._board, self._index, engine.holdings, **caps)
        self._quota.publish()
        self.set_progress(1.0)

    async def keep_up_to_date(self, store: Store, committer: Committer) -> None:
        """Until cancelled."""
        while True:
            self.publish(store, committer)
            await trio.sleep(TICK_S)

    def publish(self, store: Store, committer: Committer) -> None:
        """What is held, and the log's counters since this process started."""
        assert self._quota is not None
        self._quota.publish()
        slot, engine, writer, times = self._slot, store.engine, store.writer, committer.sync_times
        slot.set("wal_frames", engine.log.counters.frames)
        slot.set("wal_batches", committer.batches)
        slot.set("wal_fsyncs", times.count)
        slot.set("wal_bytes_written", writer.bytes_total)
        slot.set("wal_rotations", writer.rotations)
        slot.set("wal_queue_depth", engine.log.depth)
        slot.set("wal_queue_depth_peak", engine.log.counters.depth_peak)
        slot.set("wal_submit_full", engine.log.counters.refused)
        slot.set("wal_read_only", int(engine.poisoned is not None))
        slot.set("fsync_us_sum", times.sum_us)
        for name, count in zip(BUCKETS, times.buckets, strict=True):
            slot.set(name, count)
