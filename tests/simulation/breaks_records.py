"""Lifetimes and keys of single records that are broken on purpose, see breaks.py."""

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import msgspec

from topics.core import dedup, lifetimes, state
from topics.core.events import Appended
from topics.core.idempotency import KeyWindow
from topics.core.loss import Tombstone
from topics.core.ranges import SeqRanges
from topics.core.topic import Topic
from topics.shards import recovery
from topics.shards.keymemory import KeyMemory

Patches = Iterator[Any]


def lifetime_that_never_ends() -> Patches:
    yield patch.object(lifetimes, "take_over", lambda topic, now_ms: None)


def lifetime_that_a_restart_forgets() -> Patches:
    yield patch.object(lifetimes, "recall", lambda topic: None)


def lifetime_that_ends_too_early() -> Patches:
    take_over = lifetimes.take_over
    yield patch.object(lifetimes, "take_over", lambda topic, now_ms: take_over(topic, now_ms + 50))


def lifetime_that_takes_another_record() -> Patches:
    take_over = lifetimes.take_over

    def more(topic: Topic, now_ms: int) -> SeqRanges | None:
        over = take_over(topic, now_ms)
        if over is not None:
            over.add(topic.head_seq, topic.head_seq)
        return over

    yield patch.object(lifetimes, "take_over", more)


def lifetime_that_waits_for_the_log() -> Patches:
    yield patch.object(lifetimes, "hide", lambda topic, over: over)


def lifetime_that_leaves_a_tombstone() -> Patches:
    gap_after = Topic.gap_after

    def told(self: Topic, from_seq: int) -> Any:
        gap = gap_after(self, from_seq)
        if gap is None and from_seq + 1 < self.earliest_seq:
            return Tombstone(from_seq + 1, self.earliest_seq - 1, "ttl", 1)
        return gap

    yield patch.object(Topic, "gap_after", told)


def replay_that_forgets_keys_of_records() -> Patches:
    def changed(shard_state: Any, event: Any, lsn: int) -> Any:
        event = msgspec.structs.replace(event, dedups=()) if type(event) is Appended else event
        return state.apply(shard_state, event, lsn)

    yield patch.object(recovery, "apply", changed)


def key_that_is_forgotten_too_soon() -> Patches:
    find = KeyWindow.find
    yield patch.object(KeyWindow, "find", lambda self, digest, now_ms, window_ms: find(self, digest, now_ms + 140, 150))


def key_that_is_never_forgotten() -> Patches:
    find = KeyWindow.find
    yield patch.object(KeyWindow, "find", lambda self, digest, now_ms, window_ms: find(self, digest, 0, window_ms))
    yield patch.object(KeyWindow, "forget_before", lambda self, ts: 0)


def duplicate_that_does_not_wait() -> Patches:
    yield patch.object(KeyMemory, "waits", lambda self, topic, request, again: False)


def duplicate_that_names_another_record() -> Patches:
    sift = dedup.sift

    def off_by_one(*args: Any) -> dedup.Sifted:
        sifted = sift(*args)
        return sifted._replace(duplicates=tuple((index, seq + 1) for index, seq in sifted.duplicates))

    yield patch("topics.shards.keymemory.sift", off_by_one)


RECORD_BREAKS = [
    lifetime_that_never_ends,
    lifetime_that_a_restart_forgets,
    lifetime_that_ends_too_early,
    lifetime_that_takes_another_record,
    lifetime_that_waits_for_the_log,
    lifetime_that_leaves_a_tombstone,
    replay_that_forgets_keys_of_records,
    key_that_is_forgotten_too_soon,
    key_that_is_never_forgotten,
    duplicate_that_does_not_wait,
    duplicate_that_names_another_record,
]
