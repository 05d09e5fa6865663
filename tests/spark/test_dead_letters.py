"""Dead letters of real queues."""

import json

import pytest

from spark_integration.jobs.dead_letters import Group, dead_letters, span_of
from spark_integration.jobs.progress import Place
from spark_integration.options import Selection
from tests.spark.frames import everything
from topics.testing.server import wait_until


@pytest.fixture
def place(server):
    return Place(server.url)


def give_up(topics, queue, jobs) -> None:
    """Lets a queue give up jobs: each is delivered once, given back, and asked for again."""
    topics.put_topic(queue, type="queue", max_deliveries=1, dead_letter=f"{queue}.dead")
    topics.append(queue, [{"data": {"n": n}} for n in range(jobs)])
    held = topics.claim(queue, "w", max=jobs)
    topics.nack(queue, "w", held)
    topics.claim(queue, "w", max=jobs)
    wait_until(lambda: topics.state(queue)["queue"]["dead_lettered"] == jobs, f"{jobs} dead letters", 60)


def test_the_report_tells_of_which_queue_why_and_when(spark, place, topics, name, tmp_path):
    give_up(topics, f"{name}.a", 30)
    give_up(topics, f"{name}.b", 7)
    topics.append(f"{name}.b.dead", [{"data": "by <hand>"}])
    told: list[str] = []
    chosen = Selection((), f"{name}\\..\\.dead")
    summary = dead_letters(spark, place, chosen, str(tmp_path / "report"), tell=told.append)
    assert (summary.topics, summary.jobs, sum(summary.reasons.values())) == (2, 38, 38)
    groups = json.loads((tmp_path / "report" / "dead-letters.json").read_text())
    assert [(one["topic"], one["queue"], one["jobs"]) for one in groups] == [
        (f"{name}.a.dead", f"{name}.a", 30),
        (f"{name}.b.dead", f"{name}.b", 7),
        (f"{name}.b.dead", "not told", 1),
    ]
    assert (groups[0]["fewest_deliveries"], groups[0]["most_deliveries"]) == (1, 1)
    dead = everything(topics, f"{name}.a.dead")
    assert [json.loads(one["data"]) for one in groups[0]["examples"]] == [dead[0]["data"], dead[-1]["data"]]
    assert told[0].startswith(f"{name}.a.dead: 30 jobs of {name}.a: ")
    page = (tmp_path / "report" / "index.html").read_text()
    assert "38 dead letters" in page
    assert "by &lt;hand&gt;" in page
    assert page.count("<svg") == 2


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
