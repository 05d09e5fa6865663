"""One queue at work: who waits for jobs, and the passes that give them out.

Everybody who wants jobs is a `Taker`: a call `claim`, or a stream. A pass gives what is ready to all takers at once,
divided evenly (topics/core/claims.py). Without `claim_jitter_ms` a claim is a pass of its own; with it, takers gather
for that long first. Those who found nothing and may wait stay, and the next job, nack, ack, or lease that ends makes
another pass: there is one timer a queue for the next of these that nobody announces, and none while nobody waits.

What the dead-letter topic is due goes there (deadletters.py); a claim that found such jobs waits a moment for them.
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

import trio

from topics import limits
from topics.core import lease_events
from topics.core.claims import Want, deal, divide
from topics.core.jobs import Jobs
from topics.core.lease_parts import DISCONNECTED, GIVEN_BACK, Failure, Grant
from topics.core.leases import Leases
from topics.core.line import Pick, first_job, jobs_in
from topics.core.topic import Topic
from topics.errors import TopicsError
from topics.shards.timers import Timer

if TYPE_CHECKING:
    from topics.shards.queues import Queues

TAKER_COST = 32  # of one who gets jobs, in jobs


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


class Queue:
    def __init__(self, topic: Topic, queues: "Queues") -> None:
        if topic.leases is None:
            topic.leases = Leases()
        self.topic = topic
        self.leases = topic.leases
        self._queues = queues
        self._engine = queues.engine
        self._takers: dict[Taker, None] = {}  # in their order
        self._unserved: dict[Taker, int] = {}  # of these: their pass is not over, and what each is to get by it
        self._was_woken = False  # while the queue was behind
        self._streams: dict[int, Taker] = {}
        self._window: Timer | None = None  # takers gather until it ends
        self._alarm: Timer | None = None
        self._alarm_due = 0
        self._ended = False
        self._is_unlogged = False  # the leases log refused to begin
        self._for_moves: dict[Callable[[], None], set[int]] = {}

    @property
    def idle(self) -> bool:
        return not self._takers and not self._streams and not self._for_moves

    @property
    def is_gone(self) -> bool:
        return self.topic.removing or self._engine.state.by_id.get(self.topic.id) is not self.topic

    def settle(self) -> bool:
        """Bring the leases up to now, as far as that fits a turn; whether it did."""
        if not self._engine.expire(self.topic):
            return False
        return self.leases.settle(first_job(self.topic), self._engine.now())

    def in_order(self, command: Callable[[], None]) -> None:
        """Run a command when the leases are up to now: at once, unless that takes long or others wait for it. It must
        see to its own errors and to a queue that is gone."""
        behind = self._queues.behind
        if behind.is_behind(self) or not self._is_up_to_now():
            behind.later(self, command)
        else:
            command()

    def _is_up_to_now(self) -> bool:
        return self.settle() and (self._is_unlogged or self._queues.log.has_begun(self.topic))

    def catch_up(self) -> Iterator[None]:
        """Bring the leases up to now, and into the log if it has to have them, in steps."""
        try:
            if not self.is_gone and not self._is_unlogged:
                yield from self._queues.log.begin_in_steps(self.topic)
        except TopicsError:  # no room: whoever wants a job tries again, and is told
            self._is_unlogged = True
        while not self.is_gone and not self.settle():
            yield

    async def up_to_now(self) -> None:
        """Until the leases are."""
        done = trio.Event()
        self.in_order(done.set)
        await done.wait()

    @property
    def ready(self) -> int:
        return self.leases.ready(jobs_in(self.topic))

    # --- takers ---------------------------------------------------------------------------------------------------

    def claim(self, taker: Taker) -> None:
        """Serve a claim: now, with its cohort, or when there is something. In order."""
        self._note_use()
        if self.topic.config.claim_jitter_ms and (self._window is not None or self.ready):
            self._takers[taker] = None
            self._gather()
        elif self.ready:
            self._pass([taker])
        else:
            self._pass_over(taker, set())
        self._arm()

    def _note_use(self) -> None:
        """Who works a queue consumes it, as readers do a log: that counts for its priority."""
        self.topic.last_read_ms = self._engine.now()

    def add_stream(self, stream: Taker) -> None:
        self._note_use()
        self._streams[stream.owner] = stream
        self.leases.streams.open(stream.owner)
        self._takers[stream] = None
        self.wake()

    def drop_stream(self, stream: Taker) -> None:
        """Its connection is gone: what it holds is free at once, or, if that is much, before anybody is served. A stop
        ahead of that leaves it on a stream that is no more, and the next start gives it back."""
        if self._streams.pop(stream.owner, None) is None:
            return
        self.leave(stream)
        behind = self._queues.behind
        if behind.is_behind(self) or self.leases.streams.count(stream.owner) > limits.GIVE_BACK_STEP // 8:
            behind.later(self, partial(self._clear, stream.owner))
        else:
            self._clear(stream.owner)

    def _clear(self, owner: int) -> None:
        """Give back what a stream that is gone holds, or a part of it if it is much."""
        held = self.leases.streams.seqs(owner) if not self.is_gone else []
        if len(held) > limits.GIVE_BACK_STEP:
            self._queues.behind.later(self, partial(self._clear, owner))
        else:
            self.leases.streams.close(owner)
        if held:
            self.abandon(held[: limits.GIVE_BACK_STEP], counts=True)
        else:
            self.wake()

    def release(
        self,
        seqs: list[int],
        delay_ms: int,
        done: Callable[[], None] = lambda: None,
        *,
        reason: str = "",
        counts: bool = True,
    ) -> None:
        """Give leases back; `done` when that may be told. Raises if it is refused."""
        now = self._engine.now()
        due = now + delay_ms
        told = reason or (counts and self.topic.config.dead_letter is not None)
        failure = Failure(reason or GIVEN_BACK, now) if told else None
        told_later = self.log(lease_events.released(seqs, due, failure, counts=counts), done)
        self.leases.release(seqs, due, now, failure, counts=counts)
        if not told_later:
            done()

    def abandon(self, seqs: list[int], *, counts: bool) -> None:
        """Leases whose holder is gone: given back, whether it can be logged or not. It `counts` if it had the jobs."""
        has_dead_letters = self.topic.config.dead_letter is not None
        try:
            self.release(seqs, 0, reason=DISCONNECTED if counts and has_dead_letters else "", counts=counts)
        except TopicsError:  # a crash would leave them to their deadlines
            self.leases.release(seqs, 0, 0, counts=counts)
        self.wake()

    def leave(self, taker: Taker) -> None:
        """It does not want anything any more."""
        self._takers.pop(taker, None)
        self._unserved.pop(taker, None)

    def hungry(self, stream: Taker) -> None:
        """A stream can take jobs again."""
        if stream.owner in self._streams and stream.room:
            self._takers[stream] = None
            self.wake()

    # --- passes ---------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Something changed: there may be jobs for those who wait."""
        if self.is_gone:
            self._end_all()
            return
        if not self._takers and not self._streams:
            return
        behind = self._queues.behind
        if behind.is_behind(self):
            self._was_woken = True
        elif not self._is_up_to_now():
            behind.later(self)
        else:
            self._feed_freed()
            if self._unserved:
                self._serve_next()
                if self._was_woken and not self._unserved:
                    behind.later(self)
            elif self._takers and self.ready:
                self._was_woken = False
                if self.topic.config.claim_jitter_ms:
                    self._gather()
                else:
                    self._pass(list(islice(self._takers, self.ready)))
            self._arm()

    def _feed_freed(self) -> None:
        """Streams that hold less than before want more."""
        freed = self.leases.streams.freed
        while freed:
            stream = self._streams.get(freed.pop())
            if stream is not None and stream.room:
                self._takers[stream] = None

    @property
    def gathers(self) -> bool:
        """Whether a pass for all who wait is near."""
        return self._window is not None or self._queues.behind.is_behind(self)

    def _gather(self) -> None:
        if self._window is None:
            self._window = self._queues.timers.after(self.topic.config.claim_jitter_ms, self._end_window)

    def _end_window(self) -> None:
        self._window = None
        self.in_order(self._serve_cohort)

    def _serve_cohort(self) -> None:
        if self.is_gone:
            self._end_all()
            return
        self._feed_freed()
        self._pass(list(self._takers))
        self._arm()

    def _pass(self, takers: list[Taker]) -> None:
        """Divide what is ready among the takers. Where that is much, each gets its part in one of several steps."""
        rooms = [taker.room for taker in takers]
        if len(takers) == 1 or min(sum(rooms), self.ready) + TAKER_COST * len(takers) <= limits.PASS_JOBS:
            self._serve(takers, rooms)
        else:
            self._unserved.update(zip(takers, divide(self.ready, rooms), strict=True))
            self._serve_next()

    def _serve_next(self) -> None:
        """The next takers of a pass that is not over; whoever wants something of the queue waits until it is."""
        some: dict[Taker, int] = {}
        cost = 0
        for taker, share in self._unserved.items():
            cost += share + TAKER_COST
            if some and cost > limits.PASS_JOBS:
                break
            some[taker] = share
        self._serve(list(some), list(some.values()))
        if self._unserved:
            self._queues.behind.later(self)

    def _serve(self, takers: list[Taker], shares: list[int]) -> None:
        """Give takers so many jobs at most. Each is out of the queue's list, unless it stays."""
        try:
            self._queues.check_open()
        except TopicsError as error:  # a shard that stops may have stored already who holds what
            self._refuse(takers, error)
            return
        config, leases = self.topic.config, self.leases
        wants = [Want(min(want, taker.room), taker.batch_bytes, []) for taker, want in zip(takers, shares, strict=True)]
        limit = config.max_deliveries if config.dead_letter is not None else 0
        now = self._engine.now()
        due = deal(self.topic, leases, wants, limit, limits.DEAD_LETTERS_PER_PASS, now)
        moves = self._queues.dead_letters.start(self, due) if due else set()
        given: list[tuple[Taker, list[Pick], Grant]] = []
        for taker, want in zip(takers, wants, strict=True):
            self.leave(taker)
            if want.picks:
                number = self._queues.take_numbers(len(want.picks))
                deadline = now + (taker.lease_ms or config.lease_ms)
                seqs = [seq for seq, _ in want.picks]
                grant = Grant(taker.node, number, deadline, seqs, taker.owner, leases.codes_of(seqs))
                given.append((taker, want.picks, grant))
            elif leases.cut_short and want.jobs:
                self._takers[taker], self._unserved[taker] = None, want.jobs  # the rest of the pass is for it
                self._queues.behind.later(self)
            else:
                self._pass_over(taker, moves)
        if given:
            self._grant(given, moves)

    def _refuse(self, takers: list[Taker], error: TopicsError) -> None:
        for taker in takers:
            self.leave(taker)
        for taker in takers:
            taker.fail(error)

    def _grant(self, given: list[tuple[Taker, list[Pick], Grant]], moves: set[int]) -> None:
        grants = [grant for _, _, grant in given]
        jobs: list[tuple[Taker, Jobs]] = []

        def tell() -> None:
            for taker, got in jobs:
                self.after_moves(set() if taker.owner else moves, partial(self._hand_over, taker, got))

        is_much = sum(TAKER_COST + len(grant.seqs) for grant in grants) > limits.PASS_JOBS // 4
        if is_much:  # the answers have a turn of their own, and so have those who claim next
            self._queues.behind.later(self)
        tell_later = partial(self._queues.behind.later, self, tell) if is_much else tell  # a sync serves many claims
        try:
            told_later = self.log(lease_events.claimed(grants), tell_later)
        except TopicsError as error:
            for taker, _, grant in given:
                for seq in grant.seqs:
                    self.leases.free.put_back(seq)
                taker.fail(error)
            return
        self.leases.claim(grants)
        for taker, picks, grant in given:
            jobs.append((taker, Jobs(picks, grant, self.leases)))
            taker.promise()
        if not told_later:
            tell()

    def _hand_over(self, taker: Taker, jobs: Jobs) -> None:
        """Called by what serves everybody: the log, the moves. One taker's trouble must not become theirs."""
        self._note_use()
        try:
            taker.give(jobs)
        except Exception as error:
            self.abandon(self.leases.still_held(jobs.leases), counts=False)
            taker.fail(error)

    def _pass_over(self, taker: Taker, moves: set[int]) -> None:
        if not taker.stays:
            taker.end(moves)
        elif taker.room:
            self._takers[taker] = None

    def log(self, made: tuple[int, list[Any]], done: Callable[[], None]) -> bool:
        """Log what is about to happen to leases, if this queue does. Whether `done` is called later, when it may be
        told; else it may be told as soon as it has happened. Raises if it is refused."""
        self._queues.log.begin(self.topic)
        self._is_unlogged = False
        if self.topic.config.leases_durable:
            self._queues.log.note(self.topic, made, done)
            return True
        return False

    # --- waiting --------------------------------------------------------------------------------------------------

    def _arm(self) -> None:
        """See to it that somebody wakes those who wait."""
        if not self._takers and not self._streams:
            return
        if self.topic.waiters is None:
            self.topic.waiters = {}
        self.topic.waiters[self.wake] = None
        due = self.leases.next_due
        if due is None or self._window is not None:
            return
        if self._alarm is not None and not self._alarm.over:
            if self._alarm_due <= due:
                return
            self._alarm.cancel()
        self._alarm, self._alarm_due = self._queues.timers.after(max(0, due - self._engine.now()), self.wake), due

    def after_moves(self, moves: set[int], action: Callable[[], None]) -> None:
        """Do it when these jobs have arrived in the dead-letter topic, but do not wait for ever."""
        left = {seq for seq in moves if seq in self.leases.moving}
        if not left:
            action()
            return

        def once() -> None:
            if self._for_moves.pop(once, None) is not None:
                timer.cancel()
                action()

        self._for_moves[once] = left
        timer = self._queues.timers.after(limits.DEAD_LETTER_WAIT_MS, once)

    def move_over(self, seq: int) -> None:
        """A job has arrived in the dead-letter topic, or does not go there."""
        for action, moves in tuple(self._for_moves.items()):
            moves.discard(seq)
            if not moves:
                action()
        self.wake()

    def _end_all(self) -> None:
        """The topic is gone."""
        if self._ended:
            return
        self._ended = True
        for timer in (self._window, self._alarm):
            if timer is not None:
                timer.cancel()
        self._window = self._alarm = None
        takers = {**self._takers, **dict.fromkeys(self._streams.values())}
        self._takers, self._unserved = {}, {}
        for action in tuple(self._for_moves):
            action()
        for taker in takers:
            self._queues.lose(self, taker)
