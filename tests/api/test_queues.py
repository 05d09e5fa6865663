"""Queues over HTTP (API §10): status codes, answers, metrics, waiting, keys; dead letters on any shard."""

import json
import socket
import threading
import time
from typing import Any

import httpx
import pytest

from tests.api.instance import envelope, wait_for


class Queue:
    def __init__(self, http: httpx.Client, name: str) -> None:
        self.http = http
        self.name = name
        self.path = f"/v0/topics/{name}"

    def make(self, **config: Any) -> "Queue":
        answer = self.http.put(self.path, json={"type": "queue", **config})
        assert answer.status_code == 201, answer.text
        return self

    def produce(self, *data: Any) -> list[int]:
        seqs: list[int] = self.http.post(self.path, json={"records": [{"data": one} for one in data]}).json()["seqs"]
        return seqs

    def post(self, what: str, **body: Any) -> dict[str, Any]:
        answer = self.http.post(f"{self.path}/{what}", json={"node": "w", **body})
        assert answer.status_code == 200, answer.text
        assert answer.json()["performance"]["server_total_ms"] >= 0
        fields: dict[str, Any] = answer.json()
        return fields

    def counts(self) -> dict[str, int]:
        state = self.http.get(self.path).json()
        assert state["type"] == "queue"
        numbers: dict[str, int] = state["queue"]
        return numbers


@pytest.fixture
def queue(http, name) -> Queue:
    return Queue(http, name)


@pytest.mark.parametrize("requests_before", [0, 1])
def test_a_claim_whose_client_has_left_before_the_answer_holds_nothing(queue, instance, requests_before):
    """Its cohort gathers while it leaves. It does not count as a delivery, either. The first request of a connection
    takes another way than those behind it."""
    queue.make(lease_ms=600_000, claim_jitter_ms=300)
    queue.produce("x")
    body = b'{"node":"gone","max":1}'
    head = f"POST {queue.path}/claim HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", instance.port)) as client:
        for _ in range(requests_before):
            client.sendall(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
            assert client.recv(65536).startswith(b"HTTP/1.1 200")
        client.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        time.sleep(0.05)  # leaving while the request is read is less of a test, but passes too
    (job,) = queue.post("claim", wait_ms=20_000)["claimed"]
    assert (job["data"], job["deliveries"]) == ("x", 1)


def test_a_job_from_claim_to_ack(queue):
    queue.make(lease_ms=5000)
    assert queue.produce({"n": 1}, {"n": 2}) == [1, 2]
    answer = queue.post("claim", max=5)
    assert (answer["topic"], answer["count"], answer["ready"]) == (queue.name, 2, 0)
    assert answer["performance"]["throttle_wait_ms"] == 0
    job = answer["claimed"][0]
    assert (job["$seq"], job["data"], job["deliveries"]) == (1, {"n": 1}, 1)
    assert 0 < job["deadline"] - time.time() * 1000 <= 5000
    assert queue.counts() == {"ready": 0, "in_flight": 2, "dead_lettered": 0, "scheduled": 0}
    extended = queue.post("extend", seqs=[1], lease_ms=60_000)
    assert (extended["extended"], extended["skipped"], list(extended["deadlines"])) == (1, [], ["1"])
    nacked = queue.post("nack", seqs=[2, 9])
    assert (nacked["nacked"], nacked["skipped"], nacked["ready"], nacked["in_flight"]) == (1, [9], 1, 1)
    acked = queue.post("ack", seqs=[1], lease_ids=[job["lease_id"]])
    assert (acked["acked"], acked["skipped"], acked["ready"], acked["in_flight"]) == (1, [], 1, 0)
    assert [record["$seq"] for record in queue.http.post(queue.path + "/diff", json={}).json()["records"]] == [2]


def test_a_durable_ack_tells_its_sync(queue):
    queue.make(durable=True)
    queue.produce(1)
    queue.post("claim")
    acked = queue.post("ack", seqs=[1])["performance"]
    assert acked["fsync_ms"] > 0
    # Milliseconds, as their names say: no way through the log and back takes less than 10 µs.
    assert 0.01 < acked["wal_append_ms"] + acked["fsync_ms"] < acked["server_total_ms"]
    assert queue.post("ack", seqs=[1])["performance"]["fsync_ms"] == 0


@pytest.mark.parametrize("what", ["claim", "ack", "nack", "extend"])
def test_logs_and_nothing_are_no_queues(http, name, what):
    body = {"node": "w", "seqs": [1], "lease_ms": 1}
    envelope(http.post(f"/v0/topics/{name}/{what}", json=body), 404, "topic_not_found")
    http.put(f"/v0/topics/{name}", json={})
    assert envelope(http.post(f"/v0/topics/{name}/{what}", json=body), 409, "not_a_queue")["detail"] == {"topic": name}
    envelope(http.post(f"/v0/topics/{name}/{what}", json={}), 400, "invalid_request")
    envelope(http.get(f"/v0/topics/{name}/{what}"), 405, "method_not_allowed")


def test_too_many_seqs(queue):
    queue.make()
    for what in ("ack", "nack", "extend"):
        body = {"node": "w", "seqs": list(range(1001)), "lease_ms": 1}
        error = envelope(queue.http.post(f"{queue.path}/{what}", json=body), 400, "batch_too_large")
        assert error["detail"] == {"seqs": 1001, "max": 1000}


def test_an_expired_job_is_claimed_again_with_one_delivery_more(queue):
    queue.make(lease_ms=100)
    queue.produce("x")
    queue.post("claim")
    job = wait_for(lambda: queue.post("claim", node="v")["claimed"], "the end of the lease")[0]
    assert job["deliveries"] == 2
    assert queue.post("ack", seqs=[1])["skipped"] == [1]


def test_a_claim_may_wait(queue):
    queue.make()
    got: list[Any] = []
    waiter = threading.Thread(target=lambda: got.append(queue.post("claim", wait_ms=30_000)["claimed"]))
    waiter.start()
    queue.produce("x")
    waiter.join(20)
    assert [job["data"] for job in got[0]] == ["x"]
    began = time.monotonic()
    assert queue.post("claim")["claimed"] == []
    assert queue.post("claim", wait_ms=50)["claimed"] == []
    assert time.monotonic() - began >= 0.05


def test_clients_that_go_take_their_claims_along(queue):
    """The last to go may not have been noticed yet; if none were, each of them would get a job."""
    queue.make(lease_ms=3_600_000)
    for _ in range(5):
        with pytest.raises(httpx.ReadTimeout):
            queue.http.post(queue.path + "/claim", json={"node": "w", "wait_ms": 30_000}, timeout=0.2)
    produced = 0
    while not queue.counts()["ready"]:
        assert produced < 5
        queue.produce("x")
        produced += 1
    assert queue.post("claim", node="v")["count"] == 1


def test_fifty_jobs_for_ten_workers(queue):
    queue.make(claim_jitter_ms=1000)
    queue.produce(*range(50))
    got: list[int] = []

    def claim(number: int) -> None:
        got.append(queue.post("claim", node=f"w{number}", max=10)["count"])

    workers = [threading.Thread(target=claim, args=(number,)) for number in range(10)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(20)
    assert got == [5] * 10


@pytest.mark.parametrize("number", range(4))
def test_dead_letters_reach_their_topic_on_whatever_shard(queue, number):
    dead = f"{queue.name}.dead{number}"
    queue.make(max_deliveries=1, dead_letter=dead, lease_ms=100)
    queue.produce({"poison": True}, "fine")
    queue.post("claim")
    queue.post("nack", seqs=[1], reason="bad input")
    assert [job["data"] for job in queue.post("claim", max=5)["claimed"]] == ["fine"]
    (record,) = queue.http.post(f"/v0/topics/{dead}/diff", json={}).json()["records"]
    assert record["data"] == {"poison": True}
    meta = record["meta"]
    assert abs(int(meta.pop("$dead_letter_last_failure_ts")) - time.time() * 1000) < 60_000
    assert meta == {
        "$dead_letter_from": queue.name,
        "$dead_letter_deliveries": "1",
        "$dead_letter_src_seq": "1",
        "$dead_letter_reason": "bad input",
    }
    assert queue.counts()["dead_lettered"] == 1
    assert f'topics_topic_queue_dead_lettered{{topic="{queue.name}"}} 1\n' in queue.http.get("/v0/metrics").text


@pytest.mark.parametrize("number", range(2))
def test_a_queue_without_auto_create_makes_no_dead_letter_topic(queue, number):
    dead = f"/v0/topics/{queue.name}.dead{number}"
    queue.make(max_deliveries=1, dead_letter=dead.rpartition("/")[2], auto_create=False)
    queue.produce("poison")
    queue.post("claim")
    queue.post("nack", seqs=[1])
    assert queue.post("claim")["claimed"] == []
    envelope(queue.http.get(dead), 404, "topic_not_found")
    assert queue.counts() == {"ready": 0, "in_flight": 0, "dead_lettered": 0, "scheduled": 0}
    assert queue.http.get(queue.path).json()["count"] == 1
    queue.http.put(dead, json={})
    wait_for(lambda: queue.counts()["dead_lettered"] == 1, "the dead letter")
    (record,) = queue.http.post(f"{dead}/diff", json={}).json()["records"]
    assert record["data"] == "poison"


def test_metrics_know_queues(queue):
    queue.make()
    queue.produce(1, 2, 3)
    queue.post("claim", max=2)
    text = queue.http.get("/v0/metrics").text
    assert f'topics_topic_queue_ready{{topic="{queue.name}"}} 1\n' in text
    assert f'topics_topic_queue_in_flight{{topic="{queue.name}"}} 2\n' in text
    members = json.loads(queue.http.get("/v0/metrics", headers={"accept": "application/json"}).content)
    assert members["topics_queue_topics"] >= 1
    assert members["topics_queue_leases_in_flight"] >= 2


def test_data_comes_out_of_a_claim_byte_for_byte(queue):
    queue.make()
    body = b'{"records":[{"data":{"x":  1.50,"y":"\\u00e9"},"meta":{ "k" : "v" }}]}'
    queue.http.post(queue.path, content=body, headers={"content-type": "application/json"})
    answer = queue.http.post(queue.path + "/claim", json={"node": "w"}).content
    assert b'"data":{"x":  1.50,"y":"\\u00e9"},"meta":{ "k" : "v" }}' in answer


# --- priorities, times, reasons ------------------------------------------------------------------------------------


def write(queue: Queue, *records: dict[str, Any]) -> httpx.Response:
    return queue.http.post(queue.path, json={"records": list(records)})


def test_priorities_and_times_over_http(queue):
    queue.make()
    assert write(queue, {"data": "low"}, {"data": "high", "priority": 9}, {"data": "later", "delay_ms": 400}).is_success
    assert queue.counts() == {"ready": 2, "in_flight": 0, "dead_lettered": 0, "scheduled": 1}
    text = queue.http.get("/v0/metrics").text
    assert f'topics_topic_queue_scheduled{{topic="{queue.name}"}} 1\n' in text
    jobs = queue.post("claim", max=5)["claimed"]
    assert [(job["data"], job.get("priority")) for job in jobs] == [("high", 9), ("low", None)]
    (job,) = queue.post("claim", wait_ms=20_000)["claimed"]
    assert (job["data"], job["deliveries"]) == ("later", 1)
    assert time.time() * 1000 >= job["$ts"] + 400
    assert queue.counts()["scheduled"] == 0


def test_not_before_is_a_time_of_the_clock(queue):
    queue.make()
    moment = int(time.time() * 1000) + 300
    assert write(queue, {"data": 1, "not_before": moment}).is_success
    assert queue.post("claim")["claimed"] == []
    assert queue.post("claim", wait_ms=20_000)["count"] == 1
    assert time.time() * 1000 >= moment


@pytest.mark.parametrize(
    ("terms", "field"),
    [
        ({"priority": 10}, "priority"),
        ({"priority": "high"}, "priority"),
        ({"delay_ms": -5}, "delay_ms"),
        ({"delay_ms": 10**15}, "delay_ms"),
        ({"not_before": 10**17}, "not_before"),
        ({"delay_ms": 1, "not_before": 1}, "delay_ms"),
    ],
)
def test_bad_terms_are_refused_and_nothing_is_written(queue, terms, field):
    queue.make()
    error = envelope(write(queue, {"data": 1}, {"data": 2, **terms}), 400, "invalid_request")
    assert (error["detail"]["index"], error["detail"]["field"]) == (1, field)
    assert queue.counts() == {"ready": 0, "in_flight": 0, "dead_lettered": 0, "scheduled": 0}


@pytest.mark.parametrize("terms", [{"priority": 1}, {"delay_ms": 1}, {"not_before": 1}])
def test_logs_take_no_terms(queue, terms):
    queue.http.put(queue.path, json={})
    error = envelope(write(queue, {"data": 1, **terms}), 400, "invalid_request")
    assert error["detail"] == {"index": 0, "field": next(iter(terms))}
    assert '"type":"queue"' in error["message"]


def test_a_nack_without_penalty_does_not_count(queue):
    queue.make(max_deliveries=1, dead_letter=f"{queue.name}.dead")
    queue.produce("x")
    for _ in range(3):
        assert queue.post("claim")["claimed"][0]["deliveries"] == 1
        assert queue.post("nack", seqs=[1], penalty=False, reason="not now")["nacked"] == 1


@pytest.mark.parametrize(("body", "field"), [({"reason": "x" * 1025}, "reason"), ({"penalty": 0}, "penalty")])
def test_bad_nacks(queue, body, field):
    queue.make()
    queue.produce("x")
    queue.post("claim")
    answer = queue.http.post(queue.path + "/nack", json={"node": "w", "seqs": [1], **body})
    assert envelope(answer, 400, "invalid_request")["detail"]["field"] == field
    assert queue.counts()["in_flight"] == 1


def test_jobs_grow_more_urgent_while_they_wait(queue):
    queue.make(priority_age_ms=50)
    write(queue, {"data": "old"})
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        time.sleep(0.02)
        write(queue, {"data": "new", "priority": 2})
        (job,) = queue.post("claim")["claimed"]
        queue.post("ack", seqs=[job["$seq"]])
        if job["data"] == "old":
            return
    raise AssertionError("the old job starved")


# --- dead letters go back ------------------------------------------------------------------------------------------


def bury(queue: Queue, dead: str, *data: Any, **record: Any) -> None:
    """Make dead letters of jobs."""
    queue.make(max_deliveries=1, dead_letter=dead)
    write(queue, *({"data": one, **record} for one in data))
    queue.post("claim", max=1000)
    queue.post("nack", seqs=list(range(1, len(data) + 1)), reason="no")
    wait_for(
        lambda: not queue.post("claim", max=1)["claimed"] and queue.counts()["dead_lettered"] == len(data), "death"
    )


@pytest.mark.parametrize("number", range(4))
def test_dead_letters_go_back_from_whatever_shard(queue, number):
    dead = f"{queue.name}.dead{number}"
    bury(queue, dead, "a", "b", "c", meta={"trace": "9"}, priority=3, tag="t")
    answer = queue.http.post(f"/v0/topics/{dead}/redrive", json={"to": queue.name, "match": "t", "limit": 2})
    assert answer.status_code == 200, answer.text
    fields = answer.json()
    assert fields.pop("performance")["server_total_ms"] > 0
    assert fields == {"topic": dead, "to": queue.name, "moved": 2, "remaining": 1, "pending": 0}
    assert queue.http.post(f"/v0/topics/{dead}/redrive", json={"to": queue.name}).json()["moved"] == 1
    assert queue.http.post(f"/v0/topics/{dead}/diff", json={}).json()["records"] == []
    jobs = queue.post("claim", max=9)["claimed"]
    assert {job["data"] for job in jobs} == {"a", "b", "c"}
    for job in jobs:
        assert (job["deliveries"], job["priority"], job["meta"], job["$tag"]) == (1, 3, {"trace": "9"}, "t")


@pytest.mark.parametrize(
    ("body", "status", "code", "field"),
    [
        ({}, 400, "invalid_request", "to"),
        ({"to": "not a name"}, 400, "invalid_request", "to"),
        ({"to": "self"}, 400, "invalid_request", "to"),
        ({"to": "queue", "limit": 0}, 400, "invalid_request", "limit"),
        ({"to": "queue", "match": 5}, 400, "invalid_request", "match"),
        ({"to": "queue", "all": True}, 400, "invalid_request", "all"),
        ({"to": "log"}, 409, "not_a_queue", None),
        ({"to": "gone"}, 404, "topic_not_found", None),
    ],
)
def test_bad_redrives_move_nothing(queue, body, status, code, field):
    queue.make()
    dead, log = f"{queue.name}.dead", f"{queue.name}.log"
    queue.http.put(f"/v0/topics/{log}", json={})
    queue.http.post(f"/v0/topics/{dead}", json={"records": [{"data": 1}]})
    names = {"self": dead, "queue": queue.name, "log": log, "gone": f"{queue.name}.gone"}
    if isinstance(body.get("to"), str):
        body = {**body, "to": names.get(body["to"], body["to"])}
    error = envelope(queue.http.post(f"/v0/topics/{dead}/redrive", json=body), status, code)
    assert error["detail"].get("field") == field
    assert queue.http.get(f"/v0/topics/{dead}").json()["count"] == 1
    assert queue.counts()["ready"] == 0


def test_a_redrive_of_nothing_and_of_no_topic(queue):
    queue.make()
    envelope(queue.http.post(f"/v0/topics/{queue.name}.dead/redrive", json={"to": queue.name}), 404, "topic_not_found")
    queue.http.put(f"/v0/topics/{queue.name}.dead", json={})
    answer = queue.http.post(f"/v0/topics/{queue.name}.dead/redrive", json={"to": queue.name}).json()
    assert (answer["moved"], answer["remaining"], answer["pending"]) == (0, 0, 0)


def test_a_full_queue_refuses_and_the_dead_letters_stay(queue):
    queue.make(cap_records=1, discard="reject")
    dead = f"{queue.name}.dead"
    queue.http.post(f"/v0/topics/{dead}", json={"records": [{"data": 1}, {"data": 2}]})
    answer = queue.http.post(f"/v0/topics/{dead}/redrive", json={"to": queue.name})
    assert envelope(answer, answer.status_code, "topic_full")["detail"]["moved"] == 1
    assert queue.http.get(f"/v0/topics/{dead}").json()["count"] == 1


def last_used(queue: Queue) -> int | None:
    state = queue.http.get(f"{queue.path}?touch=false").json()
    assert (state["effective_priority"] > 0) is (state["last_read_ts"] is not None)
    used: int | None = state["last_read_ts"]
    return used


def test_a_claim_consumes_its_queue_also_if_there_is_nothing(queue):
    queue.make()
    queue.produce(1)
    assert last_used(queue) is None
    assert queue.post("claim")["count"] == 1
    first = last_used(queue)
    assert first is not None
    wait_for(lambda: time.time() * 1000 > first + 2, "another time")
    assert queue.post("claim")["count"] == 0
    assert (last_used(queue) or 0) > first
