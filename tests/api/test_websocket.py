"""`/v0/ws` with a real client: every command, frame, error and limit of API §7.7."""

import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.api.events import WAIT_S, eventually
from tests.api.instance import envelope
from tests.api.sockets import Socket
from topics.testing.server import Server

KEYS = "full,reader:read,writer:write,maker:write+admin,one:rw:tenant1:,few,slow"
TOPICS_MAX = 5


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("ws")
    bounds: dict[str, Any] = {"max_body_bytes": 2**20, "max_record_bytes": 2**20, "max_watch_topics": TOPICS_MAX}
    bounds |= {"max_sse_connections_per_key": 3, "slow_consumer_ms": 700, "buffer_grace_ms": 200}
    with Server(folder, shards=2, gateways=2, api_keys=KEYS, **bounds) as started:
        yield started.start().wait_ready()
        assert started.stop() == 0
        assert not [line for line in started.lines() if line["level"] == "error"], started.text()


@pytest.fixture(scope="module")
def http(server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=WAIT_S, headers={"authorization": "Bearer full"}) as client:
        yield client


@pytest.fixture
def ws(server) -> Iterator[Socket]:
    with Socket(server.port, "full") as socket:
        yield socket


def append(http, topic, *values, **fields):
    answer = http.post(f"/v0/topics/{topic}", json={"records": [{"data": value} for value in values], **fields})
    assert answer.status_code in (200, 201), answer.text


def values_of(records):
    return [record["data"] for record in records]


class TestOpening:
    @pytest.mark.parametrize("key", ["", "wrong"])
    def test_without_a_valid_key_the_handshake_is_refused(self, server, key):
        with pytest.raises(InvalidStatus) as refused:
            Socket(server.port, key)
        response = refused.value.response
        assert response.status_code == 401
        assert json.loads(response.body)["error"]["code"] == "unauthorized"

    def test_a_token_in_the_url_is_no_key(self, server):
        upgrade = {"connection": "upgrade", "upgrade": "websocket", "sec-websocket-version": "13"}
        upgrade["sec-websocket-key"] = "dGhlIHNhbXBsZSBub25jZQ=="
        assert httpx.get(f"{server.url}/v0/ws?token=full", headers=upgrade).status_code == 401

    def test_any_key_opens_it(self, server):
        for key in ("reader", "writer", "one"):
            with Socket(server.port, key) as socket:
                assert socket.ask("ping")["op"] == "pong"

    def test_elsewhere_there_is_no_websocket(self, server):
        upgrade = {"connection": "upgrade", "upgrade": "websocket", "sec-websocket-version": "13"}
        upgrade |= {"sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==", "authorization": "Bearer full"}
        for path in ("/v0/nothing", "/v0/topics", "/v0/topics/x", "/v0/health", "/v0/watch"):
            envelope(httpx.get(server.url + path, headers=upgrade), 404, "not_found")

    def test_a_plain_get_is_told_to_upgrade(self, http):
        assert http.get("/v0/ws").status_code == 426

    @pytest.mark.parametrize(
        ("version", "key", "status"), [("8", "x", 426), ("", "x", 426), ("13", "", 400), ("13", "x", 400)]
    )
    def test_an_incomplete_handshake_is_refused_in_the_envelope(self, http, version, key, status):
        upgrade = {"connection": "upgrade", "upgrade": "websocket"}
        upgrade |= {"sec-websocket-version": version, "sec-websocket-key": key}
        answer = http.get("/v0/ws", headers={name: value for name, value in upgrade.items() if value})
        envelope(answer, status, "invalid_request")
        assert answer.headers.get("sec-websocket-version") == ("13" if status == 426 else None)


class TestSubscribe:
    def test_records_then_caught_up_then_live(self, http, ws, name):
        http.post(f"/v0/topics/{name}", json={"records": [{"data": 1, "node": "n", "tag": "t", "meta": {"k": "v"}}]})
        append(http, name, 2)
        answer = ws.ask("subscribe", topic=name)
        place = {"from_seq": 0, "head_seq": 2, "earliest_seq": 1}
        assert answer == {"op": "subscribed", "request_id": "r1", "topics": {name: place}}
        record = ws.next()
        assert record.keys() == {"op", "topic", "from_seq", "to_seq", "head_seq", "records"}
        assert (record["op"], record["topic"]) == ("record", name)
        assert (record["from_seq"], record["to_seq"], record["head_seq"]) == (0, 2, 2)
        assert record["records"][0].keys() == {"$seq", "$ts", "$node", "data", "meta"}
        assert ws.next() == {"op": "caught_up", "topic": name, "head_seq": 2}
        append(http, name, 3)
        live = ws.next()
        assert (live["from_seq"], live["to_seq"], values_of(live["records"])) == (2, 3, [3])

    def test_a_map_of_topics_with_their_own_starts(self, http, ws, name):
        a, b = f"{name}.a", f"{name}.b"
        append(http, a, 1, 2, 3)
        append(http, b, 1, 2, 3)
        answer = ws.ask("subscribe", topics={a: {"from_seq": 2}, b: {"tail": True}})
        assert {topic: place["from_seq"] for topic, place in answer["topics"].items()} == {a: 2, b: 3}
        assert values_of(ws.records(1)) == [3]
        append(http, b, 4)
        assert values_of(ws.records(1)) == [4]

    def test_views(self, http, ws, name):
        record = {"data": {"x": 1}, "tag": "t", "node": "n", "meta": {"k": "v"}}
        http.post(f"/v0/topics/{name}", json={"records": [record]})
        ws.ask("subscribe", topic=name, include_tags=True, include_data=False)
        assert ws.records(1)[0].keys() == {"$seq", "$ts", "$node", "$tag"}

    def test_limit_and_bytes_bound_a_frame(self, http, ws, name):
        append(http, name, *range(10))
        ws.ask("subscribe", topic=name, limit=4)
        assert [len(ws.next("record")["records"]) for _ in "123"] == [4, 4, 2]
        append(http, f"{name}.big", *["x" * 1000] * 3)
        ws.ask("subscribe", topic=f"{name}.big", max_batch_bytes=1)
        assert [len(ws.next("record")["records"]) for _ in "123"] == [1, 1, 1]

    def test_own_nodes_are_skipped(self, http, ws, name):
        append(http, name, 1, node="me")
        ws.ask("subscribe", topic=name, node="me")
        assert ws.next("record", "caught_up")["op"] == "caught_up"
        assert ws.ask("publish", topic=name, records=[{"data": 2}], node="me")["last_seq"] == 2
        ws.ask("publish", topic=name, records=[{"data": 3}])
        assert values_of(ws.records(1)) == [3]

    def test_loss_is_told(self, http, ws, name):
        http.put(f"/v0/topics/{name}", json={"cap_records": 2})
        append(http, name, 1, 2, 3, 4)
        ws.ask("subscribe", topic=name, from_seq=1)
        gap = ws.next()
        assert gap["op"] == "tombstone"
        assert (gap["reason"], gap["gap_from"], gap["gap_to"]) == ("from_seq_too_old", 2, 2)
        assert (gap["earliest_seq"], gap["head_seq"]) == (3, 4)
        assert values_of(ws.records(2)) == [3, 4]

    def test_a_deleted_topic_is_told_and_can_be_followed_again(self, http, ws, name):
        append(http, name, 1, 2)
        append(http, f"{name}.other", 1)
        ws.ask("subscribe", topics={name: {}, f"{name}.other": {"tail": True}})
        ws.next("caught_up"), ws.next("caught_up")
        http.delete(f"/v0/topics/{name}")
        assert ws.next() == {"op": "topic_deleted", "topic": name, "head_seq": 2, "reason": "deleted"}
        append(http, f"{name}.other", 2)
        assert values_of(ws.records(1)) == [2]
        append(http, name, "new")
        assert ws.ask("subscribe", topic=name)["topics"][name]["head_seq"] == 1
        assert values_of(ws.records(1)) == ["new"]

    def test_unsubscribed_is_silent_and_subscribing_again_begins_anew(self, http, ws, name):
        append(http, name, 1)
        ws.ask("subscribe", topic=name)
        ws.next("caught_up")
        answer = ws.ask("unsubscribe", topic=name)
        assert (answer["op"], answer["topic"]) == ("unsubscribed", name)
        append(http, name, 2)
        assert ws.ask("ping")["op"] == "pong"
        assert not [frame for frame in ws.seen if frame["op"] == "record"]
        assert ws.ask("unsubscribe", topic=name)["op"] == "unsubscribed"  # as often as one likes
        ws.ask("subscribe", topic=name, from_seq=1)
        assert values_of(ws.records(1)) == [2]
        ws.ask("subscribe", topic=name)  # while it is followed: from the beginning once more
        assert values_of(ws.records(2)) == [1, 2]

    def test_one_socket_follows_so_many_topics(self, http, ws, name):
        topics = [f"{name}.{n}" for n in range(TOPICS_MAX + 1)]
        for topic in topics:
            append(http, topic, 1)
        ws.refused("invalid_request", "subscribe", topics={topic: {} for topic in topics})
        assert ws.ask("subscribe", topics={topic: {} for topic in topics[:-1]})["op"] == "subscribed"
        refusal = ws.refused("invalid_request", "subscribe", topic=topics[-1])
        assert refusal["detail"]["max"] == TOPICS_MAX
        assert ws.ask("subscribe", topic=topics[0], from_seq=1)["op"] == "subscribed"  # one that it has already
        ws.ask("unsubscribe", topic=topics[0])
        assert ws.ask("subscribe", topic=topics[-1])["op"] == "subscribed"
        ws.refused("invalid_request", "subscribe", topic=topics[0])
        http.delete(f"/v0/topics/{topics[1]}")
        ws.next("topic_deleted")
        assert ws.ask("subscribe", topic=topics[0])["op"] == "subscribed"  # what is gone takes no room

    @pytest.mark.parametrize(
        "fields",
        [
            {},
            {"topics": {}},
            {"topic": "a", "topics": {"a": {}}},
            {"topic": "not a name"},
            {"topic": "a", "from_seq": -1},
            {"topic": "a", "limit": -1},
            {"topic": "a", "tail": 1},
            {"topic": 7},
        ],
    )
    def test_what_makes_no_sense_is_refused(self, ws, fields):
        ws.refused("invalid_request", "subscribe", **fields)

    def test_an_unknown_topic(self, ws, name):
        refusal = ws.refused("topic_not_found", "subscribe", topic=name)
        assert refusal["detail"]["topic"] == name


class TestPublish:
    def test_the_ack_is_that_of_an_append(self, ws, name):
        answer = ws.ask("publish", topic=name, records=[{"data": 1}, {"data": 2, "tag": "t"}])
        assert (answer["op"], answer["topic"], answer["seqs"]) == ("ack", name, [1, 2])
        assert (answer["last_seq"], answer["head_seq"]) == (2, 2)
        assert answer["performance"]["fsync_ms"] == 0.0
        answer = ws.ask("publish", topic=name, records=[{"data": 3}], return_seqs=False)
        assert "seqs" not in answer
        assert answer["last_seq"] == 3

    def test_a_key_makes_a_retry_harmless(self, ws, name):
        first = ws.ask("publish", topic=name, records=[{"data": 1}], idempotency_key="k")
        again = ws.ask("publish", topic=name, records=[{"data": 1}], idempotency_key="k")
        assert (first["seqs"], again["seqs"], again["deduped"]) == ([1], [1], True)

    def test_config_creates_a_topic_with_it(self, http, ws, name):
        ws.ask("publish", topic=name, records=[{"data": 1}], config={"cap_records": 7})
        assert http.get(f"/v0/topics/{name}").json()["config"]["cap_records"] == 7

    def test_payloads_come_back_as_they_were(self, http, ws, name):
        ws.ask("publish", topic=name, records=[])
        data = '{"b":1.0,"a":[1e2,\n"\\u00e9"]}'
        ws.ws.send(f'{{"op":"publish","topic":"{name}","records":[{{"data":{data}}}]}}')
        ws.next("ack")
        found = http.post(f"/v0/topics/{name}/diff", json={}).content
        assert data.encode() in found

    def test_publishes_to_a_topic_keep_their_order(self, http, ws, name):
        """Large ones take longer than small ones, and some are refused."""
        with Socket(ws.ws.remote_address[1], "writer") as writer:
            for number in range(60):
                pad = "x" * (300_000 if number % 10 == 0 else 10)
                writer.send(op="publish", topic=name, records=[{"data": [number, pad]}], return_seqs=False)
                if number % 10 == 0:
                    writer.send(op="publish", topic=name, records=[{"data": 0}], config={"cap_records": 1})
            frames = [writer.receive() for _ in range(66)]
        assert [frame["code"] for frame in frames if frame["op"] == "error"] == ["forbidden"] * 6
        assert [frame["last_seq"] for frame in frames if frame["op"] == "ack"] == list(range(1, 61))
        ws.ask("subscribe", topic=name)
        assert [value[0] for value in values_of(ws.records(60))] == list(range(60))

    @pytest.mark.parametrize(
        ("code", "fields"),
        [
            ("invalid_request", {"topic": "a"}),
            ("invalid_request", {"topic": "a", "records": [{}]}),
            ("invalid_request", {"topic": "a", "records": "x"}),
            ("invalid_request", {"topic": "?", "records": [{"data": 1}]}),
            ("invalid_request", {"records": [{"data": 1}]}),
            ("topic_not_found", {"topic": "never.made", "records": [{"data": 1}], "create": False}),
            ("invalid_request", {"topic": "a", "records": [{"data": 1, "meta": {"k": "x" * 20_000}}]}),
        ],
    )
    def test_refusals_are_those_of_an_append(self, ws, code, fields):
        ws.refused(code, "publish", **fields)


class TestCommands:
    @pytest.mark.parametrize("number", ["text", 7, None])
    def test_request_ids_come_back(self, ws, number):
        ws.send(op="ping", request_id=number)
        answer = ws.receive()
        assert answer == ({"op": "pong", "request_id": number} if number is not None else {"op": "pong"})

    @pytest.mark.parametrize("text", ["hello", "[]", "{}", '{"op":1}', '{"op":"nope"}', '"', "[" * 100_000])
    def test_what_is_no_command_leaves_the_socket_open(self, ws, text):
        ws.ws.send(text)
        answer = ws.receive()
        assert (answer["op"], answer["code"]) == ("error", "invalid_request")
        assert ws.ask("ping")["op"] == "pong"

    def test_an_error_names_its_command_if_it_can(self, ws):
        ws.send(op="nope", request_id="x")
        assert ws.receive()["request_id"] == "x"

    def test_binary_messages_are_refused(self, ws):
        ws.ws.send(b'{"op":"ping"}')
        assert ws.receive()["code"] == "invalid_request"
        assert ws.ask("ping")["op"] == "pong"

    def test_a_message_that_is_too_large_ends_it(self, server):
        with Socket(server.port, "full") as socket:
            socket.ws.send('{"op":"ping","pad":"%s"}' % ("x" * 2**20))
            with pytest.raises(ConnectionClosed) as closed:
                socket.receive()
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1009

    @pytest.mark.parametrize(
        ("frame", "code"),
        [
            (b"\x81\x82\0\0\0\0\xff\xfe", 1007),  # text that is not UTF-8
            (b"\x81\x02{}", 1002),  # not masked
            (b"\x83\x80\0\0\0\0", 1002),  # an opcode that does not exist
        ],
    )
    def test_who_breaks_the_protocol_is_told(self, server, frame, code):
        with Socket(server.port, "full") as socket:
            assert socket.ask("ping")["op"] == "pong"
            socket.ws.socket.sendall(frame)
            with pytest.raises(ConnectionClosed) as closed:
                socket.receive()
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == code

    def test_a_ping_of_the_protocol_is_answered(self, ws):
        assert ws.ws.ping().wait(WAIT_S)


class TestAccess:
    def test_each_command_needs_its_scope(self, server, http, name):
        append(http, name, 1)
        with Socket(server.port, "reader") as reader:
            assert reader.ask("subscribe", topic=name)["op"] == "subscribed"
            reader.refused("forbidden", "publish", topic=name, records=[{"data": 1}])
        with Socket(server.port, "writer") as writer:
            assert writer.ask("publish", topic=name, records=[{"data": 1}])["op"] == "ack"
            writer.refused("forbidden", "subscribe", topic=name)
            writer.refused("forbidden", "publish", topic=name, records=[{"data": 1}], config={"cap_records": 1})
        with Socket(server.port, "maker") as maker:
            assert maker.ask("publish", topic=name, records=[{"data": 1}], config={})["op"] == "ack"

    def test_every_name_is_checked(self, server, http, name):
        append(http, f"tenant1:{name}", 1)
        append(http, name, 1)
        with Socket(server.port, "one") as one:
            assert one.ask("subscribe", topic=f"tenant1:{name}")["op"] == "subscribed"
            one.refused("forbidden", "subscribe", topic=name)
            one.refused("forbidden", "subscribe", topics={f"tenant1:{name}": {}, name: {}})
            one.refused("forbidden", "publish", topic=name, records=[{"data": 1}])
            one.refused("forbidden", "unsubscribe", topic=name)
            assert one.ask("publish", topic=f"tenant1:{name}", records=[{"data": 2}])["op"] == "ack"
            assert values_of(one.records(2)) == [1, 2]

    def test_sockets_count_as_streams(self, server):
        sockets = [Socket(server.port, "few") for _ in range(3)]
        with pytest.raises(InvalidStatus) as refused:
            Socket(server.port, "few")
        response = refused.value.response
        assert response.status_code == 429
        assert json.loads(response.body)["error"]["detail"]["limit"] == "max_sse_connections_per_key"
        assert int(response.headers["retry-after"]) >= 1
        sockets[0].ws.close()
        eventually(lambda: opens(server, "few"))
        sockets[1].ws.socket.close()  # without a word
        eventually(lambda: opens(server, "few"))
        sockets[2].ws.close()


def opens(server, key):
    try:
        Socket(server.port, key).ws.close()
    except InvalidStatus:
        return False
    return True


def streams(http):
    return http.get("/v0/metrics", headers={"accept": "application/json"}).json()["topics_sse_connections"]


class TestSlowReaders:
    def test_one_that_never_reads_is_let_go(self, server, http, name):
        before = eventually(lambda: streams(http) == 0) and streams(http)
        append(http, name, *["x" * 50_000] * 15)
        append(http, name, *["x" * 50_000] * 15)
        with Socket(server.port, "slow", receive_buffer=8192, max_queue=1, close_timeout=0.1) as socket:
            socket.send(op="subscribe", topic=name)
            eventually(lambda: streams(http) == before + 1)
            eventually(lambda: streams(http) == before)  # its place is given back, although it takes nothing
            append(http, name, "on")

    def test_one_that_reads_again_is_told_why(self, server, http, name):
        for _ in range(8):
            append(http, name, *["x" * 50_000] * 15)
        with Socket(server.port, "slow", receive_buffer=8192, max_queue=1) as socket:
            socket.send(op="subscribe", topic=name)
            threading.Event().wait(1.5)  # longer than its patience, shorter than its farewell
            with pytest.raises(ConnectionClosed) as closed:
                socket.next("nothing that comes")
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1013


def test_a_stop_closes_sockets_with_1001(tmp_path):
    with Server(tmp_path) as server:
        server.start().wait_ready()
        with Socket(server.port) as socket:
            assert socket.ask("publish", topic="t", records=[{"data": 1}])["op"] == "ack"
            socket.ask("subscribe", topic="t", tail=True)
            assert server.stop() == 0
            with pytest.raises(ConnectionClosed) as closed:
                socket.next("error")
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1001
