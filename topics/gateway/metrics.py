"""Metrics (API §8.3): the shards' numbers added up, then one by one, then a bounded number of topics.

A shard that does not answer in time is left out and shows as `topics_shard_up 0`; the answer is 200 all the same. Only
what the whole server holds still counts what such a shard held last.

The API names two metrics in milliseconds and microseconds. Prometheus wants seconds everywhere, and its tools say so:
whoever asks for `units=base` gets these two in seconds, under names that end in `_seconds`.
"""

import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from topics import limits
from topics.errors import invalid
from topics.gateway.accept import preferred
from topics.gateway.dispatch import Gateway
from topics.gateway.exposition import Family, to_json, to_text
from topics.gateway.http_metrics import http_families, process_families
from topics.gateway.messages import JSON, Request, Response
from topics.gateway.routing import Route
from topics.rpc.open_calls import Reply

CLASSES = ("ephemeral", "memory", "disk", "fsync")
TEXT = b"text/plain; version=0.0.4; charset=utf-8"
WAL = {
    "frames": ("topics_wal_frames_total", "counter", "Frames written to the log."),
    "batches": ("topics_wal_batches_total", "counter", "Groups of frames written together."),
    "fsyncs": ("topics_wal_fsyncs_total", "counter", "Syncs of the log."),
    "bytes_written": ("topics_wal_bytes_written_total", "counter", "Bytes written to the log."),
    "rotations": ("topics_wal_rotations_total", "counter", "Log files begun after the first."),
    "queue_depth": ("topics_wal_queue_depth", "gauge", "Frames that wait to be written."),
    "queue_depth_peak": ("topics_wal_queue_depth_peak", "gauge", "The most frames that ever waited in one shard."),
    "submit_full": ("topics_wal_submit_full_total", "counter", "Writes refused because the queue was full."),
    "read_only": ("topics_wal_read_only", "gauge", "1 if a log failed and takes no more writes."),
}
PEAKS = ("queue_depth_peak", "read_only")  # over several shards the largest counts, not the sum
TOPIC_FIELDS = (
    ("head_seq", "Highest assigned seq per topic."),
    ("earliest_seq", "Seq of the first live record per topic."),
    ("records_live", "Live records per topic."),
    ("bytes_live", "Live bytes per topic."),
    ("queue_ready", "Claimable jobs per queue."),
    ("queue_in_flight", "Leased jobs per queue."),
    ("queue_scheduled", "Jobs per queue whose time has not come."),
    ("queue_dead_lettered", "Jobs per queue that have gone to its dead-letter topic so far."),
)
GROUP_FIELDS = (
    ("cursor_seq", "The last seq that a consumer group is done with."),
    ("lag", "How many seqs a consumer group is behind the head of its topic."),
)


class Times(NamedTuple):
    """How the two times are called, and how many of the shards' units make one of theirs."""

    uptime: str
    per_uptime: float
    sync: str
    sync_help: str
    per_sync: float


SYNC = "Time of one sync of the log"
AS_NAMED = Times("topics_uptime_ms", 1, "topics_wal_fsync_latency_us", f"{SYNC}, in microseconds.", 1)
IN_SECONDS = Times("topics_uptime_seconds", 1e3, "topics_wal_fsync_latency_seconds", f"{SYNC}.", 1e6)


async def metrics(gateway: Gateway, request: Request) -> Response:
    times = _times(request)
    prefixes = request.principal.prefixes
    head = {"topics": limits.METRICS_TOPICS_MAX + 1, "prefixes": prefixes}  # one more shows that some are left out
    answers = await gateway.shards.call_all("metrics", head, limits.METRICS_DEADLINE_MS)
    shards = {shard: answer.head if isinstance(answer, Reply) else None for shard, answer in answers.items()}
    families = list(_families(gateway, shards, times))
    if preferred(request.headers.get(b"accept", b""), b"text/plain", JSON) == JSON:
        return Response(msgspec.json.encode(to_json(families))[:-1], 200, {})
    return Response(to_text(families), 200, None, TEXT)


def _times(request: Request) -> Times:
    units = request.args.get("units") if request.query else None
    if units not in (None, "base"):
        raise invalid('units must be "base", or left out', field="units")
    return AS_NAMED if units is None else IN_SECONDS


def _families(gateway: Gateway, shards: Mapping[int, dict[str, Any] | None], times: Times) -> Iterator[Family]:
    up = {shard: head for shard, head in shards.items() if head is not None}
    live = {shard: head for shard, head in up.items() if head["ready"]}
    progress = sum(head["replay_progress"] for head in up.values()) / max(1, len(shards))
    yield from _instance(gateway, live, down=[shard for shard in shards if shard not in live], progress=progress)
    uptime_ms = int(time.time() * 1000) - gateway.started_ms
    yield Family(times.uptime, "gauge", "Time since the server started.").add(_in(uptime_ms, times.per_uptime))
    yield from _log(live, times)
    yield from _per_shard(shards, live)
    yield from http_families(gateway)
    yield from process_families(gateway)
    yield from _per_topic(live)
    yield from _per_group(live)


def _instance(
    gateway: Gateway, live: Mapping[int, dict[str, Any]], *, down: list[int], progress: float
) -> Iterator[Family]:
    def total(key: str) -> int:
        return sum(head.get(key, 0) for head in live.values())

    def kept(key: str) -> int:
        return total(key) + gateway.told_by(down, key)

    def on_board(field: str) -> int:
        """Also of shards that are down."""
        return gateway.board.total(field) if gateway.board is not None else 0

    def gauge(name: str, help: str, value: float) -> Family:
        return Family(name, "gauge", help).add(value)

    yield gauge("topics_topics", "Topics.", kept("topics"))
    classes = Family("topics_topics_by_class", "gauge", "Topics by durability class.")
    for name in CLASSES:
        classes.add(sum(head["by_class"].get(name, 0) for head in live.values()), **{"class": name})
    yield classes
    yield gauge("topics_routers", "Routers.", kept("routers"))
    yield gauge("topics_records_live", "Live records of all topics.", kept("records_live"))
    yield gauge("topics_bytes_live", "Live bytes of all topics.", kept("bytes_live"))
    expired = Family(
        "topics_records_expired_total", "counter", "Records whose time was over: their topic's or their own."
    )
    yield expired.add(total("expired"))
    yield gauge("topics_data_bytes", "Bytes of the data files on disk, as they are stored.", total("data_bytes"))
    yield gauge("topics_cold_segments", "Segments in the cold directory.", total("cold_segments"))
    yield gauge("topics_cold_bytes", "Bytes of the segments in the cold directory.", total("cold_bytes"))
    yield gauge("topics_cold_unavailable", "Shards that cannot use their cold directory.", total("cold_unavailable"))
    yield gauge("topics_queue_topics", "Topics of type queue.", total("queues"))
    yield gauge("topics_queue_leases_in_flight", "Leased jobs of all queues.", total("leases"))
    yield gauge("topics_groups", "Consumer groups of all topics.", total("groups"))
    yield gauge("topics_sse_connections", "Open streams, SSE and WebSocket.", on_board("streams"))
    yield gauge("topics_watch_sessions", "Watch sessions.", on_board("sessions"))
    yield gauge("topics_ready", "1 if every shard serves.", int(not down and not gateway.draining))
    yield gauge("topics_recovery_progress", "Replay of the log, 0 to 1.", round(progress, 3))


def _log(live: Mapping[int, dict[str, Any]], times: Times) -> Iterator[Family]:
    for key, (name, kind, help) in WAL.items():
        values = [head["wal"][key] for head in live.values()]
        yield Family(name, kind, help).add(max(values, default=0) if key in PEAKS else sum(values))
    yield _histogram([head["fsync_us"] for head in live.values()], times)


def _histogram(parts: list[dict[str, Any]], times: Times) -> Family:
    family = Family(times.sync, "histogram", times.sync_help)
    bounds = [str(_in(bound, times.per_sync)) for bound in parts[0]["bounds"]] if parts else []
    counted = 0
    for index, bound in enumerate([*bounds, "+Inf"]):
        counted += sum(part["buckets"][index] for part in parts)
        family.add(counted, le=bound)
    family.samples.append(({"": "sum"}, _in(sum(part["sum"] for part in parts), times.per_sync)))
    family.samples.append(({"": "count"}, sum(part["count"] for part in parts)))
    return family


def _in(value: int, per_unit: float) -> float:
    return value if per_unit == 1 else value / per_unit


def _per_shard(shards: Mapping[int, Any], live: Mapping[int, dict[str, Any]]) -> Iterator[Family]:
    up = Family("topics_shard_up", "gauge", "1 if the shard serves.")
    for shard in shards:
        up.add(int(shard in live), shard=shard)
    yield up
    for key in ("topics", "records_live", "bytes_live", "idempotency_keys", "data_files"):
        family = Family(f"topics_shard_{key}", "gauge", f"Of one shard: {key.replace('_', ' ')}.")
        for shard, head in live.items():
            family.add(head[key], shard=shard)
        yield family
    for key, (name, kind, help) in WAL.items():
        family = Family(name.replace("topics_wal", "topics_shard_wal"), kind, f"Of one shard: {help}")
        for shard, head in live.items():
            family.add(head["wal"][key], shard=shard)
        yield family


def _per_topic(live: Mapping[int, dict[str, Any]]) -> Iterator[Family]:
    rows = sorted(row for head in live.values() for row in head["per_topic"])
    shown = rows[: limits.METRICS_TOPICS_MAX]
    for index, (name, help) in enumerate(TOPIC_FIELDS, 1):
        family = Family(f"topics_topic_{name}", "gauge", help)
        for row in shown:
            if len(row) > index:
                family.add(row[index], topic=row[0])
        yield family
    yield _truncated("topic", "1 if there are more topics than are shown.", rows, shown)


def _per_group(live: Mapping[int, dict[str, Any]]) -> Iterator[Family]:
    rows = sorted(row for head in live.values() for row in head.get("per_group", ()))
    shown = rows[: limits.METRICS_TOPICS_MAX]
    for index, (name, help) in enumerate(GROUP_FIELDS, 2):
        family = Family(f"topics_group_{name}", "gauge", help)
        for row in shown:
            family.add(row[index], topic=row[0], group=row[1])
        yield family
    yield _truncated("group", "1 if there are more consumer groups than are shown.", rows, shown)


def _truncated(what: str, help: str, rows: list[Any], shown: list[Any]) -> Family:
    """Rows are of topics that the key may see: others are none of its business, and not left out."""
    return Family(f"topics_{what}_metrics_truncated", "gauge", help).add(int(len(rows) > len(shown)))


ROUTES = (Route("GET", "/v0/metrics", metrics, "metrics", probe=True),)
