"""The queue in front of the log: events become frames with consecutive lsns and wait for the committer."""

from collections import deque
from collections.abc import Callable

from topics import limits
from topics.core.events import APPENDED, Event, encode_event
from topics.shards.answers import HasTime
from topics.shards.wal import FRAME_BYTES, Frame


class Counters:
    """What the log has done since the process started."""

    def __init__(self) -> None:
        self.frames = 0
        self.appends = 0
        self.depth_peak = 0
        self.refused = 0


class LogQueue:
    def __init__(self, next_lsn: int, *, idle: bool = False, wake: Callable[[], None] = lambda: None) -> None:
        self.counters = Counters()
        self.synced_lsn = next_lsn - 1  # everything up to here is on disk
        self.durable_lsn = next_lsn - 1  # everything up to here is on disk and applied: never ahead of the other
        self.idle_lsn = next_lsn - 1 if idle else -1  # the newest idle mark
        self.bytes = 0  # waiting
        self.frame_bytes = 0  # of all frames since the process started, as they stand in the log
        self.bytes_since_checkpoint = 0  # since the last one began
        self.bytes_owed = 0  # of checkpoints that have failed, until one succeeds
        self._next_lsn = next_lsn
        self._frames: deque[Frame] = deque()
        self._wake = wake
        self._for_sync: deque[tuple[int, Callable[[], None]]] = deque()

    @property
    def ends_idle(self) -> bool:
        """The last frame is a mark that nothing acked is at risk."""
        return self.last_lsn == self.idle_lsn

    @property
    def last_lsn(self) -> int:
        """The lsn of the newest frame, durable or not."""
        return self._next_lsn - 1

    @property
    def depth(self) -> int:
        return len(self._frames)

    @property
    def settled(self) -> bool:
        """Whether the log ends with an idle mark: the next write that is acked early must wait for its own sync."""
        return self.synced_lsn <= self.idle_lsn

    @property
    def unstored(self) -> int:
        """What is logged and waits for the next checkpoint: this much is in memory, beside what one is storing now."""
        return self.bytes_owed + self.bytes_since_checkpoint

    def has_room(self, size: int) -> bool:
        """Whether a write may come: neither the queue nor what no checkpoint has stored yet grows without bound."""
        if (
            self.bytes + size <= limits.WAL_QUEUE_BYTES_MAX
            and len(self._frames) < limits.WAL_QUEUE_FRAMES_MAX
            and self.unstored <= limits.UNSTORED_BYTES_MAX
        ):
            return True
        self.counters.refused += 1
        return False

    @property
    def crowded(self) -> bool:
        """Half full or more. When it is not, any write has room."""
        return (
            self.bytes * 2 >= limits.WAL_QUEUE_BYTES_MAX
            or len(self._frames) * 2 >= limits.WAL_QUEUE_FRAMES_MAX
            or self.unstored * 2 >= limits.UNSTORED_BYTES_MAX
        )

    def put(self, event: Event, slots: tuple[int, ...] = ()) -> int:
        """Queue an event; its lsn. `slots` are marked used before the frame is written."""
        kind, body = encode_event(event)
        lsn = self._next_lsn
        self._next_lsn += 1
        size = sum(map(len, body))
        self._frames.append(Frame(lsn, kind, body, size, slots))
        self.bytes += size
        self.frame_bytes += FRAME_BYTES + size + -size % 8
        self.bytes_since_checkpoint += size + 48
        counters = self.counters
        counters.frames += 1
        counters.appends += kind == APPENDED
        if len(self._frames) > counters.depth_peak:
            counters.depth_peak = len(self._frames)
        self._wake()
        return lsn

    def take(self) -> list[Frame]:
        """All frames that wait, for one write and one sync."""
        frames = list(self._frames)
        self._frames.clear()
        self.bytes = 0
        return frames

    def when_synced(self, action: Callable[[], None]) -> None:
        """Call back once everything that is in the log by now is durable. It does not hurry the sync."""
        self._for_sync.append((self.last_lsn, action))

    def applied_below(self, lsn: int, has_time: HasTime) -> bool:
        """What is on disk and below `lsn` is applied; wake those who wait for that, one in any case. Whether that is
        all there is."""
        self.durable_lsn = max(self.durable_lsn, min(lsn - 1, self.synced_lsn))
        waiting = self._for_sync
        while waiting and waiting[0][0] <= self.durable_lsn:
            waiting.popleft()[1]()
            if not has_time(0):
                break
        return self.durable_lsn == self.synced_lsn and not (waiting and waiting[0][0] <= self.durable_lsn)
