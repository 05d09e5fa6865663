"""What Sluice does, done here: publish, subscribe with a group, cursors, take-over and credits, rule by rule of its
data model. Whoever leaves it finds each of its flows in this file."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.api.events import WAIT_S
from tests.api.sockets import Socket
from topics.testing.server import Server


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("sluice"), shards=2) as started:
        yield started.start().wait_ready()


@pytest.fixture
def http(server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=WAIT_S) as client:
        yield client


@pytest.fixture
def consumer(server) -> Iterator[Any]:
    """Opens connections of consumers."""
    opened: list[Socket] = []

    def connect() -> Socket:
        opened.append(Socket(server.port))
        return opened[-1]

    yield connect
    for socket in opened:
        socket.__exit__()


def publish(http: httpx.Client, topic: str, *payloads: Any, **attributes: str) -> list[int]:
    """Auto-creates its topic, and is answered after the sync."""
    body = {
        "records": [{"data": payload, "meta": attributes} for payload in payloads],
        "config": {"durability": "fsync"},
    }
    answer = http.post(f"/v0/topics/{topic}", json=body)
    assert answer.is_success, answer.text
    seqs: list[int] = answer.json()["seqs"]
    return seqs


def cursor(http: httpx.Client, topic: str, group: str = "workers") -> int:
    seq: int = http.get(f"/v0/topics/{topic}/groups/{group}").json()["cursor_seq"]
    return seq


def subscribe(ws: Socket, topic: str, initial: str = "earliest", credits: int = 100, **more: Any) -> dict[str, Any]:
    answer = ws.ask("subscribe", topic=topic, group="workers", credits=credits, **{"from": initial}, **more)
    assert answer["op"] == "subscribed", answer
    place: dict[str, Any] = answer["topics"][topic]
    return place


def payloads(ws: Socket, count: int) -> list[Any]:
    return [record["data"] for record in ws.records(count)]


def test_a_topic_is_made_by_the_first_publish_and_a_message_never_changes(http, name):
    assert publish(http, name, "a", "b", trace="t1") == [1, 2]
    page = http.post(f"/v0/topics/{name}/diff", json={}).json()
    first, second = page["records"]
    assert (first["data"], first["meta"], second["$seq"]) == ("a", {"trace": "t1"}, 2)
    assert first["$ts"] <= second["$ts"]
    assert http.get(f"/v0/topics/{name}").json()["config"]["durability"] == "fsync"


def test_subscribe_earliest_delivers_from_the_first_message_on(http, consumer, name):
    publish(http, name, "a", "b")
    ws = consumer()
    assert subscribe(ws, name)["from_seq"] == 0
    assert payloads(ws, 2) == ["a", "b"]
    publish(http, name, "c")
    assert payloads(ws, 1) == ["c"]
    assert cursor(http, name) == 0  # never acknowledged


def test_subscribe_latest_delivers_what_comes_from_now_on(http, consumer, name):
    publish(http, name, "a", "b")
    ws = consumer()
    assert subscribe(ws, name, "latest")["from_seq"] == 2
    publish(http, name, "c")
    assert payloads(ws, 1) == ["c"]


def test_an_ack_moves_the_cursor_and_only_forward(http, consumer, name):
    publish(http, name, *range(5))
    ws = consumer()
    subscribe(ws, name)
    ws.records(5)
    assert ws.ask("ack", topic=name, seq=3)["cursor_seq"] == 3
    assert ws.ask("ack", topic=name, seq=2)["cursor_seq"] == 3
    assert cursor(http, name) == 3


def test_a_consumer_that_disconnects_leaves_the_cursor_where_it_was(http, consumer, name):
    publish(http, name, *range(4))
    ws = consumer()
    subscribe(ws, name)
    ws.records(4)
    ws.ask("ack", topic=name, seq=2)
    ws.ws.close()
    again = consumer()
    assert subscribe(again, name)["from_seq"] == 2
    assert payloads(again, 2) == [2, 3]


def test_a_new_consumer_inherits_the_cursor_and_the_old_one_is_told(http, consumer, name):
    publish(http, name, *range(4))
    old, new = consumer(), consumer()
    subscribe(old, name, consumer="worker-1")
    old.records(4)
    old.ask("ack", topic=name, seq=1)
    assert subscribe(new, name, consumer="worker-2")["from_seq"] == 1
    assert old.next("error")["code"] == "taken_over"
    assert payloads(new, 3) == [1, 2, 3]


def test_groups_of_a_topic_do_not_know_of_each_other(http, consumer, name):
    publish(http, name, "a")
    ws, other = consumer(), consumer()
    subscribe(ws, name)
    other.ask("subscribe", topic=name, group="audit", credits=1)
    assert payloads(ws, 1) == payloads(other, 1) == ["a"]
    ws.ask("ack", topic=name, seq=1)
    assert (cursor(http, name), cursor(http, name, "audit")) == (1, 0)


def test_the_balance_of_credits(http, consumer, name):
    """0, then granted, then spent one by one, then granted on top of what is left."""
    publish(http, name, *range(10))
    ws = consumer()
    subscribe(ws, name, credits=0)
    assert ws.ask("credit", topic=name, n=4)["op"] == "credited"
    assert payloads(ws, 4) == [0, 1, 2, 3]
    assert ws.ask("credit", topic=name, n=1)["credits"] in (0, 1)  # it may have been spent by now
    assert payloads(ws, 1) == [4]
    ws.ask("credit", topic=name, n=100)
    assert payloads(ws, 5) == [5, 6, 7, 8, 9]
    assert ws.ask("credit", topic=name, n=5)["credits"] == 100


@pytest.mark.parametrize("bad", ["", "x" * 256])
def test_names_are_not_empty_and_have_255_characters_at_most(http, consumer, name, bad):
    publish(http, name, "a")
    ws = consumer()
    ws.refused("invalid_request", "subscribe", topic=name, group=bad)
    ws.refused("invalid_request", "subscribe", topic=bad, group="g")
    assert ws.ask("subscribe", topic=name, group="x" * 255)["op"] == "subscribed"


def test_cursors_are_not_negative(http, consumer, name):
    publish(http, name, "a")
    ws = consumer()
    subscribe(ws, name)
    assert ws.refused("invalid_request", "ack", topic=name, seq=-1)["detail"]["field"] == "seq"


def test_a_payload_of_four_mebibytes_needs_the_limit_that_says_so(tmp_path):
    """Sluice's largest message. A record has 1 MiB here, quotes and attributes included, unless somebody says more."""
    with Server(tmp_path, shards=1, max_record_bytes=4 * 2**20 + 4) as server:
        server.start().wait_ready()
        with httpx.Client(base_url=server.url, timeout=WAIT_S) as http:
            assert publish(http, "large", "x" * (4 * 2**20)) == [1]
            page = http.post("/v0/topics/large/groups/g/fetch", json={"max_batch_bytes": 8 * 2**20}).json()
            assert len(page["records"][0]["data"]) == 4 * 2**20


def test_the_most_recent_seq_and_the_lag_are_one_request_away(http, name):
    publish(http, name, *range(7))
    http.post(f"/v0/topics/{name}/groups/workers/fetch", json={})
    http.post(f"/v0/topics/{name}/groups/workers/ack", json={"seq": 5})
    state = http.get(f"/v0/topics/{name}").json()
    assert (state["head_seq"], state["groups"]["workers"]["lag"]) == (7, 2)


def test_subscriptions_outlive_a_restart(tmp_path):
    with Server(tmp_path, shards=1) as server:
        server.start().wait_ready()
        with httpx.Client(base_url=server.url, timeout=WAIT_S) as http, Socket(server.port) as ws:
            publish(http, "t", *range(5))
            subscribe(ws, "t", consumer="worker-1")
            ws.records(5)
            ws.ask("ack", topic="t", seq=3)
            server.kill_all()
        server.start().wait_ready()
        with Socket(server.port) as ws:
            assert subscribe(ws, "t", consumer="worker-1")["from_seq"] == 3
            assert payloads(ws, 2) == [3, 4]
