"""`replay`: an archive back into a topic, in the order of its seqs.

Ranges are appended one after the other, each by one task. A range that is done is noted beside the archive under the
target's name, so that another run goes on behind it. A run that died within a range repeats it: its appends have keys,
so what is there already is not appended again within the topic's idempotency window, which is a day for a topic that
the job makes itself.
"""

import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from spark_integration.jobs.comparing import ROUTER_KEY
from spark_integration.jobs.manifest import Archive
from spark_integration.jobs.progress import Place, Tell, to_stderr
from spark_integration.jobs.storage import Storage

DAY_MS = 86_400_000
# By its key a router knows its own copies; the server takes one from nobody else.
META = f"map_filter(meta, (k, v) -> k != '{ROUTER_KEY}') AS meta"


@dataclass
class ReplaySummary:
    ranges: int = 0
    skipped: int = 0
    records: int = 0


def replay(
    spark: Any,
    place: Place,
    root: str,
    topic: str,
    target: str,
    *,
    first: int = 0,
    last: int | None = None,
    name: str = "replay",
    tell: Tell = to_stderr,
) -> ReplaySummary:
    """Archived records of `topic` from seq `first` to `last` into `target`. Another `name` is another replay."""
    storage = Storage(spark)
    held = Archive(storage, root)
    entries = held.entries(topic)
    if not entries:
        known = ", ".join(held.topics()) or "nothing"
        raise FileNotFoundError(f"the archive {root} has no topic {topic!r}; it has {known}")
    run = f"{name}:{first}:{'' if last is None else last}"
    done = f"{held.root}/_replayed/{quote(target, safe='')}/{quote(topic, safe='')}/{quote(run, safe='')}"
    summary = ReplaySummary()
    for entry in entries:
        if entry.last < first or (last is not None and entry.first > last) or not entry.records:
            continue
        mark = f"{done}/{entry.range}.json"
        if storage.exists(mark):
            summary.skipped += 1
            continue
        rows = spark.read.parquet(held.folder(entry)).where(f"seq >= {first}")
        rows = rows if last is None else rows.where(f"seq <= {last}")
        options = place.options | {
            "topic": target,
            "config": json.dumps({"idempotency_window_ms": DAY_MS}),
            "txnAppId": f"{run}:{topic}",
            "txnVersion": entry.range,
        }
        ordered = rows.selectExpr("seq", "node", "tag", META, "data").orderBy("seq").coalesce(1)
        ordered.write.format("topics").mode("append").options(**options).save()
        storage.write_json(mark, {"first": entry.first, "last": entry.last})
        summary.ranges += 1
        summary.records += rows.count()
        tell(f"{target}: seq {entry.first} to {entry.last} of {topic} replayed")
    return summary
