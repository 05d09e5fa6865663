"""Sixteen worker processes, and kill -9 of workers, shards and gateways: every job is done, none is left behind."""

import os
import random
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from topics.client import ApiError, Client, Retries, Unreachable
from topics.ids import slot_of
from topics.testing.server import DEADLINE_S, ROOT, Server, join, wait_until

WORKERS, JOBS, BATCH = 16, 1500, 25
KILLED_REDRIVES = 6
PATIENT = Retries(first_s=0.02, longest_s=0.5, total_s=60.0)


class Crowd:
    """Worker processes; one that is killed is replaced by another."""

    def __init__(self, url: str, queue: str, folder: Path) -> None:
        self._url = url
        self._queue = queue
        self._folder = folder
        self._made = 0
        self.processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> "Crowd":
        for _ in range(WORKERS):
            self.hire()
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait(timeout=DEADLINE_S)

    def hire(self) -> None:
        self._made += 1
        name = f"w{self._made}"
        command = [sys.executable, "-m", "tests.system.queue_workers", self._url, self._queue, name]
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        with open(self._folder / "workers.log", "ab") as log:
            self.processes.append(
                subprocess.Popen([*command, str(self._folder / name)], env=env, stdout=log, stderr=log)
            )

    def kill_one(self, chance: random.Random) -> None:
        victim = self.processes.pop(chance.randrange(len(self.processes)))
        victim.kill()
        victim.wait(timeout=DEADLINE_S)
        self.hire()

    def done(self) -> list[int]:
        """What all workers of all times have noted, but for a line that a kill cut short."""
        lines = [line for path in self._folder.glob("w[0-9]*") for line in path.read_text().split("\n")[:-1]]
        return [int(line) for line in lines]


@pytest.mark.parametrize("leases_durable", [False, True])
@pytest.mark.parametrize("end", ["supervisor killed", "all killed", "stopped"])
def test_who_holds_what_when_the_server_is_back(tmp_path, end, leases_durable):
    """Whoever is killed first, a killed server forgets leases that are not durable, and its jobs can be had at once."""
    with Server(tmp_path / "server", shards=1) as server:
        server.start().wait_ready()
        with Client(server.url) as topics:
            topics.put_topic("q", type="queue", durable=True, leases_durable=leases_durable, lease_ms=600_000)
            topics.append("q", [_job(number) for number in range(3)])
            assert len(topics.claim("q", "w", max=2)) == 2
        if end == "stopped":
            server.stop()
        else:
            server.kill_supervisor() if end == "supervisor killed" else server.kill_all()
            server.wait_gone()
        server.start().wait_ready()
        with Client(server.url) as topics:
            held = 2 if leases_durable or end == "stopped" else 0
            assert topics.state("q")["queue"]["in_flight"] == held
            assert len(topics.claim("q", "v", max=9)) == 3 - held


@pytest.mark.slow
@pytest.mark.parametrize("leases_durable", [False, True])
def test_every_job_is_done_whoever_is_killed(tmp_path, leases_durable):
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    folder = tmp_path / "workers"
    folder.mkdir()
    with Server(tmp_path / "server", shards=2, gateways=2) as server:
        server.start().wait_ready()
        with Client(server.url, retries=PATIENT) as topics, Crowd(server.url, "q", folder) as crowd:
            topics.put_topic("q", type="queue", durable=True, leases_durable=leases_durable)
            for first in range(0, JOBS, BATCH):
                topics.append("q", [_job(number) for number in range(first, first + BATCH)])
                if first % (BATCH * 6) == 0:
                    crowd.kill_one(chance)
                    server.kill(*chance.choice((("shard", 0), ("shard", 1), ("gateway", 0), ("gateway", 1))))
            wait_until(lambda: topics.state("q")["count"] == 0, "every job to be acknowledged", 120.0)
            numbers = topics.state("q")["queue"]
            assert (numbers["ready"], numbers["in_flight"], numbers["scheduled"]) == (0, 0, 0)
            assert set(crowd.done()) == set(range(JOBS))


def _job(number: int) -> dict[str, int]:
    """Some are urgent, some are for later, most are neither."""
    job = {"data": number}
    if number % 3 == 0:
        job["priority"] = number % 10
    if number % 7 == 0:
        job["delay_ms"] = number % 2000
    return job


@pytest.mark.slow
def test_no_dead_letter_is_lost_or_doubled_there_and_back_whichever_shard_is_killed(tmp_path):
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    with Server(tmp_path, shards=2, gateways=1) as server:
        server.start().wait_ready()
        slots = server.slots()
        with Client(server.url, retries=PATIENT) as topics:
            queue, dead = _on_different_shards(slots)
            config = {"type": "queue", "durable": True, "max_deliveries": 1, "dead_letter": dead, "lease_ms": 100}
            topics.put_topic(queue, **config)
            topics.append(queue, [{"data": number} for number in range(300)])
            ends = time.monotonic() + 400
            while topics.state(queue)["count"]:
                assert time.monotonic() < ends, topics.state(queue)
                if jobs := topics.claim(queue, "w", 20):
                    topics.nack(queue, "w", jobs)
                if chance.random() < 0.3:
                    server.kill("shard", chance.choice((0, 1)))
            wait_until(lambda: len(_all(topics, dead)) >= 300, "every dead letter to arrive", 60.0)
            assert sorted(_all(topics, dead)) == list(range(300))
            for _ in range(KILLED_REDRIVES):
                kill = threading.Timer(chance.random() / 20, server.kill, ("shard", chance.choice((0, 1))))
                kill.start()
                with suppress(ApiError, Unreachable):  # what has begun goes on by itself
                    topics.redrive(dead, queue, limit=40)
                join(kill)
                topics.state(queue)  # both shards are back
            ends = time.monotonic() + DEADLINE_S
            while left := topics.state(dead)["count"]:
                assert time.monotonic() < ends, f"{left} dead letters are left"
                topics.redrive(dead, queue, limit=40)
            assert sorted(_all(topics, queue)) == list(range(300))


def _on_different_shards(slots: list[int]) -> tuple[str, str]:
    names = [f"n{number}" for number in range(100)]
    first, second = (next(name for name in names if slots[slot_of(name)] == shard) for shard in (0, 1))
    return first, second


def _all(topics: Client, topic: str) -> list[int]:
    found: list[int] = []
    at = 0
    while True:
        page = topics.diff(topic, at, limit=1000)
        found += [record["data"] for record in page["records"]]
        at = page["next_from_seq"]
        if page["caught_up"]:
            return found
