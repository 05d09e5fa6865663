"""Reading: what one page holds, where the cursor goes, and what a reader is told."""

import msgspec
import pytest

from topics.core import diff, replies
from topics.core.config import TopicConfig
from topics.core.ranges import SeqRanges
from topics.core.render import render_blocks
from topics.core.requests import Diff, decode_append, quoted
from topics.core.topic import Topic
from topics.limits import Limits

T0 = 1_700_000_000_000


def new_topic(**config: object) -> Topic:
    return Topic(1, "t", 1, TopicConfig(**config))  # type: ignore[arg-type]


def grow(topic: Topic, *records: dict, ts: int = T0) -> Topic:
    body = msgspec.json.encode({"records": list(records)})
    topic.append(render_blocks(decode_append(body, "t", Limits()).records, None, topic.next_seq, ts), ts)
    return topic


def numbered(count: int, **more: str) -> list[dict]:
    return [{"data": n, **more} for n in range(count)]


def read(topic: Topic, nodes: tuple[str, ...] = (), **query: object) -> dict:
    wanted = Diff(nodes=frozenset(quoted(node) for node in nodes), **query)  # type: ignore[arg-type]
    plan = diff.plan(topic, wanted)
    body = b"".join(replies.difference("t", plan, diff.render(plan.windows, wanted, filter_nodes=True)))
    page: dict = msgspec.json.decode(replies.close(body))
    return page


def seqs(page: dict) -> list[int]:
    return [record["$seq"] for record in page["records"]]


def delete(topic: Topic, *which: int) -> None:
    topic.delete(0, SeqRanges.from_ascending(which))


# --- pages --------------------------------------------------------------------------------------------------------


def test_an_empty_topic_is_caught_up_at_once():
    page = read(new_topic())
    assert page == {
        "topic": "t", "records": [], "next_from_seq": 0, "head_seq": 0, "earliest_seq": 1, "caught_up": True,
        "tombstone": None, "lag": 0,
    }  # fmt: skip


def test_the_cursor_is_an_exclusive_lower_bound():
    topic = grow(new_topic(), *numbered(5))
    assert seqs(read(topic, from_seq=0)) == [1, 2, 3, 4, 5]
    assert seqs(read(topic, from_seq=3)) == [4, 5]
    assert seqs(read(topic, from_seq=5)) == []


def test_a_limit_leaves_the_rest_for_the_next_page():
    topic = grow(new_topic(), *numbered(5))
    page = read(topic, limit=2)
    assert (seqs(page), page["next_from_seq"], page["caught_up"], page["lag"]) == ([1, 2], 2, False, 3)


def test_a_byte_budget_always_lets_one_record_through():
    topic = grow(new_topic(), *numbered(3))
    page = read(topic, batch_bytes=1)
    assert (seqs(page), page["next_from_seq"]) == ([1], 1)
    size = topic.bytes // 3
    assert seqs(read(topic, batch_bytes=2 * size)) == [1, 2]
    assert seqs(read(topic, batch_bytes=2 * size - 1)) == [1]


def test_pages_run_over_many_blocks():
    topic = new_topic()
    for _ in range(5):
        grow(topic, *numbered(200))
    assert len(topic.chunks) > 2
    assert seqs(read(topic, from_seq=150, limit=700)) == list(range(151, 851))


@pytest.mark.parametrize("limit", [1, 2, 3, 7])
def test_a_walk_sees_every_live_record_once_in_order(limit: int):
    topic = grow(new_topic(cap_records=40), *numbered(60))
    delete(topic, 25, 30, 31, 32, 59, 60)
    topic.lose(40, 44, "corrupt")
    expected = [seq for seq in range(21, 59) if seq not in (25, 30, 31, 32, 40, 41, 42, 43, 44)]
    from_seq, seen, told = 0, [], []
    for _ in range(100):
        page = read(topic, from_seq=from_seq, limit=limit)
        seen += seqs(page)
        told += [page["tombstone"]] if page["tombstone"] else []
        from_seq = page["next_from_seq"]
        if page["caught_up"]:
            break
    assert seen == expected
    assert [(gap["gap_from"], gap["gap_to"], gap["reason"]) for gap in told] == [(1, 20, "cap"), (40, 44, "corrupt")]


def test_trailing_removed_records_do_not_hold_the_cursor_back():
    topic = grow(new_topic(), *numbered(5))
    delete(topic, 2, 4, 5)
    page = read(topic, limit=1)
    assert (seqs(page), page["next_from_seq"]) == ([1], 2)
    page = read(topic, from_seq=2, limit=1)
    assert (seqs(page), page["next_from_seq"], page["caught_up"]) == ([3], 5, True)


# --- tombstones ---------------------------------------------------------------------------------------------------


def test_a_purely_deleted_gap_is_silent():
    topic = grow(new_topic(), *numbered(5))
    topic.delete(4, None)
    page = read(topic)
    assert (page["tombstone"], seqs(page), page["earliest_seq"]) == (None, [4, 5], 4)


def test_lost_records_are_told_before_the_first_live_one():
    topic = grow(new_topic(cap_records=2), *numbered(5))
    page = read(topic)
    assert page["tombstone"] == {
        "$type": "tombstone", "$seq": 4,
        "gap_from": 1, "gap_to": 3, "reason": "cap", "missed_estimate": 3, "earliest_seq": 4, "head_seq": 5,
    }  # fmt: skip
    assert seqs(page) == [4, 5]
    assert read(topic, from_seq=3)["tombstone"] is None


def test_a_tombstone_alone_moves_the_cursor():
    topic = grow(new_topic(ttl_ms=5), *numbered(3))
    topic.expire(T0 + 6)
    page = read(topic, from_seq=1)
    assert (page["tombstone"]["gap_from"], page["tombstone"]["gap_to"]) == (2, 3)
    assert (page["records"], page["next_from_seq"], page["caught_up"]) == ([], 3, True)
    assert read(topic, from_seq=3)["tombstone"] is None


def test_a_cursor_from_another_life_is_told_and_starts_anew():
    topic = grow(new_topic(), *numbered(3))
    page = read(topic, from_seq=9)
    gap = page["tombstone"]
    assert (gap["reason"], gap["gap_from"], gap["gap_to"]) == ("recreated", 1, 3)
    assert seqs(page) == [1, 2, 3]
    assert read(new_topic(), from_seq=9)["tombstone"]["gap_to"] == 0


def test_records_behind_a_lost_range_come_with_its_tombstone_only():
    topic = grow(new_topic(), *numbered(6))
    topic.lose(3, 4, "crash")
    first = read(topic)
    assert (seqs(first), first["tombstone"], first["next_from_seq"], first["caught_up"]) == ([1, 2], None, 2, False)
    second = read(topic, from_seq=2)
    assert (second["tombstone"]["reason"], seqs(second)) == ("crash", [5, 6])


# --- nodes and views ----------------------------------------------------------------------------------------------


def test_own_records_are_dropped_after_the_window_is_chosen():
    topic = grow(new_topic(), *numbered(4, node="me"), *numbered(2, node="you"), {"data": 9})
    page = read(topic, nodes=("me",), limit=3)
    assert (seqs(page), page["next_from_seq"], page["caught_up"], page["tombstone"]) == ([], 3, False, None)
    assert seqs(read(topic, nodes=("me",), from_seq=3)) == [5, 6, 7]
    assert seqs(read(topic, nodes=("me", "you"))) == [7]
    assert seqs(read(topic, nodes=("m",))) == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("tags", [False, True])
@pytest.mark.parametrize("meta", [False, True])
@pytest.mark.parametrize("data", [False, True])
def test_fields_are_left_out_or_put_in(tags: bool, meta: bool, data: bool):
    topic = grow(new_topic(), {"data": {"a": [1]}, "tag": 't"1', "node": "n", "meta": {"k": "v"}}, {"data": None})
    full, bare = read(topic, include_tags=tags, include_meta=meta, include_data=data)["records"]
    expected = {"$seq": 1, "$ts": T0, "$node": "n"}
    expected |= {"$tag": 't"1'} if tags else {}
    expected |= {"data": {"a": [1]}} if data else {}
    expected |= {"meta": {"k": "v"}} if meta else {}
    assert full == expected
    assert bare == {"$seq": 2, "$ts": T0, **({"data": None} if data else {})}
