"""What workers say of the jobs they hold: done (`ack`), not done (`nack`), not done yet (`extend`).

A request names up to ten thousand jobs, so it is worked through a part at a time. Whoever else wants something of the
queue waits meanwhile (`Queue.in_order`), and it is answered once.

An ack is the delete of the jobs from their log, with the durability of the topic: one event, so it is there whole or
not at all; many small acks share a sync like any writes. The jobs leave once the event is on its way; whatever becomes
of it, nobody is given one of them before that is known.

Each part of a nack or an extend is an event of its own, as what the leases log has been told must have happened
whenever it is written anew. A crash amid them leaves the first parts, and so does a log that has no room for the next,
which is an error to the caller: who asks again is told that it does not hold those jobs any more.
"""

from collections.abc import Iterator
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING

from topics import limits
from topics.core import lease_events, replies
from topics.core.deletion import Deletion
from topics.core.lease_parts import Lease
from topics.core.leases import Leases
from topics.core.queue_requests import Settle, decode_ack, decode_extend, decode_nack, lease_number
from topics.core.ranges import SeqRanges
from topics.rpc.calls import Call
from topics.shards.queue import Queue
from topics.shards.unsynced import Unsynced

if TYPE_CHECKING:
    from topics.shards.queues import Queues


class Verdicts:
    def __init__(self, queues: "Queues") -> None:
        self._queues = queues
        self._engine = queues.engine

    # --- ack ------------------------------------------------------------------------------------------------------

    def ack(self, call: Call) -> None:
        request = decode_ack(call.body, self._queues.store.bounds)
        queue, started = self._queues.named(call), self._engine.clock.monotonic_ns()
        self._queues.in_order(call, queue, lambda: self._ack(call, queue, request, started))

    def _ack(self, call: Call, queue: Queue, request: Settle, started: int) -> Iterator[None]:
        jobs = Named(queue.leases, request)
        for _ in jobs.parts():
            if jobs.has_more:
                yield

        def answer(*, synced: bool) -> None:
            waited_us = (self._engine.clock.monotonic_ns() - started) // 1000
            perf = self._queues.perf(waited_us, synced=synced)
            queue.in_order(lambda: self._tell(call, queue, b"acked", jobs, perf))

        if not jobs.held:
            answer(synced=False)
            return
        leaving, durable = Leaving(queue.leases), queue.topic.config.durable

        def gone(_: object) -> None:
            leaving.is_over = True
            answer(synced=durable)

        def fail(error: Exception) -> None:
            leaving.stay()
            call.fail(error)

        ranges, deletion = SeqRanges.from_ascending(sorted(jobs.held)), None
        if len(jobs.held) > limits.VERDICT_STEP and queue.topic.derived is None:  # copies may come back meanwhile
            yield
            deletion = Deletion(ranges)
            yield from deletion.prepare(queue.topic)
        self._queues.check(queue)
        self._engine.delete_records(queue.topic, 0, ranges, gone, fail, deletion)
        yield from leaving.leave(list(jobs.held))
        queue.wake()

    # --- nack -----------------------------------------------------------------------------------------------------

    def nack(self, call: Call) -> None:
        request = decode_nack(call.body, self._queues.store.bounds)
        queue = self._queues.named(call)
        self._queues.in_order(call, queue, lambda: self._nack(call, queue, request))

    def _nack(self, call: Call, queue: Queue, request: Settle) -> Iterator[None]:
        jobs, logged = Named(queue.leases, request), Unsynced()
        for held in jobs.parts():
            if held:
                logged.more()
                queue.release(held, request.ms, logged.less, reason=request.reason, counts=request.penalty)
            if jobs.has_more:
                yield
                self._queues.check(queue)
        logged.then(partial(queue.in_order, lambda: self._tell(call, queue, b"nacked", jobs, {})))
        queue.wake()

    # --- extend ---------------------------------------------------------------------------------------------------

    def extend(self, call: Call) -> None:
        request = decode_extend(call.body, self._queues.store.bounds)
        queue = self._queues.named(call)
        self._queues.in_order(call, queue, lambda: self._extend(call, queue, request))

    def _extend(self, call: Call, queue: Queue, request: Settle) -> Iterator[None]:
        jobs, logged = Named(queue.leases, request), Unsynced()
        deadline = self._engine.now() + request.ms
        told: list[bytes] = []
        for held in jobs.parts():
            if held:
                logged.more()
                told_later = queue.log(lease_events.extended(held, deadline), logged.less)
                queue.leases.extend(held, deadline)
                told.append(replies.deadlines(held, deadline))
                if not told_later:
                    logged.less()
            if jobs.has_more:
                yield
                self._queues.check(queue)

        def answer() -> None:
            call.reply({"perf": {}}, replies.extended(queue.topic, len(jobs.held), jobs.skipped, told))

        logged.then(answer)

    def _tell(self, call: Call, queue: Queue, what: bytes, jobs: "Named", perf: dict[str, float]) -> None:
        now = self._engine.state.now_ms
        call.reply({"perf": perf}, replies.settled(queue.topic, what, len(jobs.held), jobs.skipped, now))


class Named:
    """The jobs that a request names: those that its worker holds, and others; each seq once."""

    def __init__(self, leases: Leases, request: Settle) -> None:
        self.held: dict[int, None] = {}
        self._others: dict[int, None] = {}
        self._leases = leases
        self._request = request
        self._at = 0

    @property
    def has_more(self) -> bool:
        """Whether there is another part."""
        return self._at < len(self._request.seqs)

    @property
    def skipped(self) -> list[int]:
        return [seq for seq in self._others if seq not in self.held]

    def parts(self) -> Iterator[list[int]]:
        """Those that the worker holds when it comes to them, a step at a time."""
        request = self._request
        while self.has_more:
            part = slice(self._at, self._at + limits.VERDICT_STEP)
            self._at = part.stop
            yield self._look(request.seqs[part], request.lease_ids[part] if request.lease_ids is not None else None)

    def _look(self, seqs: list[int], lease_ids: list[str] | None) -> list[int]:
        numbers = map(lease_number, lease_ids) if lease_ids is not None else repeat(None)
        found = []
        for seq, is_held in zip(seqs, self._leases.holds(seqs, self._request.node, numbers), strict=True):
            if not is_held:
                self._others[seq] = None
            elif seq not in self.held:
                self.held[seq] = None
                found.append(seq)
        return found


class Leaving:
    """Jobs whose delete is on its way."""

    def __init__(self, leases: Leases) -> None:
        self.is_over = False  # they are deleted, or are not going to be
        self._leases = leases
        self._left: list[tuple[int, Lease | None]] = []

    def leave(self, seqs: list[int]) -> Iterator[None]:
        """Let them leave, in steps, for as long as it is not over; but for those that are gone by then."""
        for first in range(0, len(seqs), limits.VERDICT_STEP):
            if first:
                yield
            if self.is_over:
                return
            part = seqs[first : first + limits.VERDICT_STEP]
            self._left += self._leases.leave([seq for seq in part if self._leases.lease_of(seq) is not None])

    def stay(self) -> None:
        """They are not deleted after all."""
        self.is_over = True
        self._leases.stay(self._left)
