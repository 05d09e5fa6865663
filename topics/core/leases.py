"""Who holds which job of a queue: the projection of its lease events, next to the log that holds the jobs.

A job is a live record. It is in one of these states, and costs memory here only in the later ones:

    waiting    above the cursor, never leased: nothing is kept of it
    scheduled  written with a time that has not come (timetable.py)
    leased     somebody holds it until a deadline
    free       may be claimed again: its lease ended, was given back, its delay is over, or its time has come
    delayed    given back for later
    leaving    acknowledged, or on its way to the dead-letter topic, and not deleted yet

An expired lease is free and leased at the same time: until somebody else claims the job, its holder may still finish
it. Every live job at or below the cursor is leased, free, delayed or leaving, so the cursor passes no job by. Where
jobs have priorities, each priority has its cursor (line.py).

Records leave the log for other reasons than an ack (caps, time, deletes). The log tells of deletes inside it
(`drop`, `drop_range`) and `settle` notices what is below its first live seq. Each seq costs that once.

Very many jobs may become free, or go, at the same moment. `settle` does that in steps, each of which leaves every job
in one state; what is not done yet is as if its time had not come, and nobody is given a job or told a number before it
is done (topics/shards/catchup.py).

Pure: `now` comes in. The methods named after events (`claim`, `extend`, `release`) never refuse; they are called when
an event happens and when it is replayed. Whether something may happen is asked before (`holds`, `FreeJobs.pick`).
"""

from collections.abc import Collection, Iterable, Iterator
from itertools import chain, repeat
from sys import intern
from typing import TYPE_CHECKING, Any

from topics import limits
from topics.core.block import Block
from topics.core.calendar import Calendar
from topics.core.free_jobs import FreeJobs
from topics.core.holders import Holders
from topics.core.lease_delays import Delays
from topics.core.lease_deliveries import Deliveries
from topics.core.lease_forgetting import Forgetting
from topics.core.lease_parts import AGAIN, EXPIRED, FIRST, Failure, Grant, Lease, Move
from topics.core.lease_snapshot import Snapshot
from topics.core.line import Line, is_gone, is_uneven, live_jobs
from topics.core.ranges import SeqRanges
from topics.core.seqtable import SeqTable

if TYPE_CHECKING:
    from topics.core.topic import Topic


class Leases:
    __slots__ = (
        "_cursors",
        "_deadlines",
        "_delayed",
        "_expired",
        "_failures",
        "_floor",
        "_gone",
        "_leases",
        "_leaving",
        "counted",
        "cursor",
        "cut_short",
        "dead_lettered",
        "free",
        "line",
        "logged",
        "moving",
        "overdue",
        "overdue_at",
        "settled",
        "stale",
        "streams",
    )

    def __init__(self) -> None:
        self.cursor = 0  # every live job up to here is known below
        self.dead_lettered = 0
        self.logged = False  # whether the leases log tells who holds what
        self.stale = False  # it does, but not all of it
        self._leases: SeqTable[Lease] = SeqTable()
        self._expired = 0  # of these, are free as well
        self.settled: tuple[int, int, int] | None = None  # when all was done that was due; see lease_settling.py
        self._deadlines = Calendar()  # the others, each at the time that its lease has `noted`
        self.free = FreeJobs()
        self._delayed = Delays()
        self._leaving: SeqTable[bool] = SeqTable()
        self.counted = Deliveries()
        self.streams = Holders()
        self._floor = 0
        self._gone = Forgetting()
        self.moving: SeqTable[Move] = SeqTable()  # of those that are leaving
        self.overdue: list[int] = []  # free jobs that a pass found due for the dead-letter topic, and left
        self.overdue_at = 0  # deliveries by which they are
        self.cut_short = False  # the last pass was, by so many of them
        self._failures: SeqTable[Failure] = SeqTable()
        self.line: Line | None = None  # once some job has a priority or a time
        self._cursors: dict[int, int] = {}  # by priority, of those that are not 0

    # --- looking --------------------------------------------------------------------------------------------------

    def settle(self, earliest_seq: int, now: int) -> bool:
        """Let what is due by now happen, a step of it; whether that was all. Before anything else, until it is, with
        the first live seq of the log."""
        if earliest_seq > self._floor:
            self.drop_range(self._floor, earliest_seq - 1)
            self._floor = earliest_seq
        elif self._gone:
            self._forget()
        if self._gone or (self.line is not None and not self.line.timetable.catch_up()):
            return False
        left = limits.SETTLE_STEP
        ends = self._deadlines.pop_before(now, left)
        if ends:
            left -= len(ends)
            self._end(ends, now)
        if left and (over := self._delayed.pop_due(now, left)):
            left -= len(over)
            self.free.add_all(over)
        if self.line is not None and left > 0:
            come = [seq for _, seq in self.line.timetable.pop_due(now, left)]
            self.free.add_all(come)
            left -= len(come)
            left -= self.free.move_up(left)
        return left > 0

    def _end(self, ends: list[tuple[int, int]], now: int) -> None:
        """Leases that were noted to end at (time, seq), by now; some were extended since."""
        ended = []
        leases = self._leases.get_all([seq for _, seq in ends])
        for (noted, seq), lease in zip(ends, leases, strict=True):
            if lease is None or lease.noted != noted or seq in self.free.seqs:
                continue
            if lease.deadline >= now:
                self._note(seq, lease)
                continue
            ended.append(seq)
            if lease.owner:
                self.streams.drop(lease.owner, seq)
        self._expired += len(ended)
        self.free.add_all(ended)

    def _note(self, seq: int, lease: Lease) -> None:
        """See to it that it ends."""
        lease.noted = lease.deadline
        self._deadlines.add(lease.deadline, seq)

    @property
    def in_flight(self) -> int:
        return self._leases.count - self._expired

    def ready(self, jobs: int) -> int:
        """How many of the log's `jobs` could be claimed now."""
        held = self._leases.count - self._expired + self._delayed.count + self._leaving.count
        return jobs - held - (self.line.timetable.count if self.line is not None else 0)

    @property
    def scheduled(self) -> int:
        return self.line.timetable.count if self.line is not None else 0

    @property
    def next_due(self) -> int | None:
        """Not before this time does anything become free by itself."""
        ends, planned = self._deadlines.first, self.line.timetable.first if self.line is not None else None
        times = (ends + 1 if ends is not None else None, self._delayed.first, planned)
        return min((when for when in times if when is not None), default=None)

    @property
    def known(self) -> int:
        """Roughly how many jobs there is something to remember of."""
        return self._leases.count + self.free.seqs.count + self._delayed.count + self._leaving.count

    def holds(self, seqs: Iterable[int], node: str, numbers: Iterable[int | None] = repeat(None)) -> list[bool]:
        """Of each job whether `node` has the lease on it, and under this number if one is given."""
        leases = zip(self._leases.get_all(seqs), numbers, strict=False)
        return [
            lease is not None and lease.node == node and (number is None or lease.number == number)
            for lease, number in leases
        ]

    def is_leaving(self, seq: int) -> bool:
        return seq in self._leaving

    def lease_of(self, seq: int) -> Lease | None:
        return self._leases.get(seq)

    def still_held(self, leases: Collection[tuple[int, int]]) -> list[int]:
        """Of these seqs and lease numbers, the seqs that are still under that lease."""
        held = zip(leases, self._leases.get_all(seq for seq, _ in leases), strict=True)
        return [seq for (seq, number), lease in held if lease is not None and lease.number == number]

    def deliveries(self, seq: int) -> int:
        times = self.counted.times.get(seq)
        if times is not None:
            return times
        if self.line is None:
            return 1 if seq <= self.cursor else 0
        priority, _, timed = self.line.terms(seq)
        return 1 if seq <= self.cursor_of(priority) and not timed else 0

    def cursor_of(self, priority: int) -> int:
        return self._cursors.get(priority, 0) if priority else self.cursor

    def last_failure(self, seq: int) -> Failure | None:
        """Why and when a job was last not finished, if that is known."""
        lease = self._leases.get(seq)
        if lease is not None and seq in self.free.seqs:
            return Failure(EXPIRED, lease.deadline)
        return self._failures.get(seq)

    def is_idle(self, seq: int) -> bool:
        """Whether it could be claimed, if it is live."""
        if seq in self.free.seqs:
            return True
        if seq in self._leases or seq in self._delayed or seq in self._leaving:
            return False
        return self.line is None or not self.line.terms(seq)[2]  # else its time has not come

    def codes_of(self, seqs: Iterable[int]) -> bytes:
        """With a line: for each job that is about to be leased its priority, if that is a cursor's, else FIRST or
        AGAIN. It tells a replay which cursors move and what to count, when the jobs are long gone."""
        line = self.line
        if line is None:
            return b""
        codes = bytearray()
        for seq in seqs:
            if seq not in self.free.seqs:
                codes.append(line.priority(seq))
            else:
                codes.append(AGAIN if seq in self.counted.times or not line.terms(seq)[2] else FIRST)
        return bytes(codes)

    def pass_by(self, priority: int, seq: int) -> None:
        """No job of this priority waits up to here: nobody looks for one again."""
        if priority:
            self._cursors[priority] = seq
        else:
            self.cursor = seq

    # --- events ---------------------------------------------------------------------------------------------------

    def claim(self, grants: Iterable[Grant]) -> None:
        """One pass over all who claim together."""
        cursor = self.cursor
        for grant in grants:
            seqs, node, deadline, owner = grant.seqs, intern(grant.node), grant.deadline, grant.owner
            if not seqs:
                continue
            if grant.codes:
                known = self._count_coded(seqs, grant.codes)
            else:
                self.cursor = max(self.cursor, max(seqs))
                known = seqs if self.counted.add_all(seqs, cursor) else []
            if known:
                self._detach(known)
            numbers = range(grant.number, grant.number + len(seqs))
            self._leases.put_all(seqs, [Lease(number, node, deadline, owner, deadline) for number in numbers])
            self._deadlines.add_all(deadline, seqs)
            if owner:
                self.streams.add_all(owner, seqs)

    def _count_coded(self, seqs: list[int], codes: bytes) -> list[int]:
        """One more delivery of each job in a queue with a line; those that are known. What had to wait for its time
        always has its own entry: no cursor tells whether it was ever leased."""
        known = []
        for seq, code in zip(seqs, codes, strict=True):
            if code >= FIRST:
                self.counted.add(seq, 0 if code == FIRST else 1)
                known.append(seq)
            elif seq > self.cursor_of(code):
                self.pass_by(code, seq)
        return known

    def extend(self, seqs: Collection[int], deadline: int) -> None:
        held = [(seq, lease) for seq, lease in zip(seqs, self._leases.get_all(seqs), strict=True) if lease is not None]
        longer = [Lease(lease.number, lease.node, deadline, lease.owner, lease.noted) for _, lease in held]
        self._leases.put_all([seq for seq, _ in held], longer)
        sooner = []  # the others are looked at again when they would have ended
        for (seq, before), lease in zip(held, longer, strict=True):
            if self.free.withdraw(seq):
                self._expired -= 1
                self.streams.add(lease.owner, seq)
                self._note(seq, lease)
            elif deadline < before.noted:
                sooner.append((before.noted, seq))
                lease.noted = deadline
        if sooner:
            self._deadlines.remove_each(sooner)
            self._deadlines.add_all(deadline, [seq for _, seq in sooner])

    def release(
        self, seqs: Collection[int], due: int, now: int, failure: Failure | None = None, *, counts: bool = True
    ) -> None:
        """Give leases back; the jobs are free from `due` on. Unless it `counts`, it was no delivery. Many are all
        delayed, so that `settle` frees them in steps."""
        is_later = due > now or len(seqs) > limits.SETTLE_STEP
        self.settled = None
        given_back = [seq for seq, lease in zip(seqs, self._unlease(seqs), strict=True) if lease is not None]
        for seq in given_back if not counts else ():
            self.counted.take_back(seq)
            self.free.spared.put(seq, (self.free.spared.get(seq) or 0) + 1)
        if failure is not None:
            self._failures.put_all(given_back, repeat(failure))
        if is_later:
            self._delayed.put_all(given_back, due)
        else:
            self.free.add_all([seq for seq in given_back if self._is_known(seq)])  # the others are waiting

    def leave(self, seqs: Collection[int]) -> list[tuple[int, Lease | None]]:
        """Jobs that are about to be deleted; what `stay` needs if they are not."""
        leases = self._detach(seqs)
        self._leaving.put_all(seqs, repeat(True))
        return list(zip(seqs, leases, strict=True))

    def stay(self, left: Iterable[tuple[int, Lease | None]]) -> None:
        """They were not deleted after all: leased as before, or free."""
        self.settled = None
        for seq, lease in left:
            if not self._leaving.pop(seq):
                continue
            move = self.moving.pop(seq)
            if move is not None:
                self.counted.times.put(seq, move.deliveries)
            if lease is None or (lease.owner and not self.streams.is_open(lease.owner)):
                if self._is_known(seq):  # else it is waiting
                    self.free.add(seq)
                continue
            self._leases.put(seq, lease)
            self._note(seq, lease)
            self.streams.add(lease.owner, seq)

    def move(self, seqs: Collection[int], move: Move) -> None:
        """They leave, for the dead-letter topic."""
        self.leave(seqs)
        self.moving.put_all(seqs, repeat(move))

    # --- the log of the jobs --------------------------------------------------------------------------------------

    def drop(self, gone: SeqRanges) -> None:
        """These records were deleted. If they are many, `settle` has to go on with it."""
        self.settled = None
        if self.scheduled and self.line is not None:
            self.line.timetable.drop_later(gone)
        if gone.count == 1 and not self._gone:
            self._drop_all((gone.first_of(0),))
            return
        known = self._by_state()
        count = sum(map(len, known))
        if not count:
            return
        if gone.count <= count:
            seqs: Iterator[int] = chain.from_iterable(range(first, last + 1) for first, last in gone)
        else:
            seqs = chain.from_iterable([states.copy() for states in known])  # as they change meanwhile
        self._gone.add(seqs, gone)
        self._forget()

    def drop_range(self, first: int, last: int) -> None:
        gone = SeqRanges()
        gone.add(first, last)
        self.drop(gone)

    def _forget(self) -> None:
        """Forget a step of what is gone."""
        self._drop_all(self._gone.take(limits.FORGET_STEP))

    def _by_state(self) -> tuple[SeqTable[Any], ...]:
        """All jobs that something is known of."""
        return self._leases, self.free.seqs, self._delayed.until, self._leaving, self.counted.times, self.moving

    def _drop_all(self, seqs: Collection[int]) -> None:
        self._detach(seqs)
        for known in (self.counted.times, self._failures, self.free.spared, self.moving):
            if known.count:
                known.pop_all(seqs)

    def _detach(self, seqs: Collection[int]) -> list[Lease | None]:
        """Out of whatever state each is in; the leases they had."""
        leases = self._unlease(seqs)
        for known in (self.free.seqs, self._leaving):
            if known.count:
                known.pop_all(seqs)
        self._delayed.pop_all(seqs)
        return leases

    def _unlease(self, seqs: Collection[int]) -> list[Lease | None]:
        """Out of their leases, those that have one."""
        leases, free = self._leases.pop_all(seqs), self.free.seqs
        running = []
        for seq, lease in zip(seqs, leases, strict=True):
            if lease is None:
                continue
            if free.count and free.pop(seq):
                self._expired -= 1
                continue
            running.append((lease.noted, seq))
            if lease.owner:
                self.streams.drop(lease.owner, seq)
        self._deadlines.remove_each(running)
        return leases

    def _is_known(self, seq: int) -> bool:
        """Whether the cursor of its kind has passed it."""
        if self.line is None:
            return seq <= self.cursor
        priority, _, timed = self.line.terms(seq)
        return timed or seq <= self.cursor_of(priority)

    def come_back(self, first: int, last: int) -> None:
        """Jobs that were not there while the cursor passed: none of them must be passed by, or count as delivered."""
        while self._gone:  # it was for those that were there before
            self._forget()
        passed = max(self.cursor, *self._cursors.values()) if self._cursors else self.cursor
        for seq in range(first, min(last, passed) + 1):
            is_busy = seq in self._leases or seq in self._delayed or seq in self._leaving
            if seq in self.free.seqs:
                self.free.put_back(seq)  # whoever looked for it did not find it
            elif not is_busy and self._is_known(seq):
                if seq not in self.counted.times:
                    self.counted.times.put(seq, 0)
                self.stale = True
                self.free.add(seq)

    # --- keeping --------------------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Everything that has to survive."""
        return Snapshot(
            self.cursor,
            self.dead_lettered,
            self._leases.copy(),
            self._delayed.until.copy(),
            self.counted.times.copy(),
            self.moving.copy(),
            self._cursors.copy(),
            self._failures.copy(),
            self.free.spared.copy(),
        )

    def without_leases(self) -> "Leases":
        """What stands when nobody knows who holds what."""
        bare = Leases()
        bare.dead_lettered = self.dead_lettered
        bare.moving = self.moving.copy()
        return bare

    @classmethod
    def of(cls, kept: Snapshot) -> "Leases":
        """Those of a snapshot, which is used up."""
        leases = cls()
        leases.cursor, leases.dead_lettered, leases._leases = kept.cursor, kept.dead_lettered, kept.leases
        leases._delayed, leases.counted.times, leases.moving = Delays(kept.delayed), kept.deliveries, kept.moving
        leases._cursors, leases._failures, leases.free.spared = kept.cursors, kept.failures, kept.spared
        for seq, lease in kept.leases.items():
            leases._note(seq, lease)
        return leases

    def match_with(self, topic: "Topic") -> None:
        """After a replay: forget jobs that are gone, and let no live one that a cursor has passed be passed by."""
        self.cursor = min(self.cursor, topic.head_seq)
        self._cursors = {priority: min(cursor, topic.head_seq) for priority, cursor in self._cursors.items()}
        known = {*chain(*self._by_state(), self._failures, self.free.spared)}  # the free ones are in no state yet
        self._drop_all([seq for seq in known if is_gone(topic, seq)])
        for seq, move in self.moving.copy().items():
            self.move((seq,), move)
        busy = {*self._leases, *self._delayed.until, *self._leaving}
        spared, self.free = self.free.spared, FreeJobs()
        self.free.spared = spared
        if topic.config.type == "queue" and is_uneven(topic):
            passed = self._line_up(topic).recall(self.cursor_of, busy, self.counted.times)
        else:
            passed = live_jobs(topic, self.cursor)
        for seq in passed:
            if seq not in busy:
                self.free.add(seq)

    def end_streams(self, failure: Failure | None) -> None:
        """After a replay: what was pushed on a stream is given back, as no stream outlives its shard."""
        pushed = [seq for seq, lease in self._leases.items() if lease.owner]
        if pushed:
            self.release(pushed, 0, 0, failure)
            self.stale = True

    def enlist(self, topic: "Topic", block: Block) -> None:
        """Jobs are about to come in, perhaps with priorities or times."""
        if block.extras is None or not block.extras.has_terms:
            return
        (self.line or self._line_up(topic)).enlist(block)

    def _line_up(self, topic: "Topic") -> Line:
        self.line, self.settled = Line(topic), None
        self.free.line_up(self.line, self.deliveries)
        return self.line


def leases_of(topic: "Topic") -> Leases:
    """Those of a queue, made if there are none yet."""
    if topic.leases is None:
        topic.leases = Leases()
    return topic.leases
