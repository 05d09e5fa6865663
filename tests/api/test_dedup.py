"""`dedup_key` of a record: duplicates are not appended, and the answer says which seq they map to."""

import threading

import pytest

from tests.api.instance import envelope
from tests.api.sockets import Socket


def send(http, name, *keys, **fields):
    """One record for each key, whose data is its place; None: a record without one."""
    records = [{"data": n} | ({} if key is None else {"dedup_key": key}) for n, key in enumerate(keys)]
    answer = http.post(f"/v0/topics/{name}", json={"records": records, **fields})
    assert answer.status_code in (200, 201), answer.text
    body = answer.json()
    body.pop("performance")
    return body


def data_of(http, name):
    return [record["data"] for record in http.post(f"/v0/topics/{name}/diff").json()["records"]]


def test_in_one_batch(http, name):
    assert send(http, name, "a", None, "a", "b", "a") == {
        "topic": name,
        "first_seq": 1,
        "last_seq": 3,
        "seqs": [1, 2, 3],
        "head_seq": 3,
        "count": 3,
        "created": True,
        "deduped": False,
        "duplicates": [{"index": 2, "seq": 1}, {"index": 4, "seq": 1}],
    }
    assert data_of(http, name) == [0, 1, 3]


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_against_what_is_there(http, name, durability):
    http.put(f"/v0/topics/{name}", json={"durability": durability})
    assert "duplicates" not in send(http, name, "a", "b")
    answer = send(http, name, "b", "c", "a")
    assert (answer["seqs"], answer["count"], answer["first_seq"], answer["last_seq"]) == ([3], 1, 3, 3)
    assert answer["duplicates"] == [{"index": 0, "seq": 2}, {"index": 2, "seq": 1}]
    assert data_of(http, name) == [0, 1, 1]


def test_when_all_are_duplicates(http, name):
    send(http, name, "a", "b")
    answer = send(http, name, "b")
    assert (answer["count"], answer["seqs"], answer["deduped"]) == (0, [], True)
    assert (answer["first_seq"], answer["last_seq"], answer["head_seq"]) == (3, 2, 2)
    assert answer["duplicates"] == [{"index": 0, "seq": 2}]
    short = http.post(f"/v0/topics/{name}?return_seqs=false", json={"records": [{"data": 1, "dedup_key": "a"}]}).json()
    assert "seqs" not in short
    assert short["duplicates"] == [{"index": 0, "seq": 1}]


def test_a_key_belongs_to_its_topic(http, name):
    send(http, name, "a")
    assert send(http, name + ".other", "a")["count"] == 1


def test_with_an_idempotency_key(http, name):
    send(http, name, "a")
    first = send(http, name, "a", "b", "b", None, idempotency_key="k")
    assert (first["seqs"], first["duplicates"]) == ([2, 3], [{"index": 0, "seq": 1}, {"index": 2, "seq": 2}])
    again = send(http, name, "a", "b", "b", None, idempotency_key="k")
    assert again == {**first, "deduped": True}
    none = send(http, name, "a", idempotency_key="k2")
    assert send(http, name, "a", idempotency_key="k2") == none
    assert data_of(http, name) == [0, 1, 3]


def test_over_a_socket(http, instance, name):
    with Socket(instance.port) as ws:
        records = [{"data": 1, "dedup_key": "a"}, {"data": 2, "dedup_key": "a"}]
        answer = ws.ask("publish", topic=name, records=records)
        assert (answer["op"], answer["seqs"], answer["duplicates"]) == ("ack", [1], [{"index": 1, "seq": 1}])


@pytest.mark.parametrize("key", ["", "x" * 257, 7])
def test_what_is_no_key(http, name, key):
    answer = http.post(f"/v0/topics/{name}", json={"records": [{"data": 1}, {"data": 2, "dedup_key": key}]})
    assert envelope(answer, 400, "invalid_request")["detail"] == {"index": 1, "field": "dedup_key"}
    envelope(http.get(f"/v0/topics/{name}"), 404, "topic_not_found")


def test_a_record_that_a_topic_cannot_keep_is_named_by_its_place_in_the_request(http, name):
    send(http, name, "a")
    records = [{"data": 1, "dedup_key": "a"}, {"data": 2, "dedup_key": "b", "priority": 3}]
    for body in (records, [records[0], {**records[1], "dedup_key": "a"}]):
        error = envelope(http.post(f"/v0/topics/{name}", json={"records": body}), 400, "invalid_request")
        assert (error["detail"]["index"], error["detail"]["field"]) == (1, "priority")
    assert send(http, name, "b")["count"] == 1


def test_null_is_no_key(http, name):
    body = {"records": [{"data": 1, "dedup_key": None}, {"data": 2, "dedup_key": None}]}
    assert http.post(f"/v0/topics/{name}", json=body).json()["count"] == 2


def test_a_large_write(http, name):
    """Rendered in a thread while its topic is held; before, and when others bring the same keys meanwhile."""
    http.put(f"/v0/topics/{name}", json={"durability": "fsync", "idempotency_window_ms": 600_000})
    records = [{"dedup_key": f"k{n % 900}", "data": "x" * 900} for n in range(1000)]
    answers = []
    threads = [
        threading.Thread(
            target=lambda: answers.append(http.post(f"/v0/topics/{name}", json={"records": records}).json())
        )
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answer["count"] for answer in answers) == [0, 0, 900]
    for answer in answers:
        seqs = {one["index"]: one["seq"] for one in answer["duplicates"]}
        assert len(seqs) + answer["count"] == 1000
        assert all(seqs[n] == n % 900 + 1 for n in seqs)
    assert http.get(f"/v0/topics/{name}").json()["count"] == 900


def test_a_large_write_makes_its_topic(http, name):
    records = [{"data": "x" * 900, "dedup_key": f"k{n // 2}"} for n in range(1000)]
    answer = http.post(f"/v0/topics/{name}", json={"records": records}).json()
    assert (answer["created"], answer["count"], len(answer["duplicates"])) == (True, 500, 500)
    assert answer["duplicates"][7] == {"index": 15, "seq": 8}


def test_copies_have_no_keys(http, name):
    """A router's copy neither is a duplicate nor makes one."""
    source, dest = name + ".from", name + ".to"
    http.put(f"/v0/routers/{name}", json={"source": source, "dest": dest})
    assert send(http, dest, "a")["count"] == 1
    send(http, source, "a", "b")
    assert http.get(f"/v0/topics/{dest}").json()["count"] == 3  # a read waits for the copies
    assert send(http, dest, "b")["count"] == 1
