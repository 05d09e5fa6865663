"""What holds for the consumer groups of a topic: each is a cursor and an active consumer, both durable before anybody
is told of them, so that of every answer one of the values that were set last can explain it.

1. A cursor is where an ack, a seek or the making of the group has put it; an ack moves it forward only. After an answer
   it is never where it was before, whatever crashes. A crash may put back that of a topic whose head goes back.
2. What a fetch shows is what a diff from the cursor shows (`fetches_as_diffs`, which judge_log.py judges).
3. An ack, a seek or a fetch with a consumer's name counts while that one is active.
4. A group that was made is there until it is removed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any

from topics import errors
from topics.testing.history import (
    ACK_GROUP,
    DIFF,
    FETCH,
    GROUP_KINDS,
    KILL,
    OK,
    POWER,
    PUT_GROUP,
    REFUSED,
    REMOVE_GROUP,
    SEEK,
    History,
    Op,
)
from topics.testing.judge_log import classes_of

LOST_IT = (errors.TAKEN_OVER, errors.GROUP_NOT_FOUND)  # what waited is refused with these after it had the group
GONE, ANY = "gone", "any"  # as values: there is no group; nobody knows which


def fetches_as_diffs(history: History) -> History:
    """The same, where a fetch is also a diff from the cursor it tells."""
    diffs = []
    for op in history.ops:
        if op.kind == FETCH and op.outcome == OK:
            args = {"from_seq": op.result["cursor_seq"], "limit": op.args["limit"], "wait_ms": op.args["wait_ms"]}
            times = (op.began, op.began_ms, op.ended, op.ended_ms)
            diffs.append(Op(op.client, DIFF, op.topic, args, *times, op.outcome, op.result, "", op.epochs))
    ops = [op for op in history.ops if op.kind not in GROUP_KINDS]
    return History(ops + diffs, history.crashes, history.one_log)


@dataclass(slots=True)
class Setting:
    """At some time between the two something was set, or seen, to be this; `certain` if it was at all."""

    value: Any
    began: float
    ended: float
    certain: bool


class Register:
    """One value that operations set and read."""

    def __init__(self) -> None:
        self._settings = [Setting(GONE, -inf, -inf, certain=False)]
        self._seen: list[Setting] = []

    def set(self, value: Any, op: Op, *, certain: bool) -> None:
        self._settings.append(Setting(value, op.began, op.ended, certain))

    def blur(self, began: float, ended: float) -> None:
        """From here on it may be anything."""
        self._settings.append(Setting(ANY, began, ended, certain=False))

    def see(self, value: Any, op: Op) -> None:
        self._seen.append(Setting(value, op.began, op.ended, certain=True))

    def explains(self, op: Op, fits: Callable[[Any], bool]) -> bool:
        """Whether the value may have been one that fits when this operation happened."""
        firm = [one for one in self._settings + self._seen if one.certain and one.ended < op.began]
        for setting in self._settings:
            if setting.began >= op.ended or not (setting.value == ANY or fits(setting.value)):
                continue
            later = (one for one in firm if setting.ended < one.began)
            if setting.value == ANY or all(fits(one.value) for one in later):
                return True
        return False


class GroupJudge:
    """Of one group."""

    def __init__(self, history: History, topic: str, name: str) -> None:
        self._title = f"{topic}, group {name}"
        ops = [op for op in history.ops if op.topic == topic and op.kind in GROUP_KINDS and op.args["group"] == name]
        self._ops = sorted(ops, key=lambda op: op.ended)
        self._removes = [op for op in ops if op.kind == REMOVE_GROUP and op.outcome != REFUSED]
        self._cursor, self._consumer = Register(), Register()
        self._problems: list[str] = []
        if not classes_of(history, topic) <= {"fsync", "disk"}:
            for crash in history.crashes:
                if crash.kind in (KILL, POWER):
                    self._cursor.blur(crash.at, crash.until)

    def _wrong(self, what: str, op: Op) -> None:
        self._problems.append(f"{self._title}: {what}\n    {op}")

    def judge(self) -> list[str]:
        for op in self._ops:
            if op.outcome != REFUSED or op.error in LOST_IT:
                self._note_cursor(op)
                self._note_consumer(op)
        for op in self._ops:
            if op.outcome == OK and op.kind != REMOVE_GROUP:
                self._check_cursor(op)
                self._check_consumer(op)
            elif op.outcome == REFUSED:
                self._check_refusal(op)
        return self._problems

    # --- what was set -----------------------------------------------------------------------------------------------

    def _note_cursor(self, op: Op) -> None:
        is_ok, cursor = op.outcome == OK, op.result.get("cursor_seq")
        if op.outcome == REFUSED and op.kind != FETCH:
            return
        if op.kind == ACK_GROUP and (not is_ok or op.result["moved"]):
            self._cursor.set(op.args["seq"], op, certain=is_ok)
        elif op.kind == SEEK:
            to = op.args["to"] if isinstance(op.args["to"], int) else ANY
            self._cursor.set(cursor if is_ok else to, op, certain=is_ok)
        elif op.kind == REMOVE_GROUP:
            self._cursor.set(GONE, op, certain=is_ok)
        elif op.kind in (PUT_GROUP, FETCH) and self._may_make(op):
            self._cursor.set(0, op, certain=bool(op.result.get("created")))
        if is_ok and cursor is not None:
            self._cursor.see(cursor, op)

    def _may_make(self, op: Op) -> bool:
        """Whether the group may not have been there when it came."""
        before = [o for o in self._ops if o.outcome == OK and o.kind != REMOVE_GROUP and o.ended < op.began]
        return not before or any(remove.began < op.ended for remove in self._removes)

    def _note_consumer(self, op: Op) -> None:
        name, is_ok = op.args.get("consumer"), op.outcome == OK
        if op.kind == REMOVE_GROUP:
            self._consumer.set(GONE, op, certain=is_ok)
        elif op.kind in (PUT_GROUP, FETCH) and self._may_make(op):
            self._consumer.set(name, op, certain=bool(op.result.get("created")))
        if name is None:
            return
        if op.kind == FETCH or self._may_come_first(op):
            self._consumer.set(name, op, certain=False)
        if is_ok:
            self._consumer.see(name, op)

    def _may_come_first(self, op: Op) -> bool:
        """Whether there may have been no consumer yet."""
        named = [o for o in self._ops if o.outcome == OK and o.args.get("consumer") and o.ended < op.began]
        return not named or any(remove.began < op.ended for remove in self._removes)

    # --- what was told ----------------------------------------------------------------------------------------------

    def _check_cursor(self, op: Op) -> None:
        cursor = op.result["cursor_seq"]
        if not self._cursor.explains(op, lambda value: value == cursor):
            self._wrong(f"nobody has put it at {cursor}, or it was elsewhere since", op)
        if cursor > op.result["head_seq"]:
            self._wrong("it is behind the end of the topic", op)
        if op.kind == ACK_GROUP:
            seq, moved = op.args["seq"], op.result["moved"]
            if not self._cursor.explains(op, lambda value: value != GONE and (value < seq if moved else value >= seq)):
                self._wrong("it went back" if moved else "it was not as far as that", op)

    def _check_consumer(self, op: Op) -> None:
        name = op.args.get("consumer")
        if name is not None and not self._consumer.explains(op, lambda value: value == name):
            self._wrong(f"{name} is not the active consumer", op)

    def _check_refusal(self, op: Op) -> None:
        if op.error == errors.TAKEN_OVER:
            name = op.args["consumer"]
            if not self._consumer.explains(op, lambda value: value not in (name, None, GONE)):
                self._wrong(f"nobody has taken it over from {name}", op)
        elif op.error == errors.GROUP_NOT_FOUND and not self._cursor.explains(op, lambda value: value == GONE):
            self._wrong("it was made, and is not there", op)


def judge_groups(history: History, topic: str) -> list[str]:
    names = sorted({op.args["group"] for op in history.ops if op.topic == topic and op.kind in GROUP_KINDS})
    return [problem for name in names for problem in GroupJudge(history, topic, name).judge()]
