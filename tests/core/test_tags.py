"""The resident tag index: its answers are those of a scan over all records."""

from hypothesis import given
from hypothesis import strategies as st

from tests.core.strategies import Draft, block_of, many, some, texts
from topics.core.block import Block
from topics.core.match import TagMatch
from topics.core.requests import quoted
from topics.core.tags import LATER_RECORDS, Pattern, TagGeneration

tags = st.one_of(st.sampled_from(["", "a", "ab", "abc", "a*", 'a"', "a\\", "é", "\x00", "\U0010ffff"]), texts)
matches = st.builds(TagMatch, st.sampled_from(["Eq", "Glob"]), tags)
tag_lists = st.lists(st.none() | tags, min_size=1, max_size=30)


def tagged(first_seq: int, names: list[str | None]) -> Block:
    return block_of(
        first_seq, 0, [Draft(b"{}", 0, quoted(name) if name is not None else b"", b"", 0, 0) for name in names]
    )


def scan(match: TagMatch, names: list[str | None], first_seq: int = 1) -> list[int]:
    """The specification: look at every record."""
    return [seq for seq, name in enumerate(names, first_seq) if match.matches(name)]


@given(matches, tags)
@many
def test_a_pattern_over_quoted_tags_is_the_match_over_tags(match, tag):
    assert Pattern(match).matches(quoted(tag)) == match.matches(tag)


@given(matches, tags, tags)
@many
def test_quoting_keeps_prefixes(match, prefix, rest):
    """The quoted prefix without its closing quote begins exactly the quoted tags that the prefix begins."""
    assert quoted(prefix + rest).startswith(quoted(prefix)[:-1])
    assert quoted(rest).startswith(quoted(prefix)[:-1]) == rest.startswith(prefix)


@given(tag_lists, st.lists(matches, min_size=1, max_size=5))
@many
def test_find_is_a_scan(names, asked):
    index = TagGeneration()
    index.add(tagged(1, names))
    assert all(index.at_most(Pattern(match)) >= len(scan(match, names)) for match in asked)
    for match in asked:
        assert sorted(index.scan(Pattern(match))) == scan(match, names)
        assert sorted(index.find(Pattern(match))) == scan(match, names)
        assert index.at_most(Pattern(match)) >= len(scan(match, names))


@given(tag_lists, tag_lists, matches, matches)
@some
def test_records_added_after_a_prefix_query_are_found(first, second, asked, match):
    index = TagGeneration()
    index.add(tagged(1, first))
    list(index.find(Pattern(asked)))
    index.add(tagged(1 + len(first), second))
    assert sorted(index.find(Pattern(match))) == scan(match, first + second)


def test_an_untagged_record_never_matches_and_an_empty_tag_does():
    index = TagGeneration()
    index.add(tagged(5, [None, "", None, "x"]))
    assert sorted(index.find(Pattern(TagMatch("Glob", "")))) == [6, 8]
    assert list(index.find(Pattern(TagMatch("Eq", "")))) == [6]
    assert len(index) == 2


def test_the_tags_of_many_records_are_indexed_when_somebody_asks():
    index = TagGeneration()
    index.add(tagged(1, ["a", None] * LATER_RECORDS))
    index.add(tagged(9, ["a"]))
    assert index._parts[0] == {b'"a"': [9]}
    assert LATER_RECORDS < index.records <= 2 * LATER_RECORDS + 1
    exact = Pattern(TagMatch("Eq", "a"))
    assert LATER_RECORDS < index.at_most(exact) <= 2 * LATER_RECORDS + 1
    assert sorted(index.scan(exact)) == [1, 3, 5, 7, 9]
    assert index.at_most(exact) == LATER_RECORDS + 1


def test_a_prefix_is_where_a_tag_begins_not_somewhere_in_it():
    """A quoted prefix begins with a quote, which a tag may have inside, too."""
    index = TagGeneration()
    names: list[str | None] = ['a"ab', "ab", 'x\\"ab', "xab"]
    index.add(tagged(1, names))
    for match in (TagMatch("Glob", "ab"), TagMatch("Glob", "a"), TagMatch("Glob", "")):
        assert sorted(index.scan(Pattern(match))) == scan(match, names)
        assert sorted(index.find(Pattern(match))) == scan(match, names)
