"""A part of a shard, made of a copy of all of it: what belongs to other hash slots is removed from the copy.

So a shard is divided without renumbering anything: topics keep their ids, epochs and seqs, and whatever refers to them
(leases, groups, routers and their marks) holds. The copy is recovered, changed and stored by the machinery of a running
shard. A crash leaves a copy that is good for nothing; the original is never touched.
"""

import logging
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, NamedTuple

from topics import limits
from topics.core.config import to_wire
from topics.core.topic import Topic
from topics.ids import slot_of
from topics.shards import datafile, links, routers, sessions, slots, snapshot
from topics.shards.book import Book
from topics.shards.files import RealFiles
from topics.shards.readonly_files import ReadOnlyFiles
from topics.shards.recovery import check_that_log_meets, recover
from topics.shards.session import DEFINITION, SAVED
from topics.shards.slots import UsedSlots
from topics.shards.store import Store

log = logging.getLogger(__name__)
TOPIC_BYTES = 4096  # what a topic counts for in the size of its slot, beside its records


class HasColdSegments(Exception):
    """Its records are not all in its directory."""


class Facts(NamedTuple):
    """What must not change about a topic."""

    topic_id: int
    epoch: int
    head_seq: int
    earliest_seq: int
    records: int
    size: int
    last_ts: int
    config: dict[str, Any]


class StillClock:
    """So that nothing expires between two looks."""

    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic_ns(self) -> int:
        return 0


def sizes_of_slots(directory: Path) -> dict[int, int]:
    """About how much each hash slot of a shard holds, by its last checkpoint. Reads only. Raises BadSnapshot."""
    files = ReadOnlyFiles(str(directory))
    snap = snapshot.read_snapshot(files)
    check_that_log_meets(files, snap)
    if any(info.cold for info in snap.files.values()):
        raise HasColdSegments
    slot_of_topic: dict[int, int] = {}
    sizes: dict[int, int] = {}
    for topic_id, entry in snap.topics.items():
        topic, _ = snapshot.decode_topic(topic_id, entry)
        if not topic.hidden:
            slot = slot_of_topic[topic_id] = slot_of(topic.name)
            sizes[slot] = sizes.get(slot, 0) + TOPIC_BYTES
    for info in snap.files.values():
        for stored in datafile.load_index(files, info).entries:
            if stored.topic_id in slot_of_topic:
                sizes[slot_of_topic[stored.topic_id]] += stored.frame_len
    return sizes


def facts_of(directory: Path, now_ms: int) -> dict[str, Facts]:
    """The topics that a start on this directory would find. For copies: a recovery may write."""
    store = _open(directory, now_ms)
    try:
        return _facts(store)
    finally:
        store.close()


def keep_only(directory: Path, mine: Collection[int], now_ms: int) -> None:
    """Remove from a copy of a shard what belongs to other hash slots than `mine`."""
    store = _open(directory, now_ms)
    marked = store.slots.all()
    try:
        for topic in list(store.engine.state.topics.values()):
            if not topic.hidden and slot_of(topic.name) not in mine:
                store.engine.remove_topic(topic.name, False, _done, _fail)
        _prune(store, routers.NAME, lambda key, value: slot_of(routers.decode_router(value).definition.source) in mine)
        _prune(store, links.NAME, lambda key, value: slot_of(links.decode_link(value).dest) in mine)
        _prune(store, sessions.NAME, lambda key, value: (wid := _wid(key)) is None or slot_of(wid) in mine)
        store.commit_all()
        store.checkpoint([])
        store.engine.go_idle()
        store.commit_all()
    finally:
        store.close()
    files = RealFiles(str(directory))
    files.unlink(slots.PATH)
    used = UsedSlots(files)
    used.mark(marked & set(mine))
    used.close()


def _open(directory: Path, now_ms: int) -> Store:
    """Also with what is dead: a destination on another shard, which crashed, may want it (remains.py)."""
    files, size = RealFiles(str(directory)), limits.WAL_FIRST_FILE_BYTES
    return recover(files, StillClock(now_ms), wal_file_bytes=size, keep_spent=True)


def _facts(store: Store) -> dict[str, Facts]:
    for topic in store.engine.state.topics.values():
        store.engine.endings.finish(topic)
    return {topic.name: _facts_of(topic) for topic in store.engine.state.topics.values() if not topic.hidden}


def _facts_of(topic: Topic) -> Facts:
    return Facts(
        topic.id, topic.epoch, topic.head_seq, topic.earliest_seq, topic.count, topic.bytes, topic.last_ts,
        to_wire(topic.config),
    )  # fmt: skip


def _prune(store: Store, name: str, keeps: Callable[[str, bytes], bool]) -> None:
    book = Book(store, name)
    gone = [key for key, kept in book.load_as(keeps) if not kept]
    if gone:
        book.remove_all(gone, _done, _fail)


def _wid(key: str) -> str | None:
    for prefix in (DEFINITION, SAVED):
        if key.startswith(prefix):
            return key.removeprefix(prefix)
    return None


def _done(_: object) -> None:
    pass


def _fail(error: Exception) -> None:
    raise error
