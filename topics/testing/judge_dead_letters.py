"""What holds for a topic that only the server writes, with jobs that were delivered too often: each of them is one that
was written to its queue, is there once, with what it was, and was delivered as often as its queue says."""

from collections import defaultdict
from typing import Any

from topics.testing.history import ACK, CLAIM, DIFF, OK, REFUSED, History, Op, selects
from topics.testing.judge_log import Judge


def dead_letter_topics(history: History) -> set[str]:
    configs = [op.args.get("config") or {} for op in history.ops]
    return {config["dead_letter"] for config in configs if config.get("dead_letter")}


class Letter:
    """A job where dead letters are."""

    def __init__(self, record: dict[str, Any], op: Op) -> None:
        meta = record["meta"]
        self.record = record
        self.shown = op  # the first who saw it
        self.queue: str = meta["$dead_letter_from"]
        self.seq = int(meta["$dead_letter_src_seq"])
        self.deliveries = int(meta["$dead_letter_deliveries"])


class DeadLetterJudge:
    def __init__(self, history: History, name: str) -> None:
        self.name = name
        self.problems: list[str] = []
        self._letters: dict[int, Letter] = {}  # by their seq here
        reads = [op for op in history.ops if op.topic == name and op.kind == DIFF and op.outcome == OK]
        for op in sorted(reads, key=lambda op: op.ended):
            for record in op.result["records"]:
                self._note(record, op)
        copies: dict[tuple[str, int], list[int]] = defaultdict(list)
        for seq, letter in self._letters.items():
            copies[letter.queue, letter.seq].append(seq)
        for (queue, job), seqs in copies.items():
            if len(seqs) > 1:
                self.problems.append(f"{name}: job {job} of {queue} is there twice: at {seqs}")

    def _note(self, record: dict[str, Any], op: Op) -> None:
        before = self._letters.setdefault(record["$seq"], Letter(record, op))
        if before.record != record:
            self._wrong(f"seq {record['$seq']} was {before.record}", op)

    def _wrong(self, what: str, op: Op) -> None:
        self.problems.append(f"{self.name}: {what}\n    {op}")

    def carried_from(self, queue: str) -> set[int]:
        return {letter.seq for letter in self._letters.values() if letter.queue == queue}

    def compare_with(self, queue: Judge) -> None:
        """The queue, which was judged before."""
        for letter in self._letters.values():
            if letter.queue == queue.name:
                self._check_origin(queue, letter)
                self._check_end(queue, letter)

    def _check_origin(self, queue: Judge, letter: Letter) -> None:
        write, number = letter.record["data"][:2]
        attempts = [op for op in queue.attempts.get(write, ()) if op.outcome != REFUSED]
        if not any(op.began < letter.shown.ended and number < len(op.args["tags"]) for op in attempts):
            self._wrong(f"a letter that nobody wrote: {letter.record}", letter.shown)
        for places in queue.places.values():
            place = places.get(letter.seq)
            if place is not None and place[:2] != (write, number):
                self._wrong(f"job {letter.seq} was {place}, its letter is {letter.record}", letter.shown)
        most = queue.bounds("max_deliveries", letter.shown.ended)
        if letter.deliveries not in most:
            self._wrong(f"job {letter.seq} was delivered {letter.deliveries} times, of {most}", letter.shown)

    def _check_end(self, queue: Judge, letter: Letter) -> None:
        """It goes there once, and is a job no more; what was finished before does not go there at all."""
        for op in queue.of(CLAIM, ACK):
            if op.outcome != OK:
                continue
            shown = letter.shown
            if op.kind == CLAIM:
                again = any(job["$seq"] == letter.seq for job in op.result["claimed"])
                if again and shown.ended < op.began:
                    self._wrong(f"job {letter.seq} is given out after it was a dead letter: {op}", shown)
            elif selects(op, letter.seq, None) and op.ended_ms < letter.record["$ts"] and queue.safe:
                self._wrong(f"job {letter.seq} is a dead letter after it was acked: {op}", shown)
