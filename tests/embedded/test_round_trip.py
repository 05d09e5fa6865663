"""A server and a program take turns on one data directory."""

import json
import shutil
import time

import msgspec
import pytest

import topics
from topics.client import Client
from topics.supervisor import slotswap
from topics.testing.server import Server, wait_until


@pytest.fixture
def server(tmp_path):
    with Server(tmp_path, shards=3) as one:
        yield one


def fill(api, turn: str) -> None:
    for number in range(12):
        api.append(f"log.{number}", [{"data": [turn, number], "tag": turn}], config={"durable": number % 2 == 0})
    api.append("keyed", [{"data": turn}], idempotency_key="only once", config={"idempotency_window_ms": 3_600_000})
    api.append("jobs", [{"data": turn}])


def look(api) -> dict:
    seen: dict = {"topics": [topic["topic"] for topic in api.topics()]}
    for name in seen["topics"]:
        state = api.state(name)
        keep = ("head_seq", "earliest_seq", "count", "bytes", "config", "queue")
        seen[name] = {field: state.get(field) for field in keep}
        seen[name]["records"] = list(api.read(name, include_tags=True))
    seen["routers"] = [router["router"] for router in api.routers()]
    return seen


def test_they_see_the_same_whoever_wrote_it(server):
    server.start().wait_ready()
    with Client(server.url) as client:
        client.put_topic("jobs", type="queue", lease_ms=3_600_000)
        client.put_router("copy", "log.0", "copied")
        fill(client, "server")
        (held,) = client.claim("jobs", "w")
        assert next(client.follow("copied"))["data"] == ["server", 0]
        written = look(client)
    assert server.stop() == 0
    with topics.open(server.data) as db:
        assert look(db) == written
        assert sum(1 for each in server.data.iterdir() if each.name.startswith("shard-")) == 3
        assert db.claim("jobs", "other") == []  # a clean stop keeps who holds what
        fill(db, "program")
        assert db.ack("jobs", "w", [held])["acked"] == 1
        assert db.delete("log.1", match="server")["deleted"] == 1
        assert [item["data"] for item in db.read("keyed")] == ["server"]
        following = db.follow("copied", 1)
        assert next(following)["data"] == ["program", 0]
        written = look(db)
    server.start().wait_ready()
    with Client(server.url) as client:
        assert look(client) == written
        assert [job.data for job in client.claim("jobs", "w", 9)] == ["program"]
    assert server.stop() == 0


def test_a_directory_that_a_program_made_is_a_servers_with_more_shards_later(server):
    with topics.open(server.data) as db:
        fill(db, "program")
        written = look(db)
    server.start().wait_ready()
    with Client(server.url) as client:
        assert look(client) == written
        for number in range(30):
            client.append(f"more.{number}", [{"data": number}])
        written = look(client)
    assert server.stop() == 0
    with topics.open(server.data) as db:
        assert look(db) == written


def test_a_rebalance_that_a_crash_cut_short_is_finished_first(tmp_path):
    with topics.open(tmp_path) as db:
        db.append("t", [{"data": 1}])
    slots = json.loads((tmp_path / "SLOTS").read_text())
    shutil.copytree(tmp_path / "shard-00", tmp_path / slotswap.NEW / "shard-00")
    (tmp_path / slotswap.NEW / "shard-01").mkdir()
    swap = slotswap.Swap(slotswap.VERSION, ["shard-00", "shard-01"], {"SLOTS": json.dumps(slots | {"shards": 2})})
    (tmp_path / slotswap.FILE).write_bytes(msgspec.json.encode(swap))
    with topics.open(tmp_path) as db:
        assert [record["data"] for record in db.read("t")] == [1]
    assert not slotswap.is_pending(tmp_path)
    assert json.loads((tmp_path / "SLOTS").read_text()) == slots | {"shards": 2}


def test_lifetimes_go_on_while_it_is_closed(tmp_path):
    with topics.open(tmp_path) as db:
        db.append("t", [{"data": 1}], config={"ttl_ms": 300})
        ends = time.time() + 0.3
    wait_until(lambda: time.time() > ends, "the record to expire")
    with topics.open(tmp_path) as db:
        (gap,) = db.read("t", 0)
        assert gap["tombstone"]["reason"] == "ttl"


def test_what_is_ephemeral_goes_and_its_topic_stays(tmp_path):
    with topics.open(tmp_path) as db:
        db.append("e", [{"data": 1}], config={"durability": "ephemeral"})
        assert db.state("e")["count"] == 1
    with topics.open(tmp_path) as db:
        assert db.state("e")["count"] == 0
        assert db.append("e", [{"data": 2}])["first_seq"] > 1


def test_older_segments_move_to_the_cold_directory(tmp_path):
    options = {"cold_dir": tmp_path / "cold", "segment_max_events": 100, "hot_retain_segments": 1}
    with topics.open(tmp_path / "data", **options) as db:
        for turn in range(10):
            db.append("t", [{"data": [turn, n]} for n in range(100)])
        db.compact()
        wait_until(lambda: list((tmp_path / "cold").rglob("*.data")), "a segment to move")
        assert len(list(db.read("t"))) == 1000
    with topics.open(tmp_path / "data", **options) as db:
        assert [record["$seq"] for record in db.read("t")] == list(range(1, 1001))


def test_a_program_may_go_elsewhere_meanwhile(tmp_path, monkeypatch):
    """Relative paths are those of the moment it was opened."""
    monkeypatch.chdir(tmp_path)
    with topics.open("data", cold_dir="cold", segment_max_events=100, hot_retain_segments=1) as db:
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        for turn in range(10):
            db.append("t", [{"data": [turn, n]} for n in range(100)])
        db.compact()
        wait_until(lambda: list((tmp_path / "cold").rglob("*.data")), "a segment to move")
        assert len(list(db.read("t"))) == 1000
    assert list((tmp_path / "elsewhere").iterdir()) == []
