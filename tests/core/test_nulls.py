"""A null in an optional field is no field, in every type of body; everything else stays what it was."""

from typing import Any

import msgspec
import pytest

from topics import limits
from topics.core import group_requests, queue_requests, requests, watching
from topics.core.requests import decode_body
from topics.errors import TopicsError
from topics.gateway import ws_frames
from topics.limits import Limits

GIVEN: dict[type[msgspec.Struct], dict[str, Any]] = {
    requests.DiffBody: {},
    requests.DeleteBody: {},
    requests.AppendBody: {"records": []},
    watching.WatchBody: {"topics": {}},
    group_requests.GroupBody: {},
    group_requests.FetchBody: {},
    group_requests.GroupAckBody: {"seq": 1},
    group_requests.SeekBody: {"to": 1},
    queue_requests.ClaimBody: {"node": "w"},
    queue_requests.SettleBody: {"node": "w", "seqs": [1]},
    queue_requests.NackBody: {"node": "w", "seqs": [1]},
    queue_requests.ExtendBody: {"node": "w", "seqs": [1], "lease_ms": 1},
    queue_requests.RedriveBody: {"to": "q"},
    ws_frames.Subscribe: {},
    ws_frames.Publish: {"topic": "t"},
    ws_frames.Credit: {"topic": "t", "n": 1},
    ws_frames.Ack: {"topic": "t", "seq": 1},
}
RAW = (requests.AppendBody, ws_frames.Publish)  # they keep what they pass on, null or not


def test_every_body_is_tried():
    known = {
        kind
        for module in (requests, watching, group_requests, queue_requests)
        for name, kind in vars(module).items()
        if name.endswith("Body") and not name.startswith("_")
    }
    assert known
    assert known <= set(GIVEN)


class Inner(msgspec.Struct):
    number: int = 3
    kept: msgspec.Raw = msgspec.Raw(b"")


class Outer(msgspec.Struct):
    needed: int
    data: msgspec.Raw
    limit: int = 7
    inner: dict[str, Inner | None] = {}
    anything: Any = 1


def decode(struct: type[Any], body: bytes | memoryview) -> Any:
    return decode_body(msgspec.json.Decoder(struct), body, Limits())


def refusal(struct: type[Any], body: bytes) -> str:
    with pytest.raises(TopicsError) as caught:
        decode(struct, body)
    assert caught.value.code == "invalid_request"
    return caught.value.message


@pytest.mark.parametrize("struct", GIVEN, ids=lambda struct: struct.__name__)
def test_every_optional_field_of_every_body_may_be_null(struct):
    given = GIVEN[struct]
    optional = [field.encode_name for field in msgspec.structs.fields(struct) if not field.required]
    for nulls in (*([name] for name in optional), optional):
        found = decode(struct, msgspec.json.encode(given | dict.fromkeys(nulls)))
        if struct not in RAW:
            assert found == decode(struct, msgspec.json.encode(given)), nulls


@pytest.mark.parametrize("struct", GIVEN, ids=lambda struct: struct.__name__)
def test_a_required_field_may_not(struct):
    for field in GIVEN[struct]:
        said = refusal(struct, msgspec.json.encode(GIVEN[struct] | {field: None}))
        assert said.startswith(f"{field}: expected `")
        assert said.endswith(", got `null`")


def test_what_is_beside_a_null_stays_as_it_was_written():
    text = b'[1.0,\t"\\u00e9", {"limit" : null} , 1E400]'
    body = b' {"limit" : null, "data": %b , "needed":1,"inner":{"a":{"number":null,"kept": %b},"b":null}}\n' % (
        text,
        text,
    )
    for form in (body, memoryview(body)):
        found = decode(Outer, form)
        assert (found.limit, bytes(found.data), found.inner["a"].number, found.inner["b"]) == (7, text, 3, None)
        assert bytes(found.inner["a"].kept) == text


def test_a_long_body_is_looked_at_once():
    long = b'{"needed":1,"data":"%b","limit":null}' % (b"x" * limits.NULLS_BYTES_MAX)
    assert refusal(Outer, long).startswith("limit: expected `int`, got `null`")


def test_of_a_field_that_is_given_twice_the_last_counts():
    assert decode(Outer, b'{"needed":1,"data":1,"limit":null,"limit":5}').limit == 5
    assert decode(Outer, b'{"needed":1,"data":1,"limit":5,"limit":null}').limit == 7


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"null", "the body: expected `object`, got `null`"),
        (b'{"needed":null,"data":1}', "needed: expected `int`, got `null`"),
        (b'{"needed":null,"data":1,"limit":null}', "needed: expected `int`, got `null`"),
        (b'{"limit":null,"data":1}', "the body: object missing required field `needed`"),
        (b'{"limit":null,"needed":"1","data":1}', "needed: expected `int`, got `str`"),
        (b'{"needed":"1","limit":null,"data":1}', "needed: expected `int`, got `str`"),
        (b'{"limit":null,"inner":{"a":5}}', "inner[...]: expected `object | null`, got `int`"),
        (b'{"inner":null,"data":1}', "the body: object missing required field `needed`"),
        (b'{"limit":null,"needed":01}', "the body is not valid JSON: JSON is malformed: "),
        (b'{"limit":null,"needed":1', "the body is not valid JSON: Input data was truncated"),
        (b'{"limit":null} x', "the body is not valid JSON: JSON is malformed: trailing characters (byte 16)"),
    ],
)
def test_other_mistakes_are_told(body, said):
    assert refusal(Outer, body).startswith(said)
