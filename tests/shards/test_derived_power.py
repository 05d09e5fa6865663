"""Copies over a loss of power: what readers of a destination saw at a seq comes back there, or is told; no seq shows
another record. Random histories; a failure names its seed."""

import json
import os
import random
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import trio.testing

from tests.shards.derived_bench import Bench, Call, Wire
from tests.shards.wal_logs import get, put
from topics.core.match import TagMatch
from topics.core.routes import Definition
from topics.errors import TopicsError
from topics.ids import SLOTS, slot_of
from topics.rpc.open_calls import Reply
from topics.shards import wal, walscan
from topics.shards.peers import Peers
from topics.shards.queues import Queues

DEPTH = int(os.environ.get("TOPICS_TEST_DEPTH", "1"))
TAGS = (TagMatch("Eq", "t"), TagMatch("Eq", "u"), None, None)


class Machine:
    """A source and its destination, in one shard or in two that lose power together."""

    def __init__(self, shards, seed=1):
        self.source = Bench(seed)
        self.dest = self.source if shards == 1 else Bench(seed + 1)
        self.dice = self.source.dice

    @asynccontextmanager
    async def life(self):
        if self.source is self.dest:
            async with self.source.life():
                yield
            return
        async with self.dest.life(self.peers(1)), self.source.life(self.peers(0)):
            yield

    def peers(self, index):
        slots = [0] * SLOTS
        slots[slot_of("d")] = 1
        return Peers(index, slots, {1 - index: Wire(self.source if index else self.dest)})

    async def settle(self):
        await self.source.settle()
        self.dest.sync()

    def crash(self, power_loss=True):
        for bench in {self.source, self.dest}:
            bench.files = bench.files.crash(self.dice.randrange(1 << 30), power_loss=power_loss)


async def ack_all(bench):
    """As a worker does."""
    queues = Queues(bench.store, Peers())
    for method, body in (
        (queues.claim, {"node": "w", "max": 10}),
        (queues.verdicts.ack, {"node": "w", "seqs": [1, 2, 3]}),
    ):
        call = Call(bench, {"topic": "s"}, json.dumps(body).encode())
        method(call)  # type: ignore[arg-type]
        await call.over.wait()
        assert isinstance(call.answer, Reply), call.answer


async def lose(machine, how):
    """All that is in the source, which then has one more record."""
    source = machine.source
    if how == "delete":
        source.delete("s", set(source.read("s")[0]))
    elif how == "ack":
        await ack_all(source)
    elif how == "before":
        source.delete_before("s", source.engine.state.topics["s"].head_seq + 1)
    elif how == "tighten":
        await source.put_topic("s", cap_records=1)
    elif how == "ttl":
        source.clock.advance(5000)
    source.append("s", 1)
    source.sync()


CONFIGS: dict[str, dict[str, Any]] = {
    "delete": {},
    "before": {},
    "ack": {"type": "queue"},
    "cap": {"cap_records": 1},
    "tighten": {},
    "ttl": {"ttl_ms": 1000},
}


@pytest.mark.parametrize("how", CONFIGS)
@pytest.mark.parametrize("dest", ["fsync", "disk", "memory"])
@pytest.mark.parametrize("shards", [1, 2])
async def test_copies_of_what_is_gone_come_back_to_their_seqs(how, dest, shards, autojump_clock):
    machine = Machine(shards)
    async with machine.life():
        await machine.source.put_topic("s", durability="fsync", **CONFIGS[how])
        await machine.dest.put_topic("d", durability=dest)
        await machine.source.put_router("r", Definition("s", "d"))
        for _ in range(3):
            machine.source.append("s", 1)
            await machine.settle()
        await lose(machine, how)
        await machine.settle()
        shown, gaps = machine.dest.read("d")
        assert list(shown.values()) == ["s0", "s1", "s2", "s3"]
        assert not gaps
    machine.crash()
    async with machine.life():
        await machine.settle()
        assert machine.dest.read("d")[0] == shown
        machine.crash(power_loss=False)
    async with machine.life():
        await machine.settle()
        assert machine.dest.read("d")[0] == shown


@pytest.mark.parametrize("dest", ["fsync", "disk"])
@pytest.mark.parametrize("released", [False, True])
@pytest.mark.parametrize("shards", [1, 2])
async def test_what_was_deleted_while_the_destination_was_full_is_not_forwarded(dest, released, shards, autojump_clock):
    """Unless it was, since."""
    machine = Machine(shards)
    source = machine.source
    async with machine.life():
        await source.put_topic("s", durability="fsync")
        await machine.dest.put_topic("d", durability=dest, cap_records=2, discard="reject")
        await source.put_router("r", Definition("s", "d"))
        source.append("s", 5)
        await trio.sleep(10)
        if released:
            await machine.dest.put_topic("d", cap_records=0)
            await machine.settle()
        source.delete_before("s", 6)
        source.sync()
        shown = machine.dest.read("d")[0]
        assert list(shown.values()) == [f"s{n}" for n in range(5 if released else 2)]
    machine.crash()
    async with machine.life():
        await trio.sleep(10)
        await machine.dest.put_topic("d", cap_records=0)
        await machine.settle()
        source.append("s", 1)
        await machine.settle()
        assert list(machine.dest.read("d")[0].values()) == [*shown.values(), "s5"]
        assert machine.dest.read("d")[0].items() > shown.items()


@pytest.mark.parametrize("shards", [1, 2])
async def test_a_router_does_not_get_past_a_delete_that_is_not_durable(shards, autojump_clock):
    """The record would be back after a power failure, and have no place left."""
    machine = Machine(shards)
    source = machine.source
    async with machine.life():
        await source.put_topic("s", durability="disk")
        await machine.dest.put_topic("d", durability="fsync")
        await source.put_router("r", Definition("s", "d"))
        source.append("s", 1)
        await machine.settle()
        source.held = True
        source.append("s", 1)
        source.delete("s", {2})
        source.append("s", 1)
        await trio.sleep(5)
        assert source.read("s")[0] == {1: "s0", 3: "s2"}
        assert machine.dest.read("d")[0] == {1: "s0"}
        source.held = False
        source.sync()
        await machine.settle()
        assert machine.dest.read("d")[0] == {1: "s0", 2: "s2"}


@pytest.mark.parametrize("source", ["memory", "ephemeral"])
async def test_a_source_that_lost_what_its_full_destination_has(source, autojump_clock):
    """Where the router was held up is nowhere any more."""
    machine = Machine(1)
    bench = machine.source
    async with machine.life():
        await bench.put_topic("s", durability=source)
        await bench.put_topic("d", durability="fsync", discard="reject", cap_records=3)
        await bench.put_router("r", Definition("s", "d"))
        bench.append("s", 5)
        await trio.sleep(10)
        shown = bench.read("d")[0]
        assert len(shown) == 3
    bench.files = bench.files.crash(1)
    async with machine.life():
        await bench.put_topic("d", cap_records=0)
        await machine.settle()
        records = bench.read("d")[0]
        assert all(records.get(seq, data) == data for seq, data in shown.items())
        bench.append("s", 1)
        await machine.settle()
        assert list(bench.read("d")[0].values())[-1] == "s5"


async def test_a_destination_that_is_full_before_all_copies_are_back_gets_them_later(autojump_clock):
    """Its router is held up, but below what it had sent before."""
    machine = Machine(2)
    async with machine.life():
        await machine.source.put_topic("s", durability="fsync")
        await machine.dest.put_topic("d", durability="fsync", discard="reject")
        await machine.source.put_router("r", Definition("s", "d"))
        machine.source.append("s", 3)
        await machine.settle()
        shown = machine.dest.read("d")[0]
        machine.source.delete_before("s", 4)
        machine.source.sync()
    machine.crash()
    async with machine.dest.life(machine.peers(1)):
        await machine.dest.put_topic("d", cap_records=1)
    machine.crash(power_loss=False)
    async with machine.life():
        await trio.sleep(10)
        assert machine.dest.read("d")[0] == {1: "s0"}
    machine.crash(power_loss=False)
    async with machine.life():
        await machine.dest.put_topic("d", cap_records=0)
        await machine.settle()
        assert machine.dest.read("d")[0] == shown


async def test_a_destination_takes_writes_when_all_copies_are_back(autojump_clock):
    """Or a direct write would get the seq of a copy."""
    machine = Machine(2)
    async with machine.life():
        await machine.source.put_topic("s", durability="fsync")
        await machine.dest.put_topic("d", durability="fsync")
        await machine.source.put_router("r", Definition("s", "d"))
        machine.source.append("s", 2)
        await machine.settle()
        shown = machine.dest.read("d")[0]
    machine.crash()
    for _ in range(2):
        async with machine.dest.life(machine.peers(1)):  # the source is still down
            await trio.sleep(5)
            with pytest.raises(TopicsError, match="are being made again"):
                machine.dest.append("d", 1)
        machine.dest.files = machine.dest.files.crash(1, power_loss=False)  # which is no reason to be sure
    async with machine.life():
        await machine.settle()
        machine.dest.append("d", 1)
        await machine.settle()
        records = machine.dest.read("d")[0]
        assert [seq for seq, data in records.items() if data.startswith("d")] == [3]
        assert records.items() > shown.items()


@pytest.mark.parametrize("shards", [1, 2])
async def test_a_destination_does_not_wait_for_a_router_that_is_gone(shards, autojump_clock):
    """A crash may leave the link of one."""
    machine = Machine(shards)
    async with machine.life():
        await machine.source.put_topic("s", durability="fsync")
        await machine.dest.put_topic("d", durability="fsync")
        await machine.source.put_router("r", Definition("s", "d"))
        machine.source.append("s", 2)
        await machine.settle()
        machine.dest.checkpoint([])
        await machine.source.routers._forget(["r"])
    machine.crash()
    async with machine.life():
        with pytest.raises(TopicsError, match="are being made again"):
            machine.dest.append("d", 1)
        await trio.sleep(5)
        machine.dest.append("d", 1)
        await machine.settle()
        assert list(machine.dest.read("d")[0].values())[:2] == ["s0", "s1"]
        assert len(machine.dest.read("d")[0]) == 3


@pytest.mark.parametrize("dest", ["fsync", "disk"])
@pytest.mark.parametrize("shards", [1, 2])
async def test_a_direct_write_in_a_damaged_log_is_told_and_no_copy_takes_its_seq(dest, shards, autojump_clock):
    machine = Machine(shards)
    async with machine.life():
        await machine.source.put_topic("s", durability="fsync")
        await machine.dest.put_topic("d", durability=dest)
        await machine.source.put_router("r", Definition("s", "d"))
        machine.source.append("s", 2)
        await machine.settle()
        machine.dest.append("d", 1)
        machine.dest.sync()
        machine.source.append("s", 1)
        await machine.settle()
        for _ in range(2):
            await machine.dest.put_topic(f"other{_}")
        shown = machine.dest.read("d")[0]
        assert [data[0] for data in shown.values()] == ["s", "s", "d", "s"]
    machine.crash()
    victim = shown[3].encode()
    for path in map(wal.file_path, walscan.list_files(machine.dest.files)):
        put(machine.dest.files, path, get(machine.dest.files, path).replace(b'"' + victim, b'"!' + victim[1:]))
    for power_loss in (True, False):
        async with machine.life():
            await machine.settle()
            machine.source.append("s", 1)
            await machine.settle()
            records, gaps = machine.dest.read("d")
            assert 3 not in records
            assert any(first <= 3 <= last and reason == "corrupt" for first, last, reason, _ in gaps)
            assert {data for data in records.values() if data.startswith("s")} >= {"s0", "s1"}
            assert all(seq > 4 for seq, data in records.items() if data not in ("s0", "s1"))
            assert list(records.values())[-1] == f"s{machine.source.written - 1}"
        machine.crash(power_loss)


class History:
    """Random steps, and all that was ever to be seen in the destination."""

    def __init__(self, seed):
        self.seed = seed
        self.dice = random.Random(seed)
        self.machine = Machine(self.dice.choice((1, 2)), seed)
        self.source, self.dest = self.machine.source, self.machine.dest
        self.source_class = self.dice.choice(("fsync", "disk", "fsync", "disk", "memory", "ephemeral"))
        self.dest_class = self.dice.choice(("fsync", "fsync", "disk", "memory"))
        self.fills_up = self.dice.random() < 0.3
        self.shown = {}
        self.deleted = set()

    async def begin(self):
        dice = self.dice
        lifetimes = dice.choice(({}, {}, {"cap_records": 8}, {"ttl_ms": 1000}))
        await self.source.put_topic("s", durability=self.source_class, **lifetimes)
        await self.dest.put_topic("d", durability=self.dest_class, discard="reject")
        self.source.append("s", 2, "t")
        for name in ("r", "q") if dice.random() < 0.3 else ("r",):
            await self.source.put_router(name, Definition("s", "d", filter=dice.choice(TAGS)))
        await self.machine.settle()

    async def steps(self):
        dice = self.dice
        for _ in range(dice.randrange(1, 14)):
            if self.fills_up and dice.random() < 0.3:
                await self.resize()
            self.step(dice.randrange(12))
            for bench in (self.source, self.dest):
                bench.held = dice.random() < 0.4
                bench.kick.set()
            if dice.random() < 0.7:
                await trio.testing.wait_all_tasks_blocked()
            self.look()

    async def resize(self):
        """The destination is full, perhaps for long, or has room."""
        count = self.dest.engine.state.topics["d"].count
        self.dest.held = self.source.held = False
        await self.dest.put_topic("d", cap_records=self.dice.choice((0, count + 2)))
        if self.dice.random() < 0.5:
            await trio.sleep(5)

    def step(self, what):
        dice, source, dest = self.dice, self.source, self.dest
        if what < 5:
            source.append("s", dice.choice((1, 1, 3, 20)), dice.choice(("t", "u")))
        elif what == 5:
            with suppress(TopicsError):  # it may be full
                dest.append("d", dice.choice((1, 2)))
        elif what in (6, 7, 8):
            self.delete(source, "s")
        elif what == 9:
            self.deleted |= self.delete(dest, "d")
        elif what == 10:
            dice.choice((source, dest)).checkpoint([])
        else:
            source.clock.advance(dice.choice((10, 2000)))

    def delete(self, bench, topic):
        live = list(bench.read(topic)[0])
        seqs = set(self.dice.sample(live, min(len(live), 2))) if self.dice.random() < 0.5 else set(live[-2:])
        if seqs:
            bench.delete(topic, seqs)
        return seqs

    def look(self):
        derived = self.dest.engine.state.topics["d"].derived
        assert derived is not None
        if not derived.missing:
            self.check(self.dest.read("d")[0])

    def check(self, records):
        for seq, data in records.items():
            assert self.shown.setdefault(seq, data) == data, (self.seed, seq, data, self.shown[seq])

    def verify(self):
        records, gaps = self.dest.read("d")
        if self.dest_class == "memory" and self.source_class in ("memory", "ephemeral"):
            self.shown = {}  # it may begin anew, in an epoch of its own
        self.check(records)
        copies = [int(data[1:]) for data in records.values() if data.startswith("s")]
        assert copies == sorted(copies), (self.seed, "out of order")
        told = {seq for first, last, *_ in gaps for seq in range(first, last + 1)}
        lost = self.shown.keys() - records.keys() - told - self.deleted
        assert not lost, (self.seed, "not told", {seq: self.shown[seq] for seq in lost}, gaps)
        if self.source_class == "fsync" and not self.fills_up:  # a cap that is tightened evicts
            assert not {self.shown.get(seq, "d")[0] for seq in told - self.deleted} & {"s"}, (
                self.seed,
                "could be made again",
                gaps,
            )


@pytest.mark.parametrize("seed", range(150 * DEPTH))
async def test_no_seq_shows_another_record(seed, autojump_clock):
    history = History(seed)
    async with history.machine.life():
        await history.begin()
        await history.steps()
    for _ in range(4):
        history.machine.crash(power_loss=history.dice.random() < 0.7)
        async with history.machine.life():
            await history.dest.put_topic("d", cap_records=0)
            await history.machine.settle()
            history.verify()
            await history.steps()
