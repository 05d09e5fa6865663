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
from typing import TYPE_CHECKING, Any

import trio

from topics import limits
from topics.core import lease_events
from topics.core.lease_parts import DISCONNECTED, GIVEN_BACK, Failure
from topics.core.lease_settling import bring_up
from topics.core.leases import Leases
from topics.core.line import jobs_in
from topics.core.topic import Topic
from topics.errors import TopicsError
from topics.shards.catchup import Command
from topics.shards.queue_passes import Passes, Taker
from topics.shards.timers import Timer

if TYPE_CHECKING:
    from topics.shards.queues import Queues


class Queue:
    def __init__(self, topic: Topic, queues: "Queues") -> None:
        if topic.leases is None:
            topic.leases = Leases()
        self.topic = topic
        self.leases = topic.leases
        self._queues = queues
        self._engine = queues.engine
        self._takers: dict[Taker, None] = {}  # in their order
        self._passes = Passes(self, queues, self._takers)
        self._was_woken = False  # while the queue was behind
        self._late: list[Taker] = []  # whose time was up meanwhile
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
        return bring_up(self.topic, self.leases, self._engine.now())

    def in_order(self, command: Command) -> None:
        """Run a command when the leases are up to now: at once, unless that takes long or others wait for it. If it has
        several steps, whoever comes meanwhile waits for the last. It must see to its own errors and to a queue that is
        gone."""
        behind = self._queues.behind
        if behind.is_behind(self) or not self._is_up_to_now():
            behind.later(self, command)
            return
        steps = command()
        for _ in steps or ():
            behind.later(self, lambda: steps)
            break

    def _is_up_to_now(self) -> bool:
        return self.settle() and (self._is_unlogged or self._queues.log.has_begun(self.topic))

    def catch_up(self) -> Iterator[None]:
        """Bring the leases up to now, and into the log if it has to have them, in steps."""
        try:
            if not self.is_gone and not self._is_unlogged:
                yield from self._queues.log.begin_in_steps(self.topic)
        except TopicsError:  # no room: whoever wants a job tries again, and is told
            self._is_unlogged = True
        yield from self.settle_in_steps()

    def settle_in_steps(self) -> Iterator[None]:
        """Bring the leases up to now. A command that others were served amid does so before it tells a number."""
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
        self.note_use()
        # Also if there is nothing yet: something may come in the window. Who would wait for it anyway need not be told.
        if self.topic.config.claim_jitter_ms and (self._window is not None or self.ready or not taker.stays):
            self._takers[taker] = None
            self._gather()
        elif self.ready:
            self._passes.begin([taker])
        else:
            self._passes.pass_over(taker, set())
        self._arm()

    def note_use(self) -> None:
        """Who works a queue consumes it, as readers do a log: that counts for its priority."""
        self.topic.last_read_ms = self._engine.now()

    def add_stream(self, stream: Taker) -> None:
        if self.is_gone:  # since it was opened
            self._queues.lose(self, stream)
            return
        self.note_use()
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

    def take_back(self, leases: list[tuple[int, int]]) -> None:
        """Jobs that somebody was not told of, and the numbers of their leases: those that still stand are given back
        and were not delivered. Many in steps: a stop amid them leaves the others to their deadlines."""
        if self.is_gone:
            return
        if len(leases) > limits.GIVE_BACK_STEP:
            self._queues.behind.later(self, partial(self.take_back, leases[limits.GIVE_BACK_STEP :]))
        seqs = self.leases.still_held(leases[: limits.GIVE_BACK_STEP])
        if seqs:
            self.abandon(seqs, counts=False)

    def leave(self, taker: Taker) -> None:
        """It does not want anything any more."""
        self._passes.leave(taker)

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
            self._late.clear()
            return
        behind = self._queues.behind
        if behind.is_behind(self):
            self._was_woken = True
        elif not self._is_up_to_now():
            behind.later(self)
        else:
            self._feed_freed()
            if self._passes.is_serving:
                self._passes.serve_next()
                if self._was_woken and not self._passes.is_serving:
                    behind.later(self)
            elif self._takers and self.ready:
                self._was_woken = False
                if self.topic.config.claim_jitter_ms:
                    self._gather()
                else:
                    self._passes.begin(list(islice(self._takers, self.ready)))
            self._end_late()
            self._arm()

    def be_late(self, taker: Taker) -> None:
        """Its time is up while a pass is near that may have something for it: that is its last."""
        self._late.append(taker)

    def _end_late(self) -> None:
        if self._late and not self.gathers and not self._passes.is_serving:
            some, self._late = self._late[: limits.LOSE_STEP], self._late[limits.LOSE_STEP :]
            for taker in some:
                if taker in self._takers:
                    self._passes.leave(taker)
                    self._passes.pass_over(taker, set())
            if self._late:
                self._queues.behind.later(self)

    def _feed_freed(self) -> None:
        """Streams that hold less than before want more."""
        freed = self.leases.streams.freed
        for _ in range(min(len(freed), limits.COHORT_STEP)):
            stream = self._streams.get(freed.pop())
            if stream is not None and stream.room:
                self._takers[stream] = None
        if freed:
            self._queues.behind.later(self)

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
        self._passes.begin(list(self._takers))
        self._arm()

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
        takers = [*self._takers, *(stream for stream in self._streams.values() if stream not in self._takers)]
        self._passes.end()
        for action in tuple(self._for_moves):
            action()
        for first in range(0, len(takers), limits.LOSE_STEP):
            some = takers[first : first + limits.LOSE_STEP]
            if first:  # others have a turn
                self._queues.behind.later(self, partial(self._lose, some))
            else:
                self._lose(some)

    def _lose(self, takers: list[Taker]) -> None:
        for taker in takers:
            self._queues.lose(self, taker)
