"""Message ids: proper UUIDv7, in the order of seqs, the same whenever they are made."""

from uuid import RFC_4122, UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.strategies import many
from topics.core.block import Block
from topics.core.config import HIDDEN, TopicConfig, from_wire, parse_config, to_json, to_wire
from topics.core.diff import Slice, render
from topics.core.forward import Copies
from topics.core.forward import render as render_copies
from topics.core.ids import Ids, make_id, order_times, time_of
from topics.core.render import render_blocks
from topics.core.requests import Diff, RecordIn, decode_append
from topics.errors import TopicsError
from topics.limits import Limits
from topics.shards.idsalt import with_ids

times = st.integers(0, 2**48 - 1)
seqs = st.integers(1, 2**44 - 1)
salts = st.integers(0, 2**30 - 1)


@many
@given(times, seqs, salts)
def test_it_is_a_uuid_of_version_7_and_has_its_time(ts, seq, salt):
    found = UUID(make_id(ts, seq, salt).decode())
    assert (found.version, found.variant, str(found).encode()) == (7, RFC_4122, make_id(ts, seq, salt))
    assert found.int >> 80 == ts


@many
@given(st.lists(st.tuples(times, seqs, salts), min_size=2, max_size=20, unique=True))
def test_ids_differ_and_sort_as_time_then_seq(given_parts):
    texts = [make_id(*parts) for parts in given_parts]
    assert len(set(texts)) == len(texts)
    assert sorted(given_parts) == [parts for _, parts in sorted(zip(texts, given_parts, strict=True))]


def records(*items: dict) -> list[RecordIn]:
    return list(decode_append(msgspec.json.encode({"records": list(items)}), "t", Limits()).records)


def test_every_way_to_render_gives_the_same_ids():
    """One record, plain ones, and those with everything; a node that looks like an id does not matter."""
    ids = Ids(77, 1_700_000_000_123)
    wild = [{"data": 1, "node": 'x,"$id":"', "meta": {"a": "b"}, "tag": "t"}, {"data": {"$id": 1}}]
    for items, node in (([{"data": 1}], None), ([{"data": n} for n in range(300)], None), (wild, "n1"), (wild, None)):
        for block in render_blocks(records(*items), node, 5, ids.ts, ids):
            for index in range(len(block)):
                text = msgspec.json.decode(block.record(index))
                assert text["$id"] == make_id(ids.ts, block.first_seq + index, 77).decode()
                assert list(text)[: list(text).index("$id")] in (["$seq", "$ts"], ["$seq", "$ts", "$node"])
                assert time_of(block, index) == ids.ts


def test_a_record_without_one_has_no_time():
    (block,) = render_blocks(records({"data": 1}, {"data": 2, "node": ',"$id":"' + "0" * 36}), None, 5, 9)
    assert [time_of(block, index) for index in range(2)] == [0, 0]


def test_it_stays_whatever_else_is_left_out():
    (block,) = render_blocks(records({"data": 1, "tag": "t", "meta": {"a": "b"}}), None, 1, 9, Ids(1, 9))
    query = Diff(include_data=False, include_meta=False, include_tags=True)
    (text,) = render([Slice(block, 0, 0, 1)], query, filter_nodes=False)
    assert bytes(text) == b'{"$seq":1,"$ts":9,"$id":"%b","$tag":"t"}' % make_id(9, 1, 1)


@many
@given(st.lists(times, min_size=1, max_size=8), times)
def test_ids_of_copies_have_the_times_of_their_originals_in_order(originals, floor):
    ordered = order_times(originals, floor)
    assert ordered == sorted(ordered)
    assert all(mine >= max(its, floor) for mine, its in zip(ordered, originals, strict=True))
    if originals == sorted(originals) and originals[0] >= floor:
        assert ordered == originals
    n = len(originals)
    empty = [b""] * n
    copies = Copies(
        list(range(n)), empty, empty, [b',"data":1}'] * n, [0] * n, [1] * n, [0] * n, [False] * n, list(originals)
    )
    blocks: list[Block] = render_copies(copies, 100, 5, Ids(3, floor))
    assert [time_of(block, i) for block in blocks for i in range(len(block))] == ordered
    texts = [msgspec.json.decode(block.record(i))["$id"] for block in blocks for i in range(len(block))]
    assert texts == sorted(texts)


# --- the salt -----------------------------------------------------------------------------------------------------


def test_the_salt_is_drawn_when_ids_are_turned_on_and_kept_from_then_on():
    off = TopicConfig()
    assert with_ids(off, None, 1) is off
    on = with_ids(msgspec.structs.replace(off, message_ids=True), off, 17)
    assert 0 < on.id_salt < 2**30
    assert on.ids_from == 17
    changed = msgspec.structs.replace(on, ttl_ms=5)
    assert with_ids(changed, on, 90) is changed
    paused = msgspec.structs.replace(on, message_ids=False)
    again = with_ids(msgspec.structs.replace(paused, message_ids=True), paused, 90)
    assert (again.id_salt, again.ids_from) == (on.id_salt, 90)
    assert len({with_ids(TopicConfig(message_ids=True), None, 1).id_salt for _ in range(20)}) > 15


def test_the_salt_is_stored_and_neither_shown_nor_set():
    config = with_ids(TopicConfig(message_ids=True), None, 1)
    assert from_wire(to_wire(config)) == config
    shown = msgspec.json.decode(to_json(config))
    assert shown["message_ids"] is True
    assert not set(HIDDEN) & set(shown)
    for field in HIDDEN:
        with pytest.raises(TopicsError) as refused:
            parse_config({field: 1}, "t")
        assert refused.value.detail == {"field": field}
