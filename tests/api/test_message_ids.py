"""`message_ids`: every record of the topic has a UUIDv7 as `$id`, in the order of seqs, whoever reads it."""

import uuid

import pytest

from tests.api.events import open_stream, watching
from tests.api.instance import envelope
from tests.api.sockets import Socket


def append(http, topic, *values, **fields):
    answer = http.post(f"/v0/topics/{topic}", json={"records": [{"data": value} for value in values], **fields})
    assert answer.status_code in (200, 201), answer.text
    return answer.json()


def read(http, name, **body):
    return http.post(f"/v0/topics/{name}/diff", json=body).json()["records"]


def ids_of(records):
    found = [record["$id"] for record in records]
    assert all(uuid.UUID(one).version == 7 for one in found)
    assert found == sorted(set(found))
    return found


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_each_record_has_one(http, name, durability):
    answer = http.put(f"/v0/topics/{name}", json={"message_ids": True, "durability": durability}).json()
    assert answer["config"]["message_ids"] is True
    append(http, name, 1)
    append(http, name, *range(300))
    append(http, name, 2, node="n1")
    records = read(http, name, limit=1000)
    assert len(ids_of(records)) == 302
    for record in records:
        assert uuid.UUID(record["$id"]).int >> 80 == record["$ts"]
    assert list(records[-1]) == ["$seq", "$ts", "$node", "$id", "data"]


def test_without_it_nobody_sees_one(http, name):
    append(http, name, 1)
    assert list(read(http, name)[0]) == ["$seq", "$ts", "data"]
    assert http.get(f"/v0/topics/{name}").json()["config"]["message_ids"] is False


def test_the_write_that_makes_the_topic(http, name):
    append(http, name, 1, config={"message_ids": True})
    append(http, name + ".large", *["x" * 900] * 1000, config={"message_ids": True})
    assert len(ids_of(read(http, name))) == 1
    assert len(ids_of(read(http, name + ".large", limit=1000))) == 1000
    append(http, name + ".large", *["x" * 900] * 200)
    assert len(ids_of(read(http, name + ".large", from_seq=900))) == 256


def test_turned_on_later_it_is_for_new_records(http, name):
    append(http, name, 1, 2)
    http.put(f"/v0/topics/{name}", json={"message_ids": True})
    append(http, name, 3, 4)
    http.put(f"/v0/topics/{name}", json={"ttl_ms": 3_600_000})
    append(http, name, 5)
    http.put(f"/v0/topics/{name}", json={"message_ids": False})
    append(http, name, 6)
    http.put(f"/v0/topics/{name}", json={"message_ids": True})
    append(http, name, 7)
    records = read(http, name)
    assert [record["data"] for record in records if "$id" in record] == [3, 4, 5, 7]
    ids_of([record for record in records if "$id" in record])


def test_topics_do_not_share_ids(http, name):
    for n in range(4):
        append(http, f"{name}.{n}", *range(50), config={"message_ids": True})
    found = [one for n in range(4) for one in ids_of(read(http, f"{name}.{n}"))]
    assert len(set(found)) == 200


def test_streams_sockets_and_claims_show_the_same(http, instance, name):
    append(http, name, 1, 2, config={"message_ids": True, "type": "queue"})
    wanted = ids_of(read(http, name))
    assert ids_of(read(http, name, include_data=False, include_tags=True)) == wanted
    with watching(http, {name: {"from_seq": 0}}) as stream:
        assert ids_of(stream.records(2)) == wanted
        append(http, name, 3)
        wanted = ids_of(read(http, name))
        assert ids_of(stream.records(1)) == wanted[2:]
    with Socket(instance.port) as ws:
        ws.ask("subscribe", topic=name, from_seq=0)
        assert ids_of(ws.records(3)) == wanted
    claimed = http.post(f"/v0/topics/{name}/claim", json={"node": "w", "max": 2}).json()["claimed"]
    assert ids_of(claimed) == wanted[:2]


def test_a_stream_opened_twice_shows_the_same(http, name):
    append(http, name, 1, config={"message_ids": True})
    wid = http.post("/v0/watch", json={"topics": {name: {"from_seq": 0}}}).json()["wid"]
    stream = open_stream(http, wid)
    first = ids_of(stream.records(1))
    stream.close()
    assert first == ids_of(read(http, name))


@pytest.mark.parametrize("value", [1, "yes", None])
def test_it_is_true_or_false(http, name, value):
    answer = http.put(f"/v0/topics/{name}", json={"message_ids": value})
    assert envelope(answer, 400, "invalid_request")["detail"] == {"field": "message_ids"}


def test_clients_cannot_choose_one(http, name):
    http.post(f"/v0/topics/{name}", json={"records": [{"data": 1, "$id": "x"}], "config": {"message_ids": True}})
    assert uuid.UUID(read(http, name)[0]["$id"]).version == 7
