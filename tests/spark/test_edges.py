"""What is odd but allowed comes through unchanged; a read that is too slow is told so."""

import json

import httpx
import pytest

from tests.spark.frames import everything, source

DATAS = [
    "null",
    "true",
    '""',
    "-0",
    "1e400",
    "0.10",
    "12345678901234567890123456789",
    "[" * 100 + "]" * 100,
    '{"":{"":[]},"a":1,"a":2}',
    '"\\u0000 \\ud83d\\ude00 ☃ \\/ \\" \\\\ \x7f"',
    json.dumps("x" * 700_000),
    ' {"blanks" :\t1 } ',
]
TAGS = [None, "", 'quote " and \\ and \n', "☃" * 20, "tab\t", None, "a:b:c", "*", "'", "%", "\x01", "null"]
METAS = [None, {}, {"": ""}, {"k": 'a"\n☃'}, {f"k{n}": str(n) for n in range(16)}] + [None] * 7


def test_odd_values_come_through_both_ways(spark, server, topics, name):
    rows = list(zip(DATAS, TAGS, [None, "n 1 ☃"] * 6, METAS, strict=True))
    frame = spark.createDataFrame(rows, "data STRING, tag STRING, node STRING, meta MAP<STRING, STRING>").coalesce(1)
    frame.write.format("topics").mode("append").options(url=server.url, topic=name).save()
    found = source(spark, server, topic=name).load().orderBy("seq").collect()
    assert [row.data.strip() for row in found] == [data.strip() for data in DATAS]
    assert [row.tag for row in found] == TAGS
    assert [row.node for row in found] == [None, "n 1 ☃"] * 6
    assert [row.meta or {} for row in found] == [meta or {} for meta in METAS]
    plain = everything(topics, name)
    assert [record["data"] for record in plain] == [json.loads(data) for data in DATAS]
    assert [record.get("$tag") for record in plain] == TAGS


def test_types_that_are_close_but_not_the_same_are_refused_or_taken(spark, server, topics, name):
    topics.append(name, [{"data": 1}])
    taken = source(spark, server, topic=name).schema("seq LONG NOT NULL, data STRING NOT NULL").load()
    assert [tuple(row) for row in taken.collect()] == [(1, "1")]
    for wanted, said in (("seq INT", "is bigint, not int"), ("ts STRING", "is timestamp"), ("meta STRING", "is map")):
        with pytest.raises(Exception, match=said):
            source(spark, server, topic=name).schema(wanted).load().collect()
    topics.put_topic(f"{name}.empty")
    assert source(spark, server, topic=f"{name}.empty").load().collect() == []


def overtaken(url: str, record: bytes, count: int):
    """Passes batches on; with the first one it appends so many records that the topic's cap takes old ones away."""

    def pass_on(batches):
        for index, batch in enumerate(batches):
            if index == 0:
                body = b'{"records":[%b]}' % b",".join([record] * count)
                httpx.post(url, content=body, headers={"content-type": "application/json"}).raise_for_status()
            yield batch

    return pass_on


@pytest.fixture
def small_batches(spark):
    setting = "spark.sql.execution.arrow.maxRecordsPerBatch"
    spark.conf.set(setting, "50")
    yield
    spark.conf.unset(setting)


@pytest.mark.usefixtures("small_batches")
def test_a_read_that_retention_overtakes_in_the_middle_fails_or_leaves_out(spark, server, topics, name):
    """Records of 8 KiB, so that what lies between the server and the slow part is far less than the topic."""
    record = b'{"data":"%b"}' % (b"x" * 8192)
    for strict in (True, False):
        topic = f"{name}.{strict}"
        topics.put_topic(topic, cap_records=3000)
        url = f"{server.url}/v0/topics/{topic}"
        for _ in range(3):
            body = b'{"records":[%b]}' % b",".join([record] * 1000)
            httpx.post(url, content=body, headers={"content-type": "application/json"}).raise_for_status()
        options = {"topic": topic, "fetchSize": 50, "failOnDataLoss": str(strict).lower()}
        frame = source(spark, server, **options).load().select("seq", "data")
        slow = frame.mapInArrow(overtaken(url, record, 2900), frame.schema)
        if strict:
            with pytest.raises(Exception, match=f"{topic} has lost seq .* to 2900 .cap"):
                slow.collect()
        else:
            seqs = [row.seq for row in slow.collect()]
            assert seqs[-100:] == list(range(2901, 3001))
            assert 100 < len(seqs) < 3000
