"""One shard down: what its topics answer, and that nobody else notices."""

import os
import random
import signal
import time

import pytest

from tests.system.client import Client, Crew
from tests.system.load import name_on
from topics.board import Board
from topics.testing.server import send_signal, wait_until

SHARDS = 3


@pytest.fixture
def server(serve):
    return serve(shards=SHARDS, gateways=2)


@pytest.fixture
def client(server):
    with Client(server) as client:
        yield client


class Bystanders:
    """Clients of other shards' topics. They do not retry: whatever is not a success fails the test."""

    def __init__(self, server, topics) -> None:
        self.server = server
        self.topics = topics
        self.crew = Crew()
        self.done = dict.fromkeys(topics, 0)

    def __enter__(self):
        for topic in self.topics:
            self.crew.start(self._work, topic)
        return self

    def __exit__(self, *_):
        self.crew.join()

    def _work(self, topic):
        with Client(self.server) as client:
            while not self.crew.stopping.is_set():
                appended = client.once("POST", f"/v0/topics/{topic}", {"records": [{"data": self.done[topic]}]})
                assert appended.status_code in (200, 201), appended.text
                read = client.once("POST", f"/v0/topics/{topic}/diff", {"from_seq": self.done[topic]})
                assert read.status_code == 200, read.text
                assert [record["data"] for record in read.json()["records"]] == [self.done[topic]]
                assert client.once("GET", f"/v0/topics/{topic}").status_code == 200
                self.done[topic] += 1

    def wait_progress(self, rounds=10):
        """Until each has been served some more rounds, all of which began after this call."""
        goal = {topic: done + rounds + 1 for topic, done in self.done.items()}

        def reached():
            self.crew.check()
            return all(self.done[topic] >= least for topic, least in goal.items())

        wait_until(reached, "the bystanders")


def check_not_ready(answer):
    assert answer.status_code == 503, answer.text
    assert answer.json()["error"]["code"] == "not_ready"
    assert int(answer.headers["retry-after"]) >= 1
    assert set(answer.json()) == {"error", "performance"}


def test_its_topics_and_lists_answer_503_and_the_others_go_on(server, client):
    down = random.randrange(SHARDS)
    print("shard", down)
    slots = server.slots()
    victim, unborn = name_on(slots, down, "victim"), name_on(slots, down, "unborn")
    others = [name_on(slots, shard, f"other{n}") for shard in range(SHARDS) if shard != down for n in range(2)]
    client.put(victim, durability="fsync")
    seqs = client.append(victim, {"records": [{"data": "kept"}]})["seqs"]
    before = {(child["kind"], child["index"]): child["pid"] for child in server.status()["children"]}
    board = Board.open(os.path.join(server.holder()["run_dir"], "board"))
    with Bystanders(server, others) as bystanders:
        bystanders.wait_progress()
        wait_until(lambda: board.total("topics") == 1 + len(others), "what the shards tell")
        with server.held_down("shard", down):
            bystanders.wait_progress()
            for _ in range(8):  # over both gateways
                with Client(server) as fresh:
                    check_not_ready(fresh.once("POST", f"/v0/topics/{victim}", {"records": [{"data": 1}]}))
                    check_not_ready(fresh.once("POST", f"/v0/topics/{victim}/diff", {}))
                    check_not_ready(fresh.once("POST", f"/v0/topics/{victim}/diff", {"wait_ms": 30_000}))
                    check_not_ready(fresh.once("GET", f"/v0/topics/{victim}"))
                    check_not_ready(fresh.once("PUT", f"/v0/topics/{unborn}", {}))
                    check_not_ready(fresh.once("DELETE", f"/v0/topics/{victim}"))
                    check_not_ready(fresh.once("GET", "/v0/topics"))
                    ready = fresh.once("GET", "/v0/ready")
                    assert (ready.status_code, ready.json()["status"]) == (200, "degraded")
                    assert ready.json()["shards_down"] == [down]
                    assert ready.json()["topics"] == 1 + len(others)  # what a lost shard holds is on disk, and counts
                    assert f"\ntopics_topics {1 + len(others)}\n" in fresh.once("GET", "/v0/metrics").text
                    assert fresh.once("GET", "/v0/health").status_code == 200
            bystanders.wait_progress()
        server.wait_back("shard", down, before["shard", down])
        bystanders.wait_progress()
    assert sorted(client.names()) == sorted([victim, *others])  # and nothing was made by what was refused
    assert [(record["$seq"], record["data"]) for record in client.read_all(victim)[0]] == [(seqs[0], "kept")]
    assert client.once("GET", "/v0/ready").json()["status"] == "ready"
    after = {(child["kind"], child["index"]): child["pid"] for child in server.status()["children"]}
    assert {key for key in before if before[key] != after[key]} == {("shard", down)}


def test_a_gateway_that_starts_while_a_shard_is_down_knows_that_the_server_was_ready(server, client):
    topic = name_on(server.slots(), 1, "t")
    with server.held_down("shard", 0):
        pids = [server.kill("gateway", index) for index in (0, 1)]
        for index, pid in enumerate(pids):
            server.wait_back("gateway", index, pid)
        ready = client.once("GET", "/v0/ready")
        assert (ready.status_code, ready.json()["shards_down"]) == (200, [0])
        assert client.append(topic, {"records": [{"data": 1}]})["seqs"] == [1]


@pytest.mark.slow
def test_a_shard_that_hangs_disturbs_nobody_else_and_is_reported(server, client):
    slots = server.slots()
    pid = server.kill("shard", 0, signal.SIGSTOP)
    try:
        with Bystanders(server, [name_on(slots, shard, "t") for shard in (1, 2)]) as bystanders:
            bystanders.wait_progress()
            ready = client.once("GET", "/v0/ready")
            assert (ready.status_code, ready.json()["status"], ready.json()["shards_down"]) == (200, "degraded", [0])
            wait_until(lambda: server.child("shard", 0)["state"] == "not answering", "the supervisor to notice")
            bystanders.wait_progress()
    finally:
        send_signal(pid, signal.SIGCONT)
    wait_until(lambda: client.once("GET", "/v0/ready").json()["status"] == "ready", "the shard to answer again")
    assert server.child("shard", 0)["pid"] == pid


def test_a_long_poll_on_a_killed_shard_ends(server, client):
    """With a refusal, at once: its client asks again."""
    topic = name_on(server.slots(), 0, "t")
    client.put(topic)
    crew, answers = Crew(), []

    def poll():
        with Client(server) as mine:
            answers.append(mine.once("POST", f"/v0/topics/{topic}/diff", {"wait_ms": 30_000}))

    crew.start(poll)
    wait_until(lambda: client.once("GET", f"/v0/topics/{topic}?touch=false").json()["last_read_ts"], "the poll")
    began = time.monotonic()
    pid = server.kill("shard", 0)
    crew.join()
    print(f"answered after {time.monotonic() - began:.3f} s")
    check_not_ready(answers[0])
    server.wait_back("shard", 0, pid)
