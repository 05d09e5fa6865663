"""Queues that are broken on purpose, see breaks.py."""

import secrets
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

from topics.core import claims
from topics.core.events import RecordsDeleted
from topics.core.extras import Extras
from topics.core.lease_deliveries import Deliveries
from topics.core.leases import Leases
from topics.core.line import Line
from topics.core.topic import Topic
from topics.shards import leaselog
from topics.shards.copies import Copies
from topics.shards.engine import Engine
from topics.shards.queue import Queue
from topics.shards.queues import Queues

Patches = Iterator[Any]


def extension_that_is_only_told() -> Patches:
    yield patch.object(Leases, "extend", lambda self, seqs, deadline: None)


def lease_that_ends_too_early() -> Patches:
    settle = Leases.settle
    yield patch.object(Leases, "settle", lambda self, first, now: settle(self, first, now + 60))


def lease_id_that_fences_nobody() -> Patches:
    holds = Leases.holds
    yield patch.object(Leases, "holds", lambda self, seqs, node, numbers=None: holds(self, seqs, node))


def word_of_anybody_that_counts() -> Patches:
    yield patch.object(Leases, "holds", lambda self, seqs, node, numbers=None: [seq in self._leases for seq in seqs])


def held_job_that_cannot_be_settled() -> Patches:
    holds = Leases.holds

    def forgetful(self: Leases, seqs: list[int], node: str, numbers: Any) -> list[bool]:
        found = zip(seqs, holds(self, seqs, node, numbers), strict=True)
        return [is_held and self.deliveries(seq) < 2 for seq, is_held in found]

    yield patch.object(Leases, "holds", forgetful)


def lease_numbers_that_begin_anew() -> Patches:
    yield patch.object(secrets, "randbits", lambda bits: 0)


def recovery_that_forgets_durable_leases() -> Patches:
    attach = leaselog._attach

    def forget(topic: Topic, replayed: Any, now: int) -> None:
        replayed.leases = replayed.leases.without_leases()
        attach(topic, replayed, now)

    yield patch.object(leaselog, "_attach", forget)


def stop_that_keeps_no_leases() -> Patches:
    yield patch.object(Queues, "save", lambda self: None)


def ack_that_is_told_before_it_is_durable() -> Patches:
    submit = Engine.submit

    def ungated(self: Engine, topic: Topic, event: Any, gate: bool, *rest: Any) -> None:
        submit(self, topic, event, gate and type(event) is not RecordsDeleted, *rest)

    yield patch.object(Engine, "submit", ungated)


def ack_that_frees_the_job() -> Patches:
    def forget(self: Engine, topic: Topic, before_seq: int, ranges: Any, done: Any, fail: Any) -> None:
        done(0)

    yield patch.object(Engine, "delete_records", forget)
    yield patch.object(Leases, "leave", lambda self, seqs: self.release(seqs, 0, 0) or [])


def nack_without_its_delay() -> Patches:
    release = Leases.release
    yield patch.object(
        Leases, "release", lambda self, seqs, due, now, *rest, **more: release(self, seqs, 0, 0, *rest, **more)
    )


def delay_that_is_forgotten() -> Patches:
    yield patch.object(Extras, "due", lambda self, index, when: None)


def restart_that_passes_jobs_by() -> Patches:
    match_with = Leases.match_with

    def pass_by(self: Leases, topic: Topic) -> None:
        match_with(self, topic)
        self.leave(list(self.free.seqs))

    yield patch.object(Leases, "match_with", pass_by)


def given_back_job_that_is_lost() -> Patches:
    release = Leases.release

    def lose(self: Leases, seqs: Any, *rest: Any, **more: Any) -> None:
        release(self, seqs, *rest, **more)
        self.leave(seqs)

    yield patch.object(Leases, "release", lose)


def claimer_that_is_never_woken() -> Patches:
    yield patch.object(Queue, "wake", lambda self: None)


def priority_that_counts_for_nothing() -> Patches:
    yield patch.object(Line, "level", lambda self, priority, since, now: 0)


def last_job_that_comes_first() -> Patches:
    waiting = claims.waiting
    yield patch.object(claims, "waiting", lambda *args: reversed(list(waiting(*args))))


def delivery_that_is_not_counted() -> Patches:
    yield patch.object(Leases, "deliveries", lambda self, seq: 1)
    yield patch.object(Deliveries, "of_leased", lambda self, seqs: [1 for _ in seqs])


def delivery_that_counts_twice() -> Patches:
    deliveries, of_leased = Leases.deliveries, Deliveries.of_leased
    yield patch.object(Leases, "deliveries", lambda self, seq: deliveries(self, seq) + 1)
    yield patch.object(Deliveries, "of_leased", lambda self, seqs: [times + 1 for times in of_leased(self, seqs)])


def dead_letter_that_is_never_sent() -> Patches:
    async def put(self: Copies, *args: Any, **options: Any) -> None:
        return None

    yield patch.object(Copies, "put", put)


def dead_letter_that_is_sent_twice() -> Patches:
    put = Copies.put

    async def put_twice(self: Copies, topic: str, key: str, records: Any, **options: Any) -> None:
        await put(self, topic, key, records, **options)
        await put(self, topic, f"{key} again", records, **options)

    yield patch.object(Copies, "put", put_twice)


QUEUE_BREAKS = [
    extension_that_is_only_told,
    lease_that_ends_too_early,
    lease_id_that_fences_nobody,
    word_of_anybody_that_counts,
    held_job_that_cannot_be_settled,
    lease_numbers_that_begin_anew,
    recovery_that_forgets_durable_leases,
    stop_that_keeps_no_leases,
    ack_that_is_told_before_it_is_durable,
    ack_that_frees_the_job,
    nack_without_its_delay,
    delay_that_is_forgotten,
    restart_that_passes_jobs_by,
    given_back_job_that_is_lost,
    claimer_that_is_never_woken,
    priority_that_counts_for_nothing,
    last_job_that_comes_first,
    delivery_that_is_not_counted,
    delivery_that_counts_twice,
    dead_letter_that_is_never_sent,
    dead_letter_that_is_sent_twice,
]
