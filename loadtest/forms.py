"""In which form many records travel cheapest: processor time per record of those who make it and those who take it.

Part of `make bench-spark`. Forms that the API does not have are made here from the same blocks as those that it has, so
that the choice can be checked again. Processor time, not time: what else the machine does matters less.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial

import msgspec
import pyarrow as pa

from spark_integration.pages import Batches, Record, decode_page, schema
from spark_integration.records import record_texts
from topics.core.block import Block
from topics.core.render import render_blocks
from topics.core.requests import RecordIn, decode_append
from topics.limits import Limits

RECORDS = 10_000
ROUNDS = 20
TS = 1_794_829_709_670
DATAS = [b'{"n":%d,"url":"s3://bucket/image-%d.png"}' % (n, n) for n in range(RECORDS)]
DATA_LEAD = len(b',"data":')

_records = msgspec.json.Decoder(RecordIn)
_shown = msgspec.json.Decoder(Record)
_values = msgspec.json.Decoder(list[msgspec.Raw])
_batches = Batches(schema("string"))


def cost_us(work: Callable[[], object]) -> float:
    """Processor time of one record, of the best round."""
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.process_time()
        work()
        best = min(best, time.process_time() - began)
    return best / RECORDS * 1e6


def show() -> None:
    print(f"\nProcessor time in µs for a record, pages and batches of {RECORDS:,} records of about 90 bytes")
    print(f"{'read as':<44}{'server':>8}{'reader':>8}")
    blocks = render_blocks(_decoded(_json_batch()), None, 1, TS)
    for name, make, take in (
        ("the body of a diff (kept)", _diff_body, _from_diff),
        ("JSON lines", _json_lines, _from_lines),
        ("an Arrow IPC stream", _arrow, _from_arrow),
    ):
        body = make(blocks)
        assert take(body).column("data").to_pylist() == [data.decode() for data in DATAS]
        print(f"{name:<44}{cost_us(partial(make, blocks)):>8.2f}{cost_us(partial(take, body)):>8.2f}")
    print(f"{'append as':<44}{'writer':>8}{'server':>8}")
    for name, make_body, check in (
        ("a JSON batch (kept)", _json_batch, _decoded),
        ("JSON lines of records", _record_lines, _decoded_lines),
        ("JSON lines of data alone", _data_lines, _decoded_values),
    ):
        body = make_body()
        assert [bytes(record.data) for record in check(body)] == DATAS
        print(f"{name:<44}{cost_us(make_body):>8.2f}{cost_us(partial(_taken, check, body)):>8.2f}")


def _taken(check: Callable[[bytes], Sequence[RecordIn]], body: bytes) -> list[Block]:
    return render_blocks(check(body), None, 1, TS)


# --- reading: from blocks to bytes, and from bytes to an Arrow batch --------------------------------------------------


def _diff_body(blocks: Sequence[Block]) -> bytes:
    texts = b",".join(block.text for block in blocks)
    return b'{"records":[%b],"next_from_seq":%d,"head_seq":%d}' % (texts, RECORDS, RECORDS)


def _from_diff(body: bytes) -> pa.RecordBatch:
    return _batches.batch("t", decode_page(body).records)


def _json_lines(blocks: Sequence[Block]) -> bytes:
    return b"\n".join([block.record(index) for block in blocks for index in range(len(block))])


def _from_lines(body: bytes) -> pa.RecordBatch:
    return _batches.batch("t", _shown.decode_lines(body))


def _arrow(blocks: Sequence[Block]) -> bytes:
    datas: list[bytes] = []
    seqs: list[int] = []
    times: list[int] = []
    for block in blocks:
        text, start = bytes(block.text), 0
        for end, offset in zip(block.ends, block.data_offs, strict=True):
            datas.append(text[start + offset + DATA_LEAD : end - 1])
            start = end + 1
        seqs += range(block.first_seq, block.first_seq + len(block))
        times += [block.base_ts + ts for ts in block.ts]
    columns = {"seq": pa.array(seqs, pa.int64()), "ts": pa.array(times, pa.int64()), "data": pa.array(datas)}
    batch = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return bytes(sink.getvalue())


def _from_arrow(body: bytes) -> pa.RecordBatch:
    batch = pa.ipc.open_stream(body).read_next_batch()
    times = pa.compute.multiply(batch.column("ts"), 1000)
    arrays = []
    for field in _batches.arrow_schema:
        if field.name == "topic":
            arrays.append(pa.repeat(pa.scalar("t", field.type), len(batch)))
        elif field.name == "ts":
            arrays.append(times.view(field.type))
        elif field.name in batch.schema.names:
            arrays.append(batch.column(field.name).cast(field.type))
        else:
            arrays.append(pa.nulls(len(batch), field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=_batches.arrow_schema)


# --- appending: from an Arrow batch to bytes, and from bytes to checked records ---------------------------------------

_BATCH = pa.RecordBatch.from_arrays([pa.array(DATAS, pa.binary()).cast(pa.string())], names=["data"])


def _json_batch() -> bytes:
    return b'{"records":[%b]}' % b",".join(record_texts(_BATCH))


def _record_lines() -> bytes:
    return b"\n".join(record_texts(_BATCH))


def _data_lines() -> bytes:
    return b"\n".join(_BATCH.column("data").cast(pa.binary()).to_pylist())


def _decoded(body: bytes) -> Sequence[RecordIn]:
    return decode_append(body, "t", Limits()).records


def _decoded_lines(body: bytes) -> Sequence[RecordIn]:
    """With the check of each record that any append has."""
    bounds = Limits()
    records = _records.decode_lines(body)
    if any(
        len(record.data) + len(record.meta) > bounds.record_bytes or record.tag or record.node for record in records
    ):
        raise ValueError("a record is too large")
    return records


def _decoded_values(body: bytes) -> Sequence[RecordIn]:
    return [RecordIn(value) for value in _values.decode(b"[%b]" % body.replace(b"\n", b","))]


if __name__ == "__main__":
    show()
