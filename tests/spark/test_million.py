"""A million records, end to end: written by Spark, archived, copied as a stream; every row checked by other means."""

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset
import pytest

from spark_integration.jobs.archive import archive
from spark_integration.jobs.progress import Place
from spark_integration.options import Selection
from topics.client import Client

RECORDS = 1_000_000
DATA = "to_json(struct(id AS n, concat('image-', id, '.png') AS file)) AS data"


def rows_of(topics: Client, topic: str) -> pa.Table:
    """(seq, n) of every record, by the plain client. Seqs have to be complete, and each record what was written."""
    seqs, numbers = [], []
    after = 0
    while after < RECORDS:
        page = topics.diff(topic, after, limit=10_000, bulk=True, max_batch_bytes=8 << 20)
        for record in page["records"]:
            seqs.append(record["$seq"])
            numbers.append(record["data"]["n"])
            assert record["data"]["file"] == f"image-{numbers[-1]}.png"
        after = page["next_from_seq"]
    assert page["caught_up"]
    assert seqs == list(range(1, RECORDS + 1))
    return pa.table({"seq": seqs, "n": numbers})


def archived_rows(folder: str) -> pa.Table:
    """The same, from the Parquet files, without Spark."""
    found = pyarrow.dataset.dataset(folder, format="parquet", partitioning=None).to_table(columns=["seq", "data"])
    numbers = pc.struct_field(pc.extract_regex(found["data"], r'^\{"n":(?P<n>\d+),"file":"image-\d+\.png"\}$'), "n")
    return pa.table({"seq": found["seq"], "n": pc.cast(numbers, pa.int64())}).sort_by("seq")


def assert_every_number_once(rows: pa.Table) -> None:
    assert rows.sort_by("n")["n"].to_pylist() == list(range(RECORDS))


@pytest.mark.slow
def test_a_million_records_arrive_once_each_everywhere(spark, server, topics, name, tmp_path):
    frame = spark.range(0, RECORDS, 1, 2).selectExpr(DATA)
    frame.write.format("topics").mode("append").options(url=server.url, topic=name, batchSize=10_000).save()
    written = rows_of(topics, name)
    assert_every_number_once(written)

    told: list[str] = []
    only = Selection((name,), None)
    summary = archive(spark, Place(server.url), only, str(tmp_path / "archive"), step_records=600_000, tell=told.append)
    assert (summary.steps, summary.records, summary.lost) == (2, RECORDS, 0)
    assert archived_rows(str(tmp_path / "archive" / "data")).equals(written)

    options = {"url": server.url, "topic": name, "startingOffsets": "earliest", "maxOffsetsPerTrigger": 400_000}
    read = spark.readStream.format("topics").options(**options).load().select("data")
    sink = read.writeStream.format("topics").options(url=server.url, topic=f"{name}.copy", batchSize=10_000)
    query = sink.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()
    query.awaitTermination()
    assert [progress.numInputRows for progress in query.recentProgress] == [400_000, 400_000, 200_000]
    assert_every_number_once(rows_of(topics, f"{name}.copy"))
