"""`ingest`: files of CSV, JSON lines or Parquet into topics. Files that come later are taken by the next run.

It is a stream with a checkpoint, so a run that died goes on, and no file is taken twice. JSON lines are appended as
they are; rows of other files become JSON objects.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spark_integration.jobs.progress import Place, Tell, to_stderr

FILES_PER_BATCH = 1000


@dataclass
class IngestSummary:
    batches: int = 0
    rows: int = 0  # that were read; empty lines of JSON are none, but counted


def ingest(
    spark: Any,
    place: Place,
    files: str,
    kind: str,
    checkpoint: str,
    *,
    topic: str | None = None,
    topic_column: str | None = None,
    tag_column: str | None = None,
    options: Mapping[str, str] | None = None,
    tell: Tell = to_stderr,
) -> IngestSummary:
    """Every file under `files` that has not been taken yet. The topic is given, or a column of each row names it."""
    if (topic is None) == (topic_column is None):
        raise ValueError("give a topic or the column that names it: one of them")
    rows = _json_lines(spark, files) if kind == "json" else _rows(spark, files, kind, options or {})
    whole = "value" if kind == "json" else "to_json(struct(*))"
    wanted = [f"{whole} AS data"]
    for name, column in (("topic", topic_column), ("tag", tag_column)):
        if column is not None:
            found = f"get_json_object(value, '$.{column}')" if kind == "json" else f"CAST(`{column}` AS STRING)"
            wanted.append(f"{found} AS {name}")
    sink = place.options | {"checkpointLocation": checkpoint} | ({"topic": topic} if topic is not None else {})
    writer = rows.selectExpr(*wanted).writeStream.format("topics").options(**sink)
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    summary = IngestSummary()
    for progress in query.recentProgress:
        if progress.numInputRows:
            summary.batches += 1
            summary.rows += progress.numInputRows
            tell(f"batch {progress.batchId}: {progress.numInputRows} rows")
    return summary


def _json_lines(spark: Any, files: str) -> Any:
    rows = spark.readStream.format("text").option("maxFilesPerTrigger", FILES_PER_BATCH).load(files)
    return rows.where("trim(value) != ''")


def _rows(spark: Any, files: str, kind: str, options: Mapping[str, str]) -> Any:
    """A stream of files has to know its columns; they are those of the files that are there now."""
    if kind not in ("csv", "parquet"):
        raise ValueError(f"files are csv, json or parquet, not {kind!r}")
    chosen = {"header": "true", "inferSchema": "true", **options} if kind == "csv" else dict(options)
    schema = spark.read.format(kind).options(**chosen).load(files).schema
    stream = spark.readStream.format(kind).options(**chosen).option("maxFilesPerTrigger", FILES_PER_BATCH)
    return stream.schema(schema).load(files)
