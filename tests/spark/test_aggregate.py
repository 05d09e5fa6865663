"""Windows by Spark, checked against windows counted by hand from what the plain client reads."""

import math
from collections import defaultdict

import pytest

from spark_integration.jobs.aggregate import FOLLOW, Into, Plan, aggregate
from spark_integration.jobs.progress import Place
from spark_integration.jobs.windows import Measure, quantile_name
from spark_integration.options import BadOption, Selection
from tests.spark.frames import everything, fill

WINDOW_MS = 100
MEASURE = Measure(window="100 milliseconds", value="$.n", quantiles=(0.5, 0.9))


@pytest.fixture
def place(server):
    return Place(server.url)


def expected(topics, *names, window_ms=WINDOW_MS) -> dict:
    """(topic, tag, start) → what is in the window, by hand."""
    found = defaultdict(list)
    for name in names:
        for record in everything(topics, name):
            start = record["$ts"] // window_ms * window_ms
            found[name, record.get("$tag"), start].append((record["$seq"], record["data"]["n"]))
    return {key: measured(rows) for key, rows in found.items()}


def measured(rows) -> dict:
    numbers = sorted(n for _, n in rows)
    found = {"count": len(rows), "first_seq": rows[0][0], "last_seq": rows[-1][0], "values": len(rows)}
    found |= {"sum": sum(numbers), "min": numbers[0], "max": numbers[-1]}
    return found | {quantile_name(q): numbers[max(0, math.ceil(q * len(numbers)) - 1)] for q in MEASURE.quantiles}


def of_topic(topics, name) -> dict:
    """What an aggregation has appended, in the same form."""
    found = {}
    for record in everything(topics, name):
        data = record["data"]
        assert data["window_end"] - data["window_start"] == WINDOW_MS
        assert record.get("$tag") == data.get("tag")
        key = data["topic"], data.get("tag"), data["window_start"]
        assert key not in found, "a window that was given out twice"
        found[key] = {name: data[name] for name in measured([(1, 1)])}
    return found


def few_tags(topics, topic, numbers) -> None:
    topics.append(topic, [{"data": {"n": n}, **({"tag": f"t{n % 3}"} if n % 3 else {})} for n in numbers])


def test_a_batch_has_every_window_and_is_done_once(spark, place, topics, name, tmp_path):
    both = f"{name}.a", f"{name}.b"
    for low in range(0, 400, 100):
        for topic in both:
            few_tags(topics, topic, range(low, low + 100))
    plan = Plan(Selection(both, None), Into(topic=f"{name}.out"), MEASURE, mode="batch")
    told: list[str] = []
    summary = aggregate(spark, place, plan, str(tmp_path / "c"), tell=told.append)
    wanted = expected(topics, *both)
    assert of_topic(topics, f"{name}.out") == wanted
    assert (summary.records, summary.windows) == (800, len(wanted))
    assert told == ["800 records read", f"batch 0: {len(wanted)} windows written"]

    few_tags(topics, both[0], range(10))
    assert aggregate(spark, place, plan, str(tmp_path / "c"), tell=told.append) == summary
    (tmp_path / "c" / "done.json").unlink()  # as if it had died before the last step
    assert aggregate(spark, place, plan, str(tmp_path / "c"), tell=told.append) == summary
    assert of_topic(topics, f"{name}.out") == wanted


def test_a_stream_gives_out_closed_windows_once_over_restarts(spark, place, topics, name, tmp_path, monkeypatch):
    plan = Plan(Selection((name,), None), Into(folder=str(tmp_path / "out")), MEASURE, watermark="0 seconds")
    state = str(tmp_path / "c")
    few_tags(topics, name, range(200))
    first = aggregate(spark, place, plan, state, tell=lambda _: None)
    assert (first.records, first.late) == (200, 0)
    die_once(monkeypatch)
    few_tags(topics, name, range(200, 300))
    with pytest.raises(Exception, match="died on purpose"):
        aggregate(spark, place, plan, state, tell=lambda _: None)
    few_tags(topics, name, range(300, 310))
    last = aggregate(spark, place, plan, state, tell=lambda _: None)
    assert last.late == 0
    wanted = expected(topics, name)
    newest = max(start for _, _, start in wanted)
    frame = spark.read.parquet(str(tmp_path / "out"))
    rows = frame.selectExpr("*", "unix_millis(window_start) AS start").collect()
    found = {(row.topic, row.tag, row.start): {name: row[name] for name in measured([(1, 1)])} for row in rows}
    assert len(found) == len(rows)
    assert found == {key: value for key, value in wanted.items() if key[2] < newest}  # that one is open

    with pytest.raises(BadOption, match="another aggregation: its watermark is 0 seconds"):
        aggregate(spark, place, Plan(plan.selection, plan.into, MEASURE), state)


def die_once(monkeypatch) -> None:
    """The next windows are written, but the stream does not live to note it."""
    from spark_integration.jobs.aggregate import _Run

    put = _Run._put
    left = [1]

    def put_and_die(self, rows, batch):
        put(self, rows, batch)
        if left:
            left.pop()
            raise RuntimeError("died on purpose")

    monkeypatch.setattr(_Run, "_put", put_and_die)


def test_a_stream_that_follows_takes_what_comes(spark, place, topics, name, tmp_path):
    plan = Plan(
        Selection((), f"{name}\\.in.*"),
        Into(topic=f"{name}.out"),
        Measure(window="1 millisecond", by_tag=False),
        mode=FOLLOW,
        watermark="0 seconds",
        interval="0 seconds",
    )
    fill(topics, f"{name}.in1", range(50))
    told: list[str] = []

    def enough() -> bool:
        if not any("records read" in line for line in told):
            return False
        if not any(topic["topic"] == f"{name}.in2" for topic in topics.topics(f"{name}.in2")):
            fill(topics, f"{name}.in2", range(50))
        return any(topic["count"] for topic in topics.topics(f"{name}.out"))

    summary = aggregate(spark, place, plan, str(tmp_path / "c"), tell=told.append, stop_when=enough)
    assert summary.records == 100
    counted = [record["data"]["count"] for record in everything(topics, f"{name}.out")]
    assert 50 <= sum(counted) <= 100


def test_what_is_no_number_does_not_count_as_a_value(spark, place, topics, name, tmp_path):
    topics.append(name, [{"data": {"n": 1}}, {"data": {"n": "2.5"}}, {"data": {"n": "x"}}, {"data": 7}])
    measure = Measure(window="1 hour", value="$.n", quantiles=(0.999,))
    aggregate(spark, place, Plan(Selection((name,), None), Into(topic=f"{name}.out"), measure, "batch"), str(tmp_path))
    found = [record["data"] for record in everything(topics, f"{name}.out")]
    assert sum(data["count"] for data in found) == 4
    assert sum(data["values"] for data in found) == 2
    assert sum(data["sum"] for data in found) == 3.5
    assert max(data["p99_9"] for data in found) == 2.5


def test_settings_that_make_no_sense_are_refused(spark, place):
    for make in (
        lambda: Measure(value="amount"),
        lambda: Measure(value="$.a') --"),
        lambda: Measure(quantiles=(50,)),
        lambda: Into(),
        lambda: Into("a", "b"),
    ):
        with pytest.raises(BadOption):
            make()
    plan = Plan(Selection(("t",), None), Into(topic="o"), mode="sometimes")
    with pytest.raises(BadOption, match="mode must be"):
        aggregate(spark, place, plan, "x")


def test_what_cannot_be_run_is_not_remembered(spark, place, topics, name, tmp_path):
    fill(topics, name, range(3))
    none, only, into = Selection((f"{name}.none",), None), Selection((name,), None), Into(topic=f"{name}.out")
    for wrong, said in (
        (Plan(none, into, mode="batch"), "none' does not exist at http"),
        (Plan(only, into, Measure(window="1 foo"), mode="batch"), "CANNOT_PARSE_INTERVAL"),
        (Plan(only, into, mode="batch", watermark="soon"), "soon"),
    ):
        with pytest.raises(Exception, match=said):
            aggregate(spark, place, wrong, str(tmp_path / "c"))
    assert aggregate(spark, place, Plan(only, into, mode="batch"), str(tmp_path / "c")).records == 3
