"""What a live reader asks for: the body of `POST /v0/watch`, and what is kept of it in a session."""

from collections.abc import Mapping
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from topics import limits
from topics.core.cursors import decode_cursor
from topics.core.names import check_topic_name
from topics.core.requests import U64_MAX, check_node, check_start, decode_body
from topics.errors import invalid
from topics.limits import Limits
from topics.malformed import MALFORMED


class Start(msgspec.Struct, frozen=True):
    """Where to begin with a topic: after `from_seq`, at `from_ts`, or with what comes from now on."""

    from_seq: int | UnsetType = UNSET
    from_ts: int | UnsetType = UNSET
    tail: bool = False


class WatchBody(msgspec.Struct, frozen=True):
    topics: dict[str, Start | None]
    node: str | list[str] | None = None
    limit: int = 0
    max_batch_bytes: int = limits.WATCH_BATCH_BYTES_DEFAULT
    heartbeat_ms: int = limits.HEARTBEAT_MS_DEFAULT
    include_meta: bool | UnsetType = UNSET  # as include_data
    include_tags: bool = False
    include_data: bool = True
    consistency: Literal["eventual", "strong"] = "eventual"
    cursor: str | None = None


class Subscription(msgspec.Struct, frozen=True):
    """What a stream shows of its topics; the definition of a session. Limits are clamped."""

    topics: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    limit: int = limits.DIFF_LIMIT_DEFAULT
    batch_bytes: int = limits.WATCH_BATCH_BYTES_DEFAULT
    heartbeat_ms: int = limits.HEARTBEAT_MS_DEFAULT
    meta: bool = True
    tags: bool = False
    data: bool = True
    strong: bool = False


_watch = msgspec.json.Decoder(WatchBody)
_subscription = msgspec.json.Decoder(Subscription)
_encode = msgspec.json.Encoder().encode


def parse_watch(body: bytes, bounds: Limits) -> tuple[Subscription, dict[str, Start]]:
    """The subscription and where each topic begins. Raises `invalid_request`."""
    parsed: WatchBody = decode_body(_watch, body, bounds)
    starts = check_starts(parsed.topics, bounds)
    if not starts:
        raise invalid("topics must name at least one topic", field="topics")
    for name, seq in decode_cursor(parsed.cursor, tuple(starts)).items() if parsed.cursor is not None else ():
        if name in starts:
            starts[name] = Start(seq)
    view = checked_view(parsed, bounds)
    heartbeat_ms = min(max(parsed.heartbeat_ms, limits.HEARTBEAT_MS_MIN), limits.HEARTBEAT_MS_MAX)
    strong = parsed.consistency == "strong"
    return msgspec.structs.replace(view, topics=tuple(starts), heartbeat_ms=heartbeat_ms, strong=strong), starts


def check_starts(topics: Mapping[str, Start | None], bounds: Limits) -> dict[str, Start]:
    if len(topics) > bounds.watch_topics:
        raise invalid(
            f"topics names {len(topics)} topics; the limit is {bounds.watch_topics}",
            field="topics",
            max=bounds.watch_topics,
        )
    starts: dict[str, Start] = {}
    for name, start in topics.items():
        starts[check_topic_name(name)] = start = start or Start()
        check_start(start.from_seq, start.from_ts, f"topics.{name}.")
    return starts


def checked_view(parsed: Any, bounds: Limits) -> Subscription:
    """The fields that a watch and a WebSocket's subscribe have in common."""
    for field in ("limit", "max_batch_bytes"):
        if not 0 <= getattr(parsed, field) <= U64_MAX:
            raise invalid(f"{field} must be a whole number from 0 to 2^64-1", field=field)
    nodes = [parsed.node] if isinstance(parsed.node, str) else parsed.node or []
    if len(nodes) > limits.NODE_FILTER_MAX:
        raise invalid(f"node names {len(nodes)} nodes; the limit is {limits.NODE_FILTER_MAX}", field="node")
    for node in nodes:
        check_node(node, "node", bounds)
    return Subscription(
        nodes=tuple(dict.fromkeys(nodes)),
        limit=min(parsed.limit or limits.DIFF_LIMIT_DEFAULT, bounds.read_records),
        batch_bytes=min(parsed.max_batch_bytes or limits.BATCH_BYTES_DEFAULT, limits.BATCH_BYTES_MAX),
        meta=parsed.include_data if parsed.include_meta is UNSET else parsed.include_meta,
        tags=parsed.include_tags,
        data=parsed.include_data,
    )


def pack(subscription: Subscription) -> bytes:
    return _encode(subscription)


def unpack(definition: bytes) -> Subscription:
    """ValueError if it is none."""
    try:
        return _subscription.decode(definition)
    except MALFORMED as error:
        raise ValueError(f"a stored watch cannot be read: {error}") from error
