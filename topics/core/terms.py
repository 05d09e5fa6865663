"""What a producer asks for a record: to be gone after a while; and for a job a priority, or not to be claimed before a
time.

Only queues take the latter two. What the server itself copies may bring a priority along into any topic: a dead letter
keeps its own for the day it is moved back.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from topics import limits
from topics.core.block import Block
from topics.errors import TopicsError, invalid

if TYPE_CHECKING:
    from topics.core.requests import RecordIn
    from topics.core.topic import Topic


def check_term(index: int, record: "RecordIn") -> None:
    """What a record asks for, as far as that needs neither its topic nor a clock."""
    priority, delay_ms, not_before = record.priority, record.delay_ms, record.not_before
    if priority is not None and not 0 <= priority <= limits.JOB_PRIORITY_MAX:
        raise _bad(index, "priority", f"must be a whole number from 0 to {limits.JOB_PRIORITY_MAX}, the most urgent")
    if delay_ms is not None and not_before is not None:
        raise _bad(index, "delay_ms", "and not_before exclude one another: give one of them")
    if delay_ms is not None and not 0 <= delay_ms <= limits.JOB_DELAY_MS_MAX:
        raise _bad(index, "delay_ms", f"must be a whole number from 0 to {limits.JOB_DELAY_MS_MAX}")
    if not_before is not None and not_before < 0:
        raise _bad(index, "not_before", "must be a time in unix milliseconds")
    if record.ttl_ms is not None and not 1 <= record.ttl_ms <= limits.RECORD_TTL_MS_MAX:
        raise _bad(index, "ttl_ms", f"must be a whole number from 1 to {limits.RECORD_TTL_MS_MAX}")


def check_topic(records: "Sequence[RecordIn]", topic: "Topic", now_ms: int) -> None:
    """Refuse what this topic cannot keep, before a seq is taken."""
    latest = now_ms + limits.JOB_DELAY_MS_MAX
    for index, record in enumerate(records):
        if topic.config.type != "queue" and _is_for_jobs(record):
            fields = {"priority": record.priority, "delay_ms": record.delay_ms, "not_before": record.not_before}
            field = next(name for name, value in fields.items() if value is not None)
            what = (
                f'is for jobs, and topic "{topic.name}" is a log: leave it out, or write to a topic of "type":"queue"'
            )
            raise _bad(index, field, what)
        if record.not_before is not None and record.not_before > latest:
            raise _bad(index, "not_before", f"must be at most {limits.JOB_DELAY_MS_MAX} ms from now, which is {latest}")


def lay_terms(blocks: Sequence[Block], records: "Sequence[RecordIn]", ts: int) -> None:
    """Enter what the records of a write ask for into its blocks."""
    first_seq = blocks[0].first_seq
    place = 0
    for index, record in enumerate(records):
        if record.ttl_ms is None and not _is_for_jobs(record):
            continue
        while first_seq + index > blocks[place].last_seq:
            place += 1
        block = blocks[place]
        at = first_seq + index - block.first_seq
        if record.priority:
            block.priorities[at] = record.priority
            block.need_extras().ranked = True
        due = ts + record.delay_ms if record.delay_ms else record.not_before or 0
        if due > ts:
            block.need_extras().due(at, due)
        if record.ttl_ms is not None:
            block.need_extras().expire(at, ts + record.ttl_ms)


def _is_for_jobs(record: "RecordIn") -> bool:
    return record.priority is not None or record.delay_ms is not None or record.not_before is not None


def _bad(index: int, field: str, what: str) -> TopicsError:
    return invalid(f"records[{index}].{field} {what}", index=index, field=field)
