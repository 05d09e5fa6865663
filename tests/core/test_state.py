"""Deciding refuses and changes nothing; applying never refuses, and does nothing twice."""

import pytest
from msgspec.structs import replace

from topics.core import state as core
from topics.core.config import ConfigPatch, TopicConfig
from topics.core.events import (
    Appended,
    CeilingReserved,
    CreatedAndAppended,
    Event,
    RangeLost,
    RecordsDeleted,
    TopicCreated,
    TopicRemoved,
    TopicUpdated,
    WentIdle,
    decode_event,
    encode_event,
)
from topics.core.idempotency import digest_key
from topics.core.ranges import SeqRanges
from topics.core.requests import decode_append
from topics.core.state import ShardState, apply
from topics.core.topic import Topic
from topics.limits import Limits

T0 = 1_700_000_000_000
THREE = b'{"records":[{"data":1},{"data":2},{"data":3}],"idempotency_key":"k"}'


def created(topic_id: int = 1, name: str = "t", **config: object) -> TopicCreated:
    return TopicCreated(topic_id, name, topic_id, TopicConfig(**config), T0, 0, topic_id)  # type: ignore[arg-type]


def appended(state: ShardState, name: str = "t", body: bytes = THREE, now: int = T0) -> Appended:
    return core.decide_append(state, state.topics[name], decode_append(body, name, Limits()), now)


def view(topic: Topic) -> tuple:
    return (
        topic.head_seq, topic.next_seq, topic.earliest_seq, topic.evict_floor, topic.count, topic.bytes, topic.last_ts,
        topic.epoch, topic.config, list(topic.holes.items), topic.applied_lsn,
    )  # fmt: skip


def history() -> tuple[ShardState, list[tuple[int, bytes]]]:
    """A state, and the log of what happened to it: events of every kind."""
    state = ShardState()
    events: list[tuple[int, bytes]] = []

    def log(event: Event) -> None:
        kind, body = encode_event(event)  # first: applying takes its blocks over
        events.append((kind, b"".join(body)))
        apply(state, event, len(events))

    log(created(cap_records=5))
    log(appended(state))
    log(CreatedAndAppended(created(2, "u"), Appended(2, 2, T0, 1, 3, b"", appended_blocks())))
    log(appended(state, now=T0 + 5))
    log(RecordsDeleted(1, 3, None, T0 + 6))
    log(RecordsDeleted(1, 0, SeqRanges.from_ascending([5]), T0 + 6))
    log(CeilingReserved(1, 50))
    log(RangeLost(1, 7, 9, "crash", 3))
    log(TopicUpdated(1, TopicConfig(cap_records=1), T0 + 7, 9))
    log(appended(state, now=T0 + 8))
    log(WentIdle())
    log(TopicRemoved(2))
    return state, events


def appended_blocks():
    state = ShardState()
    apply(state, created(2, "u"), 1)
    return appended(state, "u").blocks


def replay(events: list[tuple[int, bytes]], *, again: bool = False) -> ShardState:
    """As recovery does; `again` applies every event a second time."""
    state = ShardState()
    for lsn, (kind, body) in enumerate(events, 1):
        for _ in range(2 if again else 1):
            apply(state, decode_event(kind, body), lsn)
    return state


def test_deciding_changes_nothing():
    state = ShardState()
    apply(state, created(), 1)
    before = view(state.topics["t"])
    appended(state)
    core.decide_update(state.topics["t"], ConfigPatch({"cap_records": 1}), T0)
    assert view(state.topics["t"]) == before


def test_what_is_replayed_is_what_happened():
    live, events = history()
    replayed = replay(events)
    assert view(live.topics["t"]) == view(replayed.topics["t"])
    for field in ("keys", "next_epoch", "next_topic_id", "next_cell", "now_ms"):
        assert getattr(live, field) == getattr(replayed, field)
    assert set(replayed.topics) == {"t"}
    assert live.topics["t"].ceiling == replayed.topics["t"].ceiling == 50


def test_no_event_is_applied_twice():
    once, events = history()
    twice = replay(events, again=True)
    assert view(once.topics["t"]) == view(twice.topics["t"])
    assert once.keys == twice.keys


def test_events_of_a_topic_that_is_gone_do_nothing():
    state, _ = history()
    for event in (
        RecordsDeleted(2, 9, None, T0),
        CeilingReserved(2, 9),
        TopicRemoved(2),
        RangeLost(2, 1, 2, "crash", 0),
    ):
        assert apply(state, event, 100) is None
    assert set(state.by_id) == {1}


def test_a_gap_between_appends_is_a_loss_that_readers_are_told():
    state = ShardState()
    apply(state, created(), 1)
    lost = appended(state)
    state.topics["t"].next_seq = 4
    kept = appended(state)
    apply(state, kept, 3)
    topic = state.topics["t"]
    assert (topic.head_seq, topic.count) == (6, 3)
    assert topic.gap_after(0) == (1, 3, "crash", 3)
    apply(state, lost, 4)  # too late, its seqs are behind the head
    assert topic.count == 3


def test_what_expired_before_a_delete_was_lost_not_deleted():
    state = ShardState()
    apply(state, created(ttl_ms=10), 1)
    apply(state, appended(state), 2)
    apply(state, RecordsDeleted(1, 100, None, T0 + 11), 3)
    assert state.topics["t"].gap_after(0) == (1, 3, "ttl", 3)


def test_what_expired_does_not_come_back_under_a_longer_ttl():
    state = ShardState()
    apply(state, created(ttl_ms=10), 1)
    apply(state, appended(state), 2)
    apply(state, TopicUpdated(1, TopicConfig(), T0 + 11, 3), 3)
    assert state.topics["t"].gap_after(0) == (1, 3, "ttl", 3)


def test_tightened_caps_take_effect_at_once():
    state = ShardState()
    apply(state, created(), 1)
    apply(state, appended(state), 2)
    apply(state, TopicUpdated(1, TopicConfig(cap_records=1), T0, 3), 3)
    assert state.topics["t"].gap_after(0) == (1, 2, "cap", 2)


def test_ts_never_decreases():
    state = ShardState()
    apply(state, created(), 1)
    apply(state, appended(state, now=T0 + 100), 2)
    assert appended(state, now=T0 + 50).ts == T0 + 100


@pytest.mark.parametrize("window", [0, 10])
def test_keys_are_counted_and_forgotten_with_their_window(window: int):
    state = ShardState()
    apply(state, created(idempotency_window_ms=window), 1)
    for n in range(5):
        body = THREE.replace(b'"k"', b'"k%d"' % n)
        apply(state, appended(state, body=body, now=T0 + 4 * n), n + 2)
    keys = state.topics["t"].keys
    assert keys is not None
    assert state.keys == len(keys) == 1 + window // 4
    core.forget_keys(state, state.topics["t"], T0 + 1000)
    assert state.keys == len(keys) == 0


def test_a_write_forgets_no_key_before_its_window_has_passed():
    """The window is up to and with its last millisecond, whatever else is written then."""
    state = ShardState()
    apply(state, created(idempotency_window_ms=10), 1)
    apply(state, appended(state), 2)
    topic = state.topics["t"]
    assert topic.keys is not None
    apply(state, appended(state, body=THREE.replace(b'"k"', b'"other"'), now=T0 + 10), 3)
    assert topic.keys.find(digest_key("k"), T0 + 10, 10) == (1, 3, T0)
    assert state.keys == 2
    apply(state, appended(state, body=THREE.replace(b'"k"', b'"third"'), now=T0 + 11), 4)
    assert topic.keys.find(digest_key("k"), T0 + 11, 10) is None
    assert state.keys == 2


@pytest.mark.parametrize("windows", [(10, 1000), (1000, 10, 1000)])
def test_a_key_that_was_outside_of_its_window_does_not_come_back_with_a_longer_one(windows: tuple[int, ...]):
    """Whether somebody has forgotten it by then or not: a start may have."""
    state = ShardState()
    apply(state, created(idempotency_window_ms=windows[0]), 1)
    apply(state, appended(state), 2)
    topic = state.topics["t"]
    for lsn, window in enumerate(windows[1:], 3):
        apply(state, TopicUpdated(1, TopicConfig(idempotency_window_ms=window), T0 + 20, 3), lsn)
    assert topic.keys is not None
    assert topic.keys.find(digest_key("k"), T0 + 20, 1000) is None
    assert state.keys == 0


def test_a_write_behind_a_damaged_change_tells_the_class_and_the_epoch():
    state = ShardState()
    apply(state, created(durability="memory"), 1)
    apply(state, appended(state), 2)
    state.replaying = state.damaged = True
    behind = replace(appended(state, body=THREE.replace(b'"k"', b'"other"')), epoch=7, durability="fsync")
    apply(state, behind, 9)
    topic = state.topics["t"]
    assert (topic.config.durability, topic.epoch, topic.head_seq, topic.holes.items) == ("fsync", 7, 6, [])
    assert state.next_epoch == 8


def test_deciding_to_create_changes_nothing():
    state = ShardState()
    state.free_cells = [7]
    first = core.decide_create(state, "a", TopicConfig(), 1)
    assert core.decide_create(state, "a", TopicConfig(), 1) == first
    assert (state.free_cells, state.next_cell, first.cell) == ([7], 1, 7)
    core.apply(state, first, 1)
    assert (state.free_cells, state.next_cell, state.free_cell) == ([], 8, 8)
