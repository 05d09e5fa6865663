"""`archive`: topics into partitioned Parquet, every record once, however often the job is stopped and started.

A step is a range of seqs. Its Parquet files are written, looked at and then named in the manifest; until then they do
not count, and a crash before that repeats the step. Deleting from the topic comes last, and only up to what the
manifest names.
"""

import json
from dataclasses import dataclass, replace
from typing import Any

from spark_integration.jobs.manifest import Archive, Entry, Lost, joined
from spark_integration.jobs.progress import Place, Tell, to_stderr
from spark_integration.jobs.storage import Storage
from spark_integration.options import Selection
from spark_integration.planning import Bounds
from spark_integration.server import Topics

STEP_RECORDS = 1_000_000
LOST = "lost"  # in place of a date


class CannotArchive(Exception):
    """The topic and its archive do not fit together."""


@dataclass
class ArchiveSummary:
    topics: int = 0
    steps: int = 0
    records: int = 0
    lost: int = 0
    deleted: int = 0


def archive(
    spark: Any,
    place: Place,
    selection: Selection,
    root: str,
    *,
    delete: bool = False,
    step_records: int = STEP_RECORDS,
    min_partitions: int = 1,
    tell: Tell = to_stderr,
) -> ArchiveSummary:
    """Everything that the topics have now and the archive at `root` does not."""
    held = Archive(Storage(spark), root)
    summary = ArchiveSummary()
    with Topics(place.server) as topics:
        for topic, bounds in sorted(topics.bounds(selection).items()):
            summary.topics += 1
            held.remove_strays(topic)
            created = topics.created(topic)
            last = _archived_to(held, topic, bounds, created)
            while last < bounds.head:
                until = min(bounds.head, last + step_records)
                draft = Entry(topic, last + 1, until, 0, None, None, created=created)
                entry = _step(spark, place, held, draft, min_partitions)
                last = entry.last
                summary.steps += 1
                summary.records += entry.records
                summary.lost += sum(lost.last - lost.first + 1 for lost in entry.lost)
                tell(f"{topic}: seq {entry.first} to {entry.last} of {bounds.head}, {entry.records} records archived")
            if delete and last:
                summary.deleted += topics.delete_before(topic, last + 1)
    return summary


def _archived_to(held: Archive, topic: str, bounds: Bounds, created: int | None) -> int:
    entries = held.entries(topic)
    if not entries:
        return bounds.earliest - 1  # what was gone before the first run is nobody's loss
    last = entries[-1].last
    if bounds.head < last or entries[-1].created not in (None, created):
        raise CannotArchive(
            f"{topic} was made anew: its head is {bounds.head}, its archive goes to {last}. Use another folder."
        )
    return last


def _step(spark: Any, place: Place, held: Archive, draft: Entry, min_partitions: int) -> Entry:
    storage = Storage(spark)
    folder = held.folder(draft)
    options = place.options | {
        "topic": draft.topic,
        "startingOffsets": _position(draft.topic, draft.first),
        "endingOffsets": _position(draft.topic, draft.last + 1),
        "minPartitions": str(min_partitions),
        "lostAsRows": "true",
    }
    rows = spark.read.format("topics").options(**options).load().drop("topic")
    dated = rows.selectExpr("*", f"coalesce(date_format(ts, 'yyyy-MM-dd'), '{LOST}') AS date")
    dated.write.mode("overwrite").partitionBy("date").parquet(folder)
    entry = replace(draft, lost=_take_lost(spark, storage, folder))
    if any(name.startswith("date=") for name in storage.names(folder)):
        found = spark.read.schema(rows.schema).parquet(folder)
        count, first_ts, last_ts = found.selectExpr("count(*)", "unix_millis(min(ts))", "unix_millis(max(ts))").first()
        entry = replace(entry, records=count, first_ts=first_ts, last_ts=last_ts)
    held.add(entry)
    return entry


def _take_lost(spark: Any, storage: Storage, folder: str) -> list[Lost]:
    """What the read found gone, which goes into the manifest and not into the data."""
    place = f"{folder}/date={LOST}"
    if not storage.exists(place):
        return []
    rows = spark.read.parquet(place).select("seq", "meta").collect()
    storage.remove(place)
    return joined([Lost(row.seq, int(row.meta["lost_to"]), row.meta["reason"]) for row in rows])


def _position(topic: str, seq: int) -> str:
    return json.dumps({topic: seq})
