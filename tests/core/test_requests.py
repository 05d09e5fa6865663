"""Request bodies: what is taken over byte for byte, what is refused, and that a refusal names its field."""

import contextlib
import json
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.strategies import json_texts, many, meta_texts, some, texts
from topics import errors, limits
from topics.core.match import TagMatch
from topics.core.queue_requests import decode_redrive
from topics.core.requests import Append, Diff, decode_append, decode_delete, decode_diff, quoted
from topics.errors import TopicsError
from topics.limits import Limits

BOUNDS = Limits()


def append(body: bytes | memoryview | dict[str, Any], bounds: Limits = BOUNDS, **options: Any) -> Append:
    raw = json.dumps(body).encode() if isinstance(body, dict) else body
    return decode_append(raw, "jobs", bounds, **options)


def one_record(**fields: Any) -> dict[str, Any]:
    return {"records": [{"data": 1, **fields}]}


def refused(call: Any, *args: Any, code: str = errors.INVALID_REQUEST, **options: Any) -> TopicsError:
    with pytest.raises(TopicsError) as caught:
        call(*args, **options)
    assert caught.value.code == code
    return caught.value


# -- what the client wrote stays what it wrote


@pytest.mark.parametrize(
    "data",
    [
        b"null",
        b"true",
        b"-0",
        b"1.0E+2",
        b"1e400",
        b"123456789012345678901234567890123456789",
        b"0.1000000000000000055511151231257827",
        b'""',
        b'"\\u00e9 \\/ \\ud834\\udd1e"',
        '"é 𝄞 \u2028"'.encode(),
        b'{"a":1,"a":2}',
        b'{ "a" :\r\n\t[ 1 ,2 ] }',
        b'{"$seq":7,"data":{"meta":{}}}',
        b"[[[[]]]]",
    ],
)
def test_data_is_taken_over_byte_for_byte(data):
    request = append(b'{"records":[ {"data" : %b } ]}' % data)
    assert bytes(request.records[0].data) == data


@given(st.lists(st.tuples(json_texts, st.none() | meta_texts), min_size=1, max_size=5), st.booleans())
@many
def test_data_and_meta_are_verbatim(records, as_view):
    items = [b'{"data":%b%b}' % (data, b',\n"meta": %b ' % meta if meta is not None else b"") for data, meta in records]
    body = b'{"records":[%b]}' % b" ,".join(items)
    request = append(memoryview(body) if as_view else body)
    assert [(bytes(record.data), bytes(record.meta)) for record in request.records] == [
        (data, meta or b"") for data, meta in records
    ]


@given(texts, texts, texts)
@some
def test_names_are_the_text_they_spell(tag, node, batch_node):
    request = append({"records": [{"data": 1, "tag": tag, "node": node}, {"data": 2}], "node": batch_node})
    assert [(record.tag, record.node) for record in request.records] == [(tag, node), (None, None)]
    assert request.node == batch_node
    assert json.loads(quoted(tag)) == tag


def test_the_fields_of_an_append():
    request = append(
        {
            "records": [{"data": 1}],
            "node": "n",
            "idempotency_key": "k",
            "create": False,
            "config": {"ttl_ms": 5},
            "disable_backpressure": True,
        }
    )
    assert (request.node, request.key, request.create, request.disable_backpressure) == ("n", "k", False, True)
    assert request.config is not None
    assert request.config.changes == {"ttl_ms": 5}


def test_what_is_absent_or_null():
    request = append(
        {"records": [{"data": None, "tag": None, "node": None, "meta": None}], "config": None, "node": None}
    )
    assert (request.node, request.key, request.create, request.config) == (None, None, None, None)
    record = request.records[0]
    assert (bytes(record.data), record.tag, record.node) == (b"null", None, None)


def test_unknown_fields_are_passed_over():
    assert len(append({"records": [{"data": 1, "extra": [1]}], "later": {}}).records) == 1


def test_the_key_of_the_body_wins_over_the_header():
    assert append(one_record(), header_key="h").key == "h"
    assert append({**one_record(), "idempotency_key": "b"}, header_key="h").key == "b"


# -- what is refused says where


@pytest.mark.parametrize(
    ("decode", "body", "detail"),
    [
        (append, {"records": [{"data": 1}, {"data": 1, "tag": 3}]}, {"index": 1, "field": "tag"}),
        (append, {"records": [{"tag": "a"}]}, {"index": 0, "field": "data"}),
        (append, {"records": [1]}, {"index": 0, "field": "records"}),
        (append, {"records": 1}, {"field": "records"}),
        (append, {}, {"field": "records"}),
        (append, b"[]", {}),
        (append, {"records": [{"data": 1, "node": "x" * 129}]}, {"index": 0, "field": "node"}),
        (append, {"records": [{"data": 1}], "create": "yes"}, {"field": "create"}),
        (append, {"records": [{"data": 1}], "config": 3}, {"field": "config"}),
        (append, {"records": [{"data": 1}], "config": {"ttl_ms": "1"}}, {"field": "ttl_ms"}),
        (decode_diff, {"from_seq": "1"}, {"field": "from_seq"}),
        (decode_diff, {"node": ["a", 1]}, {"index": 1, "field": "node"}),
        (decode_delete, {"before_seq": 1.5}, {"field": "before_seq"}),
        (decode_delete, {"befor_seq": 1}, {"field": "befor_seq"}),
        (decode_delete, {"match": ["tag", "Is", "x"]}, {"field": "match"}),
    ],
)
def test_the_field_at_fault_is_named(decode, body, detail):
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    assert refused(decode, raw, BOUNDS).detail == detail


# -- limits


@pytest.mark.parametrize(
    ("field", "limit"),
    [("tag", 256), ("node", 128)],
)
@pytest.mark.parametrize("letter", ["x", "é", "€", "𝄞", "\x00", '"'])
def test_names_are_limited_in_bytes_of_utf_8(field, limit, letter):
    fitting = letter * (limit // len(letter.encode()))
    append(one_record(**{field: fitting}))
    error = refused(append, one_record(**{field: fitting + letter}))
    assert f"records[0].{field}" in error.message
    assert str(limit) in error.message
    assert error.detail["field"] == field


def test_the_node_of_the_batch_is_limited_too():
    append({**one_record(), "node": "x" * 128})
    error = refused(append, {**one_record(), "node": "x" * 129})
    assert error.message.startswith("node is 129 bytes")


def test_meta_is_limited_in_bytes_as_they_were_sent():
    fitting = b'{"k":"%b"}' % (b"x" * (16 * 1024 - 8))
    assert len(fitting) == 16 * 1024
    append(b'{"records":[{"data":1,"meta":%b}]}' % fitting)
    error = refused(append, b'{"records":[{"data":1},{"data":1,"meta":%b}]}' % fitting.replace(b":", b" :"))
    assert error.message == "records[1].meta is 16385 bytes; the limit is 16384"
    assert error.detail == {"index": 1, "field": "meta"}


@pytest.mark.parametrize("body", [b"", b" \n"])
def test_a_body_that_is_missing_is_told_from_one_that_is_cut_off(body):
    assert refused(append, body).message == "the body is empty; it has to be a JSON object"
    assert "truncated" in refused(append, b'{"records":').message


def test_meta_has_at_most_64_keys():
    append(one_record(meta={str(i): "" for i in range(64)}))
    assert "65 keys" in refused(append, one_record(meta={str(i): "" for i in range(65)})).message


@pytest.mark.parametrize("meta", [1, "x", [], True, {"a": 1}, {"a": None}, {"a": {}}, {"a": ["x"]}])
def test_meta_is_an_object_of_strings(meta):
    error = refused(append, one_record(meta=meta))
    assert error.message.startswith("records[0].meta must be an object of strings")


@pytest.mark.parametrize(
    ("meta", "told"), [([], "strings; other"), ({"a": "1", "b": 2}, 'the value of "b" is none; other')]
)
def test_what_is_wrong_with_meta_is_told(meta, told):
    assert told in refused(append, one_record(meta=meta)).message


def test_the_routers_stamp_is_reserved_however_it_is_spelled():
    assert "_topics_router" in refused(append, one_record(meta={"_topics_router": "x"})).message
    refused(append, b'{"records":[{"data":1,"meta":{"\\u005ftopics_router":"x"}}]}')


def test_a_record_is_limited_in_data_and_meta_together():
    bounds = Limits(record_bytes=100)
    append(one_record(data="x" * 98), bounds)
    error = refused(append, one_record(data="x" * 99), bounds, code=errors.RECORD_TOO_LARGE)
    assert error.detail == {"index": 0, "bytes": 101, "max": 100}
    body = {"records": [{"data": 1}, {"data": "x" * 90, "meta": {"a": "bcd"}}]}
    assert refused(append, body, bounds, code=errors.RECORD_TOO_LARGE).message.startswith("records[1]: data + meta")


def test_the_default_record_limit_is_a_mebibyte():
    append(b'{"records":[{"data":"%b"}]}' % (b"x" * (limits.MIB - 2)))
    refused(append, b'{"records":[{"data":"%b"}]}' % (b"x" * (limits.MIB - 1)), code=errors.RECORD_TOO_LARGE)


def test_a_batch_has_one_to_ten_thousand_records():
    body = b'{"records":[%b]}'
    assert len(append(body % b",".join([b'{"data":1}'] * 10_000)).records) == 10_000
    error = refused(append, body % b",".join([b'{"data":1}'] * 10_001), code=errors.BATCH_TOO_LARGE)
    assert error.detail == {"records": 10_001, "max": 10_000}
    assert "records" in refused(append, {"records": []}).message


def test_a_body_is_limited_before_it_is_looked_at():
    error = refused(append, bytes(64 * limits.MIB + 1), code=errors.PAYLOAD_TOO_LARGE)
    assert error.detail == {"bytes": 64 * limits.MIB + 1, "max": 64 * limits.MIB}
    for call in (decode_diff, decode_delete):
        refused(call, b"x" * 11, Limits(body_bytes=10), code=errors.PAYLOAD_TOO_LARGE)


@pytest.mark.parametrize("key", ["", "x" * 257])
def test_an_idempotency_key_has_1_to_256_characters(key):
    append({**one_record(), "idempotency_key": "é" * 256})
    assert refused(append, {**one_record(), "idempotency_key": key}).detail == {"field": "idempotency_key"}
    refused(append, one_record(), header_key=key)


# -- what is not a request


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"{", "not valid JSON"),
        (b"\xef\xbb\xbf{}", "not valid JSON"),
        (b'{"records":[{"data":1}]} x', "not valid JSON"),
        (b'{"records":[{"data":1},]}', "not valid JSON"),
        (b'{"records":[{"data":01}]}', "not valid JSON"),
        (b'{"records":[{"data":NaN}]}', "not valid JSON"),
        (b'{"records":[{"data":"\t"}]}', "not valid JSON"),
        (b'{"records":[{"data":"\\x"}]}', "not valid JSON"),
        (b'{"records":[{"data":\'a\'}]}', "not valid JSON"),
        (b'{"records":[{"data":"\xff"}]}', "not valid UTF-8 at byte 21"),
        (b'{"records":[{"data":"\xed\xa0\x80"}]}', "not valid UTF-8 at byte 21"),
        (b'{"records":[{"data":"\xc0\xaf"}]}', "not valid UTF-8 at byte 21"),
        (b"null", "the body: expected `object`, got `null`"),
        (b"[]", "the body: expected `object`, got `array`"),
        (b"{}", "required field `records`"),
        (b'{"records":5}', "records: expected `array`, got `int`"),
        (b'{"records":null}', "records: expected `array`"),
        (b'{"records":[1]}', "records[0]: expected `object`, got `int`"),
        (b'{"records":[{"data":1},{"tag":"x"}]}', "records[1]: object missing required field `data`"),
        (b'{"records":[{"data":1,"tag":5}]}', "records[0].tag: expected `str | null`, got `int`"),
        (b'{"records":[{"data":1,"node":[]}]}', "records[0].node: expected"),
        (b'{"records":[{"data":1}],"node":5}', "node: expected `str | null`"),
        (b'{"records":[{"data":1}],"idempotency_key":5}', "idempotency_key: expected"),
        (b'{"records":[{"data":1}],"create":"yes"}', "create: expected `bool | null`"),
        (b'{"records":[{"data":1}],"disable_backpressure":1}', "disable_backpressure: expected `bool | null`"),
        (b'{"records":[{"data":1}],"config":[]}', "config must be a JSON object"),
        (b'{"records":[{"data":1}],"config":{"ttl_ms":"x"}}', "ttl_ms must be an integer"),
        (b'{"records":[{"data":1}],"config":{"nope":1}}', 'unknown config field "nope"'),
    ],
)
def test_a_refusal_says_what_is_wrong(body, said):
    assert said in refused(append, body).message


@pytest.mark.parametrize("depth", [2_000, 100_000])
@pytest.mark.parametrize(
    "body",
    [
        b'{"records":[{"data":%b}]}',
        b'{"records":[{"data":1,"meta":%b}]}',
        b'{"records":[{"data":1}],"config":%b}',
        b"%b",
    ],
)
def test_deep_nesting_is_refused_in_any_thread(depth, body):
    nested = body % (b"[" * depth + b"]" * depth)
    objects = body % (b'{"a":' * depth + b"1" + b"}" * depth)
    caught = []

    def run() -> None:
        caught.append([refused(append, nested), refused(append, objects)])

    run()
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert len(caught) == 2
    refused(decode_delete, b'{"match":%b}' % (b"[" * depth + b"]" * depth), BOUNDS)


def strictly_json(text: bytes) -> bool:
    """The standard library as the judge; surrogates that stand alone are no text in our book."""

    def refuse(constant: str) -> None:
        raise ValueError(constant)

    try:
        json.dumps(json.loads(text.decode(), parse_constant=refuse), ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return False
    return True


SNIPPETS = (
    *'{}[],:"\\ \n\t-+.eE0129azu/', "true", "false", "null", "NaN", '"a"', "\\u00e9", "\\ud834\\udd1e", "\\ud800",
    '"k":', "1.5", "\x00", "é", "\u2028",
)  # fmt: skip
fragments = st.lists(st.sampled_from(SNIPPETS), max_size=8).map(lambda parts: "".join(parts).encode())


@given(fragments)
@many
def test_only_json_gets_into_the_log(data):
    """Data is never parsed again, so what is let in must be JSON, or it would break every reader of the topic."""
    body = b'{"records":[{"data":%b}]}' % data
    try:
        request = append(body)
    except TopicsError:
        assert not strictly_json(body) or b'"data"' in data or b'"records"' in data
        return
    assert all(strictly_json(bytes(record.data)) for record in request.records)


@given(st.binary(max_size=60))
@many
def test_arbitrary_bytes_are_refused_politely(body):
    refused(append, body)
    for call in (decode_diff, decode_delete):
        with contextlib.suppress(TopicsError):  # an empty body is a fine diff
            call(body, BOUNDS)


# -- diff


def diff(**fields: Any) -> Diff:
    return decode_diff(json.dumps(fields).encode(), BOUNDS)


def test_an_empty_diff_is_all_defaults():
    assert decode_diff(b"", BOUNDS) == decode_diff(b"{}", BOUNDS) == Diff()
    assert (Diff().from_seq, Diff().limit, Diff().wait_ms, Diff().batch_bytes) == (0, 256, 0, limits.MIB)
    assert (Diff().include_tags, Diff().include_meta, Diff().include_data, Diff().nodes) == (
        False,
        True,
        True,
        frozenset(),
    )


@pytest.mark.parametrize(
    ("field", "value", "name", "taken"),
    [
        ("from_seq", 2**64 - 1, "from_seq", 2**64 - 1),
        ("limit", 0, "limit", 256),
        ("limit", 1, "limit", 1),
        ("limit", 1000, "limit", 1000),
        ("limit", 1001, "limit", 1000),
        ("limit", 2**64 - 1, "limit", 1000),
        ("wait_ms", 30_000, "wait_ms", 30_000),
        ("wait_ms", 10**9, "wait_ms", 30_000),
        ("max_batch_bytes", 0, "batch_bytes", limits.MIB),
        ("max_batch_bytes", 1, "batch_bytes", 1),
        ("max_batch_bytes", 2**40, "batch_bytes", 8 * limits.MIB),
        ("node", None, "nodes", frozenset()),
        ("node", "n", "nodes", {b'"n"'}),
        ("node", ["a", "é\n", "a"], "nodes", {b'"a"', '"é\\n"'.encode()}),
        ("node", [], "nodes", frozenset()),
        ("include_tags", True, "include_tags", True),
        ("include_meta", False, "include_meta", False),
        ("include_data", False, "include_data", False),
    ],
)
def test_diff_fields_are_taken_or_clamped(field, value, name, taken):
    assert getattr(diff(**{field: value}), name) == taken


@pytest.mark.parametrize(
    ("limit", "configured", "taken"),
    [(0, 1000, 256), (5000, 1000, 5000), (10**6, 1000, 10_000), (10**6, 20_000, 20_000)],
)
def test_a_bulk_diff_may_take_more_records_but_not_more_bytes(limit, configured, taken):
    body = json.dumps({"limit": limit, "bulk": True, "max_batch_bytes": 2**40}).encode()
    query = decode_diff(body, Limits(read_records=configured))
    assert (query.limit, query.batch_bytes) == (taken, limits.BATCH_BYTES_MAX)


@pytest.mark.parametrize("field", ["from_seq", "limit", "wait_ms", "max_batch_bytes"])
@pytest.mark.parametrize("value", [-1, 2**64, 1.5, "1", True, [], {}])
def test_diff_numbers_are_whole_and_not_negative(field, value):
    assert field in refused(diff, **{field: value}).message


@pytest.mark.parametrize("value", [5, True, {}, [1], [None], ["x"] * 257])
def test_diff_nodes_are_strings_and_not_too_many(value):
    assert "node" in refused(diff, node=value).message


@pytest.mark.parametrize("field", ["include_tags", "include_meta", "include_data"])
@pytest.mark.parametrize("value", [0, 1, "true"])
def test_diff_switches_are_booleans(field, value):
    assert refused(diff, **{field: value}).message.startswith(f"{field}: expected `bool`")


# -- delete


def delete(**fields: Any) -> Any:
    request = decode_delete(json.dumps(fields).encode(), BOUNDS)
    return request.before_seq, request.match


@pytest.mark.parametrize(
    ("fields", "before_seq", "match"),
    [
        ({"before_seq": 0}, 0, None),
        ({"before_seq": 2**64 - 1}, 2**64 - 1, None),
        ({"match": "a"}, None, TagMatch("Eq", "a")),
        ({"match": ""}, None, TagMatch("Eq", "")),
        ({"match": "a*"}, None, TagMatch("Glob", "a")),
        ({"match": "*"}, None, TagMatch("Glob", "")),
        ({"match": "a*b"}, None, TagMatch("Eq", "a*b")),
        ({"match": ["tag", "Eq", "a*"]}, None, TagMatch("Eq", "a*")),
        ({"match": ["tag", "Glob", "a**"]}, None, TagMatch("Glob", "a*")),
        ({"match": ["tag", "Eq", "a"], "before_seq": 7}, 7, TagMatch("Eq", "a")),
        ({"match": None, "before_seq": 7}, 7, None),
        ({"match": "a", "before_seq": None}, None, TagMatch("Eq", "a")),
    ],
)
def test_the_grammar_of_a_delete(fields, before_seq, match):
    assert delete(**fields) == (before_seq, match)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "before_seq, match or both"),
        ({"before_seq": None, "match": None}, "before_seq, match or both"),
        ({"before_seq": -1}, "before_seq must be"),
        ({"before_seq": 2**64}, "before_seq must be"),
        ({"before_seq": "7"}, "before_seq: expected `int | null`"),
        ({"before_seq": 1.5}, "before_seq: expected"),
        ({"before_seq": True}, "before_seq: expected"),
        ({"match": 5}, "a tag match must be a string or"),
        ({"match": {}}, "a tag match must be a string or"),
        ({"match": []}, "a tag match must be a string or"),
        ({"match": ["tag", "Eq"]}, "a tag match must be a string or"),
        ({"match": ["node", "Eq", "x"]}, 'can look at "tag" only'),
        ({"match": ["tag", "Regex", "x"]}, "Eq and Glob only"),
        ({"match": ["tag", ["Eq"], "x"]}, "Eq and Glob only"),
        ({"match": ["tag", "Glob", "x"]}, "Glob needs a pattern that ends in"),
        ({"match": ["tag", "Eq", 5]}, "a string as its pattern"),
        ({"match": 5, "before_seq": 1}, "a tag match"),
    ],
)
def test_a_delete_is_refused_with_a_reason(fields, said):
    assert said in refused(delete, **fields).message


@pytest.mark.parametrize("body", [b"", b"[]", b"null", b'{"match":"\xff"}', b'{"match":"\\ud800"}', b'{"before_seq":'])
def test_what_is_no_delete(body):
    refused(decode_delete, body, BOUNDS)


@pytest.mark.parametrize("number", [b"1e400", b"-1e400", b"9" * 5000, b'["tag","Eq",1e400]'])
def test_a_match_with_a_number_beyond_all_bounds_is_refused(number):
    refused(decode_delete, b'{"match":%b}' % number, BOUNDS)
    refused(decode_redrive, b'{"to":"jobs","match":%b}' % number, "letters", BOUNDS)
