"""The tag predicate: its grammar, what it matches, and the key range it scans."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.core.match import TagMatch, parse_match, prefix_end
from topics.errors import INVALID_REQUEST, TopicsError

tags = st.text(max_size=8) | st.text("ab*", max_size=4)
patterns = tags
keys = st.binary(max_size=4) | st.lists(st.sampled_from([0, 1, 0xFE, 0xFF]), max_size=4).map(bytes)


@pytest.mark.parametrize(
    ("value", "parsed"),
    [
        (["tag", "Eq", "X"], TagMatch("Eq", "X")),
        (["tag", "Eq", "X*"], TagMatch("Eq", "X*")),
        (["tag", "Eq", ""], TagMatch("Eq", "")),
        (["tag", "Glob", "X*"], TagMatch("Glob", "X")),
        (["tag", "Glob", "X**"], TagMatch("Glob", "X*")),
        (["tag", "Glob", "a*b*"], TagMatch("Glob", "a*b")),
        (["tag", "Glob", "*"], TagMatch("Glob", "")),
        ("X", TagMatch("Eq", "X")),
        ("X*", TagMatch("Glob", "X")),
        ("*", TagMatch("Glob", "")),
        ("", TagMatch("Eq", "")),
    ],
)
def test_grammar(value, parsed):
    assert parse_match(value) == parsed


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (None, "must be"),
        (5, "must be"),
        ({"tag": "X"}, "must be"),
        ([], "must be"),
        (["tag", "Eq"], "must be"),
        (["tag", "Eq", "X", "Y"], "must be"),
        (["node", "Eq", "X"], '"tag" only'),
        ([["tag"], "Eq", "X"], '"tag" only'),
        (["tag", "Regex", "X"], "Eq and Glob"),
        (["tag", "eq", "X"], "Eq and Glob"),
        (["tag", None, "X"], "Eq and Glob"),
        (["tag", [], "X"], "Eq and Glob"),
        (["tag", "Eq", 5], "string"),
        (["tag", "Glob", None], "string"),
        (["tag", "Glob", "X"], 'ends in "*"'),
        (["tag", "Glob", "a*b"], 'ends in "*"'),
        (["tag", "Glob", ""], 'ends in "*"'),
    ],
)
def test_refusals_say_what_is_wrong(value, says):
    with pytest.raises(TopicsError) as refusal:
        parse_match(value)
    assert refusal.value.code == INVALID_REQUEST
    assert says in refusal.value.message


@given(patterns, tags)
def test_eq_and_glob(pattern, tag):
    assert parse_match(["tag", "Eq", pattern]).matches(tag) == (pattern == tag)
    assert parse_match(["tag", "Glob", pattern + "*"]).matches(tag) == tag.startswith(pattern)


@given(patterns)
def test_a_record_without_a_tag_never_matches(pattern):
    assert not parse_match(pattern).matches(None)
    assert not parse_match(["tag", "Eq", pattern]).matches(None)


@given(keys, keys)
def test_prefix_end_bounds_the_scan(prefix, key):
    end = prefix_end(prefix)
    in_range = prefix <= key and (end is None or key < end)
    assert in_range == key.startswith(prefix)


@given(tags, tags)
def test_a_range_of_utf8_keys_is_the_glob(prefix, tag):
    start = prefix.encode()
    end = prefix_end(start)
    key = tag.encode()
    in_range = start <= key and (end is None or key < end)
    assert in_range == TagMatch("Glob", prefix).matches(tag)


@pytest.mark.parametrize(
    ("prefix", "end"),
    [(b"", None), (b"\xff", None), (b"\xff\xff", None), (b"a", b"b"), (b"a\xff", b"b"), (b"a\x00", b"a\x01")],
)
def test_prefix_end(prefix, end):
    assert prefix_end(prefix) == end
