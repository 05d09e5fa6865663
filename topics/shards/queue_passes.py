"""Passes over a queue: what is ready is divided among all who want jobs, leased and handed over.

A pass for one who claims a few jobs is one step. Where it is for many, or somebody wants much, it is done in steps:
first each is asked how much it wants (queue_cohort.py), then what is ready is divided, then some are served a step, and
of one who wants much a portion (queue_filling.py). Meanwhile the queue is behind (catchup.py), so that those who come
next wait for their turn.

A step also ends where it has looked past so much that is gone, or not to be had yet, that others must have a turn. What
a claim got by then is its first portion: a claim is answered with fewer jobs than it asked for only if there are no
more, or no more that fit its answer, or if a good part of their lease would be over before more are found.
"""

import weakref
from functools import partial
from typing import TYPE_CHECKING, Protocol

from topics import limits
from topics.core import lease_events
from topics.core.claims import Want, deal, divide
from topics.core.jobs import Jobs
from topics.core.lease_parts import Grant
from topics.core.line import Pick
from topics.errors import TopicsError
from topics.shards.queue_cohort import Cohort
from topics.shards.queue_filling import Filling

if TYPE_CHECKING:
    from topics.shards.queue import Queue
    from topics.shards.queues import Queues

TAKER_COST = 32  # of one who gets jobs, in jobs
LINE_COST = 4  # of a job in a line, in jobs of a queue without one


class Taker(Protocol):
    """Somebody who wants jobs."""

    node: str
    owner: int  # number of a stream, 0 for a claim
    batch_bytes: int
    lease_ms: int | None

    @property
    def room(self) -> int:
        """How many jobs it wants now."""

    @property
    def stays(self) -> bool:
        """Whether it goes on waiting if a pass has nothing for it."""

    def promise(self) -> None:
        """Jobs are leased to it: `give` follows, however long their leases take to be logged."""

    def give(self, jobs: Jobs) -> None:
        """It has these now; their leases are logged if they have to be."""

    def end(self, moves: set[int]) -> None:
        """There is nothing for it. `moves` are jobs on their way to the dead-letter topic."""

    def fail(self, error: Exception) -> None: ...


class Passes:
    def __init__(self, queue: "Queue", queues: "Queues", takers: dict[Taker, None]) -> None:
        self._of = weakref.ref(queue)  # which holds this: a cycle of a removed queue would never be freed
        self._topic = queue.topic
        self._leases = queue.leases
        self._queues = queues
        self._engine = queues.engine
        self._takers = takers  # all who wait
        self._unserved: dict[Taker, int] = {}  # of these: their pass is not over, and what each is to get by it
        self._fillings: dict[Taker, Filling] = {}  # those that are served in steps, one after the other
        self._cohort: Cohort | None = None  # those of a pass that has not begun to serve

    @property
    def _queue(self) -> "Queue":
        queue = self._of()
        assert queue is not None
        return queue

    def leave(self, taker: Taker) -> None:
        """It does not want anything any more."""
        self._takers.pop(taker, None)
        self._unserved.pop(taker, None)
        if not self._takers:
            self._cohort = None
        filling = self._fillings.pop(taker, None)
        if filling is not None and not taker.owner:
            self._queue.take_back(filling.leases)

    def end(self) -> None:
        """Nobody is served any more."""
        self._takers.clear()
        self._unserved.clear()
        self._fillings.clear()
        self._cohort = None

    @property
    def is_serving(self) -> bool:
        """Whether a pass is not over."""
        return bool(self._unserved) or bool(self._fillings) or self._cohort is not None

    def _lease_ms(self, taker: Taker) -> int:
        return taker.lease_ms or self._topic.config.lease_ms

    @property
    def _job_cost(self) -> int:
        return 1 if self._leases.line is None else LINE_COST

    def begin(self, takers: list[Taker]) -> None:
        """Divide what is ready among the takers. Where that is much, each gets its part in one of several steps. Who is
        being served by an earlier pass has its part."""
        if self._fillings:
            takers = [taker for taker in takers if taker not in self._fillings]
        if len(takers) > limits.COHORT_STEP:
            self._takers.update(dict.fromkeys(takers))
            self._cohort = Cohort(takers)
            self.serve_next()
        elif len(takers) == 1 and self._is_small(room := takers[0].room) and not self.is_serving:
            self._serve(takers, [room])
        else:
            self._divide(takers, [taker.room for taker in takers])

    def _is_small(self, jobs: int) -> bool:
        return self._job_cost * jobs <= limits.PORTION_JOBS

    def _divide(self, takers: list[Taker], rooms: list[int]) -> None:
        ready, is_serving = self._queue.ready, self.is_serving
        cost = self._job_cost * min(sum(rooms), ready) + TAKER_COST * len(takers)
        most = limits.PASS_JOBS if len(takers) > 1 else limits.PORTION_JOBS + TAKER_COST
        if cost <= most and not is_serving:
            self._serve(takers, rooms)
            return
        self._takers.update(dict.fromkeys(takers))
        self._unserved.update(zip(takers, divide(ready, rooms), strict=True))
        if is_serving or len(takers) * TAKER_COST > limits.PASS_JOBS:  # others come first, or it took long to ask them
            self._queues.behind.later(self._queue)
        else:
            self.serve_next()

    def serve_next(self) -> None:
        """A step of a pass that is not over; whoever wants something of the queue waits until it is."""
        cohort = self._cohort
        if cohort is not None and not cohort.is_divided:
            if cohort.count(limits.COHORT_STEP):
                cohort.divide(self._queue.ready)
        elif self._fillings:
            self._fill(next(iter(self._fillings.values())))
        else:
            if cohort is not None and not self._unserved:
                self._unserved.update(cohort.take(max(1, limits.PASS_JOBS // TAKER_COST), self._takers))
                self._cohort = cohort if self._unserved else None
            if self._unserved:
                self._serve_some()
        if self.is_serving:
            self._queues.behind.later(self._queue)

    def _serve_some(self) -> None:
        """As many as fit a step, or the first portion of one who wants much."""
        some: dict[Taker, int] = {}
        cost = 0
        portion = limits.PORTION_JOBS // self._job_cost
        for taker, share in self._unserved.items():
            if share > portion and not some:
                filling = self._fillings[taker] = Filling(taker, share, self._lease_ms(taker))
                self._fill(filling)
                return
            cost += self._job_cost * share + TAKER_COST
            if some and (cost > limits.PASS_JOBS or share > portion):
                break
            some[taker] = share
        self._serve(list(some), list(some.values()))

    def _fill(self, filling: Filling) -> None:
        """One more portion for somebody; when it was the last, it is handed over what it has."""
        taker, leases = filling.taker, self._leases
        if not filling.has_time(self._engine.now()):
            self._end_filling(filling)
            return
        try:
            self._queues.check_open()
            want = filling.want(limits.PORTION_JOBS // self._job_cost)
            filling.moves |= self._deal([want])
            if not filling.fits(want):
                self._put_back(want.picks)
                want.picks, filling.left = [], 0  # nor will it fit in the next step
            elif want.picks:
                self._lease_portion(filling, want)
        except TopicsError as error:
            if not (taker.owner and filling.has_jobs):  # what a stream has it is sent
                self._refuse([taker], error)
                return
            filling.left = 0
        if filling.left and want.jobs and (leases.cut_short or len(want.picks) == want.jobs):
            return
        self._end_filling(filling)

    def _end_filling(self, filling: Filling) -> None:
        taker = filling.taker
        self._fillings.pop(taker, None)
        self.leave(taker)
        if filling.has_jobs:
            tell = partial(self._tell_filled, filling)
            filling.unsynced.then(partial(self._queues.behind.later, self._queue, tell))
        else:
            self.pass_over(taker, filling.moves)

    def _lease_portion(self, filling: Filling, want: Want) -> None:
        """Raises if it is refused."""
        taker = filling.taker
        grant = self._granted(taker, want, filling.deadline or self._engine.state.now_ms + self._lease_ms(taker))
        try:
            told_later = self._queue.log(lease_events.claimed([grant]), filling.unsynced.less)
        except TopicsError:
            self._put_back(want.picks)
            raise
        if told_later:
            filling.unsynced.more()
        self._leases.claim([grant])
        if not filling.has_jobs:
            self._keep(filling)
        filling.add(want, grant, self._leases)

    def _keep(self, filling: Filling) -> None:
        """Jobs are leased to it for the first time, and more are to come."""
        taker = filling.taker
        self._fillings.pop(taker, None)  # it leaves those who wait, not what it has
        taker.promise()
        self._takers[taker], self._fillings[taker] = None, filling

    def _tell_filled(self, filling: Filling) -> None:
        jobs = filling.all_jobs(self._leases)
        moves = set() if filling.taker.owner else filling.moves
        self._queue.after_moves(moves, partial(self._hand_over, filling.taker, jobs))

    def _serve(self, takers: list[Taker], shares: list[int]) -> None:
        """Give takers so many jobs at most. Each is out of the queue's list, unless it stays."""
        try:
            self._queues.check_open()
        except TopicsError as error:  # a shard that stops may have stored already who holds what
            self._refuse(takers, error)
            return
        wants = [Want(min(want, taker.room), taker.batch_bytes, []) for taker, want in zip(takers, shares, strict=True)]
        moves = self._deal(wants)
        now = self._engine.state.now_ms
        given: list[tuple[Taker, Want, Grant]] = []
        for taker, want in zip(takers, wants, strict=True):
            self.leave(taker)
            if want.picks:
                deadline = now + self._lease_ms(taker)
                given.append((taker, want, self._granted(taker, want, deadline)))
            elif self._leases.cut_short and want.share:
                self._takers[taker], self._unserved[taker] = None, want.share  # the rest of the pass is for it
                self._queues.behind.later(self._queue)
            else:
                self.pass_over(taker, moves)
        if given:
            self._grant(given, moves)

    def _deal(self, wants: list[Want]) -> set[int]:
        """Fill them; the jobs that go to the dead-letter topic instead."""
        config = self._topic.config
        limit = config.max_deliveries if config.dead_letter is not None else 0
        now = self._engine.now()
        due = deal(self._topic, self._leases, wants, limit, limits.DEAD_LETTERS_PER_PASS, now)
        return self._queues.dead_letters.start(self._queue, due) if due else set()

    def _granted(self, taker: Taker, want: Want, deadline: int) -> Grant:
        seqs = [seq for seq, _ in want.picks]
        number = self._queues.take_numbers(len(seqs))
        return Grant(taker.node, number, deadline, seqs, taker.owner, self._leases.codes_of(seqs))

    def _refuse(self, takers: list[Taker], error: TopicsError) -> None:
        for taker in takers:
            self.leave(taker)
        for taker in takers:
            taker.fail(error)

    def _grant(self, given: list[tuple[Taker, Want, Grant]], moves: set[int]) -> None:
        grants = [grant for _, _, grant in given]
        jobs: list[tuple[Taker, Jobs]] = []
        begun: list[Filling] = []

        def tell() -> None:
            for taker, got in jobs:
                self._queue.after_moves(set() if taker.owner else moves, partial(self._hand_over, taker, got))
            for filling in begun:
                filling.unsynced.less()

        is_much = sum([TAKER_COST + len(grant.seqs) for grant in grants]) > limits.PASS_JOBS // 4
        if is_much:  # the answers have a turn of their own, and so have those who claim next
            self._queues.behind.later(self._queue)
        tell_later = partial(self._queues.behind.later, self._queue, tell) if is_much else tell
        try:  # a sync serves many claims
            told_later = self._queue.log(lease_events.claimed(grants), tell_later)
        except TopicsError as error:
            for taker, want, _ in given:
                self._put_back(want.picks)
                taker.fail(error)
            return
        self._leases.claim(grants)
        for taker, want, grant in given:
            if self._leases.cut_short and want.share and not taker.owner:  # a stream is sent more in a moment
                begun.append(self._begin_filling(taker, want, grant, moves))
            else:
                jobs.append((taker, Jobs.of(want.picks, grant, self._leases)))
                taker.promise()
        if not told_later:
            tell()

    def _begin_filling(self, taker: Taker, want: Want, grant: Grant, moves: set[int]) -> Filling:
        """What it got is leased, and there may be more for it behind what the pass has looked past."""
        filling = Filling(taker, len(want.picks) + want.share, self._lease_ms(taker))
        filling.moves |= moves
        filling.add(want, grant, self._leases)
        filling.unsynced.more()
        self._keep(filling)
        self._queues.behind.later(self._queue)
        return filling

    def _put_back(self, picks: list[Pick]) -> None:
        for seq, _ in picks:
            self._leases.free.put_back(seq)

    def _hand_over(self, taker: Taker, jobs: Jobs) -> None:
        """Called by what serves everybody: the log, the moves. One taker's trouble must not become theirs."""
        self._queue.note_use()
        try:
            taker.give(jobs)
        except Exception as error:
            self._queue.take_back(jobs.leases)
            taker.fail(error)

    def pass_over(self, taker: Taker, moves: set[int]) -> None:
        if not taker.stays:
            taker.end(moves)
        elif taker.room:
            self._takers[taker] = None
