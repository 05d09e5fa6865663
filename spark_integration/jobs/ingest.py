"""`ingest`: files of CSV, JSON lines or Parquet into topics. Files that come later are taken by the next run.

It is a stream with a checkpoint, so a run that died goes on, and no file is taken twice. JSON lines are appended as
they are; rows of other files become JSON objects.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spark_integration.jobs.progress import Place, Tell, to_stderr

FILES_PER_BATCH = 1000
# enforceSchema=false has Spark compare the header of a file that comes while the job begins, too.
_CSV = {"header": "true", "inferSchema": "true", "enforceSchema": "false"}


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
    return _followed(writer.trigger(availableNow=True).start(), tell)


def _followed(query: Any, tell: Tell) -> IngestSummary:
    """To its end, batch by batch: Spark keeps the progress of the last hundred."""
    summary, told, ended = IngestSummary(), 0, False
    while not ended:
        ended = query.awaitTermination(1)
        for progress in query.recentProgress:
            if progress.batchId < told or not progress.numInputRows:
                continue
            told = progress.batchId + 1
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
    chosen = {**_CSV, **options} if kind == "csv" else dict(options)
    if kind == "csv" and chosen["header"] == "true":
        _check_headers(spark, files)
    schema = spark.read.format(kind).options(**chosen).load(files).schema
    stream = spark.readStream.format(kind).options(**chosen).option("maxFilesPerTrigger", FILES_PER_BATCH)
    return stream.schema(schema).load(files)


def _check_headers(spark: Any, files: str) -> None:
    """Spark would put values of a file with other columns, or in another order, under the names of another file.

    A header that is only written in another way would be taken for values when their types are found out.
    """
    from pyspark.sql.functions import expr

    lines = spark.read.text(files).where("trim(value) != '' AND _metadata.file_block_start = 0")
    numbered = lines.selectExpr("_metadata.file_path AS file", "value", "monotonically_increasing_id() AS line")
    first = numbered.groupBy("file").agg(expr("min_by(value, line) AS header"))
    found = first.groupBy("header").agg(expr("min(file) AS file")).orderBy("file").limit(2).collect()
    if len(found) > 1:
        one, other = (f"{row.file} has {row.header}" for row in found)
        raise ValueError(f"CSV files that are ingested together need the same header; {one}, {other}")
