"""The audit of one topic: itself, its archive, and what routers copied from it."""

from typing import Any

from spark_integration.jobs.comparing import ROUTER_KEY, block_size, blocks, content, difference, match, whole_topic
from spark_integration.jobs.findings import Archived, Copied, Finding, Log, range_gaps, range_overlaps
from spark_integration.jobs.manifest import Archive, Entry, joined
from spark_integration.jobs.progress import Place
from spark_integration.jobs.storage import Storage
from spark_integration.server import Topics

COLUMNS = ("seq", "ts", "node", "tag", "meta", "data")


def look_at(spark: Any, place: Place, topics: Topics, topic: str, held: Archive | None) -> Finding:
    head = topics.bounds_of(topic).head
    with whole_topic(spark, place, topic, head) as (rows, lost):
        log = Log(topic, head, block_size(head), blocks(rows, block_size(head)), lost)
        known, archived = rows.select(*COLUMNS), None
        entries = [] if held is None else held.entries(topic)
        if held is not None and entries:
            there = _Files(spark, held, entries, known.schema)
            archived = _archived(log, known, there)
            known = known.unionByName(there.rows.join(known.select("seq"), "seq", "left_anti").select(*COLUMNS))
        gone = max(0, log.absent + log.lost_seqs - (archived.only_here if archived else 0))
        copies = [_copied(spark, place, topics, router, known, gone) for router in topics.routers_from(topic)]
    return Finding(topic, log, archived, copies)


# --- the archive ------------------------------------------------------------------------------------------------------


class _Files:
    """What is behind the ranges of a manifest."""

    def __init__(self, spark: Any, held: Archive, entries: list[Entry], schema: Any) -> None:
        storage = Storage(spark)
        self.entries = entries
        self._named = [entry for entry in entries if entry.records]
        self.without = [entry.range for entry in self._named if not storage.exists(held.folder(entry))]
        self._there = [entry for entry in self._named if entry.range not in self.without]
        folders = [held.folder(entry) for entry in self._there]
        if folders:
            reader = spark.read.schema(schema).option("basePath", folders[0].rsplit("/", 1)[0])
            self.rows = reader.parquet(*folders)
        else:
            self.rows = spark.createDataFrame([], schema).selectExpr("*", "'' AS range")

    def miscounted(self) -> list[str]:
        """Ranges with another number of records than they say."""
        counted = self.rows.groupBy("range").agg({"seq": "count"}).collect()
        found = {row["range"]: row["count(seq)"] for row in counted}
        return [entry.range for entry in self._there if found.get(entry.range, 0) != entry.records]


def _archived(log: Log, rows: Any, there: _Files) -> Archived:
    first, last = there.entries[0].first, there.entries[-1].last
    identity = f"{content()} AS id"
    within = rows.where(f"seq BETWEEN {first} AND {last}").selectExpr("seq", identity)
    found = difference(within, there.rows.selectExpr("seq", identity))
    lost = joined([lost for entry in there.entries for lost in entry.lost])
    size = block_size(last)
    return Archived(
        log=Log(f"archive of {log.name}", last, size, blocks(there.rows, size), lost),
        gaps=range_gaps(there.entries),
        overlaps=range_overlaps(there.entries),
        without_files=there.without,
        miscounted=there.miscounted(),
        missing=found.only_left,
        changed=found.changed,
        only_here=found.only_right,
    )


# --- copies -----------------------------------------------------------------------------------------------------------


def _copied(spark: Any, place: Place, topics: Topics, router: dict[str, Any], known: Any, gone: int) -> Copied:
    dest = str(router["dest"])
    head = topics.bounds_of(dest).head
    size = block_size(head)
    same = content(router["preserve_node"], router["preserve_tag"])
    passed = known.where(_condition(router["filter"]))
    with whole_topic(spark, place, dest, head) as (rows, lost):
        if router["guarantee"] == "exactly_once":
            key = f"meta['{ROUTER_KEY}']"
            source = passed.selectExpr("seq", f"concat(seq, ' ', {same}) AS id")
            named = f"concat(element_at(split({key}, ':'), -1), ' ', {same}) AS id"
            copies = rows.where(f"{key} IS NOT NULL").selectExpr("seq", named)
        else:
            source, copies = (frame.selectExpr("seq", f"{same} AS id") for frame in (passed, rows))
        found = match(source, copies, size)
        log = Log(f"{dest} by {router['router']}", head, size, blocks(rows, size), lost)
    return Copied(
        router=router["router"],
        log=log,
        matched=found.matched,
        missing=found.missing,
        waiting=found.waiting,
        doubled=found.doubled,
        alone=found.alone,
        unordered=found.unordered,
        source_gone=gone,
    )


def _condition(filter: Any) -> str:
    """A router's filter, as the server gives it back, as SQL."""
    if filter is None:
        return "true"
    field, how, value = filter
    text = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"{field} = '{text}'" if how == "Eq" else f"startswith({field}, '{text.removesuffix('*')}')"
