"""`GET /v0/topics/:q/work` over HTTP: frames, refusals, places, and what happens when either end goes."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from tests.api.events import EventStream
from tests.api.instance import envelope, wait_for
from tests.api.test_queues import Queue, last_used
from topics.testing.server import Server


@pytest.fixture
def queue(http, name) -> Queue:
    return Queue(http, name)


@contextmanager
def working(queue: Queue, query: str = "node=w&max=2", **headers: str) -> Iterator[EventStream]:
    url = queue.http.base_url
    stream = EventStream((url.host, url.port or 80), f"{queue.path}/work?{query}", headers)
    try:
        yield stream
    finally:
        stream.close()


def jobs(stream: EventStream, count: int) -> list[dict[str, Any]]:
    return [stream.next("job").data for _ in range(count)]


def test_frames(queue):
    queue.make(lease_ms=60_000)
    queue.http.post(queue.path, json={"records": [{"data": {"n": 1}, "tag": "t", "meta": {"a": "b"}}]})
    with working(queue) as stream:
        assert stream.status == 200
        assert stream.headers["content-type"].startswith("text/event-stream")
        assert (stream.headers["cache-control"], stream.headers["x-accel-buffering"]) == ("no-store", "no")
        first, second, third = stream.next(), stream.next(), stream.next()
        assert (first.name, first.data) == ("retry", 2000)
        assert second.name == ":"
        assert second.data.startswith("hb 1")
        assert (third.name, third.id) == ("job", "1")
        job = third.data
        assert job.pop("lease_id").startswith("lease_")
        assert job.pop("deadline") - job.pop("$ts") >= 60_000 - 1000
        assert job == {
            "topic": queue.name, "$seq": 1, "$tag": "t", "deliveries": 1, "data": {"n": 1}, "meta": {"a": "b"},
        }  # fmt: skip


def test_it_keeps_the_worker_busy_and_gives_back_when_it_goes(queue):
    queue.make()
    queue.produce(*range(6))
    with working(queue) as stream:
        assert [job["$seq"] for job in jobs(stream, 2)] == [1, 2]
        assert queue.counts() == {"ready": 4, "in_flight": 2, "dead_lettered": 0, "scheduled": 0}
        queue.post("ack", seqs=[1])
        assert [job["$seq"] for job in jobs(stream, 1)] == [3]
        queue.post("nack", seqs=[2], delay_ms=60_000)
        assert [job["$seq"] for job in jobs(stream, 1)] == [4]
        held = queue.post("claim", node="w")
        assert held["claimed"][0]["$seq"] == 5
    wait_for(
        lambda: queue.counts() == {"ready": 3, "in_flight": 1, "dead_lettered": 0, "scheduled": 0},
        "what it held to be free",
    )


def test_it_consumes_its_queue_when_it_opens_and_with_each_delivery(queue):
    queue.make()
    assert last_used(queue) is None
    with working(queue) as stream:
        attached = wait_for(lambda: last_used(queue), "the attachment")
        wait_for(lambda: time.time() * 1000 > attached + 2, "another time")
        queue.produce(1)
        assert len(jobs(stream, 1)) == 1
        assert last_used(queue) > attached


def test_payloads_with_line_ends_arrive_whole(queue):
    queue.make()
    body = b'{"records":[{"data":{"a":\r\n [1,\n2]}}]}'
    queue.http.post(queue.path, content=body, headers={"content-type": "application/json"})
    with working(queue) as stream:
        assert jobs(stream, 1)[0]["data"] == {"a": [1, 2]}


@pytest.mark.parametrize(
    "query",
    ["", "node=", "node=w&max=0", "node=w&max=-1", "node=w&max=x", "node=w&lease_ms=1.5", f"node=w&lease_ms={2**64}"],
)
def test_bad_queries(queue, query):
    queue.make()
    envelope(queue.http.get(f"{queue.path}/work?{query}"), 400, "invalid_request")


def test_a_max_of_any_size_is_clamped_as_in_a_claim(queue):
    queue.make()
    queue.produce(1)
    with working(queue, f"node=w&max={2**70}") as stream:
        assert jobs(stream, 1)[0]["data"] == 1
    assert queue.post("claim", max=2**70)["count"] <= 1


def test_refusals(queue):
    envelope(queue.http.get(f"{queue.path}/work?node=w"), 404, "topic_not_found")
    queue.http.put(queue.path, json={})
    envelope(queue.http.get(f"{queue.path}/work?node=w"), 409, "not_a_queue")
    json_only = {"accept": "application/json"}
    envelope(queue.http.get(f"{queue.path}/work?node=w", headers=json_only), 406, "not_acceptable")


def test_a_head_request_leases_nothing(queue):
    queue.make()
    queue.produce(1)
    answer = queue.http.head(f"{queue.path}/work?node=w")
    assert (answer.status_code, answer.headers["content-type"][:17]) == (200, "text/event-stream")
    assert queue.counts()["ready"] == 1


def test_a_head_request_is_refused_like_a_get_request(queue):
    assert queue.http.head(f"{queue.path}/work?node=w").status_code == 404
    queue.http.put(queue.path, json={})
    assert queue.http.head(f"{queue.path}/work?node=w").status_code == 409
    assert queue.http.head(f"{queue.path}/work?node=").status_code == 400


@pytest.mark.parametrize(("successor", "code"), [(None, 404), ("log", 409)])
def test_the_end_of_the_queue_is_told(queue, successor, code):
    queue.make()
    with working(queue) as stream:
        stream.next(":")
        queue.http.delete(queue.path)
        if successor is not None:
            queue.http.put(queue.path, json={"type": successor})
        assert stream.next("error").data["code"] == code
        stream.rest()
        assert stream.ended


def test_over_http2(queue, instance):
    queue.make()
    queue.produce("x")
    with (
        httpx.Client(base_url=instance.url, http1=False, http2=True, timeout=60) as client,
        client.stream("GET", f"{queue.path}/work?node=w") as answer,
    ):
        assert answer.status_code == 200
        for line in answer.iter_lines():
            if line.startswith("data: "):
                assert json.loads(line[6:])["data"] == "x"
                break
    wait_for(lambda: queue.counts()["ready"] == 1, "the job to be free again")


def test_places_are_counted_and_given_back(tmp_path):
    with Server(tmp_path, shards=1, max_sse_connections=1) as server:
        server.start().wait_ready()
        with httpx.Client(base_url=server.url, timeout=60) as http:
            queue = Queue(http, "q").make()
            with working(queue) as stream:
                stream.next(":")
                error = envelope(http.get(queue.path + "/work?node=v"), 429, "throttled")
                assert error["detail"]["limit"] == "max_sse_connections"
            wait_for(lambda: "topics_sse_connections 0\n" in http.get("/v0/metrics").text, "the place to be free")
            with working(queue) as stream:
                stream.next(":")


def test_a_killed_gateway_lets_go_of_what_it_held_at_once(tmp_path):
    with Server(tmp_path, shards=1, gateways=1) as server:
        server.start().wait_ready()
        with httpx.Client(base_url=server.url, timeout=60) as http:
            queue = Queue(http, "q").make(lease_ms=3_600_000)
            queue.produce(1, 2)
            with working(queue) as stream:
                jobs(stream, 2)
                server.kill("gateway", 0)
                wait_for(lambda: _ready(server) == 2, "the jobs to be free")


def _ready(server: Server) -> int:
    try:
        ready: int = httpx.get(f"{server.url}/v0/topics/q", timeout=60).json()["queue"]["ready"]
    except (httpx.TransportError, KeyError):
        return -1
    return ready


def test_a_stream_outlives_its_shard(tmp_path):
    with Server(tmp_path, shards=1, gateways=1) as server:
        server.start().wait_ready()
        with httpx.Client(base_url=server.url, timeout=60) as http:
            queue = Queue(http, "q").make(durable=True, lease_ms=3_600_000)
            queue.produce("a", "b", "c")
            with working(queue) as stream:
                assert [job["data"] for job in jobs(stream, 2)] == ["a", "b"]
                server.kill("shard", 0)
                assert [(job["data"], job["deliveries"]) for job in jobs(stream, 2)] == [("a", 1), ("b", 1)]
                queue.post("ack", seqs=[1, 2])
                assert [job["data"] for job in jobs(stream, 1)] == ["c"]


def test_a_drain_ends_streams_in_good_order(tmp_path):
    with Server(tmp_path, shards=1, gateways=1) as server:
        server.start().wait_ready()
        with httpx.Client(base_url=server.url, timeout=60) as http:
            queue = Queue(http, "q").make(lease_ms=3_600_000)
            queue.produce("a")
            with working(queue) as stream:
                jobs(stream, 1)
                assert server.stop() == 0
                stream.rest()
                assert stream.ended
        server.start().wait_ready()
        with httpx.Client(base_url=server.url, timeout=60) as http:
            assert Queue(http, "q").counts()["ready"] == 1
