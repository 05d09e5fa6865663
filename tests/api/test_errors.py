"""The error envelope and what every route has in common (API §0.3, §0.5, §0.6, §0.9)."""

import gzip
import json
import re

import httpx
import pytest

from tests.api.instance import envelope, raw, wait_for

JSON = {"content-type": "application/json"}
ONE = b'{"records":[{"data":1}]}'
LIMIT = 4 * 1024 * 1024  # of the shared instance


@pytest.mark.parametrize(
    "path", ["/", "/v0", "/v1/topics", "/v0/topics/", "/v0/topics/a/b", "/v0/topics/a/diff/", "/v0/router", "/v0/ws/"]
)
def test_unknown_paths(http, path):
    envelope(http.get(path), 404, "not_found")
    envelope(http.post(path, content=b"{}", headers=JSON), 404, "not_found")
    envelope(http.request("FOO", path), 404, "not_found")


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("PATCH", "/v0/topics/a", "DELETE, GET, HEAD, POST, PUT"),
        ("FOO", "/v0/topics/a", "DELETE, GET, HEAD, POST, PUT"),
        ("PURGE", "/v0/topics/a/diff", "POST"),
        ("OPTIONS", "/v0/topics/a", "DELETE, GET, HEAD, POST, PUT"),
        ("POST", "/v0/topics", "GET, HEAD"),
        ("GET", "/v0/topics/a/diff", "POST"),
        ("GET", "/v0/topics/a/delete", "POST"),
        ("PUT", "/v0/health", "GET, HEAD"),
        ("DELETE", "/v0/metrics", "GET, HEAD"),
    ],
)
def test_unknown_methods(http, method, path, allow):
    answer = http.request(method, path)
    envelope(answer, 405, "method_not_allowed")
    assert answer.headers["allow"] == allow


WITH_BODY = [("PUT", ""), ("POST", ""), ("POST", "/diff"), ("POST", "/delete")]


@pytest.mark.parametrize(("method", "tail"), WITH_BODY)
@pytest.mark.parametrize(
    "kind", [None, "text/plain", "application/x-www-form-urlencoded", "application/json; charset=x"]
)
def test_wrong_content_type(http, name, method, tail, kind):
    headers = {"content-type": kind} if kind else {}
    answer = http.request(method, f"/v0/topics/{name}{tail}", content=ONE, headers=headers)
    envelope(answer, 415, "unsupported_media_type")
    answer = http.request(method, f"/v0/topics/{name}{tail}", content=iter([ONE]), headers=headers)
    envelope(answer, 415, "unsupported_media_type")


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "application/json;x=y", "APPLICATION/JSON"])
def test_content_types_with_parameters(http, name, kind):
    assert http.post(f"/v0/topics/{name}", content=ONE, headers={"content-type": kind}).status_code == 201


@pytest.mark.parametrize(("method", "tail"), WITH_BODY)
def test_too_large_by_its_length_is_refused_unread(instance, name, method, tail):
    head = f"{method} /v0/topics/{name}{tail} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    answer = raw(instance, f"{head}Content-Length: {LIMIT + 1}\r\n\r\n".encode())
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"connection: close\r\n" in answer
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "payload_too_large"


@pytest.mark.parametrize(("method", "tail"), WITH_BODY)
def test_too_large_in_chunks_is_refused_on_the_way(instance, name, method, tail):
    head = f"{method} /v0/topics/{name}{tail} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    head += "Transfer-Encoding: chunked\r\n\r\n"
    chunk = b"%x\r\n%b\r\n" % (LIMIT + 1, b"x" * (LIMIT + 1))
    assert raw(instance, head.encode() + chunk).startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PUT", "/v0/topics/{}"),
        ("POST", "/v0/topics/{}/diff"),
        ("POST", "/v0/topics/{}/delete"),
        ("POST", "/v0/topics/{}/claim"),
        ("POST", "/v0/topics/{}/ack"),
        ("POST", "/v0/topics/{}/redrive"),
        ("PUT", "/v0/routers/{}"),
        ("POST", "/v0/watch"),
    ],
)
def test_only_an_append_may_be_very_large(http, name, method, path):
    headers = JSON | {"accept": "application/json"}
    content = b"{%b}" % (b" " * 2**20)
    for form in (content, iter([content[:99], content[99:]])):
        answer = http.request(method, path.format(name), content=form, headers=headers)
        error = envelope(answer, 413, "payload_too_large")
        assert error["detail"]["max"] == 2**20


def test_what_an_append_holds_beside_its_records_is_not_very_large(http, name):
    content = b'{"note":"%b","records":[{"data":1}]}' % (b"x" * 2**21)
    envelope(http.post(f"/v0/topics/{name}", content=content, headers=JSON), 413, "payload_too_large")
    envelope(http.get(f"/v0/topics/{name}"), 404, "topic_not_found")


@pytest.mark.parametrize("form", ["plain", "gzip", "chunked"])
def test_large_unusual_appends(http, name, form):
    """Records that begin with a member nobody knows, and hold what looks like records."""
    record = b'{"\\u0020":0,"data":{"records":[{"data":1},{"data":"}, {\\"tag\\":"}]},"tag":"t"}'
    content = b'{"records":[' + b", ".join([record] * 9_000) + b'  ],\n"idempotency_key":"k"}'
    assert len(content) > 600_000
    if form == "gzip":
        answer = http.post(
            f"/v0/topics/{name}", content=gzip.compress(content), headers=JSON | {"content-encoding": "gzip"}
        )
    else:
        parts = iter([content[:300_000], content[300_000:]])
        answer = http.post(f"/v0/topics/{name}", content=content if form == "plain" else parts, headers=JSON)
    assert answer.json()["count"] == 9_000
    read = http.post(f"/v0/topics/{name}/diff", json={"from_seq": 8_999, "include_tags": True}).json()
    assert read["records"][0]["data"] == json.loads(record)["data"]
    assert read["records"][0]["$tag"] == "t"
    again = http.post(f"/v0/topics/{name}", content=content, headers=JSON).json()
    assert again["deduped"] is True


def test_a_body_of_just_the_limit(http, name):
    filler = b" " * (LIMIT - len(ONE))
    assert http.post(f"/v0/topics/{name}", content=ONE + filler, headers=JSON).status_code == 201


@pytest.mark.parametrize(("method", "tail"), WITH_BODY)
def test_gzip_requests(http, name, method, tail):
    http.put(f"/v0/topics/{name}")
    body = {"PUT": b"{}", "": ONE, "/diff": b"{}", "/delete": b'{"before_seq":1}'}["PUT" if method == "PUT" else tail]
    headers = JSON | {"content-encoding": "gzip"}
    for content in (gzip.compress(body), gzip.compress(body[:1]) + gzip.compress(body[1:])):
        answer = http.request(method, f"/v0/topics/{name}{tail}", content=content, headers=headers)
        assert answer.status_code == 200, answer.text


def test_gzip_of_a_large_batch(http, name):
    records = [{"data": {"n": n, "fill": "x" * 300}} for n in range(5000)]
    content = gzip.compress(json.dumps({"records": records}).encode())
    headers = JSON | {"content-encoding": "gzip"}
    assert http.post(f"/v0/topics/{name}", content=content, headers=headers).json()["count"] == 5000


@pytest.mark.parametrize("content", [b"plain", gzip.compress(ONE, mtime=0)[:-3], gzip.compress(ONE, mtime=0) + b"x"])
def test_bad_gzip(http, name, content):
    answer = http.post(f"/v0/topics/{name}", content=content, headers=JSON | {"content-encoding": "gzip"})
    envelope(answer, 400, "invalid_request")


@pytest.mark.parametrize("size", [LIMIT + 1, 64 * 1024 * 1024])
def test_a_gzip_bomb(http, name, size):
    packed = gzip.compress(b" " * size, 9)
    answer = http.post(f"/v0/topics/{name}", content=packed, headers=JSON | {"content-encoding": "gzip"})
    envelope(answer, 413, "payload_too_large")


@pytest.mark.parametrize("encoding", ["br", "deflate", "gzip, gzip"])
def test_other_encodings(http, name, encoding):
    answer = http.post(f"/v0/topics/{name}", content=ONE, headers=JSON | {"content-encoding": encoding})
    envelope(answer, 415, "unsupported_media_type")


def test_gzip_responses(http, name):
    http.post(f"/v0/topics/{name}", json={"records": [{"data": "x" * 100}] * 1000})
    for limit, gzipped in ((1, False), (20, True), (1000, True)):
        answer = http.post(f"/v0/topics/{name}/diff", json={"limit": limit}, headers={"accept-encoding": "gzip"})
        assert ("content-encoding" in answer.headers) is gzipped
        assert len(answer.json()["records"]) == limit
        assert answer.json()["performance"]["server_total_ms"] > 0
    plain = http.post(f"/v0/topics/{name}/diff", json={"limit": 1000}, headers={"accept-encoding": "gzip;q=0"})
    assert "content-encoding" not in plain.headers


def test_performance_is_everywhere(http, name):
    http.put(f"/v0/topics/{name}")
    asked = [
        http.get("/v0/health"),
        http.get("/v0/ready"),
        http.get("/v0/topics"),
        http.get(f"/v0/topics/{name}"),
        http.get("/v0/metrics", headers={"accept": "application/json"}),
        http.get("/nope"),
        http.patch("/v0/topics"),
        http.post(f"/v0/topics/{name}", content=b"{", headers=JSON),
    ]
    assert all(answer.json()["performance"]["server_total_ms"] > 0 for answer in asked)


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GARBAGE\r\n\r\n", 400),
        (b"GET /v0/health HTTP/1.1\r\n\r\n", 400),
        (b"GET /v0/health HTTP/1.1\r\nHost: x\r\nA: " + b"a" * 40_000 + b"\r\n\r\n", 431),
        (b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 414),
        (b"POST /v0/topics/a HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"GET /v0/health HTTP/1.1\r\nHost: x\r\nExpect: tea\r\n\r\n", 417),
        (b"GET /v0/health HTTP/3.0\r\nHost: x\r\n\r\n", 400),
    ],
)
def test_errors_of_the_protocol_itself(instance, data, status):
    head, _, body = raw(instance, data).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status)
    assert b"connection: close" in head
    parsed = json.loads(body)
    assert set(parsed) == {"error", "performance"}
    assert parsed["error"]["code"] == "invalid_request"


def test_a_shard_that_is_down(fresh):
    """Its topics are 503, those of others are not; a list is never partial."""
    instance = fresh(2).start()
    with httpx.Client(base_url=instance.url) as http:
        on: dict[int, list[int]] = {}
        for n in range(20):
            name = f"a{n}"
            http.put(f"/v0/topics/{name}")
        instance.kill_shard(1)
        for n in range(20):
            answer = http.post(f"/v0/topics/a{n}", content=ONE, headers=JSON)
            on.setdefault(answer.status_code, []).append(n)
            if answer.status_code == 503:
                envelope(answer, 503, "not_ready")
                assert re.fullmatch(r"\d+", answer.headers["retry-after"])
        assert set(on) == {200, 503}
        envelope(http.get("/v0/topics"), 503, "not_ready")
        assert http.get("/v0/ready").json()["status"] == "degraded"
        instance.start_shard(1)
        wait_for(lambda: http.get("/v0/ready").json()["status"] == "ready", "recovery")
        for n in range(20):
            assert http.post(f"/v0/topics/a{n}", content=ONE, headers=JSON).status_code == 200
        assert len(http.get("/v0/topics").json()["topics"]) == 20
