"""Caps over all shards with real processes: exact when they race, and right again after a kill."""

import os
import subprocess
import sys
import threading

import pytest

from tests.supervisor.server_process import ServerProcess, wait_until
from topics import errors
from topics.board import PROGRESS_WHOLE, Board
from topics.errors import TopicsError
from topics.testing.server import DEADLINE_S, join

RACE = """
import random, sys
from types import SimpleNamespace as Plain
from topics.board import Board
from topics.errors import TopicsError
from topics.shards.quota import BoardQuota, Holdings

path, index, max_topics, max_bytes = sys.argv[1], *map(int, sys.argv[2:])
rng, board = random.Random(index), Board.open(path)
sizes = {}
held = Holdings(Plain(by_id={}, names=sizes))
quota = BoardQuota(board, index, held, max_topics=max_topics, max_bytes=max_bytes)
quota.publish()


def take(size):
    try:
        quota.admit(1, None, Plain(count=1, size=size))
    except TopicsError as error:
        assert error.code == "throttled", error
        return False
    sizes[object()] = size
    held.bytes += size
    with board.locked():
        assert not max_topics or board.total("topics") <= max_topics
        assert not max_bytes or board.total("bytes_live") <= max_bytes
    return True


def meet(word):
    print(word, flush=True)
    sys.stdin.readline()


meet("ready")
rounds = admitted = refused = 0
while rounds < 4000 or admitted < 100:
    rounds += 1
    admitted += take(rng.randint(1, 50))
    if sizes and rng.random() < 0.4:
        held.bytes -= sizes.popitem()[1]
        quota.publish()
sizes.clear()  # whoever was held up until now shall have a race, too
held.bytes = 0
quota.publish()
meet("raced")
while refused < 300:  # nobody gives back any more: fill up to the brim
    refused += not take(rng.randint(1, 50))
print(len(sizes), held.bytes)
"""


@pytest.mark.parametrize(("max_topics", "max_bytes"), [(300, 0), (0, 6_000)])
def test_caps_are_exact_when_processes_race(tmp_path, max_topics, max_bytes):
    path = str(tmp_path / "board")
    board = Board.create(path, shards=4, gateways=1)
    run = [sys.executable, "-c", RACE, path]
    racers = [
        subprocess.Popen([*run, str(n), str(max_topics), str(max_bytes)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for n in range(4)
    ]
    for word in (b"ready\n", b"raced\n"):
        for racer in racers:
            assert racer.stdout is not None
            assert racer.stdout.readline() == word
        for racer in racers:
            assert racer.stdin is not None
            racer.stdin.write(b"go\n")
            racer.stdin.flush()
    ends = [tuple(map(int, racer.communicate(timeout=DEADLINE_S)[0].split())) for racer in racers]
    topics, size = (sum(column) for column in zip(*ends, strict=True))
    if max_topics:
        assert topics == board.total("topics") == max_topics
    else:
        assert size == board.total("bytes_live") == max_bytes  # after 300 refusals even a write of 1 was refused


# --- a whole server -----------------------------------------------------------------------------------------------


@pytest.fixture
def serve(tmp_path):
    servers = []

    def start(**settings):
        servers.append(ServerProcess(tmp_path, shards=3, **settings).wait_ready())
        server = servers[-1]
        return server, Board.open(os.path.join(server.holder()["run_dir"], "board"))

    yield start
    for server in servers:
        server.__exit__()


def refusal(server, shard, method, body, topic):
    with pytest.raises(TopicsError) as refused:
        server.ask_shard(shard, method, body, topic=topic)
    return refused.value


ONE = b'{"records":[{"data":"%b"}]}' % (b"x" * 100)


def test_topics_are_capped_over_a_server_and_over_a_kill(serve):
    server, board = serve(max_topics=20)
    made, refused = [], []

    def create(shard):
        for n in range(20):
            try:
                server.ask_shard(shard, "put" if n % 2 else "append", b"{}" if n % 2 else ONE, topic=f"t{shard}-{n}")
                made.append((shard, n))
            except TopicsError as error:
                refused.append(error.detail["limit"])

    threads = [threading.Thread(target=create, args=(shard,)) for shard in range(3)]
    for thread in threads:
        thread.start()
    join(*threads)
    assert len(made) == board.total("topics") == 20
    assert refused == ["max_topics"] * 40
    shard, n = made[0]
    server.ask_shard(shard, "put", b'{"ttl_ms":9}', topic=f"t{shard}-{n}")  # what is there can be changed

    held, old = board.shard(shard).get("topics"), server.kill("shard", shard)
    wait_until(lambda: server.child("shard", shard)["pid"] != old)
    other = (shard + 1) % 3
    assert refusal(server, other, "put", b"{}", "new").code == errors.THROTTLED  # its topics still count
    server.wait_back("shard", shard, old)
    assert board.shard(shard).get("topics") == held
    assert board.shard(shard).get("replay_progress") == PROGRESS_WHOLE
    assert refusal(server, shard, "put", b"{}", "new").code == errors.THROTTLED
    server.ask_shard(shard, "remove", topic=f"t{shard}-{n}")
    server.ask_shard(other, "put", b"{}", topic="new")
    assert refusal(server, other, "append", ONE, "newer").detail["limit"] == "max_topics"


def test_bytes_are_capped_and_counters_told(serve):
    server, board = serve(max_total_bytes=1000)
    accepted, refused = 0, []
    for n in range(12):
        try:
            server.ask_shard(n % 3, "append", ONE, topic=f"t{n % 3}")
            accepted += 1
        except TopicsError as error:
            refused.append(error.detail)
    assert refused == [{"limit": "max_total_bytes", "max": 1000, "retry_after_ms": 1000}] * (12 - accepted)
    wait_until(lambda: board.total("records_live") == accepted, "the slots")
    size = board.total("bytes_live")
    assert 1000 - size < size / accepted <= 1000
    wait_until(lambda: board.total("wal_frames") >= accepted, "the counters of the log")
    fsyncs = [board.shard(shard).get("wal_fsyncs") for shard in range(3)]
    assert min(fsyncs) > 0
    assert board.total("wal_bytes_written") > size
    assert sum(board.total(f"fsync_bucket_{n}") for n in range(32)) >= sum(fsyncs)
    server.ask_shard(0, "delete", b'{"before_seq":100}', topic="t0")
    server.ask_shard(0, "append", ONE, topic="t0")
    assert server.stop() == 0
