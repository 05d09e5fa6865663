"""What is let in: caps that hold over all shards, on topics, the bytes they keep and watch sessions; and the refusals.

The engine asks before it lets a topic or a write in (`admit`); nothing is ever given back by hand. What a shard holds
is what its state says, and every admission and every tick of `Publisher` writes that to the shard's slot on the board.
So a slot cannot leak: a write that failed, a topic that was removed, a process that was killed, all are right again at
the next look. While a shard is down its slot stands as it was; after recovery it is set from what came back.

An admission is exact because it happens under the board's lock: look at all slots, refuse or bump the own one. What
was admitted but is not applied yet counts in full. A refusal costs nothing and changes nothing.
"""

from topics import errors
from topics.board import Board
from topics.core.events import Appended
from topics.core.names import is_hidden_name
from topics.core.state import ShardState
from topics.core.topic import Topic
from topics.errors import TopicsError
from topics.shards.files import Register

RETRY_AFTER_MS = 1000


class Holdings:
    """What a shard holds, as running sums. The engine keeps them right at every change of a topic.

    Hidden topics do not count: they belong to the server, not to those whose topics are capped.
    """

    def __init__(self, state: ShardState) -> None:
        self._names = state.names
        topics = [topic for topic in state.by_id.values() if not topic.hidden]
        self.records = sum(topic.count for topic in topics)
        self.bytes = sum(topic.bytes for topic in topics)
        self.sessions = 0  # watch sessions, also those on their way to disk
        self.routers = 0
        self.sessions_leaving = 0  # removed, but not durably yet
        self.pending_bytes = 0  # of writes that were admitted and wait for their sync

    @property
    def topics(self) -> int:
        return len(self._names)

    def moved(self, topic: Topic, records: int, size: int) -> None:
        """The topic held `records` and `size` before; now it holds what it says."""
        if not topic.hidden:
            self.records += topic.count - records
            self.bytes += topic.bytes - size

    def pended(self, topic: Topic, size: int) -> None:
        """A write of that size waits for its sync; negative: no more."""
        if not topic.hidden:
            self.pending_bytes += size


class Quota:
    """No caps: a shard on its own."""

    def admit(self, new_topics: int, topic: Topic | None = None, write: Appended | None = None) -> None:
        """May `new_topics` be created and `write` go to `topic`? Raises `throttled`, and then nothing was counted.

        To be called when nothing else can refuse any more, and followed at once by what was admitted.
        """

    def admit_topic(self, name: str) -> None:
        """As `admit`, for a topic without records."""
        if not is_hidden_name(name):
            self.admit(1)

    def admit_session(self) -> None:
        """May one more watch session be created?"""

    def publish(self) -> None:
        """Tell the others what this shard holds now."""


class BoardQuota(Quota):
    """Caps over all shards of a board; 0 is off. `held` is this shard's truth."""

    def __init__(
        self,
        board: Board,
        index: int,
        held: Holdings,
        *,
        max_topics: int = 0,
        max_bytes: int = 0,
        max_sessions: int = 0,
    ) -> None:
        self._board = board
        self._slot = board.shard(index)
        self._held = held
        self._max_topics = max_topics
        self._max_bytes = max_bytes
        self._max_sessions = max_sessions
        self._complete = False

    def admit(self, new_topics: int, topic: Topic | None = None, write: Appended | None = None) -> None:
        if topic is not None and topic.hidden:
            return
        size = growth = 0
        if self._max_bytes and write is not None:
            size = write.size
            growth = grows_by(topic, write.count, size)
        counts_topics = new_topics > 0 and self._max_topics > 0
        if not counts_topics and growth <= 0:
            return
        self._check_complete()
        topics, held = self._held.topics, self._held.bytes + self._held.pending_bytes
        with self._board.locked():
            if counts_topics and self._others("topics") + topics + new_topics > self._max_topics:
                raise throttled("max_topics", self._max_topics, "topics")
            if growth > 0 and self._others("bytes_live") + held + growth > self._max_bytes:
                raise throttled("max_total_bytes", self._max_bytes, "bytes of records")
            self._slot.set("topics", topics + new_topics)
            self._slot.set("bytes_live", held + size)

    def admit_session(self) -> None:
        """A session that is leaving counts for the others only: here its removal is in the log before what is new."""
        if not self._max_sessions:
            return
        self._check_complete()
        held = self._held
        with self._board.locked():
            if self._others("sessions") + held.sessions + 1 > self._max_sessions:
                raise throttled("max_watch_sessions", self._max_sessions, "watch sessions")
            self._slot.set("sessions", held.sessions + held.sessions_leaving + 1)

    def publish(self) -> None:
        held, slot = self._held, self._slot
        slot.set("topics", held.topics)
        slot.set("sessions", held.sessions + held.sessions_leaving)
        slot.set("routers", held.routers)
        slot.set("records_live", held.records)
        slot.set("bytes_live", held.bytes + held.pending_bytes)
        slot.set("counted", 1)

    def _others(self, field: str) -> int:
        return self._board.total(field) - self._slot.get(field)

    def _check_complete(self) -> None:
        """Until every shard has recovered once, nobody knows how much there is."""
        if not self._complete:
            self._complete = self._board.all_counted()
        if not self._complete:
            raise TopicsError(
                errors.NOT_READY,
                "another shard is replaying its log; what is new can be let in when it is through",
                {"retry_after_ms": 500},
            )


def make_cell(register: Register, cell: int) -> None:
    """Room in the head register, before anything is logged."""
    if cell >= register.capacity():
        try:
            register.grow(2 * cell)
        except OSError as error:
            raise disk_full(0) from error


def disk_full(free_bytes: int) -> TopicsError:
    detail = {"free_bytes": max(0, free_bytes), "retry_after_ms": 1000}
    message = "the disk is full: the write was refused, nothing was lost. Free space and retry."
    return TopicsError(errors.STORAGE_FULL, message, detail)


def log_failed(reason: str) -> TopicsError:
    message = f"this shard stopped taking writes after a storage failure ({reason}); it restarts from disk"
    return TopicsError(errors.NOT_READY, message, {"retry_after_ms": 1000})


def queue_full() -> TopicsError:
    detail = {"limit": "wal_queue", "retry_after_ms": 100}
    return TopicsError(errors.THROTTLED, "the log queue is full; retry in a moment", detail)


def throttled(limit: str, most: int, what: str) -> TopicsError:
    detail = {"limit": limit, "max": most, "retry_after_ms": RETRY_AFTER_MS}
    return TopicsError(errors.THROTTLED, f"the server holds as many {what} as it may ({limit} is {most})", detail)


def grows_by(topic: Topic | None, records: int, size: int) -> int:
    """How much a topic's live bytes grow by a write at most, after its own caps have evicted what they must.

    A full topic that drops its oldest records goes on taking writes although the server is full.
    """
    if topic is None:
        return size
    config, before = topic.config, topic.bytes + topic.pending_bytes
    after = before + size
    excess_records = topic.count + topic.pending_records + records - config.cap_records if config.cap_records else 0
    excess_bytes = after - config.cap_bytes if config.cap_bytes else 0
    if excess_records > 0 or excess_bytes > 0:
        after -= _size_of_oldest(topic, excess_records, excess_bytes)
    return (min(after, config.cap_bytes) if config.cap_bytes else after) - before


def _size_of_oldest(topic: Topic, records: int, least: int) -> int:
    """Live bytes of the oldest applied records: of so many that they are `records` and have `least` bytes, or of all.

    They are what the caps evict, as long as they do not have to evict what is not applied yet.
    """
    count = size = 0
    for chunk in topic.chunks:
        if count + chunk.live <= records or size + chunk.live_bytes <= least:
            count += chunk.live
            size += chunk.live_bytes
            continue
        for index, record_size in enumerate(chunk.sizes):
            if count >= records and size >= least:
                return size
            if not chunk.dead >> index & 1:
                count += 1
                size += record_size
    return size
