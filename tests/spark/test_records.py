import json

import pyarrow as pa
import pytest
from pyspark.sql.types import IntegerType, LongType, MapType, StringType, StructField, StructType

from spark_integration.options import BadOption
from spark_integration.records import BadRow, Chunks, check_columns, record_texts


def rows(**columns: list) -> pa.RecordBatch:
    types = {"meta": pa.map_(pa.string(), pa.string())}
    arrays = {name: pa.array(values, types.get(name, pa.string())) for name, values in columns.items()}
    return pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))


def test_data_is_not_touched_and_the_rest_is_quoted():
    odd = '{"k":1.0,"k":12345678901234567890123}'
    batch = rows(data=[odd, "null", None], tag=['a"b', None, ""], meta=[[("k", "☃")], None, []])
    texts = record_texts(batch)
    assert texts[0] == b'{"data":%b,"tag":"a\\"b","meta":{"k":"\xe2\x98\x83"}}' % odd.encode()
    assert texts[1] == b'{"data":null}'
    assert json.loads(texts[2]) == {"data": None, "tag": "", "meta": {}}
    keyed = record_texts(rows(data=["1", "2"], dedup_key=["a", None], node=[None, "n"]))
    assert keyed == [b'{"data":1,"dedup_key":"a"}', b'{"data":2,"node":"n"}']


@pytest.mark.parametrize("text", ["", "hello", '{"a":1', '1},{"data":2', "1,2", '"a" "b"', "1]", "NaN", "{'a':1}"])
def test_a_text_that_is_not_one_json_value_is_refused(text):
    with pytest.raises(BadRow, match="row 1 of its batch"):
        record_texts(rows(data=["1", text, "2"]))


def test_texts_that_are_json_only_together_are_refused():
    with pytest.raises(BadRow, match="row 0 of its batch"):
        record_texts(rows(data=["[1", "2]", "3"]))


def test_blanks_around_a_value_are_fine():
    assert [json.loads(text)["data"] for text in record_texts(rows(data=[" 1 ", "\n{} "]))] == [1, {}]


def cut(batches: list[pa.RecordBatch], size: int) -> list[tuple[str, int, list[bytes]]]:
    chunks = Chunks(None, size)
    made = [chunk for batch in batches for chunk in chunks.add(batch)] + list(chunks.rest())
    return [(chunk.topic, chunk.number, chunk.texts) for chunk in made]


def test_the_cut_depends_on_the_rows_and_not_on_the_batches_they_came_in():
    topics, datas = ["a", "b", "a"] * 10, [str(n) for n in range(30)]
    whole = cut([rows(topic=topics, data=datas)], 4)
    single = cut([rows(topic=[topic], data=[data]) for topic, data in zip(topics, datas, strict=True)], 4)
    assert whole == single
    assert sum(len(texts) for _, _, texts in whole) == 30
    assert [number for topic, number, _ in whole if topic == "a"] == [0, 1, 2, 3, 4]


def test_the_key_of_a_chunk_is_of_its_write_and_its_content():
    first, second = (next(Chunks("t", 2).add(rows(data=data))) for data in (["1", "2"], ["1", "3"]))
    joined = next(Chunks("t", 1).add(rows(data=["12"])))
    keys = {first.key("w"), first.key("v"), second.key("w"), joined.key("w")}
    assert len(keys) == 4
    assert first.key("w") == next(Chunks("t", 2).add(rows(data=["1", "2"]))).key("w")


def schema(**columns) -> StructType:
    return StructType([StructField(name, type_) for name, type_ in columns.items()])


@pytest.mark.parametrize(
    ("columns", "topic", "said"),
    [
        ({"tag": StringType()}, "t", "`data` is missing"),
        ({"data": StringType()}, None, "to which topic"),
        ({"data": IntegerType()}, "t", "must be string or variant, not int; to_json"),
        ({"data": StringType(), "user": StringType()}, "t", "no place for the column 'user'"),
        ({"data": StringType(), "meta": MapType(StringType(), LongType())}, "t", "map<string,string>"),
    ],
)
def test_columns_without_a_place_are_refused(columns, topic, said):
    with pytest.raises(BadOption, match=said):
        check_columns(schema(**columns), topic)


def test_what_was_read_can_be_written():
    check_columns(schema(topic=StringType(), seq=LongType(), data=StringType()), None)
    check_columns(schema(data=StringType(), meta=MapType(StringType(), StringType(), False)), "t")
