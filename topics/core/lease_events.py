"""The events of a leases log, and what each does to the projection (leases.py).

An event is one request's worth: a claim of a thousand jobs, or of a whole cohort, is one. That a job was acknowledged
is not among them: the event that deletes it from the jobs log says so.

Stored form: a msgpack array of kind, topic id, epoch, time, then the event's own fields.
"""

from typing import Any

import msgpack
import msgspec

from topics.core.lease_parts import Failure, Grant, Move
from topics.core.leases import Leases

CLAIMED, EXTENDED, RELEASED, MOVING, MOVED, STAYED, KEPT, VOIDED = range(1, 9)


class LeaseEvent(msgspec.Struct, frozen=True):
    """What happened to a queue; `fields` as the kinds below say."""

    kind: int
    topic_id: int
    epoch: int
    ts: int
    fields: list[Any]


def claimed(grants: list[Grant]) -> tuple[int, list[Any]]:
    return CLAIMED, [_fields_of(grant) for grant in grants]


def _fields_of(grant: Grant) -> list[Any]:
    fields = [grant.node, grant.number, grant.deadline, grant.seqs]
    if grant.owner:
        return [*fields, grant.codes, grant.owner]
    return [*fields, grant.codes] if grant.codes else fields


def extended(seqs: list[int], deadline: int) -> tuple[int, list[Any]]:
    return EXTENDED, [seqs, deadline]


def released(
    seqs: list[int], due: int, failure: Failure | None = None, *, counts: bool = True
) -> tuple[int, list[Any]]:
    """`counts` false: it was no delivery."""
    if failure is None and counts:
        return RELEASED, [seqs, due]
    return RELEASED, [seqs, due, [failure.reason, failure.ts] if failure is not None else None, counts]


def moving(jobs: list[tuple[int, Move]]) -> tuple[int, list[Any]]:
    """The jobs are about to be copied to the dead-letter topic: after a crash the copy may be there, or not."""
    return MOVING, [[seq, *msgspec.structs.astuple(move)] for seq, move in jobs]


def moved(seqs: list[int], *, back: bool = False) -> tuple[int, list[Any]]:
    """The other topic has them. If they are still here, they are to be deleted. `back`: these were dead letters."""
    return MOVED, [seqs, True] if back else [seqs]


def stayed(seqs: list[int]) -> tuple[int, list[Any]]:
    """They are not moved after all."""
    return STAYED, [seqs]


def kept(leases: Leases, *, clean: bool, durable: bool) -> tuple[int, list[Any]]:
    """All there is, instead of the events so far. `clean`: the shard stopped right behind it."""
    return KEPT, [clean, durable, leases.pack()]


def voided() -> tuple[int, list[Any]]:
    """The shard started again. What a stop had kept of queues whose leases are not logged does not stand any more."""
    return VOIDED, []


def encode(event: LeaseEvent) -> bytes:
    packed: bytes = msgpack.packb([event.kind, event.topic_id, event.epoch, event.ts, event.fields], use_bin_type=True)
    return packed


def decode(data: bytes) -> LeaseEvent:
    return LeaseEvent(*msgpack.unpackb(data, raw=False, strict_map_key=False))


class Replayed:
    """One queue while its log is read."""

    __slots__ = ("clean", "durable", "leases", "moved")

    def __init__(self) -> None:
        self.leases = Leases()
        self.moved: set[int] = set()
        self.clean = False
        self.durable = True

    def apply(self, event: LeaseEvent) -> None:
        kind, fields, leases = event.kind, event.fields, self.leases
        if kind == KEPT:
            self.clean, self.durable = fields[0], fields[1]
            self.leases = Leases.unpack(fields[2])
            return
        if kind == VOIDED:
            if not self.durable:
                self.leases = leases.without_leases()
            self.clean = False
            return
        if kind == CLAIMED:
            leases.claim([_grant(*grant) for grant in fields])
        elif kind == EXTENDED:
            leases.extend(*fields)
        elif kind == RELEASED:
            failure, counts = fields[2:4] if len(fields) > 2 else (None, True)
            failed = Failure(*failure) if failure is not None else None
            leases.release(fields[0], fields[1], event.ts, failed, counts=counts)
        elif kind == MOVING:
            for seq, *move in fields:
                leases.moving[seq] = Move(*move)
        elif kind == MOVED:
            if len(fields) == 1:
                leases.dead_lettered += len(fields[0])
            self.moved.update(fields[0])
            for seq in fields[0]:
                leases.moving.pop(seq, None)
        elif kind == STAYED:
            for seq in fields[0]:
                leases.moving.pop(seq, None)


def _grant(node: str, number: int, deadline: int, seqs: list[int], codes: bytes = b"", owner: int = 0) -> Grant:
    return Grant(node, number, deadline, seqs, owner, codes)
