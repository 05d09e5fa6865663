"""Reply bodies: JSON objects without their closing brace.

The gateway closes an object after it has added `performance`, so these are "open" fragments. `close` is for callers
that have nothing to add.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from topics.core import groups, priority
from topics.core.config import to_json
from topics.core.dedup import Duplicates, tell
from topics.core.diff import Buffer, Plan
from topics.core.groups import Group
from topics.core.loss import Tombstone, resumes_at
from topics.core.queue_counts import counts
from topics.core.requests import quoted
from topics.core.topic import Topic

JOINED_BYTES = 1024  # of a job on average, if those of a claim are sent in one piece
_encode = msgspec.json.Encoder().encode


def close(fragment: bytes) -> bytes:
    return fragment + b"}"


def opened(fields: Mapping[str, Any]) -> bytes:
    return _encode(fields)[:-1]


def effective_priority(topic: Topic, now_ms: int) -> int:
    config = topic.config
    return priority.effective(config.priority, config.auto_priority, topic.last_read_ms, now_ms, topic.queued_ms)


def topic_config(topic: Topic, *, created: bool) -> bytes:
    return b'{"topic":%b,"created":%b,"config":%b' % (
        quoted(topic.name),
        b"true" if created else b"false",
        to_json(topic.config),
    )


def topic_state(topic: Topic, now_ms: int) -> bytes:
    return (
        b'{"topic":%b,"type":"%b","head_seq":%d,"earliest_seq":%d,"next_seq":%d,"count":%d,"bytes":%d,'
        % (
            quoted(topic.name),
            topic.config.type.encode(),
            topic.head_seq,
            topic.earliest_seq,
            topic.head_seq + 1,
            topic.count,
            topic.bytes,
        )
        + b'"config":%b,"effective_priority":%d,"created_ts":%b,"last_write_ts":%b,"last_read_ts":%b'
        % (
            to_json(topic.config),
            effective_priority(topic, now_ms),
            _or_null(topic.created_ms or None),
            _or_null(topic.last_write_ms),
            _or_null(topic.last_read_ms),
        )
        + (queue_state(topic, now_ms) if topic.config.type == "queue" else b"")
        + (_groups_of(topic) if topic.groups else b"")
    )


def queue_state(topic: Topic, now_ms: int) -> bytes:
    return b',"queue":{"ready":%d,"in_flight":%d,"dead_lettered":%d,"scheduled":%d}' % counts(topic, now_ms)


# --- consumer groups ----------------------------------------------------------------------------------------------


def group_state(topic: Topic, group: Group, *, created: bool | None = None) -> bytes:
    made = b"" if created is None else b',"created":%b' % (b"true" if created else b"false")
    return b'{"topic":%b%b,%b' % (quoted(topic.name), made, _group(group, topic.head_seq, topic.earliest_seq))


def group_list(topic: Topic) -> bytes:
    """All groups of a topic; they are not that many."""
    head_seq, earliest_seq = topic.head_seq, topic.earliest_seq
    entries = [b"{%b}" % _group(group, head_seq, earliest_seq) for group in groups.shown(topic)]
    return b'{"topic":%b,"groups":[%b]' % (quoted(topic.name), b",".join(entries))


def group_moved(topic: Topic, group: Group, *, moved: bool) -> bytes:
    """The answer to an ack or a seek."""
    lag = groups.lag_of(topic, group)
    return opened(
        {"topic": topic.name, "group": group.name, "cursor_seq": group.shown, "moved": moved}
        | {"head_seq": topic.head_seq, "lag": lag}
    )


def group_place(group: Group) -> bytes:
    """What a fetch tells beside a diff."""
    return b',"group":%b,"cursor_seq":%d' % (quoted(group.name), group.shown)


def _group(group: Group, head_seq: int, earliest_seq: int) -> bytes:
    return (
        b'"group":%b,"cursor_seq":%d,"head_seq":%d,"earliest_seq":%d,"lag":%d,"consumer":%b,"created_ts":%d,"updated_ts":%d'
        % (
            quoted(group.name),
            group.shown,
            head_seq,
            earliest_seq,
            max(0, head_seq - group.shown),
            quoted(group.consumer) if group.consumer else b"null",
            group.created_ms,
            group.moved_ms,
        )
    )


def _groups_of(topic: Topic) -> bytes:
    """For the state of a topic."""
    shown = {
        group.name: {"cursor_seq": group.shown, "lag": groups.lag_of(topic, group), "consumer": group.consumer or None}
        for group in groups.shown(topic)
    }
    return b',"groups":' + _encode(shown)


# --- queues -------------------------------------------------------------------------------------------------------


def claimed(topic: Topic, jobs: list[bytes], now_ms: int) -> list[Buffer]:
    """Small texts are joined, as a piece costs as much to send as a kilobyte; large ones are not copied."""
    out: list[Buffer] = [b'{"topic":%b,"claimed":[' % quoted(topic.name)]
    if sum(map(len, jobs)) <= JOINED_BYTES * len(jobs):
        out.append(b",".join(jobs))
    else:
        for index, text in enumerate(jobs):
            if index:
                out.append(b",")
            out.append(text)
    out.append(b'],"count":%d,"ready":%d' % (len(jobs), counts(topic, now_ms).ready))
    return out


def settled(topic: Topic, what: bytes, count: int, skipped: list[int], now_ms: int) -> bytes:
    """The answer to an ack or a nack."""
    ready, in_flight, *_ = counts(topic, now_ms)
    return b'{"topic":%b,"%b":%d,"skipped":%b,"ready":%d,"in_flight":%d' % (
        quoted(topic.name),
        what,
        count,
        _encode(skipped),
        ready,
        in_flight,
    )


def extended(topic: Topic, count: int, skipped: list[int], parts: list[bytes]) -> bytes:
    """`parts` are the deadlines of some each."""
    return b'{"topic":%b,"extended":%d,"skipped":%b,"deadlines":{%b}' % (
        quoted(topic.name),
        count,
        _encode(skipped),
        b",".join(parts),
    )


def deadlines(seqs: list[int], deadline: int) -> bytes:
    return b",".join([b'"%d":%d' % (seq, deadline) for seq in seqs])


def topic_summary(topic: Topic, now_ms: int) -> bytes:
    """One entry of a list, complete."""
    return (
        b'{"topic":%b,"head_seq":%d,"earliest_seq":%d,"count":%d,"bytes":%d,"durable":%b,"effective_priority":%d}'
        % (
            quoted(topic.name),
            topic.head_seq,
            topic.earliest_seq,
            topic.count,
            topic.bytes,
            b"true" if topic.config.durable else b"false",
            effective_priority(topic, now_ms),
        )
    )


def appended(
    name: str,
    first_seq: int,
    count: int,
    head_seq: int,
    *,
    created: bool,
    deduped: bool,
    return_seqs: bool,
    duplicates: Duplicates = (),
) -> bytes:
    """Seqs are of what was appended; `duplicates` are (index in the request, seq) of what was not."""
    seqs = b'"seqs":%b,' % msgspec.json.encode(list(range(first_seq, first_seq + count))) if return_seqs else b""
    return b'{"topic":%b,"first_seq":%d,"last_seq":%d,%b"head_seq":%d,"count":%d,"created":%b,"deduped":%b%b' % (
        quoted(name),
        first_seq,
        first_seq + count - 1,
        seqs,
        head_seq,
        count,
        b"true" if created else b"false",
        b"true" if deduped else b"false",
        b',"duplicates":%b' % tell(duplicates) if duplicates else b"",
    )


def sought(topic: Topic, ts: int, cursor: int) -> bytes:
    """Where a time is: the first live record at or after it, and the cursor that reads it next."""
    return b'{"topic":%b,"ts":%d,"seq":%d,"from_seq":%d,"head_seq":%d,"earliest_seq":%d' % (
        quoted(topic.name),
        ts,
        topic.next_live(cursor),
        cursor,
        topic.head_seq,
        topic.earliest_seq,
    )


def deleted(topic: Topic, count: int) -> bytes:
    return b'{"topic":%b,"deleted":%d,"earliest_seq":%d,"head_seq":%d,"count":%d,"bytes":%d' % (
        quoted(topic.name),
        count,
        topic.earliest_seq,
        topic.head_seq,
        topic.count,
        topic.bytes,
    )


def difference(name: str, plan: Plan, pieces: list[Buffer]) -> list[Buffer]:
    """The diff reply as buffers, so that record texts are never copied into one."""
    out: list[Buffer] = [b'{"topic":%b,"records":[' % quoted(name)]
    for index, piece in enumerate(pieces):
        if index:
            out.append(b",")
        out.append(piece)
    out.append(
        b'],"next_from_seq":%d,"head_seq":%d,"earliest_seq":%d,"caught_up":%b,"tombstone":%b,"lag":%d'
        % (
            plan.next_from_seq,
            plan.head_seq,
            plan.earliest_seq,
            b"true" if plan.caught_up else b"false",
            tombstone(plan.tombstone, plan) if plan.tombstone is not None else b"null",
            plan.head_seq - plan.next_from_seq,
        )
    )
    return out


def tombstone(gap: Tombstone, plan: Plan) -> bytes:
    return (
        b'{"$type":"tombstone","$seq":%d,"gap_from":%d,"gap_to":%d,"reason":"%b","missed_estimate":%d,'
        b'"earliest_seq":%d,"head_seq":%d}'
    ) % (
        resumes_at(gap.reason, gap.gap_to, plan.earliest_seq),
        gap.gap_from,
        gap.gap_to,
        gap.reason.encode(),
        gap.missed,
        plan.earliest_seq,
        plan.head_seq,
    )


def _or_null(value: int | None) -> bytes:
    return b"null" if value is None else b"%d" % value
