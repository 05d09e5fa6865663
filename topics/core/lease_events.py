"""The events of a leases log, and what each does to the projection (leases.py).

An event is one request's worth: a claim of a thousand jobs, or of a whole cohort, is one. That a job was acknowledged
is not among them: the event that deletes it from the jobs log says so.

Stored form: a msgpack array of kind, topic id, epoch, time, then the event's own fields.

To write all there is anew takes a while, and more happens meanwhile. So that begins with an event (BEGUN) at the moment
of which it tells, goes on with parts of it (PART), and ends with the rest (KEPT); a replay puts what came in between on
top. Without its end it has not been.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import msgpack
import msgspec

from topics.core.lease_parts import Failure, Grant, Move
from topics.core.lease_snapshot import Snapshot, StoredMove, check_stored
from topics.core.leases import Leases
from topics.malformed import MALFORMED

CLAIMED, EXTENDED, RELEASED, MOVING, MOVED, STAYED, KEPT, VOIDED, BEGUN, PART = range(1, 11)


class BadLeaseEvent(ValueError):
    """A record of the leases log that is none of this version."""


class LeaseEvent(msgspec.Struct, frozen=True, array_like=True):
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


def begun() -> tuple[int, list[Any]]:
    """What is to be kept is as of now; it follows."""
    return BEGUN, []


def voided() -> tuple[int, list[Any]]:
    """The shard started again. What a stop had kept of queues whose leases are not logged does not stand any more."""
    return VOIDED, []


def encode(event: LeaseEvent) -> bytes:
    packed: bytes = msgpack.packb([event.kind, event.topic_id, event.epoch, event.ts, event.fields], use_bin_type=True)
    return packed


class _StoredGrant(msgspec.Struct, array_like=True):
    node: str
    number: int
    deadline: int
    seqs: list[int]
    codes: bytes = b""
    owner: int = 0


class _StoredRelease(msgspec.Struct, array_like=True):
    seqs: list[int]
    due: int
    failure: tuple[str, int] | None = None
    counts: bool = True


class _StoredSeqs(msgspec.Struct, array_like=True):
    seqs: list[int]
    back: bool = False


class _StoredExtension(msgspec.Struct, array_like=True):
    seqs: list[int]
    deadline: int


class _StoredKept(msgspec.Struct, array_like=True):
    clean: bool
    durable: bool
    snapshot: list[Any]
    begun: bool = False


_stored = msgspec.msgpack.Decoder(LeaseEvent)
_SHAPES: dict[int, Any] = {
    EXTENDED: _StoredExtension, RELEASED: _StoredRelease, MOVED: _StoredSeqs, STAYED: _StoredSeqs,
}  # fmt: skip


class Kept:
    """All there is of a queue, instead of the events so far, or of those up to BEGUN if that was logged. `clean`: the
    shard stopped right behind it. Fields: clean, durable, the snapshot; true if BEGUN was logged."""

    def __init__(self, snapshot: Snapshot, *, clean: bool, durable: bool, begun: bool = False) -> None:
        self._snapshot = snapshot
        self._fields = [clean, durable]
        self._begun = [True] if begun else []

    def encode(self, topic_id: int, epoch: int, ts: int) -> bytes:
        return self._encode(self._snapshot, topic_id, epoch, ts)

    def in_parts(self, most: int, topic_id: int, epoch: int, ts: int) -> Iterator[bytes]:
        """The same as several events, each of so many jobs at most, or entries of jobs. BEGUN was logged."""
        for part in self._snapshot.parts(most):
            yield encode(LeaseEvent(PART, topic_id, epoch, ts, [part.fields()]))
        yield self._encode(self._snapshot.rest, topic_id, epoch, ts)

    def _encode(self, snapshot: Snapshot, topic_id: int, epoch: int, ts: int) -> bytes:
        fields = [*self._fields, snapshot.fields(), *self._begun]
        return encode(LeaseEvent(KEPT, topic_id, epoch, ts, fields))


def decode(data: bytes) -> LeaseEvent:
    """Raises BadLeaseEvent. Its fields fit its kind, so that it can be applied."""
    try:
        event = _stored.decode(data)
        _check(event)
    except MALFORMED as error:
        raise BadLeaseEvent(str(error)) from error
    return event


def _check(event: LeaseEvent) -> None:
    kind, fields = event.kind, event.fields
    if kind == CLAIMED:
        for stored in fields:
            grant = msgspec.convert(stored, _StoredGrant)
            if grant.codes and len(grant.codes) != len(grant.seqs):
                raise BadLeaseEvent("a claim does not tell what each of its jobs was")
    elif kind == PART:
        check_stored(fields[0])
    elif kind == MOVING:
        for move in fields:
            msgspec.convert(move, StoredMove)
    elif kind == KEPT:
        check_stored(msgspec.convert(fields, _StoredKept).snapshot)
    elif kind in _SHAPES:
        msgspec.convert(fields, _SHAPES[kind])


class Replayed:
    """One queue while its log is read."""

    __slots__ = ("_parts", "_since", "clean", "durable", "leases", "moved")

    def __init__(self) -> None:
        self.leases = Leases()
        self.moved: set[int] = set()
        self.clean = False
        self.durable = True
        self._since: list[LeaseEvent] | None = None  # events since BEGUN
        self._parts: list[Snapshot] = []  # and parts of what is to be kept

    def apply(self, event: LeaseEvent) -> None:
        kind, fields = event.kind, event.fields
        if kind == BEGUN:
            self._since, self._parts = [], []
        elif kind == PART:
            self._parts.append(Snapshot.unpack(fields[0]))
        elif kind == KEPT and len(fields) > 3:
            since, self._since = self._since or (), None
            self._keep(fields, self._parts)
            for later in since:
                self.apply(later)
        else:
            if self._since is not None:
                self._since.append(event)
            if kind == KEPT:
                self._keep(fields)
            elif kind == VOIDED:
                self.leases = self.leases if self.durable else self.leases.without_leases()
                self.clean = False
            else:
                self._apply_to(self.leases, event)

    def _keep(self, fields: list[Any], parts: Iterable[Snapshot] = ()) -> None:
        self.clean, self.durable = fields[0], fields[1]
        snapshot = Snapshot.unpack(fields[2])
        for part in parts:
            snapshot.add(part)
        self.leases, self._parts = Leases.of(snapshot), []

    def _apply_to(self, leases: Leases, event: LeaseEvent) -> None:
        kind, fields = event.kind, event.fields
        if kind == CLAIMED:
            leases.claim([_grant(*grant[:6]) for grant in fields])
        elif kind == EXTENDED:
            leases.extend(*fields[:2])
        elif kind == RELEASED:
            failure, counts = fields[2:4] if len(fields) > 2 else (None, True)
            failed = Failure(*failure) if failure is not None else None
            leases.release(fields[0], fields[1], event.ts, failed, counts=counts)
        elif kind == MOVING:
            for seq, *move in fields:
                leases.moving.put(seq, Move(*move))
        elif kind == MOVED:
            if len(fields) == 1:
                leases.dead_lettered += len(fields[0])
            self.moved.update(fields[0])
            for seq in fields[0]:
                leases.moving.pop(seq)
        elif kind == STAYED:
            for seq in fields[0]:
                leases.moving.pop(seq)


def _grant(node: str, number: int, deadline: int, seqs: list[int], codes: bytes = b"", owner: int = 0) -> Grant:
    return Grant(node, number, deadline, seqs, owner, codes)
