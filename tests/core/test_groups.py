"""Consumer groups, the pure part: what moves a cursor, who is active, what a replay comes to."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.test_topic import T0, grow, new_topic
from topics import limits
from topics.core import groups
from topics.core.group_requests import decode_ack, decode_fetch, decode_group, decode_seek
from topics.core.groups import AtTime, Group
from topics.errors import TopicsError
from topics.limits import Limits

BOUNDS = Limits()


def a_group(cursor: int = 0, consumer: str = "", left: tuple[str, ...] = ()) -> Group:
    return Group("g", cursor, T0, T0, consumer, left)


# --- where ------------------------------------------------------------------------------------------------------------


def test_where_a_group_can_be_put():
    topic = grow(grow(new_topic(cap_records=4), 3), 3, T0 + 10)
    now = T0 + 20

    def cursor(where: Any) -> int:
        return groups.cursor_of(topic, where, "to", now)

    assert (topic.earliest_seq, topic.head_seq) == (3, 6)
    assert cursor("earliest") == 2
    assert cursor("latest") == 6
    assert [cursor(seq) for seq in (0, 4, 6)] == [0, 4, 6]
    assert cursor(AtTime(T0 + 1)) == 3
    assert cursor(AtTime(T0 + 10)) == 3
    assert cursor(AtTime(T0 + 11)) == 6


@pytest.mark.parametrize("where", [-1, 1, 2**70, AtTime(-1), AtTime(2**64)])
def test_where_it_cannot(where):
    with pytest.raises(TopicsError) as refused:
        groups.cursor_of(new_topic(), where, "to", T0)
    assert (refused.value.code, refused.value.detail["field"]) == ("invalid_request", "to")


def test_a_cursor_behind_the_end_of_a_topic_that_lost_some_goes_back_to_it():
    topic = grow(new_topic(), 5)
    topic.groups = {"a": a_group(9), "b": a_group(5), "c": a_group(2)}
    assert [group.cursor for group in groups.settle(topic)] == [5]
    assert {name: group.cursor for name, group in topic.groups.items()} == {"a": 5, "b": 5, "c": 2}


# --- consumers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("active", "left", "consumer", "outcome"),
    [
        ("", (), None, False),
        ("a", ("b",), None, False),
        ("", (), "a", True),
        ("a", (), "a", False),
        ("a", (), "b", True),
        ("b", ("a",), "b", False),
        ("b", ("a",), "c", True),
        ("b", ("a",), "a", "taken_over"),
    ],
)
def test_who_takes_over(active, left, consumer, outcome):
    group = a_group(0, active, left)
    if outcome == "taken_over":
        with pytest.raises(TopicsError) as refused:
            groups.takes_over(group, consumer)
        assert refused.value.code == "taken_over"
        assert groups.takes_over(group, consumer, back=True)
    else:
        assert groups.takes_over(group, consumer) is outcome


@pytest.mark.parametrize(
    ("active", "left", "consumer", "outcome"),
    [
        ("", (), None, False),
        ("a", (), None, False),
        ("", (), "a", True),
        ("a", (), "a", False),
        ("a", (), "b", "taken_over"),
        ("b", ("a",), "a", "taken_over"),
    ],
)
def test_who_goes_on_takes_over_from_nobody(active, left, consumer, outcome):
    group = a_group(0, active, left)
    if outcome == "taken_over":
        with pytest.raises(TopicsError) as refused:
            groups.comes_first(group, consumer)
        assert refused.value.code == "taken_over"
    else:
        assert groups.comes_first(group, consumer) is outcome


def test_a_group_remembers_some_that_were_taken_over_from():
    topic = new_topic()
    known: dict[str, Group] = {}
    groups.apply(known, groups.made(topic, "g", 0, "c0", T0))
    for n in range(1, limits.GROUP_LEFT_MAX + 3):
        groups.apply(known, groups.passed_on(topic, known["g"], f"c{n}", T0))
    group = known["g"]
    assert group.consumer == f"c{limits.GROUP_LEFT_MAX + 2}"
    assert group.left == tuple(f"c{n}" for n in range(2, limits.GROUP_LEFT_MAX + 2))
    groups.apply(known, groups.passed_on(topic, group, "c5", T0))
    assert (group.consumer, "c5" in group.left, group.left[-1]) == ("c5", False, f"c{limits.GROUP_LEFT_MAX + 2}")


# --- events -----------------------------------------------------------------------------------------------------------

names = st.sampled_from(["a", "b"])
steps = st.lists(
    st.one_of(
        st.tuples(st.just("make"), names, st.integers(0, 9)),
        st.tuples(st.just("pass on"), names, st.integers(0, 12)),
        st.tuples(st.just("move"), names, st.integers(0, 2**64 - 1)),
        st.tuples(st.just("remove"), names, st.just(0)),
    ),
    max_size=30,
)


@given(steps, st.data())
def test_a_replay_of_what_is_stored_comes_to_the_same(history, data):
    """Also if it begins with what everything came to at some time, as after the log was written anew."""
    topic = new_topic()
    known: dict[str, Group] = {}
    events = []
    anew = data.draw(st.integers(0, len(history)))
    for number, (what, name, value) in enumerate(history):
        if number == anew:
            events = [groups.kept(topic, group, T0) for group in known.values()]
        group = known.get(name)
        if what == "make" and group is None:
            events.append(groups.made(topic, name, value, None, T0 + number))
        elif group is None:
            continue
        elif what == "pass on":
            events.append(groups.passed_on(topic, group, f"c{value}", T0 + number))
        elif what == "move":
            events.append(groups.moved(topic, group, value, T0 + number))
        elif what == "remove":
            events.append(groups.removed(topic, group, T0 + number))
        else:
            continue
        groups.apply(known, events[-1])
    replayed: dict[str, Group] = {}
    for event in groups.decode(groups.encode(events)):
        groups.apply(replayed, event)
    assert {name: stored(group) for name, group in replayed.items()} == {
        name: stored(group) for name, group in known.items()
    }


def stored(group: Group) -> Group:
    return msgspec.structs.replace(group, moves=0, shown=0)


# --- requests ---------------------------------------------------------------------------------------------------------


def test_bodies():
    assert decode_group(b"", BOUNDS) == "earliest"
    assert decode_group(b'{"from":"latest"}', BOUNDS) == "latest"
    assert decode_group(b'{"from":{"ts":5}}', BOUNDS) == AtTime(5)
    fetch = decode_fetch(b'{"limit":9,"wait_ms":99999999,"consumer":"c","from":3}', BOUNDS)
    assert (fetch.query.limit, fetch.query.wait_ms) == (9, limits.DIFF_WAIT_MS_MAX)
    assert (fetch.consumer, fetch.start, fetch.take_over) == ("c", 3, False)
    assert decode_fetch(b"", BOUNDS).query.limit == limits.DIFF_LIMIT_DEFAULT
    assert decode_ack(b'{"seq":3}', BOUNDS).seq == 3
    assert decode_seek(b'{"to":"earliest","consumer":"c"}', BOUNDS).consumer == "c"


@pytest.mark.parametrize(
    ("decode", "body", "field"),
    [
        (decode_group, b'{"from":"middle"}', "from"),
        (decode_group, b'{"from":[null]}', "from"),
        (decode_group, b'{"form":1}', "form"),
        (decode_group, b'{"from":-1}', "from"),
        (decode_group, b'{"from":{"ts":-1}}', "from"),
        (decode_fetch, b'{"from":-1}', "from"),
        (decode_seek, b'{"to":{"ts":18446744073709551616}}', "to"),
        (decode_fetch, b'{"from_seq":1}', "from_seq"),
        (decode_fetch, b'{"limit":-1}', "limit"),
        (decode_fetch, b'{"take_over":true}', "consumer"),
        (decode_fetch, b'{"consumer":""}', "consumer"),
        (decode_ack, b"{}", "seq"),
        (decode_ack, b'{"seq":"1"}', "seq"),
        (decode_ack, b'{"seq":1,"consumer":5}', "consumer"),
        (decode_seek, b"{}", "to"),
        (decode_seek, b'{"to":1.5}', "to"),
    ],
)
def test_bodies_that_are_refused(decode, body, field):
    with pytest.raises(TopicsError) as refused:
        decode(body, BOUNDS)
    assert (refused.value.code, refused.value.detail["field"]) == ("invalid_request", field)
