"""Bodies of the calls of consumer groups: decoded once, checked, clamped.

Fields that are not known are refused: a group moves what others rely on, and a `from_seq` that is passed over in
silence would not read what was meant.
"""

from typing import Any

import msgspec

from topics import limits
from topics.core.groups import Where, check_where
from topics.core.requests import Diff, decode_body, decode_diff
from topics.errors import invalid
from topics.limits import Limits


class GroupBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"from_": "from"}):
    from_: Where = "earliest"


class FetchBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"from_": "from"}):
    """The fields that a diff has, but for where to begin; then those of the group."""

    limit: int = 0
    node: str | list[str] | None = None
    include_tags: bool = False
    include_meta: bool = True
    include_data: bool = True
    wait_ms: int = 0
    max_batch_bytes: int = 0
    bulk: bool = False
    consumer: str | None = None
    take_over: bool = False
    from_: Where = "earliest"


class GroupAckBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    seq: int
    consumer: str | None = None


class SeekBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    to: Where
    consumer: str | None = None


class Fetch(msgspec.Struct, frozen=True):
    """A checked fetch. `query` lacks its cursor."""

    query: Diff
    consumer: str | None
    take_over: bool
    start: Where  # of a group that is made by it


_group = msgspec.json.Decoder(GroupBody)
_fetch = msgspec.json.Decoder(FetchBody)
_ack = msgspec.json.Decoder(GroupAckBody)
_seek = msgspec.json.Decoder(SeekBody)


def decode_group(body: bytes, bounds: Limits) -> Where:
    """Where a new group begins."""
    parsed: GroupBody = decode_body(_group, body or b"{}", bounds)
    check_where(parsed.from_, "from")
    return parsed.from_


def decode_fetch(body: bytes, bounds: Limits) -> Fetch:
    parsed: FetchBody = decode_body(_fetch, body or b"{}", bounds)
    _check_consumer(parsed)
    if parsed.take_over and parsed.consumer is None:
        raise invalid("take_over needs a consumer: who is it that takes over?", field="consumer")
    check_where(parsed.from_, "from")
    return Fetch(decode_diff(body, bounds), parsed.consumer, parsed.take_over, parsed.from_)


def decode_ack(body: bytes, bounds: Limits) -> GroupAckBody:
    parsed: GroupAckBody = decode_body(_ack, body, bounds)
    _check_consumer(parsed)
    return parsed


def decode_seek(body: bytes, bounds: Limits) -> SeekBody:
    parsed: SeekBody = decode_body(_seek, body, bounds)
    _check_consumer(parsed)
    check_where(parsed.to, "to")
    return parsed


def _check_consumer(parsed: Any) -> None:
    if parsed.consumer is not None:
        check_consumer(parsed.consumer)


def check_consumer(consumer: str) -> str:
    if not 1 <= len(consumer) <= limits.GROUP_CONSUMER_MAX:
        raise invalid(f"consumer must have 1 to {limits.GROUP_CONSUMER_MAX} characters", field="consumer")
    return consumer
