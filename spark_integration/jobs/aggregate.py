"""`aggregate`: counts and quantiles per topic, tag and window of time, into a topic or into Parquet.

Three ways to run. `batch` takes everything from the beginning to now, with every window. `once` takes what is new since
the run before and gives out the windows that are closed: those that end before the watermark, which stays `watermark`
behind the newest record seen. `follow` is `once` that stays. A closed window is given out once and never changed;
records that come for it later are counted as late.

A checkpoint folder is one aggregation. It keeps its name, its settings, and how far it is, so a run that died is
repeated with the same rows in the same order: the folder in Parquet is written over, the appends have keys.
"""

import json
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from spark_integration.jobs.progress import Place, Tell, to_stderr
from spark_integration.jobs.storage import Storage
from spark_integration.jobs.windows import Measure, as_records, windows
from spark_integration.options import BadOption, Selection
from spark_integration.pages import schema
from spark_integration.planning import Bounds
from spark_integration.server import Topics

BATCH, ONCE, FOLLOW = "batch", "once", "follow"
DAY_MS = 86_400_000


@dataclass
class AggregateSummary:
    batches: int = 0
    records: int = 0
    windows: int = 0
    late: int = 0


@dataclass(frozen=True)
class Into:
    """Where windows go: a topic or a folder of Parquet."""

    topic: str | None = None
    folder: str | None = None

    def __post_init__(self) -> None:
        if (self.topic is None) == (self.folder is None):
            raise BadOption("give a topic or a folder for the result: one of them")


@dataclass(frozen=True)
class Plan:
    """What an aggregation is; a run with the same checkpoint has to mean the same."""

    selection: Selection
    into: Into
    measure: Measure = field(default_factory=Measure)
    mode: str = ONCE
    watermark: str = "1 minute"
    per_batch: int | None = None  # records of one batch of a stream
    interval: str = "10 seconds"  # between batches of `follow`


def aggregate(
    spark: Any,
    place: Place,
    plan: Plan,
    checkpoint: str,
    *,
    tell: Tell = to_stderr,
    stop_when: Callable[[], bool] | None = None,
) -> AggregateSummary:
    """Runs until there is no more; `follow` until it is interrupted or `stop_when()`, asked every second, is true."""
    if plan.mode not in (BATCH, ONCE, FOLLOW):
        raise BadOption(f"mode must be {BATCH}, {ONCE} or {FOLLOW}, not {plan.mode!r}")
    run = _Run(spark, place, plan, checkpoint.rstrip("/"), tell)
    return run.batch() if plan.mode == BATCH else run.stream(stop_when)


class _Run:
    def __init__(self, spark: Any, place: Place, plan: Plan, checkpoint: str, tell: Tell) -> None:
        self._spark = spark
        self._place = place
        self._plan = plan
        self._storage = Storage(spark)
        self._checkpoint = checkpoint
        self._tell = tell
        self._name = self._remember()
        self._told = 0  # batches of the stream
        self.summary = AggregateSummary()

    def _remember(self) -> str:
        """The name of this aggregation, which is part of the keys of its appends."""
        file = f"{self._checkpoint}/aggregation.json"
        meaning = _meaning(self._plan)
        if self._storage.exists(file):
            known = self._storage.read_json(file)
            for setting, value in meaning.items():
                if known[setting] != json.loads(json.dumps(value)):
                    raise BadOption(
                        f"{self._checkpoint} is of another aggregation: its {setting} is {known[setting]}, not {value}"
                    )
            return str(known["name"])
        self._check()
        name = uuid.uuid4().hex
        self._storage.write_json(file, {"name": name, **meaning})
        return name

    def _check(self) -> None:
        """Before it is remembered: what cannot be run must not be in the way of the next try."""
        with Topics(self._place.server) as topics:
            topics.bounds(self._plan.selection)
        none = self._spark.createDataFrame([], schema("string"))
        windows(none.withWatermark("ts", self._plan.watermark), self._plan.measure)

    # --- all at once ----------------------------------------------------------------------------------------------

    def batch(self) -> AggregateSummary:
        done = f"{self._checkpoint}/done.json"
        if self._storage.exists(done):
            self._tell("this aggregation was finished before; another checkpoint makes another one")
            return AggregateSummary(**self._storage.read_json(done))
        bounds = self._bounds()
        with_records = {topic: one for topic, one in bounds.items() if one.head >= one.earliest}
        if with_records:
            self._put(windows(self._rows(with_records), self._plan.measure), 0)
        self._storage.write_json(done, asdict(self.summary))
        return self.summary

    def _rows(self, bounds: dict[str, Bounds]) -> Any:
        options = self._place.options | {
            "topics": ",".join(bounds),
            "startingOffsets": json.dumps({topic: one.earliest for topic, one in bounds.items()}),
            "endingOffsets": json.dumps({topic: one.head + 1 for topic, one in bounds.items()}),
        }
        return self._spark.read.format("topics").options(**options).load()

    def _bounds(self) -> dict[str, Bounds]:
        """Fixed by the first run, so that one that died gives the same windows again."""
        file = f"{self._checkpoint}/bounds.json"
        if self._storage.exists(file):
            return {topic: Bounds(*edges) for topic, edges in self._storage.read_json(file).items()}
        with Topics(self._place.server) as topics:
            bounds = topics.bounds(self._plan.selection)
        self._storage.write_json(file, {topic: [one.earliest, one.head] for topic, one in bounds.items()})
        return bounds

    # --- as a stream ----------------------------------------------------------------------------------------------

    def stream(self, stop_when: Callable[[], bool] | None) -> AggregateSummary:
        plan = self._plan
        options = self._place.options | _selected(plan.selection) | {"startingOffsets": "earliest"}
        if plan.per_batch is not None:
            options["maxOffsetsPerTrigger"] = str(plan.per_batch)
        rows = self._spark.readStream.format("topics").options(**options).load()
        found = windows(rows.withWatermark("ts", plan.watermark), plan.measure)
        trigger = {"processingTime": plan.interval} if plan.mode == FOLLOW else {"availableNow": True}
        writer = found.writeStream.outputMode("append").foreachBatch(self._put)
        query = writer.option("checkpointLocation", f"{self._checkpoint}/stream").trigger(**trigger).start()
        try:
            while not query.awaitTermination(1):
                self._note(query)
                if stop_when is not None and stop_when():
                    break
        except KeyboardInterrupt:
            self._tell("interrupted; the next run goes on from here")
        finally:
            query.stop()
        self._note(query)
        return self.summary

    def _note(self, query: Any) -> None:
        """Spark keeps the last hundred batches; those that were not told yet are told now."""
        for progress in query.recentProgress:
            if progress.batchId < self._told or not progress.numInputRows:
                continue
            self._told = progress.batchId + 1
            late = sum(operator.numRowsDroppedByWatermark for operator in progress.stateOperators)
            self.summary.batches += 1
            self.summary.records += progress.numInputRows
            self.summary.late += late
            self._tell(f"batch {progress.batchId}: {progress.numInputRows} records read, {late} of them late")

    # --- giving out -----------------------------------------------------------------------------------------------

    def _put(self, rows: Any, batch: int) -> None:
        """The windows of one batch, in an order that depends on them alone: repeated, it leaves the same behind."""
        ordered = rows.orderBy("window_start", "topic", "tag").coalesce(1).persist()
        try:
            count = ordered.count()
            if count and self._plan.into.folder is not None:
                folder = f"{self._plan.into.folder.rstrip('/')}/batch={batch:010}"
                ordered.write.mode("overwrite").parquet(folder)
            elif count:
                self._append(ordered, batch)
            if self._plan.mode == BATCH:
                read = ordered.selectExpr("sum(count)").first()[0] or 0
                self.summary.records, self.summary.batches = read, 1
                self._tell(f"{read} records read")
            self.summary.windows += count
            self._tell(f"batch {batch}: {count} windows written")
        finally:
            ordered.unpersist()

    def _append(self, ordered: Any, batch: int) -> None:
        options = self._place.options | {
            "topic": str(self._plan.into.topic),
            "config": json.dumps({"idempotency_window_ms": DAY_MS}),
            "txnAppId": f"aggregate:{self._name}",
            "txnVersion": str(batch),
        }
        as_records(ordered).write.format("topics").mode("append").options(**options).save()


def _meaning(plan: Plan) -> dict[str, Any]:
    every = asdict(plan)
    same = {name: every[name] for name in ("selection", "into", "measure", "watermark")}
    return same | {"stream": plan.mode != BATCH}


def _selected(selection: Selection) -> dict[str, str]:
    return {"topicPattern": selection.pattern} if selection.pattern else {"topics": ",".join(selection.names)}
