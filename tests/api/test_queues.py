"""Queues over HTTP (API §10): status codes, answers, metrics, waiting, keys; dead letters on any shard."""

import json
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


def test_a_job_from_claim_to_ack(queue):
    queue.make(lease_ms=5000)
    assert queue.produce({"n": 1}, {"n": 2}) == [1, 2]
    answer = queue.post("claim", max=5)
    assert (answer["topic"], answer["count"], answer["ready"]) == (queue.name, 2, 0)
    job = answer["claimed"][0]
    assert (job["$seq"], job["data"], job["deliveries"]) == (1, {"n": 1}, 1)
    assert 0 < job["deadline"] - time.time() * 1000 <= 5000
    assert queue.counts() == {"ready": 0, "in_flight": 2, "dead_lettered": 0}
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
    assert queue.post("ack", seqs=[1])["performance"]["fsync_ms"] > 0
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
    queue.post("nack", seqs=[1])
    assert [job["data"] for job in queue.post("claim", max=5)["claimed"]] == ["fine"]
    (record,) = queue.http.post(f"/v0/topics/{dead}/diff", json={}).json()["records"]
    assert record["data"] == {"poison": True}
    assert record["meta"] == {
        "$dead_letter_from": queue.name,
        "$dead_letter_deliveries": "1",
        "$dead_letter_src_seq": "1",
    }
    assert queue.counts()["dead_lettered"] == 1


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
