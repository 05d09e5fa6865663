"""What Sluice's users do with it, done here with the calls of a program (docs/compared.md): publish, subscribe in
groups, ack, take over. tests/api/test_sluice.py has its streams and credits, on the WebSocket.
"""

import uuid

import pytest

import topics
from tests.flows.conftest import code_of
from topics.client import Client
from topics.testing.server import Server


def data(page: dict) -> list:
    return [record["data"] for record in page["records"]]


def test_a_topic_is_made_by_the_first_publish(api, name):
    answer = api.append(name, [{"data": "first", "meta": {"trace": "abc"}}], config={"durable": True})
    assert (answer["created"], answer["last_seq"]) == (True, 1)
    (record,) = api.read(name)
    assert (record["data"], record["meta"]) == ("first", {"trace": "abc"})
    assert record["$ts"] > 0
    assert not api.append(name, [{"data": "second"}])["created"]


def test_messages_have_ids_of_the_server_in_the_order_of_their_seqs(api, name):
    api.put_topic(name, message_ids=True)
    for value in range(3):
        api.append(name, [{"data": value}, {"data": value}])
    ids = [uuid.UUID(record["$id"]) for record in api.read(name)]
    assert ids == sorted(set(ids))
    assert {found.version for found in ids} == {7}
    assert [str(found) for found in ids] == [record["$id"] for record in api.group_fetch(name, "g")["records"]]


@pytest.mark.parametrize("wrong", ["", "-begins", "a b", "x" * 256])
def test_names_are_checked(api, wrong):
    refusal = "invalid_request" if wrong else "not_found"  # a path without a name is no route
    assert code_of(lambda: api.append(wrong, [{"data": 1}])) == refusal
    assert code_of(lambda: api.put_group("orders", wrong)) == refusal


def test_subscribe_from_the_earliest_and_from_the_latest(api, name):
    api.append(name, [{"data": value} for value in range(3)])
    assert data(api.group_fetch(name, "all", start="earliest")) == [0, 1, 2]
    assert data(api.group_fetch(name, "new", start="latest")) == []
    api.append(name, [{"data": 3}])
    assert data(api.group_fetch(name, "new")) == [3]
    assert sorted(group["group"] for group in api.groups(name)) == ["all", "new"]


def test_the_cursor_moves_with_acks_alone_and_forward_only(api, name):
    api.append(name, [{"data": value} for value in range(4)])
    page = api.group_fetch(name, "workers", limit=2)
    assert (data(page), page["cursor_seq"]) == ([0, 1], 0)
    assert data(api.group_fetch(name, "workers", limit=2)) == [0, 1]  # nothing was acknowledged
    assert api.group_ack(name, "workers", 2)["cursor_seq"] == 2
    assert data(api.group_fetch(name, "workers")) == [2, 3]
    assert api.group_ack(name, "workers", 1)["cursor_seq"] == 2
    assert api.group(name, "workers")["lag"] == 2


def test_groups_do_not_disturb_one_another(api, name):
    api.append(name, [{"data": 1}])
    api.group_fetch(name, "a")
    api.group_fetch(name, "b")
    api.group_ack(name, "a", 1)
    assert data(api.group_fetch(name, "a")) == []
    assert data(api.group_fetch(name, "b")) == [1]


def test_a_new_consumer_takes_over_and_inherits_the_cursor(api, name):
    api.append(name, [{"data": value} for value in range(3)])
    api.group_fetch(name, "workers", consumer="old")
    api.group_ack(name, "workers", 1, consumer="old")
    assert data(api.group_fetch(name, "workers", consumer="new")) == [1, 2]
    assert code_of(lambda: api.group_fetch(name, "workers", consumer="old")) == "taken_over"
    assert code_of(lambda: api.group_ack(name, "workers", 3, consumer="old")) == "taken_over"
    assert api.group(name, "workers")["cursor_seq"] == 1


def test_a_cursor_can_be_set_anywhere(api, name):
    api.append(name, [{"data": value} for value in range(3)])
    api.group_fetch(name, "workers")
    api.group_ack(name, "workers", 3)
    api.group_seek(name, "workers", "earliest")
    assert data(api.group_fetch(name, "workers")) == [0, 1, 2]
    api.group_seek(name, "workers", 2)
    assert data(api.group_fetch(name, "workers")) == [2]
    api.group_seek(name, "workers", "latest")
    assert data(api.group_fetch(name, "workers")) == []
    assert api.remove_group(name, "workers")["deleted"]


def test_a_group_that_retention_overtook_is_told(api, name):
    api.put_topic(name, cap_records=2)
    api.put_group(name, "slow")
    api.append(name, [{"data": value} for value in range(5)])
    page = api.group_fetch(name, "slow")
    assert page["tombstone"]["reason"] == "cap"
    assert data(page) == [3, 4]


def test_cursors_survive_a_disconnect_a_restart_and_a_crash(tmp_path):
    with topics.open(tmp_path / "data") as db:
        db.append("orders", [{"data": value} for value in range(6)], config={"durable": True})
        db.group_fetch("orders", "billing")
        db.group_ack("orders", "billing", 2)
    with Server(tmp_path, shards=1) as server:
        server.start().wait_ready()
        with Client(server.url) as client:
            assert data(client.group_fetch("orders", "billing", limit=2)) == [2, 3]
            client.group_ack("orders", "billing", 4)
        server.kill_all()
    with topics.open(tmp_path / "data") as db:
        assert db.group("orders", "billing")["cursor_seq"] == 4
        assert data(db.group_fetch("orders", "billing")) == [4, 5]
