"""A shard's numbers, as one msgpack map. The gateway adds the shards up and renders them."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from topics.board import FSYNC_BOUNDS_US
from topics.core.queue_counts import counts
from topics.core.topic import Topic
from topics.shards.committer import Committer
from topics.shards.groups import GroupRow, Groups
from topics.shards.store import Store


class Totals:
    """Sums over all topics, taken a topic at a time so that the loop is not held."""

    def __init__(self) -> None:
        self.by_class: Counter[str] = Counter()
        self.queues = 0
        self.leases = 0
        self.records = 0
        self.bytes = 0
        self.rows: list[list[Any]] = []  # of some topics, in the order of their names
        self.group_rows: list[GroupRow] = []  # of some groups, as well

    def add_rows(self, store: Store, limit: int, prefixes: Sequence[str]) -> Iterator[None]:
        state = store.engine.state
        for name in list(islice(state.list_names("", "", prefixes), limit)):
            if name in state.topics:
                self.rows.append(_row(state.topics[name], store.engine.now()))
            yield

    def add_groups(self, groups: Groups, limit: int, prefixes: Sequence[str]) -> Iterator[None]:
        for row in islice(groups.rows(prefixes), limit):
            self.group_rows.append(row)
            yield

    def add_all(self, store: Store) -> Iterator[None]:
        for topic in list(store.engine.state.by_id.values()):
            if topic.hidden:
                continue
            self.by_class[topic.config.durability] += 1
            if topic.config.type == "queue":
                self.queues += 1
                self.leases += counts(topic, store.engine.now()).in_flight
            self.records += topic.count
            self.bytes += topic.bytes
            yield


def collect(
    store: Store,
    committer: Committer,
    totals: Totals,
    groups: Groups,
    damaged_blocks: int,
) -> dict[str, Any]:
    engine = store.engine
    times = committer.sync_times
    return {
        "ready": True,
        "replay_progress": 1.0,
        "topics": sum(totals.by_class.values()),
        "by_class": dict(totals.by_class),
        "queues": totals.queues,
        "leases": totals.leases,
        "routers": engine.holdings.routers,
        "records_live": totals.records,
        "bytes_live": totals.bytes,
        "expired": engine.expired,
        "idempotency_keys": engine.state.keys,
        "wal": {
            "frames": engine.log.counters.frames,
            "batches": committer.batches,
            "fsyncs": times.count,
            "bytes_written": store.writer.bytes_total,
            "rotations": store.writer.rotations,
            "queue_depth": engine.log.depth,
            "queue_depth_peak": engine.log.counters.depth_peak,
            "submit_full": engine.log.counters.refused,
            "read_only": int(engine.poisoned is not None),
        },
        "fsync_us": {"bounds": FSYNC_BOUNDS_US, "buckets": times.buckets, "count": times.count, "sum": times.sum_us},
        "data_files": len(store.data_files),
        "data_bytes": sum(info.size for info in store.data_files.values() if not info.cold),
        **_cold(store),
        "damage": {"log_ranges": store.damaged_ranges, "blocks": damaged_blocks},
        "per_topic": totals.rows,
        "groups": groups.count,
        "per_group": totals.group_rows,
    }


def _cold(store: Store) -> dict[str, int]:
    cold = [info.size for info in store.data_files.values() if info.cold]
    away = bool(cold) if store.cold is None else bool(store.cold.problem)
    return {"cold_segments": len(cold), "cold_bytes": sum(cold), "cold_unavailable": int(away)}


def _row(topic: Topic, now_ms: int) -> list[Any]:
    """Queues have four more columns: jobs that are ready, leased ones, those whose time has not come, dead letters."""
    row = [topic.name, topic.head_seq, topic.earliest_seq, topic.count, topic.bytes]
    if topic.config.type != "queue":
        return row
    jobs = counts(topic, now_ms)
    return [*row, jobs.ready, jobs.in_flight, jobs.scheduled, jobs.dead_lettered]
