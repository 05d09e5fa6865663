"""What an operator sees: metrics that the tools accept, times by operation, request ids in answers and logs."""

import json
import re
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.api.instance import raw
from tests.api.test_health import samples
from tests.tools import need
from topics.testing.server import Server

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
METRIC = re.compile(r"\btopics_[a-z0-9_]+")
DURATION = "topics_http_request_duration_seconds"


def names_of(text: str) -> set[str]:
    """Every name that a query may use."""
    return {re.split(r"[{ ]", line)[0] for line in text.splitlines() if line and not line.startswith("#")}


def with_everything(http: httpx.Client) -> str:
    """The metrics of a server that has everything that shows in them."""
    http.put("/v0/topics/obs.queue", json={"type": "queue"}).raise_for_status()
    http.post("/v0/topics/obs.queue", json={"records": [{"data": 1}]}).raise_for_status()
    http.put("/v0/topics/obs.queue/groups/readers", json={}).raise_for_status()
    return http.get("/v0/metrics").text


def in_base_units(http: httpx.Client) -> str:
    return http.get("/v0/metrics", params={"units": "base"}).raise_for_status().text


def test_the_dashboard_and_the_alerts_name_metrics_that_are_there(http):
    known = names_of(with_everything(http)) | names_of(in_base_units(http))
    dashboard = json.loads((DEPLOY / "grafana-dashboard.json").read_text())
    exprs = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert len(exprs) > 20
    asked = {name for expr in exprs for name in METRIC.findall(expr)}
    assert asked - known == set()
    rules = (DEPLOY / "topics-alerts.yml").read_text()
    asked = set(METRIC.findall(rules))
    assert asked
    assert asked - known == set()
    # The other way round: what the API promises (and is not about single topics) is on the dashboard.
    shown = {name for expr in exprs for name in METRIC.findall(expr)}
    promised = {
        name
        for name in known
        if re.match(r"topics_(wal|http|topics|queue|groups|records|sse|watch|ready|recovery)", name)
    }
    assert {name for name in promised - shown if not name.endswith(("_bucket", "_sum", "_count"))} <= {
        "topics_wal_bytes_written_total", "topics_wal_rotations_total", "topics_wal_queue_depth",
    }  # fmt: skip


def test_promtool_accepts_the_metrics_the_config_and_the_rules(http, tmp_path):
    tool = need("promtool", always_optional=True)
    # Names that the API fixes are not ours to choose; in base units there are none of them.
    fixed = ("topics_uptime_ms", "topics_wal_fsync_latency_us")
    assert [line for line in lint(tool, with_everything(http))[1] if not line.startswith(fixed)] == []
    assert lint(tool, in_base_units(http)) == (0, [])
    for config in (DEPLOY / "prometheus.yml", with_key(tmp_path)):
        done = subprocess.run([tool, "check", "config", str(config)], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "11 rules found" in done.stdout


def lint(tool: str, text: str) -> tuple[int, list[str]]:
    done = subprocess.run([tool, "check", "metrics"], input=text, capture_output=True, text=True, timeout=60)
    return done.returncode, [line for line in (done.stderr + done.stdout).splitlines() if line]


def test_base_units_are_the_same_numbers_in_seconds(http):
    http.put("/v0/topics/obs.synced", json={"durability": "fsync"}).raise_for_status()
    before, scaled, after = (samples(http.get("/v0/metrics", params=p).text) for p in ({}, {"units": "base"}, {}))

    def between(name: str, in_seconds: str, labels: str | None, scaled_labels: str | None, parts: float) -> None:
        low, high = before[name, labels] / parts, after[name, labels] / parts
        assert low <= scaled[in_seconds, scaled_labels] <= high

    between("topics_uptime_ms", "topics_uptime_seconds", None, None, 1e3)
    us, seconds = "topics_wal_fsync_latency_us", "topics_wal_fsync_latency_seconds"
    between(f"{us}_sum", f"{seconds}_sum", None, None, 1e6)
    between(f"{us}_count", f"{seconds}_count", None, None, 1)
    between(f"{us}_bucket", f"{seconds}_bucket", '{le="500"}', '{le="0.0005"}', 1)
    between(f"{us}_bucket", f"{seconds}_bucket", '{le="+Inf"}', '{le="+Inf"}', 1)
    assert before[f"{us}_count", None] > 0
    assert {name for name, _ in before} - {name for name, _ in scaled} == {
        "topics_uptime_ms", f"{us}_bucket", f"{us}_sum", f"{us}_count",
    }  # fmt: skip
    as_json = http.get("/v0/metrics", params={"units": "base"}, headers={"accept": "application/json"}).json()
    assert as_json["topics_uptime_seconds"] >= scaled["topics_uptime_seconds", None]
    refused = http.get("/v0/metrics", params={"units": "furlongs"})
    assert (refused.status_code, refused.json()["error"]["detail"]["field"]) == (400, "units")


def with_key(folder):
    """The config as it is for a server with keys: the lines about them taken in."""
    (folder / "topics-alerts.yml").write_text((DEPLOY / "topics-alerts.yml").read_text())
    (folder / "key").write_text("secret")
    text = (DEPLOY / "prometheus.yml").read_text()
    for line in ("authorization:", "  credentials_file: /etc/prometheus/topics-key"):
        assert f"    # {line}\n" in text
        text = text.replace(f"    # {line}\n", f"    {line}\n")
    made = folder / "prometheus.yml"
    made.write_text(text.replace("/etc/prometheus/topics-key", str(folder / "key")))
    return made


SLOW_SYNCS = """
rule_files: [RULES]
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series:
      - {series: 'topics_wal_fsync_latency_us_bucket{instance="a",le="100000"}', values: "0+90x60"}
      - {series: 'topics_wal_fsync_latency_us_bucket{instance="a",le="1000000"}', values: "0+100x60"}
      - {series: 'topics_wal_fsync_latency_us_bucket{instance="a",le="+Inf"}', values: "0+100x60"}
      - {series: 'topics_wal_fsync_latency_seconds_bucket{instance="b",le="0.1"}', values: "0+90x60"}
      - {series: 'topics_wal_fsync_latency_seconds_bucket{instance="b",le="1.0"}', values: "0+100x60"}
      - {series: 'topics_wal_fsync_latency_seconds_bucket{instance="b",le="+Inf"}', values: "0+100x60"}
      - {series: 'topics_wal_fsync_latency_seconds_bucket{instance="quick",le="0.1"}', values: "0+100x60"}
      - {series: 'topics_wal_fsync_latency_seconds_bucket{instance="quick",le="+Inf"}', values: "0+100x60"}
    promql_expr_test:
      - {expr: 'ALERTS{alertstate="firing"}', eval_time: 50m, exp_samples: [
          {labels: 'ALERTS{alertname="TopicsSyncSlow",alertstate="firing",instance="a",severity="ticket"}', value: 1},
          {labels: 'ALERTS{alertname="TopicsSyncSlow",alertstate="firing",instance="b",severity="ticket"}', value: 1}]}
"""
STALLED = """
rule_files: [RULES]
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series:
      - {series: 'topics_group_lag{topic="t",group="stands"}', values: "5x60"}
      - {series: 'topics_group_cursor_seq{topic="t",group="stands"}', values: "7x60"}
      - {series: 'topics_group_lag{topic="t",group="moves"}', values: "5x60"}
      - {series: 'topics_group_cursor_seq{topic="t",group="moves"}', values: "7+1x60"}
      - {series: 'topics_group_lag{topic="t",group="done"}', values: "0x60"}
      - {series: 'topics_group_cursor_seq{topic="t",group="done"}', values: "7x60"}
      - {series: 'topics_group_lag{topic="t",group="slow"}', values: "100001+10x60"}
      - {series: 'topics_group_cursor_seq{topic="t",group="slow"}', values: "7+1x60"}
      - {series: 'topics_group_lag{topic="t",group="catches-up"}', values: "200000-10x60"}
      - {series: 'topics_group_cursor_seq{topic="t",group="catches-up"}', values: "7+1x60"}
    promql_expr_test:
      - {expr: 'ALERTS{alertstate="firing"}', eval_time: 50m, exp_samples: [
          {labels: 'ALERTS{alertname="TopicsGroupStalls",alertstate="firing",group="stands",severity="ticket",topic="t"}', value: 1},
          {labels: 'ALERTS{alertname="TopicsGroupFallsBehind",alertstate="firing",group="slow",severity="ticket",topic="t"}', value: 1}]}
"""  # noqa: E501


@pytest.mark.parametrize("cases", [SLOW_SYNCS, STALLED], ids=["slow syncs", "groups"])
def test_alerts_fire_when_they_should(tmp_path, cases):
    """Slow syncs in either unit; groups that stand still or fall behind."""
    tool = need("promtool", always_optional=True)
    (tmp_path / "tests.yml").write_text(cases.replace("RULES", str(DEPLOY / "topics-alerts.yml")))
    done = subprocess.run([tool, "test", "rules", str(tmp_path / "tests.yml")], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_times_by_operation_are_summed_over_the_gateways(http, name):
    def counts() -> tuple[float, float, float]:
        found = samples(http.get("/v0/metrics").text)
        total = found[f"{DURATION}_count", '{op="topic.append"}']
        good = found["topics_http_responses_total", '{op="topic.append",class="2xx"}']
        return total, good, found["topics_http_responses_total", '{op="topic.append",class="4xx"}']

    before = counts()
    for n in range(20):  # each on a connection of its own, so on both gateways
        body = {"records": [{"data": n}]} if n % 4 else {"records": 1}
        httpx.post(f"{http.base_url}/v0/topics/{name}", json=body)
    after = counts()
    assert [b - a for a, b in zip(before, after, strict=True)] == [20, 15, 5]
    found = samples(http.get("/v0/metrics").text)
    buckets = [
        v for (metric, labels), v in found.items() if metric == f"{DURATION}_bucket" and '"topic.append"' in labels
    ]
    assert buckets == sorted(buckets)
    assert buckets[-1] == after[0]
    assert found[f"{DURATION}_sum", '{op="topic.append"}'] > 0
    as_json = http.get("/v0/metrics", headers={"accept": "application/json"}).json()
    assert as_json[DURATION]["topic.append"]["count"] == after[0]
    assert as_json["topics_http_responses_total"]["topic.append,2xx"] == after[1]


def test_counts_survive_a_killed_gateway(tmp_path):
    with Server(tmp_path / "s", shards=1, gateways=1) as server:
        server.start().wait_ready()
        httpx.put(f"{server.url}/v0/topics/t").raise_for_status()
        server.wait_back("gateway", 0, server.kill("gateway", 0))
        httpx.put(f"{server.url}/v0/topics/t").raise_for_status()
        found = samples(httpx.get(f"{server.url}/v0/metrics").text)
        assert found[f"{DURATION}_count", '{op="topic.put"}'] == 2
        assert found["topics_process_restarts_total", '{process="gateway-0"}'] == 1


@pytest.mark.slow
def test_ten_thousand_topics_are_one_bounded_scrape(tmp_path):
    with Server(tmp_path / "s", shards=2, gateways=1) as server:
        server.start().wait_ready()
        with httpx.Client(base_url=server.url, timeout=60) as client, ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda n: client.put(f"/v0/topics/t{n:05d}").raise_for_status(), range(10_000)))
            began = time.monotonic()
            text = client.get("/v0/metrics").text
            print(f"a scrape of 10,000 topics took {time.monotonic() - began:.3f} s, {len(text)} bytes")
        found = samples(text)
        up = [value for (metric, _), value in found.items() if metric == "topics_shard_up"]
        assert found["topics_topics", None] == 10_000
        assert (up, found["topics_topic_metrics_truncated", None]) == ([1, 1], 1)
        assert sum(metric == "topics_topic_head_seq" for metric, _ in found) == 1000
        assert len(text) < 1_000_000


# --- request ids --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/v0/health", "/v0/topics", "/v0/topics/nowhere", "/nothing"])
def test_every_answer_has_a_request_id(http, path):
    made = [http.get(path).headers["x-request-id"] for _ in range(3)]
    assert len(set(made)) == 3
    assert http.get(path, headers={"x-request-id": "abc-1:2/3"}).headers["x-request-id"] == "abc-1:2/3"


@pytest.mark.parametrize("bad", ["", "a b", "x" * 129, "é", '"quoted"', "<script>", "-begins"])
def test_what_is_no_sane_id_is_not_repeated(http, bad):
    answer = http.get("/v0/health", headers={"x-request-id": bad.encode()})
    assert answer.headers["x-request-id"] not in ("", bad)


def test_refusals_of_the_http_layer_and_streams_have_one(instance, http, name):
    http.put(f"/v0/topics/{name}")
    wid = http.post("/v0/watch", json={"topics": {name: {}}}).json()["wid"]
    with httpx.stream("GET", f"{instance.url}/v0/watch/{wid}", headers={"x-request-id": "stream-7"}) as response:
        assert response.headers["x-request-id"] == "stream-7"
    for head in (
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /v0/topics/x HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999999\r\n\r\n",
    ):
        answer = raw(instance, head)
        assert answer.startswith((b"HTTP/1.1 4", b"HTTP/1.1 5"))
        assert re.search(rb"\r\nx-request-id: [0-9a-f]+-[0-9a-f]+\r\n", answer)


def test_the_access_log_has_it(tmp_path):
    with Server(tmp_path / "s", shards=1, log_level="debug", log_format="json") as server:
        server.start().wait_ready()
        for path in ("/v0/health", "/v0/topics"):
            httpx.get(server.url + path, headers={"x-request-id": f"find-me{path}"})
        assert server.stop() == 0
        found = {line["request_id"]: line for line in server.lines() if line["logger"] == "topics.access"}
        for path in ("/v0/health", "/v0/topics"):
            line = found[f"find-me{path}"]
            assert (line["status"], path in line["msg"]) == (200, True)
