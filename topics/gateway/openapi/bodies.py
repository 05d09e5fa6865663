"""Request bodies, as types for the document: the very structs that requests are decoded into.

Where a struct keeps a part as bytes (`msgspec.Raw`), because it is checked elsewhere or passed on as it came, the type
of that part is put in here. A field that may be left out may also be null, as `topics/core/nulls.py` has it. A topic's
config, in which null is no such thing, and a router are checked field by field, so they are written down once more;
tests hold their fields against those that are checked.
"""

from collections.abc import Mapping
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from topics.core import group_requests, queue_requests, requests, watching
from topics.core.config import Discard, Durability, TopicType
from topics.core.packing import Compression
from topics.core.routes import Guarantee
from topics.gateway import ws_frames

Match = str | list[str]


class TopicConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What a topic is like. A field that is not named stays as it is, or has its default in a new topic."""

    type: TopicType = "log"
    ttl_ms: int = 0
    cap_records: int = 0
    cap_bytes: int = 0
    discard: Discard = "old"
    durable: bool = False
    durability: Durability = "disk"
    priority: int | None = None
    auto_priority: bool = True
    auto_create: bool = True
    idempotency_window_ms: int = 120_000
    dedupe_node: bool = True
    lease_ms: int = 30_000
    claim_jitter_ms: int = 0
    max_deliveries: int = 0
    dead_letter: str | None = None
    leases_durable: bool = False
    compression: Compression = "none"
    compression_min_bytes: int = 1024
    priority_age_ms: int = 60_000
    message_ids: bool = False


class RouterBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A rule that forwards records of one topic to another."""

    source: str
    dest: str
    preserve_node: bool | None = True
    preserve_tag: bool | None = True
    create_dest: bool | None = True
    filter: Match | None = None
    allow_cycle: bool | None = False
    guarantee: Guarantee | None = "at_least_once"


def described(struct: type[msgspec.Struct], doc: str, types: Mapping[str, Any]) -> type[msgspec.Struct]:
    """The same struct with other types for some of its fields; those may be left out unless they have no default."""
    fields: list[Any] = []
    for field in msgspec.structs.fields(struct):
        if field.name not in types and field.required:
            fields.append((field.name, field.type))
        elif field.name not in types:
            fields.append((field.name, field.type | None, field.default))
        elif field.required:
            fields.append((field.name, types[field.name]))
        else:
            fields.append((field.name, types[field.name] | UnsetType, UNSET))
    strict = struct.__struct_config__.forbid_unknown_fields
    names = {field.name: field.encode_name for field in msgspec.structs.fields(struct)}
    return msgspec.defstruct(
        struct.__name__, fields, kw_only=True, forbid_unknown_fields=strict, namespace={"__doc__": doc}, rename=names
    )


# `data` is any JSON: `object` is the type that says so and can be joined with others.
RecordIn = described(
    requests.RecordIn,
    "One record. `data` is kept and given back byte for byte.",
    {"data": Any, "meta": dict[str, str] | None},
)
_write: dict[str, Any] = {"records": list[RecordIn], "config": TopicConfig | None}  # type: ignore[valid-type]
AppendBody = described(requests.AppendBody, "Records to append, all of them or none.", _write)
DiffBody = described(requests.DiffBody, "Which records to read.", {})
DeleteBody = described(
    requests.DeleteBody,
    "What to delete; at least one of the two, and with both what both say.",
    {"match": Match | None},
)
ClaimBody = described(queue_requests.ClaimBody, "How many jobs, for whom.", {})
AckBody = msgspec.defstruct(
    "AckBody", [], bases=(queue_requests.SettleBody,), namespace={"__doc__": "Jobs that are done."}
)
NackBody = described(queue_requests.NackBody, "Jobs to give back.", {})
RedriveBody = described(queue_requests.RedriveBody, "Dead letters that are to be jobs again.", {"match": Match | None})
ExtendBody = described(queue_requests.ExtendBody, "Jobs that need more time, from now.", {})
GroupBody = described(group_requests.GroupBody, "Where a new group begins.", {})
FetchBody = described(group_requests.FetchBody, "What to read; who reads; where a group begins that is new.", {})
GroupAckBody = described(group_requests.GroupAckBody, "How far a group is done.", {})
SeekBody = described(group_requests.SeekBody, "Where a group is to go on.", {})
Start = described(watching.Start, watching.Start.__doc__ or "", {})
_starts: dict[str, Any] = {"topics": dict[str, Start | None]}  # type: ignore[valid-type]
WatchBody = described(watching.WatchBody, "What to follow, and from where.", _starts)
Subscribe = described(
    ws_frames.Subscribe, "Follow one `topic`, or several `topics`.", {"topics": _starts["topics"] | None}
)
Unsubscribe = described(ws_frames.Unsubscribe, "Follow it no longer.", {})
Credit = described(ws_frames.Credit, "Take so many more records.", {"op": Literal["credit"]})
WsAck = msgspec.defstruct(
    "WsAck", [], bases=(ws_frames.Ack,), namespace={"__doc__": "The group of the subscription is done up to here."}
)
Publish = described(
    ws_frames.Publish,
    "An append; its fields are those of `AppendBody`.",
    _write
    | {"node": str | None, "idempotency_key": str | None, "create": bool | None, "disable_backpressure": bool | None},
)
