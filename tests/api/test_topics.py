"""Create, read and remove a topic (API §0.10, §1.1, §1.2, §1.4)."""

import json
import time

import pytest

from tests.api.instance import envelope

DEFAULTS = {
    "type": "log",
    "ttl_ms": 0,
    "cap_records": 0,
    "cap_bytes": 0,
    "discard": "old",
    "durable": False,
    "durability": "disk",
    "priority": None,
    "auto_priority": True,
    "auto_create": True,
    "idempotency_window_ms": 120_000,
    "dedupe_node": True,
    "lease_ms": 30_000,
    "claim_jitter_ms": 0,
    "max_deliveries": 0,
    "dead_letter": None,
    "leases_durable": False,
    "compression": "none",
    "compression_min_bytes": 1024,
    "priority_age_ms": 60_000,
    "message_ids": False,
}


def test_put_creates_once(http, name):
    first = http.put(f"/v0/topics/{name}", json={})
    assert first.status_code == 201
    body = first.json()
    assert body.pop("performance")["server_total_ms"] > 0
    assert body == {"topic": name, "created": True, "config": DEFAULTS}
    again = http.put(f"/v0/topics/{name}", json={})
    assert (again.status_code, again.json()["created"]) == (200, False)


def test_only_durable_topics_tell_of_syncs(http, name):
    for config, synced in (({}, False), ({"durability": "memory"}, False), ({"durable": True}, True)):
        perf = http.put(f"/v0/topics/{name}", json=config).json()["performance"]
        assert (perf["fsync_ms"] > 0) is synced
    http.put(f"/v0/topics/{name}", json={"durable": False})
    assert http.delete(f"/v0/topics/{name}").json()["performance"]["fsync_ms"] == 0


@pytest.mark.parametrize("content", [b"", b"{}"])
def test_an_empty_put_is_all_defaults(http, name, content):
    headers = {"content-type": "application/json"} if content else {}
    assert http.put(f"/v0/topics/{name}", content=content, headers=headers).json()["config"] == DEFAULTS


def test_a_chunked_empty_put_needs_no_type(http, name):
    answer = http.put(f"/v0/topics/{name}", content=iter([b""]))
    assert answer.status_code == 201


def test_a_put_changes_only_what_it_names(http, name):
    http.put(f"/v0/topics/{name}", json={"ttl_ms": 60_000, "priority": 10, "durable": True})
    config = http.put(f"/v0/topics/{name}", json={"cap_records": 5}).json()["config"]
    assert config == DEFAULTS | {
        "ttl_ms": 60_000,
        "priority": 10,
        "durable": True,
        "durability": "fsync",
        "cap_records": 5,
    }
    assert http.put(f"/v0/topics/{name}", json={"priority": None}).json()["config"]["priority"] is None


@pytest.mark.parametrize(
    ("given", "echoed"),
    [
        ({"priority": 5000}, {"priority": 1000}),
        ({"priority": -5000}, {"priority": -1000}),
        ({"lease_ms": 1}, {"lease_ms": 100}),
        ({"claim_jitter_ms": 9999}, {"claim_jitter_ms": 5000}),
        ({"compression": "zstd"}, {"compression": "zstd", "compression_min_bytes": 1024}),
        ({"durability": "memory"}, {"durable": False, "durability": "memory"}),
        ({"durable": True, "durability": "ephemeral"}, {"durable": False, "durability": "ephemeral"}),
    ],
)
def test_clamped_and_resolved_values_are_echoed(http, name, given, echoed):
    config = http.put(f"/v0/topics/{name}", json=given).json()["config"]
    assert {key: config[key] for key in echoed} == echoed


@pytest.mark.parametrize(
    "config",
    [
        {"ttl_ms": -1},
        {"ttl_ms": None},
        {"ttl_ms": "1"},
        {"discard": "new"},
        {"durability": "tape"},
        {"compression": "lz4"},
        {"compression": None},
        {"compression_min_bytes": -1},
        {"nonsense": 1},
        {"type": "stack"},
        [],
        "x",
    ],
)
def test_bad_config(http, name, config):
    envelope(http.put(f"/v0/topics/{name}", json=config), 400, "invalid_request")
    envelope(http.get(f"/v0/topics/{name}"), 404, "topic_not_found")


def test_an_unknown_field_is_named(http, name):
    error = envelope(http.put(f"/v0/topics/{name}", json={"colour": 1}), 400, "invalid_request")
    assert "colour" in error["message"]


def test_dead_letter_must_differ(http, name):
    envelope(http.put(f"/v0/topics/{name}", json={"type": "queue", "dead_letter": name}), 400, "invalid_request")


def test_the_type_cannot_change(http, name):
    http.put(f"/v0/topics/{name}", json={"type": "queue"})
    envelope(http.put(f"/v0/topics/{name}", json={"type": "log"}), 409, "topic_exists_incompatible")
    assert http.put(f"/v0/topics/{name}", json={"ttl_ms": 1}).status_code == 200


@pytest.mark.parametrize("bad", ["-a", "a%20b", "a%2Fb", "%C3%A9", "a" * 256, ".a", "a%00", "%ff", "a@b", "%2561"])
def test_bad_names(http, bad):
    for method, tail in (
        ("PUT", ""),
        ("GET", ""),
        ("DELETE", ""),
        ("POST", ""),
        ("POST", "/diff"),
        ("POST", "/delete"),
    ):
        content = b'{"records":[{"data":1}]}' if method in ("PUT", "POST") else None
        answer = http.request(
            method, f"/v0/topics/{bad}{tail}", content=content, headers={"content-type": "application/json"}
        )
        envelope(answer, 400, "invalid_request")


@pytest.mark.parametrize("good", ["a" * 255, "0", "render-queue:tenantA", "A.b_c:d-e"])
def test_good_names(http, good):
    assert http.put(f"/v0/topics/{good}").json()["topic"] == good
    assert http.get(f"/v0/topics/{good}").status_code == 200


def test_names_are_percent_decoded_once(http, name):
    assert http.put("/v0/topics/%61%3A" + name).json()["topic"] == "a:" + name
    assert http.get(f"/v0/topics/a:{name}").status_code == 200


def test_state(http, name):
    http.post(f"/v0/topics/{name}", json={"records": [{"data": 1}, {"data": 2}, {"data": 3}]})
    body = http.get(f"/v0/topics/{name}").json()
    assert body["performance"]["server_total_ms"] > 0
    shown = {key: body[key] for key in ("topic", "type", "head_seq", "earliest_seq", "next_seq", "count")}
    assert shown == {"topic": name, "type": "log", "head_seq": 3, "earliest_seq": 1, "next_seq": 4, "count": 3}
    assert body["bytes"] > 0
    assert body["config"] == DEFAULTS
    assert body["last_write_ts"] > 1_700_000_000_000


def test_state_of_an_empty_topic(http, name):
    http.put(f"/v0/topics/{name}")
    body = http.get(f"/v0/topics/{name}?touch=false").json()
    assert (body["head_seq"], body["earliest_seq"], body["next_seq"], body["count"]) == (0, 1, 1, 0)
    assert (body["last_write_ts"], body["last_read_ts"]) == (None, None)
    assert abs(body["created_ts"] - time.time() * 1000) < 60_000


def test_touch(http, name):
    http.put(f"/v0/topics/{name}")
    for _ in range(2):
        assert http.get(f"/v0/topics/{name}", params={"touch": "false"}).json()["last_read_ts"] is None
    assert http.get(f"/v0/topics/{name}").json()["last_read_ts"] is not None
    envelope(http.get(f"/v0/topics/{name}?touch=maybe"), 400, "invalid_request")


def test_state_never_creates(http, name):
    error = envelope(http.get(f"/v0/topics/{name}"), 404, "topic_not_found")
    assert error["detail"] == {"topic": name}


def test_remove(http, name):
    http.post(f"/v0/topics/{name}", json={"records": [{"data": 1}]})
    answer = http.delete(f"/v0/topics/{name}")
    assert answer.status_code == 200
    body = answer.json()
    assert body.pop("performance")["server_total_ms"] > 0
    assert body == {"topic": name, "deleted": True, "routers_removed": []}
    again = http.delete(f"/v0/topics/{name}")
    assert (again.status_code, again.json()["deleted"], again.json()["routers_removed"]) == (200, False, [])
    envelope(http.get(f"/v0/topics/{name}"), 404, "topic_not_found")


def test_remove_if_empty(http, name):
    http.post(f"/v0/topics/{name}", json={"records": [{"data": 1}]})
    envelope(http.delete(f"/v0/topics/{name}?if_empty=true"), 409, "topic_not_empty")
    envelope(http.delete(f"/v0/topics/{name}?if_empty=2"), 400, "invalid_request")
    http.post(f"/v0/topics/{name}/delete", json={"before_seq": 2})
    assert http.delete(f"/v0/topics/{name}?if_empty=true").json()["deleted"] is True


def test_a_recreated_topic_starts_anew(http, name):
    http.post(f"/v0/topics/{name}", json={"records": [{"data": n} for n in range(5)]})
    http.delete(f"/v0/topics/{name}")
    assert http.post(f"/v0/topics/{name}", json={"records": [{"data": 1}]}).json()["first_seq"] == 1
    body = http.post(f"/v0/topics/{name}/diff", json={"from_seq": 5}).json()
    assert body["tombstone"]["reason"] == "recreated"
    assert [record["$seq"] for record in body["records"]] == [1]


def test_answers_are_json_with_nothing_after_it(http, name):
    for answer in (http.put(f"/v0/topics/{name}"), http.get(f"/v0/topics/{name}"), http.get("/v0/topics")):
        assert answer.headers["content-type"] == "application/json"
        json.loads(answer.content)


def test_a_queue_tells_its_jobs(http, name):
    http.put(f"/v0/topics/{name}", json={"type": "queue"})
    http.post(f"/v0/topics/{name}", json={"records": [{"data": 1}, {"data": 2}]})
    assert http.get(f"/v0/topics/{name}").json()["queue"] == {
        "ready": 2,
        "in_flight": 0,
        "dead_lettered": 0,
        "scheduled": 0,
    }
    text = http.get("/v0/metrics").text
    assert f'topics_topic_queue_ready{{topic="{name}"}} 2' in text
    assert f'topics_topic_queue_in_flight{{topic="{name}"}} 0' in text
