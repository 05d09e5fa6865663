"""The call `work`: jobs pushed to one worker for as long as it listens.

    head        topic, node, max, lease_ms
    items       first {"open": true}; then {"seqs": [...], "sizes": [...]} with the jobs' texts, one behind the other;
                in between {"paced": [code, message, for how many ms]}

Up to `max` jobs are leased to the stream; acks, nacks and leases that end make room for more. When the call ends, by
whatever cause, all that it holds is given back at once. It fails when the queue is deleted.

While the log has no room for its leases the stream keeps what it holds and gets no more: it is paced, and told so.
"""

from typing import TYPE_CHECKING

import trio

from topics import errors, limits
from topics.core.jobs import Jobs
from topics.core.queue_requests import check_worker, clamp_jobs, clamp_lease
from topics.core.requests import quoted
from topics.errors import TopicsError
from topics.rpc.calls import Call
from topics.shards.heads import WorkHead
from topics.shards.queue import Queue
from topics.shards.slices import in_slices

if TYPE_CHECKING:
    from topics.shards.queues import Queues


NO_ROOM = (errors.THROTTLED, errors.STORAGE_FULL)


class WorkStream:
    stays = True
    batch_bytes = limits.WORK_BATCH_BYTES

    def __init__(self, queues: "Queues", queue: Queue, call: Call, head: WorkHead, owner: int) -> None:
        bounds = queues.store.bounds
        self.owner = owner
        self.node = check_worker(head.node, bounds)
        self.lease_ms = clamp_lease(head.lease_ms)
        self._max = clamp_jobs(head.max, bounds)
        self._queues = queues
        self._queue = queue
        self._call = call
        self._sending = True  # nothing is taken before the last jobs have left
        self._prefix = b'"topic":%b,' % quoted(queue.topic.name)

    def open(self) -> None:
        self._call.on_cancel(self._close)
        self._call.run(self._begin)

    @property
    def room(self) -> int:
        return (
            0
            if self._sending or self._call.finished
            else max(0, self._max - self._queue.leases.streams.count(self.owner))
        )

    def promise(self) -> None:
        """It waits for as long as its call is open."""

    def give(self, jobs: Jobs) -> None:
        if not self._call.cancelled:
            self._sending = True
            self._queues.read(self._call, self._queue, jobs, lambda: self._push(jobs))

    def end(self, moves: set[int]) -> None:
        raise AssertionError("a stream stays")

    def fail(self, error: Exception) -> None:
        if isinstance(error, TopicsError) and error.code in NO_ROOM:
            self._sending = True
            self._call.run(self._pace, error)
        elif not self._call.finished:
            self._call.fail(error)
            self._close()

    async def _pace(self, error: TopicsError) -> None:
        """Nothing is taken for a while."""
        wait_ms = error.detail["retry_after_ms"]
        await self._call.send({"paced": [error.code, error.message, wait_ms]})
        await trio.sleep(wait_ms / 1000)
        self._sending = False
        self._queue.hungry(self)

    async def _begin(self) -> None:
        await self._call.send({"open": True})
        self._sending = False
        self._queue.add_stream(self)

    def _push(self, jobs: Jobs) -> None:
        self._call.run(self._send, jobs)

    async def _send(self, jobs: Jobs) -> None:
        """Waits while the client does not take what it was sent."""
        seqs: list[int] = []
        texts: list[bytes] = []
        await in_slices(jobs.render(self._queue.leases, seqs, texts, self._prefix))
        if seqs:
            await self._call.send({"seqs": seqs, "sizes": [*map(len, texts)]}, b"".join(texts))
        self._sending = False
        self._queue.hungry(self)

    def _close(self) -> None:
        self._queue.drop_stream(self)
