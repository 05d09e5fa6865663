"""What the routes answer, as types. Nothing is encoded or checked with these when a request is answered: shards write
their answers as bytes. They are the API's description, and tests hold every one of them against real answers.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType, field

from topics import errors
from topics.core.config import Discard, Durability, TopicType
from topics.core.packing import Compression
from topics.core.routes import Guarantee

Code = Annotated[str, msgspec.Meta(extra_json_schema={"enum": sorted(errors.CODES)})]


class Performance(msgspec.Struct):
    """Where the time went. Any of these may be missing, and more may come."""

    server_total_ms: float | UnsetType = UNSET
    wal_append_ms: float | UnsetType = UNSET
    fsync_ms: float | UnsetType = UNSET
    records_scanned: int | UnsetType = UNSET
    throttle_wait_ms: float | UnsetType = UNSET
    cold_segments_read: int | UnsetType = UNSET


class Answer(msgspec.Struct, kw_only=True):
    performance: Performance


class ErrorFields(msgspec.Struct):
    code: Code
    message: str
    detail: dict[str, Any] | UnsetType = UNSET


class Error(msgspec.Struct, kw_only=True):
    """Every answer outside 2xx."""

    error: ErrorFields
    performance: Performance | UnsetType = UNSET


# --- topics -----------------------------------------------------------------------------------------------------------


class Config(msgspec.Struct, kw_only=True):
    """A topic's whole configuration."""

    type: TopicType
    ttl_ms: int
    cap_records: int
    cap_bytes: int
    discard: Discard
    durable: bool
    durability: Durability
    priority: int | None
    auto_priority: bool
    auto_create: bool
    idempotency_window_ms: int
    dedupe_node: bool
    lease_ms: int
    claim_jitter_ms: int
    max_deliveries: int
    dead_letter: str | None
    leases_durable: bool
    compression: Compression
    compression_min_bytes: int
    priority_age_ms: int
    message_ids: bool


class TopicPut(Answer, kw_only=True):
    topic: str
    created: bool
    config: Config


class QueueCounts(msgspec.Struct):
    ready: int
    in_flight: int
    dead_lettered: int
    scheduled: int


class GroupLag(msgspec.Struct):
    cursor_seq: int
    lag: int
    consumer: str | None


class TopicState(Answer, kw_only=True):
    topic: str
    type: TopicType
    head_seq: int
    earliest_seq: int
    next_seq: int
    count: int
    bytes: int
    config: Config
    effective_priority: int
    created_ts: int | None
    last_write_ts: int | None
    last_read_ts: int | None
    queue: QueueCounts | UnsetType = UNSET
    groups: dict[str, GroupLag] | UnsetType = UNSET


class TopicSummary(msgspec.Struct):
    topic: str
    head_seq: int
    earliest_seq: int
    count: int
    bytes: int
    durable: bool
    effective_priority: int


class TopicList(Answer, kw_only=True):
    topics: list[TopicSummary]
    next_cursor: str | UnsetType = UNSET


class TopicRemoved(Answer, kw_only=True):
    topic: str
    deleted: bool
    routers_removed: list[str]


class Duplicate(msgspec.Struct):
    """A record that was not appended: one with its `dedup_key` is there."""

    index: int
    seq: int


class Appended(Answer, kw_only=True):
    topic: str
    first_seq: int
    last_seq: int
    seqs: list[int] | UnsetType = UNSET
    head_seq: int
    count: int
    created: bool
    deduped: bool
    duplicates: list[Duplicate] | UnsetType = UNSET


class Record(msgspec.Struct, kw_only=True):
    """A record as it is read. What was not given is absent, not null."""

    seq: int = field(name="$seq")
    ts: int = field(name="$ts")
    node: str | UnsetType = field(name="$node", default=UNSET)
    id: str | UnsetType = field(name="$id", default=UNSET)
    tag: str | UnsetType = field(name="$tag", default=UNSET)
    data: Any = UNSET
    meta: dict[str, str] | UnsetType = UNSET


class Tombstone(msgspec.Struct):
    """A gap: records were lost before they were read. Never an error."""

    type: Literal["tombstone"] = field(name="$type")
    seq: int = field(name="$seq")
    gap_from: int
    gap_to: int
    reason: Literal["cap", "ttl", "mixed", "recreated", "source_trim", "crash", "corrupt"]
    missed_estimate: int
    earliest_seq: int
    head_seq: int


class Difference(Answer, kw_only=True):
    topic: str
    records: list[Record]
    next_from_seq: int
    head_seq: int
    earliest_seq: int
    caught_up: bool
    tombstone: Tombstone | None
    lag: int


class Sought(Answer, kw_only=True):
    topic: str
    ts: int
    seq: int
    from_seq: int
    head_seq: int
    earliest_seq: int


class RecordsDeleted(Answer, kw_only=True):
    topic: str
    deleted: int
    earliest_seq: int
    head_seq: int
    count: int
    bytes: int


# --- queues -----------------------------------------------------------------------------------------------------------


class Job(Record, kw_only=True):
    """A leased record."""

    lease_id: str
    deadline: int
    deliveries: int
    priority: int | UnsetType = UNSET


class Claimed(Answer, kw_only=True):
    topic: str
    claimed: list[Job]
    count: int
    ready: int


class Acked(Answer, kw_only=True):
    topic: str
    acked: int
    skipped: list[int]
    ready: int
    in_flight: int


class Nacked(Answer, kw_only=True):
    topic: str
    nacked: int
    skipped: list[int]
    ready: int
    in_flight: int


class Extended(Answer, kw_only=True):
    topic: str
    extended: int
    skipped: list[int]
    deadlines: dict[str, int]


class Redriven(Answer, kw_only=True):
    topic: str
    to: str
    moved: int
    remaining: int
    pending: int


# --- consumer groups --------------------------------------------------------------------------------------------------


class Group(msgspec.Struct, kw_only=True):
    """Where a group stands, and who reads."""

    group: str
    cursor_seq: int
    head_seq: int
    earliest_seq: int
    lag: int
    consumer: str | None
    created_ts: int
    updated_ts: int


class GroupState(Group, kw_only=True):
    topic: str
    performance: Performance


class GroupPut(GroupState, kw_only=True):
    created: bool


class GroupList(Answer, kw_only=True):
    topic: str
    groups: list[Group]


class GroupRemoved(Answer, kw_only=True):
    topic: str
    group: str
    deleted: bool


class GroupMoved(Answer, kw_only=True):
    topic: str
    group: str
    cursor_seq: int
    moved: bool
    head_seq: int
    lag: int


class Fetched(Difference, kw_only=True):
    group: str
    cursor_seq: int


# --- routers ----------------------------------------------------------------------------------------------------------


class RouterPut(Answer, kw_only=True):
    router: str
    created: bool
    source: str
    dest: str
    preserve_node: bool
    preserve_tag: bool
    filter: list[str] | None
    allow_cycle: bool
    guarantee: Guarantee


class Blocked(msgspec.Struct):
    code: str
    message: str
    after_seq: int
    since_ms: int


class RouterState(Answer, kw_only=True):
    router: str
    source: str
    dest: str
    preserve_node: bool
    preserve_tag: bool
    filter: list[str] | None
    allow_cycle: bool
    guarantee: Guarantee
    forwarded_total: int
    blocked: Blocked | UnsetType = UNSET


class RouterSummary(msgspec.Struct):
    router: str
    source: str
    dest: str
    guarantee: Guarantee
    forwarded_total: int


class RouterList(Answer, kw_only=True):
    routers: list[RouterSummary]
    next_cursor: str | UnsetType = UNSET


class RouterRemoved(Answer, kw_only=True):
    router: str
    deleted: bool


# --- live delivery ----------------------------------------------------------------------------------------------------


class Place(msgspec.Struct):
    from_seq: int
    head_seq: int
    earliest_seq: int


class WatchCreated(Answer, kw_only=True):
    wid: str
    stream_url: str
    session_ttl_ms: int
    topics: dict[str, Place]


# --- the server -------------------------------------------------------------------------------------------------------


class Health(Answer, kw_only=True):
    status: Literal["ok"]
    version: str
    uptime_ms: int


class Ready(Answer, kw_only=True):
    status: Literal["ready", "degraded"]
    wal_replay_complete: bool
    topics: int
    shards_down: list[int] | UnsetType = UNSET
