"""A topic's configuration: what a client may set, how a PUT changes it, and its forms on the wire and on disk.

`parse_config` checks a request body and yields a `ConfigPatch`; `merge` lays the patch over the current configuration
or, for a new topic, over `DEFAULT`. The result is immutable and shared: all topics with equal settings hold the same
object (`intern`), so a configuration costs a topic one pointer.

Rules that the field table alone does not say:

- A patch changes the fields it names and no others. `null` takes `priority` and `dead_letter` back to unset.
- `durability` is the truth, `durable` a shorthand that is read only when `durability` is not named.
- Values with a stated range (`priority`, `lease_ms`, `claim_jitter_ms`) are clamped; any other bad value is refused,
  and so is a time below 0, as in a claim.
- The type of a topic never changes; a patch that does not name it never conflicts.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Literal
from weakref import WeakValueDictionary

import msgspec

from topics.core.names import TOPIC_RULE, is_topic_name
from topics.core.packing import PLAIN, Compression, Packing
from topics.errors import TOPIC_EXISTS_INCOMPATIBLE, TopicsError, invalid
from topics.limits import PRIORITY_MAX

TopicType = Literal["log", "queue"]
Discard = Literal["old", "reject"]
Durability = Literal["ephemeral", "memory", "disk", "fsync"]

U64_MAX = 2**64 - 1
LEASE_MS_MIN = 100
LEASE_MS_MAX = 86_400_000
CLAIM_JITTER_MS_MAX = 5_000
HIDDEN = ("id_salt", "ids_from")  # fields that no client sees or sets


class TopicConfig(msgspec.Struct, frozen=True, kw_only=True, weakref=True):
    """One resolved configuration. The defaults are part of the storage format: see `to_wire`."""

    type: TopicType = "log"
    ttl_ms: int = 0
    cap_records: int = 0
    cap_bytes: int = 0
    discard: Discard = "old"
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
    id_salt: int = 0  # of its message ids (ids.py)
    ids_from: int = 0  # the first seq that has one

    @property
    def durable(self) -> bool:
        return self.durability == "fsync"

    @property
    def packing(self) -> Packing:
        """How blocks are stored from now on; those that are stored stay as they are."""
        return Packing(self.compression, self.compression_min_bytes) if self.compression != "none" else PLAIN


class ConfigPatch(msgspec.Struct, frozen=True):
    """Checked changes by field name of `TopicConfig`; `durable` is already resolved into `durability`."""

    changes: Mapping[str, Any]


_shared: WeakValueDictionary[tuple[Any, ...], TopicConfig] = WeakValueDictionary()


def intern(config: TopicConfig) -> TopicConfig:
    """The one shared object equal to this configuration; forgotten when the last topic that holds it goes."""
    return _shared.setdefault(msgspec.structs.astuple(config), config)


DEFAULT = intern(TopicConfig())


# --- checking a request ---------------------------------------------------------------------------------------------

_Check = Callable[[str, Any], Any]


def _integer(field: str, value: Any) -> int:
    if type(value) is not int:  # bool is an int to isinstance
        raise invalid(f"{field} must be an integer", field=field)
    return value


def _u64(field: str, value: Any) -> int:
    if not 0 <= _integer(field, value) <= U64_MAX:
        raise invalid(f"{field} must be an integer from 0 to {U64_MAX}", field=field)
    return int(value)


def _boolean(field: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise invalid(f"{field} must be true or false", field=field)
    return value


def _topic_name(field: str, value: Any) -> str:
    if not isinstance(value, str) or not is_topic_name(value):
        raise invalid(f"{field} must be null or the name of a topic, which has {TOPIC_RULE}", field=field)
    return value


def _clamped(low: int, high: int, check: Callable[[str, Any], int]) -> _Check:
    return lambda field, value: min(max(check(field, value), low), high)


def _one_of(*choices: str) -> _Check:
    def check(field: str, value: Any) -> str:
        if not isinstance(value, str) or value not in choices:
            raise invalid(f"{field} must be one of {', '.join(choices)}", field=field)
        return value

    return check


def _or_null(check: _Check) -> _Check:
    return lambda field, value: None if value is None else check(field, value)


# In the order of the API's config object, which is also the order of `to_json`.
_CHECKS: dict[str, _Check] = {
    "type": _one_of("log", "queue"),
    "ttl_ms": _u64,
    "cap_records": _u64,
    "cap_bytes": _u64,
    "discard": _one_of("old", "reject"),
    "durable": _boolean,
    "durability": _one_of("ephemeral", "memory", "disk", "fsync"),
    "priority": _or_null(_clamped(-PRIORITY_MAX, PRIORITY_MAX, _integer)),
    "auto_priority": _boolean,
    "auto_create": _boolean,
    "idempotency_window_ms": _u64,
    "dedupe_node": _boolean,
    "lease_ms": _clamped(LEASE_MS_MIN, LEASE_MS_MAX, _u64),
    "claim_jitter_ms": _clamped(0, CLAIM_JITTER_MS_MAX, _u64),
    "max_deliveries": _u64,
    "dead_letter": _or_null(_topic_name),
    "leases_durable": _boolean,
    "compression": _one_of("none", "gzip", "zstd"),
    "compression_min_bytes": _u64,
    "priority_age_ms": _u64,
    "message_ids": _boolean,
}


def parse_config(raw: bytes | Mapping[str, Any], topic: str) -> ConfigPatch:
    """Check a config object, given as a request body or as the decoded `config` of a write. An empty body is `{}`."""
    changes: dict[str, Any] = {}
    for field, value in _decode_object(raw).items():
        check = _CHECKS.get(field)
        if check is None:
            shown = str(field)[:64]
            raise invalid(f'unknown config field "{shown}"; the fields are {", ".join(_CHECKS)}', field=shown)
        changes[field] = check(field, value)
    if "durable" in changes:
        durable = changes.pop("durable")
        changes.setdefault("durability", "fsync" if durable else "disk")
    if changes.get("dead_letter") == topic:
        raise invalid("dead_letter must differ from the topic itself", field="dead_letter")
    return ConfigPatch(changes)


def _decode_object(raw: bytes | Mapping[str, Any]) -> Mapping[str, Any]:
    if isinstance(raw, Mapping):
        return raw
    if not raw.strip():
        return {}
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise invalid(f"the config is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise invalid("the config must be a JSON object", field="config")
    return value


def merge(current: TopicConfig | None, patch: ConfigPatch, topic: str) -> TopicConfig:
    """The configuration after the patch. A patch that changes nothing gives back `current` itself."""
    if current is not None and patch.changes.get("type", current.type) != current.type:
        message = f'topic "{topic}" is of type {current.type}, which cannot be changed'
        raise TopicsError(TOPIC_EXISTS_INCOMPATIBLE, message, {"topic": topic, "type": current.type})
    before = DEFAULT if current is None else current
    after = msgspec.structs.replace(before, **patch.changes)
    return before if after == before else intern(after)


# --- forms ----------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def to_json(config: TopicConfig) -> bytes:
    """The full config object of a response, its fields in the API's order."""
    return msgspec.json.encode({field: getattr(config, field) for field in _CHECKS})


def to_wire(config: TopicConfig) -> dict[str, Any]:
    """What the log and snapshots store: the fields that differ from the defaults.

    A default is therefore part of the format. Changing one would change stored topics; a new field is safe.
    """
    if config is DEFAULT:
        return {}
    return {field: value for field in _FIELDS if (value := getattr(config, field)) != getattr(DEFAULT, field)}


def from_wire(stored: Mapping[str, Any]) -> TopicConfig:
    """The reverse of `to_wire`. Fields of a later version are ignored, so that an older one can still start.

    ValueError if it is no configuration, or a field has a value that this version does not know.
    """
    return DEFAULT if stored == {} else intern(msgspec.convert(stored, TopicConfig))


_FIELDS = TopicConfig.__struct_fields__

assert set(_FIELDS) - set(HIDDEN) | {"durable"} == set(_CHECKS)
