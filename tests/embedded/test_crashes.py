"""A program that dies has crashed: what was acked is there at the next open, and nothing is there by halves."""

import random

import pytest

import topics
from tests.embedded.program import program
from topics.client import Client
from topics.errors import TopicsError
from topics.testing.server import Server

# Four threads append pairs to their own topics on two shards; a checkpoint now and then, by itself.
WRITE = """
db = topics.open(path, shards=2)
db.put_topic("jobs", type="queue", durable=True, lease_ms=3_600_000)
def write(number):
    topic, value = f"t{number}", 0
    while True:
        pair = [{"data": value}, {"data": value + 1}]
        last = db.append(topic, pair, config={"durable": True, "message_ids": True})["last_seq"]
        say([topic, last])
        value += 2
def work():
    value = 0
    while True:
        db.append("jobs", [{"data": value}])
        (job,) = db.claim("jobs", "w")
        db.ack("jobs", "w", [job])
        say(["done", job.seq])
        value += 1
for number in range(4):
    threading.Thread(target=write, args=(number,)).start()
work()
"""


@pytest.mark.parametrize("seed", range(4))
def test_kill_9(tmp_path, seed):
    acked: dict[str, int] = {}
    ids: dict[tuple[str, int], str] = {}
    chance = random.Random(seed)
    for _ in range(3):
        with program(tmp_path, WRITE) as writer:
            heard = [writer.hear() for _ in range(chance.randint(1, 200))]
            writer.kill()
            heard += writer.rest()
        for topic, seq in heard:
            acked[topic] = max(seq, acked.get(topic, 0))
        with topics.open(tmp_path) as db:
            for number in range(4):
                check(db, f"t{number}", acked.get(f"t{number}", 0))
                for record in db.read(f"t{number}") if acked.get(f"t{number}") else ():
                    assert ids.setdefault((f"t{number}", record["$seq"]), record["$id"]) == record["$id"]
            left = [job.seq for job in db.claim("jobs", "after", 1000)]
            assert all(seq > acked.get("done", 0) for seq in left), "a job that was acknowledged came back"
            if left:
                db.ack("jobs", "after", left)


def check(db, topic: str, acked: int) -> None:
    if not acked and topic not in {each["topic"] for each in db.topics()}:
        return
    values = [record["data"] for record in db.read(topic)]
    assert len(values) >= acked
    assert len(values) % 2 == 0, "half of a write"
    pairs = list(zip(values[::2], values[1::2], strict=True))
    assert all(second == first + 1 for first, second in pairs)


UNCLOSED = """
db = topics.open(path)
db.append("t", [{"data": 1}], config={"durable": True})
db.append("t", [{"data": 2}])
say("done")
"""


def test_a_program_that_ends_without_close_ends_at_once_and_loses_nothing(tmp_path):
    with program(tmp_path, UNCLOSED) as unclosed:
        assert unclosed.hear() == "done"
        assert unclosed.process.wait(timeout=30) == 0
    with topics.open(tmp_path) as db:
        assert [record["data"] for record in db.read("t")] == [1, 2]


def test_a_server_recovers_what_a_killed_program_left(tmp_path):
    with program(tmp_path / "data", WRITE) as writer:
        heard = [writer.hear() for _ in range(50)]
        writer.kill()
        heard += writer.rest()
    acked = {topic: seq for topic, seq in heard if topic != "done"}
    with Server(tmp_path, shards=2) as server:
        server.start().wait_ready()
        with Client(server.url) as client:
            for topic, seq in acked.items():
                check(client, topic, seq)
        assert server.stop() == 0


def test_a_failed_sync_ends_the_database_and_the_next_open_recovers(tmp_path):
    db = topics.open(tmp_path, shards=2, failpoints="wal.sync=error:EIO@6")
    acked = 0
    told: TopicsError | None = None
    while told is None or "open it again" not in told.message:  # the first refusal may be of the write itself
        try:
            acked = db.append("t", [{"data": acked}], config={"durable": True})["last_seq"]
        except TopicsError as error:
            told = error
    assert told.code == "not_ready"
    with pytest.raises(TopicsError, match="the storage failed"):
        db.close()
    with topics.open(tmp_path) as db:
        found = [
            record["data"] for record in db.read("t") if "data" in record
        ]  # what was not acked may be told as lost
        assert found[:acked] == list(range(acked))
        assert db.append("t", [{"data": "on"}])["count"] == 1


def test_a_close_that_cannot_store_a_checkpoint_leaves_it_to_the_log(tmp_path):
    db = topics.open(tmp_path, shards=2, failpoints="snapshot.sync=error:EIO")
    db.append("t", [{"data": 1}], config={"durable": True})
    db.close()
    with topics.open(tmp_path) as db:
        assert [record["data"] for record in db.read("t")] == [1]


def test_a_start_that_fails_says_why(tmp_path):
    with topics.open(tmp_path) as db:
        db.append("t", [{"data": 1}])
    with pytest.raises(TopicsError, match="the storage failed") as caught:
        topics.open(tmp_path, failpoints="wal.prepare=error:EIO; dir.sync=error:EIO; wal.rotate=error:EIO")
    assert caught.value.code == "not_ready"
    with topics.open(tmp_path) as db:
        assert db.state("t")["count"] == 1
