"""Dead letters of real queues."""

import json

import pytest

from spark_integration.jobs.dead_letters import Group, Redrive, dead_letters, span_of
from spark_integration.jobs.progress import Place
from spark_integration.options import Selection
from spark_integration.server import Refused
from tests.spark.frames import everything
from topics.testing.server import wait_until


@pytest.fixture
def place(server):
    return Place(server.url)


def give_up(topics, queue, jobs, reason) -> None:
    """Lets a queue give up jobs: each is delivered once, given back, and asked for again."""
    topics.put_topic(queue, type="queue", max_deliveries=1, dead_letter=f"{queue}.dead")
    topics.append(queue, [{"data": {"n": n}, "tag": f"{'even' if n % 2 == 0 else 'odd'}:{n}"} for n in range(jobs)])
    held = topics.claim(queue, "w", max=jobs)
    topics.nack(queue, "w", held, reason=reason)
    topics.claim(queue, "w", max=jobs)
    wait_until(lambda: topics.state(queue)["queue"]["dead_lettered"] == jobs, f"{jobs} dead letters", 60)


def test_the_report_tells_of_which_queue_why_and_when(spark, place, topics, name, tmp_path):
    give_up(topics, f"{name}.a", 30, "disk is full")
    give_up(topics, f"{name}.b", 7, "no <such> file")
    topics.append(f"{name}.b.dead", [{"data": "by <hand>"}])
    told: list[str] = []
    chosen = Selection((), f"{name}\\..\\.dead")
    summary = dead_letters(spark, place, chosen, str(tmp_path / "report"), tell=told.append)
    assert (summary.topics, summary.jobs, summary.redriven) == (2, 38, 0)
    assert summary.reasons == {"disk is full": 30, "no <such> file": 7, "not told": 1}
    groups = json.loads((tmp_path / "report" / "dead-letters.json").read_text())
    assert [(one["topic"], one["queue"], one["reason"], one["jobs"]) for one in groups] == [
        (f"{name}.a.dead", f"{name}.a", "disk is full", 30),
        (f"{name}.b.dead", f"{name}.b", "no <such> file", 7),
        (f"{name}.b.dead", "not told", "not told", 1),
    ]
    assert (groups[0]["fewest_deliveries"], groups[0]["most_deliveries"]) == (1, 1)
    dead = everything(topics, f"{name}.a.dead")
    assert [json.loads(one["data"]) for one in groups[0]["examples"]] == [dead[0]["data"], dead[-1]["data"]]
    assert told[0] == f"{name}.a.dead: 30 jobs of {name}.a: disk is full"
    page = (tmp_path / "report" / "index.html").read_text()
    assert "38 dead letters" in page
    assert "by &lt;hand&gt;" in page
    assert "no &lt;such&gt; file" in page
    failed = [int(record["meta"]["$dead_letter_last_failure_ts"]) for record in dead]
    assert (groups[0]["first_ts"], groups[0]["last_ts"]) == (min(failed), max(failed))
    assert page.count("<svg") == 2


def test_they_go_back_as_many_as_are_wanted(spark, place, topics, name, tmp_path):
    give_up(topics, name, 20, "later")
    told: list[str] = []
    only = Selection((f"{name}.dead",), None)

    def run(**redrive) -> int:
        summary = dead_letters(spark, place, only, str(tmp_path), redrive=Redrive(name, **redrive), tell=told.append)
        return summary.redriven

    assert run(tag_prefix="odd:") == 10
    left = everything(topics, f"{name}.dead")
    assert [record["$tag"].split(":")[0] for record in left] == ["even"] * 10
    assert [run(limit=3), run(), run()] == [3, 7, 0]
    assert told[-1] == f"{name}.dead: 7 jobs are back in {name}"
    assert sorted(record["data"]["n"] for record in everything(topics, name)) == list(range(20))


def test_a_redrive_to_what_is_no_queue_is_refused(spark, place, topics, name, tmp_path):
    give_up(topics, name, 1, "later")
    only, nowhere = Selection((f"{name}.dead",), None), Redrive(f"{name}.nowhere")
    with pytest.raises(Refused, match=f"topic '{name}.nowhere' does not exist"):
        dead_letters(spark, place, only, str(tmp_path), redrive=nowhere)
    assert (tmp_path / "index.html").exists()


def test_no_dead_letters_are_a_report_too(spark, place, topics, name, tmp_path):
    topics.put_topic(name)
    summary = dead_letters(spark, place, Selection((name,), None), str(tmp_path))
    assert (summary.jobs, summary.reasons) == (0, {})
    assert "0 dead letters" in (tmp_path / "index.html").read_text()


def test_spans_cover_all_times():
    assert span_of([]) == (0, 1)
    for first, last in ((5, 5), (100, 159), (100, 160), (1_000_000, 99_999_999)):
        start, width = span_of([Group("t", "q", "r", 1, 1, 1, first, last)])
        assert start == first
        assert (last - start) // width < 60
