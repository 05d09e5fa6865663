"""Keeps the leases of jobs that are being worked on, in a thread of its own.

A thread, so that a worker whose event loop is held up by its own job (a long computation) keeps the job all the same.
Every lease is extended when a third of its time has passed. An attempt that fails is made again right away, so that
there are many within the time that is left.
"""

import logging
import threading
import time
from collections.abc import Callable

from topics.client.calls import ApiError, Job, Unreachable
from topics.client.retries import NEVER
from topics.client.synchronous import Client

log = logging.getLogger(__name__)
AGAIN_S = 0.25


class LeaseKeeper:
    """`lost(job)` is called, in the thread, for a job whose lease somebody else has."""

    def __init__(self, client: Client, queue: str, node: str, lease_ms: int, lost: Callable[[Job], None]) -> None:
        self._client = client
        self._queue = queue
        self._node = node
        self._lease_ms = lease_ms
        self._lost = lost
        self._due: dict[Job, float] = {}  # when to extend
        self._changed = threading.Condition()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="lease-keeper", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def keep(self, job: Job) -> None:
        with self._changed:
            self._due[job] = time.monotonic() + self._lease_ms / 3000
            self._changed.notify()

    def forget(self, job: Job) -> None:
        with self._changed:
            self._due.pop(job, None)

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify()

    def _run(self) -> None:
        while (jobs := self._next()) is not None:
            if jobs:
                self._extend(jobs)

    def _next(self) -> list[Job] | None:
        """Those that are due, or will be within a tenth of the time; None at the end."""
        with self._changed:
            if self._stopped:
                return None
            now = time.monotonic()
            soon = now + self._lease_ms / 10_000
            if self._due and min(self._due.values()) <= now:
                return [job for job, due in self._due.items() if due <= soon][:1000]
            self._changed.wait(min(self._due.values()) - now if self._due else None)
            return []

    def _extend(self, jobs: list[Job]) -> None:
        try:
            answer = self._client.extend(self._queue, self._node, jobs, lease_ms=self._lease_ms, retries=NEVER)
        except (ApiError, Unreachable) as error:
            log.warning("%d leases could not be extended yet: %s", len(jobs), error)
            self._put_off(jobs, min(AGAIN_S, self._lease_ms / 10_000))
            return
        skipped = set(answer["skipped"])
        self._put_off([job for job in jobs if job.seq not in skipped], self._lease_ms / 3000)
        for job in jobs:
            if job.seq in skipped:
                with self._changed:
                    still_ours = self._due.pop(job, None) is not None
                if still_ours:  # else it was finished while we asked
                    self._lost(job)

    def _put_off(self, jobs: list[Job], seconds: float) -> None:
        with self._changed:
            for job in jobs:
                if job in self._due:
                    self._due[job] = time.monotonic() + seconds
