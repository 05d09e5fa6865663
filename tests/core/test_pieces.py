"""A body that is decoded in pieces: the same records, the same refusals, in small portions."""

import json
import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.strategies import json_texts, many, meta_texts
from topics import limits
from topics.core import requests
from topics.core.pieces import find_non_utf8
from topics.core.requests import Append, decode_append
from topics.errors import TopicsError
from topics.limits import Limits

NOT_JSON = "the body is not valid JSON"
SPACES = st.sampled_from([b"", b"", b" ", b"\n  ", b"\t"])
TRICKY = st.sampled_from(
    [
        b'"},{\\"data\\":1},{\\"data\\":2"',
        b'[{"data":1},{"data":2},{"data":3},{"tag":"x"},{"data":4}]',
        b'{"a":[{"b":1},{"tag":"c"}],"data":{"data":{}}}',
        b'"\\\\"',
        b'{"records":[1,2]}',
    ]
)


@st.composite
def records(draw: Any) -> bytes:
    fields = [b'"data":' + draw(st.one_of(json_texts, TRICKY))]
    if draw(st.booleans()):
        fields.append(b'"tag":' + draw(st.sampled_from([b'"t"', b"null", b'"},{"', b"7"])))
    if draw(st.booleans()):
        fields.append(b'"meta":' + draw(meta_texts))
    gap: bytes = draw(SPACES)
    return gap + b"{" + (b"," + gap).join(draw(st.permutations(fields))) + gap + b"}"


@st.composite
def bodies(draw: Any) -> bytes:
    many_records = draw(SPACES).join([b",".join(draw(st.lists(records(), max_size=12)))])
    others = [b'"node":"n"', b'"create":true', b'"config":{"ttl_ms":1}', b'"idempotency_key":"k"', b'"records":[]']
    fields = [b'"records":%b[%b]' % (draw(SPACES), many_records), *draw(st.lists(st.sampled_from(others), max_size=2))]
    body: bytes = b"{" + b",".join(draw(st.permutations(fields))) + b"}"
    if draw(st.integers(0, 3)):
        return body
    at = draw(st.integers(0, len(body)))
    other: bytes = draw(st.sampled_from([b"", b"\xff", b"}", b"]", b'"', b",", b"\\", b",]"]))
    return body[:at] + other + body[at + draw(st.sampled_from([0, 1, 1, 3])) :]


def outcome(body: bytes) -> Append | tuple[str, str]:
    try:
        return decode_append(body, "t", Limits())
    except TopicsError as error:
        return error.code, str(error)


@given(bodies(), st.integers(1, 64))
@many
def test_pieces_are_the_whole(body: bytes, piece_bytes: int):
    whole = outcome(body)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "PIECE_BYTES", piece_bytes)
        pieces = outcome(body)
    if isinstance(whole, tuple) and whole != pieces:  # which one of several faults is told may differ
        assert isinstance(pieces, tuple)
        assert pieces[0] == whole[0]
        assert NOT_JSON in pieces[1] or NOT_JSON in whole[1]
    else:
        assert pieces == whole


def body_of(data: str, count: int, **more: Any) -> bytes:
    return json.dumps({"records": [{"data": data, "tag": "t"}] * count, **more}).encode()


def sizes_decoded(body: bytes, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes that each call of a decoder got."""
    sizes: list[int] = []

    class Noting:
        def __init__(self, decoder: Any) -> None:
            self.decoder = decoder

        def decode(self, part: bytes) -> Any:
            sizes.append(len(part))
            return self.decoder.decode(part)

    for name in ("_append", "_records"):
        monkeypatch.setattr(requests, name, Noting(getattr(requests, name)))
    assert len(decode_append(body, "t", Limits()).records) == body.count(b'"tag"')
    return sizes


def test_no_piece_is_large(monkeypatch: pytest.MonkeyPatch):
    body = body_of("x" * 5000, 2000, node="n")
    sizes = sizes_decoded(body, monkeypatch)
    assert len(sizes) > 30
    assert max(sizes) <= 2 * limits.PIECE_BYTES + 64


def test_records_that_are_larger_than_a_piece_are_pieces_of_their_own(monkeypatch: pytest.MonkeyPatch):
    sizes = sizes_decoded(body_of("x" * 900_000, 10), monkeypatch)
    assert [size for size in sizes if size > 1000] == [pytest.approx(900_000, abs=100)] * 10


PADDING = b'"' + b"x" * 700_000 + b'"'
UNUSUAL = {
    "members that nobody knows": b'{"what":1,"data":{"records":[{"data":1},{"data":2}]},"tag":"t"}',
    "escaped names": b'{"\\u0064ata":1,"tag":"t"}',
    "brackets and quotes in strings": b'{"zzz":0,"data":"}, {\\"data\\":[[[","tag":"t"}',
    "lists of what looks like records": b'{"zzz":0,"data":[{"data":1},{"data":{}},{"node":2}],"tag":"t"}',
    "white space": b'{\n\t"zzz" : 0 , "data" : [ ] ,\r\n "tag" : "t" }',
}


@pytest.mark.parametrize("record", UNUSUAL.values(), ids=UNUSUAL)
def test_unusual_records_go_in_pieces_too(record: bytes, monkeypatch: pytest.MonkeyPatch):
    body = (
        b'{"create":true,"records": [' + b" ,\n".join([record] * (3_000_000 // len(record) // 3)) + b' ] , "node":"n"}'
    )
    monkeypatch.setattr(requests, "_check_count", lambda *_, **__: None)
    sizes = sizes_decoded(body, monkeypatch)
    assert max(sizes) <= 2 * limits.PIECE_BYTES + 64
    assert decode_append(body, "t", Limits()).node == "n"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b'{"records":[{"data":1}],"other":%b,"another":%b}' % (PADDING, PADDING), "beside its records"),
        (b'{"records":[{"data":1,"other":%b}]}' % (PADDING * 8).replace(b'""', b""), "bytes of text"),
        (b'{"records":[{"data":1,"other":[%b}]}' % (b'"",' * 2_000_000), "bytes of text"),
        (b'{"records":[%b]}' % b",".join([b'{"data":1}'] * 90_000), "records in one write; the limit is 10000"),
        (b"[" + PADDING + b"]", "expected `object`, got `array`"),
        (b'{"records":[{"data":%b}],"records":7}' % PADDING, "expected `array`, got `int`"),
        (b'{"records":[{"data":%b},]}' % PADDING, "trailing comma in array"),
        (b'{"records":[{"data":%b}]%b}' % (PADDING, b',"records":[]' * 64), "more than 64 members"),
        (b'{"records":[{"data":%b}],"x":%b}' % (PADDING, b"[" * 9999), "nested too deeply"),
        (b'{"node":7,"records":[{"data":%b,"tag":7}]}' % PADDING, "node: expected"),
        (b'{"records":[{"data":%b},{"data":1,"tag":7}]}' % PADDING, "records[1].tag: expected"),
        (b'{"records":[{"data":%b},{"data":[}]}' % PADDING, "invalid character (byte 700033)"),
        (b'{"records":[{"data":%b}]} 5' % PADDING, "trailing characters (byte 700027)"),
        (b'{"records":[{"data":%b' % PADDING, "truncated"),
        (b'{"records":[{"data":%b}]}' % PADDING.replace(b"xx", b"\xc3\x28", 1), "not valid UTF-8 at byte 21"),
        (b'{"records":[{"data":%b}]}' % (b"[" * 300_000 + b"]" * 300_000), "nested too deeply"),
        (b'{"records":[{"data":%b,"tag":"\\ud800"}]}' % PADDING, "half of a surrogate pair"),
    ],
)
def test_what_is_wrong_with_a_large_body_is_told(body: bytes, says: str):
    with pytest.raises(TopicsError, match=re.escape(says)):
        decode_append(body, "t", Limits())


def test_the_decoder_says_where_a_list_ends():
    """What the last piece is found by."""
    with pytest.raises(msgspec.DecodeError, match=re.escape("trailing characters (byte 14)")):
        requests._records.decode(b'[{"data":1}] ,"x":1}')


def test_lookalikes_far_apart_do_not_make_large_pieces(monkeypatch: pytest.MonkeyPatch):
    few = b'{"x":0,"data":[{},{"data":1}],"tag":"t"},' + b'{"x":0,"data":"%b","tag":"t"},' % (b"a" * 7000) * 200
    sizes = sizes_decoded(b'{"records":[%b{"data":1,"tag":"t"}]}' % (few * 4), monkeypatch)
    assert max(sizes) <= 2 * limits.PIECE_BYTES + 64


def test_of_several_lists_the_last_one_counts():
    one, two = (b'{"data":"%b%b"}' % (PADDING[1:-1], mark) for mark in (b"1", b"2"))
    found = decode_append(b'{"records":[%b,%b],"rec\\u006frds":[%b]}' % (one, two, two), "t", Limits())
    assert [bytes(record.data)[-2:] for record in found.records] == [b'2"']


@given(st.binary(max_size=40), st.integers(1, 8))
def test_the_first_byte_that_is_not_utf8_is_found(text: bytes, piece_bytes: int):
    try:
        text.decode()
        expected = None
    except UnicodeDecodeError as error:
        expected = error.start
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "PIECE_BYTES", piece_bytes)
        assert find_non_utf8(text) == expected
