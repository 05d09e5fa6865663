"""Records of the reference model: as a client sends them, and as readers get them from a topic with given settings."""

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple
from uuid import UUID

DEFAULT_WINDOW_MS = 120_000


class Record(NamedTuple):
    seq: int
    ts: int
    data: bytes
    tag: str | None
    node: str | None
    meta: bytes
    dedup: str | None = None
    ttl_ms: int | None = None
    id: str | None = None

    def text(self, *, tags: bool = False, data: bool = True, meta: bool = True) -> bytes:
        """The record as a reader gets it."""
        fields = [b'"$seq":%d' % self.seq, b'"$ts":%d' % self.ts]
        if self.node is not None:
            fields.append(b'"$node":' + quote(self.node))
        if self.id is not None:
            fields.append(b'"$id":' + quote(self.id))
        if tags and self.tag is not None:
            fields.append(b'"$tag":' + quote(self.tag))
        if data:
            fields.append(b'"data":' + self.data)
        if meta and self.meta:
            fields.append(b'"meta":' + self.meta)
        return b"{" + b",".join(fields) + b"}"

    @property
    def size(self) -> int:
        return _size(self)


@lru_cache(maxsize=10_000)  # the same few records, over and over: a sweep asks for a million sizes
def _size(record: Record) -> int:
    return len(record.text()) + (len(quote(record.tag)) if record.tag is not None else 0)


class Draft(NamedTuple):
    """A record before it has a seq."""

    data: bytes
    tag: str | None = None
    node: str | None = None
    meta: bytes = b""
    dedup: str | None = None
    ttl_ms: int | None = None


class Settings(NamedTuple):
    """The part of a configuration that changes what is kept."""

    durability: str = "disk"
    ttl_ms: int = 0
    cap_records: int = 0
    cap_bytes: int = 0
    discard: str = "old"
    window_ms: int = DEFAULT_WINDOW_MS
    compression: str = "none"  # changes nothing that anybody sees
    compression_min_bytes: int = 1024
    message_ids: bool = False
    salt: int = 0  # of the ids; the engine's choice

    def record(self, seq: int, ts: int, draft: Draft) -> Record:
        """A draft as it is appended."""
        return Record(seq, ts, *draft, id=_uuid7(ts, seq, self.salt) if self.message_ids else None)

    @classmethod
    def of(cls, config: Mapping[str, Any], base: "Settings | None" = None) -> "Settings":
        names = {"idempotency_window_ms": "window_ms"}
        return (base or cls())._replace(**{names.get(name, name): value for name, value in config.items()})


def _uuid7(ts: int, seq: int, salt: int) -> str:
    high, low = divmod(seq % 2**44, 2**32)
    return str(UUID(int=ts << 80 | 7 << 76 | high << 64 | 0b10 << 62 | low << 30 | salt))


@lru_cache(maxsize=1000)
def quote(text: str) -> bytes:
    return json.dumps(text, ensure_ascii=False).encode()
