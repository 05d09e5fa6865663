"""Restarts: with more and with fewer shards, and fifty in a row."""

import itertools
import json
import random

import pytest

from tests.system.client import Client
from tests.system.load import name_on
from topics.ids import slot_of
from topics.supervisor.slotmap import read_used

TOPICS = 12


def append(client, topic, *data, **fields):
    return client.append(topic, {"records": [{"data": item} for item in data], **fields})


class Books:
    """What every topic holds, written one after another by one client."""

    def __init__(self) -> None:
        self.content: dict[str, list] = {}

    def create(self, client, topic, **config):
        client.put(topic, **config)
        self.content[topic] = []

    def append(self, client, topic, *data, **fields):
        held = self.content[topic]
        reply = append(client, topic, *data, **fields)
        assert reply["seqs"] == list(range(len(held) + 1, len(held) + len(data) + 1)), (topic, reply)
        held += data
        return reply

    def check(self, client):
        assert client.names() == sorted(self.content)
        for topic, held in self.content.items():
            records, gaps = client.read_all(topic)
            assert [(record["$seq"], record["data"]) for record in records] == list(enumerate(held, 1)), topic
            assert not gaps, (topic, gaps)
            assert client.state(topic)["head_seq"] == len(held)


@pytest.mark.slow
@pytest.mark.parametrize("cleanly", [True, False])
def test_more_and_fewer_shards_keep_every_topic_where_it_is(serve, cleanly):
    """2 → 4 → 1 → 3. Every class that survives a kill of all processes, each topic at the seqs it had."""
    server, books = serve.make(shards=2), Books()
    homes: dict[str, int] = {}
    for stage, shards in enumerate((2, 4, 1, 3)):
        server.start(shards=shards).wait_ready()
        slots = server.slots()
        served = {child["index"] for child in server.status()["children"] if child["kind"] == "shard"}
        assert served >= set(range(shards)) | set(slots)
        assert {topic: slots[slot_of(topic)] for topic in homes} == homes, "a used slot was moved"
        with Client(server) as client:
            books.check(client)
            for n in range(TOPICS):
                books.create(client, f"{stage}-{n}", durability="fsync" if n % 2 else "disk")
            for topic in books.content:
                books.append(client, topic, {"stage": stage}, topic)
            books.check(client)
            # What was acked on a disk topic may still wait for its sync; a new topic in the same log brings it along.
            for shard in sorted(set(slots)):
                books.create(client, name_on(slots, shard, f"{stage}-mark"))
        homes = {topic: slots[slot_of(topic)] for topic in books.content}
        used = {slot: shard for shard, marked in read_used(server.data).items() for slot in marked}
        assert used == {slot_of(topic): shard for topic, shard in homes.items()}
        assert set(homes.values()) >= set(range(shards))  # each shard has topics to keep
        if cleanly:
            assert server.stop() == 0
        else:
            server.kill_all()


@pytest.mark.slow
def test_fifty_restarts_in_a_row(serve):
    """By SIGTERM, by SIGKILL of the supervisor, by SIGKILL of everything, in turn; each life adds a little."""
    seed = random.randrange(1 << 32)
    print("seed", seed)
    dice = random.Random(seed)
    server, books = serve.make(shards=2), Books()
    ends = itertools.cycle([server.stop, server.kill_all, server.kill_supervisor])
    previous = None
    for life in range(50):
        server.start().wait_ready()
        with Client(server) as client:
            if life % 10 == 0:
                books.create(client, f"fsync-{life}", durability="fsync")
            if previous is not None:  # sent again with its key: the life before acked it
                topic, body, reply = previous
                again = client.append(topic, body)
                assert (again["deduped"], again["seqs"]) == (True, reply["seqs"])
            for topic in dice.sample(sorted(books.content), min(3, len(books.content))):
                books.append(client, topic, *range(dice.choice((1, 3, 300))))
            topic = dice.choice(sorted(books.content))
            body = {"records": [{"data": life}], "idempotency_key": f"life {life}"}
            reply = books.append(client, topic, life, idempotency_key=body["idempotency_key"])
            previous = topic, body, reply
            if dice.random() < 0.1:
                books.check(client)
        assert next(ends)() in (0, None)
    server.start().wait_ready()
    with Client(server) as client:
        books.check(client)
    print(json.dumps({topic: len(held) for topic, held in books.content.items()}))
    assert server.stop() == 0
    assert not server.holders()
    assert "Traceback" not in server.text()
