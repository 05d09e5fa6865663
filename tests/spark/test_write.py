import pytest

from tests.spark.frames import everything, numbers_of


def sink(frame, server, **options):
    frame.write.format("topics").mode("append").options(url=server.url, **options).save()


def test_every_column_arrives_and_topics_come_from_the_column(spark, server, topics, name):
    frame = spark.createDataFrame(
        [(f"{name}.a", '{"n": 1}', "t1", "n1", {"k": "v"}), (f"{name}.b", None, None, None, None)],
        "topic STRING, data STRING, tag STRING, node STRING, meta MAP<STRING, STRING>",
    )
    sink(frame, server)
    (one,), (other,) = everything(topics, f"{name}.a"), everything(topics, f"{name}.b")
    assert (one["data"], one["$tag"], one["$node"], one["meta"]) == ({"n": 1}, "t1", "n1", {"k": "v"})
    assert other["data"] is None
    assert not {"$tag", "$node", "meta"} & set(other)
    sink(frame, server, topic=f"{name}.all")  # the option goes before the column
    assert len(everything(topics, f"{name}.all")) == 2


def test_one_partition_keeps_its_order_over_many_chunks(spark, server, topics, name):
    frame = spark.range(0, 2500, 1, 1).selectExpr("to_json(struct(id AS n)) AS data")
    sink(frame, server, topic=name, batchSize=300)
    assert numbers_of(topics, name) == list(range(2500))


def test_a_variant_is_written_as_its_json(spark, server, topics, name):
    sink(spark.sql("""SELECT parse_json('{"a": [1, null]}') AS data"""), server, topic=name)
    assert everything(topics, name)[0]["data"] == {"a": [1, None]}


def test_a_write_that_is_named_can_be_run_again(spark, server, topics, name):
    frame = spark.range(0, 50, 1, 2).selectExpr("to_json(struct(id AS n)) AS data")
    for version in (1, 1, 2):
        sink(frame, server, topic=name, txnAppId="nightly", txnVersion=version)
    assert sorted(numbers_of(topics, name)) == sorted([*range(50), *range(50)])
    sink(frame, server, topic=name)
    assert len(everything(topics, name)) == 150  # without a name it is another write


def test_a_task_that_fails_and_is_tried_again_appends_once(spark, server, topics, name, tmp_path):
    flag = str(tmp_path / "failed")

    def break_once(batches):
        import os

        yield from batches
        if not os.path.exists(flag):
            open(flag, "w").close()
            raise RuntimeError("broken on purpose")

    frame = spark.range(0, 3000, 1, 1).selectExpr("to_json(struct(id AS n)) AS data")
    sink(frame.mapInArrow(break_once, frame.schema), server, topic=name, batchSize=100)
    assert (tmp_path / "failed").exists()
    assert numbers_of(topics, name) == list(range(3000))


def test_what_cannot_be_written_is_said(spark, server, topics, name):
    topics.put_topic(f"{name}.full", cap_records=1, discard="reject")
    good = spark.sql("SELECT '1' AS data")
    for frame, options, said in (
        (spark.sql("SELECT 'hello' AS data"), {"topic": name}, "data must be JSON text; row 0"),
        (good, {"topic": f"{name}.none", "create": "false"}, "none' does not exist at http"),
        (good.union(good), {"topic": f"{name}.full"}, "422 topic_full"),
    ):
        with pytest.raises(Exception, match=said):
            sink(frame, server, **options)
    with pytest.raises(Exception, match="a topic is not overwritten"):
        good.write.format("topics").mode("overwrite").options(url=server.url, topic=name).save()


def test_a_new_topic_gets_the_config_that_is_given(spark, server, topics, name):
    sink(spark.sql("SELECT '1' AS data"), server, topic=name, config='{"idempotency_window_ms": 86400000}')
    assert topics.state(name)["config"]["idempotency_window_ms"] == 86_400_000
