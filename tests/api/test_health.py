"""Liveness, readiness and metrics (API §8)."""

import re
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.api.instance import envelope, wait_for
from topics.board import Phase

GAUGES = [
    "topics_topics",
    "topics_topics_by_class",
    "topics_routers",
    "topics_records_live",
    "topics_bytes_live",
    "topics_queue_topics",
    "topics_queue_leases_in_flight",
    "topics_sse_connections",
    "topics_watch_sessions",
    "topics_ready",
    "topics_recovery_progress",
    "topics_uptime_ms",
    "topics_topic_head_seq",
    "topics_topic_earliest_seq",
    "topics_topic_records_live",
    "topics_topic_bytes_live",
    "topics_topic_queue_ready",
    "topics_topic_queue_in_flight",
    "topics_topic_metrics_truncated",
    "topics_wal_frames_total",
    "topics_wal_batches_total",
    "topics_wal_fsyncs_total",
    "topics_wal_bytes_written_total",
    "topics_wal_rotations_total",
    "topics_wal_queue_depth",
    "topics_wal_queue_depth_peak",
    "topics_wal_submit_full_total",
    "topics_wal_read_only",
    "topics_wal_fsync_latency_us",
]
LINE = re.compile(r'([a-z_:][a-z0-9_]*)(\{[a-z_]+="[^"\\\n]*"(?:,[a-z_]+="[^"\\\n]*")*\})? (-?[0-9.]+(?:e[+-]?\d+)?)')


@pytest.mark.parametrize("path", ["/v0/health", "/healthz"])
def test_health(http, path):
    body = http.get(path).json()
    assert (body["status"], body["version"]) == ("ok", "0.1.0")
    assert body["uptime_ms"] > 0


@pytest.mark.parametrize("path", ["/v0/ready", "/readyz"])
def test_ready(http, name, path):
    http.put(f"/v0/topics/{name}")
    body = http.get(path).json()
    assert (body["status"], body["wal_replay_complete"]) == ("ready", True)
    assert body["topics"] >= 1


def scrape(http):
    """Metrics of all shards: on a busy machine one may miss the deadline, and is then left out."""
    return wait_for(lambda: (answer := http.get("/v0/metrics")).text.count("topics_ready 1") and answer, "all shards")


def samples(text):
    found = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            match = LINE.fullmatch(line)
            assert match, line
            assert (match[1], match[2]) not in found, line
            found[match[1], match[2]] = float(match[3])
    return found


def test_prometheus_text(http, name):
    http.put(f"/v0/topics/{name}", json={"durability": "fsync"})
    http.post(f"/v0/topics/{name}", json={"records": [{"data": 1}, {"data": 2}]})
    answer = scrape(http)
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    for metric in GAUGES:
        assert f"# TYPE {metric} " in answer.text, metric
        assert f"# HELP {metric} " in answer.text, metric
    found = samples(answer.text)
    assert found["topics_topic_head_seq", f'{{topic="{name}"}}'] == 2
    assert found["topics_topic_records_live", f'{{topic="{name}"}}'] == 2
    assert found["topics_ready", None] == 1
    assert found["topics_recovery_progress", None] == 1
    assert found["topics_topic_metrics_truncated", None] == 0
    assert found["topics_wal_fsyncs_total", None] > 0


def test_per_shard_series_add_up(http, name):
    http.post(f"/v0/topics/{name}", json={"records": [{"data": 1}]})
    found = samples(scrape(http).text)
    for key in ("topics", "records_live", "bytes_live", "wal_frames_total", "wal_bytes_written_total"):
        parts = [found[f"topics_shard_{key}", f'{{shard="{shard}"}}'] for shard in (0, 1)]
        assert sum(parts) == found[f"topics_{key}", None]
    assert found["topics_shard_up", '{shard="1"}'] == 1


def test_the_histogram_is_cumulative(http):
    found = samples(scrape(http).text)
    name = "topics_wal_fsync_latency_us"
    buckets = [value for (metric, _), value in found.items() if metric == f"{name}_bucket"]
    assert buckets == sorted(buckets)
    assert found[f"{name}_bucket", '{le="+Inf"}'] == found[f"{name}_count", None] == buckets[-1]
    assert found[f"{name}_sum", None] >= 0


def test_json(http, name):
    http.post(f"/v0/topics/{name}", json={"records": [{"data": 1}]})
    scrape(http)
    answer = http.get("/v0/metrics", headers={"accept": "application/json"})
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    assert set(GAUGES) <= set(body)
    assert body["topics_topic_head_seq"][name] == 1
    assert body["topics_topics_by_class"]["disk"] > 0
    assert body["topics_wal_fsync_latency_us"]["count"] > 0
    assert body["topics_shard_up"] == {"0": 1, "1": 1}


def test_the_weights_of_accept_count(http):
    for accept, kind in (
        ("application/json;q=0.5, text/plain", "text/plain"),
        ("application/json;q=0", "text/plain"),
        ("text/plain;q=0.5, application/json", "application/json"),
        ("text/html", "text/plain"),
    ):
        answer = http.get("/v0/metrics", headers={"accept": accept})
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith(kind), accept


def test_the_per_topic_block_is_bounded(fresh):
    instance = fresh().start()
    with httpx.Client(base_url=instance.url) as http:
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda n: http.put(f"/v0/topics/t{n:04d}"), range(1000)))
            assert samples(scrape(http).text)["topics_topic_metrics_truncated", None] == 0
            http.put("/v0/topics/t1000")
        found = samples(scrape(http).text)
        rows = [labels for metric, labels in found if metric == "topics_topic_head_seq"]
        assert len(rows) == 1000
        assert found["topics_topic_metrics_truncated", None] == 1
        assert found["topics_topics", None] == 1001


def test_before_the_shards_are_there(fresh):
    """The port answers from the first moment, with progress."""
    instance = fresh()
    instance.start_gateway()
    error = envelope(instance.get("/v0/ready"), 503, "not_ready")
    assert error["detail"]["replay_progress"] == 0.0
    assert int(instance.get("/v0/ready").headers["retry-after"]) >= 1
    assert instance.get("/v0/health").status_code == 200
    answer = instance.get("/v0/topics/a")
    envelope(answer, 503, "not_ready")
    assert int(answer.headers["retry-after"]) >= 1
    found = samples(instance.get("/v0/metrics").text)
    assert (found["topics_ready", None], found["topics_shard_up", '{shard="0"}']) == (0, 0)
    instance.start_shard(0)
    instance.wait_ready()


def test_once_ready_a_lost_shard_only_degrades(fresh):
    instance = fresh(2).start()
    instance.kill_shard(0)
    answer = wait_for(lambda: instance.get("/v0/ready"), "an answer")
    assert answer.status_code == 200
    body = answer.json()
    assert (body["status"], body["shards_down"]) == ("degraded", [0])
    assert samples(instance.get("/v0/metrics").text)["topics_shard_up", '{shard="0"}'] == 0


def test_a_gateway_that_starts_later_knows_that_the_server_was_ready(fresh):
    instance = fresh(2)
    instance.start_shard(0)
    instance.board.set_phase(Phase.READY)
    instance.start_gateway()
    wait_for(lambda: instance.get("/v0/ready").json().get("status") == "degraded", "readiness")


def test_the_board_says_that_the_server_drains(fresh):
    instance = fresh().start()
    instance.board.set_phase(Phase.DRAINING)
    envelope(instance.get("/v0/ready"), 503, "shutting_down")
