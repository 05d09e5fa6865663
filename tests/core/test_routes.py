"""Router definitions: reading requests, rendering, and the graph."""

import json

import msgspec
import pytest

from topics.core.match import TagMatch
from topics.core.routes import _FIELDS, Definition, check_graph, find_way, parse_router, shown
from topics.errors import TopicsError


def parse(**fields):
    return parse_router(json.dumps(fields).encode())


def refused(**fields):
    with pytest.raises(TopicsError) as caught:
        parse(**fields)
    assert caught.value.code == "invalid_request"
    return caught.value.detail.get("field")


def test_defaults():
    definition, create_dest = parse(source="a", dest="b")
    assert definition == Definition("a", "b", True, True, None, False, "at_least_once")
    assert create_dest is True


def test_null_is_the_default():
    nulls = dict.fromkeys(field for field in _FIELDS if field not in ("source", "dest"))
    assert parse(source="a", dest="b", **nulls) == parse(source="a", dest="b")
    assert refused(source=None, dest="b") == "source"
    assert refused(source="a", dest=None) == "dest"


def test_everything_given():
    definition, create_dest = parse(
        source="a",
        dest="b",
        preserve_node=False,
        preserve_tag=False,
        create_dest=False,
        filter=["tag", "Glob", "public:*"],
        allow_cycle=True,
        guarantee="exactly_once",
    )
    assert definition == Definition("a", "b", False, False, TagMatch("Glob", "public:"), True, "exactly_once")
    assert create_dest is False


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"dest": "b"}, "source"),
        ({"source": "a"}, "dest"),
        ({}, "source"),
        ({"source": "a", "dest": "a"}, "dest"),
        ({"source": 1, "dest": "a"}, "source"),
        ({"source": "a", "dest": "$x"}, "dest"),
        ({"source": "a>b", "dest": "c"}, "source"),
        ({"source": "a", "dest": "b", "preserve_node": 1}, "preserve_node"),
        ({"source": "a", "dest": "b", "preserve_tag": ""}, "preserve_tag"),
        ({"source": "a", "dest": "b", "create_dest": "no"}, "create_dest"),
        ({"source": "a", "dest": "b", "allow_cycle": "yes"}, "allow_cycle"),
        ({"source": "a", "dest": "b", "guarantee": "twice"}, "guarantee"),
        ({"source": "a", "dest": "b", "guarantee": ["at_least_once"]}, "guarantee"),
        ({"source": "a", "dest": "b", "filter": ["node", "Eq", "x"]}, "filter"),
        ({"source": "a", "dest": "b", "filter": ["tag", "Glob", "x"]}, "filter"),
        ({"source": "a", "dest": "b", "filter": 3}, "filter"),
        ({"source": "a", "dest": "b", "filer": None}, "filer"),
    ],
)
def test_refusals_name_the_field(fields, field):
    assert refused(**fields) == field


@pytest.mark.parametrize("body", [b"{", b"[]", b'"x"', b"[" * 5000])
def test_bodies_that_are_no_object(body):
    with pytest.raises(TopicsError) as caught:
        parse_router(body)
    assert caught.value.code == "invalid_request"


def test_filters_are_shown_as_tuples():
    assert shown("r", parse(source="a", dest="b", filter="x*")[0])["filter"] == ["tag", "Glob", "x*"]
    assert shown("r", parse(source="a", dest="b", filter="x")[0])["filter"] == ["tag", "Eq", "x"]
    assert shown("r", parse(source="a", dest="b")[0])["filter"] is None


def test_a_definition_survives_storage():
    definition = parse(source="a", dest="b", filter="x*", guarantee="exactly_once")[0]
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(definition), type=Definition) == definition


# --- the graph ------------------------------------------------------------------------------------------------------


def routers(*edges):
    return {f"{source}->{dest}": Definition(source, dest) for source, dest in (edge.split(">") for edge in edges)}


def cycle_of(name, wanted, known):
    with pytest.raises(TopicsError) as caught:
        check_graph(name, wanted, known)
    assert caught.value.code == "router_cycle"
    return caught.value.detail["cycle"]


def test_a_cycle_is_refused_with_its_path():
    known = routers("a>b", "b>c", "a>d")
    assert cycle_of("x", Definition("b", "a"), known) == ["b", "a", "b"]
    assert cycle_of("x", Definition("c", "a"), known) == ["c", "a", "b", "c"]
    check_graph("x", Definition("c", "e"), known)
    check_graph("x", Definition("c", "a", allow_cycle=True), known)


def test_a_router_that_stays_closes_nothing():
    known = routers("a>b") | {"back": Definition("b", "a", allow_cycle=True)}
    check_graph("a->b", Definition("a", "b", preserve_tag=False), known)
    check_graph("back", Definition("b", "a", preserve_tag=False, allow_cycle=True), known)
    assert cycle_of("back", Definition("b", "a"), known) == ["b", "a", "b"]


def test_its_old_edge_does_not_count():
    known = routers("a>b")
    check_graph("a->b", Definition("b", "a"), known)


def test_a_destination_has_one_source():
    known = routers("a>b")
    with pytest.raises(TopicsError) as caught:
        check_graph("x", Definition("c", "b", allow_cycle=True), known)
    assert caught.value.code == "topic_exists_incompatible"
    assert caught.value.detail["reason"] == "router_dest_fan_in"
    check_graph("x", Definition("a", "b", filter=TagMatch("Eq", "t")), known)  # the same source
    check_graph("a->b", Definition("c", "b"), known)  # instead of it


def test_the_shortest_way_is_found():
    known = routers("a>b", "b>c", "c>d", "a>d")
    assert find_way(known.values(), "a", "d") == ["a", "d"]
    assert find_way(known.values(), "d", "a") is None
