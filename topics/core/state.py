"""A shard's state: its topics, and the two functions everything goes through.

`decide_…` looks at the state and either refuses (TopicsError) or returns the event to log; it changes nothing.
`apply` changes the state by an event and never refuses; it runs when an event happens and when it is replayed.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec.structs import replace
from sortedcontainers import SortedList

from topics import errors, limits
from topics.core import config as configs
from topics.core import derivation, residence
from topics.core.block import Block
from topics.core.config import ConfigPatch, TopicConfig, intern
from topics.core.events import (
    Appended,
    CeilingReserved,
    CreatedAndAppended,
    Encoded,
    Event,
    Marked,
    RangeLost,
    RecordsDeleted,
    Recovered,
    TopicCreated,
    TopicRemoved,
    TopicUpdated,
    WentIdle,
)
from topics.core.idempotency import END_OF_TIME, KeyWindow, Remembered, digest_key
from topics.core.ids import ids_of
from topics.core.keyruns import NewKeys
from topics.core.leases import leases_of
from topics.core.loss import CORRUPT, CRASH
from topics.core.render import render_blocks
from topics.core.requests import Append
from topics.core.terms import check_topic, lay_terms
from topics.core.topic import Topic
from topics.errors import TopicsError, topic_not_found


class ShardState:
    """Everything the events of one shard add up to."""

    def __init__(self) -> None:
        self.topics: dict[str, Topic] = {}
        self.by_id: dict[int, Topic] = {}
        self.names: SortedList[str] = SortedList()  # without those of hidden topics
        self.next_topic_id = 1
        self.next_epoch = 1
        self.next_cell = 1  # cell 0 of the head register holds the boot mark
        self.free_cells: list[int] = []
        self.keys = 0  # remembered, of all topics
        self.keys_coming = 0  # of writes that wait for their sync
        self.now_ms = 0
        self.boot = 0  # of the machine
        self.replaying = False
        self.keeps_spent = False  # until it is known which topics are sources of routers, each may be one
        self.damaged = False  # the log that is being replayed had a corrupt stretch

    def find(self, name: str) -> Topic:
        topic = self.topics.get(name)
        if topic is None or not topic.published:
            raise topic_not_found(name)
        return topic

    @property
    def free_cell(self) -> int:
        """The cell that the next topic gets."""
        return self.free_cells[-1] if self.free_cells else self.next_cell

    def take_cell(self, cell: int) -> None:
        self.next_cell = max(self.next_cell, cell + 1)
        if self.free_cells and self.free_cells[-1] == cell:
            self.free_cells.pop()

    def list_names(self, after: str, prefix: str, allowed: Sequence[str] = ()) -> Iterator[str]:
        """Published names above `after` that begin with `prefix` and, if any are given, with an allowed prefix."""
        for start in _narrow(prefix, allowed):
            low = max(after, start)
            for name in self.names.irange(minimum=low, inclusive=(low != after, True)):
                if not name.startswith(start):
                    break
                if self.topics[name].published:
                    yield name


def _narrow(prefix: str, allowed: Sequence[str]) -> list[str]:
    """The prefixes to walk, ascending and disjoint: what both `prefix` and the allowed ones let through."""
    if not allowed or any(prefix.startswith(other) for other in allowed):
        return [prefix]
    narrowed: list[str] = []
    for other in sorted(set(allowed)):
        if other.startswith(prefix) and not (narrowed and other.startswith(narrowed[-1])):
            narrowed.append(other)
    return narrowed


MAY_NOT_CREATE = "and this write may not create it (create:false): PUT it, or send create:true"

# --- deciding -----------------------------------------------------------------------------------------------------


def decide_create(state: ShardState, name: str, config: TopicConfig, now_ms: int) -> TopicCreated:
    ceiling = limits.CEILING_AHEAD if config.durability == "disk" else 0
    return TopicCreated(state.next_topic_id, name, state.next_epoch, config, now_ms, ceiling, state.free_cell)


def decide_update(topic: Topic, patch: ConfigPatch, now_ms: int) -> TopicUpdated | None:
    """None if the patch changes nothing."""
    merged = configs.merge(topic.config, patch, topic.name)
    return None if merged is topic.config else TopicUpdated(topic.id, merged, now_ms, topic.next_seq - 1)


def config_of_new(name: str, request: Append) -> TopicConfig:
    """The configuration a write gives the topic it creates; refuses if the write may not create it."""
    patch = request.config if request.config is not None else ConfigPatch({})
    config = configs.merge(None, patch, name)
    if request.create is False:
        raise topic_not_found(name, MAY_NOT_CREATE)
    if request.create is None and not config.auto_create:
        raise topic_not_found(name, "and by its config (auto_create) no write creates it: PUT it, or send create:true")
    return config


def find_key(topic: Topic, request: Append, now_ms: int) -> Remembered | None:
    """The earlier write with the same idempotency key, if its window is still open."""
    if request.key is None or topic.keys is None:
        return None
    return topic.keys.find(digest_key(request.key), now_ms, topic.config.idempotency_window_ms)


def key_count(request: Append) -> int:
    """How many keys the write would have remembered."""
    return len(request.dedups) + (request.key is not None)


def _check_keys(state: ShardState, count: int) -> None:
    if state.keys + state.keys_coming + count > limits.IDEMPOTENCY_KEYS_MAX:
        raise TopicsError(
            errors.THROTTLED,
            "too many idempotency and dedup keys are remembered; retry later or shorten idempotency_window_ms",
            {"limit": "idempotency_keys", "max": limits.IDEMPOTENCY_KEYS_MAX, "retry_after_ms": 1000},
        )


def forget_keys(state: ShardState, topic: Topic, now_ms: int, window_ms: int | None = None) -> None:
    """Forget the keys whose window (that of the topic) has passed; the others stay."""
    if topic.keys is not None:
        window_ms = topic.config.idempotency_window_ms if window_ms is None else window_ms
        state.keys -= topic.keys.forget_before(now_ms - window_ms)


def decide_append(
    state: ShardState,
    topic: Topic,
    request: Append,
    now_ms: int,
    blocks: list[Block] | None = None,
    prepared: NewKeys | None = None,
    encoded: Encoded | None = None,
) -> Appended:
    """The write, which has been sifted, as one event. Refuses before any seq is taken.

    `blocks` if its records were checked and rendered already, `prepared` if its dedup keys are made ready for them, and
    `encoded` if the blocks are.
    """
    derivation.check_sure(topic)
    key = digest_key(request.key) if request.key is not None else b""
    if key or request.dedups:
        _check_keys(state, key_count(request))
    ts = blocks[0].base_ts if blocks else max(now_ms, topic.last_ts)
    if blocks is None:
        if request.has_terms and not request.copied:
            check_topic(request.records, topic, now_ms)
        blocks = render_blocks(request.records, request.node, topic.next_seq, ts, ids_of(topic, ts))
        if request.has_terms and blocks:
            lay_terms(blocks, request.records, ts)
    assert not blocks or (blocks[0].first_seq == topic.next_seq and ts >= topic.last_ts)
    if request.origin:
        blocks[0].need_extras().origins[0] = request.origin
    if topic.config.discard == "reject":
        check_room(topic, len(request.records), sum([block.size for block in blocks]))
    seq, count = topic.next_seq, len(request.records)
    dedups = request.dedups if prepared is None else ()
    durability = topic.config.durability
    return Appended(topic.id, topic.epoch, ts, seq, count, key, blocks, dedups, prepared, encoded, durability)


def check_room(topic: Topic, records: int, size: int) -> None:
    """discard:"reject": the whole write fits or none of it is taken.

    What is accepted and not durable yet takes room; what a delete frees is free when readers see it gone.
    """
    config = topic.config
    detail = {
        "topic": topic.name,
        "cap_records": config.cap_records,
        "cap_bytes": config.cap_bytes,
        "head_seq": topic.head_seq,
        "earliest_seq": topic.earliest_seq,
    }
    for cap, need, held, what in (
        (config.cap_records, records, topic.count + topic.pending_records, "records"),
        (config.cap_bytes, size, topic.bytes + topic.pending_bytes, "bytes"),
    ):
        if cap and need > cap:
            raise TopicsError(
                errors.RECORD_TOO_LARGE,
                f"this write alone has {need} {what}; the topic's cap_{what} is {cap}, so it can never fit",
                detail,
            )
        if cap and held + need > cap:
            raise TopicsError(
                errors.TOPIC_FULL,
                f'topic "{topic.name}" is full: it holds {held} of {cap} {what}. Retry when records have been deleted.',
                detail,
            )


# --- applying -----------------------------------------------------------------------------------------------------


def apply(state: ShardState, event: Event, lsn: int) -> Any:
    """Change the state by one event. The result is what the event did: a topic, a count, or nothing."""
    if type(event) is Appended:
        return _apply_appended(state, event, lsn)
    if type(event) is CreatedAndAppended:
        _apply_created(state, event.created, lsn)
        return _apply_appended(state, event.appended, lsn)
    if type(event) is TopicCreated:
        return _apply_created(state, event, lsn)
    if type(event) is Marked:
        return _apply_marked(state, event, lsn)
    if type(event) is Recovered:
        return _apply_recovered(state, event, lsn)
    if type(event) is WentIdle:
        return None
    assert not isinstance(event, Appended | CreatedAndAppended | TopicCreated | Marked | Recovered | WentIdle)
    topic = state.by_id.get(event.topic_id)
    if topic is not None and type(event) is CeilingReserved:  # outside the topic's order: only ever raises
        topic.ceiling = max(topic.ceiling, event.ceiling)
        topic.reserved = max(topic.reserved, event.ceiling)
        return None
    if topic is None or lsn <= topic.applied_lsn:
        return None
    topic.applied_lsn = lsn
    if type(event) is RecordsDeleted:
        topic.expire(event.ts)
        if topic.derived is not None and event.ranges is not None:
            derivation.strike(topic, event.ranges)
        if topic.leases is not None and event.ranges is not None:
            topic.leases.drop(event.ranges)
        return topic.delete(event.before_seq, event.ranges, event.prepared)
    if type(event) is TopicUpdated:
        return _apply_updated(state, topic, event)
    if type(event) is TopicRemoved:
        return _apply_removed(state, topic)
    assert type(event) is RangeLost
    return _apply_lost(state, topic, event)


def _apply_created(state: ShardState, event: TopicCreated, lsn: int) -> Topic:
    known = state.by_id.get(event.topic_id)
    if known is not None:
        return known
    topic = Topic(event.topic_id, event.name, event.epoch, event.config)
    topic.spent = [] if state.keeps_spent else None
    topic.applied_lsn = lsn - 1  # the append that may share this frame has the same position
    topic.ceiling = topic.reserved = event.ceiling
    topic.cell = event.cell
    topic.last_ts = topic.created_ms = event.ts
    if residence.is_resident(topic):
        residence.begin(topic)
    if not topic.hidden and event.name not in state.topics:  # it is if the frame that removed its topic is damaged
        state.names.add(event.name)
    state.topics[event.name] = topic
    state.by_id[event.topic_id] = topic
    state.next_topic_id = max(state.next_topic_id, event.topic_id + 1)
    state.next_epoch = max(state.next_epoch, event.epoch + 1)
    state.take_cell(event.cell)
    return topic


def _apply_appended(state: ShardState, event: Appended, lsn: int) -> Topic | None:
    topic = state.by_id.get(event.topic_id)
    if topic is None or lsn <= topic.applied_lsn:
        return topic
    topic.applied_lsn = lsn
    if state.damaged:
        _follow(state, topic, event)
    _bridge(state, topic, event.first_seq - 1)
    if event.first_seq <= topic.head_seq:
        return topic
    for block in event.blocks:
        extras = block.extras
        if extras is not None and extras.has_terms and topic.config.type == "queue" and not state.replaying:
            leases_of(topic).enlist(topic, block)  # before: the topic may join it with others
    if event.blocks:
        topic.append(event.blocks, event.ts)
    state.now_ms = max(state.now_ms, event.ts)
    if event.key or event.dedup_count:
        _remember(state, topic, event)
    return topic


def _remember(state: ShardState, topic: Topic, event: Appended) -> None:
    if topic.keys is None:
        topic.keys = KeyWindow()
    keys, before = topic.keys, len(topic.keys)
    keys.forget_before(event.ts - topic.config.idempotency_window_ms)
    if event.key:
        keys.add(event.key, event.first_seq, event.count, event.ts)
    if event.prepared is not None:
        keys.add_all(event.prepared)
    else:
        for index, digest in event.dedups:
            keys.add(digest, event.first_seq + index, 1, event.ts)
    state.keys += len(keys) - before
    while state.replaying and keys.tidy():  # later somebody else does it, in small steps
        pass


def _bridge(state: ShardState, topic: Topic, last: int) -> None:
    """In a replay: what lies between the head and `last` was not in the log. Copies never are."""
    if last <= topic.head_seq:
        return
    if topic.derived is not None and not residence.is_resident(topic):
        derivation.miss(topic, last)
    else:
        topic.lose(topic.head_seq + 1, last, CORRUPT if state.damaged else CRASH)


def _follow(state: ShardState, topic: Topic, event: Appended) -> None:
    """In a replay: the frame that changed the class, or gave the topic a new epoch, may be damaged. What was acked
    since then was acked by the new one."""
    if event.epoch > topic.epoch:
        topic.epoch = event.epoch
        state.next_epoch = max(state.next_epoch, event.epoch + 1)
    if event.durability not in ("", topic.config.durability):
        if residence.is_resident(topic):
            residence.forget(topic, event.first_seq - 1)
        topic.config = intern(replace(topic.config, durability=event.durability))


def _apply_marked(state: ShardState, event: Marked, lsn: int) -> None:
    for mark in event.marks:
        topic = state.by_id.get(mark.topic_id)
        if topic is not None and lsn > topic.applied_lsn:
            topic.applied_lsn = lsn
            derivation.apply_mark(topic, mark)


def _apply_updated(state: ShardState, topic: Topic, event: TopicUpdated) -> Topic:
    state.now_ms = max(state.now_ms, event.ts)
    # What is outside of the window is not remembered again by a longer one. The old one may be gone: residence.end.
    shorter = min(topic.config.idempotency_window_ms, event.config.idempotency_window_ms)
    forget_keys(state, topic, event.ts, shorter)
    was_resident = residence.is_resident(topic)
    if state.replaying and was_resident:
        topic.head_seq = max(topic.head_seq, event.head_seq)
        topic.next_seq = topic.head_seq + 1
    else:
        _bridge(state, topic, event.head_seq)
    if state.replaying and event.kept is not None:
        residence.restore(topic, event.kept)
    if state.replaying and was_resident and event.kept is None:
        topic.config = event.config  # the caps were laid on records that the log does not have
        return topic
    topic.rebound(event.config, event.ts)
    if not residence.is_resident(topic):
        topic.resident_from = 0
    elif not was_resident:
        residence.begin(topic)
    return topic


def _apply_removed(state: ShardState, topic: Topic) -> Topic:
    state.keys -= topic.keys.forget_before(END_OF_TIME) if topic.keys is not None else 0
    topic.release_all()
    while state.replaying and topic.bury():  # later somebody else does it, in small steps
        pass
    topic.removing = True
    topic.published = False
    del state.by_id[topic.id]
    if state.topics.get(topic.name) is topic:
        del state.topics[topic.name]
        state.names.discard(topic.name)
    state.free_cells.append(topic.cell)
    return topic


def _apply_lost(state: ShardState, topic: Topic, event: RangeLost) -> Topic:
    if state.replaying or topic.derived is not None:
        _bridge(state, topic, event.first - 1)
    if topic.derived is not None:
        topic.derived.give_up(event.first, event.last)
    topic.lose(event.first, event.last, event.reason)
    if topic.leases is not None:
        topic.leases.drop_range(event.first, event.last)
    topic.ceiling = topic.reserved = max(topic.ceiling, event.last)
    if event.epoch:
        topic.epoch = event.epoch
        state.next_epoch = max(state.next_epoch, event.epoch + 1)
    return topic


def _apply_recovered(state: ShardState, event: Recovered, lsn: int) -> None:
    for loss in event.losses:
        topic = state.by_id.get(loss.topic_id)
        if topic is not None and lsn > topic.applied_lsn:
            topic.applied_lsn = lsn
            _apply_lost(state, topic, loss)
    for topic_id in event.removed:
        if topic_id in state.by_id:
            _apply_removed(state, state.by_id[topic_id])
    state.next_topic_id = max(state.next_topic_id, event.next_topic_id)
    state.next_epoch = max(state.next_epoch, event.next_epoch)
