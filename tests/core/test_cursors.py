"""Composite cursors: what is encoded is what is decoded, and nothing a client makes up does harm."""

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.core.cursors import decode_id, decode_map, encode_map, encode_token
from topics.core.requests import quoted
from topics.errors import TopicsError

SEQS = st.integers(0, 2**64 - 1)


@given(st.dictionaries(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,20}", fullmatch=True), SEQS, max_size=64))
def test_a_map_is_base64url_of_json_without_padding(positions):
    cursor = encode_map(quoted(name) + b":%d" % seq for name, seq in positions.items()).decode()
    assert "=" not in cursor
    assert "+" not in cursor
    assert "/" not in cursor
    assert json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))) == positions
    assert decode_map(cursor) == positions
    assert decode_id(cursor, list(positions)) == positions


@given(st.lists(SEQS, min_size=1, max_size=300))
def test_a_token_gives_every_topic_its_seq_back(seqs):
    topics = [f"t{n}" for n in range(len(seqs))]
    token = encode_token(seqs).decode()
    assert decode_id(token, topics) == dict(zip(topics, seqs, strict=True))
    assert decode_id(token, topics[1:]) == {}


@given(st.one_of(st.text(max_size=200), st.binary(max_size=100).map(lambda raw: "~" + base64.b64encode(raw).decode())))
def test_no_id_is_too_strange(text):
    for topic, seq in decode_id(text, ["a", "b"]).items():
        assert isinstance(topic, str)
        assert 0 <= seq < 2**64


@pytest.mark.parametrize("text", ["", "!", "e30x", "eyJhIjotMX0", "eyJhIjoieCJ9", "~AA"])
def test_a_cursor_in_a_request_must_be_right(text):
    with pytest.raises(TopicsError) as refused:
        decode_map(text)
    assert refused.value.detail["field"] == "cursor"
