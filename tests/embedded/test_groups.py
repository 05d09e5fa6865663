"""Consumer groups without a server: the same calls, and cursors that outlive the program."""

import random

import pytest

import topics
from tests.embedded.program import program
from topics.errors import TopicsError
from topics.testing.server import Server


def seqs(page) -> list[int]:
    return [record["$seq"] for record in page["records"]]


def test_a_group_from_fetch_to_removal(tmp_path):
    with topics.open(tmp_path) as db:
        db.append("t", [{"data": n} for n in range(5)])
        page = db.group_fetch("t", "g", limit=3, consumer="a")
        assert (seqs(page), page["cursor_seq"]) == ([1, 2, 3], 0)
        assert db.group_ack("t", "g", page["next_from_seq"], consumer="a")["lag"] == 2
        assert seqs(db.group_fetch("t", "g", consumer="b")) == [4, 5]
        with pytest.raises(TopicsError) as refused:
            db.group_fetch("t", "g", consumer="a")
        assert refused.value.code == "taken_over"
        assert db.state("t")["groups"]["g"] == {"cursor_seq": 3, "lag": 2, "consumer": "b"}
        assert db.group_seek("t", "g", "earliest")["cursor_seq"] == 0
        assert db.put_group("t", "h", "latest")["cursor_seq"] == 5
        assert [group["group"] for group in db.groups("t")] == ["g", "h"]
        assert db.remove_group("t", "h")["deleted"]


def test_a_server_goes_on_with_the_groups_of_a_program(tmp_path):
    with topics.open(tmp_path / "data") as db:
        db.append("t", [{"data": n} for n in range(5)])
        db.group_fetch("t", "g")
        db.group_ack("t", "g", 2)
    with Server(tmp_path, shards=1) as server:
        server.start().wait_ready()
        with topics.client.Client(server.url) as client:
            assert seqs(client.group_fetch("t", "g")) == [3, 4, 5]
            client.group_ack("t", "g", 4)
        assert server.stop() == 0
    with topics.open(tmp_path / "data") as db:
        assert seqs(db.group_fetch("t", "g")) == [5]


ACK = """
db = topics.open(path)
db.put_topic("t", durability="disk")
while True:
    db.append("t", [{"data": 0}])
    page = db.group_fetch("t", "g", consumer="a")
    say(db.group_ack("t", "g", page["next_from_seq"], consumer="a")["cursor_seq"])
"""


def test_kill_9(tmp_path):
    chance, acked = random.Random(1), 0
    for _ in range(3):
        with program(tmp_path, ACK) as consumer:
            heard = [consumer.hear() for _ in range(chance.randint(1, 100))]
            consumer.kill()
            acked = max([acked, *heard, *consumer.rest()])
        with topics.open(tmp_path) as db:
            group = db.group("t", "g")
            assert group["cursor_seq"] >= acked
            assert group["head_seq"] >= group["cursor_seq"]
            assert group["consumer"] == "a"
