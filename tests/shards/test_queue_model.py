"""A queue on a disk that loses power, against a naive model.

Whatever happens in whatever order, no job is lost, none is held twice, what was acknowledged stays gone, deliveries are
counted, the most urgent come first and none before its time, and dead letters are made exactly when due, with the last
reason, and once moved back are jobs like new ones.
"""

import random
from typing import Any

import pytest
import trio

from tests.shards.queue_shard import QueueShard, seqs_of, serving
from topics.testing.fake_clock import FakeClock
from topics.testing.faulty_files import FaultyFiles
from topics.testing.rpc_pair import until

OPS, LEASE_MS, AGE_MS, MOST = 60, 1000, 700, 2
NODES = ("a", "b", "c")
GIVEN_BACK, EXPIRED = "given back without a reason", "lease expired"


class Job:
    def __init__(self, now: int, priority: int, delay_ms: int) -> None:
        self.priority = priority
        self.since = now + delay_ms  # it waits from then on
        self.timed = bool(delay_ms)
        self.reset()

    def reset(self) -> None:
        """Nobody knows any more who held it and how often."""
        self.node: str | None = None
        self.deadline = 0
        self.due = self.since
        self.times = 0
        self.spared = 0  # deliveries that do not count
        self.lease = ""
        self.reason = ""
        self.fresh = not self.timed
        self.given = False

    def is_free(self, now: int) -> bool:
        return self.due <= now and (self.node is None or self.deadline < now)

    def rank(self, now: int, levels: bool) -> tuple[int, bool, int]:
        since = self.since + (self.times + self.spared) * AGE_MS
        level = min(9, self.priority + max(0, now - since) // AGE_MS) if levels else 0
        return -level, self.fresh and level < 9, since


class Model:
    def __init__(self) -> None:
        self.jobs: dict[int, Job] = {}
        self.dead: dict[int, Job] = {}
        self.deaths = 0
        self.next_seq = 1

    def produce(self, count: int, now: int, priority: int, delay_ms: int) -> list[int]:
        made = list(range(self.next_seq, self.next_seq + count))
        self.next_seq += count
        self.jobs |= {seq: Job(now, priority, delay_ms) for seq in made}
        return made

    def claim(self, node: str, count: int, now: int, *, levels: bool) -> list[int]:
        free = [seq for seq, job in self.jobs.items() if job.is_free(now)]
        given: list[int] = []
        for seq in sorted(free, key=lambda seq: (*self.jobs[seq].rank(now, levels), seq)):
            if len(given) == count:
                break
            job = self.jobs[seq]
            if job.times >= MOST:
                job.reason = EXPIRED if job.node is not None else job.reason
                self.dead[seq] = self.jobs.pop(seq)
                self.deaths += 1
                continue
            given.append(seq)
            job.node, job.deadline, job.times, job.fresh, job.given = node, now + LEASE_MS, job.times + 1, False, True
        return given if levels else sorted(given)

    def held(self, node: str, seqs: list[int]) -> list[int]:
        return [seq for seq in seqs if seq in self.jobs and self.jobs[seq].node == node]

    def counts(self, now: int) -> dict[str, int]:
        jobs = self.jobs.values()
        return {
            "ready": sum(job.is_free(now) for job in jobs),
            "in_flight": sum(job.node is not None and job.deadline >= now for job in jobs),
            "dead_lettered": self.deaths,
            "scheduled": sum(job.timed and not job.given and job.since > now for job in jobs),
        }


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
        what = chance.choice(("produce", "claim", "claim", "ack", "nack", "extend", "wait", "redrive"))
        node = chance.choice(NODES)
        if what == "produce":
            await self._produce(chance.randint(1, 4))
        elif what == "wait":
            shard.clock.advance(chance.choice((1, 400, LEASE_MS, LEASE_MS + 1)))
        elif what == "claim":
            await self._claim(node, chance.randint(1, 5))
        elif what == "redrive":
            await self._redrive()
        else:
            await self._settle(what, node, chance.sample(range(1, model.next_seq + 2), min(3, model.next_seq + 1)))
        assert (await shard.call("state"))["queue"] == model.counts(self.now)

    async def _produce(self, count: int) -> None:
        terms: dict[str, Any] = {}
        if self.chance.random() < 0.5:
            terms["priority"] = self.chance.choice((0, 1, 5, 9))
        if self.chance.random() < 0.3:
            terms["delay_ms"] = self.chance.choice((0, 1, 500, 3000))
        expected = self.model.produce(count, self.now, terms.get("priority", 0), terms.get("delay_ms", 0))
        assert await self.shard.produce(*range(count), **terms) == expected

    async def _claim(self, node: str, count: int) -> None:
        line = self.shard.queues.find("q").leases.line
        levels = line is not None and len(line.priorities) > 1
        expected = self.model.claim(node, count, self.now, levels=levels)
        jobs = await self.shard.claim(count, node, lease_ms=LEASE_MS)
        assert seqs_of(jobs) == expected
        for job in jobs:
            known = self.model.jobs[job["$seq"]]
            assert (job["deliveries"], job["deadline"]) == (known.times, known.deadline)
            assert job.get("priority", 0) == known.priority
            known.lease = job["lease_id"]

    async def _redrive(self) -> None:
        """The oldest dead letter becomes the newest job."""
        letters = await self.letters()
        if letters:
            seq = next(iter(letters))
            job = self.model.dead.pop(seq)
            self.model.produce(1, self.now, job.priority, 0)
            answer = await self.shard.call("redrive", "dead", {"to": "q", "limit": 1})
            assert (answer["moved"], answer["remaining"], answer["pending"]) == (1, len(letters) - 1, 0)

    async def letters(self) -> dict[int, str]:
        """The dead letters in their order: where they were, and why they are there."""
        topics = self.shard.queues.store.engine.state.topics
        await until(lambda: "dead" not in topics or topics["dead"].count == len(self.model.dead))  # moves are finished
        metas = [record["meta"] for record in await self.shard.records("dead")] if "dead" in topics else []
        told = {int(meta["$dead_letter_src_seq"]): meta["$dead_letter_reason"] for meta in metas}
        assert told == {seq: job.reason for seq, job in self.model.dead.items()}
        assert {meta["$dead_letter_deliveries"] for meta in metas} <= {str(MOST)}
        return told

    async def _settle(self, what: str, node: str, seqs: list[int]) -> None:
        model, chance = self.model, self.chance
        held = model.held(node, seqs)
        more: dict[str, Any] = {}
        if chance.random() < 0.3:  # a fence that is wrong for some
            leases = [model.jobs[seq].lease or "lease_1" if seq in model.jobs else "lease_1" for seq in seqs]
            wrong = chance.randrange(len(seqs))
            leases[wrong] = "lease_0"
            held = [seq for seq in held if seq != seqs[wrong]]
            more["lease_ids"] = leases
        if what == "nack":
            more |= {"delay_ms": chance.choice((0, 500)), "penalty": chance.random() < 0.7}
            more |= {"reason": chance.choice(("no", "out of tea"))} if chance.random() < 0.5 else {}
        elif what == "extend":
            more["lease_ms"] = 2 * LEASE_MS
        answer = await self.shard.settle(what, *seqs, node=node, **more)
        assert sorted(answer["skipped"]) == sorted(set(seqs) - set(held))
        for seq in held:
            if what == "ack":
                del model.jobs[seq]
            elif what == "extend":
                model.jobs[seq].deadline = self.now + 2 * LEASE_MS
            else:
                self._give_back(model.jobs[seq], more)

    def _give_back(self, job: Job, nack: dict[str, Any]) -> None:
        job.node, job.due = None, self.now + nack["delay_ms"]
        job.times -= not nack["penalty"]
        job.spared += not nack["penalty"]
        if "reason" in nack or nack["penalty"]:
            job.reason = nack.get("reason", GIVEN_BACK)


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
                await shard.make(**config, max_deliveries=MOST, dead_letter="dead", priority_age_ms=AGE_MS)
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
                for job in model.jobs.values():
                    job.reset()


async def _finish(run: Run) -> None:
    """Everything that is left can be claimed and done; what is dead is in the dead-letter topic, once."""
    shard, model = run.shard, run.model
    with trio.fail_after(60):
        while model.jobs:
            shard.clock.advance(3 * LEASE_MS)
            await run._claim("a", 50)
            held = [seq for seq, job in model.jobs.items() if job.node == "a"]
            if held:
                assert (await shard.settle("ack", *held, node="a"))["skipped"] == []
            for seq in held:
                del model.jobs[seq]
    assert await shard.counts() == (0, 0, model.deaths)
    await run.letters()
