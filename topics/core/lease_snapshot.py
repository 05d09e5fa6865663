"""What of a queue's leases has to survive, at one moment, and its stored form.

Taken by copies of a few tables, which share what they hold with the originals (seqtable.py); nothing that is stored of
a lease is changed in place afterwards. Storing it takes far longer, so that is done in parts. What is free, or was
leaving, is not kept: it is found again among the live jobs.

Stored form: a msgpack array of cursor, dead_lettered, names of nodes, leases (seq, number, deadline, index of the
node, the stream if it was pushed), delayed jobs (seq, when they are free), deliveries (seq, how many), moves (seq and
the fields of Move), cursors (priority, seq), failures (seq, reason, time), deliveries that do not count (seq, how
many).
"""

from collections.abc import Iterator
from itertools import islice
from sys import intern
from typing import Any

import msgspec

from topics.core.lease_parts import Failure, Lease, Move
from topics.core.seqtable import SeqTable

_OF_JOBS = ("leases", "delayed", "deliveries", "moving", "failures", "spared")


class _StoredLease(msgspec.Struct, array_like=True):
    seq: int
    number: int
    deadline: int
    node: int
    owner: int = 0


class StoredMove(msgspec.Struct, array_like=True):
    seq: int
    dest: str
    deliveries: int
    since: int
    reason: str = ""
    failed: int = 0
    back: bool = False


class _Stored(msgspec.Struct, array_like=True):
    cursor: int
    dead_lettered: int
    nodes: list[str]
    leases: list[_StoredLease]
    delayed: list[tuple[int, int]]
    deliveries: list[tuple[int, int]]
    moving: list[StoredMove]
    cursors: list[tuple[int, int]] = []
    failures: list[tuple[int, str, int]] = []
    spared: list[tuple[int, int]] = []


def check_stored(fields: list[Any]) -> None:
    """ValueError if they are none that `Snapshot.unpack` reads."""
    stored = msgspec.convert(fields, _Stored)
    if not all(0 <= lease.node < len(stored.nodes) for lease in stored.leases):
        raise ValueError("a lease of a node that is not named")


class Snapshot(msgspec.Struct):
    cursor: int = 0
    dead_lettered: int = 0
    leases: SeqTable[Lease] = msgspec.field(default_factory=SeqTable)
    delayed: SeqTable[int] = msgspec.field(default_factory=SeqTable)
    deliveries: SeqTable[int] = msgspec.field(default_factory=SeqTable)
    moving: SeqTable[Move] = msgspec.field(default_factory=SeqTable)
    cursors: dict[int, int] = {}
    failures: SeqTable[Failure] = msgspec.field(default_factory=SeqTable)
    spared: SeqTable[int] = msgspec.field(default_factory=SeqTable)

    def parts(self, most: int) -> "Iterator[Snapshot]":
        """What it holds of jobs, so much at a time."""
        for name in _OF_JOBS:
            entries = getattr(self, name).items()
            while some := list(islice(entries, most)):
                part = Snapshot()
                setattr(part, name, SeqTable(some))
                yield part

    @property
    def rest(self) -> "Snapshot":
        """What is in no part."""
        return Snapshot(self.cursor, self.dead_lettered, cursors=self.cursors)

    def add(self, part: "Snapshot") -> None:
        for name in _OF_JOBS:
            there = getattr(self, name)
            for seq, value in getattr(part, name).items():
                there.put(seq, value)

    def fields(self) -> list[Any]:
        """To be stored."""
        nodes: dict[str, int] = {}
        for lease in self.leases.values():
            nodes.setdefault(lease.node, len(nodes))
        return [
            self.cursor,
            self.dead_lettered,
            list(nodes),
            [_fields(seq, lease, nodes) for seq, lease in self.leases.items()],
            list(self.delayed.items()),
            list(self.deliveries.items()),
            [(seq, *msgspec.structs.astuple(move)) for seq, move in self.moving.items()],
            list(self.cursors.items()),
            [(seq, failure.reason, failure.ts) for seq, failure in self.failures.items()],
            list(self.spared.items()),
        ]

    @classmethod
    def unpack(cls, fields: list[Any]) -> "Snapshot":
        """Versions before priorities stored seven fields, the next ones nine."""
        cursor, dead_lettered, nodes, held, delayed, deliveries, moving = fields[:7]
        cursors, failures, spared = [*fields[7:], [], [], []][:3]
        names = [intern(node) for node in nodes]
        return cls(
            cursor,
            dead_lettered,
            SeqTable(
                (seq, Lease(number, names[node], deadline, *owner)) for seq, number, deadline, node, *owner in held
            ),
            SeqTable(delayed),
            SeqTable(deliveries),
            SeqTable((seq, Move(*move)) for seq, *move in moving),
            dict(cursors),
            SeqTable((seq, Failure(reason, ts)) for seq, reason, ts in failures),
            SeqTable(spared),
        )


def _fields(seq: int, lease: Lease, nodes: dict[str, int]) -> tuple[int, ...]:
    fields = (seq, lease.number, lease.deadline, nodes[lease.node])
    return (*fields, lease.owner) if lease.owner else fields
