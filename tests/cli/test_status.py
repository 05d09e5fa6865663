"""`topics status` and `topics shards`: what the supervisor knows, over its own socket."""

import json
import os
from pathlib import Path

import pytest

from tests.cli.conftest import Commands
from topics.supervisor.report import quantile, rss_bytes
from topics.testing.server import alive


def test_every_process_is_shown(topics: Commands) -> None:
    topics.ok("topic", "create", "synced", "--durability", "fsync")
    topics.ok("topic", "append", "synced", "1", "2")
    seen = json.loads(topics.ok("status", "--json"))
    assert (seen["phase"], seen["pid"]) == ("ready", topics.server.process.pid)
    assert [(child["kind"], child["index"]) for child in seen["children"]] == [
        ("shard", 0),
        ("shard", 1),
        ("gateway", 0),
    ]
    for child in seen["children"]:
        assert child["state"] == "ready"
        assert child["rss_bytes"] > 1_000_000
        assert alive(child["pid"])
    shards = [child for child in seen["children"] if child["kind"] == "shard"]
    assert any(shard["wal_fsyncs"] and shard["fsync_p99_us"] >= shard["fsync_p50_us"] > 0 for shard in shards)
    assert seen["totals"]["topics"] >= 1
    text = topics.ok("status")
    for child in seen["children"]:
        assert str(child["pid"]) in text
    assert "p99" in text
    assert "\x1b" not in text


def test_from_elsewhere_it_is_asked_over_http(topics: Commands) -> None:
    topics.ok("topic", "create", "one")
    seen = json.loads(topics.ok("status", "--url", topics.server.url, "--json", TOPICS_DATA_DIR="/nowhere"))
    assert seen["ready"]["status"] == "ready"
    assert seen["totals"]["topics"] >= 1
    assert "records_live" in topics.ok("status", "--url", topics.server.url)


def test_nobody_there(topics: Commands, tmp_path: Path) -> None:
    done = topics("status", "--data-dir", str(tmp_path))
    assert done.returncode == 6
    assert "no server runs on" in done.stderr
    (tmp_path / "LOCK").write_text('{"pid": 1, "run_dir": "/nowhere"}')  # of one that was killed
    assert topics("status", "--data-dir", str(tmp_path)).returncode == 6


def test_a_process_that_is_down_makes_the_status_7(topics: Commands) -> None:
    with topics.server.held_down("shard", 1):
        done = topics("status", "--json")
        assert done.returncode == 7
        states = {
            child["index"]: child["state"] for child in json.loads(done.stdout)["children"] if child["kind"] == "shard"
        }
        assert states[0] == "ready"
        assert states[1] != "ready"
    topics.server.wait_whole()


def test_a_shard_is_restarted_and_waited_for(topics: Commands) -> None:
    old = topics.server.child("shard", 1)
    said = json.loads(topics.ok("shards", "restart", "1", "--json"))
    assert (said["old_pid"], said["index"]) == (old["pid"], 1)
    rows = [json.loads(line) for line in topics.ok("shards", "ls", "--json").splitlines()]
    assert [(row["index"], row["state"]) for row in rows] == [(0, "ready"), (1, "ready")]
    assert (rows[1]["pid"], rows[1]["restarts"]) == (said["pid"], old["restarts"] + 1)
    assert str(said["pid"]) in topics.ok("shards", "ls")
    done = topics("shards", "restart", "9")
    assert (done.returncode, "there is no shard 9" in done.stderr) == (1, True)


def test_a_compaction_says_what_it_freed(topics: Commands) -> None:
    for turn in range(3):
        topics.ok("topic", "append", "compacted", json.dumps({"turn": turn}))
        topics.server.ask_shard(0, "checkpoint")
        topics.server.ask_shard(1, "checkpoint")
    topics.ok("topic", "rm", "compacted", "--yes")
    told = json.loads(topics.ok("compact", "--json"))
    assert told["segments_removed"] >= 1
    assert told["bytes_used"] > told["bytes_freed"] > 0
    assert topics.ok("compact").startswith("freed 0 B: 0 segments")
    done = topics("compact", "--data-dir", "/nowhere")
    assert (done.returncode, "no server runs on /nowhere" in done.stderr) == (6, True)


def test_a_watch_is_an_object_a_look(topics: Commands) -> None:
    process = topics.start("status", "--watch", "--interval", "0.1", "--json")
    assert process.stdout is not None
    looks = [json.loads(process.stdout.readline()) for _ in range(3)]
    process.kill()
    process.communicate()
    assert all(look["phase"] == "ready" for look in looks)


@pytest.mark.parametrize(
    ("counts", "q", "found"),
    [
        ((0, 0, 0), 0.5, None),
        ((10, 0, 0), 0.5, 50),
        ((10, 10, 0), 0.99, 198),
        ((0, 0, 5), 0.5, 200),
        ((0, 1, 0), 1, 200),
    ],
)
def test_quantiles_of_a_histogram(counts, q, found) -> None:
    assert quantile((100, 200), counts, q) == found


def test_memory_of_a_process() -> None:
    assert rss_bytes(os.getpid()) > 1_000_000
    assert rss_bytes(0) == rss_bytes(2**22 + 1) == 0
