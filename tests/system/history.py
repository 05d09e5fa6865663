"""What clients were told, and whether a server may have told it: the judge of the tests that kill processes.

A write is one request with an idempotency key, sent until it is acked. Times are of one monotonic clock and only order
what one client saw before what another did.
"""

import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field


@dataclass
class Write:
    topic: str
    key: str
    count: int
    tag: str | None
    began: float = 0.0
    floor: int = 0  # the highest seq of the topic that was acked before this was sent
    acked: float = 0.0
    acks: list[int] = field(default_factory=list)  # first seqs; more than one only if a crash took the first back

    @property
    def body(self):
        extra = {"tag": self.tag} if self.tag else {}
        records = [{"data": [self.key, n], **extra} for n in range(self.count)]
        return {"records": records, "idempotency_key": self.key, "create": False}


@dataclass
class Deletion:
    topic: str
    tag: str
    before_seq: int | None
    began: float = 0.0
    acked: float = 0.0

    def selects(self, seq, tag):
        return tag == self.tag and (self.before_seq is None or seq < self.before_seq)


class History:
    """`safe` are the topics whose acked writes survive everything (durability fsync)."""

    def __init__(self, safe, others) -> None:
        self.safe = set(safe)
        self.topics = [*safe, *others]
        self.writes: dict[str, Write] = {}
        self.deletions: dict[str, list[Deletion]] = defaultdict(list)
        self.owner: dict[str, dict[int, tuple[Write, int]]] = defaultdict(dict)  # topic → seq → record of which write
        self.seen: dict[str, dict[int, list]] = defaultdict(dict)  # topic → seq → data, as any reader ever saw it
        self.acked_count = 0
        self.deduped_count = 0
        self._head: dict[str, int] = defaultdict(int)
        self._lock = threading.Lock()

    # --- what happens ---------------------------------------------------------------------------------------------

    def begin(self, write: Write) -> None:
        with self._lock:
            write.began, write.floor = time.monotonic(), self._head[write.topic]
            self.writes[write.key] = write

    def ack(self, write: Write, reply) -> None:
        first, last = reply["first_seq"], reply["last_seq"]
        assert reply["seqs"] == list(range(first, first + write.count)), reply
        assert (last, reply["count"]) == (first + write.count - 1, write.count), reply
        assert reply["head_seq"] >= last, reply
        with self._lock:
            if not write.acks:
                assert first > write.floor, (write, reply)
                write.acked = time.monotonic()
            elif first == write.acks[0]:
                assert reply["deduped"], (write, reply)
            else:
                assert write.topic not in self.safe, ("acked twice", write, reply)
            write.acks.append(first)
            self.acked_count += 1
            self.deduped_count += reply["deduped"]
            self._head[write.topic] = max(self._head[write.topic], last)
            for n, seq in enumerate(reply["seqs"]):
                owner = self.owner[write.topic].setdefault(seq, (write, n))
                assert owner == (write, n), ("one seq acked for two writes", seq, owner, write)

    def saw(self, topic, records, asked: float) -> None:
        """A reader got these for a diff that it sent at `asked`."""
        with self._lock:
            deletions = [deletion for deletion in self.deletions[topic] if 0 < deletion.acked < asked]
            for record in records:
                seq = record["$seq"]
                assert self.seen[topic].setdefault(seq, record["data"]) == record["data"], (topic, record)
                if topic in self.safe and (found := self.owner[topic].get(seq)):
                    write = found[0]
                    gone = [d for d in deletions if d.selects(seq, write.tag) and write.acked < d.began]
                    assert not gone, ("read after its deletion was acked", topic, record, gone)

    def begin_delete(self, deletion: Deletion) -> None:
        with self._lock:
            deletion.began = time.monotonic()
            self.deletions[deletion.topic].append(deletion)

    # --- the verdict ----------------------------------------------------------------------------------------------

    def verify(self, topic, records, gaps, count) -> "Verdict":
        """Judge the whole content of a topic, read when nobody writes any more and every write was acked."""
        lost: set[int] = set()
        for gap in gaps:
            assert topic not in self.safe, ("an fsync topic lost records", topic, gap)
            assert gap["reason"] == "crash", gap
            lost.update(range(gap["gap_from"], gap["gap_to"] + 1))
        there = {record["$seq"]: record for record in records}
        assert count == len(there), (topic, count, len(there))
        stays = [tuple(record["data"]) for record in records]
        assert len(stays) == len(set(stays)), ("a record is there twice", topic)
        owner = self.owner[topic]
        for seq, record in there.items():
            write, n = owner[seq]  # else: a record nobody was told of
            assert (record["data"], record.get("$tag")) == ([write.key, n], write.tag), (topic, record, write)
        head = max([*owner, *lost], default=0)
        assert set(range(1, head + 1)) <= owner.keys() | lost, (topic, "a seq was skipped")
        verdict = Verdict(topic, len(owner))
        for seq, (write, _) in owner.items():
            self._judge(verdict, seq, write, seq in there, seq in lost)
        for seq, data in self.seen[topic].items():
            if seq in there:
                assert there[seq]["data"] == data, (topic, seq)
        return verdict

    def _judge(self, verdict, seq, write, there, lost) -> None:
        selected = [d for d in self.deletions[write.topic] if d.selects(seq, write.tag) and d.acked > write.began]
        certain = [d for d in selected if d.began > write.acked]
        if there:
            verdict.resurrected += bool(certain)
            assert not (certain and write.topic in self.safe), ("a deleted record is there", seq, write, certain)
        elif lost:
            verdict.lost += 1
        else:
            assert selected, ("an acked record is gone", write.topic, seq, write)
            verdict.deleted += 1

    def check_reader(self, topic, passed: set[int], gaps: set[int]) -> None:
        """A reader that followed the topic to its end saw every record that nobody deleted."""
        for seq, (write, _) in self.owner[topic].items():
            if seq not in passed and seq not in gaps:
                deleted = any(d.selects(seq, write.tag) and d.acked > write.began for d in self.deletions[topic])
                assert deleted, ("a reader was led past a record", topic, seq, write)


@dataclass
class Verdict:
    topic: str
    acked: int
    deleted: int = 0
    lost: int = 0  # acked on a topic that is not fsync, taken by a kill, and reported by a tombstone
    resurrected: int = 0  # deleted on such a topic, and the delete was lost
