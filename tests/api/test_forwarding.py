"""What routers forward, over HTTP (API §6, semantics §8)."""

import time

import httpx
import pytest

from tests.api.test_routers import drop, error_of, get, put, server
from topics.testing.server import wait_until


def write(http, topic, *data, **fields):
    answer = http.post(f"/v0/topics/{topic}", json={"records": [{"data": item} for item in data], **fields})
    assert answer.status_code in (200, 201), answer.text
    return answer.json()["seqs"]


def write_records(http, topic, *records):
    answer = http.post(f"/v0/topics/{topic}", json={"records": list(records)})
    assert answer.status_code in (200, 201), answer.text


def diff(http, topic, **query):
    answer = http.post(f"/v0/topics/{topic}/diff", json={"limit": 1000, "include_tags": True, **query})
    assert answer.status_code == 200, answer.text
    return answer.json()


def read(http, topic):
    """All records; fails on a tombstone."""
    records, from_seq = [], 0
    while True:
        page = diff(http, topic, from_seq=from_seq)
        assert page["tombstone"] is None, page["tombstone"]
        records += page["records"]
        from_seq = page["next_from_seq"]
        if page["caught_up"]:
            return records


def data(http, topic):
    return [record["data"] for record in read(http, topic)]


def wait_data(http, topic, wanted):
    """What is wanted comes, and nothing else before."""

    def holds():
        found = data(http, topic)
        assert found == wanted[: len(found)], (topic, found[:50], wanted[:50])
        return len(found) == len(wanted)

    wait_until(holds, f"{topic} to hold {wanted[:50]}")


def frames(http):
    return http.get("/v0/metrics", headers={"accept": "application/json"}).json()["topics_wal_frames_total"]


# --- the basics -----------------------------------------------------------------------------------------------------


def test_what_is_written_can_be_read_at_the_destination_at_once(http, name):
    """On either shard, without sleeping."""
    found = 0
    for n in range(8):
        put(http, f"{name}{n}", f"{name}.s{n}", f"{name}.d{n}")
        for round in range(5):
            write(http, f"{name}.s{n}", round)
            found += http.get(f"/v0/topics/{name}.d{n}").json()["head_seq"] == round + 1
            found += data(http, f"{name}.d{n}") == list(range(round + 1))
            wait_data(http, f"{name}.d{n}", list(range(round + 1)))
    assert found > 70  # of 80: a busy machine may take longer than a read waits


def test_a_copy_carries_everything_through(http, name):
    put(http, name, f"{name}.s", f"{name}.d")
    write(http, f"{name}.d", "direct")
    body = '{"records":[{"data":{"a" : 1.50},"tag":"t:1","node":"n1","meta":{"k": "v"}},{"data":null}]}'
    http.post(f"/v0/topics/{name}.s", content=body, headers={"content-type": "application/json"})
    direct, full, bare = read(http, f"{name}.d")
    assert direct["data"] == "direct"
    assert full == {"$seq": 2, "$ts": full["$ts"], "$node": "n1", "$tag": "t:1", "data": {"a": 1.5}, "meta": {"k": "v"}}
    assert bare == {"$seq": 3, "$ts": bare["$ts"], "data": None}
    raw = http.post(f"/v0/topics/{name}.d/diff", json={}).text
    assert '"data":{"a" : 1.50},"meta":{"k": "v"}' in raw


def test_preserve_node_and_tag(http, name):
    put(http, name, f"{name}.s", f"{name}.d", preserve_node=False, preserve_tag=False)
    write_records(http, f"{name}.s", {"data": 1, "tag": "t", "node": "n"})
    (copy,) = read(http, f"{name}.d")
    assert "$node" not in copy
    assert "$tag" not in copy
    assert [record["data"] for record in diff(http, f"{name}.d", node="n")["records"]] == [1]


def test_nodes_are_filtered_at_the_destination(http, name):
    put(http, name, f"{name}.s", f"{name}.d")
    write_records(http, f"{name}.s", {"data": 1, "node": "a"}, {"data": 2, "node": "b"})
    wait_data(http, f"{name}.d", [1, 2])
    assert [record["data"] for record in diff(http, f"{name}.d", node="a")["records"]] == [2]


def test_filters(http, name):
    put(http, f"{name}1", f"{name}.s", f"{name}.glob", filter=["tag", "Glob", "public:*"])
    put(http, f"{name}2", f"{name}.s", f"{name}.eq", filter=["tag", "Eq", "public:x"])
    write_records(
        http,
        f"{name}.s",
        {"data": 1, "tag": "public:x"},
        {"data": 2, "tag": "private:x"},
        {"data": 3},
        {"data": 4, "tag": "public:y"},
        {"data": 5, "tag": "public"},
    )
    wait_data(http, f"{name}.glob", [1, 4])
    wait_data(http, f"{name}.eq", [1])
    assert get(http, f"{name}1").json()["forwarded_total"] == 2
    assert get(http, f"{name}2").json()["forwarded_total"] == 1


def test_a_new_router_starts_at_the_head(http, name):
    write(http, f"{name}.s", "before")
    put(http, name, f"{name}.s", f"{name}.d")
    write(http, f"{name}.s", "after")
    wait_data(http, f"{name}.d", ["after"])


def test_two_routers_of_one_pair(http, name):
    put(http, f"{name}1", f"{name}.s", f"{name}.d", filter="a")
    write_records(http, f"{name}.s", {"data": 1, "tag": "a"}, {"data": 2, "tag": "b"})
    put(http, f"{name}2", f"{name}.s", f"{name}.d", filter="b")
    write_records(http, f"{name}.s", {"data": 3, "tag": "b"}, {"data": 4, "tag": "a"})
    wait_data(http, f"{name}.d", [1, 3, 4])
    drop(http, f"{name}1")
    write_records(http, f"{name}.s", {"data": 5, "tag": "b"}, {"data": 6, "tag": "a"})
    wait_data(http, f"{name}.d", [1, 3, 4, 5])
    assert get(http, f"{name}2").json()["forwarded_total"] == 2


def test_delete_stops_forwarding_and_keeps_copies(http, name):
    put(http, name, f"{name}.s", f"{name}.d")
    write(http, f"{name}.s", 1)
    wait_data(http, f"{name}.d", [1])
    assert drop(http, name).json()["deleted"] is True
    write(http, f"{name}.s", 2)
    put(http, name, f"{name}.s", f"{name}.d")
    write(http, f"{name}.s", 3)
    wait_data(http, f"{name}.d", [1, 3])
    assert get(http, name).json()["forwarded_total"] == 1


def test_changes_apply_from_then_on(http, name):
    put(http, name, f"{name}.s", f"{name}.d")
    write_records(http, f"{name}.s", {"data": 1, "tag": "x"})
    put(http, name, f"{name}.s", f"{name}.d", filter="y")
    write_records(http, f"{name}.s", {"data": 2, "tag": "x"}, {"data": 3, "tag": "y"})
    wait_data(http, f"{name}.d", [1, 3])
    put(http, name, f"{name}.s2", f"{name}.d")
    write(http, f"{name}.s", 4)
    write(http, f"{name}.s2", 5)
    wait_data(http, f"{name}.d", [1, 3, 5])
    put(http, name, f"{name}.s2", f"{name}.d2")
    write(http, f"{name}.s2", 6)
    wait_data(http, f"{name}.d", [1, 3, 5])
    wait_data(http, f"{name}.d2", [6])


def test_deletes_do_not_propagate(http, name):
    put(http, name, f"{name}.s", f"{name}.d")
    write_records(http, f"{name}.s", {"data": 1, "tag": "x"}, {"data": 2, "tag": "y"})
    wait_data(http, f"{name}.d", [1, 2])
    http.post(f"/v0/topics/{name}.s/delete", json={"match": "x"})
    wait_data(http, f"{name}.d", [1, 2])
    assert http.post(f"/v0/topics/{name}.d/delete", json={"match": "x"}).json()["deleted"] == 1
    wait_data(http, f"{name}.d", [2])
    write(http, f"{name}.s", 3)
    wait_data(http, f"{name}.d", [2, 3])


def test_removing_the_source_keeps_the_copies(http, name):
    put(http, name, f"{name}.s", f"{name}.d")
    write(http, f"{name}.s", 1, 2)
    wait_data(http, f"{name}.d", [1, 2])
    assert http.delete(f"/v0/topics/{name}.s").json()["routers_removed"] == [name]
    wait_data(http, f"{name}.d", [1, 2])
    write(http, f"{name}.s", 3)
    wait_data(http, f"{name}.d", [1, 2])


# --- shapes ---------------------------------------------------------------------------------------------------------


def test_a_chain(http, name):
    """Longer than the hop cap, which is for cycles."""
    for n in range(12):
        put(http, f"{name}{n}", f"{name}.{n}", f"{name}.{n + 1}")
    write(http, f"{name}.0", "x")
    wait_data(http, f"{name}.12", ["x"])


def test_a_chain_can_be_read_at_once(http, name):
    put(http, f"{name}1", f"{name}.a", f"{name}.b")
    put(http, f"{name}2", f"{name}.b", f"{name}.c")
    found = 0
    for round in range(20):
        write(http, f"{name}.a", round)
        found += data(http, f"{name}.c") == list(range(round + 1))
        wait_data(http, f"{name}.c", list(range(round + 1)))
    assert found > 15


def test_a_cycle_ends(http, name):
    put(http, f"{name}1", f"{name}.a", f"{name}.b")
    assert put(http, f"{name}2", f"{name}.b", f"{name}.a", allow_cycle=True).status_code == 201
    write_records(http, f"{name}.a", {"data": "x", "node": "n"})
    # a: 0 hops, b: 1, a: 2, … until b holds it with more than the cap allows
    wait_data(http, f"{name}.b", ["x"] * 5)
    wait_data(http, f"{name}.a", ["x"] * 5)
    assert diff(http, f"{name}.a", node="n")["records"] == []
    write(http, f"{name}.b", "y")
    wait_data(http, f"{name}.b", ["x"] * 5 + ["y"] * 5)


def test_fan_out(http, name):
    for n in range(30):
        put(http, f"{name}->{n}", f"{name}.s", f"{name}.d{n}")
    for round in range(10):
        write(http, f"{name}.s", *range(round * 10, round * 10 + 10))
    for n in range(30):
        wait_data(http, f"{name}.d{n}", list(range(100)))


def test_copies_are_not_logged(tmp_path):
    with server(tmp_path) as (_, client):
        for n in range(20):
            put(client, f"r{n}", "s", f"d{n}")
        write(client, "s", 0)
        for n in range(20):
            wait_data(client, f"d{n}", [0])
        before = frames(client)
        for n in range(1, 201):
            write(client, "s", n)
        for n in range(20):
            wait_data(client, f"d{n}", list(range(201)))
        grown = frames(client) - before
        assert 200 <= grown <= 300, grown  # one each, and a few marks of all topics together


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_every_class_of_destination(http, name, durability):
    http.put(f"/v0/topics/{name}.d", json={"durability": durability})
    put(http, name, f"{name}.s", f"{name}.d")
    for n in range(20):
        write(http, f"{name}.s", n)
    wait_data(http, f"{name}.d", list(range(20)))


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_every_class_of_source(http, name, durability):
    http.put(f"/v0/topics/{name}.s", json={"durability": durability})
    put(http, name, f"{name}.s", f"{name}.d")
    for n in range(20):
        write(http, f"{name}.s", n)
    wait_data(http, f"{name}.d", list(range(20)))


def test_queues_on_both_ends(http, name):
    http.put(f"/v0/topics/{name}.s", json={"type": "queue"})
    http.put(f"/v0/topics/{name}.d", json={"type": "queue"})
    put(http, name, f"{name}.s", f"{name}.d")
    write(http, f"{name}.s", "job")
    wait_data(http, f"{name}.d", ["job"])
    for topic in (f"{name}.s", f"{name}.d"):
        claimed = http.post(f"/v0/topics/{topic}/claim", json={"node": "w"}).json()["claimed"]
        assert [job["data"] for job in claimed] == ["job"]
        acked = http.post(f"/v0/topics/{topic}/ack", json={"node": "w", "seqs": [claimed[0]["$seq"]]}).json()
        assert acked["acked"] == 1
    write(http, f"{name}.s", "next")
    wait_data(http, f"{name}.d", ["next"])


# --- room -----------------------------------------------------------------------------------------------------------


def test_a_full_destination_stops_only_its_router(http, name):
    http.put(f"/v0/topics/{name}.full", json={"cap_records": 3, "discard": "reject"})
    put(http, f"{name}1", f"{name}.s", f"{name}.full")
    put(http, f"{name}2", f"{name}.s", f"{name}.free")
    write(http, f"{name}.s", *range(10))
    wait_data(http, f"{name}.full", [0, 1, 2])
    wait_data(http, f"{name}.free", list(range(10)))
    assert get(http, f"{name}1").json()["forwarded_total"] == 3
    http.post(f"/v0/topics/{name}.full/delete", json={"before_seq": 3})
    wait_data(http, f"{name}.full", [2, 3, 4])
    assert get(http, f"{name}1").json()["forwarded_total"] == 5
    write(http, f"{name}.s", 10)
    wait_data(http, f"{name}.free", list(range(11)))


def test_a_router_says_what_holds_it(http, name):
    http.put(f"/v0/topics/{name}.small", json={"cap_bytes": 500, "discard": "reject"})
    put(http, name, f"{name}.s", f"{name}.small")
    assert "blocked" not in get(http, name).json()
    write(http, f"{name}.s", 1, "x" * 1000, 2)
    blocked = wait_until(lambda: get(http, name).json().get("blocked"), "the router to be held")
    assert (blocked["code"], blocked["after_seq"]) == ("record_too_large", 1)
    assert "cap_bytes" in blocked["message"]
    assert 0 < blocked["since_ms"] <= time.time() * 1000
    assert data(http, f"{name}.small") == [1]
    assert http.post(f"/v0/topics/{name}.s/delete", json={"before_seq": 3}).status_code == 200
    wait_data(http, f"{name}.small", [1, 2])
    wait_until(lambda: "blocked" not in get(http, name).json(), "the router to get on")


def test_copies_of_one_record_that_do_not_fit_together_hold_their_routers(http, name):
    http.put(f"/v0/topics/{name}.d", json={"cap_records": 3, "discard": "reject"})
    for n in (1, 2):
        put(http, f"{name}{n}", f"{name}.s", f"{name}.d")
    write(http, f"{name}.s", 1, 2)
    blocked = wait_until(lambda: get(http, f"{name}1").json().get("blocked"), "the routers to be held")
    assert (blocked["code"], blocked["after_seq"]) == ("topic_full", 1)
    assert data(http, f"{name}.d") == [1, 1]


def test_an_evicting_destination(http, name):
    http.put(f"/v0/topics/{name}.d", json={"cap_records": 3})
    put(http, name, f"{name}.s", f"{name}.d")
    write(http, f"{name}.s", *range(10))
    wait_until(lambda: http.get(f"/v0/topics/{name}.d").json()["head_seq"] == 10)
    page = diff(http, f"{name}.d")
    assert [record["data"] for record in page["records"]] == [7, 8, 9]
    assert page["tombstone"]["reason"] == "cap"


def test_what_the_source_lost_is_told(http, name):
    http.put(f"/v0/topics/{name}.s", json={"cap_records": 2})
    http.put(f"/v0/topics/{name}.d", json={"cap_records": 1, "discard": "reject"})
    put(http, name, f"{name}.s", f"{name}.d")
    write(http, f"{name}.s", 0)
    wait_data(http, f"{name}.d", [0])
    for n in range(1, 8):
        write(http, f"{name}.s", n)
    http.put(f"/v0/topics/{name}.d", json={"cap_records": 0})
    wait_until(lambda: http.get(f"/v0/topics/{name}.d").json()["count"] == 3)
    page = diff(http, f"{name}.d")
    assert [record["data"] for record in page["records"]] == [0]
    assert page["tombstone"] is None
    page = diff(http, f"{name}.d", from_seq=1)
    assert page["tombstone"]["reason"] == "source_trim"
    assert page["tombstone"]["gap_from"] == 2
    assert page["tombstone"]["gap_to"] == 6
    assert page["tombstone"]["missed_estimate"] == 5
    assert [record["data"] for record in page["records"]] == [6, 7]


# --- exactly once ---------------------------------------------------------------------------------------------------


def test_exactly_once_stamps_a_stable_key(http, name):
    put(http, f"{name}->x", f"{name}.s", f"{name}.d", guarantee="exactly_once")
    put(http, f"{name}->y", f"{name}.d", f"{name}.e", guarantee="exactly_once")
    put(http, f"{name}->z", f"{name}.d", f"{name}.f")
    write_records(http, f"{name}.s", {"data": 1}, {"data": 2, "meta": {"a": "b"}}, {"data": 3, "meta": {}})
    copies = read(http, f"{name}.d")
    keys = [copy["meta"]["_topics_router"] for copy in copies]
    assert len(set(keys)) == 3
    assert all(key.startswith(f"{name}->x:") for key in keys)
    assert [copy["meta"].get("a") for copy in copies] == [None, "b", None]
    wait_data(http, f"{name}.e", [1, 2, 3])
    wait_data(http, f"{name}.f", [1, 2, 3])
    assert all(copy["meta"]["_topics_router"].startswith(f"{name}->y:") for copy in read(http, f"{name}.e"))
    assert read(http, f"{name}.e")[1]["meta"]["a"] == "b"
    assert [copy["meta"]["_topics_router"] for copy in read(http, f"{name}.f")] == keys
    refused = http.post(f"/v0/topics/{name}.s", json={"records": [{"data": 1, "meta": {"_topics_router": "x"}}]})
    error_of(refused, 400, "invalid_request")


# --- restarts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["stop", "kill"])
def test_restarts(tmp_path, way):
    with server(tmp_path) as (one, client):
        pairs = [(f"s{n}", f"d{n}") for n in range(6)]
        for source, dest in pairs:
            put(client, f"{source}->{dest}", source, dest, guarantee="exactly_once")
            write(client, source, *range(50))
            wait_data(client, dest, list(range(50)))
            write(client, dest, "direct")
            write(client, source, *range(50, 60))
        before = {}
        for _, dest in pairs:
            wait_data(client, dest, [*range(50), "direct", *range(50, 60)])
            before[dest] = [(record["$seq"], record["data"], record.get("meta")) for record in read(client, dest)]
        if way == "stop":
            assert one.stop() == 0
        else:
            one.kill_all()
        one.start().wait_ready()
        with httpx.Client(base_url=one.url, timeout=30) as again:
            for source, dest in pairs:
                after = [(record["$seq"], record["data"], record.get("meta")) for record in read(again, dest)]
                assert after == before[dest]
                write(again, source, "more")
                wait_data(again, dest, [*(copy[1] for copy in before[dest]), "more"])
                assert get(again, f"{source}->{dest}").json()["forwarded_total"] == 61
