"""Routers under load while shards, gateways and the supervisor are killed: copies are neither lost, doubled, reordered
nor moved. Sources are `fsync`, so that what was acked is there; what a source tells as lost may be missing."""

import random
import threading
import time

import pytest

from tests.system.client import Client, Crew
from tests.system.load import name_on
from tests.system.test_kills import WAYS, Hurt
from topics.testing.server import wait_until

SHARDS, GATEWAYS = 3, 2
PAIRS = 5
ROUNDS = 10


class RouterLoad:
    """Writers on every source and directly on some destinations, readers that note what stands at which seq."""

    def __init__(self, server, seed):
        self.server = server
        self.dice = random.Random(seed)
        self.over = threading.Event()
        self.crew = Crew()
        self.written = {f"s{n}": 0 for n in range(PAIRS)} | {"t": 0}
        self.direct = {f"d{n}": 0 for n in range(0, PAIRS, 2)}
        self.seen = {}

    def __enter__(self):
        with Client(self.server) as client:
            for n in range(PAIRS):
                client.put(f"s{n}", durability="fsync")
                client.put(f"d{n}", durability=("disk", "fsync", "memory")[n % 3])
                router = {"source": f"s{n}", "dest": f"d{n}", "guarantee": "exactly_once"}
                client._insist("PUT", f"/v0/routers/r{n}", router)
            for topic in ("t", "u", "v"):
                client.put(topic, durability="fsync")
            client._insist("PUT", "/v0/routers/t-u", {"source": "t", "dest": "u"})
            client._insist("PUT", "/v0/routers/u-v", {"source": "u", "dest": "v"})
            client._insist("PUT", "/v0/routers/chain", {"source": "d0", "dest": "e0", "guarantee": "exactly_once"})
            client._insist("PUT", "/v0/routers/some", {"source": "s1", "dest": "f1", "filter": "even"})
        for n in range(PAIRS):
            self.crew.start(self.write, f"s{n}")
        self.crew.start(self.write, "t")
        for topic in self.direct:
            self.crew.start(self.write, topic)
        for topic in ("d0", "d1", "e0"):
            self.crew.start(self.read, topic)
        for source, dest in (("t", "u"), ("u", "v")):
            self.crew.start(self.trim, source, dest)
        return self

    def __exit__(self, *_):
        self.over.set()
        self.crew.join()

    def write(self, topic):
        count = self.written if topic in self.written else self.direct
        with Client(self.server) as client:
            while not self.over.is_set():
                first, size = count[topic], self.dice.choice((1, 1, 2, 20))
                records = [
                    {"data": f"{topic}/{n}", "tag": "even" if n % 2 == 0 else "odd", "meta": {"n": str(n)}}
                    for n in range(first, first + size)
                ]
                client.append(topic, {"records": records, "idempotency_key": f"{topic}-{first}"})
                count[topic] = first + size
                time.sleep(0.002)

    def read(self, topic):
        """Whatever was once read at a seq stays there."""
        seen = self.seen.setdefault(topic, {})
        with Client(self.server) as client:
            from_seq = 0
            while not self.over.is_set():
                page = client.diff(topic, from_seq=from_seq, limit=1000, wait_ms=50)
                for record in page["records"]:
                    assert seen.setdefault(record["$seq"], record["data"]) == record["data"], (topic, record)
                if page["tombstone"]:
                    assert page["tombstone"]["reason"] in ("crash", "source_trim"), (topic, page["tombstone"])
                from_seq = page["next_from_seq"]

    def trim(self, source, dest):
        """Delete from a source what its destination shows: seqs are the same in both."""
        with Client(self.server) as client:
            from_seq = 0
            while not self.over.is_set():
                from_seq = client.diff(dest, from_seq=from_seq, limit=1000, wait_ms=50)["next_from_seq"]
                client.delete(source, before_seq=from_seq + 1)

    def wait_progress(self):
        before = dict(self.written)
        wait_until(lambda: all(self.written[topic] > count for topic, count in before.items()), "all writers to go on")

    def verify(self):
        with Client(self.server) as client:
            contents = {}
            for topic in [*(f"s{n}" for n in range(PAIRS)), *(f"d{n}" for n in range(PAIRS)), "e0", "f1"]:
                contents[topic] = self.settled(client, topic)
            for n in range(PAIRS):
                source, (copies, gaps) = contents[f"s{n}"][0], contents[f"d{n}"]
                assert [record["data"] for record in source] == [f"s{n}/{i}" for i in range(self.written[f"s{n}"])]
                forwarded = [record for record in copies if record["data"].startswith("s")]
                self.check_copies(f"d{n}", source, forwarded, gaps)
                keys = [record["meta"]["_topics_router"] for record in forwarded]
                assert len(set(keys)) == len(keys), f"d{n} has doubles"
            self.check_copies("e0", contents["d0"][0], *contents["e0"])
            even = [record for record in contents["s1"][0] if record["$tag"] == "even"]
            self.check_copies("f1", even, *contents["f1"])
            copies, gaps = self.settled(client, "v")
            assert [record["data"] for record in copies] == [f"t/{i}" for i in range(self.written["t"])]
            assert gaps == []
            for topic, seen in self.seen.items():
                now = {record["$seq"]: record["data"] for record in contents[topic][0]}
                lost = [(gap["gap_from"], gap["gap_to"]) for gap in contents[topic][1]]
                for seq, data in seen.items():
                    told = any(first <= seq <= last for first, last in lost)
                    assert now.get(seq) == data or told, (topic, seq, data, now.get(seq))
            return {topic: (len(records), gaps) for topic, (records, gaps) in contents.items()}

    def settled(self, client, topic):
        """All records, once nothing more comes."""
        records, gaps = client.read_all(topic)
        while True:
            time.sleep(0.3)
            again, gaps = client.read_all(topic)
            if len(again) == len(records):
                return again, gaps
            records = again

    def check_copies(self, topic, source, copies, gaps):
        wanted = [record["data"] for record in source]
        found = [record["data"] for record in copies]
        if not gaps:
            assert found == wanted, (topic, len(found), len(wanted), _difference(found, wanted))
            return
        rest = iter(wanted)
        assert all(data in rest for data in found), (topic, "out of order")
        told = sum(gap["missed_estimate"] for gap in gaps)
        assert len(wanted) - len(found) <= told, (topic, len(wanted), len(found), gaps)


def _difference(found, wanted):
    at = next((n for n, (a, b) in enumerate(zip(found, wanted, strict=False)) if a != b), min(len(found), len(wanted)))
    return at, found[at : at + 3], wanted[at : at + 3]


def test_copies_come_back_to_a_shard_that_crashed_alone_while_nobody_writes(serve):
    server = serve(shards=2, gateways=1)
    slots = server.slots()
    source, dest = name_on(slots, 0, "source"), name_on(slots, 1, "dest")
    with Client(server) as client:
        client.put(source, durability="fsync")
        client.put(dest, durability="fsync")
        client._insist("PUT", "/v0/routers/r", {"source": source, "dest": dest})
        client.append(source, {"records": [{"data": n} for n in range(5)]})
        wait_until(lambda: len(client.read_all(dest)[0]) == 5, "the copies")
        assert client.delete(source, before_seq=4)["deleted"] == 3  # which does not follow along a router
        server.ask_shard(0, "checkpoint")
        server.wait_back("shard", 1, server.kill("shard", 1))
        records, gaps = client.read_all(dest)  # a 503 is asked again, for a while
        assert ([record["data"] for record in records], gaps) == (list(range(5)), [])
        assert [record["data"] for record in client.read_all(source)[0]] == [3, 4]
        assert client._insist("DELETE", "/v0/routers/r")["deleted"]


def files_with(shard, text):
    """Whether a data file of a shard holds it."""
    return any(text in path.read_bytes() for path in shard.rglob("*.data"))


def test_a_shard_that_makes_a_checkpoint_has_the_other_store_its_copies(serve):
    """Then, and not before, the source lets go of what was deleted from it."""
    server = serve(shards=2, gateways=1)
    slots = server.slots()
    source, dest = name_on(slots, 0, "source"), name_on(slots, 1, "dest")
    here, there = server.data / "shard-00", server.data / "shard-01"
    with Client(server) as client:
        client.put(source, durability="fsync")
        client.put(dest, durability="fsync")
        client._insist("PUT", "/v0/routers/r", {"source": source, "dest": dest})
        client.append(source, {"records": [{"data": f"early-{n}"} for n in range(5)]})
        wait_until(lambda: len(client.read_all(dest)[0]) == 5, "the copies")
        client.delete(source, before_seq=6)
        assert not files_with(there, b"early-3")
        server.ask_shard(0, "checkpoint")
        assert files_with(there, b"early-3")
        assert not files_with(here, b"early-3")
        client.append(source, {"records": [{"data": f"late-{n}"} for n in range(5)]})
        wait_until(lambda: len(client.read_all(dest)[0]) == 10, "the copies")
        client.delete(source, before_seq=11)
        with server.held_down("shard", 1):
            server.ask_shard(0, "checkpoint")  # nobody answers
            assert files_with(here, b"late-3")
            server.wait_back("shard", 0, server.kill("shard", 0))
        records, gaps = client.read_all(dest)
        wanted = [f"{name}-{n}" for name in ("early", "late") for n in range(5)]
        assert ([record["data"] for record in records], gaps) == (wanted, [])
        assert client.read_all(source) == ([], [])
        server.ask_shard(0, "checkpoint")
        assert files_with(there, b"late-3")
        server.ask_shard(0, "checkpoint")  # a file goes with the checkpoint after
        assert not files_with(here, b"late-3")


def test_jobs_that_were_done_stay_done_on_both_ends_of_a_router(serve):
    """Acks in the source do not follow to the destination, nor the other way round, and no crash takes them back."""
    server = serve(shards=2, gateways=1)
    slots = server.slots()
    source, dest = name_on(slots, 0, "source"), name_on(slots, 1, "dest")
    with Client(server) as client:
        for topic in (source, dest):
            client.put(topic, type="queue", durability="fsync", leases_durable=True)
        client._insist("PUT", "/v0/routers/r", {"source": source, "dest": dest})
        client.append(source, {"records": [{"data": n} for n in range(10)]})
        wait_until(lambda: client.state(dest)["count"] == 10, "the copies")

        def claim(topic):
            jobs = client._insist("POST", f"/v0/topics/{topic}/claim", {"node": "w", "max": 100})["claimed"]
            return {job["$seq"]: job["data"] for job in jobs}

        def ack(topic, seqs):
            answer = client._insist("POST", f"/v0/topics/{topic}/ack", {"node": "w", "seqs": seqs})
            assert answer["acked"] == len(seqs)

        jobs = {topic: claim(topic) for topic in (source, dest)}
        assert all(list(claimed.values()) == list(range(10)) for claimed in jobs.values())
        ack(source, [1, 2, 3, 4, 5, 6])
        ack(dest, [1, 9])
        for stored in (False, True):
            if stored:
                server.ask_shard(0, "checkpoint")
            pids = [server.kill("shard", index) for index in (0, 1)]
            for index, pid in enumerate(pids):
                server.wait_back("shard", index, pid)
            left = {topic: {r["$seq"]: r["data"] for r in client.read_all(topic)[0]} for topic in (source, dest)}
            assert left == {
                source: {seq: jobs[source][seq] for seq in (7, 8, 9, 10)},
                dest: {seq: jobs[dest][seq] for seq in (2, 3, 4, 5, 6, 7, 8, 10)},
            }
            assert [claim(topic) for topic in (source, dest)] == [{}, {}]  # the rest is still leased
        client.append(source, {"records": [{"data": "more"}]})
        more = wait_until(lambda: claim(dest), "the copy")
        with server.held_down("shard", 0):
            server.wait_back("shard", 1, server.kill("shard", 1))
            assert claim(dest) == {}
            state = client.state(dest)["queue"]
            assert (state["ready"], state["in_flight"]) == (0, 9), state
        wait_until(lambda: client.state(dest)["count"] == 9, "the copies to be back")
        assert claim(dest) == {}
        ack(dest, list(more))
        ack(source, [7, 8, 9, 10, *claim(source)])
        ack(dest, [2, 3, 4, 5, 6, 7, 8, 10])
        assert [client.state(topic)["count"] for topic in (source, dest)] == [0, 0]


def test_a_dead_letter_of_a_derived_queue_is_on_its_way_while_the_shard_crashes(serve):
    """Its job is a copy, which has to be made again before it can be moved; it arrives once."""
    server = serve(shards=2, gateways=1)
    slots = server.slots()
    source, dest, letters = name_on(slots, 0, "source"), name_on(slots, 1, "dest"), name_on(slots, 0, "letters")
    with Client(server) as client:
        client.put(source, durability="fsync")
        client.put(letters, durability="fsync", cap_records=1, discard="reject")
        client.append(letters, {"records": [{"data": "full"}]})
        client.put(dest, type="queue", durability="fsync", leases_durable=True, max_deliveries=1, dead_letter=letters)
        client._insist("PUT", "/v0/routers/r", {"source": source, "dest": dest})
        client.append(source, {"records": [{"data": "job"}]})
        claim = {"node": "w", "max": 1}
        wait_until(lambda: client._insist("POST", f"/v0/topics/{dest}/claim", claim)["claimed"], "the job")
        client._insist("POST", f"/v0/topics/{dest}/nack", {"node": "w", "seqs": [1], "penalty": True})
        assert client._insist("POST", f"/v0/topics/{dest}/claim", claim)["claimed"] == []  # there is no room for it
        client.delete(source, before_seq=2)
        pids = [server.kill("shard", index) for index in (0, 1)]
        for index, pid in enumerate(pids):
            server.wait_back("shard", index, pid)
        assert [record["data"] for record in client.read_all(dest)[0]] == ["job"]
        assert client._insist("POST", f"/v0/topics/{dest}/claim", claim)["claimed"] == []
        client.delete(letters, before_seq=2)
        wait_until(lambda: [r["data"] for r in client.read_all(letters)[0]] == ["job"], "the dead letter")
        wait_until(lambda: client.state(dest)["count"] == 0, "the job to be gone")


@pytest.mark.slow
def test_copies_survive_kills(serve):
    seed = random.randrange(1 << 32)
    dice = random.Random(seed)
    server = serve(shards=SHARDS, gateways=GATEWAYS)
    hurt = Hurt(server, dice)
    ways = (dice.sample(WAYS, len(WAYS)) + dice.choices(WAYS, k=ROUNDS))[:ROUNDS]
    print("seed", seed, *ways)
    with RouterLoad(server, seed) as load:
        load.wait_progress()
        for way in ways:
            getattr(hurt, way)()
            load.wait_progress()
    print(load.verify())
    server.kill_all()
    server.start().wait_ready()
    print(load.verify())
    assert server.stop() == 0
    server.start().wait_ready()
    load.verify()
    assert "Traceback" not in server.text()
