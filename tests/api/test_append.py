"""Append (API §2, §0.8), and payloads that come back byte for byte (§0.3)."""

import json

import pytest

from tests.api.instance import envelope

ONE = {"records": [{"data": 1}]}
JSON = {"content-type": "application/json"}


def test_append(http, name):
    answer = http.post(f"/v0/topics/{name}", json={"records": [{"data": n} for n in range(3)]})
    assert answer.status_code == 201
    body = answer.json()
    perf = body.pop("performance")
    assert body == {
        "topic": name,
        "first_seq": 1,
        "last_seq": 3,
        "seqs": [1, 2, 3],
        "head_seq": 3,
        "count": 3,
        "created": True,
        "deduped": False,
    }
    assert perf["server_total_ms"] > 0
    assert perf["fsync_ms"] == 0
    assert perf["wal_append_ms"] >= 0
    again = http.post(f"/v0/topics/{name}", json=ONE)
    assert (again.status_code, again.json()["first_seq"], again.json()["created"]) == (200, 4, False)


def test_fsync_topics_report_their_sync(http, name):
    http.put(f"/v0/topics/{name}", json={"durability": "fsync"})
    assert http.post(f"/v0/topics/{name}", json=ONE).json()["performance"]["fsync_ms"] > 0


def test_return_seqs(http, name):
    body = http.post(f"/v0/topics/{name}?return_seqs=false", json=ONE).json()
    assert "seqs" not in body
    assert (body["first_seq"], body["last_seq"]) == (1, 1)
    assert http.post(f"/v0/topics/{name}?return_seqs=true", json=ONE).json()["seqs"] == [2]
    envelope(http.post(f"/v0/topics/{name}?return_seqs=x", json=ONE), 400, "invalid_request")


def test_create_false(http, name):
    error = envelope(http.post(f"/v0/topics/{name}", json=ONE | {"create": False}), 404, "topic_not_found")
    assert "create:false" in error["message"]
    for config in ({"auto_create": False}, {"auto_create": False, "durability": "fsync"}):
        error = envelope(http.post(f"/v0/topics/{name}", json=ONE | {"config": config}), 404, "topic_not_found")
        assert "auto_create" in error["message"]
        assert "create:true" in error["message"]  # what to do about it
    assert http.post(f"/v0/topics/{name}", json=ONE | {"create": True}).status_code == 201
    assert http.post(f"/v0/topics/{name}", json=ONE | {"create": False}).status_code == 200


def test_inline_config_applies_only_on_creation(http, name):
    http.post(f"/v0/topics/{name}", json=ONE | {"config": {"cap_records": 7}})
    assert http.get(f"/v0/topics/{name}").json()["config"]["cap_records"] == 7
    http.post(f"/v0/topics/{name}", json=ONE | {"config": {"cap_records": 9}})
    assert http.get(f"/v0/topics/{name}").json()["config"]["cap_records"] == 7
    envelope(http.post(f"/v0/topics/{name}.x", json=ONE | {"config": {"bad": 1}}), 400, "invalid_request")


@pytest.mark.parametrize("where", ["body", "header"])
def test_idempotency(http, name, where):
    body = ONE | ({"idempotency_key": "k1"} if where == "body" else {})
    headers = {"Idempotency-Key": "k1"} if where == "header" else {}
    first = http.post(f"/v0/topics/{name}", json=body, headers=headers).json()
    again = http.post(f"/v0/topics/{name}", json=body | {"records": [{"data": 2}, {"data": 3}]}, headers=headers)
    assert (again.status_code, again.json()["deduped"], again.json()["seqs"]) == (200, True, first["seqs"])
    assert http.get(f"/v0/topics/{name}").json()["count"] == 1


def test_the_body_key_wins_over_the_header(http, name):
    http.post(f"/v0/topics/{name}", json=ONE | {"idempotency_key": "a"}, headers={"Idempotency-Key": "b"})
    assert http.post(f"/v0/topics/{name}", json=ONE, headers={"Idempotency-Key": "b"}).json()["deduped"] is False
    assert http.post(f"/v0/topics/{name}", json=ONE, headers={"Idempotency-Key": "a"}).json()["deduped"] is True


@pytest.mark.parametrize("key", [b"", b"x" * 257, b"\xff"])
def test_bad_keys(http, name, key):
    envelope(http.post(f"/v0/topics/{name}", json=ONE, headers={b"Idempotency-Key": key}), 400, "invalid_request")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"records":[]}',
        b'{"records":[{}]}',
        b'{"records":[{"data":1,"tag":1}]}',
        b'{"records":[{"data":1,"meta":[]}]}',
        b'{"records":[{"data":\xff}]}',
        b'{"records":[{"data":"\xff"}]}',
        b'{"records":[{"data":1}]} x',
        b'{"records":[{"data":' + b"[" * 100_000 + b"]" * 100_000 + b"}]}",
        json.dumps({"records": [{"data": 1, "tag": "t" * 257}]}).encode(),
        json.dumps({"records": [{"data": 1, "node": "n" * 129}]}).encode(),
        json.dumps({"records": [{"data": 1, "meta": {"k": "v" * 17_000}}]}).encode(),
        json.dumps({"records": [{"data": 1, "meta": {str(n): "v" for n in range(65)}}]}).encode(),
    ],
)
def test_bad_bodies(http, name, content):
    envelope(http.post(f"/v0/topics/{name}", content=content, headers=JSON), 400, "invalid_request")
    envelope(http.get(f"/v0/topics/{name}"), 404, "topic_not_found")


def test_too_many_records(http, name):
    content = b'{"records":[' + b",".join([b'{"data":1}'] * 10_001) + b"]}"
    envelope(http.post(f"/v0/topics/{name}", content=content, headers=JSON), 400, "batch_too_large")


def test_a_record_that_is_too_large(http, name):
    body = {"records": [{"data": "x" * (1024 * 1024)}]}
    envelope(http.post(f"/v0/topics/{name}", json=body), 400, "record_too_large")
    assert http.post(f"/v0/topics/{name}", json={"records": [{"data": "x" * (1024 * 1024 - 2)}]}).status_code == 201


def test_a_full_topic_that_rejects(http, name):
    http.put(f"/v0/topics/{name}", json={"cap_records": 2, "discard": "reject"})
    http.post(f"/v0/topics/{name}", json={"records": [{"data": 1}, {"data": 2}]})
    envelope(http.post(f"/v0/topics/{name}", json=ONE), 422, "topic_full")
    assert http.get(f"/v0/topics/{name}").json()["count"] == 2
    envelope(http.post(f"/v0/topics/{name}", json={"records": [{"data": 1}] * 3}), 400, "record_too_large")


def test_a_full_topic_that_drops_the_old(http, name):
    http.put(f"/v0/topics/{name}", json={"cap_records": 2})
    assert http.post(f"/v0/topics/{name}", json={"records": [{"data": n} for n in range(5)]}).json()["count"] == 5
    body = http.post(f"/v0/topics/{name}/diff", json={}).json()
    assert [record["data"] for record in body["records"]] == [3, 4]


VERBATIM = [
    "123456789012345678901234567890",
    "1.0E+2",
    "-0.0",
    "1e400",
    '{"a":1,"a":2}',
    '{ "spaced" :  [1 ,2 ] }',
    '{\n\t"lines":\r\n 1}',
    '"\\u0041\\/\\ud83d\\ude00 \U0001f600"',
    "null",
    "[]",
    '""',
    "true",
]


@pytest.mark.parametrize("data", VERBATIM)
def test_payloads_come_back_byte_for_byte(http, name, data):
    content = f'{{"records":[{{"data":{data},"meta":{{ "k" : "v" }}}}]}}'.encode()
    assert http.post(f"/v0/topics/{name}", content=content, headers=JSON).status_code == 201
    answer = http.post(f"/v0/topics/{name}/diff", json={}).content
    assert f'"data":{data},"meta":{{ "k" : "v" }}}}'.encode() in answer


def test_all_payloads_in_one_batch(http, name):
    content = ('{"records":[' + ",".join(f'{{"data":{data}}}' for data in VERBATIM) + "]}").encode()
    assert http.post(f"/v0/topics/{name}", content=content, headers=JSON).json()["count"] == len(VERBATIM)
    answer = http.post(f"/v0/topics/{name}/diff", json={}).content
    at = 0
    for data in VERBATIM:
        at = answer.index(f'"data":{data}}}'.encode(), at) + 1
