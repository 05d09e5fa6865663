"""Four topics in a row on two shards, either of which crashes at any point, or both, or the power fails: nothing that
readers of a copy saw is lost or moves, whatever was deleted from the topics before it. Random histories; a failure
names its seed."""

import itertools
import os
import random

import pytest
import trio

from tests.shards.derived_bench import Bench, Wire, bounded
from topics.core.routes import Definition
from topics.ids import SLOTS, slot_of
from topics.shards.peers import Peers

DEPTH = int(os.environ.get("TOPICS_TEST_DEPTH", "1"))
CHAIN = ("s", "d", "e", "f")
PLACES = ((0, 0, 0, 0), (0, 1, 0, 1), (0, 1, 1, 0), (0, 0, 1, 1))


class World:
    """Two shards and what readers saw of each topic."""

    def __init__(self, seed, nursery):
        self._nursery = nursery
        self.seed = seed
        self.dice = random.Random(seed)
        self.places = dict(zip(CHAIN, self.dice.choice(PLACES), strict=True))
        self.benches = [Bench(seed), Bench(seed + 1)]
        self._ends = [(trio.Event(), trio.Event()), (trio.Event(), trio.Event())]  # to come, and over
        self.slots = [0] * SLOTS
        for topic, place in self.places.items():
            self.slots[slot_of(topic)] = place
        self.seen: dict[str, dict[int, str]] = {topic: {} for topic in CHAIN}
        self.deleted: dict[str, set[int]] = {topic: set() for topic in CHAIN}
        self.power_failed = False

    def bench(self, topic):
        return self.benches[self.places[topic]]

    async def start(self, index):
        self._ends[index] = ends = (trio.Event(), trio.Event())
        peers = Peers(index, self.slots, {1 - index: Wire(self.benches[1 - index])})

        async def live(task_status):
            async with self.benches[index].life(peers):
                task_status.started()
                await ends[0].wait()
            ends[1].set()

        await self._nursery.start(live)

    async def end(self, index):
        self._ends[index][0].set()
        await self._ends[index][1].wait()

    async def crash(self, indexes, *, power_loss=False):
        self.look()
        for index in indexes:
            if not power_loss:
                self.benches[index].write()  # a kill takes nothing from the file
            await self.end(index)
            bench, other = self.benches[index], self.benches[1 - index]
            bench.files = bench.files.crash(self.dice.randrange(1 << 30), power_loss=power_loss)
            if other.nursery is not None:
                for sender in other.routers.peers._others.values():
                    other.routers._peer_lost(sender)
        for index in indexes:
            await self.start(index)
        self.power_failed = power_loss

    async def settle(self):
        with bounded():
            while not all(route.is_settled for bench in self.benches for route in bench.routers._routes.values()):
                for bench in self.benches:
                    bench.held = False
                    bench.kick.set()
                await trio.sleep(0.01)

    async def checkpoint(self, index):
        """With anything between its steps, as in a shard."""
        bench = self.benches[index]
        unneeded = await bench.remains.unneeded() if self.dice.random() < 0.5 else []
        for _ in bench.checkpoint_in_steps(unneeded):
            await self.step(self.dice.randrange(5))

    async def step(self, what):
        dice = self.dice
        topic = dice.choice(CHAIN)
        if what < 2:
            self.bench("s").append("s", dice.choice((1, 2, 20)))
        elif what == 2:
            self.delete(topic, dice.sample(list(self.live(topic)), min(3, len(self.live(topic)))))
        elif what == 3:
            head_seq = self.bench(topic).engine.state.topics[topic].head_seq
            bound = dice.choice((head_seq + 1, *self.live(topic))) if dice.random() < 0.5 else head_seq + 1
            self.deleted[topic].update(range(1, bound))
            self.bench(topic).delete_before(topic, bound)
        elif what == 4:
            dice.choice(self.benches).routers.marks.write()
        if dice.random() < 0.6:
            await trio.testing.wait_all_tasks_blocked()

    def live(self, topic):
        return self.bench(topic).read(topic)[0]

    def delete(self, topic, seqs):
        if seqs:
            self.deleted[topic].update(seqs)
            self.bench(topic).delete(topic, seqs)

    def look(self):
        for topic in CHAIN:
            derived = self.bench(topic).engine.state.topics[topic].derived
            if derived is None or not derived.missing:
                self.seen[topic].update(self.live(topic))

    def verify(self):
        for topic in CHAIN:
            records, gaps = self.bench(topic).read(topic)
            assert gaps == [], (self.seed, topic, gaps)
            if self.power_failed:
                self.deleted[topic] -= records.keys()  # before the delete was durable
            assert not self.deleted[topic] & records.keys(), (self.seed, topic, "deleted, and back")
            for seq, data in self.seen[topic].items():
                if seq not in self.deleted[topic]:
                    assert records.get(seq) == data, (self.seed, topic, seq, data, records.get(seq))


async def history(world):
    dice = world.dice
    for index in (0, 1):
        await world.start(index)
    for topic in CHAIN:
        await world.bench(topic).put_topic(topic, durability="fsync")
    for source, dest in itertools.pairwise(CHAIN):
        await world.bench(source).put_router(f"{source}-{dest}", Definition(source, dest))
    for _ in range(5):
        for _ in range(dice.randrange(2, 14)):
            if dice.random() < 0.25:
                await world.checkpoint(dice.randrange(2))
            else:
                await world.step(dice.randrange(8))
        power_loss = dice.random() < 0.4
        await world.crash([0, 1] if power_loss else dice.choice(([0], [1], [0, 1])), power_loss=power_loss)
        await world.settle()
        world.look()
        world.verify()
    for index in (0, 1):
        await world.end(index)


@pytest.mark.parametrize("seed", range(60 * DEPTH))
async def test_nothing_is_lost_along_a_chain(seed, autojump_clock):
    async with trio.open_nursery() as nursery:
        await history(World(seed, nursery))
