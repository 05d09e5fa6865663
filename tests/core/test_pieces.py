"""A body that is decoded in pieces: the same records, the same refusals, in small portions."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.strategies import json_texts, many, meta_texts
from topics import limits
from topics.core import requests
from topics.core.pieces import decode_pieces
from topics.core.requests import Append, RecordIn, decode_append
from topics.errors import TopicsError
from topics.limits import Limits

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
    other: bytes = draw(st.sampled_from([b"", b"\xff", b"}", b"]", b'"', b","]))
    return body[:at] + other + body[at + 1 :]


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
        assert outcome(body) == whole


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
    assert len(sizes) == 10


@pytest.mark.parametrize(
    "body",
    [
        b'{"records":[{"data":1},{"data":2}],"records":[{"data":3}]}',
        b'{"config":{"x":1},"records":[{"data":1},{"data":2},{"data":3}]}',
        b"[]",
        b'{"records":7}',
    ],
)
def test_what_is_unusual_goes_in_one_go(body: bytes, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "PIECE_BYTES", 4)
    decoder = msgspec.json.Decoder(list[RecordIn])
    assert decode_pieces(body, decoder.decode, msgspec.json.decode) is None
