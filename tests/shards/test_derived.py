"""Derived topics over crashes of the whole shard, on a disk that loses what was not synced.

A source and its destination are in one shard, so both lose at once what was not durable: the hardest case for putting
copies back where they were. Random histories; a failure names its seed.
"""

import json
import os
import random
from contextlib import asynccontextmanager

import msgspec
import pytest
import trio

from topics.core.config import ConfigPatch
from topics.core.diff import plan, render
from topics.core.match import TagMatch
from topics.core.ranges import SeqRanges
from topics.core.requests import Append, Diff, RecordIn
from topics.core.routes import Definition, Guarantee
from topics.ids import SLOTS, slot_of
from topics.rpc.errors import PeerLost
from topics.rpc.open_calls import Reply
from topics.rpc.peer import Peer
from topics.shards import hidden
from topics.shards.peers import Peers
from topics.shards.recovery import recover
from topics.shards.routers import Routers
from topics.testing.fake_clock import FakeClock
from topics.testing.faulty_files import FaultyFiles

DEPTH = int(os.environ.get("TOPICS_TEST_DEPTH", "1"))


class Call:
    """As much of an RPC call as a put needs."""

    def __init__(self):
        self.answered = trio.Event()

    def reply(self, head, body=b""):
        self.answered.set()


class Bench:
    def __init__(self, seed, files=None):
        self.dice = random.Random(seed)
        self.files = files or FaultyFiles(seed)
        self.clock = FakeClock()
        self.written = 0
        self.deleted = set()  # from the destination

    @asynccontextmanager
    async def life(self, peers=None):
        """The shard from its start to its end, which is a crash."""
        self.held = False
        self.kick = trio.Event()
        self.store = recover(self.files, self.clock, wake=lambda: self.kick.set(), keep_spent=True)
        self.engine = self.store.engine
        self.routers = Routers(self.store, peers or Peers())

        async def stored(topic):
            self.checkpoint()
            return True

        self.routers.links.stored = stored
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._commit)
            nursery.start_soon(self.routers.run)
            await trio.testing.wait_all_tasks_blocked()
            yield self
            nursery.cancel_scope.cancel()

    async def _commit(self):
        while True:
            await self.kick.wait()
            await trio.lowlevel.checkpoint()
            self.kick = trio.Event()
            if not self.held:
                self.sync()

    def write(self):
        """What is in the queue reaches the file, not the disk: a kill loses nothing."""
        frames = self.engine.log.take()
        if frames:
            self.store.write_group(frames)

    def sync(self):
        self.write()
        self.engine.durable(self.store.sync_log())

    def checkpoint(self):
        self.sync()
        self.store.checkpoint()

    # --- steps ----------------------------------------------------------------------------------------------------

    async def put_topic(self, name, **config):
        done = trio.Event()
        self.engine.put_topic(name, ConfigPatch(config), lambda _: done.set(), _fail)
        await done.wait()

    async def put_router(self, name, definition):
        call = Call()
        await self.routers._put(call, name, self.clock.now_ms() + self.written + 1, definition)  # type: ignore[arg-type]

    def append(self, topic, count, tag=None):
        records = []
        for _ in range(count):
            records.append(RecordIn(msgspec.Raw(b'"%b%d"' % (topic.encode(), self.written)), tag))
            self.written += 1
        self.engine.append(topic, Append(records, None, None, None, None, False), lambda _: None, _fail)

    def delete(self, topic, seqs):
        found = self.engine.state.topics[topic]
        self._note_deleted(topic, seqs)
        self.engine.delete_records(found, 0, SeqRanges.from_ascending(sorted(seqs)), lambda _: None, _fail)

    def delete_before(self, topic, seq):
        found = self.engine.state.topics[topic]
        self._note_deleted(topic, range(1, seq))
        self.routers.marks.write_one(found)
        self.engine.delete_records(found, seq, None, lambda _: None, _fail)

    def _note_deleted(self, topic, seqs):
        shown = self.read(topic)[0]
        if topic == "d":
            self.deleted.update(shown[seq] for seq in seqs if seq in shown)

    async def settle(self):
        """Until everything is forwarded, put back, and durable."""
        self.held = False
        self.kick.set()
        with trio.fail_after(10):
            while not all(route.is_settled for route in self.routers._routes.values()):
                await trio.sleep(0.001)
            await trio.testing.wait_all_tasks_blocked()
        self.sync()

    # --- looking --------------------------------------------------------------------------------------------------

    def read(self, name):
        """(seq → data of all live records, [(gap_from, gap_to, reason, missed)])"""
        topic = self.engine.state.topics[name]
        records, gaps, from_seq = {}, [], 0
        while True:
            query = Diff(from_seq=from_seq, limit=1000)
            found = plan(topic, query)
            for window in found.windows:
                if window.block is None:
                    window.block = self.block(window.chunk)
            text = b",".join(bytes(piece) for piece in render(found.windows, query, filter_nodes=False))
            for record in json.loads(b"[" + text + b"]"):
                records[record["$seq"]] = record["data"]
            if found.tombstone is not None:
                gaps.append(tuple(found.tombstone))
            from_seq = found.next_from_seq
            if found.caught_up:
                return records, gaps

    def block(self, chunk):
        return hidden.read_block(self.store, chunk)


def _fail(error):
    raise AssertionError(error)


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
        return
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
        assert len(bench.read("s")[0]) == 1
        bench.checkpoint()
        assert not bench.engine.state.topics["s"].spent  # the destination has them now


class Elsewhere(Peer):
    """The shard of a destination: takes every copy, and stores them or is down."""

    def __init__(self):
        self.is_down = False

    async def call(self, method, head, body=b"", *, deadline_ms=None):
        await trio.lowlevel.checkpoint()
        if self.is_down:
            raise PeerLost("the peer is down")
        seq = head.get("to_seq", 0)
        standing = {"again": False, "seq": seq, "dest_seq": seq, "totals": {}, "refill": False}
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
        assert await bench.routers.stored_elsewhere(bench.routers.spent() or []) == []
        assert kept() == {1, 2, 3}
        await lose(2)  # which nobody was sent
        assert await bench.routers.stored_elsewhere(bench.routers.spent() or []) == []
        assert kept() == {1, 2, 3}
        other.is_down = False
        await lose(1)
        spent = bench.routers.spent() or []
        assert {topic for topic, _ in spent} == {source}
        assert await bench.routers.stored_elsewhere(spent) == spent
        assert kept() >= {1, 2, 3, 6}  # until this shard's checkpoint is made
        work = bench.store.begin_checkpoint(spent)
        for _ in work.capture():
            pass
        bench.sync()
        work.write()
        for _ in work.install():
            pass
        assert kept() == set()
