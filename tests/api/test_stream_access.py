"""Who may open a stream, how many, for how long, and over which HTTP."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import h2.connection
import h2.events
import httpx
import pytest

from tests.api.events import WAIT_S, EventStream, eventually, open_stream, watching
from topics.testing.server import Server

KEYS = "full,other,one:rw:tenant1:,writer:write,crowd,third"
PER_KEY, STREAMS = 4, 6


def bearer(key):
    return {"authorization": f"Bearer {key}"}


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Server]:
    caps: dict[str, Any] = {"max_sse_connections": STREAMS, "max_sse_connections_per_key": PER_KEY}
    with Server(tmp_path_factory.mktemp("streams"), shards=2, gateways=2, api_keys=KEYS, **caps) as started:
        yield started.start().wait_ready()


@pytest.fixture(scope="module")
def http(server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=WAIT_S) as client:
        yield client


@pytest.fixture(scope="module")
def brief(tmp_path_factory) -> Iterator[Server]:
    """A server without keys whose sessions soon end."""
    settings: dict[str, Any] = {"watch_session_ttl_ms": TestSessions.TTL_MS, "max_watch_sessions": TestSessions.MOST}
    with Server(tmp_path_factory.mktemp("sessions"), shards=2, gateways=2, **settings) as started:
        yield started.start().wait_ready()


@pytest.fixture
def topic(http, name):
    append(http, name, 1)
    return name


def append(http, topic, value, key="full"):
    answer = http.post(f"/v0/topics/{topic}", json={"records": [{"data": value}]}, headers=bearer(key))
    assert answer.status_code in (200, 201), answer.text


def create(http, topic, key="full", **fields):
    answer = http.post("/v0/watch", json={"topics": {topic: {}}, **fields}, headers=bearer(key))
    assert answer.status_code == 200, answer.text
    return answer.json()["wid"]


def streams(http):
    headers = {"accept": "application/json", **bearer("full")}
    return http.get("/v0/metrics", headers=headers).json()["topics_sse_connections"]


class TestKeys:
    @pytest.mark.parametrize("key", [None, "wrong", "other", "one", "writer"])
    def test_only_the_key_that_made_a_session_opens_it(self, http, topic, key):
        wid = create(http, topic)
        stream = open_stream(http, wid, headers=bearer(key) if key else {})
        assert stream.status == 401
        assert stream.body()["error"]["code"] == "unauthorized"
        assert stream.headers["www-authenticate"] == "Bearer"
        assert http.head(f"/v0/watch/{wid}", headers=bearer(key) if key else {}).status_code == 401
        assert http.head(f"/v0/watch/{wid}", headers=bearer("full")).status_code == 200
        right = open_stream(http, wid, headers=bearer("full"))
        assert right.records(1)
        right.close()

    def test_a_key_without_read_neither_makes_nor_opens(self, http, topic):
        answer = http.post("/v0/watch", json={"topics": {topic: {}}}, headers=bearer("writer"))
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden")
        for wid in ("wid_" + "A" * 22, "wid_short"):
            assert open_stream(http, wid, headers=bearer("writer")).status == 403

    def test_every_topic_of_the_body_is_checked(self, http, topic):
        append(http, f"tenant1:{topic}", 1)
        body: Any = {"topics": {f"tenant1:{topic}": {}, topic: {}}}
        for query in ("", "?lenient=true"):
            answer = http.post(f"/v0/watch{query}", json=body, headers=bearer("one"))
            assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden")
        with watching(http, {f"tenant1:{topic}": {}}, headers=bearer("one")) as stream:
            assert stream.records(1)

    def test_a_token_in_the_query_opens_streams(self, http, topic):
        stream = open_stream(http, create(http, topic), query="?token=full&token=wrong")
        assert stream.records(1)
        stream.close()
        stream = open_stream(http, create(http, topic), query="?token=f%75ll")
        assert stream.records(1)
        stream.close()
        assert open_stream(http, create(http, topic), query="?token=wrong&token=full").status == 401

    def test_a_valid_header_wins_over_the_token(self, http, topic):
        wid = create(http, topic)
        assert open_stream(http, wid, headers=bearer("other"), query="?token=full").status == 401
        stream = open_stream(http, wid, headers=bearer("full"), query="?token=other")
        assert stream.records(1)
        stream.close()

    def test_no_other_route_takes_a_token(self, http, topic):
        body: Any = {"topics": {topic: {}}}
        assert http.post("/v0/watch?token=full", json=body).status_code == 401
        assert http.get(f"/v0/topics/{topic}?token=full").status_code == 401
        assert http.post(f"/v0/topics/{topic}/diff?token=full", json={}).status_code == 401
        assert http.get("/v0/metrics?token=full").status_code == 401


class TestCaps:
    def test_streams_of_a_key_and_of_all(self, http, topic):
        """Opened all at once, over two gateways: never one more than there may be, and every place comes back."""
        assert eventually(lambda: streams(http) == 0)
        opened = self._open_at_once(http, topic, ["full"] * 12)
        assert sorted(stream.status for stream in opened) == [200] * PER_KEY + [429] * (12 - PER_KEY)
        refused = next(stream for stream in opened if stream.status == 429)
        error = refused.body()["error"]
        assert (error["code"], error["detail"]["limit"]) == ("throttled", "max_sse_connections_per_key")
        assert error["detail"]["max"] == PER_KEY
        assert int(refused.headers["retry-after"]) >= 1
        more = self._open_at_once(http, topic, ["other", "other", "third", "third", "crowd"])
        assert sorted(stream.status for stream in more) == [200] * (STREAMS - PER_KEY) + [429] * 3
        refused = next(stream for stream in more if stream.status == 429)
        assert refused.body()["error"]["detail"]["limit"] == "max_sse_connections"
        append(http, topic, "to all")
        for stream in opened + more:
            if stream.status == 200:
                assert stream.records(2)[-1]["data"] == "to all"
            stream.close()
        assert eventually(lambda: streams(http) == 0)
        again = self._open_at_once(http, topic, ["full"] * PER_KEY)
        assert [stream.status for stream in again] == [200] * PER_KEY
        for stream in again:
            stream.close()
        assert eventually(lambda: streams(http) == 0)

    def test_a_stream_that_is_refused_leaves_its_session_alone(self, http, topic):
        assert eventually(lambda: streams(http) == 0)
        wid = create(http, topic)
        crowd = self._open_at_once(http, topic, ["full"] * PER_KEY)
        assert open_stream(http, wid, headers=bearer("full")).status == 429
        for stream in crowd:
            stream.close()
        assert eventually(lambda: streams(http) == 0)
        stream = open_stream(http, wid, headers=bearer("full"))
        assert stream.records(1)
        stream.close()

    def test_requests_are_not_counted_as_streams_nor_streams_as_requests(self, tmp_path):
        with Server(tmp_path, api_keys="full", max_inflight_per_key=1, gateways=1) as server:
            server.start().wait_ready()
            with httpx.Client(base_url=server.url, timeout=WAIT_S) as http:
                append(http, "t", 1)
                with watching(http, {"t": {}}, headers=bearer("full")) as stream:
                    stream.next("caught-up")
                    append(http, "t", 2)
                    assert stream.records(1)

    def test_a_killed_gateway_gives_its_streams_back(self, server, http, topic):
        assert eventually(lambda: streams(http) == 0)
        opened = self._open_at_once(http, topic, ["full"] * PER_KEY)
        assert [stream.status for stream in opened] == [200] * PER_KEY
        for index in range(2):
            server.wait_back("gateway", index, server.kill("gateway", index))
        assert streams(http) == 0
        for stream in opened:
            stream.rest()
            stream.close()
        with watching(http, {topic: {}}, headers=bearer("full")) as stream:
            assert stream.records(1)

    def _open_at_once(self, http, topic, keys) -> list[EventStream]:
        wids = [create(http, topic, key) for key in keys]
        ready = threading.Barrier(len(keys))

        def open_one(wid, key):
            ready.wait(WAIT_S)
            return open_stream(http, wid, headers=bearer(key))

        with ThreadPoolExecutor(len(keys)) as pool:
            return list(pool.map(open_one, wids, keys))


class TestSessions:
    TTL_MS, MOST = 600, 5

    @pytest.fixture
    def server(self, brief):
        return brief

    @pytest.fixture
    def http(self, server) -> Iterator[httpx.Client]:
        with httpx.Client(base_url=server.url, timeout=WAIT_S) as client:
            yield client

    def test_there_may_be_so_many_and_the_idle_ones_go(self, http, topic):
        def post(_):
            return httpx.post(f"{http.base_url}/v0/watch", json={"topics": {topic: {}}}, timeout=WAIT_S)

        began = time.monotonic()
        with ThreadPoolExecutor(15) as pool:
            answers = list(pool.map(post, range(15)))
        made = [answer for answer in answers if answer.status_code == 200]
        assert {answer.status_code for answer in answers} <= {200, 429}
        if time.monotonic() - began < self.TTL_MS / 1000:
            assert len(made) == self.MOST
        refused = [answer for answer in answers if answer.status_code == 429]
        assert refused[0].json()["error"]["detail"] == {
            "limit": "max_watch_sessions",
            "max": self.MOST,
            "retry_after_ms": refused[0].json()["error"]["detail"]["retry_after_ms"],
        }
        assert int(refused[0].headers["retry-after"]) >= 1
        assert eventually(lambda: post(0).status_code == 200)
        streams = [open_stream(http, answer.json()["wid"]) for answer in made]
        gone = next(stream for stream in streams if stream.status == 404)  # one at least made room; shards look in turn
        assert gone.body()["error"]["code"] == "not_found"

    def test_one_with_a_stream_stays_and_lives_on_for_its_ttl(self, http, topic):
        wid = eventually(lambda: http.post("/v0/watch", json={"topics": {topic: {}}}).json().get("wid"))
        stream = open_stream(http, wid)
        assert stream.records(1)
        time.sleep(3 * self.TTL_MS / 1000)
        append(http, topic, 2)
        assert stream.records(1)
        stream.close()
        append(http, topic, 3)
        again = open_stream(http, wid)
        assert [record["data"] for record in again.records(1)] == [3]
        again.close()


class TestTransports:
    def test_http_2(self, http, server, topic):
        assert eventually(lambda: streams(http) == 0)
        wid = create(http, topic)
        with httpx.Client(base_url=server.url, timeout=WAIT_S, http1=False, http2=True) as client:
            headers = {"accept": "text/event-stream", **bearer("full")}
            with client.stream("GET", f"/v0/watch/{wid}", headers=headers) as answer:
                assert answer.http_version == "HTTP/2"
                assert answer.status_code == 200
                assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
                assert answer.headers["x-accel-buffering"] == "no"
                lines = answer.iter_lines()
                assert next(lines) == "retry: 2000"
                assert any(line == "event: caught-up" for line in lines)
                assert streams(http) == 1
                append(http, topic, "live")
                assert any('"live"' in line for line in lines)
        assert eventually(lambda: streams(http) == 0)
        append(http, topic, "meanwhile")
        with httpx.Client(base_url=server.url, timeout=WAIT_S, http1=False, http2=True) as client:
            with client.stream("GET", f"/v0/watch/{wid}", headers=bearer("other")) as answer:
                assert answer.status_code == 401
            with client.stream("GET", f"/v0/watch/{wid}", headers=headers) as answer:
                assert any('"meanwhile"' in line for line in answer.iter_lines())
        assert eventually(lambda: streams(http) == 0)

    def test_a_reset_ends_one_stream_of_http_2_alone(self, http, server, topic):
        assert eventually(lambda: streams(http) == 0)
        connection = h2.connection.H2Connection()
        connection.initiate_connection()
        with socket.create_connection(("127.0.0.1", server.port), WAIT_S) as sock:
            for number in (1, 3):
                path = f"/v0/watch/{create(http, topic)}?token=full"
                head = [(":method", "GET"), (":path", path), (":scheme", "http"), (":authority", "test")]
                connection.send_headers(number, head, end_stream=True)
            got = {1: b"", 3: b""}
            self._exchange(connection, sock, got, lambda: all(b"caught-up" in text for text in got.values()))
            assert streams(http) == 2
            connection.reset_stream(1)
            sock.sendall(connection.data_to_send())
            assert eventually(lambda: streams(http) == 1)
            append(http, topic, "on")
            self._exchange(connection, sock, got, lambda: b'"on"' in got[3])
        assert eventually(lambda: streams(http) == 0)

    def _exchange(self, connection, sock, got, done):
        while not done():
            sock.sendall(connection.data_to_send())
            for event in connection.receive_data(sock.recv(65536)):
                if isinstance(event, h2.events.DataReceived):
                    got[event.stream_id] += event.data

    def test_http_1_0_ends_with_its_connection(self, http, server, topic):
        wid = create(http, topic)
        with socket.create_connection(("127.0.0.1", server.port), WAIT_S) as sock:
            sock.sendall(f"GET /v0/watch/{wid}?token=full HTTP/1.0\r\n\r\n".encode())
            got = b""
            while b"event: caught-up" not in got:
                got += sock.recv(65536)
            head, _, body = got.partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 ")
            assert b"transfer-encoding" not in head
            assert b"connection: close" in head
            assert body.startswith(b"retry: 2000\n\nid: ")
            assert json.loads(body.split(b"data: ")[1].split(b"\n")[0])["records"][0]["data"] == 1
            open_stream(http, wid, headers=bearer("full")).close()  # takes it over
            while data := sock.recv(65536):
                body += data
            assert b'"code":409' in body

    def test_the_headers_of_a_stream(self, http, topic):
        with watching(http, {topic: {}}, headers=bearer("full") | {"accept-encoding": "gzip"}) as stream:
            assert stream.headers["content-type"] == "text/event-stream; charset=utf-8"
            assert stream.headers["cache-control"] == "no-store"
            assert stream.headers["connection"] == "keep-alive"
            assert stream.headers["x-accel-buffering"] == "no"
            assert "content-encoding" not in stream.headers
            assert stream.next().name == "retry"
            assert stream.records(1)
