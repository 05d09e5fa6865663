"""A queue on a disk that loses power, against a naive model.

Whatever happens in whatever order, no job is lost, none is held twice, what was acknowledged stays gone, deliveries are
counted, and dead letters are made exactly when due.
"""

import random
from typing import Any

import pytest
import trio

from tests.shards.queue_shard import QueueShard, seqs_of, serving
from topics.testing.fake_clock import FakeClock
from topics.testing.faulty_files import FaultyFiles

OPS, LEASE_MS, MOST = 60, 1000, 2
NODES = ("a", "b", "c")


class Model:
    """The jobs by seq: who holds it until when, when it is free, how often it was delivered."""

    def __init__(self) -> None:
        self.jobs: dict[int, dict[str, Any]] = {}
        self.dead: list[int] = []
        self.next_seq = 1

    def produce(self, count: int) -> list[int]:
        made = list(range(self.next_seq, self.next_seq + count))
        self.next_seq += count
        for seq in made:
            self.jobs[seq] = {"node": None, "deadline": 0, "due": 0, "times": 0, "lease": ""}
        return made

    def is_free(self, seq: int, now: int) -> bool:
        job = self.jobs[seq]
        return job["due"] <= now and (job["node"] is None or job["deadline"] < now)

    def claim(self, node: str, count: int, now: int) -> list[int]:
        free = [seq for seq in self.jobs if self.is_free(seq, now)]
        given: list[int] = []
        for seq in sorted(free, key=lambda seq: (not self.jobs[seq]["times"], seq)):
            if len(given) == count:
                break
            if self.jobs[seq]["times"] >= MOST:
                del self.jobs[seq]
                self.dead.append(seq)
                continue
            given.append(seq)
            self.jobs[seq] |= {"node": node, "deadline": now + LEASE_MS, "times": self.jobs[seq]["times"] + 1}
        return sorted(given)

    def held(self, node: str, seqs: list[int]) -> list[int]:
        return [seq for seq in seqs if seq in self.jobs and self.jobs[seq]["node"] == node]

    def counts(self, now: int) -> tuple[int, int, int]:
        flying = sum(job["node"] is not None and job["deadline"] >= now for job in self.jobs.values())
        return sum(self.is_free(seq, now) for seq in self.jobs), flying, len(self.dead)

    def forget_leases(self) -> None:
        for job in self.jobs.values():
            job |= {"node": None, "due": 0, "times": 0}


class Run:
    def __init__(self, shard: QueueShard, model: Model, chance: random.Random) -> None:
        self.shard = shard
        self.model = model
        self.chance = chance

    @property
    def now(self) -> int:
        now: int = self.shard.clock.now_ms()
        return now

    async def step(self) -> None:
        model, chance, shard = self.model, self.chance, self.shard
        what = chance.choice(("produce", "claim", "claim", "ack", "nack", "extend", "wait"))
        node = chance.choice(NODES)
        some = chance.sample(range(1, model.next_seq + 2), min(3, model.next_seq + 1))
        if what == "produce":
            count = chance.randint(1, 4)
            assert await shard.produce(*range(count)) == model.produce(count)
        elif what == "wait":
            shard.clock.advance(chance.choice((1, 400, LEASE_MS, LEASE_MS + 1)))
        elif what == "claim":
            await self._claim(node, chance.randint(1, 5))
        else:
            await self._settle(what, node, some)
        assert await shard.counts() == model.counts(self.now)

    async def _claim(self, node: str, count: int) -> None:
        jobs = await self.shard.claim(count, node, lease_ms=LEASE_MS)
        assert seqs_of(jobs) == self.model.claim(node, count, self.now)
        for job in jobs:
            known = self.model.jobs[job["$seq"]]
            assert job["deliveries"] == known["times"]
            assert job["deadline"] == known["deadline"]
            known["lease"] = job["lease_id"]

    async def _settle(self, what: str, node: str, seqs: list[int]) -> None:
        model = self.model
        held = model.held(node, seqs)
        more: dict[str, Any] = {}
        if self.chance.random() < 0.3:  # a fence that is wrong for some
            leases = [model.jobs.get(seq, {}).get("lease") or "lease_1" for seq in seqs]
            wrong = self.chance.randrange(len(seqs))
            leases[wrong] = "lease_0"
            held = [seq for seq in held if seq != seqs[wrong]]
            more["lease_ids"] = leases
        delay = self.chance.choice((0, 500))
        if what == "nack":
            more["delay_ms"] = delay
        elif what == "extend":
            more["lease_ms"] = 2 * LEASE_MS
        answer = await self.shard.settle(what, *seqs, node=node, **more)
        assert sorted(answer["skipped"]) == sorted(set(seqs) - set(held))
        for seq in held:
            if what == "ack":
                del model.jobs[seq]
            elif what == "nack":
                model.jobs[seq] |= {"node": None, "due": self.now + delay}
            else:
                model.jobs[seq]["deadline"] = self.now + 2 * LEASE_MS


@pytest.mark.parametrize("leases_durable", [False, True])
@pytest.mark.parametrize("seed", range(8))
async def test_any_history_over_crashes(seed, leases_durable):
    chance, model, clock = random.Random(seed), Model(), FakeClock()
    files = FaultyFiles(seed)
    for life in range(4):
        crash = life < 3 and chance.random() < 0.7
        async with serving(files, clock, crash=crash) as shard:
            if not life:
                config = {"durable": True, "leases_durable": leases_durable, "lease_ms": LEASE_MS}
                await shard.make(**config, max_deliveries=MOST, dead_letter="dead")
            run = Run(shard, model, chance)
            for step in range(OPS):
                await run.step()
                if step % 20 == 19:
                    await shard.shard.checkpoint()
            if life == 3:
                await _finish(run)
        if crash:
            files = files.crash(seed, power_loss=chance.random() < 0.7)
            if not leases_durable:
                model.forget_leases()


async def _finish(run: Run) -> None:
    """Everything that is left can be claimed and done; what is dead is in the dead-letter topic, once."""
    shard, model = run.shard, run.model
    with trio.fail_after(60):
        while model.jobs:
            shard.clock.advance(3 * LEASE_MS)
            await run._claim("a", 50)
            held = [seq for seq, job in model.jobs.items() if job["node"] == "a"]
            if held:
                assert (await shard.settle("ack", *held, node="a"))["skipped"] == []
            for seq in held:
                del model.jobs[seq]
    assert await shard.counts() == (0, 0, len(model.dead))
    letters = await shard.records("dead") if model.dead else []
    assert sorted(int(letter["meta"]["$dead_letter_src_seq"]) for letter in letters) == sorted(model.dead)
    assert {letter["meta"]["$dead_letter_deliveries"] for letter in letters} <= {str(MOST)}
