"""Topic configuration: parsing, merging, and its three forms."""

import json

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.core.config import (
    DEFAULT,
    U64_MAX,
    ConfigPatch,
    TopicConfig,
    from_wire,
    intern,
    merge,
    parse_config,
    to_json,
    to_wire,
)
from topics.errors import INVALID_REQUEST, TOPIC_EXISTS_INCOMPATIBLE, TopicsError

U64_FIELDS = ["ttl_ms", "cap_records", "cap_bytes", "idempotency_window_ms", "max_deliveries", "compression_min_bytes"]
U64_FIELDS += ["priority_age_ms"]
CLAMPED_FIELDS = {"priority": (-1000, 1000), "lease_ms": (100, 86_400_000), "claim_jitter_ms": (0, 5000)}
BOOL_FIELDS = ["durable", "auto_priority", "auto_create", "dedupe_node", "leases_durable"]
CHOICE_FIELDS = {
    "type": ["log", "queue"],
    "discard": ["old", "reject"],
    "durability": ["ephemeral", "memory", "disk", "fsync"],
    "compression": ["none", "gzip", "zstd"],
}
EXAMPLE_ORDER = [
    "type", "ttl_ms", "cap_records", "cap_bytes", "discard", "durable", "durability", "priority", "auto_priority",
    "auto_create", "idempotency_window_ms", "dedupe_node", "lease_ms", "claim_jitter_ms", "max_deliveries",
    "dead_letter", "leases_durable", "compression", "compression_min_bytes", "priority_age_ms", "message_ids",
]  # fmt: skip

u64s = st.integers(0, U64_MAX)
requests = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(U64_FIELDS, u64s),
        **dict.fromkeys(CLAMPED_FIELDS, u64s),
        **{field: st.booleans() for field in BOOL_FIELDS},
        **{field: st.sampled_from(choices) for field, choices in CHOICE_FIELDS.items()},
        "priority": st.none() | st.integers(-5000, 5000),
        "dead_letter": st.none() | st.sampled_from(["jobs.dlq", "a:b"]),
    },
)
updates = requests.map(lambda request: {field: value for field, value in request.items() if field != "type"})


def put(request, current=None, topic="jobs") -> TopicConfig:
    return merge(current, parse_config(json.dumps(request).encode(), topic), topic)


def refused(raw, topic="jobs") -> TopicsError:
    with pytest.raises(TopicsError) as refusal:
        parse_config(raw, topic)
    assert refusal.value.code == INVALID_REQUEST
    return refusal.value


def expected(request, before) -> dict:
    """The rules once more, written plainly."""
    after = {**before, **{field: value for field, value in request.items() if field != "durable"}}
    if "durable" in request and "durability" not in request:
        after["durability"] = "fsync" if request["durable"] else "disk"
    for field, (low, high) in CLAMPED_FIELDS.items():
        if after[field] is not None:
            after[field] = min(max(after[field], low), high)
    after["durable"] = after["durability"] == "fsync"
    return after


@given(requests, updates)
def test_put_then_put_again(first, second):
    created = put(first)
    assert json.loads(to_json(created)) == expected(first, json.loads(to_json(DEFAULT)))
    updated = put(second, created)
    assert json.loads(to_json(updated)) == expected(second, json.loads(to_json(created)))
    assert put(second, updated) is updated
    assert put({}, updated) is updated


@given(requests)
def test_the_full_object_can_be_put_back(request_):
    config = put(request_)
    assert put(json.loads(to_json(config))) is config


@given(requests)
def test_equal_configs_are_one_object(request_):
    assert put(request_) is put(request_)
    assert intern(TopicConfig()) is DEFAULT


@given(requests)
def test_storage_form(request_):
    config = put(request_)
    stored = to_wire(config)
    assert all(value != getattr(DEFAULT, field) for field, value in stored.items())
    packed = msgpack.packb({**stored, "field_of_a_later_version": [1]})
    assert from_wire(msgpack.unpackb(packed)) is config


def test_storage_form_of_the_default_is_empty():
    assert to_wire(DEFAULT) == {}
    assert from_wire({}) is DEFAULT


def test_json_has_the_order_and_the_defaults_of_the_api():
    assert to_json(DEFAULT) == (
        b'{"type":"log","ttl_ms":0,"cap_records":0,"cap_bytes":0,"discard":"old","durable":false,"durability":"disk",'
        b'"priority":null,"auto_priority":true,"auto_create":true,"idempotency_window_ms":120000,"dedupe_node":true,'
        b'"lease_ms":30000,"claim_jitter_ms":0,"max_deliveries":0,"dead_letter":null,"leases_durable":false,'
        b'"compression":"none","compression_min_bytes":1024,"priority_age_ms":60000,"message_ids":false}'
    )
    assert list(json.loads(to_json(put({"durable": True, "type": "queue"})))) == EXAMPLE_ORDER


@pytest.mark.parametrize("raw", [b"", b"  \r\n", b"{}", {}])
def test_an_empty_body_is_all_defaults_and_no_change(raw):
    patch = parse_config(raw, "jobs")
    assert patch == ConfigPatch({})
    assert merge(None, patch, "jobs") is DEFAULT
    queue = put({"type": "queue", "ttl_ms": 5})
    assert merge(queue, patch, "jobs") is queue


@pytest.mark.parametrize("raw", [b"null", b"[]", b'"x"', b"1", b"{", b"\xff", b'{"a":"\xff"}', b"{}x", b"[" * 100_000])
def test_a_body_that_is_no_object(raw):
    refused(raw)


@pytest.mark.parametrize("field", U64_FIELDS)
@pytest.mark.parametrize("bad", ["-1", "18446744073709551616", "1.5", "1.0", "1e3", "true", '"5"', "null", "[]", "{}"])
def test_u64_fields_refuse(field, bad):
    refusal = refused(f'{{"{field}":{bad}}}'.encode())
    assert refusal.detail == {"field": field}
    assert field in refusal.message


@pytest.mark.parametrize("field", U64_FIELDS)
def test_u64_fields_take_the_whole_range(field):
    assert getattr(put({field: U64_MAX}), field) == U64_MAX
    assert getattr(put({field: 0}), field) == 0


@pytest.mark.parametrize("field", CLAMPED_FIELDS)
def test_clamped_fields(field):
    low, high = CLAMPED_FIELDS[field]
    if low:  # else see below
        assert getattr(put({field: low - 1}), field) == low
    assert getattr(put({field: low}), field) == low
    assert getattr(put({field: high}), field) == high
    assert getattr(put({field: high + 1}), field) == high
    for bad in ("1.5", "true", '"5"', "[]"):
        assert refused(f'{{"{field}":{bad}}}'.encode()).detail == {"field": field}


@pytest.mark.parametrize("field", ["lease_ms", "claim_jitter_ms"])
@pytest.mark.parametrize("bad", [-1, U64_MAX + 1])
def test_what_is_no_time_is_not_clamped(field, bad):
    assert refused(f'{{"{field}":{bad}}}'.encode()).detail == {"field": field}


@pytest.mark.parametrize("field", BOOL_FIELDS)
@pytest.mark.parametrize("bad", [b"0", b"1", b'"true"', b"null"])
def test_bool_fields_refuse(field, bad):
    assert refused(b'{"%s":%s}' % (field.encode(), bad)).detail == {"field": field}


@pytest.mark.parametrize("field", CHOICE_FIELDS)
@pytest.mark.parametrize("bad", [b'""', b'"LOG"', b"1", b"null", b'["log"]'])
def test_choice_fields_refuse(field, bad):
    refusal = refused(b'{"%s":%s}' % (field.encode(), bad))
    assert all(choice in refusal.message for choice in CHOICE_FIELDS[field])


def test_null_resets_priority_and_dead_letter_only():
    config = put({"priority": 7, "dead_letter": "jobs.dlq"})
    assert put({"priority": None}, config) == put({"dead_letter": "jobs.dlq"})
    assert put({"dead_letter": None}, config) == put({"priority": 7})
    nullable = [field for field in EXAMPLE_ORDER if field not in ("priority", "dead_letter")]
    for field in nullable:
        refused(f'{{"{field}":null}}'.encode())


def test_unknown_fields_are_named():
    refusal = refused({"ttl": 5})
    assert refusal.detail == {"field": "ttl"}
    assert '"ttl"' in refusal.message
    assert "ttl_ms" in refusal.message
    assert len(refused({"x" * 100_000: 1}).message) < 1000


@pytest.mark.parametrize(
    ("request_", "before", "after"),
    [
        ({}, "memory", "memory"),
        ({"durable": True}, "memory", "fsync"),
        ({"durable": False}, "memory", "disk"),
        ({"durable": False}, "fsync", "disk"),
        ({"durable": True, "durability": "ephemeral"}, "disk", "ephemeral"),
        ({"durability": "disk", "durable": True}, "fsync", "disk"),
    ],
)
def test_durability_resolution(request_, before, after):
    config = put(request_, put({"durability": before}))
    assert config.durability == after
    assert config.durable is (after == "fsync")


@pytest.mark.parametrize("bad", ["jobs", "", "a b", "-x", 5, ["a"]])
def test_dead_letter_must_be_another_topic(bad):
    assert refused({"dead_letter": bad}).detail == {"field": "dead_letter"}


@pytest.mark.parametrize(("before", "after"), [("log", "queue"), ("queue", "log")])
def test_the_type_never_changes(before, after):
    current = put({"type": before})
    with pytest.raises(TopicsError) as refusal:
        put({"type": after, "ttl_ms": 5}, current)
    assert refusal.value.code == TOPIC_EXISTS_INCOMPATIBLE
    assert refusal.value.detail == {"topic": "jobs", "type": before}
    assert put({"ttl_ms": 5}, current).type == before
    assert put({"type": before}, current) is current
