"""From the body of a diff to an Arrow batch. Payloads stay the text they are; nothing looks into them."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    DataType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    VariantType,
)
from pyspark.sql.variant_utils import VariantUtils

_NULL = msgspec.Raw(b"null")
_TEXT = StringType()


class Record(msgspec.Struct, gc=False):
    seq: int = msgspec.field(name="$seq")
    ts: int = msgspec.field(name="$ts")
    node: str | None = msgspec.field(name="$node", default=None)
    tag: str | None = msgspec.field(name="$tag", default=None)
    meta: dict[str, str] | None = None
    data: msgspec.Raw = _NULL


class Gap(msgspec.Struct, gc=False):
    gap_from: int
    gap_to: int
    reason: str


class Page(msgspec.Struct):
    records: list[Record]
    next_from_seq: int
    head_seq: int
    tombstone: Gap | None = None


decode_page = msgspec.json.Decoder(Page).decode


def schema(data_type: str) -> StructType:
    data: DataType = VariantType() if data_type == "variant" else _TEXT
    return StructType(
        [
            StructField("topic", _TEXT),
            StructField("seq", LongType()),
            StructField("ts", TimestampType()),
            StructField("node", _TEXT),
            StructField("tag", _TEXT),
            StructField("meta", MapType(_TEXT, _TEXT)),
            StructField("data", data),
        ]
    )


class Batches:
    """Makes batches of chosen columns; `wanted` is a schema of columns that are in `schema(…)`."""

    def __init__(self, wanted: StructType) -> None:
        self.columns = wanted.fieldNames()
        self.arrow_schema = to_arrow_schema(wanted, timezone="UTC")

    def batch(self, topic: str, records: Sequence[Record]) -> pa.RecordBatch:
        arrays = []
        for field in self.arrow_schema:
            if field.name == "topic":
                arrays.append(pa.repeat(pa.scalar(topic, field.type), len(records)))
            else:
                arrays.append(_COLUMNS[field.name](records, field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self.arrow_schema)

    def lost(self, topic: str, first: int, last: int, reason: str) -> pa.RecordBatch:
        """A row for records that are gone. Its data is NULL, which no record's is; its meta says how far it goes."""
        row = {"topic": topic, "seq": first, "meta": [("lost_to", str(last)), ("reason", reason)]}
        arrays = [pa.array([row.get(field.name)], field.type) for field in self.arrow_schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self.arrow_schema)


def _seqs(records: Sequence[Record], type_: pa.DataType) -> pa.Array:
    return pa.array([record.seq for record in records], type_)


def _instants(records: Sequence[Record], type_: pa.DataType) -> pa.Array:
    return pc.multiply(pa.array([record.ts for record in records], pa.int64()), 1000).view(type_)


def _metas(records: Sequence[Record], type_: pa.DataType) -> pa.Array:
    metas = [record.meta for record in records]
    if metas.count(None) == len(metas):
        return pa.nulls(len(metas), type_)
    return pa.array([None if meta is None else list(meta.items()) for meta in metas], type_)


def _datas(records: Sequence[Record], type_: pa.DataType) -> pa.Array:
    texts = [bytes(record.data) for record in records]
    if pa.types.is_struct(type_):  # how Arrow carries a variant
        return pa.array([_variant(text) for text in texts], type_)
    return pa.array(texts, pa.binary()).cast(type_)


def _variant(text: bytes) -> dict[str, bytes]:
    value, metadata = VariantUtils.parse_json(text.decode())
    return {"value": value, "metadata": metadata}


_COLUMNS: dict[str, Callable[[Sequence[Record], Any], pa.Array]] = {
    "seq": _seqs,
    "ts": _instants,
    "node": lambda records, type_: pa.array([record.node for record in records], type_),
    "tag": lambda records, type_: pa.array([record.tag for record in records], type_),
    "meta": _metas,
    "data": _datas,
}
