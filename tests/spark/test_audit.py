"""Audits of real topics, archives and copies: sound ones, and ones that were damaged on purpose."""

import json
import shutil

import pytest

from spark_integration.jobs import audit as job
from spark_integration.jobs.archive import archive
from spark_integration.jobs.audit import audit
from spark_integration.jobs.audit_report import shares
from spark_integration.jobs.comparing import match
from spark_integration.jobs.findings import Block, Copied, Log
from spark_integration.jobs.manifest import Lost
from spark_integration.jobs.progress import Place
from spark_integration.options import Selection
from tests.spark.frames import fill
from topics.testing.server import wait_until


@pytest.fixture
def place(server):
    return Place(server.url)


def quiet(_: str) -> None:
    pass


def copied(topics, router, count) -> None:
    wait_until(lambda: topics.router(router)["forwarded_total"] >= count, f"{count} copies by {router}", 60)


def found_in(report, topic) -> dict:
    return next(one for one in json.loads((report / "audit.json").read_text()) if one["topic"] == topic)


def test_a_sound_topic_with_its_archive_and_copies(spark, place, topics, name, tmp_path):
    """Losses, deletes, duplicates in content, a filter, copies of both guarantees: and nothing is wrong."""
    topic, report = f"{name}.in", tmp_path / "report"
    topics.put_topic(topic, cap_records=900)
    topics.put_router(f"{name}-once", topic, f"{name}.once", guarantee="exactly_once", preserve_tag=False)
    topics.put_router(f"{name}-some", topic, f"{name}.some", filter=["tag", "Glob", "odd:*"])
    fill(topics, topic, range(600))
    archive(spark, place, Selection((topic,), None), str(tmp_path / "archive"), step_records=400, tell=quiet)
    fill(topics, topic, range(500))
    copied(topics, f"{name}-once", 1100)
    copied(topics, f"{name}-some", 550)
    topics.delete(topic, match=["tag", "Glob", "odd:3*"])
    topics.delete(f"{name}.once", before_seq=11)
    told: list[str] = []
    only = Selection((topic,), None)
    summary = audit(spark, place, only, str(report), root=str(tmp_path / "archive"), tell=told.append)
    state = topics.state(topic)
    found = found_in(report, topic)
    assert found["problems"] == []
    assert (summary.problems, summary.records, summary.archived) == (0, state["count"], 600)
    assert told == [f"{topic}: {state['count']} records, 0 problems"]
    assert found["log"]["lost"] == [{"first": 1, "last": 200, "reason": "cap"}]
    assert (found["archived"]["missing"], found["archived"]["changed"]) == (0, 0)
    once, some = found["copies"]
    deleted = 1100 - 200 - state["count"]
    not_known = sum(n >= 300 and str(n).startswith("3") and n % 2 for n in range(500)) + sum(
        n < 100 and str(n).startswith("3") and n % 2 for n in range(500)
    )
    assert deleted > not_known > 0
    assert (once["matched"], once["missing"], once["alone"]) == (1090 - not_known, 0, not_known)
    assert (some["missing"], some["waiting"], some["unordered"]) == (0, 0, 0)
    assert some["matched"] + some["doubled"] + some["alone"] == 550
    page = (report / "index.html").read_text()
    assert "No problems." in page
    assert page.count("<svg") == 2
    assert 'fill="#c1121f"' in page  # what was lost


def test_what_is_wrong_is_found(spark, place, topics, name, tmp_path):
    root, report = tmp_path / "archive", tmp_path / "report"
    only = Selection((name,), None)
    topics.put_router(f"{name}-copy", name, f"{name}.copy")
    fill(topics, name, range(500))
    archive(spark, place, only, str(root), step_records=100, tell=quiet)
    copied(topics, f"{name}-copy", 500)
    data, manifest = root / "data" / f"topic={name}", root / "_manifest" / name
    ranges = sorted(folder.name for folder in data.iterdir())
    shutil.rmtree(data / ranges[0])
    (manifest / f"{ranges[1].removeprefix('range=')}.json").unlink()
    for file in (data / ranges[3]).rglob("*.parquet"):
        shutil.copy(file, file.with_name("part-again.parquet"))
    topics.append(f"{name}.copy", [{"data": {"n": 400}}, {"data": {"n": 400}}])  # by hand, beside the router
    topics.append(f"{name}.copy", [{"data": {"strange": 1}}])
    summary = audit(spark, place, only, str(report), root=str(root), tell=quiet)
    assert found_in(report, name)["problems"] == [
        f"archive of {name}: 100 seqs are there more than once",
        f"archive of {name}: no range covers seq 101 to 200",
        f"archive of {name}: the files of range {ranges[0].removeprefix('range=')} are gone",
        f"archive of {name}: range {ranges[3].removeprefix('range=')} has not as many records as its manifest says",
        f"archive of {name}: 200 records of the topic are missing",
        f"{name}.copy by {name}-copy: 2 copies are doubled",
    ]
    assert summary.problems == 6
    assert "2 copies are doubled" in (report / "index.html").read_text()
    assert found_in(report, name)["copies"][0]["alone"] == 1


def test_an_audit_that_died_goes_on_with_the_next_topic(spark, place, topics, name, tmp_path, monkeypatch):
    for part in ("a", "b"):
        fill(topics, f"{name}.{part}", range(10))
    every, report = Selection((), f"{name}\\..*"), tmp_path / "report"

    def die(_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(job, "page", die)
        with pytest.raises(KeyboardInterrupt):
            audit(spark, place, every, str(report), tell=quiet)
    told: list[str] = []
    (report / "topics" / f"{name}.b.json").unlink()
    first = audit(spark, place, every, str(report), tell=told.append)
    assert (first.topics, first.records) == (2, 20)
    assert told == [f"{name}.a: looked at by the run before", f"{name}.b: 10 records, 0 problems"]
    fill(topics, f"{name}.a", range(10, 15))
    assert audit(spark, place, every, str(report), tell=told.append).records == 25  # another audit


def test_matching_tells_missing_from_waiting_and_finds_disorder(spark):
    def frame(ids):
        return spark.createDataFrame(list(enumerate(ids, 1)), "seq LONG, id STRING")

    found = match(frame("xabcadez"), frame("abaced"), 3)
    assert (found.matched, found.missing, found.waiting) == (6, 0, 1)
    assert (found.doubled, found.alone, found.unordered) == (0, 0, 1)
    found = match(frame("abcde"), frame("abbeq"), 2)
    assert (found.matched, found.missing, found.doubled, found.alone) == (3, 2, 1, 1)


def log(**fields) -> Log:
    return Log(**{"name": "t", "head": 20, "block_size": 10, **fields})


def test_order_is_checked_within_blocks_and_between_them():
    steady = [Block(1, 10, 0, 0, 100, 200), Block(11, 10, 0, 0, 200, 300)]
    assert list(log(blocks=steady).problems()) == []
    back = [Block(1, 10, 0, 1, 100, 200), Block(11, 10, 0, 0, 150, 300)]
    assert list(log(blocks=back).problems()) == ["t: 2 records are of an earlier time than the one in front of them"]
    assert next(log(blocks=steady, lost=[Lost(1, 5, "cap")]).problems()).startswith("t: 5 records are there that are")


def test_copies_that_are_gone_excuse_missing_ones_but_no_more():
    blocks = [Block(1, 10, 0, 0, 1, 2), Block(11, 6, 0, 0, 3, 4)]
    fields = {"matched": 16, "waiting": 0, "doubled": 0, "alone": 0, "unordered": 0, "source_gone": 0}
    for missing, said in ((4, []), (5, ["t: 5 records have no copy, and only 4 copies are gone"])):
        assert list(Copied("r", log(blocks=blocks), missing=missing, **fields).problems()) == said


def test_shares_of_blocks():
    found = shares(log(head=25, blocks=[Block(11, 5, 0, 0, 1, 2)], lost=[Lost(1, 12, "ttl")]))
    assert found == [(0, 1), (0.5, 0.2), (0, 0)]
