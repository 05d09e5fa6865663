"""Jobs on their way to the dead-letter topic, which may be on another shard.

A move is three steps, each logged before the next: that it begins (the leases log), the copy (the destination, under a
key made of queue, epoch and seq), that it is done and the job deleted. A crash of either side leaves the job where it
was, or twice for a moment: the move is taken up again at the next start, and the copy is not made a second time
(copies.py). While the destination refuses, the job is in neither of the queue's counters and is tried again, ever less
often.
"""

import logging
from collections import deque
from contextlib import suppress

import trio

from topics import limits
from topics.core import jobs, lease_events
from topics.core.block import BadBlock
from topics.core.claims import Pick, chunk_of
from topics.core.leases import Move
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


class DeadLetters:
    def __init__(self, store: Store, log: LeaseLog, copies: Copies) -> None:
        self._store = store
        self._engine = store.engine
        self._log = log
        self._copies = copies
        self._todo: deque[tuple[Queue, int, bool]] = deque()  # whether it may be there already
        self._more = trio.Event()

    def start(self, queue: Queue, picks: list[Pick]) -> set[int]:
        """Begin to move jobs; the seqs of those that are on their way now."""
        dest, now = queue.topic.config.dead_letter, self._engine.now()
        assert dest is not None
        moves = [(seq, Move(dest, queue.leases.deliveries(seq), now)) for seq, _ in picks]
        seqs = [seq for seq, _ in moves]

        def logged() -> None:
            self._todo.extend((queue, seq, False) for seq in seqs)
            self._more.set()

        try:
            self._log.note(queue.topic, lease_events.moving(moves), logged)
        except TopicsError as error:  # no room in the log: they stay due
            log.warning("dead letters of %s have to wait: %s", queue.topic.name, error)
            for seq in seqs:
                queue.leases.put_back(seq)
            return set()
        for seq, move in moves:
            queue.leases.move((seq,), move)
        return set(seqs)

    def resume(self, queue: Queue, moved: set[int]) -> None:
        """After a start: delete what has arrived, and go on with what may have."""
        there = sorted(seq for seq in moved if chunk_of(queue.topic, seq) is not None)
        if there:
            ranges = SeqRanges.from_ascending(there)
            self._engine.delete_records(queue.topic, 0, ranges, lambda _: None, lambda _: None)
        self._todo.extend((queue, seq, True) for seq in queue.leases.moving)
        self._more.set()

    async def run(self) -> None:
        at_once = trio.CapacityLimiter(limits.DEAD_LETTERS_AT_ONCE)
        async with trio.open_nursery() as nursery:
            while True:
                self._more = trio.Event()
                while self._todo:
                    nursery.start_soon(self._move, at_once, *self._todo.popleft())
                await self._more.wait()

    async def _move(self, at_once: trio.CapacityLimiter, queue: Queue, seq: int, again: bool) -> None:
        pause_ms = limits.DEAD_LETTER_RETRY_MIN_MS
        while not queue.is_gone and (move := queue.leases.moving.get(seq)) is not None:
            try:
                async with at_once:
                    await self._try(queue, seq, move, again)
            except RpcError as error:  # it may have arrived
                again = True
                log.warning("dead letter %d of %s: %s", seq, queue.topic.name, error)
            except TopicsError as error:
                log.warning("%s refuses dead letter %d of %s: %s", move.dest, seq, queue.topic.name, error)
                if queue.topic.config.dead_letter != move.dest:
                    self._let_stay(queue, seq)
            except BadBlock:
                self._lose(queue, seq)
            else:
                break
            await trio.sleep(pause_ms / 1000)
            pause_ms = min(2 * pause_ms, limits.DEAD_LETTER_RETRY_MAX_MS)
        queue.move_over(seq)

    async def _try(self, queue: Queue, seq: int, move: Move, again: bool) -> None:
        topic = queue.topic
        record = await self._read(queue, seq, move)
        if record is None:
            return
        key = f"dead-letter {topic.name} {topic.epoch} {seq}"
        mark = jobs.dead_letter_mark(topic.name, move.deliveries, seq)
        await self._copies.put(move.dest, key, [record], move.since if again else None, mark)
        if queue.is_gone or seq not in queue.leases.moving:
            return  # it went some other way meanwhile
        with suppress(TopicsError):  # no room in the log: then a crash would forget that it was counted
            self._log.note(topic, lease_events.moved([seq]))
        queue.leases.dead_lettered += 1
        ranges = SeqRanges.from_ascending([seq])
        await wait_for(lambda done, fail: self._engine.delete_records(topic, 0, ranges, done, fail))

    async def _read(self, queue: Queue, seq: int, move: Move) -> RecordIn | None:
        chunk = chunk_of(queue.topic, seq)
        if chunk is None:
            return None
        block = await hidden.fetch_block(self._store, chunk)
        return jobs.dead_letter(block, seq, queue.topic.name, move.deliveries)

    def _let_stay(self, queue: Queue, seq: int) -> None:
        """The queue has another dead-letter topic by now, or none; the one that refused it does not have it."""
        with suppress(TopicsError):
            self._log.note(queue.topic, lease_events.stayed([seq]))
            queue.leases.stay([(seq, None)])

    def _lose(self, queue: Queue, seq: int) -> None:
        chunk = chunk_of(queue.topic, seq)
        if chunk is not None:
            self._engine.lose_range(queue.topic, chunk.first_seq, chunk.last_seq, CORRUPT, lambda _: None)
