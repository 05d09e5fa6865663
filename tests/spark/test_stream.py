import json

import pytest

from tests.spark.frames import LONG_MEMORY, fill, numbers_of


def stream(spark, server, **options):
    return spark.readStream.format("topics").options(url=server.url, **{"startingOffsets": "earliest", **options})


def run(frame, server, checkpoint, **options) -> list[dict]:
    """Everything that is there now, into a topic; the progress of each batch."""
    writer = frame.writeStream.format("topics").option("checkpointLocation", str(checkpoint))
    writer = writer.options(url=server.url, config=LONG_MEMORY, **options).trigger(availableNow=True)
    for attempt in range(3):
        query = writer.start()
        try:
            query.awaitTermination()
            break
        except Exception as error:
            # Spark gives a Python of its own ten seconds to start, which a busy machine may not have.
            if attempt == 2 or "Python worker failed to connect back" not in str(error):
                raise
    return [json.loads(progress.json) for progress in query.recentProgress]


def test_a_query_goes_on_where_it_was_also_in_other_pieces(spark, server, topics, name, tmp_path):
    fill(topics, name, range(1000))
    limited = stream(spark, server, topic=name, maxOffsetsPerTrigger=400, maxRecordsPerPartition=150).load()
    progress = run(limited.select("data"), server, tmp_path / "c", topic=f"{name}.copy")
    assert [batch["numInputRows"] for batch in progress if batch["numInputRows"]] == [400, 400, 200]
    fill(topics, name, range(1000, 1300))
    run(
        stream(spark, server, topic=name, minPartitions=2).load().select("data"),
        server,
        tmp_path / "c",
        topic=f"{name}.copy",
    )
    assert sorted(numbers_of(topics, f"{name}.copy")) == list(range(1300))


def failing_after_first_partition(flag, state_url, first):
    """Lets one partition of `first` records through and breaks the others then, until the flag is there."""

    def pass_on(batches):
        import os
        import time

        import httpx
        from pyspark import TaskContext

        if TaskContext.get().partitionId() > 0 and not os.path.exists(flag):
            with httpx.Client() as client:
                while client.get(state_url).json().get("head_seq", 0) < first:
                    time.sleep(0.2)
            raise RuntimeError("broken on purpose")
        yield from batches

    return pass_on


def test_a_batch_that_broke_half_way_is_neither_lost_nor_doubled(spark, server, topics, name, tmp_path):
    """A restart with another number of partitions must not take new pieces for old ones."""
    fill(topics, name, range(6000))
    flag, copy_url = tmp_path / "go", f"{server.url}/v0/topics/{name}.copy"

    def once(partitions):
        frame = stream(spark, server, topic=name, minPartitions=partitions).load().select("data")
        frame = frame.mapInArrow(failing_after_first_partition(str(flag), copy_url, 2000), frame.schema)
        return run(frame, server, tmp_path / "c", topic=f"{name}.copy", batchSize=700)

    with pytest.raises(Exception, match="broken on purpose"):
        once(3)
    assert numbers_of(topics, f"{name}.copy") == list(range(2000))
    flag.touch()
    once(5)
    assert sorted(numbers_of(topics, f"{name}.copy")) == list(range(6000))


def test_rows_that_come_cut_differently_are_appended_not_dropped(spark, server, topics, name, tmp_path):
    """The sink cannot know them again: they may come twice, but all of them come. With keys of their own once each."""
    fill(topics, name, range(600))
    flag, copy_url = tmp_path / "go", f"{server.url}/v0/topics/{name}.copy"

    def once(partitions):
        rows = stream(spark, server, topic=name).load()
        key = "CASE WHEN seq > 300 THEN 'seq ' || seq END AS dedup_key"
        frame = rows.selectExpr("data", key).repartition(partitions)
        frame = frame.mapInArrow(failing_after_first_partition(str(flag), copy_url, 200), frame.schema)
        return run(frame, server, tmp_path / "c", topic=f"{name}.copy", batchSize=50)

    with pytest.raises(Exception, match="broken on purpose"):
        once(3)
    flag.touch()
    once(2)
    found = numbers_of(topics, f"{name}.copy")
    assert set(found) == set(range(600))
    assert sorted(n for n in found if n >= 300) == list(range(300, 600))


def test_a_pattern_finds_topics_that_come_later_from_their_beginning(spark, server, topics, name, tmp_path):
    fill(topics, f"{name}.in.a", range(10))
    frame = stream(spark, server, topicPattern=f"{name}\\.in\\..*").load().select("data")
    run(frame, server, tmp_path / "c", topic=f"{name}.out")
    topics.put_topic(f"{name}.in.b", cap_records=5)
    fill(topics, f"{name}.in.b", range(100, 110))
    run(frame, server, tmp_path / "c", topic=f"{name}.out")
    assert sorted(numbers_of(topics, f"{name}.out")) == [*range(10), *range(105, 110)]
    assert [batch["numInputRows"] for batch in run(frame, server, tmp_path / "c", topic=f"{name}.out")] in ([], [0])


def test_latest_means_from_now_on(spark, server, topics, name, tmp_path):
    fill(topics, name, range(10))
    frame = stream(spark, server, topic=name, startingOffsets="latest").load().select("data")
    query = (
        frame.writeStream.format("topics")
        .options(url=server.url, topic=f"{name}.out", checkpointLocation=str(tmp_path / "c"))
        .trigger(processingTime="100 milliseconds")
        .start()
    )
    try:
        query.processAllAvailable()
        fill(topics, name, range(10, 20))
        query.processAllAvailable()
    finally:
        query.stop()
    assert numbers_of(topics, f"{name}.out") == list(range(10, 20))


def test_a_query_that_retention_overtook_fails_or_goes_on(spark, server, topics, name, tmp_path):
    topics.put_topic(name, cap_records=50)
    fill(topics, name, range(40))
    run(stream(spark, server, topic=name).load().select("data"), server, tmp_path / "c", topic=f"{name}.out")
    fill(topics, name, range(40, 200))
    with pytest.raises(Exception, match=f"{name} has lost seq 41 to 150 .cap"):
        run(stream(spark, server, topic=name).load().select("data"), server, tmp_path / "c", topic=f"{name}.out")
    relaxed = stream(spark, server, topic=name, failOnDataLoss="false").load().select("data")
    run(relaxed, server, tmp_path / "c", topic=f"{name}.out")
    assert numbers_of(topics, f"{name}.out") == [*range(40), *range(150, 200)]


def test_a_topic_that_was_made_anew_is_noticed(spark, server, topics, name, tmp_path):
    fill(topics, name, range(40))
    run(stream(spark, server, topic=name).load().select("data"), server, tmp_path / "c", topic=f"{name}.out")
    topics.remove_topic(name)
    fill(topics, name, range(100, 110))
    with pytest.raises(Exception, match="was made anew: its head is 10, this query has read up to 40"):
        run(stream(spark, server, topic=name).load().select("data"), server, tmp_path / "c", topic=f"{name}.out")
    relaxed = stream(spark, server, topic=name, failOnDataLoss="false").load().select("data")
    run(relaxed, server, tmp_path / "c", topic=f"{name}.out")
    assert numbers_of(topics, f"{name}.out") == [*range(40), *range(100, 110)]


def test_a_topic_that_was_made_anew_is_noticed_also_when_it_has_more_records_than_before(
    spark, server, topics, name, tmp_path
):
    """By name and by pattern: else the first records of the new topic would be taken for those that were read."""
    for number, chosen in enumerate(({"topic": f"{name}.0"}, {"topicPattern": f"{name}\\.1"})):
        topic, out, checkpoint = f"{name}.{number}", f"{name}.{number}.out", tmp_path / str(number)

        def once(chosen=chosen, out=out, checkpoint=checkpoint, **options):
            run(stream(spark, server, **chosen, **options).load().select("data"), server, checkpoint, topic=out)

        fill(topics, topic, range(40))
        once()
        topics.remove_topic(topic)
        fill(topics, topic, range(100, 160))
        with pytest.raises(Exception, match="was made anew: its head is 60, this query has read up to 40"):
            once()
        once(failOnDataLoss="false")
        fill(topics, topic, range(160, 170))
        once()
        assert numbers_of(topics, out) == [*range(40), *range(100, 170)]


def test_a_topic_that_was_removed_fails_a_query_or_is_left_out(spark, server, topics, name, tmp_path):
    fill(topics, f"{name}.a", range(5))
    fill(topics, f"{name}.b", range(10, 15))

    def once(**options):
        frame = stream(spark, server, topics=f"{name}.a,{name}.b", **options).load().select("data")
        run(frame, server, tmp_path / "c", topic=f"{name}.out")

    once()
    topics.remove_topic(f"{name}.a")
    fill(topics, f"{name}.b", range(15, 20))
    with pytest.raises(Exception, match=f"{name}.a does not exist any more. Set failOnDataLoss=false"):
        once()
    once(failOnDataLoss="false")
    fill(topics, f"{name}.a", range(20, 30))
    once(failOnDataLoss="false")
    assert sorted(numbers_of(topics, f"{name}.out")) == [*range(5), *range(10, 30)]
