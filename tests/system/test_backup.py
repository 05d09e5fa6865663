"""Backups under load, with kills: what was acked before one began is in it, and no job is lost between shards."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import Any

import pytest

from tests.system.load import Load, name_on
from tests.system.recorder import Recorder
from topics import limits
from topics.client import Client, Retries
from topics.testing import judge
from topics.testing.history import APPEND, DELETE, DIFF, KILL, STATE, UNKNOWN, History, Op
from topics.testing.server import ROOT, Server, join, wait_until

JOBS = 300
PATIENT = Retries(first_s=0.02, longest_s=0.5, total_s=60.0)


def start(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "topics.cli", *arguments]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)


def backup(server: Server, dest: Path) -> tuple[float, float]:
    """Between which times it was made."""
    began = time.monotonic()
    running = start("backup", str(dest), "--data-dir", str(server.data))
    _, complaint = running.communicate(timeout=120)
    assert running.returncode == 0, complaint
    return began, time.monotonic()


def restored(serve, dest: Path, folder: Path, shards: int) -> Server:
    made: Server
    running = start("restore", str(dest), str(folder / "data"))
    _, complaint = running.communicate(timeout=60)
    assert running.returncode == 0, complaint
    checked = start("verify", str(folder / "data"))
    report, _ = checked.communicate(timeout=60)
    assert checked.returncode == 0, report
    made = serve(folder.name, shards=shards)
    return made


def as_known(history: History, began: float, ended: float) -> History:
    """What clients know: all that ended before the backup began. Of what was sent until it ended nobody knows if it
    is in it; the rest never happened."""
    known = History(one_log=False)
    known.crashes = [crash for crash in history.crashes if crash.at < began]
    for op in history.ops:
        if op.ended <= began:
            known.ops.append(op)
        elif op.began < ended and op.kind in (APPEND, DELETE):
            args = dict(op.args)
            known.ops.append(Op(op.client, op.kind, op.topic, args, op.began, ended=inf, outcome=UNKNOWN))
        elif op.began < ended and op.kind not in (DIFF, STATE):
            known.ops.append(op)
    return known


@pytest.mark.slow
def test_what_was_acked_before_is_in_it(serve, tmp_path):
    seed = random.randrange(1 << 32)
    print("seed", seed)
    dice = random.Random(seed)
    server = serve(shards=3)
    dest = tmp_path / "backup"
    with Load(server, seed) as load:
        load.wait_progress()
        for n in range(3):
            began = time.monotonic()
            victim = dice.randrange(3)
            server.wait_back("shard", victim, server.kill("shard", victim))
            load.crashed(began, KILL)
            load.wait_progress()
            times = backup(server, dest)
            load.wait_progress()
            if n == 1:
                kill_one_on_the_way(server, dest, dice, load)
    load.verify()
    other = restored(serve, dest, tmp_path / "restored", 3)
    history = as_known(load.history, *times)
    with Recorder(other, "auditor", history) as client:
        assert set(client.names()) == set(load.topics)
        for topic in load.topics:
            records, _ = client.read_all(topic)
            assert client.state(topic)["count"] == len(records), topic
    problems = judge.check(history)
    assert not problems, "\n".join(problems[:10])


def kill_one_on_the_way(server: Server, dest: Path, dice: random.Random, load: Load) -> None:
    """A backup whose shard, or which itself, is killed: the one before it is still there, as it was."""
    for victim in (0, None):
        _kill_one(server, dest, dice, load, victim)


def _kill_one(server: Server, dest: Path, dice: random.Random, load: Load, shard: int | None) -> None:
    before = (dest / "BACKUP").read_bytes()
    running = start("backup", str(dest), "--data-dir", str(server.data))
    wait_until(lambda: (dest / "INCOMPLETE").exists() or running.poll() is not None, "the backup to begin")
    time.sleep(dice.random() * 0.3)  # anywhere on the way, or after it
    began = time.monotonic()
    if shard is not None:
        server.wait_back("shard", shard, server.kill("shard", shard))
    else:
        with suppress(ProcessLookupError):
            running.send_signal(signal.SIGKILL)
    running.communicate(timeout=120)
    load.crashed(began, KILL)
    if running.returncode:
        assert (dest / "BACKUP").read_bytes() == before or not (dest / "INCOMPLETE").exists()


@pytest.mark.slow
def test_no_job_is_lost_or_doubled_between_two_shards(serve, tmp_path):
    """Dead letters go to another shard all the time. Wherever the cut is, a job is in one of the two in the end."""
    server = serve(shards=2)
    slots = server.slots()
    queue, dead = name_on(slots, 0, "queue"), name_on(slots, 1, "dead")
    config = {"type": "queue", "max_deliveries": 1, "dead_letter": dead, "durable": True}
    with Client(server.url, retries=PATIENT) as client:
        client.put_topic(queue, **config)
        client.append(queue, [{"data": n} for n in range(JOBS)])
        over = threading.Event()
        worker = threading.Thread(target=give_back, args=(server.url, queue, over))
        worker.start()
        try:
            wait_until(lambda: client.state(queue)["queue"]["dead_lettered"] > 5, "dead letters")
            backup(server, tmp_path / "backup")
        finally:
            over.set()
            join(worker)
    other = restored(serve, tmp_path / "backup", tmp_path / "restored", 2)
    with Client(other.url, retries=PATIENT) as client:
        over = threading.Event()
        worker = threading.Thread(target=give_back, args=(other.url, queue, over))
        worker.start()
        try:
            wait_until(lambda: client.state(queue)["count"] == 0, "every job to be a dead letter", 60)
        finally:
            over.set()
            join(worker)
        found = client.diff(dead, limit=1000)["records"]
    assert sorted(record["data"] for record in found) == list(range(JOBS))
    assert json.dumps(found).count('"$dead_letter_src_seq"') == JOBS


def give_back(url: str, queue: str, over: threading.Event) -> None:
    """A worker that can do nothing."""
    with Client(url, retries=PATIENT) as client:
        while not over.is_set():
            claimed = client.claim(queue, "w", max=3)
            if claimed:
                client.nack(queue, "w", claimed)
            else:
                over.wait(0.02)


def test_cold_segments_are_part_of_it(serve, tmp_path):
    cold, dest = tmp_path / "cold", tmp_path / "backup"
    server = serve(cold_dir=cold, segment_max_events=50, hot_retain_segments=1)
    with Client(server.url, retries=PATIENT) as client:
        client.put_topic("t", durability="fsync")
        for n in range(6):
            client.append("t", [{"data": [n, i], "tag": f"{i}"} for i in range(50)])
        wait_until(
            lambda: list(cold.rglob("*.data")) and '"cold_segments_read"' in json.dumps(client.diff("t")), "a move"
        )
        client.delete("t", match="7")  # also in cold segments
        before = client.diff("t", limit=1000)["records"]
    refused = start("backup", str(dest), "--data-dir", str(server.data))
    _, complaint = refused.communicate(timeout=60)
    assert refused.returncode == 1
    assert "--cold-dir" in complaint
    assert not (dest / "BACKUP").exists()

    wait_until(lambda: sum(map(is_settled, cold.rglob("*.data"))) == 5, "all that move to be there, and not just now")
    first = ran("backup", str(dest), "--data-dir", str(server.data), "--cold-dir", str(cold), "--json")
    second = ran("backup", str(dest), "--data-dir", str(server.data), "--cold-dir", str(cold), "--json")
    assert second["copied_bytes"] < first["copied_bytes"]
    assert list((dest / "files" / "cold").rglob("*.data.*"))

    folder = tmp_path / "restored"
    folder.mkdir()
    refused = start("restore", str(dest), str(folder / "data"))
    _, complaint = refused.communicate(timeout=60)
    assert refused.returncode == 1
    assert "--cold-dir" in complaint
    assert os.listdir(folder) == []
    ran("restore", str(dest), str(folder / "data"), "--cold-dir", str(folder / "cold"), "--json")
    check = start("verify", str(folder / "data"), "--cold-dir", str(folder / "cold"))
    assert check.communicate(timeout=60)
    assert check.returncode == 0
    other = serve(folder.name, cold_dir=folder / "cold", segment_max_events=50, hot_retain_segments=1)
    with Client(other.url, retries=PATIENT) as client:
        assert client.diff("t", limit=1000)["records"] == before
        assert len(before) == 294


def is_settled(path: Path) -> bool:
    """Old enough that a change would show in its time."""
    return time.time() - path.stat().st_mtime > limits.BACKUP_FRESH_MS / 1000


def ran(*arguments: str) -> dict[str, Any]:
    process = start(*arguments)
    out, complaint = process.communicate(timeout=120)
    assert process.returncode == 0, complaint
    return dict(json.loads(out))
