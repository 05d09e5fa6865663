"""Events: every kind comes back from its frame as it went in; any other bytes are a BadEvent."""

import msgpack
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.strategies import Draft, block_of, comparable, many, record_lists, some, texts, u64
from topics.core import events
from topics.core.config import DEFAULT, TopicConfig
from topics.core.events import (
    DURABILITIES,
    Appended,
    BadEvent,
    CeilingReserved,
    CreatedAndAppended,
    Encoded,
    Event,
    RangeLost,
    RecordsDeleted,
    Recovered,
    TopicCreated,
    TopicRemoved,
    TopicUpdated,
    WentIdle,
    decode_event,
    encode_event,
)
from topics.core.ranges import SeqRanges

KINDS = range(1, 10)

configs = st.builds(
    TopicConfig,
    type=st.sampled_from(["log", "queue"]),
    ttl_ms=u64,
    cap_records=u64,
    discard=st.sampled_from(["old", "reject"]),
    durability=st.sampled_from(["ephemeral", "memory", "disk", "fsync"]),
    priority=st.none() | st.integers(-1000, 1000),
    auto_create=st.booleans(),
    dead_letter=st.none() | st.just("jobs.dlq"),
)
created = st.builds(TopicCreated, u64, texts, u64, st.just(DEFAULT) | configs, u64, u64, u64)
ranges = st.lists(u64, max_size=20).map(lambda seqs: SeqRanges.from_ascending(sorted(seqs)))


@st.composite
def appended(draw: st.DrawFn) -> Appended:
    first_seq, ts = draw(st.integers(1, 2**62)), draw(st.integers(0, 2**62))
    blocks, seq = [], first_seq
    for records in draw(st.lists(record_lists(30), max_size=3)):
        blocks.append(block_of(seq, ts, records))
        seq += len(records)
    count, digests = seq - first_seq, st.binary(min_size=16, max_size=16)
    key = draw(st.just(b"") | digests if blocks else digests)
    keyed = draw(st.sets(st.integers(0, count - 1))) if blocks else ()
    dedups = tuple((index, draw(digests)) for index in sorted(keyed))
    durability = draw(st.sampled_from(DURABILITIES))
    return Appended(draw(u64), draw(u64), ts, first_seq, count, key, blocks, dedups, durability=durability)


losses = st.builds(RangeLost, u64, u64, u64, st.sampled_from(["crash", "corrupt", "source_trim"]), u64)


any_event = st.one_of(
    created,
    st.builds(TopicUpdated, u64, configs, u64, u64),
    st.builds(TopicRemoved, u64),
    appended(),
    st.builds(RecordsDeleted, u64, u64, st.none() | ranges, u64),
    st.builds(CeilingReserved, u64, u64),
    losses,
    st.builds(Recovered, st.lists(losses), u64, u64),
    st.just(WentIdle()),
    st.builds(CreatedAndAppended, created, appended()),
)


@given(appended(), record_lists(3))
@some
def test_an_append_that_is_encoded_ahead_is_logged_as_it_was_then(event, later):
    body = b"".join(encode_event(event)[1])
    ahead = msgspec.structs.replace(event, encoded=Encoded(event.blocks))
    for block in event.blocks[-1:]:
        block.extend(block_of(block.last_seq + 1, block.base_ts, later))
    assert b"".join(encode_event(ahead)[1]) == body


@given(any_event)
@some
def test_an_event_comes_back_as_it_was(event):
    kind, parts = encode_event(event)
    body = b"".join(parts)
    again = decode_event(kind, body)
    assert type(again) is type(event)
    assert comparable(again) == comparable(event)
    assert b"".join(encode_event(again)[1]) == body
    assert comparable(decode_event(kind, memoryview(body))) == comparable(event)


def test_every_kind_has_an_event():
    plain = block_of(1, 0, [Draft(b"{}", 0, b"", b"", 0, 0)])
    append = Appended(1, 1, 0, 1, 1, b"", [plain])
    create = TopicCreated(1, "t", 1, DEFAULT, 0, 0, 1)
    known: list[Event] = [
        create,
        TopicUpdated(1, DEFAULT, 0, 0),
        TopicRemoved(1),
        append,
        RecordsDeleted(1, 0, None, 0),
        CeilingReserved(1, 2),
        RangeLost(1, 1, 2, "crash", 0),
        WentIdle(),
        CreatedAndAppended(create, append),
    ]
    assert [encode_event(event)[0] for event in known] == list(KINDS)


@given(st.integers(0, 255), st.binary(max_size=200))
@many
def test_arbitrary_bytes_are_an_event_or_refused(kind, body):
    try:
        decode_event(kind, body)
    except BadEvent:
        return
    assert kind in KINDS


fields = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=12,
)


@given(st.integers(0, 12), fields)
@many
def test_arbitrary_fields_are_an_event_or_refused(kind, value):
    packed = msgpack.packb(value)
    for body in (packed, len(packed).to_bytes(4, "little") + packed):
        try:
            decode_event(kind, body)
        except BadEvent:
            continue


@given(any_event, st.integers(0), st.integers(1, 255))
@many
def test_a_changed_event_is_another_event_or_refused(event, at, mask):
    kind, parts = encode_event(event)
    body = bytearray(b"".join(parts))
    if not body:
        return
    body[at % len(body)] ^= mask
    try:
        decode_event(kind, bytes(body))
    except BadEvent:
        return


@given(any_event)
@some
def test_every_truncation_is_refused(event):
    kind, parts = encode_event(event)
    body = b"".join(parts)
    for size in {0, 1, len(body) // 2, len(body) - 1} & set(range(len(body))):
        with pytest.raises(BadEvent):
            decode_event(kind, body[:size])


@pytest.mark.parametrize(
    "body",
    [
        b"\xdd\xff\xff\xff\xff",  # an array of four billion fields
        b"\xdb\xff\xff\xff\xff",  # a string of four gigabytes
        b"\xdf\xff\xff\xff\xff",
        b"\x91" * 5000,  # nested deeper than any event
    ],
    ids=["array", "string", "map", "deep"],
)
@pytest.mark.parametrize("kind", [1, 2, 3, 5, 6, 7])
def test_huge_lengths_allocate_nothing(kind, body):
    with pytest.raises(BadEvent):
        decode_event(kind, body)


def test_a_delete_whose_ranges_are_no_ranges_is_refused():
    for ranges in (5, 1.5, "x", [1], True, b"", b"\xff\xff\xff\xff\x7f"):
        with pytest.raises(BadEvent):
            decode_event(events.DELETED, msgpack.packb([1, 0, ranges, 0]))


def test_blocks_that_do_not_add_up_are_refused():
    blocks = [block_of(1, 0, [Draft(b"{}", 0, b"", b"", 0, 0)] * 2)]
    for event in (
        Appended(1, 1, 0, 1, 3, b"", blocks),
        Appended(1, 1, 0, 2, 2, b"", blocks),
        Appended(1, 1, 0, 1, 1, bytes(16), []),
    ):
        kind, parts = encode_event(event)
        with pytest.raises(BadEvent, match="add up"):
            decode_event(kind, b"".join(parts))


def test_dedup_keys_that_do_not_fit_are_refused():
    block = block_of(1, 0, [Draft(b"{}", 0, b"", b"", 1, 0)])
    for dedups in (((1, bytes(16)),), ((0, bytes(16)), (7, bytes(16)))):
        kind, parts = encode_event(Appended(1, 1, 0, 1, 1, b"", [block], dedups))
        with pytest.raises(BadEvent, match="do not fit"):
            decode_event(kind, b"".join(parts))
    kind, parts = encode_event(Appended(1, 1, 0, 1, 0, b"", []))
    with pytest.raises(BadEvent, match="neither records nor a key"):
        decode_event(kind, b"".join(parts))


def test_fields_of_a_later_version_are_passed_over():
    body = msgpack.packb([1, 2, "from the future"])
    assert decode_event(events.RESERVED, body) == CeilingReserved(1, 2)
    with pytest.raises(BadEvent, match="not known"):
        decode_event(99, msgpack.packb([1]))
