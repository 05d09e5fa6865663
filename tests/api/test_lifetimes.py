"""`ttl_ms` of a record, over HTTP: gone after that long, for every sort of reader."""

import time

import pytest

from tests.api.instance import envelope, wait_for
from tests.api.sockets import Socket


def append(http, name, *records, **fields):
    answer = http.post(f"/v0/topics/{name}", json={"records": list(records), **fields})
    assert answer.is_success, answer.text
    return answer.json()


def count(http, name):
    return http.get(f"/v0/topics/{name}").json()["count"]


def read(http, name, **asked):
    return http.post(f"/v0/topics/{name}/diff", json=asked).json()


def over(http, name, left):
    wait_for(lambda: count(http, name) == left, "the end of the lifetimes")


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_it_is_there_and_then_it_is_not(http, name, durability):
    lives = {"data": "code", "ttl_ms": 300, "tag": "t", "meta": {"m": "1"}}
    append(http, name, {"data": 1}, lives, {"data": 3}, config={"durability": durability})
    first = read(http, name)
    shown = [record["data"] for record in first["records"]]
    assert shown == [1, "code", 3] or time.time() * 1000 >= first["records"][0]["$ts"] + 300
    over(http, name, 2)
    page = read(http, name)
    assert [record["data"] for record in page["records"]] == [1, 3]
    assert (page["tombstone"], page["head_seq"], page["next_from_seq"]) == (None, 3, 3)
    assert read(http, name, from_seq=1)["tombstone"] is None
    assert http.post(f"/v0/topics/{name}/delete", json={"match": ["tag", "Eq", "t"]}).json()["deleted"] == 0


def test_the_metrics_count_it(http, name):
    def expired():
        return http.get("/v0/metrics", headers={"accept": "application/json"}).json()["topics_records_expired_total"]

    before = expired()
    append(http, name, {"data": 1, "ttl_ms": 1}, {"data": 2, "ttl_ms": 1})
    over(http, name, 0)
    assert expired() >= before + 2


def test_a_group_passes_over_it(http, name):
    append(http, name, {"data": 1}, {"data": 2, "ttl_ms": 1}, {"data": 3})
    over(http, name, 2)
    fetched = http.post(f"/v0/topics/{name}/groups/g/fetch", json={"from": "earliest"}).json()
    assert [record["data"] for record in fetched["records"]] == [1, 3]
    assert fetched["tombstone"] is None


def test_copies_of_a_router_stay(http, name):
    http.put(f"/v0/topics/{name}", json={})
    http.put(f"/v0/topics/{name}.copy", json={})
    router = {"source": name, "dest": f"{name}.copy"}
    assert http.put(f"/v0/routers/{name}", json=router).is_success
    append(http, name, {"data": 1, "ttl_ms": 5000})
    wait_for(lambda: count(http, f"{name}.copy") == 1, "the copy")
    over(http, name, 0)
    assert [record["data"] for record in read(http, f"{name}.copy")["records"]] == [1]


def test_over_a_websocket(instance, http, name):
    with Socket(instance.port) as ws:
        assert ws.ask("publish", topic=name, records=[{"data": 1, "ttl_ms": 1}, {"data": 2}])["op"] == "ack"
    over(http, name, 1)
    assert [record["data"] for record in read(http, name)["records"]] == [2]


def test_in_a_large_write(http, name):
    """One that is rendered in pieces: each lifetime lies where it belongs."""
    records = [{"data": f"{n} " + "x" * 300, **({"ttl_ms": 1} if n % 7 == 3 else {})} for n in range(4000)]
    append(http, name, *records)
    left = [n for n in range(4000) if n % 7 != 3]
    over(http, name, len(left))
    found: list[int] = []
    at = 0
    while len(found) < len(left):
        page = read(http, name, from_seq=at, limit=1000, max_batch_bytes=8 * 2**20)
        found += [int(record["data"].split()[0]) for record in page["records"]]
        at = page["next_from_seq"]
    assert found == left


@pytest.mark.parametrize("ttl", [0, -1, "5", 10**12, 0.5])
def test_bad_lifetimes_are_refused_and_nothing_is_written(http, name, ttl):
    answer = http.post(f"/v0/topics/{name}", json={"records": [{"data": 1}, {"data": 2, "ttl_ms": ttl}]})
    error = envelope(answer, 400, "invalid_request")
    assert (error["detail"]["index"], error["detail"]["field"]) == (1, "ttl_ms")
    assert http.get(f"/v0/topics/{name}").status_code == 404
