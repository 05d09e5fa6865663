"""Hot and cold storage of a real server, over HTTP."""

import json
import os
import threading
import time
from pathlib import Path

import httpx
import pytest

from tests.api.events import watching
from tests.api.sockets import Socket
from tests.cli.test_main import run
from tests.system.client import Client
from topics.errors import NOT_READY
from topics.testing.server import Server, join, wait_until

SMALL = {"segment_max_events": 50, "hot_retain_segments": 1}


@pytest.fixture
def cold(tmp_path: Path) -> Path:
    return tmp_path / "cold"


def segments(directory: Path) -> int:
    """-1 if a directory went while it was looked at."""
    try:
        return len(list(directory.glob("shard-*/segments/*/*.data")))
    except FileNotFoundError:
        return -1


def bytes_below(directory: Path) -> int:
    """As du would say, without what is used again: the log and its spare file, and the register of heads."""
    files = (path for path in directory.rglob("*") if path.is_file() and path.suffix not in (".wal", ".reg"))
    return sum(path.stat().st_size for path in files if not path.name.startswith("spare-"))


def write(client: Client, topic: str, records: int, first: int = 0) -> None:
    for start in range(first, first + records, 50):
        body = [{"data": {"n": n, "text": "ä" * 40}, "tag": f"t{n % 5}"} for n in range(start, start + 50)]
        client.append(topic, {"records": body})


def read_all(client: Client, topic: str) -> list[dict]:
    found, from_seq = [], 0
    while True:
        page = client.diff(topic, from_seq=from_seq, limit=1000)
        assert page["tombstone"] is None
        found += page["records"]
        from_seq = page["next_from_seq"]
        if page["caught_up"]:
            return found


def test_segments_move_by_themselves_and_nobody_notices(serve, cold):
    server: Server = serve(cold_dir=cold, **SMALL)
    with Client(server) as client:
        for topic in ("a", "b", "c"):
            client.put(topic, durability="fsync")
            write(client, topic, 500)
        before = {topic: read_all(client, topic) for topic in ("a", "b", "c")}
        wait_until(lambda: (segments(server.data), segments(cold)) == (3, 27), "the segments to move")
        assert {topic: read_all(client, topic) for topic in before} == before
        page = client.diff("a", limit=120)
        assert page["performance"]["cold_segments_read"] == 3
        assert "cold_segments_read" not in client.diff("a", from_seq=460)["performance"]
        metrics = client.once("GET", "/v0/metrics").text
        assert "topics_cold_segments 27" in metrics
        assert "topics_cold_unavailable 0" in metrics
    server.kill_all()
    server.start().wait_ready()
    with Client(server) as client:
        assert {topic: read_all(client, topic) for topic in before} == before


def test_without_its_cold_directory_a_server_starts_writes_and_delivers(serve, cold):
    server: Server = serve(cold_dir=cold, **SMALL)
    with Client(server) as client:
        client.put("t", durability="fsync")
        write(client, "t", 500)
        wait_until(lambda: (segments(server.data), segments(cold)) == (1, 9), "the segments to move")
        whole = read_all(client, "t")
    assert server.stop() == 0
    away = cold.rename(cold.with_name("away"))
    server.start().wait_ready()
    with Client(server) as client:
        refused = client.once("POST", "/v0/topics/t/diff", {"from_seq": 0})
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) >= 1
        error = refused.json()["error"]
        assert (error["code"], error["detail"]["reason"]) == (NOT_READY, "cold_unavailable")
        assert client.once("GET", "/v0/ready").status_code == 200
        with httpx.Client(base_url=server.url) as http, watching(http, {"t": {"from_seq": 0}}) as events:
            told = events.next("error").data
            assert (told["code"], told["reason"], told["topics"]) == (503, "cold_unavailable", ["t"])
        live: list[dict] = []
        reader = threading.Thread(target=lambda: live.append(client_of(server, "t", 500)))
        reader.start()
        client.append("t", {"records": [{"data": "live"}]})
        join(reader)
        assert [record["data"] for record in live[0]["records"]] == ["live"]
        assert client.delete("t", match=["tag", "Eq", "t1"])["deleted"] == 100
        assert not cold.exists()
        away.rename(cold)
        left = [record for record in whole if record["data"]["n"] % 5 != 1]
        wait_until(lambda: client.once("POST", "/v0/topics/t/diff", {}).status_code == 200, "the directory to be back")
        assert read_all(client, "t")[:-1] == left


def test_the_directory_is_taken_away_under_a_websocket_and_brought_back(serve, cold):
    """It is told why nothing comes; other topics go on; nothing is left out, or told as lost."""
    server: Server = serve(cold_dir=cold, **SMALL)
    with Client(server) as client, Socket(int(server.url.rsplit(":", 1)[1])) as socket:
        client.put("t", durability="fsync")
        write(client, "t", 500)
        wait_until(lambda: (segments(server.data), segments(cold)) == (1, 9), "the segments to move")
        away = cold.rename(cold.with_name("away"))
        assert socket.ask("subscribe", topic="t", from_seq=0)["op"] == "subscribed"
        told = socket.next("error", "record", "tombstone")
        assert (told["op"], told["code"], told["detail"]["reason"]) == ("error", NOT_READY, "cold_unavailable")
        assert told["detail"]["topics"] == ["t"]
        assert "request_id" not in told
        assert socket.ask("subscribe", topic="other", tail=True)["code"] == "topic_not_found"  # the socket is open
        client.put("other")
        socket.ask("subscribe", topic="other", tail=True)
        assert socket.ask("publish", topic="other", records=[{"data": "live"}])["op"] == "ack"
        assert socket.next("record", "tombstone")["topic"] == "other"
        away.rename(cold)
        records: list[dict] = []
        while len(records) < 500:
            frame = socket.next("record", "tombstone")
            assert (frame["op"], frame["topic"]) == ("record", "t")
            records += frame["records"]
        assert [record["$seq"] for record in records] == list(range(1, 501))


def client_of(server: Server, topic: str, from_seq: int) -> dict:
    with Client(server) as client:
        page: dict = client.diff(topic, from_seq=from_seq, wait_ms=30_000)
        return page


def test_a_slow_cold_directory_delays_nobody_else(serve, cold):
    server: Server = serve(cold_dir=cold, shards=1, **SMALL)
    with Client(server) as client:
        client.put("t", durability="fsync")
        write(client, "t", 500)
        wait_until(lambda: (segments(server.data), segments(cold)) == (1, 9), "the segments to move")
    assert server.stop() == 0
    server.start(failpoints="cold.read=pause:5000").wait_ready()
    stop = threading.Event()
    answers: list[int] = []

    def read_cold() -> None:
        with httpx.Client(timeout=60) as http:
            while not stop.is_set():
                answers.append(http.post(f"{server.url}/v0/topics/t/diff", json={}).status_code)

    readers = [threading.Thread(target=read_cold) for _ in range(8)]
    for reader in readers:
        reader.start()
    with Client(server) as client:
        began = time.monotonic()
        for n in range(100):
            write(client, "u", 50, 50 * n)
            client.diff("u", from_seq=50 * n)
            client.diff("t", from_seq=450)
            assert client.once("GET", "/v0/ready").status_code == 200
        took = time.monotonic() - began
    stop.set()
    join(*readers)
    assert len(answers) * 5 / 4 < took + 60, "reads of the cold directory were as slow as they were told to be"
    assert set(answers) <= {200, 503}


def wait_for_change(cold: Path) -> None:
    before = segments(cold)
    wait_until(lambda: segments(cold) != before, "something to move")


def test_kills_while_segments_move(serve, cold):
    """Twelve lives of a server that is killed at a random moment of its moves; every record is there in each."""
    server: Server = serve(cold_dir=cold, **SMALL)
    written = 0
    for life in range(12):
        with Client(server) as client:
            if not life:
                client.put("t", durability="fsync")
            write(client, "t", 200, written)
            written += 200
            found = read_all(client, "t")
            assert [record["data"]["n"] for record in found] == list(range(written))
            if life % 2:
                wait_for_change(cold)
        server.kill_all()
        server.start().wait_ready()
    with Client(server) as client:
        hot = 1
        wait_until(lambda: (segments(server.data), segments(cold)) == (hot, written // 50 - hot), "the rest to move")
        assert [record["data"]["n"] for record in read_all(client, "t")] == list(range(written))
    assert server.stop() == 0
    done = run("verify", "--json", "--cold-dir", str(cold), str(server.data))
    found = json.loads(done.stdout)
    assert (done.returncode, found["findings"], found["checked"]["leftovers"]) == (0, [], 0)
    assert found["checked"]["cold_segments"] == written // 50 - hot


def test_room_comes_back_in_both_directories(serve, cold):
    server: Server = serve(cold_dir=cold, shards=1, **SMALL)
    with Client(server) as client:
        empty = bytes_below(server.data)
        for topic in ("deleted", "capped", "expired", "removed"):
            client.put(topic, durability="fsync")
            write(client, topic, 500)
        wait_until(lambda: (segments(server.data), segments(cold)) == (4, 36), "the segments to move")
        full = bytes_below(server.data) + bytes_below(cold)
        client.delete("deleted", before_seq=501)
        client.put("capped", cap_records=40)
        client.put("expired", ttl_ms=1)
        assert client.once("DELETE", "/v0/topics/removed").status_code == 200
        time.sleep(0.01)
        assert client.state("expired")["count"] == 0
        server.ask_shard(0, "checkpoint")
        wait_until(lambda: (segments(server.data), segments(cold)) == (1, 0), "the segments to go")
        assert bytes_below(server.data) + bytes_below(cold) < empty + full / 5


def test_the_cold_directory_of_another_server_stops_the_start(serve, cold):
    first: Server = serve("first", cold_dir=cold, **SMALL)
    with Client(first) as client:
        write(client, "t", 500)
        wait_until(lambda: segments(cold) > 0, "the segments to move")
    second: Server = serve.make("second", cold_dir=cold, **SMALL)
    second.start()
    assert second.wait_end() == 1
    assert "belongs to another data directory" in second.text()


def test_verify_and_inspect_know_the_cold_directory(serve, cold):
    server: Server = serve(cold_dir=cold, shards=1, **SMALL)
    with Client(server) as client:
        write(client, "t", 500)
        wait_until(lambda: (segments(server.data), segments(cold)) == (1, 9), "the segments to move")
    assert server.stop() == 0
    untold = run("verify", str(server.data))
    assert untold.returncode == 2
    assert "9 segments are in the cold directory" in untold.stderr
    assert run("verify", "--cold-dir", str(cold), str(server.data)).returncode == 0
    first, second, *_ = sorted(cold.glob("shard-00/segments/*/*.data"))
    shown = run("inspect", "--json", str(first))
    assert shown.returncode == 0
    assert json.loads(shown.stdout.splitlines()[0])["kind"] == "segment"
    assert "topics cold 1" in run("inspect", str(cold / "shard-00" / "OWNER")).stdout
    data = bytearray(first.read_bytes())
    data[500] ^= 1
    first.write_bytes(data)
    os.unlink(second)
    done = run("verify", "--json", "--cold-dir", str(cold), str(server.data))
    assert done.returncode == 1
    assert {(row["kind"], row["file"]) for row in json.loads(done.stdout)["findings"]} == {
        ("corrupt", str(first)),
        ("missing", str(second)),
    }
    (cold / "shard-00" / "OWNER").write_text("topics cold 1 0\n")
    done = run("verify", "--cold-dir", str(cold), str(server.data))
    assert done.returncode == 2
    assert "belongs to another data directory" in done.stderr
