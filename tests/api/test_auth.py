"""API keys over HTTP: how a key is sent, what is filtered, when a refusal comes."""

import json
import socket
from collections.abc import Iterator

import httpx
import pytest

from topics.testing.server import Server

KEYS = {
    "full": "",
    "reader": "read",
    "writer": "write",
    "maker": "write+admin",
    "one": "rw+admin:tenant1:",
    "mover": "rw+delete:tenant1:",
    "two": "read:tenant2:|shared.",
}
JSON = "content-type: application/json\r\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Server]:
    keys = ",".join(f"{secret}:{rest}" if rest else secret for secret, rest in KEYS.items())
    with Server(tmp_path_factory.mktemp("auth"), api_keys=keys, max_body_bytes=2_000_000) as started:
        yield started.start().wait_ready()


@pytest.fixture(scope="module")
def http(server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=60) as client:
        yield client


def bearer(secret: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}"}


class Raw:
    """A connection on which one says exactly what one likes."""

    def __init__(self, server: Server) -> None:
        self.sock = socket.create_connection(("127.0.0.1", server.port), timeout=60)
        self.buffer = b""

    def __enter__(self) -> "Raw":
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def send(self, text: str, body: bytes = b"") -> None:
        self.sock.sendall(text.encode("latin-1") + b"\r\n" + body)

    def answer(self) -> tuple[int, dict[str, str], bytes]:
        while b"\r\n\r\n" not in self.buffer:
            self._more()
        head, _, self.buffer = self.buffer.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines)
        size = int(headers.get("content-length", "0"))
        while len(self.buffer) < size:
            self._more()
        body, self.buffer = self.buffer[:size], self.buffer[size:]
        return int(first.split()[1]), headers, body

    def _more(self) -> None:
        data = self.sock.recv(65536)
        assert data, self.buffer
        self.buffer += data


# --- the header ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["Bearer full", "bearer full", "BEARER   full", "Bearer full "])
def test_a_key_is_taken(server, value):
    with Raw(server) as raw:
        raw.send(f"GET /v0/topics HTTP/1.1\r\nhost: x\r\nauthorization: {value}\r\n")
        assert raw.answer()[0] == 200


@pytest.mark.parametrize(
    "lines",
    [
        ["Bearer"],
        ["Bearer "],
        ["full"],
        ["Bearerfull"],
        ["Basic full"],
        ["Basic ZnVsbDo="],
        ["Bearer full full"],
        ["Bearer full,"],
        ["Bearer full, Bearer full"],
        ["Bearer Bearer full"],
        ["Bearer FULL"],
        ["Bearer \xfc\xff"],
        ["Bearer " + "f" * 513],
        ["Bearer " + "full" * 2000],
        ["Bearer full", "Bearer full"],  # two are none, even of the same content
        ["Bearer full", "Bearer wrong"],
        ["Bearer wrong", "Bearer full"],
        ["Bearer full", ""],
    ],
)
@pytest.mark.parametrize("path", ["/v0/topics", "/v0/topics/a/diff"])  # through Quart, and not
def test_what_holds_no_key_is_unauthorized(server, lines, path):
    method = "POST" if path.endswith("diff") else "GET"
    sent = "".join(f"authorization: {line}\r\n" for line in lines)
    with Raw(server) as raw:
        raw.send(f"{method} {path} HTTP/1.1\r\nhost: x\r\n{sent}content-length: 0\r\n")
        status, headers, body = raw.answer()
        assert (status, headers["www-authenticate"]) == (401, "Bearer")
        error = json.loads(body)["error"]
        assert error["code"] == "unauthorized"
        assert "full" not in error["message"]
        raw.send(
            f"{method} {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer full\r\n{JSON}content-length: 2\r\n", b"{}"
        )
        assert raw.answer()[0] in (200, 404)  # the connection is as good as before


def test_each_request_of_a_connection_stands_for_itself(server):
    with Raw(server) as raw:
        for secret, expected in [("full", 200), ("writer", 403), ("x", 401), ("reader", 200), ("writer", 403)] * 3:
            raw.send(f"GET /v0/topics HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {secret}\r\n")
            assert raw.answer()[0] == expected
        raw.send("GET /v0/topics HTTP/1.1\r\nhost: x\r\n")
        assert raw.answer()[0] == 401


# --- before the body ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["POST", "PUT"])
@pytest.mark.parametrize(("secret", "expected"), [("wrong", 401), ("reader", 403), ("two", 403)])
@pytest.mark.parametrize("framing", ["content-length: 1000000\r\n", "transfer-encoding: chunked\r\n"])
def test_a_refusal_does_not_wait_for_the_body(server, method, secret, expected, framing):
    with Raw(server) as raw:
        raw.send(f"{method} /v0/topics/a HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {secret}\r\n{JSON}{framing}")
        status, headers, _ = raw.answer()
        assert (status, headers["connection"]) == (expected, "close")


def test_a_client_that_asks_first_is_not_told_to_go_on(server):
    with Raw(server) as raw:
        raw.send(f"POST /v0/topics/a HTTP/1.1\r\nhost: x\r\n{JSON}content-length: 9\r\nexpect: 100-continue\r\n")
        assert raw.answer()[0] == 401


@pytest.mark.parametrize("method", ["POST", "PUT"])
def test_a_refused_request_whose_body_came_keeps_its_connection(server, method):
    with Raw(server) as raw:
        for secret, expected in [("wrong", 401), ("reader", 403)] * 3:
            head = f"{method} /v0/topics/a HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {secret}\r\n"
            raw.send(f"{head}{JSON}content-length: 2\r\n", b"{}")
            status, headers, _ = raw.answer()
            assert (status, headers.get("connection")) == (expected, None)


# --- names --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tenants(http) -> None:
    for name in ("tenant1:a", "tenant1:b", "tenant2:a", "shared.x", "tenant10", "sharedx"):
        assert http.put(f"/v0/topics/{name}", json={}, headers=bearer("full")).status_code in (200, 201)


def listed(http: httpx.Client, secret: str, **query: str) -> list[str]:
    names, more = [], dict(query)
    while True:
        answer = http.get("/v0/topics", params=more, headers=bearer(secret)).json()
        names += [entry["topic"] for entry in answer["topics"]]
        if "next_cursor" not in answer:
            return names
        more["cursor"] = answer["next_cursor"]


@pytest.mark.parametrize("page_size", ["1", "2", "100"])
def test_lists_are_filtered(http, tenants, page_size):
    assert listed(http, "one", page_size=page_size) == ["tenant1:a", "tenant1:b"]
    assert listed(http, "two", page_size=page_size) == ["shared.x", "tenant2:a"]
    assert listed(http, "one", page_size=page_size, prefix="tenant2:") == []
    assert {"tenant10", "sharedx", "tenant2:a"} <= set(listed(http, "reader", page_size=page_size))


def test_metrics_are_filtered(http, tenants):
    for secret, shown in (("one", {"tenant1:a", "tenant1:b"}), ("two", {"shared.x", "tenant2:a"})):
        answer = http.get("/v0/metrics", headers={**bearer(secret), "accept": "application/json"}).json()
        assert set(answer["topics_topic_head_seq"]) == shown
        text = http.get("/v0/metrics", headers=bearer(secret)).text
        assert ("tenant10" in text, "sharedx" in text) == (False, False)


def test_what_a_key_may_not_see_is_not_left_out_of_its_metrics(http, tenants):
    for name in ("tenant1:a", "tenant2:a"):
        http.put(f"/v0/topics/{name}/groups/g", headers=bearer("full"))
    for secret, seen in (("one", "tenant1:a"), ("two", "tenant2:a")):
        text = http.get("/v0/metrics", headers=bearer(secret)).text
        assert [line for line in text.splitlines() if line.startswith("topics_group_lag")] == [
            f'topics_group_lag{{topic="{seen}",group="g"}} 0'
        ]
        assert "topics_group_metrics_truncated 0" in text
        assert "topics_topic_metrics_truncated 0" in text


@pytest.mark.parametrize("name", ["tenant1", "tenant10", "Tenant1:", "tenant%31%3Ax", "%74enant1:x"])
def test_prefixes_are_compared_with_the_decoded_name(http, name):
    may = name in ("tenant%31%3Ax", "%74enant1:x")
    answer = http.put(f"/v0/topics/{name}", json={}, headers=bearer("one"))
    assert answer.status_code in ((200, 201) if may else (403,))


# --- appends with a config ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 100_000])  # large ones are decoded elsewhere
def test_who_may_write_may_say_what_a_topic_is_like_that_the_write_creates(http, size):
    """But change it later only with `admin`."""
    body = {"records": [{"data": "x" * size}], "config": {"durability": "memory"}}
    path = f"/v0/topics/configured-{size}"
    assert http.post(path, json=body, headers=bearer("reader")).status_code == 403
    assert http.post(path, json=body, headers=bearer("writer")).status_code == 201
    assert http.get(path, headers=bearer("reader")).json()["config"]["durability"] == "memory"
    assert http.post(path, json={**body, "config": {"durability": "disk"}}, headers=bearer("writer")).status_code == 200
    assert http.put(path, json={"durability": "disk"}, headers=bearer("writer")).status_code == 403
    assert http.get(path, headers=bearer("reader")).json()["config"]["durability"] == "memory"


def test_a_dead_letter_must_lie_inside_the_prefixes(http):
    """Jobs would be moved there on behalf of the key."""
    config = {"type": "queue", "dead_letter": "other.dlq"}
    assert http.put("/v0/topics/tenant1:q", json=config, headers=bearer("one")).status_code == 403
    body = {"records": [{"data": 1}], "config": config}
    answer = http.post("/v0/topics/tenant1:q", json=body, headers=bearer("one"))
    assert (answer.status_code, answer.json()["error"]["detail"]) == (403, {"name": "other.dlq"})
    assert http.get("/v0/topics/tenant1:q", headers=bearer("full")).status_code == 404
    inside = {**config, "dead_letter": "tenant1:dlq"}
    assert http.put("/v0/topics/tenant1:q", json=inside, headers=bearer("one")).status_code == 201


def test_dead_letters_go_back_inside_the_prefixes_only(http):
    path = "/v0/topics/tenant1:letters"
    http.post(path, json={"records": [{"data": 1}]}, headers=bearer("full"))
    http.put("/v0/topics/other.jobs", json={"type": "queue"}, headers=bearer("full"))
    answer = http.post(f"{path}/redrive", json={"to": "other.jobs"}, headers=bearer("mover"))
    assert (answer.status_code, answer.json()["error"]["detail"]) == (403, {"name": "other.jobs"})
    refused = http.post(f"{path}/redrive", json={"to": "tenant1:letters2"}, headers=bearer("one"))
    assert (refused.status_code, refused.json()["error"]["detail"]) == (403, {"scopes": ["delete"]})
    assert http.get(path, headers=bearer("full")).json()["count"] == 1
    assert http.post(f"{path}/redrive", json={"to": "other.jobs"}, headers=bearer("full")).json()["moved"] == 1


# --- other settings -----------------------------------------------------------------------------------------------


def test_probes_can_ask_for_a_key(tmp_path):
    with Server(tmp_path, api_keys="full,writer:write:t.", probe_auth=1, shards=1) as server:
        server.start().wait_ready()
        for path in ("/v0/health", "/healthz", "/v0/ready", "/readyz"):
            assert httpx.get(server.url + path).status_code == 401
            for secret in ("full", "writer"):
                assert httpx.get(server.url + path, headers=bearer(secret)).status_code == 200


def test_without_keys_the_header_is_ignored(tmp_path):
    with Server(tmp_path, shards=1, probe_auth=1) as server:
        server.start().wait_ready()
        for value in ("Bearer x", "nonsense", "Bearer " + "x" * 1000):
            assert httpx.get(server.url + "/v0/topics", headers={"authorization": value}).status_code == 200
        twice = [("authorization", "Bearer a"), ("authorization", "Bearer b")]
        assert httpx.put(server.url + "/v0/topics/a", headers=twice).status_code == 201
