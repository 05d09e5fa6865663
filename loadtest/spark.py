"""`make bench-spark`: records/s through Spark, beside the same data in Parquet and through the plain client.

Every reading is checked: rows, and the sum of what is in them. Spark runs in this machine's cores, as does the server.
"""

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from loadtest import forms
from loadtest.processor import seconds_by_pid, us_per_record
from spark_integration.session import QUIET, spark_session
from topics.client import Client
from topics.testing.server import Server

BATCH = 5000
SUM_OF_N = "sum(CAST(get_json_object(data, '$.n') AS BIGINT))"


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench-spark", description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3, help="the best one counts")
    arguments = parser.parse_args()
    forms.show()
    folder = Path(tempfile.mkdtemp(prefix="bench-spark-"))
    try:
        with Server(folder / "server", shards=2, gateways=2) as server:
            server.start().wait_ready()
            Bench(server.url, folder, arguments.records, arguments.cores, arguments.rounds).run()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Bench:
    def __init__(self, url: str, folder: Path, records: int, cores: int, rounds: int) -> None:
        self._url = url
        self._parquet = str(folder / "parquet")
        self._records = records
        self._rounds = rounds
        self._spark = spark_session("bench", f"local[{cores}]", QUIET)
        self._spark.sparkContext.setLogLevel("ERROR")

    def run(self) -> None:
        print(f"{self._records:,} records of about 90 bytes, the best of {self._rounds} rounds", flush=True)
        self._show("plain client, append", self._client_append)
        self._show("plain client, diff", self._client_read)
        self._show("Spark, batch read and nothing else", self._spark_take)
        for partitions in (1, 2, 4, 8):
            self._show(f"Spark, batch read, {partitions} partitions", partial(self._spark_read, partitions))
        self._rows("events", 4).write.mode("overwrite").parquet(self._parquet)
        self._show("Spark, read of the same rows in Parquet", self._parquet_read)
        for partitions in (1, 2, 4):
            self._show(f"Spark, batch write, {partitions} partitions", partial(self._spark_write, partitions))
        self._spark.stop()

    def _show(self, what: str, work: Callable[[], None]) -> None:
        """Records/s of the best round, and the processor time of a record in that with the least."""
        times, used = [], []
        for _ in range(self._rounds):
            before = seconds_by_pid()
            times.append(_seconds(work))
            used.append(us_per_record(before, seconds_by_pid(), self._records))
        least = min(used, key=lambda each: sum(each.values()))
        told = "  ".join(f"{name} {us:.1f}" for name, us in least.items() if us >= 0.05)
        print(f"{what:<42}{self._records / min(times):>10,.0f} records/s   µs: {told}", flush=True)

    def _client_append(self) -> None:
        with Client(self._url) as client:
            client.remove_topic("events")
            for low in range(0, self._records, BATCH):
                numbers = range(low, min(low + BATCH, self._records))
                client.append("events", [{"data": {"n": n, "url": f"s3://bucket/image-{n}.png"}} for n in numbers])

    def _client_read(self) -> None:
        with Client(self._url) as client:
            after = found = 0
            while after < self._records:
                page = client.diff("events", after, limit=10_000, bulk=True, max_batch_bytes=8 << 20)
                found += len(page["records"])
                after = page["next_from_seq"]
        assert found == self._records, found

    def _rows(self, topic: str, partitions: int) -> Any:
        size = -(-self._records // partitions)
        options = {"url": self._url, "topic": topic, "minPartitions": partitions, "maxRecordsPerPartition": size}
        return self._spark.read.format("topics").options(**options).load()

    def _spark_take(self) -> None:
        """The rows come to Spark and are dropped there."""
        self._rows("events", 2).write.format("noop").mode("overwrite").save()

    def _spark_read(self, partitions: int) -> None:
        self._check(self._rows("events", partitions))

    def _parquet_read(self) -> None:
        self._check(self._spark.read.parquet(self._parquet))

    def _check(self, rows: Any) -> None:
        found = rows.selectExpr("count(*) AS rows", f"{SUM_OF_N} AS total").first()
        assert found.rows == self._records, found
        assert found.total == self._records * (self._records - 1) // 2, found

    def _spark_write(self, partitions: int) -> None:
        with Client(self._url) as client:
            client.remove_topic("written")
            rows = self._spark.range(0, self._records, 1, partitions)
            texts = rows.selectExpr("to_json(struct(id AS n, concat('s3://bucket/image-', id, '.png') AS url)) AS data")
            texts.write.format("topics").mode("append").options(url=self._url, topic="written").save()
            assert client.state("written")["count"] == self._records


def _seconds(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
