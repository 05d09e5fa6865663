"""What clients did and were told: operations with the times of their invocation and of their response (none for a lost
reply: it took effect at some time, or never), and the crashes meanwhile. `topics/testing/judge.py` says what is wrong.

Every record's data begins with `[write, index]`, so that a reader knows whose record it sees.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any

OK, REFUSED, UNKNOWN = "ok", "refused", "unknown"
APPEND, DIFF, DELETE, PUT, REMOVE, STATE = "append", "diff", "delete", "put", "remove", "state"
CLAIM, ACK, NACK, EXTEND = "claim", "ack", "nack", "extend"
FETCH, ACK_GROUP, SEEK = "group.fetch", "group.ack", "group.seek"
PUT_GROUP, REMOVE_GROUP, GROUP_STATE = "group.put", "group.remove", "group.state"
GROUP_KINDS = (FETCH, ACK_GROUP, SEEK, PUT_GROUP, REMOVE_GROUP, GROUP_STATE)
STOP, KILL, POWER = "stop", "kill", "power"


@dataclass(slots=True)
class Op:
    """One request. Times are of any one clock that orders them; `…_ms` is the server's wall clock, 0 if unknown.

    | kind   | args                                                     | result                                     |
    |--------|----------------------------------------------------------|--------------------------------------------|
    | append | write, tags (one per record), node, keyed, config,       | first_seq, last_seq, head_seq, deduped     |
    |        | terms (one per record: delay_ms, priority, ttl_ms); or   |                                            |
    |        | keys (the dedup_key of each record) and config           | seqs, duplicates, head_seq                 |
    | diff   | from_seq, limit, wait_ms, node (filtered out)            | as the API's answer                        |
    | delete | before_seq, match                                        | deleted, head_seq                          |
    | put    | config                                                   | created                                    |
    | remove | if_empty                                                 | deleted                                    |
    | state  |                                                          | head_seq, count                            |
    | claim  | node, max, lease_ms (as granted), wait_ms                | as the API's answer, as for the next three |
    | ack    | node, seqs, lease_ids (or none)                          |                                            |
    | nack   | the same, delay_ms, penalty                              |                                            |
    | extend | the same, lease_ms                                       |                                            |
    | group… | group; those of the API                                  | as the API's answer                        |
    """

    client: str
    kind: str
    topic: str
    args: Mapping[str, Any]
    began: float
    began_ms: int = 0
    ended: float = inf
    ended_ms: int = 0
    outcome: str = UNKNOWN
    result: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""
    epochs: tuple[int, int] = (1, 1)  # of the topic, when it began and when it was answered

    def overlaps(self, first: float, last: float) -> bool:
        return self.began < last and self.ended > first

    def __str__(self) -> str:
        told = self.result if self.outcome == OK else self.error or self.outcome
        return f"[{self.began}–{self.ended}] {self.client} {self.kind} {self.topic} {dict(self.args)} → {told}"


@dataclass(slots=True)
class Crash:
    """The server was gone at some time between the two; `kind` is STOP (cleanly), KILL (of the process) or POWER."""

    at: float
    until: float
    kind: str
    sudden: bool = True  # it served, and was not about to stop, when it went
    short_of_room: bool = False  # then also one that stops cleanly may not store who holds which job


@dataclass(slots=True)
class History:
    ops: list[Op] = field(default_factory=list)
    crashes: list[Crash] = field(default_factory=list)
    one_log: bool = True  # all topics share one log, so that a sync for one proves earlier writes of all


def selects(delete: Op, seq: int, tag: str | None) -> bool:
    """Whether this delete, or this ack of jobs, is about such a record."""
    if delete.kind == ACK:
        return seq in delete.args["seqs"] and seq not in delete.result.get("skipped", ())
    before, match = delete.args.get("before_seq"), delete.args.get("match")
    if before is not None and seq >= before:
        return False
    if match is None:
        return before is not None
    if tag is None:
        return False
    return tag.startswith(match[:-1]) if match.endswith("*") else tag == match


def is_between(crashes: Iterable[Crash], first: float, last: float, kinds: tuple[str, ...]) -> bool:
    return any(crash.kind in kinds and crash.until > first and crash.at < last for crash in crashes)
