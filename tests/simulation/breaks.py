"""Ways to break a shard on purpose: each is a bug that somebody could write, and the simulation has to find it."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import msgspec

from topics.core import state
from topics.core.events import Appended, RecordsDeleted, TopicRemoved
from topics.core.topic import Topic
from topics.shards import losses, recovery, snapshot
from topics.shards.checkpoint import Checkpoint
from topics.shards.committer import Committer
from topics.shards.datafile import PACK
from topics.shards.engine import Engine
from topics.shards.files import Files
from topics.shards.store import Store
from topics.testing.simulated_world import SimulatedDisk

Patches = Iterator[Any]


def disk_that_lies_about_sync() -> Patches:
    def sync(self: SimulatedDisk, node: Any, path: str) -> None:
        self._call(f"sync {path}, which is a lie", lambda: None)

    yield patch.object(SimulatedDisk, "sync", sync)


def committer_that_acks_before_it_writes() -> Patches:
    hand_over = Committer._hand_over

    def early(self: Committer) -> None:
        last = self._engine.log.last_lsn
        hand_over(self)
        self._engine.durable(last)

    yield patch.object(Committer, "_hand_over", early)


def failed_sync_that_is_tried_again() -> Patches:
    sync_log = Store.sync_log

    def insist(self: Store) -> int:
        try:
            return sync_log(self)
        except OSError:
            return sync_log(self)

    yield patch.object(Store, "sync_log", insist)


def names_that_are_never_synced() -> Patches:
    def write_pack(self: Checkpoint, files: Files, packed: Any) -> None:
        path = f"packs/pack-{self._store.next_file_id:010d}.data"
        self._store_file(files, PACK, path, 0, packed)

    yield patch.object(Checkpoint, "_write_pack", write_pack)


def _replay(change: Callable[[Any], Any]) -> Patches:
    def changed(shard_state: Any, event: Any, lsn: int) -> Any:
        event = change(event)
        return state.apply(shard_state, event, lsn) if event is not None else None

    yield patch.object(recovery, "apply", changed)


def replay_that_skips_deletes() -> Patches:
    yield from _replay(lambda event: None if type(event) is RecordsDeleted else event)


def replay_that_skips_removals() -> Patches:
    yield from _replay(lambda event: None if type(event) is TopicRemoved else event)


def replay_that_tears_batches() -> Patches:
    def tear(event: Any) -> Any:
        if type(event) is not Appended or event.count < 2:
            return event
        *blocks, last = event.blocks
        blocks += [last.cut(0, len(last) - 1)] if len(last) > 1 else []
        return msgspec.structs.replace(event, blocks=blocks, count=event.count - 1)

    yield from _replay(tear)


def recovery_that_reuses_seqs() -> Patches:
    yield patch.object(recovery, "find_losses", lambda *args, **options: [])


def recovery_that_keeps_the_epoch() -> Patches:
    find = losses.find_losses

    def keep(*args: Any, **options: Any) -> Any:
        return [loss for loss in find(*args, **options) if not loss.epoch]

    yield patch.object(recovery, "find_losses", keep)


def snapshot_that_forgets_keys() -> Patches:
    decode = snapshot.decode_topic
    yield patch.object(snapshot, "decode_topic", lambda topic_id, entry, keys: decode(topic_id, entry, b""))


def delete_that_takes_only_a_part() -> Patches:
    delete = Engine.delete_records

    def half(self: Engine, topic: Topic, before_seq: int, *rest: Any) -> None:
        delete(self, topic, before_seq // 2, *rest)

    yield patch.object(Engine, "delete_records", half)


def eviction_without_a_word() -> Patches:
    yield patch.object(Topic, "gap_after", lambda self, from_seq: None)


def reader_that_is_never_woken() -> Patches:
    yield patch.object(Engine, "wake_readers", lambda self, topic: None)


def retry_that_is_written_again() -> Patches:
    yield patch.object(Engine, "_deduplicated", lambda *args: False)


def record_that_is_seen_before_it_is_durable() -> Patches:
    log = Engine.submit

    def ungated(self: Engine, topic: Topic, event: Any, gate: bool, *rest: Any) -> None:
        log(self, topic, event, gate and type(event) is not Appended, *rest)

    yield patch.object(Engine, "submit", ungated)


LOG_BREAKS = [
    disk_that_lies_about_sync,
    committer_that_acks_before_it_writes,
    failed_sync_that_is_tried_again,
    names_that_are_never_synced,
    replay_that_skips_deletes,
    replay_that_skips_removals,
    replay_that_tears_batches,
    recovery_that_reuses_seqs,
    recovery_that_keeps_the_epoch,
    snapshot_that_forgets_keys,
    delete_that_takes_only_a_part,
    eviction_without_a_word,
    reader_that_is_never_woken,
    retry_that_is_written_again,
    record_that_is_seen_before_it_is_durable,
]


@contextmanager
def broken(how: Callable[[], Patches]) -> Iterator[None]:
    with ExitStack() as stack:
        for broken_part in how():
            stack.enter_context(broken_part)
        yield
