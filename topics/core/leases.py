"""Who holds which job of a queue: the projection of its lease events, next to the log that holds the jobs.

A job is a live record. It is in one of these states, and costs memory here only in the later ones:

    waiting    above the cursor, never leased: nothing is kept of it
    leased     somebody holds it until a deadline
    free       may be claimed again: its lease ended, was given back, or its delay is over
    delayed    given back for later
    leaving    acknowledged, or on its way to the dead-letter topic, and not deleted yet

An expired lease is free and leased at the same time: until somebody else claims the job, its holder may still finish
it. Every live job at or below the cursor is leased, free, delayed or leaving, so the cursor passes no job by.

Records leave the log for other reasons than an ack (caps, time, deletes). The log tells of deletes inside it
(`drop`, `drop_range`) and `settle` notices what is below its first live seq. Each seq costs that once.

Pure: `now` comes in. The methods named after events (`claim`, `extend`, `release`) never refuse; they are called when
an event happens and when it is replayed. Whether something may happen is asked before (`held`, `pick_free`).
"""

from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush
from sys import intern
from typing import TYPE_CHECKING, Any

import msgspec

from topics.core.bits import runs, span
from topics.core.calendar import Calendar
from topics.core.ranges import SeqRanges

if TYPE_CHECKING:
    from topics.core.topic import Topic

STALE_MIN = 1024  # entries of the calendar that may be stale whatever there is


class Lease(msgspec.Struct, gc=False):
    number: int
    node: str
    deadline: int
    owner: int = 0  # the stream it was pushed on; 0: it was claimed


class Grant(msgspec.Struct, gc=False):
    """Jobs that one claimer gets, under consecutive lease numbers."""

    node: str
    number: int
    deadline: int
    seqs: list[int]
    owner: int = 0


class Move(msgspec.Struct, frozen=True):
    """A job on its way to the dead-letter topic."""

    dest: str
    deliveries: int
    since: int  # when that was decided


class Leases:
    __slots__ = (
        "_deadlines",
        "_delayed",
        "_deliveries",
        "_dues",
        "_expired",
        "_floor",
        "_free",
        "_heap",
        "_leases",
        "_leaving",
        "_owned",
        "cursor",
        "dead_lettered",
        "freed",
        "logged",
        "moving",
    )

    def __init__(self) -> None:
        self.cursor = 0  # every live job up to here is known below
        self.dead_lettered = 0
        self.logged = False  # whether the leases log has everything of this
        self._leases: dict[int, Lease] = {}
        self._expired = 0  # of these, are free as well
        self._deadlines = Calendar()
        self._free: set[int] = set()
        self._heap: list[int] = []  # the free ones in their order, and some that no longer are
        self._delayed: dict[int, int] = {}  # seq → when it is free
        self._dues = Calendar()
        self._leaving: set[int] = set()
        self._deliveries: dict[int, int] = {}  # where it is not just once
        self._owned: dict[int, set[int]] = {}  # what the streams hold
        self.freed: set[int] = set()  # streams that hold less than before; who feeds them takes them out
        self._floor = 0
        self.moving: dict[int, Move] = {}  # of those that are leaving

    # --- looking --------------------------------------------------------------------------------------------------

    def settle(self, earliest_seq: int, now: int) -> None:
        """Let what is due by now happen. Before anything else, with the first live seq of the log."""
        if earliest_seq > self._floor:
            self.drop_range(self._floor, earliest_seq - 1)
            self._floor = earliest_seq
        for deadline, seq in self._deadlines.pop_before(now):
            lease = self._leases.get(seq)
            if lease is not None and lease.deadline == deadline and seq not in self._free:
                self._expired += 1
                self._disown(lease, seq)
                self._make_free(seq)
        for due, seq in self._dues.pop_before(now + 1):
            if self._delayed.get(seq) == due:
                del self._delayed[seq]
                self._make_free(seq)

    @property
    def in_flight(self) -> int:
        return len(self._leases) - self._expired

    def ready(self, jobs: int) -> int:
        """How many of the log's `jobs` could be claimed now."""
        return jobs - self.in_flight - len(self._delayed) - len(self._leaving)

    @property
    def next_due(self) -> int | None:
        """Not before this time does anything become free by itself."""
        ends, due = self._deadlines.first, self._dues.first
        times = [when for when in (ends + 1 if ends is not None else None, due) if when is not None]
        return min(times, default=None)

    @property
    def known(self) -> int:
        """Roughly how many jobs there is something to remember of."""
        return len(self._leases) + len(self._free) + len(self._delayed) + len(self._leaving)

    def held(self, seq: int, node: str, number: int | None = None) -> Lease | None:
        """The lease on a job, if `node` holds it, and under this number if one is given."""
        lease = self._leases.get(seq)
        if lease is None or lease.node != node or (number is not None and lease.number != number):
            return None
        return lease

    def is_leaving(self, seq: int) -> bool:
        return seq in self._leaving

    def lease_of(self, seq: int) -> Lease | None:
        return self._leases.get(seq)

    def held_by(self, owner: int) -> int:
        """How many jobs a stream holds."""
        return len(self._owned.get(owner, ()))

    def owned_by(self, owner: int) -> list[int]:
        return sorted(self._owned.get(owner, ()))

    def deliveries(self, seq: int) -> int:
        return self._deliveries.get(seq, 1 if seq <= self.cursor else 0)

    def pick_free(self) -> int | None:
        """The lowest free job. It stays free until it is claimed or leaves, but is not picked again: see `put_back`."""
        while self._heap:
            seq = heappop(self._heap)
            if seq in self._free:
                return seq
        return None

    def put_back(self, seq: int) -> None:
        """It was picked and is not wanted."""
        heappush(self._heap, seq)

    # --- events ---------------------------------------------------------------------------------------------------

    def claim(self, grants: Iterable[Grant]) -> None:
        """One pass over all who claim together."""
        cursor = self.cursor
        for grant in grants:
            node = intern(grant.node)
            owned = self._owned.get(grant.owner) if grant.owner else None
            for number, seq in enumerate(grant.seqs, grant.number):
                deliveries = self._deliveries.pop(seq, 1 if seq <= cursor else 0)
                self._detach(seq)
                if seq > self.cursor:
                    self.cursor = seq
                if deliveries:
                    self._deliveries[seq] = deliveries + 1
                self._leases[seq] = Lease(number, node, grant.deadline, grant.owner)
                self._deadlines.add(grant.deadline, seq)
                if owned is not None:
                    owned.add(seq)

    def extend(self, seqs: Iterable[int], deadline: int) -> None:
        for seq in seqs:
            lease = self._leases.get(seq)
            if lease is None:
                continue
            if seq in self._free:
                self._free.discard(seq)
                self._expired -= 1
                if lease.owner in self._owned:
                    self._owned[lease.owner].add(seq)
            lease.deadline = deadline
            self._deadlines.add(deadline, seq)
        if self._deadlines.size > 2 * len(self._leases) + STALE_MIN:
            self._deadlines.refill((lease.deadline, seq) for seq, lease in self._leases.items())

    def release(self, seqs: Iterable[int], due: int, now: int) -> None:
        """Give leases back; the jobs are free from `due` on."""
        for seq in seqs:
            if seq not in self._leases:
                continue
            self._detach(seq)
            if due > now:
                self._delayed[seq] = due
                self._dues.add(due, seq)
            else:
                self._make_free(seq)

    def leave(self, seqs: Iterable[int]) -> list[tuple[int, Lease | None]]:
        """Jobs that are about to be deleted; what `stay` needs if they are not."""
        left = []
        for seq in seqs:
            left.append((seq, self._leases.get(seq)))
            self._detach(seq)
            self._leaving.add(seq)
        return left

    def stay(self, left: Iterable[tuple[int, Lease | None]]) -> None:
        """They were not deleted after all: leased as before, or free."""
        for seq, lease in left:
            if seq not in self._leaving:
                continue
            self._leaving.discard(seq)
            move = self.moving.pop(seq, None)
            if move is not None:
                self._deliveries[seq] = move.deliveries
            if lease is None or (lease.owner and lease.owner not in self._owned):
                self._make_free(seq)
                continue
            self._leases[seq] = lease
            self._deadlines.add(lease.deadline, seq)
            if lease.owner:
                self._owned[lease.owner].add(seq)

    def move(self, seqs: Iterable[int], move: Move) -> None:
        """They leave, for the dead-letter topic."""
        for seq in seqs:
            self._detach(seq)
            self._leaving.add(seq)
            self.moving[seq] = move

    # --- streams --------------------------------------------------------------------------------------------------

    def open_stream(self, owner: int) -> None:
        self._owned[owner] = set()

    def close_stream(self, owner: int) -> None:
        self._owned.pop(owner, None)
        self.freed.discard(owner)

    # --- the log of the jobs --------------------------------------------------------------------------------------

    def drop(self, gone: SeqRanges) -> None:
        """These records were deleted."""
        if gone.count > self.known + len(self._deliveries):
            self._drop_all([seq for seq in self._known_seqs() if seq in gone])
        else:
            for first, last in gone:
                self._drop_all(range(first, last + 1))

    def drop_range(self, first: int, last: int) -> None:
        if last - first > self.known + len(self._deliveries):
            self._drop_all([seq for seq in self._known_seqs() if first <= seq <= last])
        else:
            self._drop_all(range(first, last + 1))

    def _known_seqs(self) -> set[int]:
        return {*self._leases, *self._free, *self._delayed, *self._leaving, *self._deliveries, *self.moving}

    def _drop_all(self, seqs: Iterable[int]) -> None:
        for seq in seqs:
            self._detach(seq)
            self._deliveries.pop(seq, None)
            self.moving.pop(seq, None)

    def _detach(self, seq: int) -> None:
        """Out of whatever state it is in."""
        lease = self._leases.pop(seq, None)
        if lease is not None:
            if seq in self._free:
                self._expired -= 1
            else:
                self._disown(lease, seq)
        self._free.discard(seq)
        self._delayed.pop(seq, None)
        self._leaving.discard(seq)

    def _make_free(self, seq: int) -> None:
        if seq <= self.cursor:  # else it is waiting
            self._free.add(seq)
            heappush(self._heap, seq)

    def come_back(self, first: int, last: int) -> None:
        """Jobs that were not there for a while: none of them must be passed by."""
        for seq in range(first, min(last, self.cursor) + 1):
            if seq not in self._leases and seq not in self._delayed and seq not in self._leaving:
                self._make_free(seq)

    def _disown(self, lease: Lease, seq: int) -> None:
        if lease.owner in self._owned:
            self._owned[lease.owner].discard(seq)
            self.freed.add(lease.owner)

    # --- keeping --------------------------------------------------------------------------------------------------

    def pack(self) -> list[Any]:
        """Everything that has to survive. What is free, or was leaving, is found again among the live jobs."""
        nodes: dict[str, int] = {}
        held = [
            [seq, lease.number, lease.deadline, nodes.setdefault(lease.node, len(nodes))]
            for seq, lease in self._leases.items()
        ]
        delayed, deliveries = list(self._delayed.items()), list(self._deliveries.items())
        moving = [[seq, *msgspec.structs.astuple(move)] for seq, move in self.moving.items()]
        return [self.cursor, self.dead_lettered, list(nodes), held, delayed, deliveries, moving]

    def without_leases(self) -> "Leases":
        """What stands when nobody knows who holds what."""
        bare = Leases()
        bare.dead_lettered = self.dead_lettered
        bare.moving = dict(self.moving)
        return bare

    @classmethod
    def unpack(cls, fields: list[Any]) -> "Leases":
        leases = cls()
        leases.cursor, leases.dead_lettered, nodes, held, delayed, deliveries, moving = fields[:7]
        names = [intern(node) for node in nodes]
        for seq, number, deadline, node in held:
            leases._leases[seq] = Lease(number, names[node], deadline)
            leases._deadlines.add(deadline, seq)
        for seq, due in delayed:
            leases._delayed[seq] = due
            leases._dues.add(due, seq)
        leases._deliveries = dict(deliveries)
        leases.moving = {seq: Move(*move) for seq, *move in moving}
        return leases

    def match_with(self, topic: "Topic") -> None:
        """After a replay: forget jobs that are gone, and let no live one up to the cursor be passed by."""
        self.cursor = min(self.cursor, topic.head_seq)
        live = set(live_jobs(topic, max(self.cursor, *self.moving, 0)))
        self._drop_all(self._known_seqs() - live)
        for seq, move in self.moving.items():
            self.move((seq,), move)
        below = {seq for seq in live if seq <= self.cursor}
        self._free |= below - self._leases.keys() - self._delayed.keys() - self._leaving
        self._heap = list(self._free)
        heapify(self._heap)


def counts(topic: "Topic", now: int) -> tuple[int, int, int]:
    """Jobs of a queue that are ready, jobs in flight, and how many became dead letters."""
    leases = topic.leases
    if leases is None:
        return topic.count, 0, 0
    leases.settle(topic.earliest_seq, now)
    return leases.ready(topic.count), leases.in_flight, leases.dead_lettered


def live_jobs(topic: "Topic", through_seq: int) -> Iterator[int]:
    """The live seqs up to `through_seq`, ascending."""
    for chunk in topic.chunks:
        if chunk.first_seq > through_seq:
            return
        high = min(len(chunk), through_seq + 1 - chunk.first_seq)
        for low, end in runs(span(0, high) & ~chunk.dead):
            yield from range(chunk.first_seq + low, chunk.first_seq + end)
