"""A shard's numbers, as one msgpack map. The gateway adds the shards up and renders them."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from topics.core.topic import Topic
from topics.shards.committer import BUCKETS_US, Committer
from topics.shards.store import Store


def collect(store: Store, committer: Committer, topic_rows: int, prefixes: Sequence[str]) -> dict[str, Any]:
    engine = store.engine
    topics = engine.state.by_id.values()
    times = committer.sync_times
    return {
        "ready": True,
        "replay_progress": 1.0,
        "topics": len(topics),
        "by_class": dict(Counter(topic.config.durability for topic in topics)),
        "queues": sum(topic.config.type == "queue" for topic in topics),
        "records_live": sum(topic.count for topic in topics),
        "bytes_live": sum(topic.bytes for topic in topics),
        "idempotency_keys": engine.state.keys,
        "wal": {
            "frames": engine.counters.frames,
            "batches": committer.batches,
            "fsyncs": times.count,
            "bytes_written": store.writer.bytes_total,
            "rotations": store.writer.rotations,
            "queue_depth": engine.queue_depth,
            "queue_depth_peak": engine.counters.queue_depth_peak,
            "submit_full": engine.counters.submit_full,
            "read_only": int(engine.poisoned is not None),
        },
        "fsync_us": {"bounds": BUCKETS_US, "buckets": times.buckets, "count": times.count, "sum": times.sum_us},
        "data_files": len(store.data_files),
        "per_topic": _rows(store, topic_rows, tuple(prefixes)),
    }


def _rows(store: Store, limit: int, prefixes: tuple[str, ...]) -> list[list[Any]]:
    rows: list[list[Any]] = []
    state = store.engine.state
    for name in state.names:
        if len(rows) >= limit:
            break
        topic: Topic = state.topics[name]
        if topic.published and (not prefixes or name.startswith(prefixes)):
            rows.append([name, topic.head_seq, topic.earliest_seq, topic.count, topic.bytes])
    return rows
