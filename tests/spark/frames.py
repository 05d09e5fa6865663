"""What the tests of the connector share: a small Spark, ways to fill a topic and to read one."""

import json
from collections.abc import Iterable
from typing import Any

from spark_integration.session import QUIET
from topics.client import Client

CONF = QUIET | {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.streaming.metricsEnabled": "false",
}


LONG_MEMORY = '{"idempotency_window_ms": 3600000}'  # of a sink's topic: a restart may take minutes on a busy machine


def fill(topics: Client, topic: str, numbers: Iterable[int], **fields: Any) -> None:
    """Appends {"n": …} with tags, nodes and metas on some."""
    records = []
    for n in numbers:
        record: dict[str, Any] = {"data": {"n": n}}
        if n % 2:
            record["tag"] = f"odd:{n}"
        if n % 3 == 0:
            record |= {"node": "three", "meta": {"by": "three", "n": str(n)}}
        records.append(record)
    for low in range(0, len(records), 1000):
        topics.append(topic, records[low : low + 1000], **fields)


def everything(topics: Client, topic: str) -> list[dict[str, Any]]:
    """All records of a topic by the plain client."""
    found: list[dict[str, Any]] = []
    after = 0
    while True:
        page = topics.diff(topic, after, limit=1000, include_tags=True)
        found += page["records"]
        after = page["next_from_seq"]
        if page["caught_up"]:
            return found


def numbers_of(topics: Client, topic: str) -> list[int]:
    return [record["data"]["n"] for record in everything(topics, topic)]


def source(spark: Any, server: Any, **options: Any) -> Any:
    """A batch reader with options."""
    return spark.read.format("topics").options(url=server.url, **options)


def numbers(frame: Any) -> list[int]:
    """The n of each row's data, in the order of topic and seq."""
    return [json.loads(row.data)["n"] for row in frame.orderBy("topic", "seq").collect()]
