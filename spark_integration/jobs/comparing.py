"""Logs as frames of (seq, ts, id), and what comparing two of them tells. All of it runs in Spark's tasks.

`id` is a hash of what a record carries. Where it names the record in another log, that is said.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from spark_integration.jobs.findings import Block
from spark_integration.jobs.manifest import Lost, joined
from spark_integration.jobs.progress import Place

BLOCKS = 200
ROUTER_KEY = "_topics_router"  # in the meta of copies made exactly once: router:topic:epoch:seq


@contextmanager
def whole_topic(spark: Any, place: Place, topic: str, head: int) -> Iterator[tuple[Any, list[Lost]]]:
    """Every record up to `head`, kept in Spark's memory or on its disks meanwhile, and what is told to be lost."""
    bounds = {"startingOffsets": json.dumps({topic: 1}), "endingOffsets": json.dumps({topic: head + 1})}
    rows = spark.read.format("topics").options(topic=topic, lostAsRows="true", **bounds, **place.options).load()
    rows = rows.persist()
    try:
        told = rows.where("data IS NULL").select("seq", "meta").collect()
        lost = joined([Lost(row.seq, int(row.meta["lost_to"]), row.meta["reason"]) for row in told])
        yield rows.where("data IS NOT NULL"), lost
    finally:
        rows.unpersist()


def content(node: bool = True, tag: bool = True) -> str:
    """SQL of a hash of what a copy carries along."""
    kept = f"array_sort(map_entries(map_filter(meta, (k, v) -> k != '{ROUTER_KEY}')))"
    # An empty meta and none are the same to a reader; NULL is told from '' by a mark in front.
    parts = ["data", f"nullif(to_json({kept}), '[]')", *(["node"] if node else []), *(["tag"] if tag else [])]
    return "md5(concat(" + ", '\\n', ".join(f"coalesce(concat('=', {part}), '-')" for part in parts) + "))"


def block_size(head: int) -> int:
    return max(1, -(-head // BLOCKS))


def blocks(rows: Any, size: int) -> list[Block]:
    """What is in every block of so many seqs, in their order."""
    cut = rows.selectExpr("seq", "unix_millis(ts) AS ts", f"(seq - 1) div {size} AS block")
    looked = "lag({0}) OVER (PARTITION BY block ORDER BY seq, ts) AS before_{0}"
    paired = cut.selectExpr("*", looked.format("seq"), looked.format("ts"))
    counted = paired.groupBy("block").agg(
        *_sql("count(*) AS records", "count_if(before_seq = seq) AS repeated"),
        *_sql("count_if(before_ts > ts) AS unordered", "min(ts) AS first_ts", "max(ts) AS last_ts"),
    )
    found = counted.orderBy("block").collect()
    return [
        Block(row.block * size + 1, row.records, row.repeated, row.unordered, row.first_ts, row.last_ts)
        for row in found
    ]


@dataclass(frozen=True)
class Difference:
    """Of rows (seq, id) that should be the same by their seqs."""

    only_left: int
    only_right: int
    changed: int


def difference(left: Any, right: Any) -> Difference:
    ours, theirs = left.selectExpr("seq", "id AS ours"), right.selectExpr("seq", "id AS theirs")
    row = (
        ours.join(theirs, "seq", "full")
        .agg(
            *_sql("count_if(theirs IS NULL) AS only_left", "count_if(ours IS NULL) AS only_right"),
            *_sql("count_if(ours != theirs) AS changed"),
        )
        .first()
    )
    return Difference(row.only_left, row.only_right, row.changed)


@dataclass(frozen=True)
class Match:
    """Of a source's records and a destination's."""

    matched: int
    missing: int
    waiting: int
    doubled: int
    alone: int
    unordered: int


def match(source: Any, dest: Any, size: int) -> Match:
    """Rows of (seq, id) on both sides, the n-th of an id there being the copy of the n-th here."""
    numbered = "row_number() OVER (PARTITION BY id ORDER BY seq) AS nth"
    several = "count(*) OVER (PARTITION BY id) AS of_id"
    left = source.selectExpr("id", "seq AS source", numbered, f"{several}_here")
    right = dest.selectExpr("id", "seq AS dest", numbered, f"{several}_there")
    pairs = left.join(right, ["id", "nth"], "full").persist()
    try:
        whole = "source IS NOT NULL AND dest IS NOT NULL"
        edges = pairs.where(whole).selectExpr("min(source)", "max(source)", "count(*)").first()
        first, last, matched = edges[0] or 0, edges[1] or 0, edges[2]
        row = pairs.agg(
            *_sql(f"count_if(dest IS NULL AND source > {first} AND source < {last}) AS missing"),
            *_sql(f"count_if(dest IS NULL AND source > {last}) AS waiting"),
            *_sql("count_if(source IS NULL AND nth > 1) AS doubled"),
            *_sql("count_if(source IS NULL AND nth = 1) AS alone"),
        ).first()
        unique = pairs.where(f"{whole} AND of_id_here = 1 AND of_id_there = 1")
        return Match(matched, row.missing, row.waiting, row.doubled, row.alone, _inversions(unique, size))
    finally:
        pairs.unpersist()


def _inversions(pairs: Any, size: int) -> int:
    """Of (source, dest): how often a later source has an earlier dest than the one in front of it."""
    cut = pairs.selectExpr("source", "dest", f"(source - 1) div {size} AS block")
    paired = cut.selectExpr("*", "lag(dest) OVER (PARTITION BY block ORDER BY source) AS before")
    counted = paired.groupBy("block").agg(
        *_sql("count_if(before > dest) AS inversions", "min_by(dest, source) AS low", "max_by(dest, source) AS high")
    )
    found = counted.orderBy("block").collect()
    over_edges = sum(right.low < left.high for left, right in pairwise(found))
    return int(over_edges + sum(row.inversions for row in found))


def _sql(*expressions: str) -> list[Any]:
    from pyspark.sql import functions

    return [functions.expr(expression) for expression in expressions]
