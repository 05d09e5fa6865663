"""What holds for every topic, of a log or a queue (see judge.py).

A topic is linearizable if one order of its operations explains every answer and keeps to real time. Seqs give that
order away, so there is nothing to search:

1. A seq belongs to one record for ever (in one epoch), a write has one place, whole, and what was never written or was
   refused is never read.
2. A write that began after another one, or any answer that spoke of it, had ended has a higher seq. Heads never go
   back.
3. A read shows every record between its cursor and the next one, but those that a delete or an ack may have taken, or
   that are dead letters now (silently), and those under its tombstone, for a reason that can be true.
4. What was once gone stays gone: after the end of its own lifetime, which takes it silently, after an acked delete, or
   after any reader could no longer see it. A delete takes all it selects at once.
5. A key that was sent again has the place it had, for as long as it is remembered, and no longer.
6. Times of records do not go back; a topic that was made is found, one that was removed is not.

What a crash may take is said by the topic's durability (`_may_be_lost`): from `fsync` nothing.
"""

from collections import defaultdict
from collections.abc import Iterator
from math import inf
from typing import Any, NamedTuple

from topics import errors
from topics.testing.history import (
    ACK,
    APPEND,
    CLAIM,
    DELETE,
    DIFF,
    KILL,
    OK,
    POWER,
    PUT,
    REFUSED,
    REMOVE,
    STATE,
    STOP,
    UNKNOWN,
    History,
    Op,
    is_between,
    selects,
)

WINDOW_MS = 120_000  # for which a key is remembered, unless a topic says otherwise
POLL_SLACK_MS = 250  # virtual: how late a long-poll may answer


def classes_of(history: History, name: str) -> set[str]:
    """Every durability the topic may ever have had."""
    configs = [op.args.get("config") or {} for op in history.ops if op.topic == name and op.outcome != REFUSED]
    return {config["durability"] for config in configs if "durability" in config}


class Place(NamedTuple):
    """Whose record stands at a seq, and when somebody was first told so."""

    write: str
    number: int  # of the record in its write
    told: float


class Judge:
    """Of one topic."""

    def __init__(self, history: History, name: str, synced: list[tuple[float, float]]) -> None:
        self.name = name
        self.ops = sorted((op for op in history.ops if op.topic == name), key=lambda op: op.ended)
        self.crashes = history.crashes
        self.problems: list[str] = []
        self.attempts: dict[str, list[Op]] = defaultdict(list)
        for op in self.of(APPEND):
            self.attempts[op.args["write"]].append(op)
        self.deletes = [op for op in self.of(DELETE, ACK) if op.outcome != REFUSED]
        self.removes = [op for op in self.of(REMOVE) if op.outcome != REFUSED]
        self.makers = [op for op in self.of(PUT, APPEND) if op.outcome != REFUSED]
        self.configs = [(op.began, op.args["config"]) for op in self.makers if op.args.get("config") is not None]
        self.classes = classes_of(history, name)
        self.safe = self.classes == {"fsync"}
        self.synced = synced
        self.gone: dict[tuple[int, int], float] = {}  # (epoch, seq) → when a reader was first told so
        self.places: dict[int, dict[int, Place]] = defaultdict(dict)  # epoch → seq
        self.bases: dict[tuple[int, str], list[int]] = defaultdict(list)
        self.homes: dict[str, set[int]] = defaultdict(set)  # the epochs in which a write was seen
        self.carried: set[int] = set()  # what is seen among the dead letters
        self.times: dict[int, dict[int, int]] = defaultdict(dict)  # epoch → seq → $ts

    def of(self, *kinds: str) -> Iterator[Op]:
        return (op for op in self.ops if op.kind in kinds)

    def wrong(self, what: str, op: Op) -> None:
        self.problems.append(f"{self.name}: {what}\n    {op}")

    def judge(self) -> list[str]:
        self._find_places()
        self._check_order()
        self._check_times()
        self._check_windows()
        self._check_existence()
        reads = [_Read(self, op) for op in self.of(DIFF) if op.outcome == OK]
        for read in reads:  # in the order of their answers
            for seq in read.missing():
                self.gone.setdefault((read.epoch, seq), read.op.ended)
        for read in reads:
            read.check()
        return self.problems

    # --- 1: places ------------------------------------------------------------------------------------------------

    def _find_places(self) -> None:
        for op in self.ops:
            if op.outcome != OK:
                continue
            epoch = op.epochs[1]
            if op.kind == APPEND:
                count = len(op.args["tags"])
                if op.result["last_seq"] - op.result["first_seq"] + 1 != count:
                    self.wrong("the seqs of a write are not one run of its length", op)
                self._place(epoch, op.args["write"], op.result["first_seq"], op)
            elif op.kind in (DIFF, CLAIM) and op.epochs[0] == epoch:
                for record in op.result["records" if op.kind == DIFF else "claimed"]:
                    self._place_record(epoch, record, op)

    def _place_record(self, epoch: int, record: dict[str, Any], op: Op) -> None:
        write, index = record["data"][:2]
        seq = record["$seq"]
        attempts = [attempt for attempt in self.attempts.get(write, []) if attempt.began < op.ended]
        if not attempts or index >= len(attempts[0].args["tags"]):
            self.wrong(f"seq {seq} was never written: {record}", op)
            return
        if all(attempt.outcome == REFUSED for attempt in attempts):
            self.wrong(f"seq {seq} is of a write that was refused", op)
        sent = attempts[0].args
        if (record.get("$tag"), record.get("$node")) != (sent["tags"][index], sent.get("node")):
            self.wrong(f"seq {seq} is not what was written: {record}", op)
        if self.times[epoch].setdefault(seq, record["$ts"]) != record["$ts"]:
            self.wrong(f"seq {seq} changed its time", op)
        self._place(epoch, write, seq - index, op)

    def _place(self, epoch: int, write: str, first: int, op: Op) -> None:
        bases = self.bases[epoch, write]
        if first in bases:
            return
        if bases or (self.classes <= {"fsync", "disk"} and self.homes[write]):
            self._check_second_place(epoch, write, first, op)
        bases.append(first)
        self.homes[write].add(epoch)
        for index in range(len(self.attempts[write][0].args["tags"])):
            place = self.places[epoch].setdefault(first + index, Place(write, index, op.ended))
            if place[:2] != (write, index):
                self.wrong(f"seq {first + index} of epoch {epoch} was of write {place.write}, now of {write}", op)

    def _check_second_place(self, epoch: int, write: str, first: int, op: Op) -> None:
        """A write may be there twice only if it was sent twice, and a crash or a removal took the first, or its key was
        forgotten since."""
        told = [place.told for places in self.places.values() for place in places.values() if place.write == write]
        lost = not self.safe and is_between(self.crashes, min(told), op.ended, (KILL, POWER, STOP))
        removed = any(remove.overlaps(0, op.ended) for remove in self.removes) and not self.bases[epoch, write]
        if len(self.attempts[write]) < 2 or not (lost or removed or self._may_be_forgotten(epoch, write, first, op)):
            self.wrong(f"write {write} is there twice: at {self.bases[epoch, write]} and at {first}", op)

    def _may_be_forgotten(self, epoch: int, write: str, first: int, op: Op) -> bool:
        """Whether its key was forgotten between any two of its places; which of them was seen first says nothing."""
        times, bases = self.times[epoch], self.bases[epoch, write]
        sent_ms = min(attempt.began_ms for attempt in self.attempts[write])
        if not bases:
            return op.ended_ms - sent_ms > self._window_ms
        pairs = (sorted((first, base)) for base in bases)
        return all(times.get(high, op.ended_ms) - times.get(low, sent_ms) > self._window_ms for low, high in pairs)

    @property
    def _window_ms(self) -> int:
        return max(self.bounds("idempotency_window_ms", inf), default=WINDOW_MS)

    def _check_windows(self) -> None:
        """No key is remembered for longer than it should be."""
        for op in self.of(APPEND):
            if op.outcome == OK and op.result["deduped"]:
                ts = self.times[op.epochs[1]].get(op.result["first_seq"], inf)
                if op.began_ms - ts > self._window_ms:
                    self.wrong(f"its key should be forgotten {self._window_ms} ms after {ts}", op)

    # --- 2: real time ---------------------------------------------------------------------------------------------

    def _check_order(self) -> None:
        """Nothing that began after an answer may contradict it."""
        ended = [op for op in self.ops if op.outcome == OK and op.kind in (APPEND, DIFF, DELETE, STATE)]
        heads: dict[int, int] = {}
        newest = done = 0
        for op in sorted(ended, key=lambda op: op.began):
            while ended[done].ended < op.began:
                earlier = ended[done]
                epoch = earlier.epochs[1]
                if earlier.epochs[0] == epoch or earlier.kind == APPEND:
                    heads[epoch] = max(heads.get(epoch, 0), earlier.result["head_seq"])
                    newest = max(newest, epoch)
                done += 1
            self._check_after(op, heads.get(op.epochs[1], 0), newest)

    def _check_after(self, op: Op, head: int, newest: int) -> None:
        if max(op.epochs) < newest:  # one that a removal overlaps may be of the life that ended
            self.wrong(f"epoch {newest} was there before", op)
        if op.epochs[0] != op.epochs[1] and op.kind != APPEND:
            return
        if op.result["head_seq"] < head:
            self.wrong(f"the head went back from {head}", op)
        if op.kind == APPEND and not op.result["deduped"] and op.result["first_seq"] <= head:
            self.wrong(f"a seq at or below the head {head} was given out", op)

    # --- 6: times, existence --------------------------------------------------------------------------------------

    def _check_times(self) -> None:
        """In all that was ever seen of a safe topic; what a crash took of another says nothing of what came after."""
        for times in self.times.values() if self.safe else ():
            if list(dict(sorted(times.items())).values()) != sorted(times.values()):
                self.problems.append(f"{self.name}: times go back: {sorted(times.items())}")

    def _check_existence(self) -> None:
        for op in self.ops:
            if op.error == errors.TOPIC_NOT_FOUND and op.args.get("config") is None:
                made = [m for m in self.makers if m.outcome == OK and m.ended < op.began]
                if any(not any(r.overlaps(maker.began, op.ended) for r in self.removes) for maker in made):
                    self.wrong("the topic was made and never removed, and is not found", op)
            if op.outcome == OK and op.kind in (DIFF, STATE):
                gone = [r for r in self.removes if r.outcome == OK and r.result["deleted"] and r.ended < op.began]
                if any(not any(m.overlaps(r.began, op.ended) for m in self.makers) for r in gone):
                    self.wrong("the topic was removed and not made again, and is found", op)

    # --- what a crash may take ------------------------------------------------------------------------------------

    def may_be_lost(self, place: Place | None, op: Op) -> bool:
        """Whether a crash before `op` ended may have taken this record."""
        if self.safe:
            return False
        kinds = (KILL, POWER, STOP) if "ephemeral" in self.classes else (KILL, POWER)
        since = -inf if place is None else min(attempt.began for attempt in self.attempts[place.write])
        crashes = [c for c in self.crashes if c.kind in kinds and c.until > since and c.at < op.ended]
        if place is None or self.classes != {"disk"}:
            return bool(crashes)
        return any(not any(place.told < b and e < crash.at for b, e in self.synced) for crash in crashes)

    def may_come_back(self, since: float, op: Op) -> bool:
        """Whether a crash may have undone a delete that was acked or seen at `since`."""
        return not self.safe and is_between(self.crashes, since, op.ended, (KILL, POWER))

    def tag_of(self, place: Place) -> str | None:
        tag: str | None = self.attempts[place.write][0].args["tags"][place.number]
        return tag

    def lifetime_of(self, place: Place) -> float:
        """For how long the record was to live, in milliseconds."""
        terms = self.attempts[place.write][0].args.get("terms")
        return terms[place.number].get("ttl_ms", inf) if terms else inf

    def may_be_over(self, place: Place | None, op: Op) -> bool:
        """Whether the time of a record may have been over when `op` happened; of one that nobody has seen, any."""
        attempts = self.attempts[place.write] if place is not None else []
        if place is not None:
            return min(attempt.began_ms for attempt in attempts) + self.lifetime_of(place) <= op.ended_ms
        lost = (a for sent in self.attempts.values() for a in sent if a.outcome == UNKNOWN and a.began < op.ended)
        return any("ttl_ms" in term for attempt in lost for term in attempt.args.get("terms", ()))

    def check_alive(self, epoch: int, seq: int, op: Op) -> None:
        """This operation was told of a record: nobody may have been told before that it is deleted."""
        place = self.places[epoch][seq]
        for delete in self.deletes:
            certain = delete.outcome == OK and delete.epochs == (epoch, epoch) and place.told < delete.began
            gone = certain and delete.ended < op.began and selects(delete, seq, self.tag_of(place))
            if gone and not self.may_come_back(delete.ended, op):
                self.wrong(f"seq {seq} is there after its deletion was acked at {delete.ended}", op)

    def bounds(self, name: str, before: float) -> list[int]:
        return [config[name] for began, config in self.configs if config.get(name) and began < before]


class _Read:
    """3 and 4: one answer of a diff."""

    def __init__(self, judge: Judge, op: Op) -> None:
        self.judge = judge
        self.op = op
        self.page = op.result
        self.epoch = op.epochs[1]
        self.places = judge.places[self.epoch]
        self.shown = {record["$seq"]: record for record in self.page["records"]}

    def _wrong(self, what: str) -> None:
        self.judge.wrong(what, self.op)

    def check(self) -> None:
        self._check_shape()
        self._check_poll()
        if self.op.epochs[0] != self.epoch:
            return
        for seq in self.shown:
            self._check_shown(seq)
        missing = self._check_missing()
        self._check_whole_deletes(missing)

    def _check_shape(self) -> None:
        page, seqs = self.page, list(self.shown)
        from_seq, head = self.op.args["from_seq"], page["head_seq"]
        times = [record["$ts"] for record in page["records"]]
        if times != sorted(times):
            self._wrong("times go back")
        if seqs != sorted(seqs) or len(seqs) != len(page["records"]) or len(seqs) > self.op.args["limit"]:
            self._wrong("not in order, twice, or too many")
        if (seqs and seqs[-1] > page["next_from_seq"]) or page["next_from_seq"] > head:
            self._wrong("the cursor lies before a record it passed, or behind the head")
        # A poll that had passed records of its own node may be ahead of the head of a topic that was made anew.
        began_anew = self.op.epochs[0] != self.epoch and (page["tombstone"] or {}).get("reason") == "recreated"
        is_before = page["next_from_seq"] < from_seq or (seqs and seqs[0] <= from_seq)
        if from_seq <= head and is_before and not began_anew:
            self._wrong("it begins before its cursor")
        if page["caught_up"] != (page["next_from_seq"] == head):
            self._wrong("caught_up is not what the cursor says")
        if not seqs and page["next_from_seq"] == from_seq < head:
            self._wrong("a reader that is behind gets nothing and is not moved on")

    def _check_poll(self) -> None:
        op, wait_ms = self.op, self.op.args.get("wait_ms", 0)
        if not op.ended_ms:
            return
        if op.ended_ms - op.began_ms > wait_ms + POLL_SLACK_MS:
            self._wrong(f"it took {op.ended_ms - op.began_ms} ms of {wait_ms}")
        for seq in self.shown:
            acked_ms = self._acked_ms(seq)
            late = op.ended_ms - max(op.began_ms, op.ended_ms if acked_ms is None else acked_ms)
            if late > POLL_SLACK_MS:
                self._wrong(f"seq {seq} was there for {late} ms while the reader waited")

    def _acked_ms(self, seq: int) -> int | None:
        """When the write of this record, at this place, was first acked; it may have had others."""
        place = self.places.get(seq)
        for op in self.judge.attempts[place.write] if place is not None else ():
            here = op.outcome == OK and op.epochs[1] == self.epoch
            if here and place is not None and op.result["first_seq"] == seq - place.number:
                return op.ended_ms
        return None

    # --- what is shown --------------------------------------------------------------------------------------------

    def _check_shown(self, seq: int) -> None:
        judge, op, place = self.judge, self.op, self.places[seq]
        last = seq - place.number + len(judge.attempts[place.write][0].args["tags"]) - 1
        if self.page["head_seq"] < last:
            self._wrong(f"seq {seq} is there, but not the rest of its write up to {last}")
        missed = judge.gone.get((self.epoch, seq), inf)
        if missed < op.began and not judge.may_come_back(missed, op):
            self._wrong(f"seq {seq} is back: it was gone at {missed}")
        judge.check_alive(self.epoch, seq, op)
        ends_ms = self.shown[seq]["$ts"] + judge.lifetime_of(place)
        if op.began_ms >= ends_ms:
            self._wrong(f"seq {seq} is there although its time was over at {ends_ms}")

    # --- what is missing ------------------------------------------------------------------------------------------

    def missing(self) -> Iterator[int]:
        """What lies between the cursors and is not shown, but for what the reader did not want."""
        if self.op.epochs[0] != self.epoch:
            return  # the topic was made anew meanwhile; which of the two was read is not known
        start = self.op.args["from_seq"]
        unwanted = self.op.args.get("node")
        for seq in range(1 if start > self.page["head_seq"] else start + 1, self.page["next_from_seq"] + 1):
            place = self.places.get(seq)
            node = self.judge.attempts[place.write][0].args.get("node") if place is not None else None
            if seq not in self.shown and (unwanted is None or (place is not None and node != unwanted)):
                yield seq

    def _check_missing(self) -> dict[int, list[Op]]:
        """The silently missing ones, with the deletes that may have taken them."""
        gap = self.page["tombstone"]
        if gap is not None:
            self._check_reason(gap)
        silent = {}
        for seq in self.missing():
            takers = [delete for delete in self.judge.deletes if self._may_take(delete, seq)]
            if seq in self.judge.carried or self.judge.may_be_over(self.places.get(seq), self.op):
                continue
            if gap is not None and gap["gap_from"] <= seq <= gap["gap_to"]:
                if not takers and not self._may_be_gone(seq, gap["reason"]):
                    self._wrong(f"seq {seq} cannot be gone by {gap['reason']}")
            elif not takers:
                self._wrong(f"seq {seq} is missing without a word: {self.places.get(seq)}")
            else:
                silent[seq] = takers
        return silent

    def _tag(self, seq: int) -> str | None:
        return self.judge.tag_of(self.places[seq])

    def _may_take(self, delete: Op, seq: int) -> bool:
        if delete.began >= self.op.ended or (delete.outcome == OK and not self._concerns(delete)):
            return False
        if seq in self.places:
            began = min(attempt.began for attempt in self.judge.attempts[self.places[seq].write])
            return began < delete.ended and selects(delete, seq, self._tag(seq))
        return delete.args.get("match") is not None or selects(delete, seq, None)

    def _concerns(self, delete: Op) -> bool:
        """Whether it was of this epoch; a loss of power gives some topics a new one, with the same records."""
        same = self.judge.classes <= {"fsync", "disk"}
        return delete.epochs[0] <= self.epoch and (not same or self.epoch <= delete.epochs[1])

    def _check_reason(self, gap: dict[str, Any]) -> None:
        reason, start = gap["reason"], self.op.args["from_seq"]
        if reason not in ("cap", "ttl", "crash", "mixed", "recreated"):
            self._wrong(f"a tombstone for the reason {reason}")
        if reason == "ttl" and not self.judge.bounds("ttl_ms", self.op.ended):
            self._wrong("a tombstone for a time that the topic does not have")
        if (reason == "recreated") is not (start > self.page["head_seq"]):
            self._wrong("a cursor from another life is told so, and no other")
        moved = self.op.args.get("wait_ms") and self.op.args.get("node")  # past records that the reader did not want
        if reason != "recreated" and (gap["gap_from"] <= start or (gap["gap_from"] != start + 1 and not moved)):
            self._wrong("the gap does not begin at the cursor")

    def _may_be_gone(self, seq: int, reason: str) -> bool:
        judge, op, place = self.judge, self.op, self.places.get(seq)
        caps = [cap for cap in judge.bounds("cap_records", op.ended) if self.page["head_seq"] - seq >= cap]
        ts = judge.times[self.epoch].get(seq, 0)
        ttls = [ttl for ttl in judge.bounds("ttl_ms", op.ended) if not op.ended_ms or op.ended_ms - ts > ttl]
        true = {
            "cap": bool(caps or judge.bounds("cap_bytes", op.ended)),
            "ttl": bool(ttls),
            "crash": judge.may_be_lost(place, op),
        }
        return any(true.values()) if reason in ("mixed", "recreated") else true.get(reason, False)

    def _check_whole_deletes(self, silent: dict[int, list[Op]]) -> None:
        """If only one delete can have taken a seq, it has taken whatever else it selects up to there."""
        for seq, takers in silent.items():
            if len(takers) != 1 or (takers[0].kind == ACK and takers[0].outcome == UNKNOWN):
                continue  # which jobs were held when such an ack came is not known
            for other in self.shown:
                if other < seq and selects(takers[0], other, self._tag(other)):
                    self._wrong(f"half a delete: seq {seq} is gone, {other} is not\n    {takers[0]}")
