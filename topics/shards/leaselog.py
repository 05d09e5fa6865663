"""The leases log: the lease events of all queues of a shard, in one hidden topic.

Only queues with `leases_durable` write what happens to their leases; a claim is answered when its event is durable.
When that setting has changed, what was written before is replaced before anything else happens to a lease.
Of every topic are written: jobs that are about to become dead letters, or dead letters to go back, and those that have,
and, at a clean stop, who holds what. That last is void as soon as the shard has started again: by then it is in memory
and changes unseen.

The log is written anew, as few events, when it has grown by about as many events as there are jobs to tell of; what was
before is deleted. That is done in slices, beside what else happens, which is logged as ever
(topics/core/lease_events.py). Whatever a crash keeps of it, a replay comes to the same.
"""

import logging
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import trio

from topics import limits
from topics.core import lease_events
from topics.core.block import BadBlock
from topics.core.lease_events import KEPT, VOIDED, BadLeaseEvent, Kept, LeaseEvent, Replayed
from topics.core.lease_parts import DISCONNECTED, Failure
from topics.core.leases import leases_of
from topics.core.line import is_gone, is_uneven
from topics.core.requests import Append, RecordIn
from topics.core.topic import Topic
from topics.errors import TopicsError
from topics.shards import hidden
from topics.shards.answers import Fail
from topics.shards.engine import Engine
from topics.shards.slices import in_slices
from topics.shards.store import Store

log = logging.getLogger(__name__)
NAME = "$leases"
Made = tuple[int, list[Any]]


class LeaseLog:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._events = 0  # since it was last written anew
        self._limit = limits.LEASE_EVENTS_MIN
        self._grown = trio.Event()
        self._is_busy = False  # all there is of a queue is being written
        self._is_closed = False  # for good: what a clean stop has written down stands

    def begin(self, topic: Topic) -> None:
        """Before something happens to a queue's leases: from now on the log has everything of them, or nothing."""
        if self._events > self._limit:
            self._grown.set()
        leases = topic.leases
        assert leases is not None
        durable = topic.config.leases_durable
        if not self._is_closed and (durable != leases.logged or (durable and leases.stale)):
            kept = Kept((leases if durable else leases.without_leases()).snapshot(), clean=False, durable=durable)
            self._append([kept.encode(topic.id, topic.epoch, self._engine.now())])
            self._events += 1
        leases.logged, leases.stale = durable, False

    def has_begun(self, topic: Topic) -> bool:
        """Whether there is little for `begin` to write, or nothing."""
        leases = topic.leases
        assert leases is not None
        durable = topic.config.leases_durable
        if durable == leases.logged and not (durable and leases.stale):
            return True
        return (leases.known if durable else len(leases.moving)) <= limits.KEPT_AT_ONCE

    def begin_in_steps(self, topic: Topic) -> Iterator[None]:
        """The same where there is much. Nobody is given a job of the queue meanwhile; what happens to its leases all
        the same is logged as ever. After a crash ahead of its end it has not been, and nobody was told otherwise."""
        while self._is_busy:
            yield
        leases, durable = topic.leases, topic.config.leases_durable
        if leases is None or self._is_closed or self.has_begun(topic):
            return
        kept = (leases if durable else leases.without_leases()).snapshot()
        was_stale, leases.stale = leases.stale, False
        was_logged, leases.logged = leases.logged, durable  # whatever happens from now on comes on top of that
        try:
            yield from self._keep(topic, Kept(kept, clean=False, durable=durable, begun=True))
        except TopicsError:
            leases.stale = leases.stale or was_stale
            leases.logged = was_logged
            raise

    def _keep(self, topic: Topic, kept: Kept) -> Iterator[None]:
        """Write down all there is of a queue at this moment, in steps. Only one may be at it: a replay takes the events
        since the last BEGUN for those that came in between. It ends half-way if the log is closed meanwhile: that has
        written down everything and deleted what this began with."""
        self._is_busy = True
        try:
            self.note(topic, lease_events.begun())
            for record in kept.in_parts(limits.KEPT_PART, topic.id, topic.epoch, self._engine.now()):
                self._append([record])
                yield
                if self._is_closed:
                    return
        finally:
            self._is_busy = False

    def note(
        self,
        topic: Topic,
        made: Made,
        done: Callable[[], None] = lambda: None,
        fail: Fail = lambda _: None,
    ) -> None:
        """Log an event; `done` when it is durable. Raises if it is refused: then it must not happen."""
        event = LeaseEvent(made[0], topic.id, topic.epoch, self._engine.now(), made[1])
        self._append([lease_events.encode(event)], done, fail)
        self._events += 1

    # --- writing it anew ------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Write it anew whenever it has grown, until cancelled."""
        while True:
            await self._grown.wait()
            self._grown = trio.Event()
            try:
                await in_slices(self.write_anew())
            except TopicsError as error:  # no room: it is tried again when it has grown once more
                log.warning("the leases log is not written anew: %s", error)

    def write_anew(self) -> Iterator[None]:
        """Everything that has to be known, instead of all events so far, in steps. Between two of them every event
        that is logged has happened."""
        engine = self._engine
        while self._is_busy:  # that must not begin below what is deleted in the end, and end above it
            yield
        book = hidden.open(engine, NAME)
        first_seq = book.next_seq
        self._events, known = 0, 0
        for topic in list(engine.state.by_id.values()):
            while self._is_busy:
                yield
            if self._is_closed:
                return
            kept = _kept(topic, clean=False, begun=True)
            if kept is not None and topic.leases is not None:
                known += topic.leases.known
                yield from self._keep(topic, kept)
            yield
        if self._is_closed:
            return
        engine.delete_records(book, first_seq, None, lambda _: None, lambda _: None)
        self._limit = max(limits.LEASE_EVENTS_MIN, known)

    def close(self) -> None:
        """A clean stop: everything there is, as the last events of the log."""
        self._is_closed = True
        engine, records = self._engine, []
        for topic in engine.state.by_id.values():
            kept = _kept(topic, clean=True)
            if kept is not None:
                records.append(kept.encode(topic.id, topic.epoch, engine.now()))
        book = hidden.open(engine, NAME)
        first_seq = book.next_seq
        if records:
            self._append(records)
        engine.delete_records(book, first_seq, None, lambda _: None, lambda _: None)

    def _append(
        self, records: list[bytes], done: Callable[[], None] = lambda: None, fail: Fail = lambda _: None
    ) -> None:
        hidden.open(self._engine, NAME)
        request = Append([RecordIn(msgspec.Raw(record)) for record in records], None, None, None, None, False)
        self._engine.append(NAME, request, lambda _: done(), fail)


def _kept(topic: Topic, *, clean: bool, begun: bool = False) -> Kept | None:
    """What to keep of a topic; None if there is nothing."""
    leases = topic.leases
    if leases is None:
        return None
    durable = topic.config.leases_durable and leases.logged
    if not (durable or clean):
        leases = leases.without_leases()
        if not leases.dead_lettered and not leases.moving:
            return None
    return Kept(leases.snapshot(), clean=clean, durable=durable, begun=begun)


# --- recovery -----------------------------------------------------------------------------------------------------


def load(store: Store) -> dict[Topic, set[int]]:
    """Give the queues their leases back; the jobs of each that the dead-letter topic has already. May block."""
    engine = store.engine
    queues: dict[tuple[int, int], Replayed] = defaultdict(Replayed)
    is_open = False  # there is something that must be void from now on
    for event in _events(store):
        if event.kind == VOIDED:
            is_open = False
            for replayed in queues.values():
                replayed.apply(event)
        else:
            is_open = is_open or (event.kind == KEPT and not event.fields[1])
            queues[event.topic_id, event.epoch].apply(event)
    moved = {}
    for (topic_id, epoch), replayed in queues.items():
        topic = engine.state.by_id.get(topic_id)
        if topic is not None and topic.epoch == epoch:  # of a log: dead letters that are moved back
            _attach(topic, replayed, engine.now())
            moved[topic] = replayed.moved
    for topic in engine.state.by_id.values():
        if topic.leases is None and topic.config.type == "queue" and is_uneven(topic):
            leases_of(topic).match_with(topic)
    if is_open:
        _void(store)
    return moved


def _attach(topic: Topic, replayed: Replayed, now: int) -> None:
    durable = topic.config.leases_durable and replayed.durable
    leases = replayed.leases if durable or replayed.clean else replayed.leases.without_leases()
    leases.logged = replayed.durable
    leases.match_with(topic)
    leases.leave([seq for seq in replayed.moved if not is_gone(topic, seq)])  # until it is deleted (deadletters.py)
    leases.end_streams(Failure(DISCONNECTED, now) if topic.config.dead_letter is not None else None)
    topic.leases = leases


def _void(store: Store) -> None:
    kind, fields = lease_events.voided()
    record = lease_events.encode(LeaseEvent(kind, 0, 0, store.engine.now(), fields))
    request = Append([RecordIn(msgspec.Raw(record))], None, None, None, None, False)
    store.engine.append(NAME, request, lambda _: None, lambda _: None)
    store.commit_all()


def _events(store: Store) -> Iterator[LeaseEvent]:
    topic = store.engine.state.topics.get(NAME)
    for chunk in list(topic.chunks) if topic is not None else ():
        try:
            block = hidden.read_block(store, chunk)
        except BadBlock as error:
            log.error("lease events %d to %d are lost: %s", chunk.first_seq, chunk.last_seq, error)
            continue
        for index in hidden.live_in(chunk):
            try:
                yield lease_events.decode(hidden.data_of(block, index))
            except BadLeaseEvent as error:
                log.error("lease event %d is lost: %s", chunk.first_seq + index, error)
