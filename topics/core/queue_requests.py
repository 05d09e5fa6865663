"""Bodies of the queue calls (API §10): decoded once, checked, clamped."""

from typing import Any, TypeVar

import msgspec

from topics import errors, limits
from topics.core.config import LEASE_MS_MAX, LEASE_MS_MIN
from topics.core.match import TagMatch, parse_match
from topics.core.names import TOPIC_RULE, is_topic_name
from topics.core.requests import U64_MAX, check_node, decode_body
from topics.errors import TopicsError, invalid
from topics.limits import Limits

LEASE_PREFIX = "lease_"
LEASE_ID_MAX = 64


class ClaimBody(msgspec.Struct, frozen=True):
    node: str
    max: int | None = None
    lease_ms: int | None = None
    wait_ms: int | None = None


class SettleBody(msgspec.Struct, frozen=True):
    """What ack, nack and extend have in common."""

    node: str
    seqs: list[int]
    lease_ids: list[str] | None = None


class NackBody(SettleBody, frozen=True, kw_only=True):
    delay_ms: int | None = None
    reason: str | None = None
    penalty: bool = True


class ExtendBody(SettleBody, frozen=True, kw_only=True):
    lease_ms: int


class RedriveBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):  # it moves things
    to: str
    match: Any = None
    limit: int | None = None


class Redrive(msgspec.Struct, frozen=True):
    to: str
    match: TagMatch | None
    limit: int


class Claim(msgspec.Struct, frozen=True):
    node: str
    max: int
    lease_ms: int | None  # none: the queue's own
    wait_ms: int


class Settle(msgspec.Struct, frozen=True):
    """Jobs that a worker says something about. `lease_ids` are the leases it believes to hold, if it tells."""

    node: str
    seqs: list[int]
    lease_ids: list[str] | None
    ms: int = 0  # delay of a nack, length of an extension
    reason: str = ""  # of a nack
    penalty: bool = True  # whether it counts as a delivery


_claim = msgspec.json.Decoder(ClaimBody)
_ack = msgspec.json.Decoder(SettleBody)
_nack = msgspec.json.Decoder(NackBody)
_extend = msgspec.json.Decoder(ExtendBody)
_redrive = msgspec.json.Decoder(RedriveBody)
BodyT = TypeVar("BodyT", bound=SettleBody)


def decode_claim(body: bytes | memoryview, bounds: Limits) -> Claim:
    parsed: ClaimBody = decode_body(_claim, body, bounds)
    return Claim(
        check_worker(parsed.node, bounds),
        clamp_jobs(parsed.max, bounds),
        clamp_lease(parsed.lease_ms),
        min(_u64("wait_ms", parsed.wait_ms or 0), limits.CLAIM_WAIT_MS_MAX),
    )


def decode_ack(body: bytes | memoryview, bounds: Limits) -> Settle:
    return _settle(decode_body(_ack, body, bounds), bounds)


def decode_nack(body: bytes | memoryview, bounds: Limits) -> Settle:
    parsed: NackBody = decode_body(_nack, body, bounds)
    delay_ms = min(_u64("delay_ms", parsed.delay_ms or 0), limits.NACK_DELAY_MS_MAX)
    reason = parsed.reason or ""
    if (size := len(reason.encode())) > limits.NACK_REASON_BYTES_MAX:
        most = limits.NACK_REASON_BYTES_MAX
        raise invalid(f"reason is {size} bytes; the limit is {most}: shorten it", field="reason", bytes=size, max=most)
    settle = _settle(parsed, bounds, delay_ms)
    return msgspec.structs.replace(settle, reason=reason, penalty=parsed.penalty)


def decode_extend(body: bytes | memoryview, bounds: Limits) -> Settle:
    parsed: ExtendBody = decode_body(_extend, body, bounds)
    return _settle(parsed, bounds, clamp_lease(parsed.lease_ms) or 0)


def decode_redrive(body: bytes | memoryview, topic: str, bounds: Limits) -> Redrive:
    parsed: RedriveBody = decode_body(_redrive, body, bounds)
    if not is_topic_name(parsed.to):
        raise invalid(f"to must be the name of a queue, which has {TOPIC_RULE}", field="to")
    if parsed.to == topic:
        raise invalid("to must be another topic than the one that is emptied", field="to")
    limit = parsed.limit if parsed.limit is not None else limits.REDRIVE_DEFAULT
    if limit < 1:
        raise invalid("limit must be a whole number, 1 or more", field="limit")
    match = parse_match(parsed.match) if parsed.match is not None else None
    return Redrive(parsed.to, match, min(limit, limits.REDRIVE_MAX))


def check_worker(node: str, bounds: Limits) -> str:
    if not node:
        raise invalid("node must name the worker", field="node")
    check_node(node, "node", bounds)
    return node


def clamp_jobs(wanted: int | None, bounds: Limits) -> int:
    """How many jobs: 1 unless told, at most what the server allows."""
    if wanted is None:
        return 1
    if wanted < 1:
        raise invalid("max must be a whole number, 1 or more", field="max")
    return min(wanted, bounds.claim_jobs)


def clamp_lease(lease_ms: int | None) -> int | None:
    if lease_ms is None:
        return None
    return min(max(_u64("lease_ms", lease_ms), LEASE_MS_MIN), LEASE_MS_MAX)


def _u64(field: str, value: int) -> int:
    if not 0 <= value <= U64_MAX:
        raise invalid(f"{field} must be a whole number from 0 to 2^64-1", field=field)
    return value


def _settle(parsed: SettleBody, bounds: Limits, ms: int = 0) -> Settle:
    node, seqs, lease_ids = check_worker(parsed.node, bounds), parsed.seqs, parsed.lease_ids
    if not seqs:
        raise invalid("seqs must hold at least one seq", field="seqs")
    if len(seqs) > bounds.claim_jobs:
        raise TopicsError(
            errors.BATCH_TOO_LARGE,
            f"{len(seqs)} seqs in one request; the limit is {bounds.claim_jobs}. Split it.",
            {"seqs": len(seqs), "max": bounds.claim_jobs},
        )
    if min(seqs) < 0 or max(seqs) > U64_MAX:
        index = next(index for index, seq in enumerate(seqs) if not 0 <= seq <= U64_MAX)
        raise invalid(f"seqs[{index}] must be a whole number from 0 to 2^64-1", index=index, field="seqs")
    if lease_ids is not None and len(lease_ids) != len(seqs):
        raise invalid(f"{len(lease_ids)} lease_ids for {len(seqs)} seqs: give one for each", field="lease_ids")
    return Settle(node, seqs, lease_ids, ms)


def lease_id(number: int) -> bytes:
    return b"lease_%x" % number


def lease_number(text: str) -> int:
    """The number in a lease id; what is none is -1, which no lease has."""
    digits = text.removeprefix(LEASE_PREFIX)
    if digits == text or not 0 < len(text) <= LEASE_ID_MAX:
        return -1
    try:
        number = int(digits, 16)
    except ValueError:
        return -1
    return number if f"{number:x}" == digits else -1
