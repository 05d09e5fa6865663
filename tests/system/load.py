"""Concurrent writers, readers and deleters on a real server, for as long as the test hurts it; all of it is judged."""

import random
import time
from collections import Counter, defaultdict

from tests.system.client import Client, Crew, check_page
from tests.system.recorder import Recorder
from topics.ids import slot_of
from topics.testing import judge
from topics.testing.history import APPEND, DELETE, OK, UNKNOWN, Crash, History
from topics.testing.server import Server, wait_until

WRITERS, READERS, DELETERS = 8, 3, 2
TAGS = 6
PROGRESS = 120


def name_on(slots, shard, prefix) -> str:
    """A topic name that this shard owns."""
    return next(name for n in range(100_000) if slots[slot_of(name := f"{prefix}-{n}")] == shard)


class Load:
    def __init__(self, server: Server, seed: int) -> None:
        self.server = server
        self.seed = seed
        self.crew = Crew()
        self.history = History(one_log=False)
        self.clients: list[Client] = []
        self.topics: list[str] = []
        slots = server.slots()
        with self._client("maker") as client:
            for durability in ("fsync", "disk"):
                for shard in sorted(set(slots)):
                    self.topics.append(name_on(slots, shard, durability))
                    client.put(self.topics[-1], durability=durability)

    def __enter__(self):
        for n in range(WRITERS):
            self.crew.start(self._write, f"writer-{n}")
        for n in range(READERS):
            self.crew.start(self._read, f"reader-{n}")
        for n in range(DELETERS):
            self.crew.start(self._delete, f"deleter-{n}")
        return self

    def __exit__(self, kind, *_):
        try:
            self.crew.join()
        except BaseException:
            if kind is None:
                raise  # else the test already fails, most likely of the same

    def crashed(self, began: float, kind: str) -> None:
        """Between then and now shards were gone."""
        self.history.crashes.append(Crash(began, time.monotonic(), kind))

    def wait_progress(self) -> None:
        """Until every topic has acked a write that was sent after this call, and all together some more."""
        since = len(self.history.ops)

        def done():
            self.crew.check()
            fresh = [op for op in self.history.ops[since:] if op.kind == APPEND and op.outcome == OK]
            return len(fresh) >= PROGRESS and {op.topic for op in fresh} == set(self.topics)

        wait_until(done, "writes to every topic")

    def verify(self) -> str:
        """Read everything and have the whole history judged; in words what happened in it."""
        with self._client("auditor") as client:
            assert set(client.names()) == set(self.topics)
            for topic in self.topics:
                records, _ = client.read_all(topic)
                assert client.state(topic)["count"] == len(records), topic
        problems = judge.check(self.history)
        assert not problems, "\n".join(problems[:10])
        counts = Counter((op.kind, op.outcome) for op in self.history.ops)
        deduped = sum(op.kind == APPEND and op.outcome == OK and op.result["deduped"] for op in self.history.ops)
        return (
            f"{counts[APPEND, OK]} acked writes ({deduped} deduplicated), {counts[APPEND, UNKNOWN]} in doubt; "
            f"{counts[DELETE, OK]} acked deletes, {counts[DELETE, UNKNOWN]} in doubt; "
            f"{sum(client.lost for client in self.clients)} requests without an answer, "
            f"{sum(client.refused for client in self.clients)} refused"
        )

    def _client(self, name) -> Recorder:
        client = Recorder(self.server, name, self.history)
        self.clients.append(client)
        return client

    # --- who does what --------------------------------------------------------------------------------------------

    def _write(self, name) -> None:
        dice = random.Random(f"{self.seed} {name}")
        mine: list[tuple[str, dict]] = []
        with self._client(name) as client:
            while not self.crew.stopping.is_set():
                tag = {"tag": f"tag-{dice.randrange(TAGS)}"} if dice.random() < 0.4 else {}
                key = f"{name}/{len(mine)}"
                records = [{"data": [key, n], **tag} for n in range(dice.choice((1, 1, 1, 2, 7)))]
                body = {"records": records, "idempotency_key": key, "create": False}
                mine.append((dice.choice(self.topics), body))
                client.append(*mine[-1])
                if dice.random() < 0.1:  # the client has forgotten that it got an answer
                    client.append(*dice.choice(mine[-50:]))

    def _read(self, name) -> None:
        """Follow every topic, to its end once nobody writes any more."""
        dice = random.Random(f"{self.seed} {name}")
        cursors: dict[str, int] = defaultdict(int)
        left = set(self.topics)
        with self._client(name) as client:
            while left:
                topic, stopping = dice.choice(self.topics), self.crew.stopping.is_set()
                limit, wait_ms = dice.choice((1, 10, 1000)), dice.choice((0, 0, 100))
                page = client.diff(topic, from_seq=cursors[topic], limit=limit, wait_ms=wait_ms, include_tags=True)
                check_page(page, cursors[topic])
                cursors[topic] = page["next_from_seq"]
                if stopping and page["caught_up"]:
                    left.discard(topic)

    def _delete(self, name) -> None:
        dice = random.Random(f"{self.seed} {name}")
        with self._client(name) as client:
            while not self.crew.stopping.wait(0.1):
                topic = dice.choice(self.topics)
                bound = (
                    {"before_seq": dice.randint(1, client.state(topic)["head_seq"] + 1)} if dice.random() < 0.5 else {}
                )
                client.delete(topic, match=f"tag-{dice.randrange(TAGS)}", **bound)
