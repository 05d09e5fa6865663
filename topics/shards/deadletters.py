"""Jobs on their way to the dead-letter topic, and dead letters on their way back; either may be on another shard.

A move is three steps, each logged before the next: that it begins (the leases log), the copy (the destination, under a
key made of topic, epoch and seq), that it is done and the record deleted. A crash of either side leaves the record
where it was, or twice for a moment: the move is taken up again at the next start, and the copy is not made a second
time (copies.py).

The records of a queue arrive in the order in which they begin, many under way at once unless the next could overtake
(copies.py); only one that has to be sent again may come after later ones. Each begins when the one before it is on its
way: thousands that wait are a list, not tasks.

While a dead-letter topic refuses, the job is in neither of the queue's counters and is tried again, ever less often. A
dead letter that is refused on its way back stays where it is, unless the copy may have been made all the same.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass

import trio

from topics import errors, limits
from topics.core import lease_events
from topics.core.block import BadBlock
from topics.core.dead_letters import dead_letter, revived
from topics.core.idempotency import digest_key
from topics.core.lease_parts import UNKNOWN, Failure, Move
from topics.core.line import Pick, chunk_of, is_gone
from topics.core.loss import CORRUPT
from topics.core.ranges import SeqRanges
from topics.core.requests import RecordIn
from topics.errors import TopicsError
from topics.rpc.errors import RpcError
from topics.shards import hidden
from topics.shards.copies import Copies
from topics.shards.leaselog import LeaseLog
from topics.shards.queue import Queue
from topics.shards.store import Store
from topics.shards.waiting import wait_for

log = logging.getLogger(__name__)
UNSURE = (errors.NOT_READY, errors.SHUTTING_DOWN, errors.INTERNAL)  # refusals of a shard that may have written it
Over = Callable[[TopicsError | None], None]


class _Refused(Exception):
    """The destination does not take it."""

    def __init__(self, error: TopicsError) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass(slots=True, eq=False)
class _Job:
    """A record that is on its way."""

    queue: Queue
    seq: int
    again: bool = False  # it may be there already
    over: Over | None = None  # who asks
    is_sent: bool = False  # the next may follow


@dataclass(slots=True, eq=False)
class _Line:
    """Records of a queue that wait for the one before them."""

    seqs: Iterator[int]
    again: bool
    over: Over | None


class DeadLetters:
    def __init__(self, store: Store, log: LeaseLog, copies: Copies) -> None:
        self._store = store
        self._engine = store.engine
        self._log = log
        self._copies = copies
        self._lines: dict[Queue, deque[_Line]] = {}  # of queues of which some are to be moved
        self._next: deque[Queue] = deque()  # of these the next record may begin
        self._more = trio.Event()

    def start(self, queue: Queue, picks: list[Pick]) -> set[int]:
        """Begin to move jobs away; the seqs of those that are on their way now."""
        dest, now = queue.topic.config.dead_letter, self._engine.now()
        assert dest is not None
        moves = []
        for seq in sorted(seq for seq, _ in picks):
            failure = queue.leases.last_failure(seq) or Failure(UNKNOWN, now)
            moves.append((seq, Move(dest, queue.leases.deliveries(seq), now, failure.reason, failure.ts)))
        try:
            self._begin(queue, moves, None)
        except TopicsError as error:  # no room in the log: they stay due
            log.warning("dead letters of %s have to wait: %s", queue.topic.name, error)
            for seq, _ in moves:
                queue.leases.free.put_back(seq)
            return set()
        return {seq for seq, _ in moves}

    def start_back(self, queue: Queue, seqs: list[int], dest: str, over: Over) -> None:
        """Begin to move dead letters back; `over` for each of them, with why it stays, if it does. Raises if it is
        refused."""
        now = self._engine.now()
        moves = [(seq, Move(dest, queue.leases.deliveries(seq), now, back=True)) for seq in seqs]
        self._begin(queue, moves, over)

    def _begin(self, queue: Queue, moves: list[tuple[int, Move]], over: Over | None) -> None:
        def logged() -> None:
            self._line_up(queue, [seq for seq, _ in moves], over=over)

        self._log.note(queue.topic, lease_events.moving(moves), logged)
        for seq, move in moves:
            queue.leases.move((seq,), move)

    def resume(self, queue: Queue, moved: set[int]) -> None:
        """After a start: delete what has arrived, and go on with what may have."""
        there = sorted(seq for seq in moved if not is_gone(queue.topic, seq))
        if there:
            ranges = SeqRanges.from_ascending(there)
            self._engine.delete_records(queue.topic, 0, ranges, lambda _: None, lambda _: None)
        self._line_up(queue, sorted(queue.leases.moving), again=True)

    def _line_up(self, queue: Queue, seqs: Iterable[int], *, again: bool = False, over: Over | None = None) -> None:
        lines = self._lines.get(queue)
        if lines is None:
            lines = self._lines[queue] = deque()
            self._let_begin(queue)
        lines.append(_Line(iter(seqs), again, over))

    def _let_begin(self, queue: Queue) -> None:
        self._next.append(queue)
        self._more.set()

    def _next_of(self, queue: Queue) -> _Job | None:
        lines = self._lines[queue]
        while lines:
            seq = next(lines[0].seqs, None)
            if seq is not None:
                return _Job(queue, seq, lines[0].again, lines[0].over)
            lines.popleft()
        del self._lines[queue]
        return None

    async def run(self) -> None:
        at_once = trio.CapacityLimiter(limits.DEAD_LETTERS_AT_ONCE)
        async with trio.open_nursery() as nursery:
            while True:
                self._more = trio.Event()
                while self._next:
                    job = self._next_of(self._next.popleft())
                    if job is not None:
                        nursery.start_soon(self._move, at_once, job)
                await self._more.wait()

    async def _move(self, at_once: trio.CapacityLimiter, job: _Job) -> None:
        queue, seq = job.queue, job.seq
        pause_ms = limits.DEAD_LETTER_RETRY_MIN_MS
        refusal: TopicsError | None = None
        while not queue.is_gone and (move := queue.leases.moving.get(seq)) is not None:
            try:
                async with at_once:
                    await self._try(job, move)
            except _Refused as refused:
                job.again = job.again or refused.error.code in UNSURE
                self._warn(job, move, refused.error)
                if self._stays(queue, move, refused.error) and self._let_stay(queue, seq):
                    refusal = refused.error
                    break
            except (RpcError, TopicsError) as error:  # it may have arrived
                job.again = True
                self._warn(job, move, error)
            except BadBlock:
                self._lose(queue, seq)
            else:
                break
            self._let_next(job)
            await trio.sleep(pause_ms / 1000)
            pause_ms = min(2 * pause_ms, limits.DEAD_LETTER_RETRY_MAX_MS)
        self._let_next(job)
        if not queue.is_gone:
            queue.settle()  # it may have left by itself
        if job.over is not None:
            job.over(refusal)
        queue.move_over(seq)

    def _let_next(self, job: _Job) -> None:
        """The next may be sent: it comes after this one."""
        if not job.is_sent:
            job.is_sent = True
            self._let_begin(job.queue)

    def _warn(self, job: _Job, move: Move, error: Exception) -> None:
        """For the first one on its way: what stops it stops them all."""
        if next(iter(job.queue.leases.moving), job.seq) == job.seq:
            log.warning("record %d of %s on its way to %s: %s", job.seq, job.queue.topic.name, move.dest, error)

    async def _try(self, job: _Job, move: Move) -> None:
        queue, seq, topic = job.queue, job.seq, job.queue.topic
        record = await self._read(queue, seq, move)
        if record is None:
            if not is_gone(topic, seq):
                raise TopicsError(errors.NOT_READY, "the job is a copy that is being made again from its source")
            return
        since = move.since if job.again else None
        key = f"{'redrive' if move.back else 'dead-letter'} {topic.name} {topic.epoch} {seq}"
        origin = digest_key(key)
        try:
            await self._copies.put(
                move.dest,
                key,
                [record],
                origin=origin,
                since=since,
                create=_may_create(queue, move),
                on_its_way=lambda: self._let_next(job),
            )
        except TopicsError as error:
            raise _Refused(error) from error
        self._let_next(job)
        if queue.is_gone or seq not in queue.leases.moving:
            return  # it went some other way meanwhile
        with suppress(TopicsError):  # no room in the log: then a crash would forget that it was counted
            self._log.note(topic, lease_events.moved([seq], back=move.back))
        if not move.back:
            queue.leases.dead_lettered += 1
        ranges = SeqRanges.from_ascending([seq])
        await wait_for(lambda done, fail: self._engine.delete_records(topic, 0, ranges, done, fail))

    async def _read(self, queue: Queue, seq: int, move: Move) -> RecordIn | None:
        chunk = chunk_of(queue.topic, seq)
        if chunk is None:
            return None
        block = await hidden.fetch_block(self._store, chunk)
        if move.back:
            return revived(block, seq)
        return dead_letter(block, seq, queue.topic.name, move, self._store.bounds.meta_bytes)

    def _stays(self, queue: Queue, move: Move, error: TopicsError) -> bool:
        """Whether a record that was refused stays for good. The destination must not have it."""
        if error.code in UNSURE:
            return False
        return move.back or queue.topic.config.dead_letter != move.dest

    def _let_stay(self, queue: Queue, seq: int) -> bool:
        with suppress(TopicsError):
            self._log.note(queue.topic, lease_events.stayed([seq]))
            queue.leases.stay([(seq, None)])
            return True
        return False

    def _lose(self, queue: Queue, seq: int) -> None:
        chunk = chunk_of(queue.topic, seq)
        if chunk is not None:
            self._engine.lose_range(queue.topic, chunk.first_seq, chunk.last_seq, CORRUPT, lambda _: None)


def _may_create(queue: Queue, move: Move) -> bool:
    """A queue makes its dead-letter topic unless its config says that no write makes topics by itself."""
    return not move.back and queue.topic.config.auto_create
