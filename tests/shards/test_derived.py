"""Derived topics over crashes of the whole shard, on a disk that loses what was not synced.

A source and its destination are in one shard, so both lose at once what was not durable: the hardest case for putting
copies back where they were. Random histories; a failure names its seed.
"""

import os
import random
from contextlib import asynccontextmanager

import pytest
import trio

from tests.shards.derived_bench import Bench, Wire
from tests.shards.derived_bench import Call as LoneCall
from topics.core.match import TagMatch
from topics.core.routes import Definition, Guarantee
from topics.ids import SLOTS, slot_of
from topics.rpc.errors import DeadlineExceeded, PeerLost
from topics.rpc.open_calls import Reply
from topics.rpc.peer import Peer
from topics.shards.peers import Peers

DEPTH = int(os.environ.get("TOPICS_TEST_DEPTH", "1"))


SOURCES = ("disk", "fsync")
DESTS = ("disk", "fsync", "memory")


async def history(seed):
    dice = random.Random(seed)
    bench = Bench(seed)
    match = TagMatch("Eq", "t") if dice.random() < 0.3 else None
    guarantee: Guarantee = dice.choice(("at_least_once", "exactly_once"))
    async with bench.life():
        await bench.put_topic("s", durability=dice.choice(SOURCES), cap_records=dice.choice((0, 0, 0, 8)))
        await bench.put_topic("d", durability=dice.choice(DESTS))
        bench.append("s", 2, "t")
        await bench.put_router("r", Definition("s", "d", guarantee=guarantee, filter=match))
        await bench.settle()
        await steps(bench, dice)
        seen = look(bench)
    for _ in range(4):
        power = dice.random() < 0.4
        bench.files = bench.files.crash(dice.randrange(1 << 30), power_loss=power)
        async with bench.life():
            await bench.settle()
            verify(bench, None if power else seen, match, seed)
            await steps(bench, dice)
            seen = look(bench)


async def steps(bench, dice):
    for _ in range(dice.randrange(1, 12)):
        what = dice.randrange(12)
        if what < 5:
            bench.append("s", dice.choice((1, 1, 3, 20)), dice.choice(("t", "u")))
        elif what < 7:
            bench.append("d", dice.choice((1, 2)))
        elif what == 7:
            live = list(bench.read("d")[0])
            bench.delete("d", set(dice.sample(live, min(len(live), 2)))) if live else None
        elif what == 8:
            live = list(bench.read("s")[0])
            bench.delete("s", set(dice.sample(live, min(len(live), 2)))) if live else None
        elif what == 9:
            bench.delete_before("d", dice.randrange(1, bench.engine.state.topics["d"].head_seq + 2))
        elif what == 10:
            bench.routers.marks.write()
        else:
            bench.checkpoint()
        bench.held = dice.random() < 0.5
        if dice.random() < 0.7:
            await trio.testing.wait_all_tasks_blocked()
        if dice.random() < 0.3:
            bench.write()


def look(bench):
    """What readers could see at the end of a life."""
    bench.write()
    return bench.read("d")[0]


def verify(bench, seen, match, seed):
    """Everything the source shows is there once, in its order and where it was, or readers are told."""
    source = bench.read("s")[0]
    dest, gaps = bench.read("d")
    copies = [data for data in dest.values() if data.startswith("s")]
    numbers = [int(data[1:]) for data in copies]
    assert numbers == sorted(set(numbers)), (seed, "doubled or out of order", copies)
    if match is None:
        wanted = [data for seq, data in source.items() if seq > 2]
        absent = [data for data in wanted if data not in copies and data not in bench.deleted]
        assert len(absent) <= sum(missed for *_, missed in gaps), (seed, "lost", absent, gaps)
    if seen is None:
        bench.deleted -= set(dest.values())  # the power went before the delete was durable
        return
    assert not bench.deleted & set(dest.values()), (seed, "deleted, and back", bench.deleted & set(dest.values()))
    for seq, data in seen.items():
        gone_on_purpose = seq not in dest and data in bench.deleted  # its delete was under way
        assert dest.get(seq) == data or gone_on_purpose, (seed, seq, data, gaps)


@pytest.mark.parametrize("seed", range(60 * DEPTH))
async def test_copies_stay_where_they_were(seed):
    await history(seed)


@pytest.mark.parametrize("how", ["delete", "ttl", "cap"])
@pytest.mark.parametrize("stored", [0, 10, 21])
async def test_what_is_gone_from_the_source_stays_in_the_destination_over_a_crash(how, stored):
    """Deletes do not follow along a router, also if the copies were in memory alone: `stored` of them were not."""
    config = {"delete": {}, "ttl": {"ttl_ms": 1000}, "cap": {"cap_records": 1}}[how]
    bench = Bench(1)
    async with bench.life():
        await bench.put_topic("s", durability="fsync", **config)
        await bench.put_topic("d", durability="fsync")
        await bench.put_router("r", Definition("s", "d"))
        for n in range(1, 22):
            if n == 21:
                if how == "delete":
                    bench.delete("s", set(range(1, 21)))
                bench.clock.advance(5000)
            bench.append("s", 1)
            await bench.settle()
            if n == stored:
                bench.checkpoint()
        assert len(bench.read("s")[0]) == 1
        before = bench.read("d")
        assert len(before[0]) == 21
    bench.files = bench.files.crash(2, power_loss=False)
    async with bench.life():
        await bench.settle()
        assert bench.read("d") == before
        assert bench.engine.state.topics["d"].last_write_ms is not None
        assert len(bench.read("s")[0]) == 1
        bench.checkpoint()
        assert not bench.engine.state.topics["s"].spent  # the destination has them now


@pytest.mark.parametrize("power_loss", [False, True])
@pytest.mark.parametrize("dest", ["ephemeral", "memory", "disk", "fsync"])
@pytest.mark.parametrize("source", ["ephemeral", "memory", "disk", "fsync"])
async def test_every_class_over_a_crash(source, dest, power_loss, autojump_clock):
    """What was there is there, or told; and the router goes on."""
    bench = Bench(1)
    async with bench.life():
        await bench.put_topic("s", durability=source)
        await bench.put_topic("d", durability=dest)
        await bench.put_router("r", Definition("s", "d"))
        bench.append("s", 5)
        await bench.settle()
        await trio.sleep(1)
        before, _ = bench.read("d")
        assert list(before.values()) == [f"s{n}" for n in range(5)]
    bench.files = bench.files.crash(2, power_loss=power_loss)
    async with bench.life():
        await bench.settle()
        bench.append("s", 1)
        await bench.settle()
        records, gaps = bench.read("d")
        told = {seq for first, last, *_ in gaps for seq in range(first, last + 1)}
        assert list(records.values())[-1] == "s5"
        assert all((records.get(seq) == data) != (seq in told) for seq, data in before.items())
        if not power_loss:  # else the seqs that were reserved count as lost, too
            assert told == (set(before) if "ephemeral" in (source, dest) else set())


class Elsewhere(Peer):
    """The shard of a destination: takes every copy, and stores them or is down."""

    def __init__(self):
        self.is_down = False

    async def call(self, method, head, body=b"", *, deadline_ms=None):
        await trio.lowlevel.checkpoint()
        if self.is_down:
            raise PeerLost("the peer is down")
        seq = head.get("to_seq", 0)
        standing = {"again": False, "seq": seq, "dest_seq": seq, "totals": {}, "refill": False, "unsure": False}
        return Reply({"dest_id": 7} if method == "derived.link" else standing, b"")


async def test_a_source_keeps_what_is_dead_until_other_shards_have_stored_their_copies(autojump_clock):
    bench, other = Bench(1), Elsewhere()
    slots = [0] * SLOTS
    slots[slot_of("d")] = 1
    async with bench.life(Peers(0, slots, {1: other})):
        await bench.put_topic("s", durability="fsync")
        await bench.put_router("r", Definition("s", "d"))
        source = bench.engine.state.topics["s"]

        async def lose(count):
            bench.append("s", count)
            await trio.sleep(5)
            bench.delete_before("s", source.head_seq + 1)
            bench.sync()

        def kept():
            return {seq for chunk in source.spent or () for seq in range(chunk.first_seq, chunk.last_seq + 1)}

        await lose(3)
        assert kept() == {1, 2, 3}
        other.is_down = True
        assert await bench.remains.unneeded() == []
        await lose(1)  # nobody answered, but it may have arrived
        await lose(2)  # which nobody was sent
        bench.checkpoint(await bench.remains.unneeded())
        assert kept() == {1, 2, 3, 4}
        other.is_down = False
        await lose(1)
        unneeded = await bench.remains.unneeded()
        assert kept() == {1, 2, 3, 4, 7}  # until this shard's checkpoint is made
        bench.checkpoint(unneeded)
        assert kept() == set()


class Impatient(Wire):
    """Gives up on copies before they are answered, as long as it is told to; the other shard goes on with them."""

    def __init__(self, bench):
        super().__init__(bench)
        self.gives_up = False

    async def call(self, method, head, body=b"", *, deadline_ms=None):
        if not self.gives_up or method != "derived.take":
            return await super().call(method, head, body, deadline_ms=deadline_ms)
        for _ in range(2):  # and such a message may come once more, before the first has had its turn
            self._bench.routers.handlers()[method](LoneCall(self._bench, head, body))
        raise DeadlineExceeded("no answer")


@asynccontextmanager
async def wired(source, dest):
    """Both shards are up; the way from the source to the destination."""
    slots = [0] * SLOTS
    slots[slot_of("d")] = 1
    wire = Impatient(dest)
    async with dest.life(Peers(1, slots, {0: Wire(source)})), source.life(Peers(0, slots, {1: wire})):
        yield wire


@asynccontextmanager
async def pair_of_shards():
    """A source on one shard, its destination on another one, and the way between them."""
    source, dest = Bench(1), Bench(2)
    async with wired(source, dest) as wire:
        await dest.put_topic("d", durability="fsync")
        await source.put_topic("s", durability="fsync")
        await source.put_router("r", Definition("s", "d"))
        yield source, dest, wire


async def test_what_is_dead_is_not_let_go_while_its_copy_is_on_its_way(autojump_clock):
    async with pair_of_shards() as (source, dest, _), trio.open_nursery() as nursery:
        dest.held = True
        dest.append("d", 1)  # the copy has its turn after this
        source.append("s", 1)
        await trio.sleep(1)
        source.delete("s", {1})
        source.sync()
        found = []

        async def ask():
            found.append(await source.remains.unneeded())

        nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        assert found == []
        dest.sync()
        await trio.testing.wait_all_tasks_blocked()
        assert [[chunk.first_seq for chunk in chunks] for _, chunks in found[0]] == [[1]]
        assert list(dest.read("d")[0].values()) == ["d0", "s0"]


async def test_copies_whose_answer_came_too_late_do_not_come_twice(autojump_clock):
    async with pair_of_shards() as (source, dest, wire):
        dest.held = True
        dest.append("d", 1)
        wire.gives_up = True
        source.append("s", 2)
        await trio.sleep(0.005)
        wire.gives_up = False
        await trio.sleep(5)  # the source tries again and again
        dest.held = False
        dest.sync()
        await source.settle()
        assert list(dest.read("d")[0].values()) == ["d0", "s0", "s1"]


async def test_damage_in_what_is_dead_is_told_at_the_destination_alone(autojump_clock):
    async with pair_of_shards() as (source, dest, _):
        source.append("s", 3)
        await trio.sleep(1)
        source.delete_before("s", 4)
        source.sync()
        source.checkpoint([])  # for a reason of its own: the destination has stored nothing
        source.append("s", 1)
        await trio.sleep(1)
        (info,) = (info for info in source.store.data_files.values() if info.chunks)
        assert b"s1" in source.files.open(info.path).read_at(0, info.size or 4096)
        dest.write()
    source.files, dest.files = (bench.files.crash(1, power_loss=False) for bench in (source, dest))
    file = source.files.open(info.path)
    data = file.read_at(0, file.size())
    file.write_at(data.index(b'"s1"'), [b'"xx"'])
    async with wired(source, dest):
        await source.settle()
        assert dest.read("d") == ({4: "s3"}, [(1, 3, "source_trim", 3)])
        assert source.read("s") == ({4: "s3"}, [])
