import json
from datetime import UTC

import httpx
import pytest

from spark_integration.batch_reader import TopicsReader
from spark_integration.options import read_options
from spark_integration.pages import schema as full_schema
from spark_integration.reading import DataLoss
from spark_integration.server import Refused
from tests.spark.frames import everything, fill, numbers, source
from topics.testing.server import Server


def test_every_record_comes_with_every_column_as_it_is(spark, server, topics, name):
    odd = '{"big": 12345678901234567890123, "f": 1.0, "k": 1, "k": 2, "s": "\\u00e9\\n☃", "deep": [[{}]]}'
    topics.append(name, [{"data": None}, {"data": "text", "tag": "a:b", "node": "n1", "meta": {"x": "☃", "y": ""}}])
    body = f'{{"records":[{{"data":{odd}}}]}}'.encode()
    httpx.post(f"{server.url}/v0/topics/{name}", content=body, headers={"content-type": "application/json"})
    rows = source(spark, server, topic=name).load().orderBy("seq").collect()
    assert [row.data for row in rows] == ["null", '"text"', odd]
    assert [row.seq for row in rows] == [1, 2, 3]
    assert {row.topic for row in rows} == {name}
    assert (rows[1].tag, rows[1].node, rows[1].meta) == ("a:b", "n1", {"x": "☃", "y": ""})
    assert (rows[0].tag, rows[0].node, rows[0].meta) == (None, None, None)
    stamps = [record["$ts"] for record in everything(topics, name)]
    assert [
        row.seconds for row in spark.createDataFrame(rows).selectExpr("unix_millis(ts) seconds").collect()
    ] == stamps
    assert rows[0].ts.astimezone(UTC).timestamp() * 1000 == stamps[0]


def test_a_topic_is_cut_into_partitions_and_read_exactly(spark, server, topics, name):
    fill(topics, name, range(5000))
    topics.delete(name, match=["tag", "Glob", "odd:1*"])
    kept = [record["data"]["n"] for record in everything(topics, name)]
    frame = source(spark, server, topic=name, minPartitions=3, maxRecordsPerPartition=1200, fetchSize=70).load()
    assert frame.rdd.getNumPartitions() == 5
    assert numbers(frame) == kept
    assert numbers(source(spark, server, topic=name, gzip="true").load()) == kept


def test_several_topics_a_pattern_and_a_missing_one(spark, server, topics, name):
    for part in ("a", "b", "c"):
        fill(topics, f"{name}.{part}", range(3))
    found = source(spark, server, topicPattern=f"{name}\\.[ab]").load().groupBy("topic").count().collect()
    assert {(row.topic, row["count"]) for row in found} == {(f"{name}.a", 3), (f"{name}.b", 3)}
    listed = source(spark, server, topics=f"{name}.a,{name}.c").load()
    assert sorted(row.topic for row in listed.select("topic").distinct().collect()) == [f"{name}.a", f"{name}.c"]
    assert source(spark, server, topicPattern="no such.*").load().count() == 0
    with pytest.raises(Exception, match=f"topic '{name}.x' does not exist at http"):
        source(spark, server, topics=f"{name}.a,{name}.x").load().count()


def test_seqs_and_times_bound_a_read(spark, server, topics, name):
    fill(topics, name, range(10))
    fill(topics, name, range(10, 20))
    stamps = [record["$ts"] for record in everything(topics, name)]
    seqs = {"startingOffsets": json.dumps({name: 4}), "endingOffsets": json.dumps({name: 8})}
    assert numbers(source(spark, server, topic=name, **seqs).load()) == [3, 4, 5, 6]
    times = {"startingTimestamp": stamps[10], "endingTimestamp": stamps[10] + 1}
    expected = [n for n, ts in enumerate(stamps) if ts == stamps[10]]
    assert numbers(source(spark, server, topic=name, **times).load()) == expected
    with pytest.raises(Exception, match="endingOffsets asks"):
        source(spark, server, topic=name, endingOffsets=json.dumps({name: 99})).load().count()
    assert source(spark, server, topic=name, startingOffsets=json.dumps({name: 21})).load().count() == 0
    with pytest.raises(Exception, match=f"startingOffsets asks '{name}' for seqs from 22 on; its head is 20"):
        source(spark, server, topic=name, startingOffsets=json.dumps({name: 22})).load().count()


def test_a_server_that_is_not_there_is_named():
    options = read_options({"url": "http://127.0.0.1:9", "topic": "t", "retrySeconds": "0"}, stream=False)
    with pytest.raises(Refused, match=r"http://127\.0\.0\.1:9 cannot be reached, tried for 0 s: .*refused"):
        TopicsReader(options, full_schema("string")).partitions()


def test_records_are_left_out_by_node_and_tag_and_columns_by_schema(spark, server, topics, name):
    fill(topics, name, range(12))
    chosen = source(spark, server, topic=name, nodeFilter="three", tagPrefix="odd:").load()
    assert numbers(chosen) == [1, 5, 7, 11]
    narrow = source(spark, server, topic=name).schema("seq LONG, tag STRING").load()
    assert [tuple(row) for row in narrow.orderBy("seq").limit(2).collect()] == [(1, None), (2, "odd:1")]
    with pytest.raises(Exception, match="there is no column 'user'"):
        source(spark, server, topic=name).schema("user STRING").load().count()


def test_data_as_a_variant(spark, server, topics, name):
    topics.append(name, [{"data": {"a": [1, {"b": "x"}]}}, {"data": 7}, {"data": None}])
    frame = source(spark, server, topic=name, dataType="variant").load().orderBy("seq")
    found = frame.selectExpr("variant_get(data, '$.a[1].b', 'string') b", "to_json(data) whole").collect()
    assert [tuple(row) for row in found] == [("x", '{"a":[1,{"b":"x"}]}'), (None, "7"), (None, "null")]


def test_conditions_on_seq_decide_what_is_fetched(spark, server, topics, name):
    fill(topics, name, range(1000))
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = source(spark, server, topic=name, pushFilters="true", maxRecordsPerPartition=10).load()
        chosen = frame.where("seq > 500 AND seq <= 520 AND tag IS NULL")
        assert chosen.rdd.getNumPartitions() == 2
        assert numbers(chosen) == list(range(500, 520, 2))
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_what_retention_took_fails_the_query_or_is_left_out(spark, server, topics, name):
    topics.put_topic(name, cap_records=10)
    fill(topics, name, range(30))
    assert numbers(source(spark, server, topic=name).load()) == list(range(20, 30))
    from_one = {"topic": name, "startingOffsets": json.dumps({name: 1})}
    with pytest.raises(Exception, match=f"{name} has lost seq 1 to 20 .cap.*failOnDataLoss=false"):
        source(spark, server, **from_one).load().count()
    assert numbers(source(spark, server, failOnDataLoss="false", **from_one).load()) == list(range(20, 30))


def test_a_topic_that_is_removed_after_planning_is_lost(server, topics, name, capfd):
    fill(topics, name, range(3))
    readers = []
    for strict in ("true", "false"):
        options = read_options({"url": server.url, "topic": name, "failOnDataLoss": strict}, stream=False)
        readers.append(TopicsReader(options, full_schema("string")))
    pieces = [reader.partitions()[0] for reader in readers]
    topics.remove_topic(name)
    with pytest.raises(DataLoss, match=f"{name} does not exist any more. Set failOnDataLoss=false"):
        list(readers[0].read(pieces[0]))
    assert list(readers[1].read(pieces[1])) == []
    assert f"data loss, going on: {name} does not exist any more" in capfd.readouterr().err


def test_keys_scopes_and_prefixes(spark, tmp_path):
    keys = "full,reader:read:mine.,writer:write"
    with Server(tmp_path / "keys", api_keys=keys).start().wait_ready() as server:
        headers = {"authorization": "Bearer full"}
        for topic in ("mine.a", "other.a"):
            httpx.post(f"{server.url}/v0/topics/{topic}", json={"records": [{"data": {"n": 1}}]}, headers=headers)
        assert source(spark, server, token="reader", topicPattern=".*").load().count() == 1
        with pytest.raises(Exception, match="wants a key: the option token is missing"):
            source(spark, server, topic="mine.a").load().count()
        for topic, token, said in (
            ("mine.a", "wrong", "is not known there"),
            ("other.a", "reader", "may not do this with 'other.a'"),
            ("mine.a", "writer", "may not do this"),
        ):  # as Spark plans them, but in this process: a worker that fails is one that has to be started again
            options = read_options({"url": server.url, "topic": topic, "token": token}, stream=False)
            with pytest.raises(Refused, match=said):
                TopicsReader(options, full_schema("string")).partitions()
