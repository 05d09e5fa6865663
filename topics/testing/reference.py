"""A plain model of topics, to hold the real engine against: a list of events, folded over dicts and lists.

Nothing here is shared with the product but the request grammar. Every accepted command is an `Entry` of one log; a
topic is the fold of its entries. So what a crash may leave is easily said: the fold of some prefix of the log that
holds at least what was durable, plus, for each topic, what its durability class asks for (see `check_crash`):

| class  | acked, then lost in a crash                                                                          |
|--------|------------------------------------------------------------------------------------------------------|
| fsync  | never                                                                                                |
| disk   | the head stays at or above the acked one, and the range in between is a hole with reason "crash"     |
| memory | as disk after a killed process; after a power loss the head may go back, and then the epoch changes  |

An `ephemeral` topic comes back empty, every record it had is told as lost, and after a power loss its epoch changes.
One that has left that class keeps what it had from before; what came in between is lost unless a checkpoint has it.

A hole appears only where records were lost; only a power loss may report one on a `disk` topic that lost nothing,
because nothing is left that could tell.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from topics.core.match import TagMatch
from topics.testing.drafts import Draft, Record, Settings

DEDUP = "dedup"  # what dedup keys are called among the others: "dedup:…"

Told = tuple[tuple[int, int], ...]  # duplicates: (index in the write, seq)


class Page(NamedTuple):
    """What one diff answers."""

    texts: list[bytes]
    next_from_seq: int
    head_seq: int
    earliest_seq: int
    tombstone: tuple[int, int, str, int] | None


class Query(NamedTuple):
    from_seq: int = 0
    limit: int = 256
    batch_bytes: int = 1 << 20
    nodes: frozenset[str] = frozenset()
    tags: bool = False
    data: bool = True
    meta: bool = True


class ReferenceTopic:
    """One topic: live records by seq, and the fate of every other seq that a reader has to be told of."""

    def __init__(self, name: str, epoch: int, settings: Settings) -> None:
        self.name = name
        self.epoch = epoch
        self.settings = settings
        self.becoming: Settings | None = None  # settings that wait for their sync
        self.live: dict[int, Record] = {}  # ascending
        self.head_seq = 0
        self.last_ts = 0
        self.evicted: dict[int, str] = {}  # seq -> cap | ttl
        self.holes: dict[int, str] = {}  # seq -> reason
        self.keys: dict[str, tuple[int, int, int]] = {}  # key -> first seq, count, ts; dedup keys have their own prefix
        self.resident_from = 1 if self.is_resident else 0  # while `ephemeral`, and since it last was
        self.left: tuple[int, int] | None = None  # records from when it last was, if the update before ended that

    @property
    def is_resident(self) -> bool:
        return self.settings.durability == "ephemeral"

    # --- what is reported -----------------------------------------------------------------------------------------

    @property
    def earliest_seq(self) -> int:
        return next(iter(self.live), self.head_seq + 1)

    @property
    def evict_floor(self) -> int:
        return max(self.evicted, default=0) + 1

    @property
    def count(self) -> int:
        return len(self.live)

    @property
    def bytes(self) -> int:
        return sum(record.size for record in self.live.values())

    def find_key(self, key: str, now_ms: int) -> tuple[int, int, int] | None:
        found = self.keys.get(key)
        return found if found is not None and now_ms - found[2] <= self.settings.window_ms else None

    # --- changes --------------------------------------------------------------------------------------------------

    def expire(self, now_ms: int) -> None:
        """What waiting settings would keep stays as well: a crash decides which ones hold.

        A record whose own time is over goes silently, as if it were deleted.
        """
        self.live = {s: r for s, r in self.live.items() if r.ttl_ms is None or now_ms < r.ts + r.ttl_ms}
        ttls = [settings.ttl_ms for settings in (self.settings, self.becoming) if settings is not None]
        if all(ttls):
            self._lose((seq for seq, r in self.live.items() if now_ms - r.ts > max(ttls)), "ttl")

    def append(self, drafts: Sequence[Draft], ts: int, key: str | None) -> None:
        first = self.head_seq + 1
        new = {f"{DEDUP}:{draft.dedup}": (seq, 1, ts) for seq, draft in enumerate(drafts, first) if draft.dedup}
        if key is not None:
            new[key] = (first, len(drafts), ts)
        if new:
            self.keys = {k: known for k, known in self.keys.items() if ts - known[2] <= self.settings.window_ms} | new
        if drafts:
            self.expire(ts)
            for draft in drafts:
                self.head_seq += 1
                self.live[self.head_seq] = self.settings.record(self.head_seq, ts, draft)
            self.last_ts = max(self.last_ts, ts)
            self._enforce_caps()

    def sift(self, drafts: Sequence[Draft], now_ms: int, coming: int) -> tuple[list[Draft], Told]:
        """What is left of a write, and what its duplicates map to; `coming` records are accepted and not seen yet."""
        kept: list[Draft] = []
        told: dict[int, int] = {}
        seqs: dict[str, int] = {}
        for index, draft in enumerate(drafts):
            if draft.dedup is not None:
                known = self.find_key(f"{DEDUP}:{draft.dedup}", now_ms)
                if known is not None or draft.dedup in seqs:
                    told[index] = known[0] if known is not None else seqs[draft.dedup]
                    continue
                seqs[draft.dedup] = self.head_seq + coming + len(kept) + 1
            kept.append(draft)
        return kept, tuple(told.items())

    def retell(self, drafts: Sequence[Draft], first: tuple[int, int, int], now_ms: int) -> Told:
        """The duplicates of a write that is sent again, those that are still known."""
        own = set(range(first[0], first[0] + first[1]))
        told: dict[int, int] = {}
        for index, draft in enumerate(drafts):
            known = self.find_key(f"{DEDUP}:{draft.dedup}", now_ms) if draft.dedup is not None else None
            if known is not None and known[0] in own:
                own.discard(known[0])
            elif known is not None:
                told[index] = known[0]
        return tuple(told.items())

    def update(self, settings: Settings, ts: int) -> None:
        self.becoming = None
        self.expire(ts)  # what had expired by then stays gone, whatever the new ttl is
        was_resident, self.settings = self.is_resident, settings
        self.expire(ts)
        self._enforce_caps()
        resident = [seq for seq in self.live if seq >= self.resident_from]
        self.left = (resident[0], resident[-1]) if resident and was_resident and not self.is_resident else None
        if self.is_resident and not was_resident:
            self.resident_from = self.head_seq + 1

    def forget_resident(self) -> None:
        """A crash took what came while it was `ephemeral`."""
        if self.left is not None:
            self.lose(*self.left, "crash")
        self.keys = {key: known for key, known in self.keys.items() if known[0] < self.resident_from}

    def delete(self, seqs: Iterable[int], ts: int) -> int:
        self.expire(ts)
        return sum(self.live.pop(seq, None) is not None for seq in seqs)

    def lose(self, first: int, last: int, reason: str) -> None:
        for seq in range(first, last + 1):
            self.live.pop(seq, None)
            self.holes.setdefault(seq, reason)
        self.head_seq = max(self.head_seq, last)

    def _lose(self, seqs: Iterable[int], reason: str) -> None:
        for seq in list(seqs):
            del self.live[seq]
            self.evicted[seq] = reason

    def _enforce_caps(self) -> None:
        cap_records, cap_bytes = self.settings.cap_records, self.settings.cap_bytes
        held = self.bytes if cap_bytes else 0
        while (cap_records and self.count > cap_records) or (cap_bytes and held > cap_bytes):
            held -= self.live[self.earliest_seq].size
            self._lose([self.earliest_seq], "cap")

    # --- selecting ------------------------------------------------------------------------------------------------

    def select(self, before_seq: int | None, match: TagMatch | None) -> list[int]:
        """The seqs a delete removes at this instant."""
        bound = self.head_seq + 1 if before_seq is None else before_seq
        return [seq for seq, r in self.live.items() if seq < bound and (match is None or match.matches(r.tag))]

    def page(self, query: Query) -> Page:
        if query.from_seq > self.head_seq:
            tombstone: tuple[int, int, str, int] | None = (1, self.head_seq, "recreated", 0)
            start = self.earliest_seq - 1
        else:
            tombstone = self._gap(query.from_seq)
            start = tombstone[1] if tombstone is not None else query.from_seq
        stop = min((seq for seq in self.holes if seq > start), default=self.head_seq + 1)
        candidates = [record for seq, record in self.live.items() if start < seq < stop]
        taken = self._fit(candidates, query)
        rest = candidates[len(taken) :]
        shown = [record for record in taken if record.node is None or record.node not in query.nodes]
        return Page(
            [record.text(tags=query.tags, data=query.data, meta=query.meta) for record in shown],
            rest[0].seq - 1 if rest else stop - 1,
            self.head_seq,
            self.earliest_seq,
            tombstone,
        )

    def _gap(self, from_seq: int) -> tuple[int, int, str, int] | None:
        """Everything from the cursor to the next live record, if any of it was lost against the owner's will."""
        gap_to = next((seq for seq in self.live if seq > from_seq), self.head_seq + 1) - 1
        lost = [seq for seq in self.evicted if from_seq < seq <= gap_to]
        holes = [seq for seq in self.holes if from_seq < seq <= gap_to]
        reasons = {self.evicted[seq] for seq in lost} | {self.holes[seq] for seq in holes}
        if not reasons:
            return None
        reason = reasons.pop() if len(reasons) == 1 else "mixed"
        return from_seq + 1, gap_to, reason, len(lost) + len(holes)

    @staticmethod
    def _fit(candidates: list[Record], query: Query) -> list[Record]:
        """As many as limit and bytes allow, and one at least."""
        taken: list[Record] = []
        held = 0
        for record in candidates:
            if len(taken) == query.limit or (taken and held + record.size > query.batch_bytes):
                break
            taken.append(record)
            held += record.size
        return taken


class Found(NamedTuple):
    """A topic as it was recovered."""

    head_seq: int
    epoch: int
    records: int
    evicted: frozenset[int]
    holes: dict[int, str]


@dataclasses.dataclass
class Entry:
    """One event of the log: `change` folds it into the topics."""

    what: str
    topic: str
    change: "Callable[[Topics], None]"
    resident: bool = False  # never logged
    at_once: bool = False  # it ends an `ephemeral` time: seen before it is acked
    drafts: "tuple[Draft, ...]" = ()  # the records it appends
    duplicates: Told = ()  # and those that it did not
    ts: int = 0
    stored: bool = False  # it ended an `ephemeral` time, and a checkpoint has stored what came in that
    lost: bool = False  # as before, and a crash took that

    @property
    def is_control(self) -> bool:
        """Whether it makes, changes or removes its topic, which is acked only when it is durable."""
        return self.what.startswith(("create", "update", "remove"))


Topics = dict[str, ReferenceTopic]


@dataclasses.dataclass
class ReferenceShard:
    """All topics, live, and the log they came from."""

    topics: Topics = dataclasses.field(default_factory=dict)
    log: list[Entry] = dataclasses.field(default_factory=list)
    acked_head: dict[tuple[str, int], int] = dataclasses.field(default_factory=dict)  # by (name, epoch)
    durable: int = 0  # entries of the log that are known to be on disk
    written: int = 0  # entries that survive the death of the process alone

    def fold(self, length: int) -> Topics:
        topics: Topics = {}
        for index, entry in enumerate(self.log):
            if index < length or entry.resident:  # the register has heard of the latter
                entry.change(topics)
                if entry.lost:
                    topics[entry.topic].forget_resident()
        return topics

    def note_ack(self, name: str, last_seq: int) -> None:
        key = (name, self.topics[name].epoch)
        self.acked_head[key] = max(self.acked_head.get(key, 0), last_seq)

    # --- entries --------------------------------------------------------------------------------------------------

    def create(self, name: str, epoch: int, settings: Settings, ts: int) -> Entry:
        def change(topics: Topics) -> None:
            topics[name] = ReferenceTopic(name, epoch, settings)
            topics[name].last_ts = ts

        return self._log("create", name, change)

    def append(
        self, name: str, drafts: list[Draft], ts: int, key: str | None, told: Told = (), *, resident: bool = False
    ) -> Entry:
        change = lambda topics: topics[name].append(drafts, ts, key)  # noqa: E731
        entry = self._log(f"append {len(drafts)}", name, change, resident=resident)
        entry.drafts, entry.ts, entry.duplicates = tuple(drafts), ts, told
        return entry

    def create_and_append(
        self, name: str, epoch: int, settings: Settings, drafts: list[Draft], ts: int, key: str | None
    ) -> Entry:
        """A write that makes its topic: one event, both or neither."""

        def change(topics: Topics) -> None:
            topics[name] = ReferenceTopic(name, epoch, settings)
            topics[name].append(drafts, ts, key)

        entry = self._log("create and append", name, change)
        entry.drafts, entry.ts = tuple(drafts), ts
        return entry

    def delete(
        self, name: str, before_seq: int | None, seqs: list[int] | None, ts: int, *, resident: bool = False
    ) -> Entry:
        """`seqs` are what a match was resolved to; without them everything below `before_seq` goes."""

        def change(topics: Topics) -> None:
            topic = topics[name]
            topic.delete(seqs if seqs is not None else topic.select(before_seq, None), ts)

        return self._log("delete", name, change, resident=resident)

    def update(self, name: str, settings: Settings, ts: int) -> Entry:
        return self._log("update", name, lambda topics: topics[name].update(settings, ts))

    def remove(self, name: str) -> Entry:
        return self._log("remove", name, lambda topics: topics.__delitem__(name))

    def lose(self, name: str, last: int, epoch: int) -> Entry:
        """What a recovery logs: the head goes on above `last`, what is missing below it is a hole."""

        def change(topics: Topics) -> None:
            topic = topics[name]
            topic.lose(topic.head_seq + 1, last, "crash")
            topic.epoch = epoch

        return self._log("lose", name, change)

    def _log(self, what: str, name: str, change: "Callable[[Topics], None]", *, resident: bool = False) -> Entry:
        entry = Entry(what, name, change, resident)
        self.log.append(entry)
        return entry

    # --- crashes --------------------------------------------------------------------------------------------------

    def recover(self, length: int, found: Mapping[str, Found], *, power_loss: bool) -> str | None:
        """Go on from a crash that left `length` entries and these topics. What is wrong with that, or None."""
        self.log = [dataclasses.replace(entry) for n, entry in enumerate(self.log) if n < length or entry.resident]
        self._note_lost(found)
        folded = self.fold(len(self.log))
        if folded.keys() != found.keys():
            return f"topics {sorted(found)} instead of {sorted(folded)}"
        for name, topic in folded.items():
            check = self._check_resident if topic.is_resident else self._check_topic
            wrong = check(topic, found[name], power_loss=power_loss)
            if wrong is not None:
                return f"{name}: {wrong}"
        for name, topic in folded.items():
            if topic.is_resident:
                self._empty(topic, found[name])
            elif found[name][:2] != (topic.head_seq, topic.epoch):
                self.lose(name, *found[name][:2])
        self.topics = self.fold(len(self.log))
        self.durable = self.written = len(self.log)
        self.acked_head = {
            (name, topic.epoch): min(topic.head_seq, self.acked_head.get((name, folded[name].epoch), 0))
            for name, topic in self.topics.items()
        }
        return None

    def _note_lost(self, found: Mapping[str, Found]) -> None:
        """Find out which `ephemeral` times the crash took: their records are a hole where they ended."""
        topics: Topics = {}
        for entry in self.log:
            entry.change(topics)
            topic = topics.get(entry.topic)
            left = topic.left if topic is not None and entry.what == "update" else None
            if left is not None and entry.topic in found and not entry.stored and not entry.lost:
                entry.lost = found[entry.topic].holes.get(left[0]) == "crash"
                entry.stored = not entry.lost
            if entry.lost:
                topics[entry.topic].forget_resident()

    def _check_resident(self, topic: ReferenceTopic, found: Found, *, power_loss: bool) -> str | None:
        if found.records:
            return f"{found.records} records of an ephemeral topic are back"
        if found.head_seq > topic.head_seq or (found.head_seq < topic.head_seq and not power_loss):
            return f"the head of an ephemeral topic went from {topic.head_seq} to {found.head_seq}"
        if (found.epoch != topic.epoch) is not power_loss:
            return f"the epoch went from {topic.epoch} to {found.epoch}"
        untold = [s for s in topic.live if s <= found.head_seq and s not in found.holes and s not in found.evicted]
        return f"{untold} are gone without a word" if untold else None

    def _empty(self, topic: ReferenceTopic, found: Found) -> None:
        """Nothing is left of an `ephemeral` topic; why a record went may be forgotten, but not that it did."""

        def change(topics: Topics) -> None:
            topic = topics[found_in]
            topic.live = {}
            topic.head_seq, topic.epoch = found.head_seq, found.epoch
            topic.evicted = {seq: topic.evicted.get(seq, "ttl") for seq in sorted(found.evicted)}
            topic.holes = dict(found.holes)
            topic.keys = {key: known for key, known in topic.keys.items() if known[0] < topic.resident_from}

        found_in = topic.name
        self._log("empty", topic.name, change)

    def _check_topic(self, topic: ReferenceTopic, found: Found, *, power_loss: bool) -> str | None:
        head_seq, epoch = found.head_seq, found.epoch
        durability = topic.settings.durability
        acked = self.acked_head.get((topic.name, topic.epoch), 0)
        lost = acked > topic.head_seq
        if head_seq < topic.head_seq:
            return f"the head is {head_seq}, but {topic.head_seq} is in the log"
        if lost and durability == "fsync":
            return f"acked up to {acked}, recovered up to {topic.head_seq}"
        if head_seq < acked and not (durability == "memory" and power_loss and epoch != topic.epoch):
            return f"seqs above {head_seq} were acked (up to {acked}) and will be used again"
        if head_seq > topic.head_seq and not lost and not (power_loss and durability == "disk"):
            return f"a false alarm: the head went from {topic.head_seq} to {head_seq}, but nothing was lost"
        if epoch != topic.epoch and not (power_loss and durability == "memory"):
            return f"the epoch went from {topic.epoch} to {epoch}"
        return None
