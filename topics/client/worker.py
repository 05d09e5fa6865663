"""A worker: claims jobs of a queue, runs a function for each, several at a time.

    async def resize(job: Job) -> None: ...

    trio.run(Worker("http://127.0.0.1:4000", "jobs", resize, concurrency=8).run)

A job is acknowledged when its function returns, and given back with a growing delay when it raises: what it raised is
the reason that a dead letter tells. Its lease is
extended for as long as the function runs (leasekeeper.py). If the lease is lost nevertheless (the worker was stopped
for longer than it, say) the function is cancelled: another worker has the job. A plain function runs in a thread; it
cannot be cancelled, but then it is not acknowledged.

`stop` ends it in good order: nothing more is claimed, what runs may finish within `grace_s`, the rest is given back
without counting the delivery. So does the end of the task that runs it.
"""

import inspect
import logging
import os
import secrets
import socket
from collections.abc import Awaitable, Callable

import trio

from topics.client.asynchronous import AsyncClient
from topics.client.calls import ApiError, Job, Unreachable
from topics.client.leasekeeper import LeaseKeeper
from topics.client.retries import Retries
from topics.client.synchronous import Client

log = logging.getLogger(__name__)
Handler = Callable[[Job], Awaitable[object]] | Callable[[Job], object]
LEASE_MS = 30_000
WAIT_MS = 20_000
GIVE_BACK_S = 5.0  # for jobs that were cut short
TELL_S = 60.0  # for the outcome of those that ran; their leases are kept meanwhile
REASON_BYTES = 1000  # of what is told about an error; the server takes a little more
TROUBLE_S = 1.0  # after a claim that failed in spite of its retries


class Worker:
    def __init__(
        self,
        url: str,
        queue: str,
        handler: Handler,
        *,
        key: str | None = None,
        node: str | None = None,
        concurrency: int = 1,
        lease_ms: int = LEASE_MS,
        wait_ms: int = WAIT_MS,
        backoff: Retries | None = None,
        grace_s: float = 30.0,
    ) -> None:
        """`backoff` is how long a failed job is held back: its pauses, by how often it was delivered."""
        self.node = node or f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"[-128:]
        self.done = 0
        self.failed = 0
        self._queue = queue
        self._handler = handler
        self._is_async = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
            getattr(handler, "__call__", None)  # noqa: B004 - an object with an async __call__
        )
        self._places = trio.Semaphore(concurrency, max_value=concurrency)
        self._concurrency = concurrency
        self._lease_ms = lease_ms
        self._wait_ms = wait_ms
        self._backoff = backoff or Retries(first_s=1.0, longest_s=300.0, total_s=float("inf"))
        self._grace_s = grace_s
        self._client = AsyncClient(url, key)
        # Its own patience with an answer is a third of what is left when it is asked for.
        self._keeping_client = Client(url, key, timeout_s=max(0.1, lease_ms / 5000))
        self._running: dict[Job, trio.CancelScope] = {}
        self._lost: set[Job] = set()
        self._claiming: trio.CancelScope | None = None
        self._stopping = trio.Event()

    def stop(self) -> None:
        """Claim no more, and end when what runs has finished. From trio's thread."""
        self._stopping.set()
        if self._claiming is not None:
            self._claiming.cancel()

    async def run(self) -> None:
        """Work until stopped or cancelled. Jobs that have not finished by then are given back."""
        token = trio.lowlevel.current_trio_token()

        def lost(job: Job) -> None:
            token.run_sync_soon(self._lose, job)

        keeper = LeaseKeeper(self._keeping_client, self._queue, self.node, self._lease_ms, lost)
        keeper.start()
        try:
            async with trio.open_nursery() as jobs:
                jobs.start_soon(self._end_in_time, jobs.cancel_scope)
                await self._claim_all(jobs, keeper)
                await self._idle()
                jobs.cancel_scope.cancel()
        finally:
            keeper.stop()
            with trio.move_on_after(GIVE_BACK_S) as patience:
                patience.shield = True
                await self._client.aclose()
            self._keeping_client.close()

    async def _end_in_time(self, everything: trio.CancelScope) -> None:
        await self._stopping.wait()
        everything.deadline = trio.current_time() + self._grace_s

    async def _claim_all(self, jobs: trio.Nursery, keeper: LeaseKeeper) -> None:
        while not self._stopping.is_set():
            await self._places.acquire()
            free = 1
            while free < self._concurrency and self._places.value:
                self._places.acquire_nowait()
                free += 1
            claimed = await self._claim(free)
            for job in claimed:
                keeper.keep(job)
                jobs.start_soon(self._work, job, keeper)
            for _ in range(free - len(claimed)):
                self._places.release()

    async def _claim(self, count: int) -> list[Job]:
        with trio.CancelScope() as self._claiming:
            if self._stopping.is_set():
                return []
            try:
                return await self._client.claim(
                    self._queue, self.node, count, lease_ms=self._lease_ms, wait_ms=self._wait_ms
                )
            except (ApiError, Unreachable) as error:
                log.warning("no jobs of %s: %s", self._queue, error)
                await trio.sleep(TROUBLE_S)
        return []

    async def _idle(self) -> None:
        for _ in range(self._concurrency):
            await self._places.acquire()

    # --- one job --------------------------------------------------------------------------------------------------

    async def _work(self, job: Job, keeper: LeaseKeeper) -> None:
        problem: Exception | None = None
        finished = False
        try:
            with trio.CancelScope() as scope:
                self._running[job] = scope
                try:
                    await self._call(job)
                    finished = True
                except Exception as error:
                    problem = error
        finally:
            del self._running[job]
            patience_s = TELL_S if finished or problem is not None else GIVE_BACK_S
            with trio.CancelScope(shield=True, deadline=trio.current_time() + patience_s):
                await self._settle(job, finished=finished, error=problem)
            keeper.forget(job)
            self._lost.discard(job)
            self._places.release()

    async def _call(self, job: Job) -> None:
        if self._is_async:
            await self._handler(job)  # type: ignore[misc]
            return
        # In a list, as the thread may not give back a coroutine: it takes the function for a mistake.
        outcome = await trio.to_thread.run_sync(lambda: [self._handler(job)], limiter=trio.CapacityLimiter(1))
        if inspect.isawaitable(outcome[0]):  # of a lambda around an async function, say
            await outcome[0]

    async def _settle(self, job: Job, *, finished: bool, error: Exception | None) -> None:
        """Say what became of the job. If that cannot be said, its lease ends by itself."""
        if job in self._lost:
            log.warning("job %d of %s was given to another worker", job.seq, self._queue)
            return
        try:
            if finished:
                self.done += 1
                await self._client.ack(self._queue, self.node, [job])
            elif error is not None:
                self.failed += 1
                log.error("job %d of %s failed", job.seq, self._queue, exc_info=error)
                delay_s = self._backoff.pause(job.deliveries, 0.0) or 0.0
                await self._client.nack(
                    self._queue, self.node, [job], delay_ms=int(delay_s * 1000), reason=_reason_of(error)
                )
            else:  # cut short, which is not its fault
                await self._client.nack(self._queue, self.node, [job], penalty=False)
        except (ApiError, Unreachable) as problem:
            log.warning("what became of job %d of %s could not be told: %s", job.seq, self._queue, problem)

    def _lose(self, job: Job) -> None:
        if job in self._running:
            self._lost.add(job)
            self._running[job].cancel()


def _reason_of(error: Exception) -> str:
    """The error as one line of bounded length."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text.encode(errors="replace")[:REASON_BYTES].decode(errors="ignore")
