"""SIGKILL of shards, gateways, the supervisor and everything at once, under load."""

import random
import signal
import time
from contextlib import suppress

import pytest

from tests.system.client import Client, Crew, Upload
from tests.system.load import Load
from topics.rpc import RpcError
from topics.testing.history import KILL, STOP
from topics.testing.server import send_signal, wait_until

SHARDS, GATEWAYS = 3, 2
ROUNDS = 9


class Hurt:
    """The ways to hurt a server; each returns when it is whole again."""

    def __init__(self, server, dice) -> None:
        self.server = server
        self.dice = dice

    def shard(self):
        self._children(("shard", self.dice.randrange(SHARDS)))

    def gateway(self):
        self._children(("gateway", self.dice.randrange(GATEWAYS)))

    def every_shard(self):
        self._children(*(("shard", n) for n in range(SHARDS)))

    def shard_and_gateways(self):
        self._children(("shard", self.dice.randrange(SHARDS)), ("gateway", 0), ("gateway", 1))

    def shard_that_comes_back(self):
        """Killed again while it replays."""
        server, index = self.server, self.dice.randrange(SHARDS)
        pid = server.kill("shard", index)
        again = wait_until(lambda: server.child("shard", index)["pid"] not in (0, pid) and server.kill("shard", index))
        server.wait_back("shard", index, again)

    def shard_cleanly(self):
        """It ends with a checkpoint, and starts again from it."""
        index = self.dice.randrange(SHARDS)
        pid = self.server.kill("shard", index, signal.SIGTERM)
        self.server.wait_back("shard", index, pid)

    def shard_at_its_checkpoint(self):
        """Some time between its begin and its end."""
        server, index, crew = self.server, self.dice.randrange(SHARDS), Crew()

        def checkpoint():
            with suppress(RpcError):
                server.ask_shard(index, "checkpoint")

        pid = server.pid_of("shard", index)
        crew.start(checkpoint)
        time.sleep(self.dice.random() * 0.05)
        send_signal(pid, signal.SIGKILL)
        crew.join()
        server.wait_back("shard", index, pid)

    def supervisor(self):
        """Its children end by themselves; a new server starts, even before they have."""
        old = self.server.holders()
        self.server.kill_supervisor()
        if self.dice.random() < 0.5:
            self.server.wait_gone()
        self.server.start().wait_ready()
        assert not old & self.server.holders()

    def everything(self):
        self.server.kill_all()
        self.server.start().wait_ready()

    def _children(self, *which):
        pids = [self.server.kill(*child) for child in which]
        for child, pid in zip(which, pids, strict=True):
            self.server.wait_back(*child, pid)


def test_clients_that_hang_do_not_keep_a_killed_server_from_its_successor(serve):
    """Its gateways give what is open a moment, not all the time of a clean stop."""
    server = serve(gateways=2, stop_ms=3_600_000)
    with Client(server) as client:
        client.put("t", durability="fsync")
        assert client.append("t", {"records": [{"data": "acked"}]})["seqs"] == [1]
        uploads = [Upload(server, "t", {"records": [{"data": "never"}]}) for _ in range(4)]
        server.kill_supervisor()
        server.start().wait_ready()
        for upload in uploads:
            upload.sock.close()
        assert [record["data"] for record in client.read_all("t")[0]] == ["acked"]
    assert server.stop() == 0


WAYS = [name for name in vars(Hurt) if not name.startswith("_")]


@pytest.mark.slow
def test_nothing_acked_is_lost_doubled_or_reordered(serve):
    """The whole history is linearizable, see topics/testing/judge.py; on `disk` topics but for what tombstones tell."""
    seed = random.randrange(1 << 32)
    dice = random.Random(seed)
    server = serve(shards=SHARDS, gateways=GATEWAYS)
    hurt = Hurt(server, dice)
    ways = (dice.sample(WAYS, len(WAYS)) + dice.choices(WAYS, k=ROUNDS))[:ROUNDS]
    print("seed", seed, *ways)
    with Load(server, seed) as load:
        load.wait_progress()
        for way in ways:
            began = time.monotonic()
            getattr(hurt, way)()
            if way != "gateway":
                load.crashed(began, STOP if way == "shard_cleanly" else KILL)
            load.wait_progress()
    print(load.verify())
    began = time.monotonic()
    server.kill_all()
    server.start().wait_ready()
    load.crashed(began, KILL)
    load.verify()
    assert server.stop() == 0
    assert not server.holders()
    server.start().wait_ready()
    load.verify()
    assert "Traceback" not in server.text()
