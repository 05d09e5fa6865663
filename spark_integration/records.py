"""From Arrow batches to the bodies of appends, in chunks whose cut depends on the rows alone."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql.types import DataType, MapType, StringType, StructType, VariantType
from pyspark.sql.variant_utils import VariantUtils

from spark_integration.options import BadOption

CHUNK_BYTES = 4 * 1024 * 1024
_TEXT = StringType()
_META = MapType(_TEXT, _TEXT)
_COLUMNS: dict[str, tuple[DataType, ...]] = {
    "topic": (_TEXT,),
    "data": (_TEXT, VariantType()),
    "tag": (_TEXT,),
    "node": (_TEXT,),
    "meta": (_META,),
    "dedup_key": (_TEXT,),
}
_IGNORED = {"seq", "ts"}  # a frame that was read may be written: the server gives new ones

_encode = msgspec.json.Encoder().encode
_decode_all = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_one = msgspec.json.Decoder(msgspec.Raw).decode


class BadRow(ValueError):
    """A row that cannot become a record."""


def check_columns(schema: StructType, topic: str | None) -> None:
    given = {one.name: one.dataType for one in schema}
    for name, type_ in given.items():
        if name in _IGNORED:
            continue
        if name not in _COLUMNS:
            known = ", ".join(_COLUMNS)
            raise BadOption(
                f"no place for the column {name!r} among {known}; put it into data: to_json(struct(…)) AS data"
            )
        if not any(_same(type_, offer) for offer in _COLUMNS[name]):
            said = " or ".join(offer.simpleString() for offer in _COLUMNS[name])
            more = "; to_json(…) makes a string of anything" if name == "data" else ""
            raise BadOption(f"the column {name!r} must be {said}, not {type_.simpleString()}{more}")
    if "data" not in given:
        raise BadOption("a column `data` is missing: the record's JSON as a string, or a variant")
    if topic is None and "topic" not in given:
        raise BadOption("to which topic? Give the option topic or a column `topic`")


def _same(given: DataType, offer: DataType) -> bool:
    return bool(given == offer) or (isinstance(given, MapType) and isinstance(offer, MapType) and _strings(given))


def _strings(given: MapType) -> bool:
    return bool(given.keyType == _TEXT and given.valueType == _TEXT)


@dataclass
class Chunk:
    """Records of one topic that are appended together, as JSON texts."""

    topic: str
    number: int  # of this topic in this partition
    texts: list[bytes] = field(default_factory=list)
    size: int = 0

    def key(self, write: str) -> str:
        """Names this chunk of this write by what is in it: a chunk that was cut differently is another one."""
        content = hashlib.blake2b(digest_size=32)
        for text in self.texts:
            content.update(len(text).to_bytes(4, "big"))
            content.update(text)
        whole = f"{write}\0{self.topic}\0{self.number}\0{content.hexdigest()}"
        return "spark:" + hashlib.blake2b(whole.encode(), digest_size=24).hexdigest()

    def body(self, write: str, fields: dict[str, Any]) -> bytes:
        head = _encode({"idempotency_key": self.key(write), **fields})
        return b'%b,"records":[%b]}' % (head[:-1], b",".join(self.texts))


class Chunks:
    """Collects rows in order; a chunk is given out when it is full."""

    def __init__(self, topic: str | None, records: int) -> None:
        self._topic = topic
        self._records = records
        self._open: dict[str, Chunk] = {}
        self._numbers: dict[str, int] = {}

    def add(self, batch: pa.RecordBatch) -> Iterator[Chunk]:
        names = [self._topic] * len(batch) if self._topic is not None else batch.column("topic").to_pylist()
        for name, text in zip(names, record_texts(batch), strict=True):
            if name is None:
                raise BadRow("a row has no topic, and there is no option topic")
            chunk = self._chunk(name)
            chunk.texts.append(text)
            chunk.size += len(text)
            if len(chunk.texts) == self._records or chunk.size >= CHUNK_BYTES:
                yield self._open.pop(name)

    def rest(self) -> Iterator[Chunk]:
        yield from self._open.values()

    def _chunk(self, topic: str) -> Chunk:
        if topic not in self._open:
            number = self._numbers.get(topic, 0)
            self._numbers[topic] = number + 1
            self._open[topic] = Chunk(topic, number)
        return self._open[topic]


def record_texts(batch: pa.RecordBatch) -> list[bytes]:
    """Each row as the JSON of a record."""
    datas = data_texts(batch.column("data"))
    parts = [part for name in ("tag", "node", "meta", "dedup_key") if (part := _strings_of(batch, name)) is not None]
    if not parts:
        return [b'{"data":%b}' % data for data in datas]
    return [b'{"data":%b%b}' % (data, b"".join(rest)) for data, *rest in zip(datas, *parts, strict=True)]


def _strings_of(batch: pa.RecordBatch, name: str) -> list[bytes] | None:
    """`,"tag":"…"` for every row, nothing where it is null; None if there is no such column or nothing in it."""
    index = batch.schema.get_field_index(name)
    if index < 0 or batch.column(index).null_count == len(batch):
        return None
    values = batch.column(index).to_pylist()
    lead = b',"%b":' % name.encode()
    if name == "meta":
        values = [None if value is None else dict(value) for value in values]
    return [b"" if value is None else lead + _encode(value) for value in values]


def data_texts(column: pa.Array) -> list[bytes]:
    """The payloads, each proven to be one JSON value: a text that closed its record early could smuggle in others."""
    if pa.types.is_struct(column.type):
        values = column.to_pylist()
        return [
            b"null" if one is None else VariantUtils.to_json(one["value"], one["metadata"]).encode() for one in values
        ]
    texts = [b"null" if text is None else text for text in column.cast(pa.binary()).to_pylist()]
    if not _all_values(texts):
        for row, text in enumerate(texts):
            _check_value(row, text)
    return texts


def _all_values(texts: Sequence[bytes]) -> bool:
    """Whether the texts, joined, fall apart into the same texts again. False may also be blanks around a value."""
    try:
        found = _decode_all(b"[%b]" % b",".join(texts))
    except msgspec.DecodeError:
        return False
    return len(found) == len(texts) and all(bytes(one) == text for one, text in zip(found, texts, strict=True))


def _check_value(row: int, text: bytes) -> None:
    try:
        _decode_one(text)
    except msgspec.DecodeError as error:
        shown = text[:80].decode(errors="replace")
        hint = "a plain text becomes JSON with to_json or concat('\"', …, '\"')"
        raise BadRow(f"data must be JSON text; row {row} of its batch is {shown!r} ({error}); {hint}") from None
