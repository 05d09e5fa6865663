"""Writes, batch and stream. Every partition appends its rows in order, chunk by chunk.

A chunk's idempotency key is made of the write it belongs to, its partition, its place and a hash of its content. So a
task that is tried again, or a batch that a restarted query repeats, does not append the same chunk twice within the
topic's idempotency window; and because the content counts, rows that arrive cut in another way are appended rather than
taken for duplicates. The worst case is a record twice, never a record lost; and not even that for rows that have a
`dedup_key`.
"""

import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from spark_integration.options import WriteOptions
from spark_integration.records import Chunk, Chunks
from spark_integration.server import Topics


@dataclass
class Written(WriterCommitMessage):
    """What one partition has sent; `repeated` are records of chunks that were there already."""

    records: int = 0
    repeated: int = 0


class _Answer(msgspec.Struct):
    deduped: bool = False


_answer = msgspec.json.Decoder(_Answer).decode


def append_rows(options: WriteOptions, write: str, batches: Iterator[pa.RecordBatch]) -> Written:
    fields = {"create": options.create, "config": options.config}
    fields = {name: value for name, value in fields.items() if value is not None}
    chunks = Chunks(options.topic, options.batch_records)
    written = Written()
    with Topics(options.server) as topics:

        def append(chunk: Chunk) -> None:
            answer = _answer(topics.append(chunk.topic, chunk.body(write, fields)))
            written.records += len(chunk.texts)
            written.repeated += len(chunk.texts) if answer.deduped else 0

        for batch in batches:
            for chunk in chunks.add(batch):
                append(chunk)
        for chunk in chunks.rest():
            append(chunk)
    return written


def _task() -> TaskContext:
    task = TaskContext.get()
    assert task is not None, "records are written by tasks"
    return task


class TopicsWriter(DataSourceArrowWriter):
    """What tasks have appended stays when the job fails: a topic has no transactions over several appends."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._options = options
        self._write = options.txn or uuid.uuid4().hex  # one for all attempts of all tasks

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return append_rows(self._options, f"{self._write}\0{_task().partitionId()}", iterator)


class TopicsStreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        task = _task()
        query = task.getLocalProperty("sql.streaming.queryId")
        batch = task.getLocalProperty("streaming.sql.batchId")
        assert query, "a stream's tasks know their query"
        assert batch, "and their batch"
        return append_rows(self._options, f"{query}\0{batch}\0{task.partitionId()}", iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing to do: what was appended is there."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing to do: the batch comes again, and its chunks are known by their keys."""
