"""Streams over kills and restarts, with writers writing: nothing is lost, nothing comes twice, order is kept."""

import signal
from typing import Any

import pytest

from tests.api.events import EventStream, eventually
from tests.system.client import Client, Crew
from tests.system.followers import Follower, Writer
from tests.system.load import name_on
from topics.ids import slot_of
from topics.testing.server import wait_until

SHARDS, GATEWAYS = 3, 2


class Scene:
    """A topic on every shard, writers, and followers of all topics."""

    def __init__(self, server) -> None:
        self.server = server
        self.crew = Crew()
        slots = server.slots()
        self.topics = [name_on(slots, shard, "live") for shard in range(SHARDS)]
        with Client(server) as client:
            for topic in self.topics:
                client.put(topic, durability="fsync")
        self.writers = [Writer(server, self.crew, self.topics, f"w{n}") for n in range(2)]
        starts: dict[str, Any] = {topic: {} for topic in self.topics}
        self.followers = [Follower(server, self.crew, starts, consistency=how) for how in ("strong", "eventual") * 2]
        self.go_on()

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        try:
            self.crew.join()
        except BaseException:
            if kind is None:
                raise

    def go_on(self) -> None:
        """Until everybody has written, and everybody has seen, more than now."""
        for writer in self.writers:
            writer.wait_progress()
        heads = self.heads()
        self.wait_seen(heads)

    def heads(self):
        with Client(self.server) as client:
            return {topic: client.state(topic)["head_seq"] for topic in self.topics}

    def wait_seen(self, heads) -> None:
        def done():
            self.crew.check()
            return all(follower.head(topic) >= seq for follower in self.followers for topic, seq in heads.items())

        wait_until(done, f"everybody to see {heads}")

    def connections(self):
        return [follower.connections for follower in self.followers]

    def check(self) -> None:
        """Everybody saw exactly what is there."""
        for writer in self.writers:
            writer.stop()
        self.wait_seen(self.heads())
        with Client(self.server) as client:
            for topic in self.topics:
                records, gaps = client.read_all(topic)
                assert not gaps
                there = [(record["$seq"], record["data"]) for record in records]
                for follower in self.followers:
                    assert not follower.gaps[topic]
                    assert follower.seen[topic] == there


@pytest.fixture
def scene(serve):
    with Scene(serve(shards=SHARDS, gateways=GATEWAYS)) as made:
        yield made


def test_an_open_stream_goes_on_by_itself_when_a_shard_is_killed(scene):
    """That of its topics, or that of its session."""
    before = scene.connections()
    for shard in range(SHARDS):
        scene.server.wait_back("shard", shard, scene.server.kill("shard", shard))
        scene.go_on()
    assert scene.connections() == before
    scene.server.wait_back("shard", 0, scene.server.kill("shard", 0, signal.SIGTERM))
    scene.go_on()
    assert scene.connections() == before
    for follower in scene.followers:  # the session has been taken back: it knows where its stream stands
        follower.drop()
    scene.go_on()
    scene.check()


def test_killed_gateways(scene):
    for _ in range(2):
        for gateway in range(GATEWAYS):
            pid = scene.server.kill("gateway", gateway)
            scene.writers[0].wait_progress(5)
            scene.server.wait_back("gateway", gateway, pid)
            scene.go_on()
    assert min(scene.connections()) >= 3
    scene.check()


def test_gateways_and_shards_at_once(scene):
    server = scene.server
    for shard in range(SHARDS):
        killed = [("gateway", n, server.kill("gateway", n)) for n in range(GATEWAYS)]
        killed.append(("shard", shard, server.kill("shard", shard)))
        for kind, index, pid in killed:
            server.wait_back(kind, index, pid)
        scene.go_on()
    scene.check()


def test_restarts_of_the_whole_server(scene):
    server = scene.server
    for end in (server.stop, server.kill_all):
        end()
        server.start().wait_ready()
        scene.go_on()
    scene.check()


def test_a_stream_opened_while_the_shard_of_its_session_is_down_begins_when_it_is_back(serve):
    server = serve(shards=2, gateways=1)
    slots = server.slots()
    with Client(server) as client:
        topic = name_on(slots, 0, "there")
        client.append(topic, {"records": [{"data": 1}]})
        wid = eventually(lambda: wid_on(client, slots, 1, topic))
        with server.held_down("shard", 1):
            stream = EventStream(("127.0.0.1", server.port), f"/v0/watch/{wid}")
            assert stream.status == 200
            assert stream.next().name == "retry"
            assert stream.next(":").data.startswith("hb ")
        assert stream.records(1)[0]["data"] == 1
        client.append(topic, {"records": [{"data": 2}]})
        assert stream.records(1)[0]["data"] == 2
        with server.held_down("shard", 0):  # and that of a topic
            assert stream.next(":", "error").name == ":"
            late = EventStream(("127.0.0.1", server.port), f"/v0/watch/{wid}")
            assert late.status == 200
            assert late.next(":", "error").name == ":"
        client.append(topic, {"records": [{"data": 3}]})
        assert late.records(1)[0]["data"] == 3


def wid_on(client, slots, shard, topic):
    """A session that this shard keeps; nothing if chance put it elsewhere."""
    answer = client.once("POST", "/v0/watch", {"topics": {topic: {}}, "heartbeat_ms": 1000})
    wid = answer.json()["wid"]
    return wid if slots[slot_of(wid)] == shard else None
