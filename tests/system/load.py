"""Concurrent writers, readers and deleters on a real server, for as long as the test hurts it."""

import random
import time
from collections import defaultdict

from tests.system.client import Client, Crew, check_page
from tests.system.history import Deletion, History, Write
from topics.ids import slot_of
from topics.testing.server import Server, wait_until

WRITERS, READERS, DELETERS = 8, 3, 2
TAGS = 6
PROGRESS = 200


def name_on(slots, shard, prefix) -> str:
    """A topic name that this shard owns."""
    return next(name for n in range(100_000) if slots[slot_of(name := f"{prefix}-{n}")] == shard)


class Load:
    def __init__(self, server: Server, seed: int) -> None:
        self.server = server
        self.seed = seed
        self.crew = Crew()
        slots = server.slots()
        self.shards = sorted(set(slots))
        safe = [name_on(slots, shard, "fsync") for shard in self.shards]
        others = [name_on(slots, shard, "disk") for shard in self.shards]
        self.history = History(safe, others)
        self.clients: list[Client] = []
        with Client(server) as client:
            for topic in self.history.topics:
                client.put(topic, durability="fsync" if topic in safe else "disk")

    def __enter__(self):
        for n in range(WRITERS):
            self.crew.start(self._write, n)
        for n in range(READERS):
            self.crew.start(self._read, n)
        for n in range(DELETERS):
            self.crew.start(self._delete, n)
        return self

    def __exit__(self, kind, *_):
        try:
            self.crew.join()
        except BaseException:
            if kind is None:
                raise  # else the test already fails, most likely of the same

    def wait_progress(self) -> None:
        """Until every topic has acked a write that was sent after this call, and all together some more."""
        since, history = time.monotonic(), self.history

        def done():
            self.crew.check()
            fresh = [write for write in list(history.writes.values()) if write.began > since and write.acked]
            return len(fresh) >= PROGRESS and {write.topic for write in fresh} == set(history.topics)

        wait_until(done, "writes to every topic")

    def verify(self) -> str:
        """The verdict on every topic; in words what was lost where that is allowed."""
        history, verdicts = self.history, []
        with Client(self.server) as client:
            assert set(client.names()) == set(history.topics)
            for topic in history.topics:
                records, gaps = client.read_all(topic)
                verdicts.append(history.verify(topic, records, gaps, client.state(topic)["count"]))
        return (
            f"{sum(v.acked for v in verdicts)} acked records in {history.acked_count} acks "
            f"({history.deduped_count} deduplicated), {sum(v.deleted for v in verdicts)} deleted, "
            f"on disk topics {sum(v.lost for v in verdicts)} under tombstones, "
            f"{sum(v.resurrected for v in verdicts)} deletes taken back; "
            f"{sum(c.lost for c in self.clients)} requests without an answer, "
            f"{sum(c.refused for c in self.clients)} refused"
        )

    def _client(self) -> Client:
        self.clients.append(Client(self.server))
        return self.clients[-1]

    # --- who does what --------------------------------------------------------------------------------------------

    def _write(self, number) -> None:
        dice, history = random.Random(f"{self.seed} writer {number}"), self.history
        mine: list[Write] = []
        with self._client() as client:
            while not self.crew.stopping.is_set():
                tag = f"tag-{dice.randrange(TAGS)}" if dice.random() < 0.4 else None
                count = dice.choice((1, 1, 1, 2, 7))
                write = Write(dice.choice(history.topics), f"{number}-{len(mine)}", count, tag)
                history.begin(write)
                history.ack(write, client.append(write.topic, write.body))
                mine.append(write)
                if dice.random() < 0.1:  # the client has forgotten that it got an answer
                    again = dice.choice(mine[-50:])
                    history.ack(again, client.append(again.topic, again.body))

    def _read(self, number) -> None:
        dice, history = random.Random(f"{self.seed} reader {number}"), self.history
        cursors: dict[str, int] = defaultdict(int)
        heads: dict[str, int] = defaultdict(int)
        passed: dict[str, set[int]] = defaultdict(set)
        gaps: dict[str, set[int]] = defaultdict(set)
        left = set(history.topics)  # to be read to the end, once nobody writes any more
        with self._client() as client:
            while left:
                topic = dice.choice(history.topics)
                stopping = self.crew.stopping.is_set() and self._writers_done()
                asked = time.monotonic()
                page = client.diff(
                    topic, from_seq=cursors[topic], limit=dice.choice((1, 10, 1000)), wait_ms=dice.choice((0, 0, 100))
                )
                check_page(page, cursors[topic])
                assert page["head_seq"] >= heads[topic], ("the head went back", topic, heads[topic], page)
                if gap := page["tombstone"]:
                    assert topic not in history.safe, ("an fsync topic lost records", topic, gap)
                    assert gap["reason"] == "crash", (topic, gap)
                    gaps[topic].update(range(gap["gap_from"], gap["gap_to"] + 1))
                history.saw(topic, page["records"], asked)
                passed[topic].update(record["$seq"] for record in page["records"])
                cursors[topic], heads[topic] = page["next_from_seq"], page["head_seq"]
                if stopping and page["caught_up"]:
                    left.discard(topic)
        for topic in history.topics:
            history.check_reader(topic, passed[topic], gaps[topic])

    def _writers_done(self) -> bool:
        return all(write.acked for write in list(self.history.writes.values()))

    def _delete(self, number) -> None:
        dice, history = random.Random(f"{self.seed} deleter {number}"), self.history
        with self._client() as client:
            while not self.crew.stopping.wait(0.1):
                topic = dice.choice(history.topics)
                seqs = list(history.owner[topic])
                before = dice.choice(seqs) if seqs and dice.random() < 0.5 else None
                deletion = Deletion(topic, f"tag-{dice.randrange(TAGS)}", before)
                history.begin_delete(deletion)
                bound = {} if before is None else {"before_seq": before}
                client.delete(topic, match=deletion.tag, **bound)
                deletion.acked = time.monotonic()
