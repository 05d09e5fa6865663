"""The engine: commands in, log frames out, answers when they may be given.

Synchronous and single-threaded. A command is decided against the state, its event goes to the log queue, and it is
applied either at once (`disk`, `memory`, `ephemeral`) or when its frame is durable (`fsync`, control events, and
anything behind such a frame on the same topic, so that a topic's events are always applied in log order). The
committer takes frames from the queue and reports back with `durable` or `poison`.

A crash between enqueue and sync loses the frame. For a gated event nobody was told; for an ungated one the head
register and the ceiling make the loss visible at recovery.
"""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from topics import errors, limits
from topics.clock import Clock, ForwardTime
from topics.core import config as configs
from topics.core import residence
from topics.core import state as core
from topics.core.coming import Retries
from topics.core.config import ConfigPatch
from topics.core.dedup import Duplicates
from topics.core.deletion import Deletion
from topics.core.derivation import note_id_time
from topics.core.events import (
    Appended,
    CeilingReserved,
    CreatedAndAppended,
    Event,
    RangeLost,
    RecordsDeleted,
    TopicCreated,
    TopicRemoved,
    WentIdle,
)
from topics.core.names import is_hidden_name
from topics.core.ranges import SeqRanges
from topics.core.requests import Append
from topics.core.state import ShardState
from topics.core.topic import SEQ_BASE, Topic
from topics.errors import TopicsError
from topics.ids import slot_of
from topics.shards import expiry
from topics.shards.answers import Appending, Done, Fail, HasTime, Pending, Rendered
from topics.shards.crowds import Crowds
from topics.shards.endings import Endings
from topics.shards.files import REMOVED_CELL, Register
from topics.shards.graves import Graves
from topics.shards.idsalt import config_of_new, with_ids
from topics.shards.keymemory import KeyMemory
from topics.shards.logqueue import LogQueue
from topics.shards.quota import Holdings, Quota, disk_full, log_failed, make_cell, queue_full


class Engine:
    def __init__(
        self,
        state: ShardState,
        register: Register,
        clock: Clock,
        *,
        next_lsn: int,
        used_slots: Iterable[int] = (),
        idle: bool = False,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        self.state = state
        self.clock = clock
        self._time = ForwardTime(clock)
        self.register = register
        self.log = LogQueue(next_lsn, idle=idle, wake=wake)
        self.holdings = Holdings(state)
        self.quota = Quota()
        self.graves = Graves()
        self.crowds = Crowds()
        self.endings = Endings(self)
        self.memory = KeyMemory(state, self.graves)
        self.dirty: set[Topic] = set()
        self.removed_topics: list[int] = []
        self.expired = 0  # records whose time was over, since the start
        self.poisoned: str | None = None
        self.is_ending = False  # the last mark of a clean stop is being written, and nothing should come behind it
        self.on_change: Callable[[Topic], None] = Topic.run_waiters  # when its readers look again
        self.space_bytes: int | None = None  # free for new data, None while unknown
        self.lacked_space = False  # a write was refused since somebody last made room
        self._pending: deque[Pending] = deque()
        self._used_slots = set(used_slots)

    def now(self) -> int:
        """Wall-clock time that never goes back, so that `$ts` never does."""
        state = self.state
        state.now_ms = self._time.after(state.now_ms)
        return state.now_ms

    def expire(self, topic: Topic) -> bool:
        """Let go what is over by now. To be called before anybody looks at the topic, who has to wait (`endings`) if
        there is more than fits a step: then it is False."""
        return not (topic.config.ttl_ms or topic.expiries is not None) or expiry.expire(self, topic)

    # --- commands -------------------------------------------------------------------------------------------------

    def put_topic(
        self, name: str, patch: ConfigPatch, done: Done, fail: Fail, survey: residence.Survey | None = None
    ) -> None:
        """Create or update. `done((topic, created))` once the change is durable."""
        self.check_writable()
        topic = self.state.topics.get(name)
        if topic is None:
            config = with_ids(configs.merge(None, patch, name), None, SEQ_BASE)
            self.quota.admit_topic(name)
            event = core.decide_create(self.state, name, config, self.now())
            self._create(event, event, lambda topic: done((topic, True)), fail)
            return
        if self._parks(topic, lambda: self.put_topic(name, patch, done, fail, survey), fail):
            return
        update = core.decide_update(topic, patch, self.now())
        if update is None:
            done((topic, False))
            return
        update = msgspec.structs.replace(update, config=with_ids(update.config, topic.config, topic.next_seq))
        ends_residence = residence.is_resident(topic) and update.config.durability != "ephemeral"
        if ends_residence:
            records, size = topic.count, topic.bytes
            core.forget_keys(self.state, topic, update.ts)  # by the window that is over then
            update = msgspec.structs.replace(update, kept=residence.end(topic, update.config, update.ts, survey))
            self.note_change(topic, records, size)
        topic.becoming = update.config
        self._control(topic, update, lambda _: done((topic, False)), fail, at_once=ends_residence)

    def remove_topic(self, name: str, if_empty: bool, done: Done, fail: Fail) -> None:
        """`done(removed)` once the removal is durable."""
        self.check_writable()
        topic = self.state.topics.get(name)
        if topic is None:
            done(False)
            return
        if self._parks(topic, lambda: self.remove_topic(name, if_empty, done, fail), fail):
            return
        held = topic.count + topic.pending_records
        if if_empty and held:
            raise TopicsError(
                errors.TOPIC_NOT_EMPTY, f'topic "{name}" holds {held} records', {"topic": name, "count": held}
            )
        topic.removing = True
        self._control(topic, TopicRemoved(topic.id), lambda _: done(True), fail)

    def append(self, name: str, request: Append, done: Done, fail: Fail, rendered: Rendered | None = None) -> None:
        """`done(Appending)` when the write may be acked. Raises if it is refused.

        `rendered` is what was made of it while the topic was held (see `hold`) or was not there.
        """
        self.check_writable()
        now = self.now()
        topic = self.state.topics.get(name)
        if topic is None:
            self._append_new(name, request, now, done, fail, rendered)
            return
        if (request.key is not None or request.dedups) and self._deduplicated(topic, request, now, done, fail):
            return
        if topic.parked is not None:  # its class may change before this write would be applied
            self._park(topic, lambda: self.append(name, request, done, fail), fail)
            return
        if topic.held is not None:
            topic.held.append(lambda: self.redo(lambda: self.append(name, request, done, fail), fail))
            return
        if request.create is False and not topic.published:
            raise errors.topic_not_found(name, core.MAY_NOT_CREATE)
        if not self.expire(topic):
            self.endings.later(topic, lambda: self.append(name, request, done, fail, rendered), fail)
            return
        duplicates: Duplicates = ()
        if request.dedups:
            request, duplicates = rendered.sifted if rendered is not None else self.memory.sift(topic, request, now)
            if not request.records and request.key is None:
                done(Appending(name, topic.head_seq + 1, 0, topic.head_seq, False, True, duplicates))
                return
        if request.key is not None or request.dedups:
            self.memory.make_room(request, now)
        ready = rendered[1:4] if rendered is not None else (None, None, None)
        event = core.decide_append(self.state, topic, request, now, *ready)
        self.admit(0, topic, event)
        self._append(topic, event, done, fail, duplicates)

    def hold(self, topic: Topic) -> tuple[int, int]:
        """Keep other writes off a topic while a large one is rendered elsewhere; the seq and ts it is to get."""
        assert topic.held is None and not topic.removing
        topic.held = []
        return topic.next_seq, max(self.now(), topic.last_ts)

    def release(self, topic: Topic, first: Callable[[], None]) -> None:
        """End a hold: `first` runs before everything that came meanwhile."""
        held, topic.held = topic.held or [], None
        first()
        self.crowds.let_pass(topic, held)

    def delete_records(
        self,
        topic: Topic,
        before_seq: int,
        ranges: SeqRanges | None,
        done: Done,
        fail: Fail,
        prepared: Deletion | None = None,
    ) -> None:
        """Remove records whose selection is already resolved; `done(count)` when the delete may be acked.

        One event whatever its size, so it is there whole or not at all. `prepared` is the ranges, counted ahead.
        """
        self.check_writable()
        if topic.parked is not None:  # as for an append
            self._park(topic, lambda: self.delete_records(topic, before_seq, ranges, done, fail, prepared), fail)
            return
        if topic.removing:
            raise errors.topic_not_found(topic.name)
        if not self.expire(topic):
            again = lambda: self.delete_records(topic, before_seq, ranges, done, fail, prepared)  # noqa: E731
            self.endings.later(topic, again, fail)
            return
        event = RecordsDeleted(topic.id, before_seq, ranges, self.now(), prepared)
        if topic.config.durability == "ephemeral":
            self.in_turn(topic, lambda: done(self.apply_resident(topic, event)), fail)
            return
        self.submit(topic, event, topic.config.durability == "fsync", done, fail)

    def lose_range(self, topic: Topic, first: int, last: int, reason: str, done: Done) -> None:
        """A stored range turned out to be unreadable: from now on readers are told."""
        self.submit(topic, RangeLost(topic.id, first, last, reason, 0), False, done, lambda error: None)

    def go_idle(self, again: bool = False) -> None:
        """Note in the log that nothing acked is at risk; the next ungated write waits for its sync."""
        marked = self.log.ends_idle and not again
        if not (marked or self.log.depth or self._pending or self.poisoned):
            self.log.idle_lsn = self.log.put(WentIdle())

    # --- the log --------------------------------------------------------------------------------------------------

    @property
    def awaits_sync(self) -> bool:
        """Whether somebody waits for what is in the log queue to become durable."""
        return bool(self._pending) and self._pending[-1].lsn > self.log.synced_lsn

    def durable(self, lsn: int, has_time: HasTime = lambda _: True) -> bool:
        """Everything up to `lsn` is on disk: apply what waited for it and let the answers go, in the order of the log.

        Whether that is done; the rest, if there is no time for it, is as if its sync had not ended yet."""
        log, pending = self.log, self._pending
        log.synced_lsn = lsn = max(log.synced_lsn, lsn)
        while pending and pending[0].lsn <= lsn:
            item = pending.popleft()
            if type(item.event) is CeilingReserved:  # beside the topic's order of events: nothing waits for it
                self._apply(item.topic, item.event, item.lsn)  # also marks it dirty: the frame goes with the log
            else:
                item.topic.pending -= 1
                item.done(self._apply(item.topic, item.event, item.lsn) if item.event is not None else None)
            if not has_time(pending[0].records if pending else 0):
                break
        all_woken = log.applied_below(pending[0].lsn if pending else lsn + 1, has_time)
        return all_woken and not (pending and pending[0].lsn <= lsn)

    def poison(self, reason: str) -> None:
        """A write or sync failed: nothing more is accepted, and what waited is refused."""
        self.poisoned = reason
        waiting: list[Callable[[], None]] = []
        while self._pending:
            item = self._pending.popleft()
            item.fail(log_failed(reason))
            waiting += item.topic.take_waiting()
        for retry in waiting:  # commands that waited for the ones above: they are refused like any new one
            retry()
        self.crowds.finish()

    def check_writable(self) -> None:
        if self.poisoned is not None:
            raise log_failed(self.poisoned)

    def admit(self, new_topics: int, topic: Topic, event: Appended) -> None:
        """Refuse what the disk, the queue or the quota has no room for, before a seq is taken."""
        size = event.size + 32 * event.count
        if self.space_bytes is not None and 2 * size + limits.SPACE_RESERVE_BYTES > self.space_bytes:
            self.lacked_space = True
            raise disk_full(self.space_bytes)
        if not self.log.has_room(size):
            raise queue_full()
        self.quota.admit(new_topics, topic, event)
        if self.space_bytes is not None:
            self.space_bytes -= 2 * size  # once in the log, once in a data file: until `space.available` knows of it

    def submit(self, topic: Topic, event: Event, gate: bool, done: Done, fail: Fail) -> None:
        lsn = self.log.put(event)
        if gate or topic.pending:
            topic.pending += 1
            self._pending.append(Pending(lsn, topic, event, done, fail))
        else:
            done(self._apply(topic, event, lsn))

    def _apply(self, topic: Topic, event: Event, lsn: int) -> Any:
        records, size = topic.count, topic.bytes
        result = core.apply(self.state, event, lsn)
        self.note_change(topic, records, size)
        return result

    def note_change(self, topic: Topic, records: int, size: int) -> None:
        self.holdings.moved(topic, records, size)
        if not topic.dirty:
            topic.dirty = True
            self.dirty.add(topic)
        self.graves.note(topic)

    # --- appending ------------------------------------------------------------------------------------------------

    def _append(self, topic: Topic, event: Appended, done: Done, fail: Fail, duplicates: Duplicates) -> None:
        name, first_seq, count = topic.name, event.first_seq, event.count
        topic.next_seq = first_seq + count
        last_seq = topic.next_seq - 1
        durability = topic.config.durability
        gate = durability == "fsync" or (durability == "disk" and self.needs_reserve(topic, last_seq))
        if topic.derived is not None:  # copies come back behind it: it must not be lost in front of them
            gate = True
            note_id_time(topic, event.ts)
        size = self.pend(topic, event) if gate or topic.pending else None

        def finish(_: Any) -> None:
            retries = self.settle(topic, event, size) if size is not None else ()
            self.register.set(topic.cell, last_seq)
            done(Appending(name, first_seq, count, topic.head_seq, False, not count, duplicates))
            self.crowds.let_go(retries)
            self.wake_readers(topic)

        if durability == "ephemeral":
            self.in_turn(topic, lambda: finish(self.apply_resident(topic, event)), fail)
        else:
            self.submit(topic, event, gate, finish, fail)

    def pend(self, topic: Topic, event: Appended) -> int:
        """Count a write that has to wait against caps and keys, until it is settled; its size."""
        size = event.size
        topic.pending_records += event.count
        topic.pending_bytes += size
        self.holdings.pended(topic, size)
        if event.key or event.dedup_count:
            self.memory.pend(topic, event)
        return size

    def settle(self, topic: Topic, event: Appended, size: int) -> Retries:
        """It waits no more; the retries that waited for it."""
        topic.pending_records -= event.count
        topic.pending_bytes -= size
        self.holdings.pended(topic, -size)
        return self.memory.settle(topic, event) if event.key or event.dedup_count else []

    def apply_resident(self, topic: Topic, event: Event) -> Any:
        """An event that never reaches the log; its position is that of the topic's last logged event."""
        applied = topic.applied_lsn
        result = self._apply(topic, event, applied + 1)
        topic.applied_lsn = applied
        return result

    def in_turn(self, topic: Topic, action: Callable[[], None], fail: Fail, *, after_sync: bool = False) -> None:
        """Run `action` after everything that is pending on the topic, or after the next sync."""
        if not topic.pending and not after_sync:
            action()
            return
        topic.pending += 1
        self._pending.append(Pending(self.log.last_lsn, topic, None, lambda _: action(), fail))

    def needs_reserve(self, topic: Topic, last_seq: int) -> bool:
        """Keep the durable ceiling ahead of a `disk` topic; True if this write must wait for its sync."""
        if last_seq + limits.CEILING_AHEAD // 2 > topic.reserved:
            topic.reserved = last_seq + limits.CEILING_AHEAD
            event = CeilingReserved(topic.id, topic.reserved)
            lsn = self.log.put(event)
            self._pending.append(Pending(lsn, topic, event, lambda _: None, lambda _: None))
        return last_seq > topic.ceiling or self.log.settled

    def _append_new(
        self, name: str, request: Append, now: int, done: Done, fail: Fail, rendered: Rendered | None
    ) -> None:
        config = rendered.config if rendered is not None else config_of_new(name, request)
        created = core.decide_create(self.state, name, config, now)
        draft = Topic(created.topic_id, name, created.epoch, config)
        sifted = rendered.sifted if rendered is not None else self.memory.sift(draft, request, now)
        ready = rendered[1:4] if rendered is not None else (None, None, None)
        self.memory.make_room(sifted.request, now)
        event = core.decide_append(self.state, draft, sifted.request, now, *ready)
        self.admit(1, draft, event)
        last_seq = event.first_seq + event.count - 1
        both: Event = created if config.durability == "ephemeral" else CreatedAndAppended(created, event)

        def finish(topic: Topic) -> None:
            if config.durability == "ephemeral":
                self.apply_resident(topic, event)
            retries = self.settle(topic, event, size)
            self.register.set(topic.cell, last_seq)
            done(Appending(name, event.first_seq, event.count, topic.head_seq, True, False, sifted.duplicates))
            self.crowds.let_go(retries)
            self.wake_readers(topic)

        topic = self._create(created, both, finish, fail)
        topic.next_seq = last_seq + 1
        size = self.pend(topic, event)

    def _create(self, created: TopicCreated, event: Event, done: Done, fail: Fail) -> Topic:
        """Bring a topic into being. It takes seqs at once, but nobody sees it before it is durable."""
        make_cell(self.register, created.cell)
        slot = slot_of(created.name)
        fresh = () if slot in self._used_slots or is_hidden_name(created.name) else (slot,)
        self._used_slots.update(fresh)
        lsn = self.log.put(event, fresh)
        topic: Topic = core.apply(self.state, created, lsn)
        self.register.set(topic.cell, 0)
        topic.pending += 1

        def finish(_: Any) -> None:
            topic.published = True
            topic.applied_lsn = lsn
            done(topic)

        self._pending.append(Pending(lsn, topic, event, finish, fail))
        return topic

    # --- idempotency ----------------------------------------------------------------------------------------------

    def _deduplicated(self, topic: Topic, request: Append, now: int, done: Done, fail: Fail) -> bool:
        """Answer a retry from memory, or make it wait for a key that is still on its way to disk."""
        again = lambda: self.redo(lambda: self.append(topic.name, request, done, fail), fail)  # noqa: E731
        if self.memory.waits(topic, request, again):
            return True
        answer = self.memory.recall(topic, request, now) if request.key is not None else None
        if answer is not None:
            done(answer)
        return answer is not None

    # --- waiting --------------------------------------------------------------------------------------------------

    def _control(self, topic: Topic, event: Event, done: Done, fail: Fail, *, at_once: bool = False) -> None:
        """Log a control event; later commands on the topic wait for its sync. So does its effect, unless `at_once`."""
        topic.parked = []

        def finish(result: Any) -> None:
            parked, topic.parked = topic.parked or [], None
            if type(event) is TopicRemoved:
                self.removed_topics.append(topic.id)
                self.quota.publish()
                self.dirty.discard(topic)
                self.register.set(topic.cell, REMOVED_CELL)
            done(result)
            self.wake_readers(topic)
            self.crowds.let_pass(topic, parked)

        if at_once:
            self._apply(topic, event, self.log.put(event))
            topic.pending += 1
            self._pending.append(Pending(self.log.last_lsn, topic, None, finish, fail))
        else:
            self.submit(topic, event, True, finish, fail)

    def _parks(self, topic: Topic, command: Callable[[], None], fail: Fail) -> bool:
        """Whether a control command must wait: the topic is not durable yet, another one is on its way, or very much
        is over."""
        if topic.parked is not None:
            self._park(topic, command, fail)
            return True
        if topic.held is not None:
            topic.held.append(lambda: self.redo(command, fail))
            return True
        if not topic.published:
            topic.parked = []  # what comes behind it must not be decided by what it changes
            self.in_turn(topic, lambda: self.unpark(topic, command, fail), fail)
            return True
        if not self.expire(topic):  # by what it was until now
            self.endings.later(topic, command, fail)
            return True
        return False

    def unpark(self, topic: Topic, command: Callable[[], None], fail: Fail) -> None:
        """Run a command that waited, then those that waited behind it: again behind it, if it still does."""
        parked, topic.parked = topic.parked or [], None
        self.crowds.let_pass(topic, [lambda: self.redo(command, fail), *parked])

    def _park(self, topic: Topic, command: Callable[[], None], fail: Fail) -> None:
        assert topic.parked is not None
        topic.parked.append(lambda: self.redo(command, fail))
        self.crowds.hasten(topic)

    def redo(self, command: Callable[[], None], fail: Fail) -> None:
        """Run a command that had to wait; its refusal goes to its own caller."""
        try:
            command()
        except Exception as error:  # nobody above could tell its caller
            fail(error)

    def wake_readers(self, topic: Topic) -> None:
        """Something on this topic changed: long-polls look again. They cost nothing until then."""
        if topic.waiters:
            self.on_change(topic)
