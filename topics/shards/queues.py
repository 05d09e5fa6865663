"""The queue calls of a shard (API §10), and what all its queues share.

    method  head                           body     reply head  reply body
    claim   topic, wait (false: do not)    request  perf        open fragment
    ack     topic                          request  perf        open fragment: verdicts.py
    nack    topic                          request  perf        open fragment
    extend  topic                          request  perf        open fragment
    work    topic, node, max, lease_ms              see work.py
    redrive see redrive.py
    copy    see copies.py

Lease numbers begin with a random part that is new in every life of the shard, so that no lease of an earlier life is
mistaken for one of now.
"""

import logging
import secrets
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Protocol

import trio

from topics import errors, limits
from topics.core import replies
from topics.core.block import BadBlock
from topics.core.jobs import Jobs
from topics.core.names import check_topic_name
from topics.core.queue_requests import Claim, decode_claim
from topics.core.topic import Topic
from topics.errors import TopicsError, not_a_queue
from topics.rpc.calls import Call, Handler
from topics.shards import leaselog
from topics.shards.catchup import CatchUp, Command
from topics.shards.copies import Copies
from topics.shards.deadletters import DeadLetters
from topics.shards.heads import ClaimHead, TopicHead, WorkHead, read_head
from topics.shards.leaselog import LeaseLog
from topics.shards.peers import Peers
from topics.shards.queue import Queue
from topics.shards.queue_passes import Taker
from topics.shards.reader import BlockReader
from topics.shards.redrive import Redrives
from topics.shards.store import Store
from topics.shards.timers import Timer, Timers
from topics.shards.verdicts import Verdicts
from topics.shards.work import WorkStream

log = logging.getLogger(__name__)
METHODS = ("claim", "ack", "nack", "extend", "work", "redrive", "copy")
NONCE_BITS, COUNTER_BITS = 30, 33  # a number has to fit into 64 bits
SWEEP_MIN = 64
_PERF = {"throttle_wait_ms": 0.0}  # of a claim: no priority puts it off


class Perf(Protocol):
    """What a wait for the log was spent on, as `performance` tells it."""

    def __call__(self, waited_us: int, *, synced: bool) -> dict[str, float]: ...


class Queues:
    def __init__(self, store: Store, peers: Peers) -> None:
        """Gives queues their leases back; may block."""
        self.store = store
        self.engine = store.engine
        self.timers = Timers()
        self.behind = CatchUp()
        self.log = LeaseLog(store.engine)
        self.copies = Copies(store, peers)
        self.dead_letters = DeadLetters(store, self.log, self.copies)
        self.redrives = Redrives(store, self.copies, self.dead_letters, self.of)
        self.verdicts = Verdicts(self)
        self.reader = BlockReader(store)
        self._moved = leaselog.load(store)
        self._queues: dict[int, Queue] = {}
        self._sweep_at = SWEEP_MIN
        self._next_number = secrets.randbits(NONCE_BITS) << COUNTER_BITS | 1
        self._next_owner = 1
        self.perf: Perf = lambda waited_us, *, synced: {}
        self.check_open: Callable[[], None] = lambda: None

    def open(self, reader: BlockReader, perf: Perf, check_open: Callable[[], None]) -> None:
        self.reader = reader
        self.perf = perf
        self.check_open = check_open

    async def run(self) -> None:
        """What goes on beside the calls, until cancelled."""
        for topic, moved in self._moved.items():
            self.dead_letters.resume(self.of(topic), moved)
        self._moved = {}
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.timers.run)
            nursery.start_soon(self.behind.run)
            nursery.start_soon(self.log.run)
            nursery.start_soon(self.dead_letters.run)

    def save(self) -> None:
        """A clean stop: keep who holds what."""
        if any(topic.leases is not None for topic in self.engine.state.by_id.values()):
            try:
                self.log.close()
            except TopicsError as error:
                log.warning("who holds which job is forgotten: %s", error)

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "claim": self.claim,
            "ack": self.verdicts.ack,
            "nack": self.verdicts.nack,
            "extend": self.verdicts.extend,
            "work": self.work,
            "redrive": self.redrives.redrive,
            "copy": self.copies.copy,
        }

    # --- queues ---------------------------------------------------------------------------------------------------

    def find(self, name: str) -> Queue:
        """The queue of this name. Raises `topic_not_found`, `not_a_queue`."""
        topic = self.engine.state.find(check_topic_name(name))
        if topic.config.type != "queue":
            raise not_a_queue(name)
        return self.of(topic)

    def of(self, topic: Topic) -> Queue:
        queue = self._queues.get(topic.id)
        if queue is None:
            if len(self._queues) >= self._sweep_at:
                self._queues = {key: queue for key, queue in self._queues.items() if not queue.is_gone}
                self._sweep_at = max(SWEEP_MIN, 2 * len(self._queues))
            queue = self._queues[topic.id] = Queue(topic, self)
        return queue

    def take_numbers(self, count: int) -> int:
        """The first of so many lease numbers."""
        first = self._next_number
        self._next_number += count
        return first

    def lose(self, queue: Queue, taker: Taker) -> None:
        """The queue that somebody waits for was deleted."""
        name = queue.topic.name
        if not taker.owner:
            taker.fail(errors.topic_not_found(name))
            return

        def look() -> None:
            successor = self.engine.state.topics.get(name)
            if successor is not None and successor.config.type != "queue":
                taker.fail(not_a_queue(name))
            else:
                taker.fail(errors.topic_not_found(name, "any more" if successor is None else "it was made anew"))

        self.timers.after(limits.WORK_GONE_MS, look)

    # --- calls ----------------------------------------------------------------------------------------------------

    def claim(self, call: Call) -> None:
        head = read_head(call.head, ClaimHead)
        request = decode_claim(call.body, self.store.bounds)
        queue = self.find(head.topic)
        claimer = Claimer(self, queue, call, request, request.wait_ms if head.wait else 0)
        self.in_order(call, queue, partial(queue.claim, claimer))

    def work(self, call: Call) -> None:
        head = read_head(call.head, WorkHead)
        queue = self.find(head.topic)
        stream = WorkStream(self, queue, call, head, self._next_owner)
        self._next_owner += 1
        stream.open()

    def named(self, call: Call) -> Queue:
        return self.find(read_head(call.head, TopicHead).topic)

    def check(self, queue: Queue) -> None:
        """Raises if nothing may happen to a queue any more: the shard stops, or it is gone."""
        self.check_open()
        if queue.is_gone:
            raise errors.topic_not_found(queue.topic.name)

    def in_order(self, call: Call, queue: Queue, command: Command) -> None:
        """Run what a call asks for when the queue is up to now; the call may be over by then, and the queue gone."""

        def run() -> Iterator[None]:
            if call.finished:
                return
            try:
                self.check(queue)
                yield from command() or ()
            except Exception as error:
                if not (call.finished and isinstance(error, TopicsError)):  # else who is refused went amid it
                    call.failed(error)

        queue.in_order(run)

    # --- answers --------------------------------------------------------------------------------------------------

    def read(self, call: Call, queue: Queue, jobs: Jobs, then: Callable[[], None]) -> None:
        """Fetch the jobs' texts, then go on. What turns out to be unreadable is no job any more."""
        try:
            missing = self.reader.missing(jobs.plan)
        except BadBlock:
            self.reader.report_damage(queue.topic, jobs.plan, then)
            return
        if not missing:
            then()
            return

        async def fill() -> None:
            try:
                await self.reader.fill(missing)
            except BadBlock:
                self.reader.report_damage(queue.topic, jobs.plan, then)
                return
            then()

        call.run(fill)


class Claimer:
    """A call `claim`, until it is answered."""

    owner = 0

    def __init__(self, queues: Queues, queue: Queue, call: Call, request: Claim, wait_ms: int) -> None:
        self.node = request.node
        self.lease_ms = request.lease_ms
        self.batch_bytes = limits.CLAIM_BYTES_MAX
        self._max = request.max
        self._queues = queues
        self._queue = queue
        self._call = call
        self._waits_until = trio.current_time() + wait_ms / 1000 if wait_ms else 0.0
        self._timer: Timer | None = None  # once it has to wait
        self._patience_ends = 0.0  # with the dead letters that it comes across
        call.on_cancel(self._leave)

    @property
    def room(self) -> int:
        return 0 if self._call.finished else self._max

    @property
    def stays(self) -> bool:
        if self._timer is None and self._waits_until:
            left_ms = max(0, 1000 * (self._waits_until - trio.current_time()))
            self._timer = self._queues.timers.after(left_ms, self._time_up)
        return self._timer is not None and not self._timer.over

    def promise(self) -> None:
        self._leave()  # its time must not end with nothing while jobs are leased to it

    def give(self, jobs: Jobs) -> None:
        if self._call.finished:  # nobody is there to work on them
            self._give_back(jobs)
            return
        self._queues.read(self._call, self._queue, jobs, lambda: self._answer(jobs))

    def end(self, moves: set[int]) -> None:
        """Nothing was there; if that is because jobs had to be moved, look again when they are."""
        now = trio.current_time()
        if moves and not self._patience_ends:
            self._patience_ends = now + limits.DEAD_LETTER_WAIT_MS / 1000
        if moves and now < self._patience_ends:
            self._queue.after_moves(moves, self._look_again)
        else:
            self._answer(None)

    def fail(self, error: Exception) -> None:
        self._leave()
        if not self._call.finished:
            self._call.fail(error)

    def _look_again(self) -> None:
        try:
            if self._queue.is_gone:
                self.fail(errors.topic_not_found(self._queue.topic.name))
            else:
                self._queues.in_order(self._call, self._queue, lambda: self._queue.claim(self))
        except Exception as error:  # its own trouble, not that of the moves
            self.fail(error)

    def _time_up(self) -> None:
        if self._queue.gathers:  # there may be something for it in the pass that is near
            self._queue.be_late(self)
            return
        self._queue.leave(self)
        self._answer(None)

    def _leave(self) -> None:
        self._queue.leave(self)
        if self._timer is not None:
            self._timer.cancel()

    def _answer(self, jobs: Jobs | None) -> None:
        self._queue.in_order(lambda: self._reply(jobs))

    def _reply(self, jobs: Jobs | None) -> Iterator[None]:
        queue, call = self._queue, self._call
        seqs: list[int] = []
        texts: list[bytes] = []
        try:
            if jobs is not None and not call.finished:
                yield from jobs.render(queue.leases, seqs, texts)
                if len(texts) > limits.RENDER_STEP:
                    yield
                yield from queue.settle_in_steps()
            if call.finished:
                self._give_back(jobs)
                return
            if jobs is not None and not texts and queue.ready > 0 and not queue.is_gone:
                # They were deleted meanwhile, and others are there.
                queue.claim(self)
                return
            if jobs is not None:
                call.if_unheard(partial(self._give_back, jobs))
            call.reply({"perf": _PERF}, replies.claimed(queue.topic, texts, self._queues.engine.state.now_ms))
        except Exception as error:
            self._give_back(jobs)
            self.fail(error)

    def _give_back(self, jobs: Jobs | None) -> None:
        """Nobody was told of them."""
        if jobs is not None:
            self._queue.take_back(jobs.leases)
