"""Every operation of the API as the document shows it: parameters, bodies, answers, refusals, and examples of each.

Keyed by what a route `needs` (topics/keys.py). `errors` are the codes of this operation beside those that any may give.
An example's body is sent as it stands by the tests, which also check that the answer is of the type said here.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from topics import errors
from topics.gateway.openapi import bodies, replies
from topics.gateway.openapi.group_operations import GROUP_OPERATIONS
from topics.gateway.openapi.operation import STORES, TEXT, Operation, Parameter

BOOL: Mapping[str, Any] = {"type": "boolean"}
EVENTS = "text/event-stream"
NOT_QUEUE = (errors.TOPIC_NOT_FOUND, errors.NOT_A_QUEUE)


PAGE = (
    Parameter("prefix", "Only names that begin with this.", example="or"),
    Parameter("page_size", "At most so many; clamped to 1000.", {"type": "integer", "minimum": 1, "default": 100}, 50),
    Parameter("cursor", "`next_cursor` of the page before."),
)
TOKEN = Parameter("token", "The API key, for a browser's EventSource, which cannot send headers. Prefer the header.")
CONFIG = {
    "type": "log",
    "ttl_ms": 60000,
    "cap_records": 1000000,
    "cap_bytes": 0,
    "discard": "old",
    "durable": True,
    "durability": "fsync",
    "priority": None,
    "auto_priority": True,
    "auto_create": True,
    "idempotency_window_ms": 120000,
    "dedupe_node": True,
    "lease_ms": 30000,
    "claim_jitter_ms": 0,
    "max_deliveries": 0,
    "dead_letter": None,
    "leases_durable": False,
    "compression": "zstd",
    "compression_min_bytes": 1024,
    "priority_age_ms": 60000,
    "message_ids": False,
}
ROUTER = {
    "router": "orders->audit",
    "source": "orders",
    "dest": "audit",
    "preserve_node": True,
    "preserve_tag": True,
    "filter": None,
    "allow_cycle": False,
    "guarantee": "at_least_once",
}
HEALTH = Operation(
    "server",
    "Is the process alive?",
    answers={200: replies.Health},
    shown={"status": "ok", "version": "0.1.0", "uptime_ms": 84012},
)
READY = Operation(
    "server",
    "Can it serve?",
    "503 until every shard has been ready once, and while the server stops.",
    answers={200: replies.Ready},
    shown={"status": "ready", "wal_replay_complete": True, "topics": 42},
)

OPERATIONS: dict[str, Operation] = {
    "topic.put": Operation(
        "topics",
        "Create or configure a topic",
        "Creates it (201), or changes the fields that are named (200). The same again changes nothing.",
        body=bodies.TopicConfig,
        body_required=False,
        examples={
            "log": {"ttl_ms": 60000, "cap_records": 1000000, "durable": True},
            "defaults": {},
        },
        answers={200: replies.TopicPut, 201: replies.TopicPut},
        shown={"topic": "orders", "created": True, "config": CONFIG},
        errors=(errors.TOPIC_EXISTS_INCOMPATIBLE, *STORES),
    ),
    "topic.state": Operation(
        "topics",
        "State of a topic",
        parameters=(
            Parameter("touch", "Whether this counts as a read for its priority.", {**BOOL, "default": True}, False),
        ),
        answers={200: replies.TopicState},
        shown={
            "topic": "orders",
            "type": "log",
            "head_seq": 480231,
            "earliest_seq": 479101,
            "next_seq": 480232,
            "count": 1130,
            "bytes": 2310912,
            "config": CONFIG,
            "effective_priority": 500,
            "created_ts": 1748440000000,
            "last_write_ts": 1748450000123,
            "last_read_ts": None,
        },
        errors=(errors.TOPIC_NOT_FOUND,),
    ),
    "topic.list": Operation(
        "topics",
        "List topics",
        "In the order of their names, and only those that the key may touch.",
        parameters=(
            *PAGE,
            Parameter("touch", "Whether this counts as a read of them all.", {**BOOL, "default": False}, False),
        ),
        answers={200: replies.TopicList},
        shown={
            "topics": [
                {
                    "topic": "orders",
                    "head_seq": 99,
                    "earliest_seq": 1,
                    "count": 99,
                    "bytes": 8112,
                    "durable": False,
                    "effective_priority": 3,
                }
            ],
            "next_cursor": "eyJhZnRlciI6Im9yZGVycyJ9",
        },
    ),
    "topic.remove": Operation(
        "topics",
        "Remove a topic",
        "With all its records and the routers that name it. Cannot be undone. Of an absent one, `deleted` is false.",
        parameters=(Parameter("if_empty", "Only if it has no live record.", {**BOOL, "default": False}, False),),
        answers={200: replies.TopicRemoved},
        shown={"topic": "orders", "deleted": True, "routers_removed": ["orders->audit"]},
        path="obsolete",
        errors=(errors.TOPIC_NOT_EMPTY, *STORES),
    ),
    "topic.append": Operation(
        "topics",
        "Append records",
        "All of them, with seqs in a row, or none; but for duplicates by `dedup_key`, which are left out and listed. "
        "201 if this created the topic.",
        parameters=(
            Parameter("return_seqs", "Whether every seq is listed.", {**BOOL, "default": True}, True),
            Parameter(
                "Idempotency-Key",
                "As `idempotency_key` in the body, which wins.",
                {"type": "string", "minLength": 1, "maxLength": 256},
                place="header",
            ),
        ),
        body=bodies.AppendBody,
        examples={
            "one": {"records": [{"data": {"order": 17}}]},
            "batch": {
                "records": [
                    {"data": {"order": 18}, "tag": "customer:42", "meta": {"trace": "abc123"}},
                    {"data": "any JSON", "node": "eu-2"},
                ],
                "node": "eu-1",
                "idempotency_key": "batch-7f3a",
                "create": True,
                "config": {"ttl_ms": 60000},
            },
            "for five minutes": {"records": [{"data": {"code": "1234"}, "ttl_ms": 300000}]},
            "each once": {"records": [{"data": 1, "dedup_key": "evt-1"}, {"data": 2, "dedup_key": "evt-1"}]},
        },
        answers={200: replies.Appended, 201: replies.Appended},
        shown={
            "topic": "orders",
            "first_seq": 17,
            "last_seq": 18,
            "seqs": [17, 18],
            "head_seq": 18,
            "count": 2,
            "created": False,
            "deduped": False,
        },
        errors=(errors.BATCH_TOO_LARGE, errors.RECORD_TOO_LARGE, errors.TOPIC_NOT_FOUND, errors.TOPIC_FULL, *STORES),
    ),
    "topic.diff": Operation(
        "topics",
        "Read what comes after a seq",
        "Expired and deleted records and the reader's own are left out, and the cursor goes past them. Reading changes "
        "nothing. What was lost before it could be read shows as a tombstone.",
        body=bodies.DiffBody,
        body_required=False,
        examples={
            "from the start": {},
            "a page": {"from_seq": 1, "limit": 500, "node": "eu-1", "include_tags": True},
            "from a time on": {"from_ts": 1748450000000},
            "long poll": {"from_seq": 0, "wait_ms": 100},
        },
        answers={200: replies.Difference},
        shown={
            "topic": "orders",
            "records": [
                {
                    "$seq": 18,
                    "$ts": 1748450001000,
                    "$tag": "customer:42",
                    "data": {"order": 18},
                    "meta": {"trace": "z9"},
                }
            ],
            "next_from_seq": 18,
            "head_seq": 18,
            "earliest_seq": 1,
            "caught_up": True,
            "tombstone": None,
            "lag": 0,
        },
        errors=(errors.TOPIC_NOT_FOUND,),
    ),
    "topic.seek": Operation(
        "topics",
        "Find a time in a topic",
        "Reading after `from_seq` gives the records from that time on. A binary search: large topics cost no more than "
        "small ones.",
        parameters=(
            Parameter("ts", "In ms since 1970.", {"type": "integer", "minimum": 0}, 1748450000000, required=True),
        ),
        answers={200: replies.Sought},
        shown={
            "topic": "orders",
            "ts": 1748450000000,
            "seq": 17,
            "from_seq": 16,
            "head_seq": 18,
            "earliest_seq": 1,
        },
        errors=(errors.TOPIC_NOT_FOUND,),
    ),
    "topic.delete": Operation(
        "topics",
        "Delete records",
        "Those that are there now, at once and for good. Readers' cursors go past them silently.",
        body=bodies.DeleteBody,
        examples={
            "by seq": {"before_seq": 2},
            "by tag": {"match": ["tag", "Eq", "customer:42"]},
            "by prefix, up to a seq": {"match": ["tag", "Glob", "customer:*"], "before_seq": 100},
            "by tag, in short": {"match": "customer:43"},
        },
        answers={200: replies.RecordsDeleted},
        shown={"topic": "orders", "deleted": 14, "earliest_seq": 15, "head_seq": 18, "count": 4, "bytes": 812},
        errors=(errors.TOPIC_NOT_FOUND, *STORES),
    ),
}
OPERATIONS |= {
    "queue.claim": Operation(
        "queues",
        "Claim jobs",
        "Leases jobs to a worker until their deadlines. Fewer than asked for, or none, is no error.",
        body=bodies.ClaimBody,
        examples={
            "some": {"node": "worker-1", "max": 16, "lease_ms": 30000},
            "wait": {"node": "worker-1", "wait_ms": 100},
        },
        answers={200: replies.Claimed},
        shown={
            "topic": "jobs",
            "claimed": [
                {
                    "$seq": 1,
                    "lease_id": "lease_7f3a9c",
                    "deadline": 1748450039000,
                    "$ts": 1748450001000,
                    "deliveries": 1,
                    "data": {"resize": "a.png"},
                }
            ],
            "count": 1,
            "ready": 840,
            "performance": {"throttle_wait_ms": 0.0},
        },
        path="jobs",
        errors=(*NOT_QUEUE, *STORES),
    ),
    "queue.ack": Operation(
        "queues",
        "Complete jobs",
        "Deletes them. Jobs that the worker does not hold are skipped, so sending it again is safe.",
        body=bodies.AckBody,
        examples={
            "by seq": {"node": "worker-1", "seqs": [1]},
            "fenced": {"node": "worker-1", "seqs": [2], "lease_ids": ["lease_1a2b"]},
        },
        answers={200: replies.Acked},
        shown={"topic": "jobs", "acked": 1, "skipped": [], "ready": 840, "in_flight": 286},
        path="jobs",
        errors=(*NOT_QUEUE, errors.BATCH_TOO_LARGE, *STORES),
    ),
    "queue.nack": Operation(
        "queues",
        "Give jobs back",
        body=bodies.NackBody,
        examples={
            "with a delay": {"node": "worker-1", "seqs": [3], "delay_ms": 1000, "reason": "no such bucket"},
            "not its fault": {"node": "worker-1", "seqs": [3], "penalty": False},
        },
        answers={200: replies.Nacked},
        shown={"topic": "jobs", "nacked": 1, "skipped": [], "ready": 841, "in_flight": 285},
        path="jobs",
        errors=(*NOT_QUEUE, errors.BATCH_TOO_LARGE, *STORES),
    ),
    "queue.extend": Operation(
        "queues",
        "Extend leases",
        body=bodies.ExtendBody,
        examples={"half a minute": {"node": "worker-1", "seqs": [2], "lease_ms": 30000}},
        answers={200: replies.Extended},
        shown={"topic": "jobs", "extended": 1, "skipped": [], "deadlines": {"2": 1748450069000}},
        path="jobs",
        errors=(*NOT_QUEUE, errors.BATCH_TOO_LARGE, *STORES),
    ),
    "queue.redrive": Operation(
        "queues",
        "Move dead letters back",
        "Takes records out of this topic, in order, and puts them into the queue `to`, without `$dead_letter_…` in "
        "their meta and with no delivery counted. None is lost or doubled, whoever crashes. "
        "Needs read and delete here, and write for `to`.",
        body=bodies.RedriveBody,
        examples={"some": {"to": "jobs", "match": ["tag", "Glob", "tenant42:*"], "limit": 100}},
        answers={200: replies.Redriven},
        shown={"topic": "jobs.dead", "to": "jobs", "moved": 12, "remaining": 0, "pending": 0},
        path="jobs.dead",
        errors=(*NOT_QUEUE, errors.TOPIC_FULL, errors.RECORD_TOO_LARGE, *STORES),
    ),
    "queue.work": Operation(
        "queues",
        "Have jobs pushed",
        "Server-sent events: `job` is one leased job, `error` says what is wrong. At most `max` are leased at a time; "
        "acks make room. When the connection ends, its jobs are claimable at once.",
        parameters=(
            Parameter(
                "node", "The worker.", {"type": "string", "minLength": 1, "maxLength": 128}, "worker-1", required=True
            ),
            Parameter("max", "Jobs leased at a time.", {"type": "integer", "minimum": 1, "default": 1}, 8),
            Parameter("lease_ms", "Instead of the queue's own.", {"type": "integer", "minimum": 0}, 30000),
            TOKEN,
        ),
        media={EVENTS: {"schema": TEXT, "example": 'id: 1\nevent: job\ndata: {"topic":"jobs","$seq":1,…}\n\n'}},
        path="jobs",
        errors=(*NOT_QUEUE, errors.NOT_ACCEPTABLE),
    ),
    "router.put": Operation(
        "routers",
        "Create or change a router",
        body=bodies.RouterBody,
        examples={
            "everything": {"source": "orders", "dest": "audit"},
            "what is public": {"source": "orders", "dest": "audit", "filter": ["tag", "Glob", "public:*"]},
        },
        answers={200: replies.RouterPut, 201: replies.RouterPut},
        shown={**ROUTER, "created": True},
        path="orders->audit",
        errors=(errors.TOPIC_NOT_FOUND, errors.ROUTER_CYCLE, errors.TOPIC_EXISTS_INCOMPATIBLE, *STORES),
    ),
    "router.state": Operation(
        "routers",
        "State of a router",
        answers={200: replies.RouterState},
        shown={**ROUTER, "forwarded_total": 480231},
        path="orders->audit",
        errors=(errors.ROUTER_NOT_FOUND,),
    ),
    "router.list": Operation(
        "routers",
        "List routers",
        parameters=(
            *PAGE,
            Parameter("source", "Only those from it."),
            Parameter("dest", "Only those to it.", example="audit"),
        ),
        answers={200: replies.RouterList},
        shown={
            "routers": [
                {
                    "router": "orders->audit",
                    "source": "orders",
                    "dest": "audit",
                    "guarantee": "at_least_once",
                    "forwarded_total": 480231,
                }
            ]
        },
    ),
    "router.remove": Operation(
        "routers",
        "Remove a router",
        "What it forwarded stays. Of an absent one, `deleted` is false.",
        answers={200: replies.RouterRemoved},
        shown={"router": "orders->audit", "deleted": True},
        path="obsolete",
        errors=STORES,
    ),
}
OPERATIONS |= GROUP_OPERATIONS
OPERATIONS |= {
    "watch.create": Operation(
        "live",
        "Create a watch session",
        "Its stream follows all its topics, and can be taken up again where it was.",
        parameters=(Parameter("lenient", "Leave out topics that do not exist.", {**BOOL, "default": False}, True),),
        body=bodies.WatchBody,
        examples={
            "two topics": {"topics": {"orders": {"from_seq": 1}, "jobs": {"tail": True}}, "node": "eu-1"},
            "from a time on": {"topics": {"orders": {"from_ts": 1748450000000}}},
            "lightly": {
                "topics": {"orders": None},
                "include_data": False,
                "heartbeat_ms": 5000,
                "consistency": "strong",
            },
        },
        answers={200: replies.WatchCreated},
        shown={
            "wid": "wid_BuRguGorNdVFWNQULz-rrw",
            "stream_url": "/v0/watch/wid_BuRguGorNdVFWNQULz-rrw",
            "session_ttl_ms": 300000,
            "topics": {"orders": {"from_seq": 1, "head_seq": 18, "earliest_seq": 1}},
        },
        errors=(errors.TOPIC_NOT_FOUND, *STORES),
    ),
    "watch.stream": Operation(
        "live",
        "Open a session's stream",
        "Server-sent events: `record`, `tombstone`, `caught-up`, `topic-deleted`, `error`. The `id` of an event is "
        "where the stream is after it.",
        parameters=(
            Parameter("Last-Event-ID", "Go back to here.", place="header"),
            Parameter("cursor", "The same, for clients that cannot send headers."),
            TOKEN,
        ),
        media={
            EVENTS: {
                "schema": TEXT,
                "example": 'id: eyJqb2JzIjo1fQ\nevent: caught-up\ndata: {"topic":"jobs","head_seq":5}\n\n',
            }
        },
        path="wid_BuRguGorNdVFWNQULz-rrw",
        errors=(errors.NOT_FOUND, errors.NOT_ACCEPTABLE),
    ),
    "ws.open": Operation(
        "live",
        "Open a WebSocket",
        "Commands and frames are JSON in text messages; see `x-websocket`. Each command takes scopes of its own.",
    ),
    "health": HEALTH,
    "ready": READY,
    "metrics": Operation(
        "server",
        "Metrics",
        "Text for Prometheus, or JSON if that is accepted.",
        parameters=(
            Parameter(
                "units",
                "`base`: all times in seconds, as Prometheus wants it, under names that end in `_seconds`.",
                {"type": "string", "enum": ["base"]},
            ),
        ),
        media={
            "text/plain": {"schema": TEXT, "example": 'topics_topic_head_seq{topic="orders"} 18\n'},
            "application/json": {
                "schema": {"type": "object", "additionalProperties": {"type": ["number", "object"]}},
                "example": {"topics_topics": 2, "topics_topic_head_seq": {"orders": 18}},
            },
        },
    ),
    "openapi": Operation(
        "server",
        "This document",
        media={"application/json": {"schema": {"type": "object"}, "example": {"openapi": "3.1.0"}}},
    ),
    "docs": Operation(
        "server", "This document, to be read", media={"text/html": {"schema": TEXT, "example": "<!doctype html>"}}
    ),
}
WEBSOCKET: Mapping[str, tuple[type[msgspec.Struct] | None, Mapping[str, Any]]] = {
    "subscribe": (bodies.Subscribe, {"op": "subscribe", "request_id": "s1", "topic": "orders", "tail": True}),
    "publish": (bodies.Publish, {"op": "publish", "request_id": "p1", "topic": "orders", "records": [{"data": 1}]}),
    "credit": (bodies.Credit, {"op": "credit", "request_id": "c1", "topic": "orders", "n": 100}),
    "ack": (bodies.WsAck, {"op": "ack", "request_id": "a1", "topic": "orders", "seq": 1}),
    "unsubscribe": (bodies.Unsubscribe, {"op": "unsubscribe", "request_id": "u1", "topic": "orders"}),
    "ping": (None, {"op": "ping", "request_id": "ping-1"}),
}
