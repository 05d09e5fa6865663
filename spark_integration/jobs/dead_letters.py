"""`dead-letters`: why and when jobs were given up, as a report with plots; and back to a queue with them.

The report is written before anything is moved. Moving is the server's work, which loses none and doubles none; a run
that died is simply run again, and finds what is left.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

from spark_integration.jobs import plots
from spark_integration.jobs.html import page, table
from spark_integration.jobs.progress import Place, Tell, to_stderr
from spark_integration.jobs.storage import Storage
from spark_integration.options import Selection
from spark_integration.server import Topics

SPANS = 60  # into which the time from the first to the last is cut

EXAMPLE_CHARS = 200
REDRIVE_STEP = 1000  # of one call

_WHY = "coalesce(meta['$dead_letter_reason'], 'not told')"
_QUEUE = "coalesce(meta['$dead_letter_from'], 'not told')"
_WHEN = "coalesce(CAST(meta['$dead_letter_last_failure_ts'] AS BIGINT), unix_millis(ts))"


@dataclass(frozen=True)
class Example:
    seq: int
    data: str


@dataclass(frozen=True)
class Group:
    """Jobs of one queue that were given up for one reason."""

    topic: str
    queue: str
    reason: str
    jobs: int
    fewest_deliveries: int | None
    most_deliveries: int | None
    first_ts: int
    last_ts: int
    examples: list[Example] = field(default_factory=list)


@dataclass
class DeadLettersSummary:
    topics: int = 0
    jobs: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    redriven: int = 0
    report: str = ""


@dataclass(frozen=True)
class Redrive:
    """Which dead letters go back, and where."""

    to: str
    tag_prefix: str | None = None
    limit: int | None = None


def dead_letters(
    spark: Any,
    place: Place,
    selection: Selection,
    report: str,
    *,
    redrive: Redrive | None = None,
    tell: Tell = to_stderr,
) -> DeadLettersSummary:
    """Looks at topics of dead letters, writes what it finds to `report`, and moves them to a queue if asked to."""
    with Topics(place.server) as topics:
        found = {topic: bounds for topic, bounds in sorted(topics.bounds(selection).items()) if bounds.head}
        groups = _report(spark, place, list(found), report.rstrip("/"))
        for group in groups:
            tell(f"{group.topic}: {group.jobs} jobs of {group.queue}: {group.reason}")
        reasons: Counter[str] = Counter()
        for group in groups:
            reasons[group.reason] += group.jobs
        moved = 0 if redrive is None else _move(topics, groups, redrive, tell)
    jobs = sum(reasons.values())
    return DeadLettersSummary(len(found), jobs, dict(reasons), moved, f"{report.rstrip('/')}/index.html")


def _report(spark: Any, place: Place, names: Sequence[str], report: str) -> list[Group]:
    groups: list[Group] = []
    times: dict[tuple[str, int], int] = {}
    if names:
        rows = _rows(spark, place, names).persist()
        try:
            groups = _groups(rows)
            times = _times(rows, span_of(groups))
        finally:
            rows.unpersist()
    storage = Storage(spark)
    storage.write_json(f"{report}/dead-letters.json", [asdict(group) for group in groups])
    storage.write_text(f"{report}/index.html", render(groups, times, span_of(groups)))
    return groups


def _move(topics: Topics, groups: Sequence[Group], redrive: Redrive, tell: Tell) -> int:
    """No more than were found: what fails again and comes back meanwhile waits for the next run."""
    moved = 0
    for topic in dict.fromkeys(group.topic for group in groups):
        left = sum(group.jobs for group in groups if group.topic == topic)
        left = left if redrive.limit is None else min(left, redrive.limit - moved)
        while left > 0:
            count = topics.redrive(topic, redrive.to, redrive.tag_prefix, min(left, REDRIVE_STEP))
            if not count:
                break
            moved, left = moved + count, left - count
            tell(f"{topic}: {count} jobs are back in {redrive.to}")
    return moved


# --- by Spark ---------------------------------------------------------------------------------------------------------


def _rows(spark: Any, place: Place, names: Sequence[str]) -> Any:
    options = place.options | {"topics": ",".join(names), "failOnDataLoss": "false"}
    rows = spark.read.format("topics").options(**options).load()
    deliveries = "CAST(meta['$dead_letter_deliveries'] AS INT) AS deliveries"
    return rows.selectExpr(
        "topic", "seq", "data", f"{_QUEUE} AS queue", f"{_WHY} AS reason", f"{_WHEN} AS at", deliveries
    )


def _groups(rows: Any) -> list[Group]:
    from pyspark.sql import functions as f

    shown = f.struct("seq", f.substring("data", 1, EXAMPLE_CHARS).alias("data"))
    counted = rows.groupBy("topic", "queue", "reason").agg(
        f.count("*").alias("jobs"),
        f.min("deliveries").alias("fewest"),
        f.max("deliveries").alias("most"),
        f.min("at").alias("first"),
        f.max("at").alias("last"),
        f.min(shown).alias("oldest"),
        f.max(shown).alias("newest"),
    )
    ordered = counted.orderBy(f.desc("jobs"), "topic", "queue", "reason").collect()
    return [
        Group(
            row.topic, row.queue, row.reason, row.jobs, row.fewest, row.most, row["first"], row["last"], _examples(row)
        )
        for row in ordered
    ]


def _examples(row: Any) -> list[Example]:
    ends = [row.oldest, row.newest] if row.oldest.seq != row.newest.seq else [row.oldest]
    return [Example(one.seq, one.data) for one in ends]


def _times(rows: Any, span: tuple[int, int]) -> dict[tuple[str, int], int]:
    """(reason, index of the span of time) → jobs."""
    first, width = span
    found = rows.selectExpr("reason", f"(at - {first}) div {width} AS span").groupBy("reason", "span").count()
    return {(row.reason, row.span): row["count"] for row in found.collect()}


# --- the report -------------------------------------------------------------------------------------------------------


def span_of(groups: Sequence[Group]) -> tuple[int, int]:
    """When the first span begins and how long each is, in milliseconds."""
    if not groups:
        return 0, 1
    first, last = min(group.first_ts for group in groups), max(group.last_ts for group in groups)
    return first, (last - first) // SPANS + 1


def render(groups: Sequence[Group], times: Mapping[tuple[str, int], int], span: tuple[int, int]) -> str:
    names = ("topic", "queue", "reason", "jobs", "deliveries", "first", "last", "examples")
    first, width = span
    series = {
        reason: [(float(first + width * index), float(times.get((reason, index), 0))) for index in range(SPANS)]
        for reason in dict.fromkeys(group.reason for group in groups)
    }
    total = sum(group.jobs for group in groups)
    return page(
        "Dead letters",
        f"<h1>{total:,} dead letters</h1>",
        table(names, [_row(group) for group in groups]),
        "<h2>Why</h2>",
        plots.bars([(f"{group.queue}: {group.reason}", group.jobs) for group in groups]),
        f"<h2>When</h2><p>Jobs for every {width / 1000:,.0f} s, by their last failure.</p>",
        plots.lines(series, "time", "jobs"),
    )


def _row(group: Group) -> list[object]:
    deliveries = f"{group.fewest_deliveries} to {group.most_deliveries}" if group.most_deliveries else ""
    examples = "; ".join(f"seq {one.seq}: {one.data}" for one in group.examples)
    times = (moment(group.first_ts), moment(group.last_ts))
    return [group.topic, group.queue, group.reason, group.jobs, deliveries, *times, examples]


def moment(ts: int) -> str:
    return datetime.fromtimestamp(ts / 1000, UTC).isoformat(sep=" ", timespec="seconds")
