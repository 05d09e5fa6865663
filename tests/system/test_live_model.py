"""Random appends, deletes, evictions, lost connections and kills: every follower saw every record that stayed, once and
in order, and a tombstone for every one that was lost.
"""

import random
from typing import Any

import pytest

from tests.system.client import Client, Crew
from tests.system.followers import Follower
from topics.testing.server import wait_until

STEPS = 120
CAP = 8
OWN = "follower"


class Model:
    """What is written, and which of it may be missing."""

    KEPT, CAPPED, DELETED = "kept", "capped", "deleted"

    def __init__(self, client: Client) -> None:
        self.client = client
        self.written: dict[str, dict[int, dict[str, Any]]] = {self.KEPT: {}, self.CAPPED: {}, self.DELETED: {}}
        self.removed: set[int] = set()  # of the topic `deleted`
        self._number = 0
        for topic in self.written:
            client.put(topic, durability="fsync", **({"cap_records": CAP} if topic == self.CAPPED else {}))

    def append(self, dice) -> None:
        topic = dice.choice(list(self.written))
        records = []
        for _ in range(dice.choice((1, 1, 2, 5, CAP + 5))):
            self._number += 1
            records.append({"data": self._number, "tag": f"t{dice.randrange(3)}"})
            if dice.random() < 0.2:
                records[-1]["node"] = OWN
        answer = self.client.append(topic, {"records": records, "idempotency_key": f"k{self._number}"})
        self.written[topic] |= dict(zip(answer["seqs"], records, strict=True))

    def delete(self, dice) -> None:
        seqs, query = self.written[self.DELETED], {}
        if not seqs:
            return
        if dice.random() < 0.5:
            query["before_seq"] = dice.choice(sorted(seqs))
        if not query or dice.random() < 0.5:
            query["match"] = f"t{dice.randrange(3)}"
        self.removed |= {
            seq
            for seq, record in seqs.items()
            if seq < query.get("before_seq", max(seqs) + 1) and record["tag"] == query.get("match", record["tag"])
        }
        self.client.delete(self.DELETED, **query)

    def check(self, follower: Follower, *, filtered: bool) -> None:
        for topic, records in self.written.items():
            seen = dict(follower.seen[topic])
            assert len(seen) == len(follower.seen[topic]), "seen twice"
            assert all(seen[seq] == records[seq]["data"] for seq in seen)
            lost = {seq for gap in follower.gaps[topic] for seq in range(gap["gap_from"], gap["gap_to"] + 1)}
            assert not lost & seen.keys()
            assert not lost or topic == self.CAPPED, "only eviction is told"
            own = {seq for seq, record in records.items() if filtered and record.get("node") == OWN}
            assert not own & seen.keys()
            removed = self.removed if topic == self.DELETED else set()
            assert records.keys() - own - removed <= seen.keys() | lost, (topic, "lost in silence")
            live = {record["$seq"] for record in self.client.read_all(topic)[0]}
            assert not lost & live, "told to be lost, but there"


def hurt(server, dice) -> None:
    kind, count = dice.choice((("shard", 2), ("gateway", 2)))
    index = dice.randrange(count)
    pid = server.kill(kind, index)
    if dice.random() < 0.5:
        server.wait_back(kind, index, pid)


@pytest.mark.parametrize("seed", [1, 2])
def test_random_histories(serve, seed):
    server, dice, crew = serve(shards=2, gateways=2), random.Random(seed), Crew()
    try:
        with Client(server) as client:
            model = Model(client)
            starts: dict[str, Any] = {topic: {} for topic in model.written}
            views: list[dict[str, Any]] = [
                {}, {"limit": 1}, {"max_batch_bytes": 30}, {"node": OWN}, {"consistency": "strong", "node": OWN}
            ]  # fmt: skip
            followers = [(Follower(server, crew, starts, **view), "node" in view) for view in views]
            for step in range(STEPS):
                act = dice.choices(("append", "delete", "drop", "hurt"), (80, 10, 8, 2))[0]
                if act == "drop":
                    dice.choice(followers)[0].drop()
                elif act == "hurt" or step == STEPS // 2:
                    hurt(server, dice)
                else:
                    getattr(model, act)(dice)
            server.wait_whole()
            last = {topic: client.append(topic, {"records": [{"data": "end"}]})["last_seq"] for topic in starts}
            for topic, seq in last.items():
                model.written[topic][seq] = {"data": "end"}

            def done() -> bool:
                crew.check()
                return all(each.head(topic) == seq for each, _ in followers for topic, seq in last.items())

            wait_until(done, "everybody to see the end")
            for follower, filtered in followers:
                model.check(follower, filtered=filtered)
    finally:
        crew.join()
