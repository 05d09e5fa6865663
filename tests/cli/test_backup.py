"""`topics backup` and `topics restore` on a real server."""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from topics.cli.backups.store import FILES, INCOMPLETE, MANIFEST
from topics.testing.server import Server, wait_until

RECORDS = 50


@pytest.fixture
def dest(tmp_path: Path) -> Path:
    return tmp_path / "backup"


def write(server, topics, name: str, *more: str) -> None:
    headers = {"authorization": f"Bearer {topics.env['TOPICS_KEY']}"}
    records = [{"data": [name, n, *more], "tag": f"tag-{n % 3}"} for n in range(RECORDS)]
    answer = httpx.post(f"{server.url}/v0/topics/{name}", json={"records": records}, headers=headers)
    assert answer.is_success, answer.text


def read(server, name: str) -> list:
    answer = httpx.post(f"{server.url}/v0/topics/{name}/diff", json={"limit": 1000}).json()
    assert answer["tombstone"] is None
    return [record["data"] for record in answer["records"]]


def settled(server) -> None:
    """Checkpoints are made, and nothing was changed so recently that it has to be copied again."""
    for shard in (0, 1):
        server.ask_shard(shard, "checkpoint")
    newest = max(path.stat().st_mtime for path in server.data.rglob("packs/*"))
    wait_until(lambda: time.time() - newest > 1.1, "the files to be old enough")


def test_a_backup_comes_back_whole(server, topics, dest, tmp_path):
    names = [f"whole-{n}" for n in range(8)]
    for name in names:
        write(server, topics, name)
    taken = json.loads(topics.ok("backup", str(dest), "--json"))
    assert [shard["shard"] for shard in taken["shards"]] == [0, 1]
    assert all(shard["lsn"] > 0 and shard["cut_ms"] >= taken["taken_ms"] - 60_000 for shard in taken["shards"])
    assert not (dest / INCOMPLETE).exists()
    write(server, topics, names[0])  # not in it

    target = tmp_path / "restored" / "data"
    restored = json.loads(topics.ok("restore", str(dest), str(target), "--json"))
    assert restored["shards"] == taken["shards"]
    topics.ok("verify", str(target))
    with Server(tmp_path / "restored") as other:
        other.start().wait_ready()
        for name in names:
            assert read(other, name) == [[name, n] for n in range(RECORDS)]
        appended = httpx.post(f"{other.url}/v0/topics/{names[0]}", json={"records": [{"data": 1}]}).json()
        assert appended["first_seq"] == RECORDS + 1  # nothing was taken for lost


def test_the_second_one_copies_only_what_changed(server, topics, dest):
    for n in range(8):
        write(server, topics, f"again-{n}", "x" * 1000)  # more than a snapshot and what is left of the log
    settled(server)
    first = json.loads(topics.ok("backup", str(dest), "--json"))
    before = {path.name for path in dest.rglob("pack-*")}
    second = json.loads(topics.ok("backup", str(dest), "--json"))
    assert second["copied_bytes"] < first["copied_bytes"] / 4
    assert {path.name for path in dest.rglob("pack-*")} == before
    headers = {"authorization": f"Bearer {topics.env['TOPICS_KEY']}"}
    deleted = httpx.post(f"{server.url}/v0/topics/again-0/delete", json={"match": "tag-1"}, headers=headers).json()
    assert deleted["deleted"] > 0
    third = json.loads(topics.ok("backup", str(dest), "--json"))
    assert second["copied_bytes"] < third["copied_bytes"] < first["copied_bytes"]  # one file has flags that flipped
    stored = {entry["stored"] for one in manifest(dest)["shards"] for entry in one["files"].values()}
    there = {str(path.relative_to(dest / FILES)) for path in (dest / FILES).rglob("*") if path.is_file()}
    assert there == stored  # what only older backups had is gone


def manifest(dest: Path) -> Any:
    return json.loads((dest / MANIFEST).read_text())


def test_nothing_is_replaced(server, topics, dest, tmp_path):
    write(server, topics, "kept")
    topics.ok("backup", str(dest))
    target = tmp_path / "there"
    target.mkdir()
    topics.ok("restore", str(dest), str(target))  # an empty directory is no loss
    refused = topics("restore", str(dest), str(target), "--json")
    assert refused.returncode == 1
    assert "there already" in json.loads(refused.stderr)["error"]["message"]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter").write_text("dear")
    assert topics("backup", str(tmp_path / "mine")).returncode == 1
    assert os.listdir(tmp_path / "mine") == ["letter"]


def test_without_a_server_there_is_no_backup(topics, dest, tmp_path):
    assert topics("backup", str(dest), "--data-dir", str(tmp_path)).returncode == 6
    assert not dest.exists()


def test_a_copy_that_changed_is_not_restored(server, topics, dest, tmp_path):
    write(server, topics, "changed")
    topics.ok("backup", str(dest))
    victim = next(dest.rglob("pack-*.data.*"))
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 1
    victim.write_bytes(data)
    refused = topics("restore", str(dest), str(tmp_path / "new"))
    assert refused.returncode == 1
    assert "not as it was written" in refused.stderr
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("when", [INCOMPLETE, FILES])
def test_one_that_is_killed_is_no_backup_and_holds_nothing(server, topics, dest, tmp_path, when):
    write(server, topics, "killed")
    running = topics.start("backup", str(dest))
    wait_until(lambda: (dest / when).exists() or running.poll() is not None, "it to begin")
    running.send_signal(signal.SIGKILL)
    running.communicate()
    if not (dest / MANIFEST).exists():
        refused = topics("restore", str(dest), str(tmp_path / "new"))
        assert refused.returncode == 1
        assert "no complete backup" in refused.stderr
        assert (dest / INCOMPLETE).exists()
    for shard in (0, 1):
        server.ask_shard(shard, "checkpoint")  # within its deadline: nobody holds the files
    topics.ok("backup", str(dest))
    assert not (dest / INCOMPLETE).exists()
