"""Whether any correct server could have told clients what they were told: a pure function over a recorded history.

What holds for every topic is in judge_log.py. A queue is a topic with more to hold (judge_queues.py), and so is the
topic of its dead letters (judge_dead_letters.py), which only the server writes, or one with groups (judge_groups.py).
Records with keys of their own are seen as writes (judge_keys.py).
"""

from collections.abc import Iterator

from topics.testing.history import ACK, APPEND, DELETE, OK, PUT, REMOVE, History
from topics.testing.judge_dead_letters import DeadLetterJudge, dead_letter_topics
from topics.testing.judge_groups import fetches_as_diffs, judge_groups
from topics.testing.judge_keys import keys_as_writes
from topics.testing.judge_log import Judge, classes_of
from topics.testing.judge_queues import QueueJudge, is_queue


def check(history: History) -> list[str]:
    """Everything that is wrong with it, in words."""
    names = sorted({op.topic for op in history.ops})
    problems = [problem for name in names for problem in judge_groups(history, name)]
    history, unclear = keys_as_writes(fetches_as_diffs(history))
    problems += unclear
    synced = list(_syncs(history, {name for name in names if classes_of(history, name) == {"fsync"}}))
    dead = {name: DeadLetterJudge(history, name) for name in dead_letter_topics(history)}
    for name in names:
        if name in dead:
            continue
        log = Judge(history, name, synced if history.one_log else [])
        for letters in dead.values():
            log.carried |= letters.carried_from(name)
        problems += log.judge()
        if is_queue(log):
            problems += QueueJudge(log).judge()
            for letters in dead.values():
                letters.compare_with(log)
    return problems + [problem for letters in dead.values() for problem in letters.problems]


def _syncs(history: History, safe: set[str]) -> Iterator[tuple[float, float]]:
    """When something was begun and ended that is acked only when the log is synced."""
    for op in history.ops:
        if op.outcome != OK:
            continue
        control = (op.kind == PUT and op.result["created"]) or (op.kind == REMOVE and op.result["deleted"])
        gated = op.topic in safe and (op.kind == DELETE or (op.kind == APPEND and not op.result["deduped"]))
        acked = op.topic in safe and op.kind == ACK and op.result["acked"]
        if control or gated or acked:
            yield op.began, op.ended
