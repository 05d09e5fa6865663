"""The groups log: what happens to the consumer groups of a shard, in one hidden topic.

An event is one record, durable before its call is answered. Groups are changed at once, by the same `apply` that a
replay uses, so that calls are decided by the newest state; a cursor is shown to anybody only when it is durable.

When the log has grown by about as many events as there are groups, it is written anew: one event a group, many in a
record, a record with each event that comes; then what was before is deleted. Whatever a crash keeps of that, a replay
comes to the same, because an event of a group tells all that counts of it or just its cursor, and the last one is
right. Events of topics that are gone count for nothing, and go when the log is written anew.
"""

import logging
from collections.abc import Callable, Iterator
from itertools import islice

import msgspec

from topics import limits
from topics.core import groups as core
from topics.core.block import BadBlock
from topics.core.groups import BadGroupEvent, GroupEvent
from topics.core.requests import Append, RecordIn
from topics.core.topic import Topic
from topics.shards import hidden
from topics.shards.answers import Fail
from topics.shards.engine import Engine
from topics.shards.store import Store

log = logging.getLogger(__name__)
NAME = "$groups"
OVER = object()


class GroupLog:
    def __init__(self, store: Store) -> None:
        """Gives topics their groups back, so it is for recovery's thread; everything else is for the loop."""
        self._engine = store.engine
        self.topics: dict[int, Topic] = {}  # those with groups, by id
        self._events = 0  # since it was last written anew
        self._anew: Iterator[None] | None = None  # while it is
        self._load(store)
        self._limit = max(limits.GROUP_EVENTS_MIN, self.count)

    @property
    def count(self) -> int:
        return sum(len(topic.groups or ()) for topic in self.topics.values())

    def note(self, topic: Topic, event: GroupEvent, done: Callable[[], None], fail: Fail) -> None:
        """Log an event and apply it; `done` when it is durable. Raises if it is refused: then nothing has happened."""
        if self._anew is not None or self._events >= self._limit:
            self._go_on_anew()

        def finish() -> None:
            if event.kind == core.MOVED and group is not None:
                group.show(event.fields[0])
            done()

        _append(self._engine, [core.encode([event])], finish, fail)
        self._events += 1
        if topic.groups is None:
            topic.groups = {}
        core.apply(topic.groups, event)
        group = topic.groups.get(event.group)
        if topic.groups:
            self.topics[topic.id] = topic
        else:
            self.forget(topic)

    def forget(self, topic: Topic) -> None:
        """The topic is gone, or has no groups any more."""
        topic.groups = None
        self.topics.pop(topic.id, None)

    def _go_on_anew(self) -> None:
        """One step of it. If that is refused, the next event begins from the start."""
        steps, self._anew = self._anew or self._write_anew(), None
        if next(steps, OVER) is not OVER:
            self._anew = steps

    def _write_anew(self) -> Iterator[None]:
        """A record a step; events that come between two of them follow what they change, or are told again."""
        before, first_seq = self._events, hidden.open(self._engine, NAME).next_seq
        events = self._kept()
        while batch := list(islice(events, limits.GROUP_EVENTS_RECORD)):
            _append(self._engine, [core.encode(batch)], lambda: None, lambda _: None)
            if len(batch) < limits.GROUP_EVENTS_RECORD:
                break
            yield
        topic = hidden.open(self._engine, NAME)
        self._engine.delete_records(topic, first_seq, None, lambda _: None, lambda _: None)
        self._events, self._limit = self._events - before, max(limits.GROUP_EVENTS_MIN, self.count)

    def _kept(self) -> Iterator[GroupEvent]:
        """Each group as it is when it has its turn."""
        for topic in list(self.topics.values()):
            for name in list(topic.groups or ()):
                group = (topic.groups or {}).get(name)
                if group is not None:
                    yield core.kept(topic, group, self._engine.now())

    # --- recovery -------------------------------------------------------------------------------------------------

    def _load(self, store: Store) -> None:
        by_id = store.engine.state.by_id
        for event in _stored(store):
            self._events += 1
            topic = by_id.get(event.topic_id)
            if topic is not None:
                if topic.groups is None:
                    topic.groups = {}
                core.apply(topic.groups, event)
                self.topics[topic.id] = topic
        now = store.engine.now()
        moved = [core.kept(topic, group, now) for topic in self.topics.values() for group in core.settle(topic)]
        if moved:
            _append(store.engine, [core.encode(moved)], lambda: None, lambda _: None)
            store.commit_all()
        for topic in list(self.topics.values()):
            for group in (topic.groups or {}).values():
                group.shown = group.cursor
            if not topic.groups:
                self.forget(topic)


def _append(engine: Engine, records: list[bytes], done: Callable[[], None], fail: Fail) -> None:
    hidden.open(engine, NAME)
    request = Append([RecordIn(msgspec.Raw(record)) for record in records], None, None, None, None, False)
    engine.append(NAME, request, lambda _: done(), fail)


def _stored(store: Store) -> Iterator[GroupEvent]:
    topic = store.engine.state.topics.get(NAME)
    for chunk in list(topic.chunks) if topic is not None else ():
        try:
            block = hidden.read_block(store, chunk)
        except BadBlock as error:
            log.error("events %d to %d of consumer groups are lost: %s", chunk.first_seq, chunk.last_seq, error)
            continue
        for index in hidden.live_in(chunk):
            try:
                yield from core.decode(hidden.data_of(block, index))
            except BadGroupEvent as error:
                log.error("events %d of consumer groups are lost: %s", chunk.first_seq + index, error)
