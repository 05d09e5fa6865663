"""Consumers of groups, and kill -9 of shards, gateways and everything: no acknowledged cursor goes back, no record is
passed over, and no stream is sent more than it has credits for. Backups have the groups, too."""

import json
import os
import random
import subprocess
import sys
import threading
from contextlib import suppress

import pytest
from websockets.exceptions import WebSocketException

from tests.api.sockets import Socket
from topics.client import ApiError, Client, Retries
from topics.ids import slot_of
from topics.testing.server import DEADLINE_S, ROOT, Server

PATIENT = Retries(first_s=0.02, longest_s=0.5, total_s=60.0)
RECORDS, BATCH = 600, 20


class Consumer:
    """Reads for a group of its own until it has everything; notes each seq, in the order of arrival."""

    def __init__(self, server: Server, topic: str, group: str) -> None:
        self.topic, self.group = topic, group
        self.server = server
        self.seen: list[int] = []
        self.acked = 0
        self.failure: BaseException | None = None
        self.chance = random.Random(group)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while self.acked < RECORDS:
                self.work()
        except BaseException as error:
            self.failure = error

    def work(self) -> None:
        raise NotImplementedError

    def note(self, seqs: list[int], cursor: int) -> None:
        """What came after a cursor: nothing is missing, and the cursor is not one from before."""
        assert cursor >= self.acked, f"the group was done up to {self.acked}, and stands at {cursor}"
        assert seqs == list(range(cursor + 1, cursor + 1 + len(seqs)))
        self.seen += seqs

    def acknowledged(self, cursor: int) -> None:
        """Of several acks under way the answers may come in any order."""
        self.acked = max(self.acked, cursor)

    def finish(self) -> None:
        self._thread.join(120)
        if self.failure is not None:
            raise self.failure
        assert not self._thread.is_alive()
        assert sorted(set(self.seen)) == list(range(1, RECORDS + 1))


class Fetching(Consumer):
    """Over HTTP. Now and then it comes back under a new name, as after a crash of its own."""

    def work(self) -> None:
        consumer = f"{self.group}-{self.chance.random()}"
        with Client(self.server.url, retries=PATIENT) as topics:
            for _ in range(self.chance.randrange(1, 8)):
                page = topics.group_fetch(self.topic, self.group, consumer=consumer, limit=7, wait_ms=200)
                self.note([record["$seq"] for record in page["records"]], page["cursor_seq"])
                if page["records"]:
                    answer = topics.group_ack(self.topic, self.group, page["next_from_seq"], consumer=consumer)
                    self.acknowledged(answer["cursor_seq"])


class Streaming(Consumer):
    """Over a WebSocket, with credits; connects again when it was cut off."""

    CREDITS = 10

    def work(self) -> None:
        with suppress(OSError, WebSocketException, TimeoutError), Socket(self.server.port) as ws:
            ws.send(op="subscribe", topic=self.topic, group=self.group, credits=self.CREDITS)
            left, at = self.CREDITS, None
            while self.acked < RECORDS:
                frame = ws.receive()
                if frame["op"] == "subscribed":
                    at = frame["topics"][self.topic]["from_seq"]
                elif frame["op"] == "record":
                    assert at is not None
                    seqs = [record["$seq"] for record in frame["records"]]
                    left -= len(seqs)
                    assert left >= 0, f"{-left} records more than there were credits for"
                    self.note(seqs, at)
                    at = frame["to_seq"]
                    ws.send(op="ack", topic=self.topic, seq=at)
                    ws.send(op="credit", topic=self.topic, n=len(seqs))
                    left += len(seqs)
                elif frame["op"] == "acked":
                    self.acknowledged(frame["cursor_seq"])
                elif frame["op"] == "error" and frame["code"] != "not_ready":
                    raise AssertionError(frame)


def name_on(shard: int, shards: list[int], stem: str) -> str:
    return next(name for n in range(10_000) if shards[slot_of(name := f"{stem}{n}")] == shard)


@pytest.mark.slow
def test_no_acknowledged_cursor_goes_back_whoever_is_killed(tmp_path):
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    with Server(tmp_path, shards=2, gateways=2) as server:
        server.start().wait_ready()
        names = [name_on(shard, server.slots(), "t") for shard in (0, 1)]
        with Client(server.url, retries=PATIENT) as topics:
            for name, durability in zip(names, ("fsync", "disk"), strict=True):
                topics.put_topic(name, durability=durability)
            consumers: list[Consumer] = [
                kind(server, name, f"{kind.__name__}{n}")
                for kind in (Fetching, Streaming)
                for n, name in enumerate(names)
            ]
            for first in range(0, RECORDS, BATCH):
                for name in names:
                    topics.append(name, [{"data": n} for n in range(first, first + BATCH)])
                if first % (BATCH * 5) == 0:
                    server.kill(*chance.choice((("shard", 0), ("shard", 1), ("gateway", 0), ("gateway", 1))))
            for consumer in consumers:
                consumer.finish()
            for consumer in consumers:
                assert topics.group(consumer.topic, consumer.group)["cursor_seq"] == RECORDS


@pytest.mark.slow
def test_acks_stand_after_everything_was_killed(tmp_path):
    """Many groups acknowledge at once until the whole server is gone; what was answered is there again."""
    with Server(tmp_path, shards=1) as server:
        server.start().wait_ready()
        with Client(server.url, retries=PATIENT) as topics:
            topics.put_topic("t", durability="disk")
            topics.append("t", [{"data": n} for n in range(5000)])
        for _ in range(3):
            acked = _ack_until_killed(server)
            server.start().wait_ready()
            with Client(server.url, retries=PATIENT) as topics:
                stands = {group["group"]: group["cursor_seq"] for group in topics.groups("t")}
                assert all(stands[group] >= cursor for group, cursor in acked.items())
                assert any(acked.values())


def _ack_until_killed(server: Server) -> dict[str, int]:
    """The last cursor of each group that was answered."""
    acked: dict[str, int] = {}
    enough = threading.Event()

    def work(group: str) -> None:
        impatient = Retries(total_s=0.0)
        with suppress(Exception), Client(server.url, retries=impatient) as topics:
            acked[group] = topics.put_group("t", group)["cursor_seq"]
            for seq in range(acked[group] + 1, 5000):
                acked[group] = topics.group_ack("t", group, seq)["cursor_seq"]
                if seq > 30:
                    enough.set()

    threads = [threading.Thread(target=work, args=(f"g{n}",), daemon=True) for n in range(6)]
    for thread in threads:
        thread.start()
    assert enough.wait(60)
    server.kill_all()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    return acked


def test_a_backup_has_the_groups(tmp_path):
    def run(*arguments: str) -> str:
        command = [sys.executable, "-m", "topics.cli", *arguments]
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=DEADLINE_S)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    with Server(tmp_path / "a", shards=2) as server:
        server.start().wait_ready()
        with Client(server.url) as topics:
            for name in ("x", "y", "z"):
                topics.append(name, [{"data": n} for n in range(10)])
                topics.group_fetch(name, "g", consumer="one")
                topics.group_fetch(name, "g", consumer="two")
                topics.group_ack(name, "g", 4)
            run("backup", str(tmp_path / "kept"), "--data-dir", str(server.data))
            topics.group_ack("x", "g", 9)
            assert server.stop() == 0
            run("verify", str(server.data))
    run("restore", str(tmp_path / "kept"), str(tmp_path / "b" / "data"))
    assert json.loads(run("verify", str(tmp_path / "b" / "data"), "--json"))["clean"] is True
    with Server(tmp_path / "b", shards=2) as server:
        server.start().wait_ready()
        with Client(server.url) as topics:
            for name in ("x", "y", "z"):
                group = topics.group(name, "g")
                assert (group["cursor_seq"], group["consumer"], group["lag"]) == (4, "two", 6)
                with pytest.raises(ApiError) as refused:
                    topics.group_fetch(name, "g", consumer="one")
                assert refused.value.code == "taken_over"
