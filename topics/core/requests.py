"""Request bodies: decoded once, typed, with `data` and `meta` kept as the bytes the client sent.

Bytes in, frozen values out; every rule about shape and size that does not need a topic's state is checked here.
"""

import re
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from topics import errors, limits
from topics.core.config import ConfigPatch, parse_config
from topics.core.idempotency import digest_record_key
from topics.core.match import TagMatch, parse_match
from topics.core.nulls import decode_without_nulls
from topics.core.pieces import Reader, decode_pieces, find_non_utf8
from topics.core.terms import check_term
from topics.errors import TopicsError, invalid
from topics.limits import Limits

U64_MAX = 2**64 - 1
ROUTER_STAMP = b"_topics_router"
_NO_RAW = msgspec.Raw(b"")


class RecordIn(msgspec.Struct, frozen=True, gc=False):
    """One record as the client wrote it."""

    data: msgspec.Raw
    tag: str | None = None
    node: str | None = None
    meta: msgspec.Raw = _NO_RAW
    dedup_key: str | None = None
    priority: int | None = None  # these three are for queues: see terms.py
    delay_ms: int | None = None
    not_before: int | None = None
    ttl_ms: int | None = None  # see terms.py too, but for any topic


class AppendBody(msgspec.Struct, frozen=True):
    records: list[RecordIn]
    node: str | None = None
    idempotency_key: str | None = None
    create: bool | None = None
    config: msgspec.Raw = _NO_RAW
    disable_backpressure: bool | None = False


class DiffBody(msgspec.Struct, frozen=True):
    from_seq: int | UnsetType = UNSET
    from_ts: int | UnsetType = UNSET
    limit: int = 0
    node: str | list[str] | None = None
    include_tags: bool = False
    include_meta: bool = True
    include_data: bool = True
    wait_ms: int = 0
    max_batch_bytes: int = 0
    bulk: bool = False


class DeleteBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):  # what it does cannot be undone
    before_seq: int | None = None
    match: Any = None


class Append(msgspec.Struct, frozen=True):
    """A checked append request."""

    records: Sequence[RecordIn]
    node: str | None
    key: str | None
    create: bool | None
    config: ConfigPatch | None
    disable_backpressure: bool
    dedups: tuple[tuple[int, bytes], ...] = ()  # (index, digest) of the records that have a dedup_key (dedup.py)
    has_terms: bool = False  # some record has a lifetime, a priority or a time
    copied: bool = False  # by the server itself
    origin: bytes = b""  # of the first record of a copy, if it has to be found again (extras.py)


class Diff(msgspec.Struct, frozen=True):
    """A checked diff request; limits are clamped, nodes are the quoted form that blocks keep."""

    from_seq: int = 0
    from_ts: int | None = None  # instead of a seq; whoever looks finds it (seek.py)
    limit: int = limits.DIFF_LIMIT_DEFAULT
    nodes: frozenset[bytes] = frozenset()
    include_tags: bool = False
    include_meta: bool = True
    include_data: bool = True
    wait_ms: int = 0
    batch_bytes: int = limits.BATCH_BYTES_DEFAULT

    @property
    def plain(self) -> bool:
        """Records are shown as they stand in their blocks, whoever wrote them."""
        return self.include_data and self.include_meta and not (self.include_tags or self.nodes)


class Delete(msgspec.Struct, frozen=True):
    before_seq: int | None
    match: TagMatch | None


_append = msgspec.json.Decoder(AppendBody)
_records = msgspec.json.Decoder(list[RecordIn])
_diff = msgspec.json.Decoder(DiffBody)
_delete = msgspec.json.Decoder(DeleteBody)
_meta = msgspec.json.Decoder(dict[str, str])
_any_meta = msgspec.json.Decoder(dict[str, msgspec.Raw])
_quote = msgspec.json.Encoder().encode


def quoted(text: str) -> bytes:
    """A string as it stands in JSON, quotes included: the one form in which blocks keep tags and nodes."""
    return _quote(text)


def decode_append(body: bytes | memoryview, topic: str, bounds: Limits, *, header_key: str | None = None) -> Append:
    """Check an append body against every limit that needs no topic state."""
    parsed = _decode_append(body, bounds)
    records = parsed.records
    if not records:
        raise invalid("records must hold at least one record", field="records")
    _check_count(len(records), bounds)
    dedups = []
    has_terms = False
    for index, record in enumerate(records):
        _check_record(index, record, bounds)
        if record.dedup_key is not None:
            dedups.append((index, _dedup_digest(index, record.dedup_key)))
        if (
            record.priority is not None
            or record.delay_ms is not None
            or record.not_before is not None
            or record.ttl_ms is not None
        ):
            check_term(index, record)
            has_terms = True
    if parsed.node is not None:
        check_node(parsed.node, "node", bounds)
    key = parsed.idempotency_key if parsed.idempotency_key is not None else header_key
    if key is not None and not 1 <= len(key) <= limits.IDEMPOTENCY_KEY_MAX:
        raise invalid(
            f"idempotency_key must have 1 to {limits.IDEMPOTENCY_KEY_MAX} characters", field="idempotency_key"
        )
    config = parse_config(bytes(parsed.config), topic) if _given(parsed.config) else None
    return Append(
        records,
        parsed.node,
        key,
        parsed.create,
        config,
        parsed.disable_backpressure is True,
        tuple(dedups),
        has_terms,
    )


def _decode_append(body: bytes | memoryview, bounds: Limits) -> AppendBody:
    if len(body) <= 2 * limits.PIECE_BYTES:
        parsed: AppendBody = decode_body(_append, body, bounds)
        return parsed
    _check_size(body, bounds)
    whole = bytes(body)
    reader = Reader(_records.decode, _append.decode, partial(_check_count, bounds=bounds), bounds.record_bytes)
    bad = find_non_utf8(whole)
    if bad is not None:
        raise _not_utf8(bad)
    try:
        records, rest = decode_pieces(whole, reader)
    except (msgspec.DecodeError, RecursionError) as error:
        raise _worded(error, whole) from None
    return msgspec.structs.replace(rest, records=records)


def _check_count(records: int, bounds: Limits) -> None:
    if records > bounds.batch_records:
        raise TopicsError(
            errors.BATCH_TOO_LARGE,
            f"{records} records in one write; the limit is {bounds.batch_records}. Split the batch.",
            {"records": records, "max": bounds.batch_records},
        )


def _check_record(index: int, record: RecordIn, bounds: Limits) -> None:
    size = len(record.data)
    if record.meta is not _NO_RAW:
        size += _check_meta(index, bytes(record.meta), bounds)
    if size > bounds.record_bytes:
        raise TopicsError(
            errors.RECORD_TOO_LARGE,
            f"records[{index}]: data + meta are {size} bytes; the limit is {bounds.record_bytes}",
            {"index": index, "bytes": size, "max": bounds.record_bytes},
        )
    if record.tag is not None and len(record.tag) * 4 > bounds.tag_bytes:  # cheap bound before the exact one
        tag_bytes = len(record.tag.encode())
        if tag_bytes > bounds.tag_bytes:
            raise invalid(
                f"records[{index}].tag is {tag_bytes} bytes; the limit is {bounds.tag_bytes}", index=index, field="tag"
            )
    if record.node is not None:
        check_node(record.node, f"records[{index}].node", bounds, index=index)


def _dedup_digest(index: int, key: str) -> bytes:
    if not 1 <= len(key) <= limits.IDEMPOTENCY_KEY_MAX:
        raise invalid(
            f"records[{index}].dedup_key must have 1 to {limits.IDEMPOTENCY_KEY_MAX} characters",
            index=index,
            field="dedup_key",
        )
    return digest_record_key(key)


def _check_meta(index: int, raw: bytes, bounds: Limits) -> int:
    """The bytes this meta counts for; null is the same as absent."""
    if raw == b"null":
        return 0
    where = f"records[{index}].meta"
    if len(raw) > bounds.meta_bytes:
        raise invalid(f"{where} is {len(raw)} bytes; the limit is {bounds.meta_bytes}", index=index, field="meta")
    try:
        pairs = _meta.decode(raw)
    except msgspec.DecodeError:
        message = f"{where} must be an object of strings{_other_value(raw)}; other JSON belongs into data"
        raise invalid(message, index=index, field="meta") from None
    if len(pairs) > limits.META_KEYS_MAX:
        raise invalid(f"{where} has {len(pairs)} keys; the limit is {limits.META_KEYS_MAX}", index=index, field="meta")
    if ROUTER_STAMP.decode() in pairs:
        raise invalid(f"{where}.{ROUTER_STAMP.decode()} is reserved for routers", index=index, field="meta")
    return len(raw)


def _other_value(meta: bytes) -> str:
    """Where in it something else than a string stands."""
    try:
        pairs = _any_meta.decode(meta)
    except msgspec.DecodeError:  # it is no object
        return ""
    return next((f': the value of "{key}" is none' for key, raw in pairs.items() if bytes(raw)[:1] != b'"'), "")


def check_node(node: str, where: str, bounds: Limits, **detail: int) -> None:
    if len(node) * 4 > bounds.node_bytes and (size := len(node.encode())) > bounds.node_bytes:
        raise invalid(f"{where} is {size} bytes; the limit is {bounds.node_bytes}", **detail, field="node")


def check_start(from_seq: int | UnsetType, from_ts: int | UnsetType, where: str = "") -> tuple[int, int | None]:
    """Where a reader begins: after a seq, or at a time, of which there is at most one."""
    for name, value in (("from_seq", from_seq), ("from_ts", from_ts)):
        if value is not UNSET and not 0 <= value <= U64_MAX:
            raise invalid(f"{where}{name} must be a whole number from 0 to 2^64-1", field=name)
    if from_ts is UNSET:
        return (0 if from_seq is UNSET else from_seq), None
    if from_seq is not UNSET:
        raise invalid(f"{where}from_seq and {where}from_ts both say where to begin: give one of them", field="from_ts")
    return 0, from_ts


def decode_diff(body: bytes | memoryview, bounds: Limits) -> Diff:
    """An empty body means all defaults. Values above a maximum are clamped, wrong types are refused."""
    if not body:
        return Diff()
    parsed: DiffBody = decode_body(_diff, body, bounds)
    for name in ("limit", "wait_ms", "max_batch_bytes"):
        if not 0 <= getattr(parsed, name) <= U64_MAX:
            raise invalid(f"{name} must be a whole number from 0 to 2^64-1", field=name)
    from_seq, from_ts = check_start(parsed.from_seq, parsed.from_ts)
    names = [parsed.node] if isinstance(parsed.node, str) else parsed.node or []
    if len(names) > limits.NODE_FILTER_MAX:
        raise invalid(f"node names {len(names)} nodes; the limit is {limits.NODE_FILTER_MAX}", field="node")
    most = max(limits.DIFF_BULK_MAX, bounds.read_records) if parsed.bulk else bounds.read_records
    return Diff(
        from_seq=from_seq,
        from_ts=from_ts,
        limit=min(parsed.limit or limits.DIFF_LIMIT_DEFAULT, most),
        nodes=frozenset(quoted(name) for name in names),
        include_tags=parsed.include_tags,
        include_meta=parsed.include_meta,
        include_data=parsed.include_data,
        wait_ms=min(parsed.wait_ms, limits.DIFF_WAIT_MS_MAX),
        batch_bytes=min(parsed.max_batch_bytes or limits.BATCH_BYTES_DEFAULT, limits.BATCH_BYTES_MAX),
    )


def decode_delete(body: bytes | memoryview, bounds: Limits) -> Delete:
    parsed: DeleteBody = decode_body(_delete, body, bounds)
    match = parse_match(parsed.match) if parsed.match is not None else None
    if parsed.before_seq is None and match is None:
        raise invalid("give before_seq, match or both: a delete must say what to remove")
    if parsed.before_seq is not None and not 0 <= parsed.before_seq <= U64_MAX:
        raise invalid("before_seq must be a whole number from 0 to 2^64-1", field="before_seq")
    return Delete(parsed.before_seq, match)


def _given(raw: msgspec.Raw) -> bool:
    return raw is not _NO_RAW and bytes(raw) != b"null"


def decode_body(decoder: msgspec.json.Decoder[Any], body: bytes | memoryview, bounds: Limits) -> Any:
    _check_size(body, bounds)
    try:
        # msgspec's Raw takes over invalid UTF-8 unseen, and one such record would poison every reader.
        str(body, "utf-8")
        try:
            return decoder.decode(body)
        except msgspec.ValidationError as refusal:
            return decode_without_nulls(decoder, bytes(body), refusal)
    except UnicodeDecodeError as error:
        raise _not_utf8(error.start) from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise _worded(error, bytes(body)) from None


def _check_size(body: bytes | memoryview, bounds: Limits) -> None:
    if len(body) > bounds.body_bytes:
        raise TopicsError(
            errors.PAYLOAD_TOO_LARGE,
            f"the body is {len(body)} bytes; the limit is {bounds.body_bytes}",
            {"bytes": len(body), "max": bounds.body_bytes},
        )


def _not_utf8(at: int) -> TopicsError:
    return invalid(f"the body is not valid UTF-8 at byte {at}")


def _worded(error: msgspec.DecodeError | RecursionError, body: bytes) -> TopicsError:
    if isinstance(error, RecursionError):
        return invalid("the body is nested too deeply")
    if isinstance(error, msgspec.ValidationError):
        return _refused(str(error))
    if not body.strip():
        return invalid("the body is empty; it has to be a JSON object")
    hint = " (half of a surrogate pair, such as \\ud800 alone, cannot be taken)" if _has_surrogate(body) else ""
    return invalid(f"the body is not valid JSON: {error}{hint}")


def _has_surrogate(body: bytes) -> bool:
    steps = range(0, len(body), limits.PIECE_BYTES)
    return any(_SURROGATE.search(body, at, at + limits.PIECE_BYTES + 4) for at in steps)


_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_AT = re.compile(r"^(?P<what>.*) - at `\$\.?(?P<path>[^`]*)`$")
_NAMED = re.compile(r"(?:missing required|contains unknown) field `(?P<field>[^`]*)`")
_PLACE = re.compile(r"^(?P<list>\w+)\[(?P<index>\d+)\]\.?(?P<member>\w*)$")


def _refused(message: str) -> TopicsError:
    """msgspec's message with the path first: "records[0].tag: expected `str | null`, got `int`". The detail names the
    field, and the index if it is one of a list."""
    found = _AT.match(message)
    what, path = (found["what"], found["path"]) if found else (message, "")
    detail: dict[str, Any] = {"field": path} if path else {}
    if place := _PLACE.match(path):
        detail = {"index": int(place["index"]), "field": place["member"] or place["list"]}
    if named := _NAMED.search(what):
        detail["field"] = named["field"]
    return invalid(f"{path or 'the body'}: {what[0].lower()}{what[1:]}", **detail)
