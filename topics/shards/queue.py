"""One queue at work: who waits for jobs, and the passes that give them out.

Everybody who wants jobs is a `Taker`: a call `claim`, or a stream. A pass gives what is ready to all takers at once,
divided evenly (topics/core/claims.py). Without `claim_jitter_ms` a claim is a pass of its own; with it, takers gather
for that long first. Those who found nothing and may wait stay, and the next job, nack, ack, or lease that ends makes
another pass: there is one timer a queue for the next of these that nobody announces, and none while nobody waits.

What the dead-letter topic is due goes there (deadletters.py); a claim that found such jobs waits a moment for them.
"""

from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

import trio

from topics import limits
from topics.core import lease_events
from topics.core.claims import Want, deal
from topics.core.jobs import Jobs
from topics.core.lease_parts import DISCONNECTED, GIVEN_BACK, Failure, Grant
from topics.core.leases import Leases
from topics.core.line import Pick, first_job, jobs_in
from topics.core.topic import Topic
from topics.errors import TopicsError
from topics.shards.timers import Timer

if TYPE_CHECKING:
    from topics.shards.queues import Queues


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
        self._streams: dict[int, Taker] = {}
        self._window: Timer | None = None  # takers gather until it ends
        self._alarm: Timer | None = None
        self._alarm_due = 0
        self._ended = False
        self._for_moves: dict[Callable[[], None], set[int]] = {}

    @property
    def idle(self) -> bool:
        return not self._takers and not self._streams and not self._for_moves

    @property
    def is_gone(self) -> bool:
        return self.topic.removing or self._engine.state.by_id.get(self.topic.id) is not self.topic

    def settle(self) -> bool:
        """Bring the leases up to now, as far as that fits a turn; whether it did."""
        self._engine.expire(self.topic)
        return self.leases.settle(first_job(self.topic), self._engine.now())

    def in_order(self, command: Callable[[], None]) -> None:
        """Run a command when the leases are up to now: at once, unless that takes long or others wait for it. It must
        see to its own errors and to a queue that is gone."""
        behind = self._queues.behind
        if behind.is_behind(self) or not self.settle():
            behind.later(self, command)
        else:
            command()

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
        """Its connection is gone: what it holds is free at once."""
        if self._streams.pop(stream.owner, None) is None:
            return
        self.leave(stream)
        seqs = self.leases.streams.seqs(stream.owner)
        self.leases.streams.close(stream.owner)
        if seqs and not self.is_gone:
            self.abandon(seqs, counts=True)
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
        if (self._takers or self._streams) and not self._queues.behind.is_behind(self):
            if not self.settle():
                self._queues.behind.later(self)
                return
            self._feed_freed()
            if self._takers and self.ready:
                if self.topic.config.claim_jitter_ms and not self.leases.cut_short:
                    self._gather()
                else:
                    self._pass_on()
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

    def _pass_on(self) -> None:
        """A pass for those who wait: for the first of them, if what they want is no more than their even share. Then
        they get it, whatever the others want, and those have a pass of their own in one of the next turns."""
        ready = self.ready
        takers = (taker for taker in self._takers if taker.room)  # not those whose caller is gone
        first = list(islice(takers, min(ready, limits.PASS_TAKERS)))
        sharers = min(ready, len(self._takers))
        is_enough = 0 < len(first) < sharers and all(taker.room * sharers <= ready for taker in first)
        self._pass(first if is_enough else [*first, *islice(takers, ready - len(first))])
        if is_enough:
            self._queues.behind.later(self)

    def _pass(self, takers: list[Taker]) -> None:
        """Divide what is ready among the takers. Each of them is out of the queue's list, unless it stays."""
        try:
            self._queues.check_open()
        except TopicsError as error:  # a shard that stops may have stored already who holds what
            self._refuse(takers, error)
            return
        config, leases = self.topic.config, self.leases
        wants = [Want(taker.room, taker.batch_bytes, []) for taker in takers]
        limit = config.max_deliveries if config.dead_letter is not None else 0
        now = self._engine.now()
        due = deal(self.topic, leases, wants, limit, limits.DEAD_LETTERS_PER_PASS, now)
        moves = self._queues.dead_letters.start(self, due) if due else set()
        given: list[tuple[Taker, list[Pick], Grant]] = []
        for taker, want in zip(takers, wants, strict=True):
            self._takers.pop(taker, None)
            if want.picks:
                number = self._queues.take_numbers(len(want.picks))
                deadline = now + (taker.lease_ms or config.lease_ms)
                seqs = [seq for seq, _ in want.picks]
                grant = Grant(taker.node, number, deadline, seqs, taker.owner, leases.codes_of(seqs))
                given.append((taker, want.picks, grant))
            elif leases.cut_short and taker.room:
                self._takers[taker] = None  # the rest of the pass is for it
                self._queues.behind.later(self)
            else:
                self._pass_over(taker, moves)
        if given:
            self._grant(given, moves)

    def _refuse(self, takers: list[Taker], error: TopicsError) -> None:
        for taker in takers:
            self._takers.pop(taker, None)
        for taker in takers:
            taker.fail(error)

    def _grant(self, given: list[tuple[Taker, list[Pick], Grant]], moves: set[int]) -> None:
        grants = [grant for _, _, grant in given]
        jobs: list[tuple[Taker, Jobs]] = []
        tell = partial(self._tell, jobs, moves)
        try:
            told_later = self.log(lease_events.claimed(grants), tell)
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

    def _tell(self, jobs: list[tuple[Taker, Jobs]], moves: set[int], first: int = 0) -> None:
        """Jobs are leased: their takers get them, the first of them now and the others in the next turns."""
        last = first + limits.WAKE_AT_ONCE
        for taker, got in jobs[first:last]:
            self.after_moves(set() if taker.owner else moves, partial(self._hand_over, taker, got))
        if last < len(jobs):
            self._queues.behind.later(self, partial(self._tell, jobs, moves, last))

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
        log = self._queues.log
        log.begin(self.topic)
        if self.topic.config.leases_durable:
            log.note(self.topic, made, done)
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
        self._takers = {}
        for action in tuple(self._for_moves):
            action()
        for taker in takers:
            self._queues.lose(self, taker)
