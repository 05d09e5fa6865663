"""Records that say which one they are (`dedup_key`), as the judge of logs sees them: each key is a write of one record
that many may send, again and again, and that has one place for as long as it is remembered (judge_log.py)."""

from collections.abc import Iterator
from typing import Any

from topics.testing.history import APPEND, OK, History, Op


def keys_as_writes(history: History) -> tuple[History, list[str]]:
    """The same history, where a write of records with keys is one write for each key; what is wrong with its answer."""
    ops: list[Op] = []
    problems: list[str] = []
    for op in history.ops:
        if op.kind != APPEND or "keys" not in op.args:
            ops.append(op)
        elif op.outcome != OK:
            ops += [_as_write(op, key, {}) for key in dict.fromkeys(op.args["keys"])]
        else:
            pairs = list(zip(op.args["keys"], _seqs_of(op), strict=False))
            if len(pairs) != len(op.args["keys"]) or len(set(pairs)) != len(set(op.args["keys"])):
                problems.append(f"{op.topic}: it does not say where each of its records is\n    {op}")
            ops += [_as_write(op, key, _placed(op, seq)) for key, seq in dict(pairs).items()]
    return History(ops, history.crashes, history.one_log), problems


def _seqs_of(op: Op) -> Iterator[int]:
    """Where each record of the write is: with the new ones, or where it was."""
    known = {duplicate["index"]: duplicate["seq"] for duplicate in op.result.get("duplicates", ())}
    new = iter(op.result["seqs"])
    for index in range(len(op.args["keys"])):
        seq = known[index] if index in known else next(new, None)
        if seq is not None:
            yield seq


def _placed(op: Op, seq: int) -> dict[str, Any]:
    is_known = seq not in op.result["seqs"]
    return {"first_seq": seq, "last_seq": seq, "head_seq": op.result["head_seq"], "deduped": is_known}


def _as_write(op: Op, key: str, result: dict[str, Any]) -> Op:
    args = {"write": key, "tags": [None], "node": None, "config": op.args["config"]}
    times = (op.began, op.began_ms, op.ended, op.ended_ms)
    return Op(op.client, APPEND, op.topic, args, *times, op.outcome, result, op.error, op.epochs)
