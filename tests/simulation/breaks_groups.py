"""Consumer groups that are broken on purpose, see breaks.py."""

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import msgspec

from topics.core import groups as core
from topics.core.groups import KEPT, MOVED, GroupEvent
from topics.core.topic import Topic
from topics.shards import grouplog
from topics.shards.fetches import FetchLook
from topics.shards.grouplog import GroupLog
from topics.shards.store import Store

Patches = Iterator[Any]


def _replay_without(*kinds: int) -> Patches:
    stored = grouplog._stored

    def some(store: Store) -> Iterator[GroupEvent]:
        return (event for event in stored(store) if event.kind not in kinds)

    yield patch.object(grouplog, "_stored", some)


def replay_that_skips_acks() -> Patches:
    yield from _replay_without(MOVED)


def replay_that_forgets_groups() -> Patches:
    yield from _replay_without(KEPT, MOVED)


def replay_that_forgets_consumers() -> Patches:
    stored = grouplog._stored

    def nameless(store: Store) -> Iterator[GroupEvent]:
        for event in stored(store):
            is_kept = event.kind == KEPT
            yield (
                msgspec.structs.replace(event, fields=(event.fields[0], "", (), *event.fields[3:]))
                if is_kept
                else event
            )

    yield patch.object(grouplog, "_stored", nameless)


def ack_of_a_group_that_is_told_before_it_is_durable() -> Patches:
    note = GroupLog.note

    def early(self: GroupLog, topic: Topic, event: GroupEvent, done: Any, fail: Any) -> None:
        if event.kind != MOVED:
            note(self, topic, event, done, fail)
            return
        note(self, topic, event, lambda: None, fail)
        assert topic.groups is not None
        topic.groups[event.group].show(event.fields[0])
        done()

    yield patch.object(GroupLog, "note", early)


def log_of_groups_that_loses_cursors_when_written_anew() -> Patches:
    kept = core.kept

    def from_the_start(topic: Topic, group: core.Group, now_ms: int) -> GroupEvent:
        return kept(topic, msgspec.structs.replace(group, cursor=0), now_ms)

    yield patch.object(core, "kept", from_the_start)


def ack_that_goes_too_far() -> Patches:
    moved = core.moved
    yield patch.object(core, "moved", lambda topic, group, cursor, now_ms: moved(topic, group, cursor + 1, now_ms))


def fetch_that_begins_anywhere() -> Patches:
    begin = FetchLook._begin

    def from_the_start(self: FetchLook, topic: Topic) -> None:
        begin(self, topic)
        self.asked = self.query = msgspec.structs.replace(self.query, from_seq=0)

    yield patch.object(FetchLook, "_begin", from_the_start)


def consumer_that_goes_on_after_it_lost() -> Patches:
    yield patch.object(core, "comes_first", lambda group, consumer: False)
    yield patch.object(core, "check_active", lambda group, consumer: None)


def consumer_that_is_always_refused() -> Patches:
    def refuse(group: core.Group, consumer: str | None) -> bool:
        if consumer is not None:
            raise core.taken_over(group, consumer)
        return False

    yield patch.object(core, "comes_first", refuse)


GROUP_BREAKS = [
    replay_that_skips_acks,
    replay_that_forgets_groups,
    replay_that_forgets_consumers,
    ack_of_a_group_that_is_told_before_it_is_durable,
    log_of_groups_that_loses_cursors_when_written_anew,
    ack_that_goes_too_far,
    fetch_that_begins_anywhere,
    consumer_that_goes_on_after_it_lost,
    consumer_that_is_always_refused,
]
