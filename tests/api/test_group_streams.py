"""Consumer groups over a WebSocket: records against credits, acknowledgements, and one stream at a time."""

import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.api.events import WAIT_S
from tests.api.sockets import Socket
from topics import limits
from topics.client import Client
from topics.testing.server import Server

KEYS = "full,reader:read,one:rw:tenant1:"


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("group-ws"), shards=2, gateways=2, api_keys=KEYS) as started:
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


def append(http: httpx.Client, topic: str, *values: Any, **fields: Any) -> None:
    answer = http.post(f"/v0/topics/{topic}", json={"records": [{"data": value, **fields} for value in values]})
    assert answer.is_success, answer.text


def state(http: httpx.Client, topic: str, group: str = "g") -> dict[str, Any]:
    fields: dict[str, Any] = http.get(f"/v0/topics/{topic}/groups/{group}").json()
    return fields


def nothing_comes(ws: Socket) -> None:
    """What was sent before the answer to a ping has arrived by then; what is sent without credits, too."""
    for _ in range(3):
        assert ws.ask("ping")["op"] == "pong"
        time.sleep(0.02)
    assert [frame for frame in ws.seen if frame["op"] == "record"] == []


def seqs(records: list[dict[str, Any]]) -> list[int]:
    return [record["$seq"] for record in records]


class TestCredits:
    def test_no_more_than_there_are_credits(self, http, ws, name):
        append(http, name, *range(10))
        ws.ask("subscribe", topic=name, credits=4)
        assert seqs(ws.records(4)) == [1, 2, 3, 4]
        nothing_comes(ws)
        assert ws.ask("credit", topic=name, n=3)["credits"] == 3
        assert seqs(ws.records(3)) == [5, 6, 7]
        nothing_comes(ws)

    def test_none_at_first(self, http, ws, name):
        append(http, name, 1)
        ws.ask("subscribe", topic=name, credits=0)
        nothing_comes(ws)
        ws.ask("credit", topic=name, n=1)
        assert seqs(ws.records(1)) == [1]

    def test_what_comes_live_counts_as_well(self, http, ws, name):
        append(http, name, 1)
        ws.ask("subscribe", topic=name, credits=3)
        assert seqs(ws.records(1)) == [1]
        assert ws.next("caught_up")["head_seq"] == 1
        for value in range(2, 6):
            append(http, name, value)
        assert seqs(ws.records(2)) == [2, 3]
        nothing_comes(ws)
        assert ws.ask("credit", topic=name, n=100)["credits"] == 100
        assert seqs(ws.records(2)) == [4, 5]
        append(http, name, 6)
        assert seqs(ws.records(1)) == [6]
        assert ws.ask("credit", topic=name, n=1)["credits"] == 98  # it never was below what was sent

    def test_each_topic_has_its_own(self, http, ws, name):
        for topic in (f"{name}.a", f"{name}.b"):
            append(http, topic, 1, 2, 3)
        ws.ask("subscribe", topics={f"{name}.a": {}, f"{name}.b": {}}, credits=2)
        got = [ws.next("record") for _ in range(2)]
        assert {frame["topic"]: seqs(frame["records"]) for frame in got} == {f"{name}.a": [1, 2], f"{name}.b": [1, 2]}
        ws.ask("credit", topic=f"{name}.b", n=5)
        assert ws.next("record")["topic"] == f"{name}.b"
        nothing_comes(ws)

    def test_records_of_ones_own_cost_nothing(self, http, ws, name):
        append(http, name, 1, 2, 3, node="me")
        append(http, name, 4, 5, node="other")
        ws.ask("subscribe", topic=name, node="me", credits=2)
        assert seqs(ws.records(2)) == [4, 5]

    def test_one_frame_may_use_many(self, http, ws, name):
        append(http, name, *range(50))
        ws.ask("subscribe", topic=name, credits=30, limit=20)
        assert [len(ws.next("record")["records"]) for _ in range(2)] == [20, 10]

    def test_refusals(self, http, ws, name):
        append(http, name, 1)
        for wrong in (-1, limits.WS_CREDITS_MAX + 1):
            assert ws.refused("invalid_request", "subscribe", topic=name, credits=wrong)["detail"]["field"] == "credits"
        assert ws.refused("invalid_request", "credit", topic=name, n=1)["detail"]["field"] == "topic"
        ws.ask("subscribe", topic=name)
        assert ws.refused("invalid_request", "credit", topic=name, n=1)["detail"]["field"] == "topic"
        ws.ask("subscribe", topic=name, credits=5)
        for wrong in (0, -3, limits.WS_CREDITS_MAX):
            assert ws.refused("invalid_request", "credit", topic=name, n=wrong)["detail"]["field"] == "n"
        assert ws.refused("invalid_request", "credit", topic=name)["detail"]["field"] == "n"
        assert ws.refused("invalid_request", "credit", topic=name, n=1, m=1)["detail"]["field"] == "m"

    def test_at_the_head_it_is_caught_up_without_credits(self, http, ws, name):
        append(http, name, 1)
        ws.ask("subscribe", topic=name, tail=True, credits=0)
        assert ws.next()["op"] == "caught_up"
        append(http, name, 2)
        nothing_comes(ws)
        ws.ask("credit", topic=name, n=1)
        assert seqs(ws.records(1)) == [2]

    @pytest.mark.parametrize("credits", [0, 1])
    def test_a_deleted_topic_is_told_without_credits(self, http, ws, name, credits):
        append(http, name, 1, 2)
        ws.ask("subscribe", topic=name, credits=credits)
        assert seqs(ws.records(credits)) == [1][:credits]
        http.delete(f"/v0/topics/{name}")
        assert ws.next()["op"] == "topic_deleted"
        assert ws.refused("invalid_request", "credit", topic=name, n=1)["detail"]["field"] == "topic"

    def test_a_deleted_topic_takes_none(self, http, ws, name):
        append(http, name, 1)
        ws.ask("subscribe", topic=name, credits=5)
        http.delete(f"/v0/topics/{name}")
        assert ws.next("topic_deleted")["topic"] == name
        assert ws.refused("invalid_request", "credit", topic=name, n=1)["detail"]["field"] == "topic"


class TestGroups:
    def test_a_stream_goes_on_where_the_group_stands(self, http, ws, server, name):
        append(http, name, *range(5))
        answer = ws.ask("subscribe", topic=name, group="g", credits=3, consumer="c1")
        place = {"from_seq": 0, "head_seq": 5, "earliest_seq": 1, "group": "g", "consumer": "c1"}
        assert answer["topics"] == {name: place}
        assert seqs(ws.records(3)) == [1, 2, 3]
        acked = ws.ask("ack", topic=name, seq=2)
        assert (acked["op"], acked["group"], acked["cursor_seq"], acked["moved"]) == ("acked", "g", 2, True)
        assert ws.ask("ack", topic=name, seq=1)["cursor_seq"] == 2
        assert state(http, name)["cursor_seq"] == 2
        with Socket(server.port, "full") as other:
            other.ask("subscribe", topic=name, group="g", credits=10)
            assert seqs(other.records(3)) == [3, 4, 5]

    def test_from_where_a_new_group_begins(self, http, ws, name):
        append(http, name, 1, 2)
        answer = ws.ask("subscribe", topic=name, group="g", **{"from": "latest"})
        assert answer["topics"][name]["from_seq"] == 2
        append(http, name, 3)
        assert seqs(ws.records(1)) == [3]
        assert state(http, name)["consumer"].startswith("ws-")

    def test_another_stream_takes_over(self, http, ws, server, name):
        append(http, name, 1)
        ws.ask("subscribe", topic=name, group="g", consumer="a")
        ws.records(1)
        with Socket(server.port, "full") as other:
            other.ask("subscribe", topic=name, group="g", consumer="b")
            ended = ws.next("error")
            assert (ended["topic"], ended["group"], ended["status"], ended["code"]) == (name, "g", 409, "taken_over")
            assert ended["detail"]["active"] == "b"
            append(http, name, 2)
            assert seqs(other.records(2)) == [1, 2]
            nothing_comes(ws)
            for op, fields in (("ack", {"seq": 1}), ("credit", {"n": 1})):  # until it subscribes or unsubscribes
                assert ws.refused("taken_over", op, topic=name, **fields)["detail"]["active"] == "b"
            assert state(http, name)["cursor_seq"] == 0
            ws.refused("taken_over", "subscribe", topic=name, group="g", consumer="a")
            ws.ask("subscribe", topic=name, group="g", consumer="a", take_over=True)
            assert other.next("error")["code"] == "taken_over"
            assert ws.ask("ack", topic=name, seq=1)["cursor_seq"] == 1
            assert other.ask("unsubscribe", topic=name)["op"] == "unsubscribed"
            other.refused("invalid_request", "ack", topic=name, seq=1)

    def test_a_fetch_takes_over_from_a_stream(self, http, ws, name):
        append(http, name, 1)
        ws.ask("subscribe", topic=name, group="g", consumer="a", credits=0)
        assert http.post(f"/v0/topics/{name}/groups/g/fetch", json={"consumer": "b"}).status_code == 200
        assert ws.next("error")["code"] == "taken_over"

    def test_a_stream_takes_over_from_a_fetch(self, http, ws, name):
        append(http, name, 1)
        http.post(f"/v0/topics/{name}/groups/g/fetch", json={"consumer": "b"})
        ws.ask("subscribe", topic=name, group="g", consumer="a")
        answer = http.post(f"/v0/topics/{name}/groups/g/fetch", json={"consumer": "b"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "taken_over")

    def test_the_same_consumer_comes_again(self, http, ws, server, name):
        """Its connection was lost, say, and the server does not know yet."""
        append(http, name, 1)
        ws.ask("subscribe", topic=name, group="g", consumer="a")
        with Socket(server.port, "full") as again:
            assert again.ask("subscribe", topic=name, group="g", consumer="a")["op"] == "subscribed"
            ended = ws.next("error")
            assert (ended["code"], ended["detail"]["active"]) == ("taken_over", "a")
            assert "another stream of the same consumer" in ended["message"]
            assert seqs(again.records(1)) == [1]
            ws.refused("taken_over", "ack", topic=name, seq=1)

    def test_a_seek_moves_the_stream(self, http, ws, name):
        append(http, name, *range(4))
        ws.ask("subscribe", topic=name, group="g", credits=100)
        assert seqs(ws.records(4)) == [1, 2, 3, 4]
        http.post(f"/v0/topics/{name}/groups/g/seek", json={"to": 2})
        assert seqs(ws.records(2)) == [3, 4]
        assert ws.ask("credit", topic=name, n=1)["credits"] == 100 - 6 + 1

    def test_a_removed_group_ends_the_stream(self, http, ws, name):
        append(http, name, 1)
        ws.ask("subscribe", topic=name, group="g")
        http.delete(f"/v0/topics/{name}/groups/g")
        ended = ws.next("error")
        assert (ended["status"], ended["code"]) == (404, "group_not_found")
        ws.refused("group_not_found", "ack", topic=name, seq=1)

    @pytest.mark.parametrize("credits", [0, 10])
    def test_a_removed_topic_ends_the_stream(self, http, ws, name, credits):
        append(http, name, 1)
        ws.ask("subscribe", topic=name, group="g", credits=credits)
        http.delete(f"/v0/topics/{name}")
        assert ws.next("topic_deleted", "error")["op"] == "topic_deleted"
        append(http, name, 1)
        nothing_comes(ws)
        assert http.get(f"/v0/topics/{name}/groups").json()["groups"] == []
        for op, fields in (("credit", {"n": 1}), ("ack", {"seq": 1})):
            assert ws.refused("invalid_request", op, topic=name, **fields)["detail"]["field"] == "topic"

    def test_an_ack_that_means_another_group_moves_none(self, http, ws, name):
        append(http, name, 1, 2)
        http.put(f"/v0/topics/{name}/groups/other")
        ws.ask("subscribe", topic=name, group="g", consumer="a")
        for field, value in (("group", "other"), ("consumer", "b"), ("grupo", "other")):
            refused = ws.refused("invalid_request", "ack", topic=name, seq=2, **{field: value})
            assert refused["detail"]["field"] == field
        assert (state(http, name)["cursor_seq"], state(http, name, "other")["cursor_seq"]) == (0, 0)
        assert ws.ask("ack", topic=name, seq=2, group="g", consumer="a")["cursor_seq"] == 2

    def test_a_refused_subscribe_leaves_what_was_there(self, http, ws, name):
        append(http, name, 1)
        for consumer in ("old", "new"):
            http.post(f"/v0/topics/{name}/groups/taken/fetch", json={"consumer": consumer})
        ws.ask("subscribe", topic=name, group="g", consumer="a", credits=10)
        assert seqs(ws.records(1)) == [1]
        ws.refused("taken_over", "subscribe", topic=name, group="taken", consumer="old")
        ws.refused("invalid_request", "subscribe", topic=name, group="g", **{"from": -1})
        ws.refused("invalid_request", "subscribe", topic=name, group="fresh", **{"from": 99})
        append(http, name, 2)
        assert seqs(ws.records(1)) == [2]
        assert ws.ask("ack", topic=name, seq=2)["group"] == "g"
        assert [frame for frame in ws.seen if frame["op"] == "error"] == []

    def test_another_group_of_the_same_topic_replaces_the_first(self, http, server, ws, name):
        append(http, name, 1)
        ws.ask("subscribe", topic=name, group="g", consumer="a")
        ws.ask("subscribe", topic=name, group="h", consumer="a")
        assert ws.ask("ack", topic=name, seq=1)["group"] == "h"
        with Socket(server.port, "full") as other:  # whoever takes the first one over ends nothing here
            other.ask("subscribe", topic=name, group="g", consumer="b")
            assert ws.ask("ack", topic=name, seq=1)["group"] == "h"
        assert [frame for frame in ws.seen if frame["op"] == "error"] == []

    def test_again_on_the_same_socket(self, http, ws, name):
        append(http, name, 1, 2)
        for _ in range(3):
            ws.ask("subscribe", topic=name, group="g", consumer="a", credits=1)
            assert seqs(ws.records(1)) == [1]
        assert [frame for frame in ws.seen if frame["op"] == "error"] == []
        assert ws.ask("unsubscribe", topic=name)["op"] == "unsubscribed"
        ws.refused("invalid_request", "ack", topic=name, seq=1)

    def test_what_retention_took_is_a_tombstone(self, http, ws, name):
        http.put(f"/v0/topics/{name}", json={"cap_records": 2})
        append(http, name, 1)
        http.put(f"/v0/topics/{name}/groups/g", json={})
        append(http, name, 2, 3, 4)
        ws.ask("subscribe", topic=name, group="g", credits=2)
        gap = ws.next("tombstone")
        assert (gap["gap_from"], gap["gap_to"]) == (1, 2)
        assert seqs(ws.records(2)) == [3, 4]

    def test_refusals(self, http, ws, name):
        append(http, name, 1)
        for more, field in (
            ({"from_seq": 1}, "group"),
            ({"tail": True}, "group"),
            ({"from_ts": 1}, "group"),
            ({"consumer": ""}, "consumer"),
            ({"group": "a b"}, "group"),
            ({"from": "middle"}, "from"),
        ):
            refused = ws.refused("invalid_request", "subscribe", **{"topic": name, "group": "g", **more})
            assert refused["detail"]["field"] == field
        several = ws.refused("invalid_request", "subscribe", topics={name: {}}, group="g")
        assert several["detail"]["field"] == "topic"
        for field, value in (("consumer", "a"), ("take_over", True), ("from", "latest"), ("from", "earliest")):
            refused = ws.refused("invalid_request", "subscribe", topic=name, **{field: value})
            assert refused["detail"]["field"] == field
        ws.refused("topic_not_found", "subscribe", topic=f"{name}.absent", group="g")
        ws.refused("invalid_request", "ack", topic=name, seq=1)
        ws.ask("subscribe", topic=name, group="g")
        assert ws.refused("invalid_request", "ack", topic=name, seq=9)["detail"]["field"] == "seq"
        assert ws.refused("invalid_request", "ack", topic=name)["detail"]["field"] == "seq"

    def test_scopes_and_prefixes(self, http, server, name):
        append(http, name, 1)
        with Socket(server.port, "reader") as ws:
            ws.ask("subscribe", topic=name, group="g", credits=1)
            assert seqs(ws.records(1)) == [1]
            assert ws.ask("credit", topic=name, n=1)["op"] == "credited"
            ws.refused("forbidden", "ack", topic=name, seq=1)
        with Socket(server.port, "one") as ws:
            for op, fields in (("subscribe", {"group": "g"}), ("credit", {"n": 1}), ("ack", {"seq": 1})):
                ws.refused("forbidden", op, topic=name, **fields)


class TestOrder:
    """Of commands about one topic that are sent without waiting for answers."""

    def answers(self, ws: Socket, *commands: dict[str, Any]) -> list[dict[str, Any]]:
        for number, command in enumerate(commands):
            ws.send(request_id=number, **command)
        found: list[dict[str, Any]] = []
        while len(found) < len(commands):
            frame = ws.receive()
            (found if "request_id" in frame else ws.seen).append(frame)
        return found

    def ops(self, ws: Socket, *commands: dict[str, Any]) -> list[tuple[int, str]]:
        return [(frame["request_id"], frame["op"]) for frame in self.answers(ws, *commands)]

    def test_an_unsubscribe_ends_the_subscribe_before_it(self, http, server, ws, name):
        append(http, name, 1)
        for _ in range(5):
            commands = ({"op": "subscribe", "topic": name, "group": "g"}, {"op": "unsubscribe", "topic": name})
            assert self.ops(ws, *commands) == [(0, "subscribed"), (1, "unsubscribed")]
            ws.refused("invalid_request", "ack", topic=name, seq=1)

    def test_of_two_subscribes_the_later_one_stays(self, http, ws, name):
        append(http, name, 1)
        for _ in range(5):
            pair = [{"op": "subscribe", "topic": name, "group": group, "credits": 1} for group in ("first", "second")]
            assert self.ops(ws, *pair) == [(0, "subscribed"), (1, "subscribed")]
            assert ws.ask("ack", topic=name, seq=1)["group"] == "second"

    def test_credits_and_acks_find_the_subscribe_before_them(self, http, ws, name):
        append(http, name, 1, 2, 3)
        first, *rest = self.answers(
            ws,
            {"op": "subscribe", "topic": name, "group": "g", "credits": 0},
            {"op": "credit", "topic": name, "n": 2},
            {"op": "ack", "topic": name, "seq": 1},
        )
        assert (first["op"], first["request_id"]) == ("subscribed", 0)
        assert {frame["op"] for frame in rest} == {"credited", "acked"}
        assert seqs(ws.records(2)) == [1, 2]
        assert state(http, name)["cursor_seq"] == 1

    def test_what_is_published_after_a_subscribe_comes(self, http, ws, name):
        append(http, name, "before")
        subscribe = {"op": "subscribe", "topics": {name: {"tail": True}}}
        publish = {"op": "publish", "topic": name, "records": [{"data": "after"}]}
        assert self.ops(ws, subscribe, publish) == [(0, "subscribed"), (1, "ack")]
        assert [record["data"] for record in ws.records(1)] == ["after"]

    def test_many_acks_come_to_the_highest(self, http, ws, name):
        append(http, name, *range(40))
        ws.ask("subscribe", topic=name, group="g", credits=0)
        found = self.answers(ws, *({"op": "ack", "topic": name, "seq": seq} for seq in range(1, 41)))
        assert {frame["op"] for frame in found} == {"acked"}
        assert state(http, name)["cursor_seq"] == 40

    def test_an_ack_counts_although_the_subscription_ends_after_it(self, http, ws, name):
        append(http, name, 1, 2)
        ws.ask("subscribe", topic=name, group="g", consumer="a")
        for seq in (1, 2):
            found = self.answers(
                ws,
                {"op": "ack", "topic": name, "seq": seq},
                {"op": "subscribe", "topic": name, "group": "g", "consumer": f"after-{seq}"},
            )
            assert [frame["op"] for frame in found] == ["acked", "subscribed"]
            assert found[1]["topics"][name]["from_seq"] == seq


class TestLosses:
    def test_a_stream_outlives_its_shard(self, tmp_path):
        """It goes on where it was, and a consumer that came meanwhile has the group."""
        with Server(tmp_path, shards=1, gateways=1) as server:
            server.start().wait_ready()
            with Client(server.url) as topics, Socket(server.port) as ws:  # it tries again while the shard is away
                topics.put_topic("t", durable=True)
                topics.append("t", [{"data": 1}, {"data": 2}])
                ws.ask("subscribe", topic="t", group="g", consumer="a", credits=10)
                assert seqs(ws.records(2)) == [1, 2]
                assert ws.ask("ack", topic="t", seq=1)["cursor_seq"] == 1
                server.wait_back("shard", 0, server.kill("shard", 0))
                topics.append("t", [{"data": 3}])
                assert seqs(ws.records(1)) == [3]
                assert ws.ask("ack", topic="t", seq=3)["cursor_seq"] == 3
                assert topics.group_fetch("t", "g", consumer="b")["cursor_seq"] == 3
                assert ws.next("error")["code"] == "taken_over"
