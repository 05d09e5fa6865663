"""What the fields mean, and the rules about them that a type alone does not say.

`rules` maps a field's name, or `Type.field` where a type has its own idea of it, to a description and the keywords of
JSON Schema to add to it. Values that are clamped have no bounds here: any are taken.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from topics import limits
from topics.core.names import ROUTER_PATTERN, TOPIC_PATTERN
from topics.core.requests import U64_MAX
from topics.limits import Limits

U64 = {"minimum": 0, "maximum": U64_MAX}
TOPIC = {"pattern": f"^{TOPIC_PATTERN}$"}
ROUTER = {"pattern": f"^{ROUTER_PATTERN}$"}
MATCH = {
    "anyOf": [
        {"type": "string"},
        {
            "type": "array",
            "prefixItems": [{"const": "tag"}, {"const": "Eq"}, {"type": "string"}],
            "items": False,
            "minItems": 3,
        },
        {
            "type": "array",
            "prefixItems": [{"const": "tag"}, {"const": "Glob"}, {"type": "string", "pattern": "\\*$"}],
            "items": False,
            "minItems": 3,
        },
        {"type": "null"},
    ]
}
Rule = tuple[str, Mapping[str, Any]]


def _needs(field: str, value: Mapping[str, Any], other: str) -> Mapping[str, Any]:
    """Where `field` is such a value, `other` must be given."""
    given = {"required": [other], "properties": {other: {"not": {"type": "null"}}}}
    return {"if": {"required": [field], "properties": {field: value}}, "then": given}


_A_NUMBER = {"type": "integer"}
_ONE_TIME = {"required": ["delay_ms", "not_before"], "properties": {"delay_ms": _A_NUMBER, "not_before": _A_NUMBER}}
_FOR_A_GROUP: Mapping[str, Mapping[str, Any]] = {
    "from": {"not": {"type": "null"}},
    "take_over": {"const": True},
    "consumer": {"not": {"type": "null"}},
}
# By type: what fields say about one another.
CONDITIONS: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "RecordIn": ({"not": _ONE_TIME},),
    "FetchBody": (_needs("take_over", {"const": True}, "consumer"),),
    "Subscribe": tuple(_needs(field, value, "group") for field, value in _FOR_A_GROUP.items()),
}


def rules(bounds: Limits) -> dict[str, Rule]:
    parts = (
        _SHOWN,
        _topic_rules(),
        _read_rules(),
        _write_rules(bounds),
        _queue_rules(bounds),
        _router_rules(),
        _group_rules(),
    )
    return {field: rule for part in parts for field, rule in part.items()}


_SHOWN: Mapping[str, Rule] = {
    "performance": ("Where the time went.", {}),
    "throttle_wait_ms": ("How long the request waited for its turn under pressure; a claim never does.", {}),
    "error": ("What was refused, and why.", {}),
    "code": ("Stable; branch on this.", {}),
    "message": ("For people; may change.", {}),
    "detail": ("More about it, by code.", {}),
    "topic": ("The topic's name.", {}),
    "created": ("Whether this call brought it into existence.", {}),
    "$seq": ("The record's number in its topic.", {"minimum": 1}),
    "$ts": ("When it was committed, in ms since 1970.", {}),
    "$node": ("The node that wrote it.", {}),
    "$id": ("Its message id, a UUIDv7; in topics with `message_ids`.", {}),
    "$tag": ("Its tag; only if asked for.", {}),
    "head_seq": ("The highest seq ever given out; 0 in a topic that never had a record.", {"minimum": 0}),
    "earliest_seq": ("The seq of the first live record; `head_seq` + 1 if there is none.", {"minimum": 1}),
    "next_seq": ("What the next record gets.", {"minimum": 1}),
    "count": ("How many.", {"minimum": 0}),
    "bytes": ("Live payload, in bytes.", {"minimum": 0}),
    "effective_priority": ("What the scheduler goes by now.", {}),
    "TopicState.created_ts": ("When the topic was made. Null: before the server kept that.", {}),
    "last_write_ts": ("Null: never.", {}),
    "last_read_ts": ("Null: never.", {}),
    "next_cursor": ("For the next page; absent on the last one.", {}),
    "next_from_seq": ("Pass it back as `from_seq`.", {"minimum": 0}),
    "caught_up": ("Nothing more right now. The only reliable sign of that.", {}),
    "tombstone": ("A gap that this read crossed.", {}),
    "lag": ("How many seqs are behind the cursor.", {"minimum": 0}),
    "deduped": (
        "Nothing was appended: the idempotency key was seen before, these are the seqs of then; or every record is a "
        "duplicate.",
        {},
    ),
    "duplicates": ("Records that were not appended; absent if there are none.", {}),
    "Duplicate.index": ("Its place in `records`, from 0.", {"minimum": 0}),
    "Duplicate.seq": ("The record with the same `dedup_key`.", {"minimum": 1}),
    "lease_id": ("Names this delivery; give it back to be fenced off if the job went to somebody else.", {}),
    "deadline": ("When the lease ends, in ms since 1970.", {}),
    "deliveries": ("How often the job was delivered, this time included.", {"minimum": 1}),
    "ready": ("Claimable jobs.", {"minimum": 0}),
    "in_flight": ("Leased jobs.", {"minimum": 0}),
    "scheduled": ("Jobs whose time has not come.", {"minimum": 0}),
    "dead_lettered": ("Jobs that went to the dead-letter topic so far.", {"minimum": 0}),
    "Job.priority": ("What it was written with; absent if that is 0.", {"minimum": 1, "maximum": 9}),
    "skipped": ("Seqs that this worker does not hold.", {}),
    "deadlines": ("The new deadline of each seq.", {}),
    "forwarded_total": ("Records forwarded so far.", {"minimum": 0}),
    "RouterState.blocked": ("Why the router does not get on, while it does not. It tries again by itself.", {}),
    "Blocked.code": ("As if the copy were written to the destination.", {}),
    "after_seq": ("The record of the source behind this seq is the one that waits.", {"minimum": 0}),
    "since_ms": ("Since when, in ms since 1970.", {}),
    "stream_url": ("Where the stream is.", {}),
    "wid": ("Names the session. With keys it opens nothing by itself.", {}),
    "shards_down": ("Shards that do not answer; their topics are not there for now.", {}),
}


def _topic_rules() -> Mapping[str, Rule]:
    return {
        "type": ("A queue also has claim, ack, nack, extend and work. Never changes.", {}),
        "ttl_ms": ("Records older than this are not delivered; 0: no limit.", U64),
        "cap_records": ("How many records are kept; 0: all.", U64),
        "cap_bytes": ("How many bytes of payload are kept; 0: all.", U64),
        "discard": ("A full topic evicts its oldest records, or refuses the write.", {}),
        "durable": ("Short for durability fsync (true) or disk (false); `durability` wins.", {}),
        "durability": (
            "ephemeral and memory are not logged; disk is synced within moments, fsync before the answer.",
            {},
        ),
        "priority": ("Higher is served first under pressure. Clamped to ±1000. Null: by recency of reads.", {}),
        "auto_priority": ("With no priority, take it from the last read.", {}),
        "auto_create": ("Whether a write may create this topic.", {}),
        "message_ids": ("Whether new records get a UUIDv7 as `$id`, in the order of their seqs.", {}),
        "idempotency_window_ms": ("How long idempotency and dedup keys are remembered.", U64),
        "dedupe_node": ("Whether readers can leave out what they wrote themselves.", {}),
        "lease_ms": ("How long a lease lasts; clamped to 100 … 86400000.", U64),
        "claim_jitter_ms": ("Claims wait this long and share what there is evenly; clamped to 5000.", U64),
        "max_deliveries": ("After so many deliveries a job goes to `dead_letter`; 0: never.", U64),
        "dead_letter": (
            "Where jobs go that nobody could do. Not the topic itself. Their `meta` tells of it: `$dead_letter_from`, "
            "`$dead_letter_src_seq`, `$dead_letter_deliveries`, and of the last failure `$dead_letter_reason` and "
            "`$dead_letter_last_failure_ts`.",
            TOPIC,
        ),
        "leases_durable": ("Whether leases survive a crash. Without, jobs are then claimable at once.", {}),
        "compression": ("How records are stored in data files from now on; readers see no difference.", {}),
        "compression_min_bytes": (
            "Blocks of up to 256 records with less text than this stay as they are.",
            U64,
        ),
        "priority_age_ms": ("A job counts for one priority more every time it has waited so long; 0: never.", U64),
    }


def _read_rules() -> Mapping[str, Rule]:
    return {
        "from_seq": ("Records with a greater seq; 0: from the earliest.", U64),
        "from_ts": ("Instead of `from_seq`: records with this `$ts` or a later one. A time to come: the head.", U64),
        "Sought.ts": ("The time that was asked for.", {"minimum": 0}),
        "Sought.seq": ("The first record of that time or later; `head_seq` + 1 if there is none.", {"minimum": 1}),
        "Sought.from_seq": ("The cursor to read from that time on; what was lost there shows as a tombstone.", {}),
        "limit": ("At most so many records; clamped. 0: the default, 256.", U64),
        "wait_ms": (f"Wait this long for something to come; clamped to {limits.DIFF_WAIT_MS_MAX}.", U64),
        "max_batch_bytes": ("At most so many bytes, or one record; clamped. 0: 1 MiB.", U64),
        "bulk": ("For readers of a whole topic: `limit` may be up to 10,000. The bytes stay bounded.", {}),
        "include_tags": ("Whether records come with `$tag`.", {}),
        "include_meta": ("Whether records come with `meta`.", {}),
        "WatchBody.include_meta": ("Whether records come with `meta`; unless said, as `include_data`.", {}),
        "include_data": ("Whether records come with `data`.", {}),
        "tail": ("Only what comes from now on.", {}),
        "heartbeat_ms": ("A comment is sent after so long a silence; clamped to 1000 … 60000.", {}),
        "consistency": ("eventual: as soon as it is accepted. strong: when it is as durable as its topic says.", {}),
        "cursor": ("Where an earlier stream was: the last `id` of it.", {}),
        "before_seq": ("Records with a lesser seq.", U64),
        "match": (
            '["tag","Eq",tag] or ["tag","Glob",prefix*]; a string alone is a tag, or a prefix and a star.',
            MATCH,
        ),
    }


def _write_rules(bounds: Limits) -> Mapping[str, Rule]:
    records = {"minItems": 1, "maxItems": bounds.batch_records}
    return {
        "AppendBody.records": ("They get seqs in this order, without gaps.", records),
        "Publish.records": ("They get seqs in this order, without gaps.", records),
        "RecordIn.tag": (
            f"For deletes and filters; at most {bounds.tag_bytes} bytes.",
            {"maxLength": bounds.tag_bytes},
        ),
        "RecordIn.priority": (
            "Queues only: the highest is claimed first. Null: 0.",
            {"minimum": 0, "maximum": limits.JOB_PRIORITY_MAX},
        ),
        "RecordIn.delay_ms": (
            "Queues only: not to be claimed for this long. Not together with `not_before`.",
            {"minimum": 0, "maximum": limits.JOB_DELAY_MS_MAX},
        ),
        "RecordIn.ttl_ms": (
            "The record is gone after this long, silently, as if it were deleted. Null: it is not.",
            {"minimum": 1, "maximum": limits.RECORD_TTL_MS_MAX},
        ),
        "RecordIn.not_before": ("Queues only: not to be claimed before this time, in ms since 1970.", {"minimum": 0}),
        "node": (f"Who writes or reads, at most {bounds.node_bytes} bytes. Readers do not get what they wrote.", {}),
        "data": ("Any JSON; never looked at.", {}),
        "meta": (
            f"Headers: strings by name, at most {limits.META_KEYS_MAX} of them and {bounds.meta_bytes} bytes.",
            {"maxProperties": limits.META_KEYS_MAX},
        ),
        "idempotency_key": (
            "The same write again is answered like the first time, and not appended.",
            {"minLength": 1, "maxLength": limits.IDEMPOTENCY_KEY_MAX},
        ),
        "dedup_key": (
            "Of records with the same key one is appended, within the topic's `idempotency_window_ms`.",
            {"minLength": 1, "maxLength": limits.IDEMPOTENCY_KEY_MAX},
        ),
        "create": ("Whether this write may create the topic; null: as its `auto_create` says.", {}),
        "config": ("Of a topic: in a write it counts only if that creates the topic.", {}),
        "disable_backpressure": ("Wait rather than be refused under pressure.", {}),
    }


def _queue_rules(bounds: Limits) -> Mapping[str, Rule]:
    worker = ("The worker.", {"minLength": 1, "maxLength": bounds.node_bytes})
    workers = {f"{body}.node": worker for body in ("ClaimBody", "AckBody", "NackBody", "ExtendBody")}
    seqs = {"minItems": 1, "maxItems": bounds.claim_jobs, "items": {"type": "integer", **U64}}
    settled = {f"{body}.seqs": ("Jobs by seq.", seqs) for body in ("AckBody", "NackBody", "ExtendBody")}
    return {
        **workers,
        **settled,
        "lease_ids": ("For each seq the lease it was claimed with; a job with another lease is skipped.", {}),
        "max": (f"At most so many jobs; clamped to {bounds.claim_jobs}.", {"minimum": 1}),
        "delay_ms": ("Not before this long; clamped to 86400000.", U64),
        "NackBody.reason": (
            f"Why, at most {limits.NACK_REASON_BYTES_MAX} bytes. A dead letter tells the last one.",
            {"maxLength": limits.NACK_REASON_BYTES_MAX},
        ),
        "RedriveBody.to": ("The queue they go to.", TOPIC),
        "RedriveBody.limit": (f"At most so many; clamped to {limits.REDRIVE_MAX}. Null: 1000.", {"minimum": 1}),
        "Redriven.moved": ("How many are there now.", {"minimum": 0}),
        "remaining": ("How many more match.", {"minimum": 0}),
        "pending": ("How many are still on their way; they get there.", {"minimum": 0}),
        "penalty": ("False: the delivery does not count.", {}),
        "ClaimBody.lease_ms": ("Instead of the queue's own; clamped to 100 … 86400000.", U64),
        "ExtendBody.lease_ms": ("From now on; clamped to 100 … 86400000.", U64),
        "ClaimBody.wait_ms": (f"Wait this long for a job; clamped to {limits.CLAIM_WAIT_MS_MAX}.", U64),
        "WatchBody.topics": (
            "Where to begin, by topic.",
            {"minProperties": 1, "maxProperties": bounds.watch_topics, "propertyNames": TOPIC},
        ),
    }


def _group_rules() -> Mapping[str, Rule]:
    where = '"earliest", "latest", a seq to go on after, or {"ts": ms} for the records from that time on.'
    consumer = {"minLength": 1, "maxLength": limits.GROUP_CONSUMER_MAX}
    credits = {"minimum": 0, "maximum": limits.WS_CREDITS_MAX}
    return {
        "group": ("The consumer group's name.", {}),
        "cursor_seq": ("The last seq that the group is done with; 0: none.", {"minimum": 0}),
        "consumer": (
            "Who reads for the group. A fetch with an id that is new to it takes over; an ack or a seek does not. "
            "Absent: nobody in particular.",
            consumer,
        ),
        "take_over": ("Take the group back although another consumer has taken it over.", {}),
        "from": (f"Where a group begins that this call creates: {where} Absent: earliest.", U64),
        "SeekBody.to": (where, U64),
        "AtTime.ts": ("In ms since 1970.", U64),
        "Fetched.lag": ("What is left after this page: `head_seq` less `next_from_seq`, as in a diff.", {"minimum": 0}),
        "GroupAckBody.seq": ("Everything up to this seq is done. Lower than the cursor: nothing moves.", U64),
        "credits": ("How many records to send at most, until there are more credits; null: no limit.", credits),
        "n": ("So many more records.", {"minimum": 1, "maximum": limits.WS_CREDITS_MAX}),
        "WsAck.seq": ("Everything up to this seq is done. Lower than the cursor: nothing moves.", U64),
        "op": ("The command.", {}),
        "request_id": ("Comes back in the answer.", {}),
        "WsAck.group": ("If given, it must be the subscription's.", {}),
        "WsAck.consumer": ("If given, it must be the subscription's.", {}),
        "GroupMoved.moved": ("Whether the cursor is another one now.", {}),
        "updated_ts": ("When its cursor last moved, in ms since 1970.", {}),
        "created_ts": ("When it was created, in ms since 1970.", {}),
    }


def _router_rules() -> Mapping[str, Rule]:
    return {
        "router": ("The router's name.", {}),
        "source": ("Its records are forwarded.", TOPIC),
        "dest": ("Where to; not the source itself.", TOPIC),
        "preserve_node": ("Copies keep `$node`.", {}),
        "preserve_tag": ("Copies keep `$tag`.", {}),
        "create_dest": ("Create `dest` if there is no such topic.", {}),
        "RouterBody.filter": ("Forward only what matches; null: everything.", MATCH),
        "allow_cycle": ("Permit a router that closes a cycle.", {}),
        "guarantee": ("exactly_once recognises copies that are still in `dest`.", {}),
    }
