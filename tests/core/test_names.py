"""Names: the rule, byte for byte."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.core.names import check_router_name, check_topic_name, is_topic_name
from topics.errors import INVALID_REQUEST, TopicsError

FIRST = string.ascii_letters + string.digits
REST = FIRST + "._:-"

valid_names = st.builds(
    lambda first, rest: first + rest, st.sampled_from(FIRST), st.text(st.sampled_from(REST), max_size=254)
)


def allowed(name: str, rest: str) -> bool:
    return 1 <= len(name) <= 255 and name[0] in FIRST and all(char in rest for char in name)


@given(valid_names)
def test_valid_names_come_back_unchanged(name):
    assert check_topic_name(name) is name
    assert check_router_name(name) is name


@given(st.one_of(st.text(max_size=300), st.text(st.sampled_from(REST + ">/ \n"), max_size=260)))
def test_the_rule_against_a_plain_model(name):
    assert is_topic_name(name) == allowed(name, REST)
    for check, rest in ((check_topic_name, REST), (check_router_name, REST + ">")):
        if allowed(name, rest):
            assert check(name) == name
        else:
            with pytest.raises(TopicsError) as refusal:
                check(name)
            assert refusal.value.code == INVALID_REQUEST
            assert "1 to 255 characters" in refusal.value.message


@pytest.mark.parametrize("name", ["", ".a", "-a", ":a", "a" * 256, "a\n", "a b", "a/b", "é", "a\u0301", "٣", "a\x00"])
def test_refused(name):
    with pytest.raises(TopicsError):
        check_topic_name(name)
    with pytest.raises(TopicsError):
        check_router_name(name)


def test_a_router_may_be_named_after_its_ends():
    assert check_router_name("orders->audit") == "orders->audit"
    with pytest.raises(TopicsError):
        check_topic_name("orders->audit")
    with pytest.raises(TopicsError):
        check_router_name(">audit")
