"""The pipeline's jobs against a real server, with the crashes they are made for."""

import json
from types import SimpleNamespace

import pytest

from spark_integration.jobs.archive import CannotArchive, archive
from spark_integration.jobs.ingest import IngestSummary, _followed, ingest
from spark_integration.jobs.manifest import Archive, Lost, joined
from spark_integration.jobs.progress import Place
from spark_integration.jobs.replay import replay
from spark_integration.jobs.storage import Storage
from spark_integration.options import Selection
from tests.spark.frames import everything, fill, numbers_of
from topics.testing.server import wait_until


@pytest.fixture
def place(server):
    return Place(server.url)


@pytest.fixture
def told():
    return []


def kept(spark, root, topic) -> list[int]:
    """The n of every archived record, in the order of seqs, from what a plain reader of Parquet sees."""
    frame = spark.read.parquet(f"{root}/data").where(f"topic = '{topic}'").orderBy("seq")
    return [json.loads(row.data)["n"] for row in frame.collect()]


def test_an_archive_grows_by_what_is_new_and_comes_back_as_it_was(spark, place, topics, name, tmp_path, told):
    topic, root = f"{name}:a", str(tmp_path / "archive")
    only = Selection((topic,), None)
    fill(topics, topic, range(1000))
    topics.delete(topic, match=["tag", "Glob", "odd:1*"])
    first = archive(spark, place, only, root, step_records=400, tell=told.append)
    assert (first.steps, first.records) == (3, len(numbers_of(topics, topic)))
    assert told[0].startswith(f"{topic}: seq 1 to 400 of 1000, ")
    fill(topics, topic, range(1000, 1100))
    expected = everything(topics, topic)
    again = archive(spark, place, only, root, delete=True, tell=told.append)
    assert (again.steps, again.records, again.deleted) == (1, 100, len(expected))
    assert everything(topics, topic) == []
    assert archive(spark, place, only, root, tell=told.append).steps == 0
    assert kept(spark, root, topic) == [record["data"]["n"] for record in expected]

    back = replay(spark, place, root, topic, f"{name}.back", tell=told.append)
    assert (back.ranges, back.records) == (4, len(expected))
    assert replay(spark, place, root, topic, f"{name}.back", tell=told.append).skipped == 4
    without_place = [{key: record[key] for key in record if key not in ("$seq", "$ts")} for record in expected]
    got = everything(topics, f"{name}.back")
    assert [{key: record[key] for key in record if key not in ("$seq", "$ts")} for record in got] == without_place


def test_what_was_lost_before_it_was_archived_stands_in_the_manifest(spark, place, topics, name, tmp_path, told):
    root, only = str(tmp_path / "archive"), Selection((name,), None)
    topics.put_topic(name, cap_records=50)
    fill(topics, name, range(40))
    archive(spark, place, only, root, tell=told.append)
    fill(topics, name, range(40, 200))
    summary = archive(spark, place, only, root, min_partitions=3, tell=told.append)
    assert (summary.records, summary.lost) == (50, 110)
    entries = Archive(Storage(spark), root).entries(name)
    assert [(entry.first, entry.last, entry.records) for entry in entries] == [(1, 40, 40), (41, 200, 50)]
    assert entries[1].lost == [Lost(41, 150, "cap")]
    assert kept(spark, root, name) == [*range(40), *range(150, 200)]
    topics.remove_topic(name)
    fill(topics, name, range(10))
    with pytest.raises(CannotArchive, match="was made anew: its head is 10, its archive goes to 200"):
        archive(spark, place, only, root, tell=told.append)
    fill(topics, name, range(10, 300))
    with pytest.raises(CannotArchive, match="was made anew: its head is 300, its archive goes to 200"):
        archive(spark, place, only, root, delete=True, tell=told.append)
    assert numbers_of(topics, name) == list(range(300))


def test_a_step_that_died_before_its_manifest_is_done_again(spark, place, topics, name, tmp_path, told, monkeypatch):
    root, only = str(tmp_path / "archive"), Selection((name,), None)
    fill(topics, name, range(300))

    def die(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Archive, "add", die)
        with pytest.raises(KeyboardInterrupt):
            archive(spark, place, only, root, tell=told.append)
    fill(topics, name, range(300, 320))  # so that the range is another one now
    assert archive(spark, place, only, root, tell=told.append).records == 320
    assert kept(spark, root, name) == list(range(320))


def test_a_replay_that_died_before_its_mark_appends_nothing_twice(spark, place, topics, name, tmp_path, monkeypatch):
    root = str(tmp_path / "archive")
    fill(topics, name, range(50))
    archive(spark, place, Selection((name,), None), root)
    with monkeypatch.context() as patched:
        patched.setattr(Storage, "write_json", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            replay(spark, place, root, name, f"{name}.back")
    replay(spark, place, root, name, f"{name}.back")
    assert numbers_of(topics, f"{name}.back") == list(range(50))
    part = replay(spark, place, root, name, f"{name}.part", first=11, last=20)
    assert part.records == 10
    assert numbers_of(topics, f"{name}.part") == list(range(10, 20))
    with pytest.raises(FileNotFoundError, match=f"has no topic 'other'; it has {name}"):
        replay(spark, place, root, "other", "x")


def test_copies_that_a_router_made_exactly_once_are_replayed_without_its_keys(spark, place, topics, name, tmp_path):
    """The server takes those keys from routers alone."""
    topics.put_topic(name)
    topics.put_router(f"{name}-r", name, f"{name}.copy", guarantee="exactly_once")
    fill(topics, name, range(10))
    wait_until(lambda: topics.router(f"{name}-r")["forwarded_total"] >= 10, "10 copies", 60)
    archive(spark, place, Selection((f"{name}.copy",), None), str(tmp_path))
    assert replay(spark, place, str(tmp_path), f"{name}.copy", f"{name}.again").records == 10
    parts = ("data", "meta", "$tag", "$node")
    found, wanted = (
        [[record.get(part) or None for part in parts] for record in everything(topics, topic)]
        for topic in (f"{name}.again", name)
    )
    assert found == wanted


def test_files_are_ingested_once_each(spark, place, topics, name, tmp_path, told):
    lines, table = tmp_path / "lines", tmp_path / "table"
    lines.mkdir()
    table.mkdir()
    options = {"topic_column": "to", "tag_column": "n", "tell": told.append}
    folders = (str(lines), "json", str(tmp_path / "c1"))
    (lines / "a.jsonl").write_text(f'{{"n": 1.0,  "to": "{name}.x"}}\n\n{{"n": 2, "to": "{name}.y"}}\n')
    assert ingest(spark, place, *folders, **options).rows == 3  # one is empty
    (lines / "b.jsonl").write_text(f'{{"n": 3, "to": "{name}.x"}}\n')
    assert ingest(spark, place, *folders, **options).rows == 1
    assert [record["$tag"] for record in everything(topics, f"{name}.x")] == ["1.0", "3"]

    (table / "t.csv").write_text("n,word\n1,one\n2,\n")
    assert ingest(spark, place, str(table), "csv", str(tmp_path / "c2"), topic=name, tell=told.append).rows == 2
    assert [record["data"] for record in everything(topics, name)] == [{"n": 1, "word": "one"}, {"n": 2}]
    (table / "u.csv").write_text("word,n\nthree,3\n")
    with pytest.raises(ValueError, match=r"the same header; file:.*t\.csv has n,word, file:.*u\.csv has word,n"):
        ingest(spark, place, str(table), "csv", str(tmp_path / "c2"), topic=name, tell=told.append)
    (table / "u.csv").write_text("n,word\n3,three\n")
    assert ingest(spark, place, str(table), "csv", str(tmp_path / "c2"), topic=name, tell=told.append).rows == 1
    assert everything(topics, name)[2]["data"] == {"n": 3, "word": "three"}
    with pytest.raises(ValueError, match="one of them"):
        ingest(spark, place, str(table), "csv", "c")


def test_an_ingestion_tells_each_batch_when_it_is_done_and_counts_more_than_spark_remembers():
    class Query:
        """Three hundred batches, of which the last hundred are known; the end comes with the last one."""

        batches = 0

        def awaitTermination(self, seconds):
            self.batches += 50
            return self.batches == 300

        @property
        def recentProgress(self):
            return [SimpleNamespace(batchId=n, numInputRows=2) for n in range(self.batches)[-100:]]

    told: list[str] = []
    assert _followed(Query(), told.append) == IngestSummary(300, 600)
    assert told == [f"batch {n}: 2 rows" for n in range(300)]


def test_lost_neighbours_become_one():
    assert joined([Lost(11, 20, "cap"), Lost(1, 10, "cap"), Lost(21, 30, "ttl")]) == [
        Lost(1, 20, "cap"),
        Lost(21, 30, "ttl"),
    ]
