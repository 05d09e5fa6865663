"""A topic's rules, sentence by sentence: two floors, caps, expiry, deletes, losses."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.core import loss, timetable
from topics.core import topic as topic_module
from topics.core.chunk import Chunk, DataFile
from topics.core.config import TopicConfig
from topics.core.deletion import Deletion
from topics.core.loss import Evicted, Hole, Holes, Tombstone
from topics.core.match import TagMatch
from topics.core.ranges import SeqRanges
from topics.core.render import render_blocks
from topics.core.requests import decode_append
from topics.core.tags import GENERATION_RECORDS, Pattern
from topics.core.terms import lay_terms
from topics.core.topic import Topic
from topics.limits import Limits

T0 = 1_700_000_000_000


def new_topic(**config: object) -> Topic:
    return Topic(1, "t", 1, TopicConfig(**config))  # type: ignore[arg-type]


def grow(topic: Topic, count: int, ts: int = T0, tag: str = "x") -> Topic:
    body = b'{"records":[' + b",".join([b'{"data":1,"tag":"%b"}' % tag.encode()] * count) + b"]}"
    topic.append(render_blocks(decode_append(body, "t", Limits()).records, None, topic.next_seq, ts), ts)
    return topic


def floors(topic: Topic) -> tuple[int, int, int, int]:
    return topic.evict_floor, topic.earliest_seq, topic.head_seq, topic.count


def seqs(*ranges: tuple[int, int]) -> SeqRanges:
    found = SeqRanges()
    for first, last in ranges:
        found.add(first, last)
    return found


# --- the two floors -----------------------------------------------------------------------------------------------


def test_a_new_topic_is_empty_at_the_base():
    assert floors(new_topic()) == (1, 1, 0, 0)


def test_nothing_is_lost_without_caps_and_ttl():
    topic = grow(new_topic(), 700)
    topic.expire(T0 + 10**12)
    assert floors(topic) == (1, 1, 700, 700)


def test_cap_eviction_moves_both_floors():
    assert floors(grow(new_topic(cap_records=3), 5)) == (3, 3, 5, 3)


def test_a_delete_moves_earliest_but_never_the_evict_floor():
    topic = grow(new_topic(), 5)
    assert topic.delete(4, None) == 3
    assert floors(topic) == (1, 4, 5, 2)
    assert topic.gap_after(0) is None


def test_a_delete_is_of_what_there_is_not_of_what_comes_later():
    """The next start takes everything below `delete_below` for deleted."""
    topic = grow(new_topic(), 5)
    assert topic.delete(100, None) == 5
    assert topic.delete_below == 6
    grow(topic, 2)
    assert floors(topic) == (1, 6, 7, 2)


def test_expiry_moves_both_floors_without_a_write():
    topic = grow(grow(new_topic(ttl_ms=10), 2, T0), 2, T0 + 8)
    topic.expire(T0 + 10)
    assert floors(topic) == (1, 1, 4, 4)  # now - ts > ttl is strict
    topic.expire(T0 + 11)
    assert floors(topic) == (3, 3, 4, 2)


def test_deleted_records_count_for_no_cap_and_are_not_evicted():
    topic = grow(new_topic(cap_records=4), 4)
    topic.delete(0, seqs((1, 1), (3, 3)))
    grow(topic, 2)
    assert floors(topic) == (1, 2, 6, 4)
    grow(topic, 1)
    assert floors(topic) == (3, 4, 7, 4)
    assert topic.gap_after(0) == Tombstone(1, 3, "cap", 1)  # of 1..3 only 2 was lost


def test_an_emptied_topic_has_its_earliest_above_the_head():
    topic = grow(new_topic(), 3)
    topic.delete(100, None)
    assert floors(topic) == (1, 4, 3, 0)
    assert floors(grow(topic, 1)) == (1, 4, 4, 1)  # a delete is a moment, not a filter


def test_a_byte_cap_evicts_until_the_rest_fits():
    size = grow(new_topic(), 1).bytes
    topic = grow(new_topic(cap_bytes=3 * size), 5)
    assert (topic.count, topic.bytes, topic.evict_floor) == (3, 3 * size, 3)


def test_whichever_cap_is_hit_first_counts():
    size = grow(new_topic(), 1).bytes
    assert grow(new_topic(cap_bytes=3 * size, cap_records=2), 5).count == 2
    assert grow(new_topic(cap_bytes=2 * size, cap_records=4), 5).count == 2


def test_floors_keep_their_order_and_only_grow():
    topic = new_topic(cap_records=7, ttl_ms=50)
    before = floors(topic)
    for step in range(200):
        grow(topic, 1 + step % 4, T0 + step * 5)
        if step % 3 == 0:
            topic.delete(0, seqs((max(1, topic.head_seq - 2), topic.head_seq)))
        topic.expire(T0 + step * 5 + 20)
        now = floors(topic)
        assert now[0] <= now[1] <= now[2] + 1
        assert now[0] >= before[0]
        assert now[1] >= before[1]
        before = now


# --- tombstones ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("from_seq", "expected"),
    [
        (0, Tombstone(1, 5, "cap", 5)),
        (3, Tombstone(4, 5, "cap", 2)),
        (4, Tombstone(5, 5, "cap", 1)),
        (5, None),
        (7, None),
    ],
)
def test_a_tombstone_iff_the_cursor_is_below_the_evict_floor(from_seq: int, expected: Tombstone | None):
    assert grow(new_topic(cap_records=5), 10).gap_after(from_seq) == expected


def test_reason_ttl():
    topic = grow(grow(new_topic(ttl_ms=10), 2), 1, T0 + 11)
    assert topic.gap_after(0) == Tombstone(1, 2, "ttl", 2)


def test_reason_mixed_only_where_both_lie_ahead_of_the_cursor():
    topic = grow(new_topic(cap_records=4, ttl_ms=10), 6)  # 1, 2 by cap
    grow(topic, 1, T0 + 11)  # 3..6 by ttl
    assert topic.gap_after(0) == Tombstone(1, 6, "mixed", 6)
    assert topic.gap_after(2) == Tombstone(3, 6, "ttl", 4)


def test_what_expired_behind_the_cursor_is_no_reason():
    topic = grow(new_topic(cap_records=4, ttl_ms=10), 2)
    grow(topic, 6, T0 + 11)  # 1, 2 by ttl, then 3, 4 by cap
    assert topic.gap_after(0) == Tombstone(1, 4, "mixed", 4)
    assert topic.gap_after(1) == Tombstone(2, 4, "mixed", 3)
    assert topic.gap_after(2) == Tombstone(3, 4, "cap", 2)


def test_a_gap_ends_at_the_first_live_record_even_if_deletes_widen_it():
    topic = grow(new_topic(cap_records=5), 8)
    topic.delete(6, None)
    assert topic.gap_after(1) == Tombstone(2, 5, "cap", 2)  # 4 and 5 were deleted, not lost
    assert topic.gap_after(3) is None  # only deletes lie ahead


def test_a_lost_range_inside_the_log_is_told_where_it_lies():
    topic = grow(new_topic(), 9)
    topic.lose(4, 6, "corrupt")
    assert (topic.count, topic.earliest_seq, topic.evict_floor) == (6, 1, 1)
    assert topic.gap_after(0) is None
    assert topic.gap_after(3) == Tombstone(4, 6, "corrupt", 3)
    assert topic.gap_after(5) == Tombstone(6, 6, "corrupt", 1)
    assert topic.gap_after(6) is None


def test_a_loss_at_the_end_takes_the_seqs_with_it():
    topic = grow(new_topic(), 3)
    topic.lose(4, 10, "crash")
    assert (topic.head_seq, topic.next_seq, topic.count) == (10, 11, 3)
    assert grow(topic, 1).head_seq == 11
    assert topic.gap_after(3) == Tombstone(4, 10, "crash", 7)


def test_counts_become_an_estimate_that_is_never_too_low():
    evicted = Evicted()
    for n in range(3 * loss.RANGES_MAX):
        evicted.add(2 * n + 1, 2 * n + 1, loss.CAP)
    assert len(evicted.ranges) == loss.RANGES_MAX
    assert evicted.count(1, 10**6) >= 3 * loss.RANGES_MAX
    assert evicted.floor == 6 * loss.RANGES_MAX


@pytest.mark.parametrize(
    ("added", "expected"),
    [
        ([(5, 6), (1, 2)], [(1, 2), (5, 6)]),
        ([(1, 2), (3, 4)], [(1, 4)]),
        ([(3, 4), (1, 9)], [(1, 2), (3, 4), (5, 9)]),
        ([(3, 4), (7, 8), (1, 9)], [(1, 2), (3, 4), (5, 6), (7, 8), (9, 9)]),
        ([(1, 5), (2, 3)], [(1, 5)]),
        ([(1, 5), (4, 8)], [(1, 8)]),
        ([(4, 8), (1, 5)], [(1, 3), (4, 8)]),
    ],
)
def test_holes_stay_disjoint_whatever_is_added(added, expected):
    holes = Holes()
    for first, last in added:
        holes.add(first, last, "crash")
    told = [seq for hole in holes.items for seq in range(hole.first, hole.last + 1)]
    assert told == sorted(set(told))
    assert set(told) == {seq for first, last in expected for seq in range(first, last + 1)}
    assert holes.items == sorted(holes.items)


def test_the_first_reason_for_a_loss_is_kept():
    holes = Holes()
    holes.add(3, 4, "crash")
    holes.add(1, 6, "corrupt")
    assert holes.items == [Hole(1, 2, "corrupt"), Hole(3, 4, "crash"), Hole(5, 6, "corrupt")]


# --- deletes ------------------------------------------------------------------------------------------------------


def test_a_delete_counts_each_record_once():
    topic = grow(new_topic(), 10)
    assert topic.delete(0, seqs((2, 4), (8, 8))) == 4
    assert topic.delete(6, seqs((1, 10))) == 6
    assert topic.delete(6, seqs((1, 10))) == 0
    assert (topic.count, topic.bytes) == (0, 0)


def indexed(topic: Topic) -> int:
    return sum(len(generation) for _, generation in topic.tag_generations)


def found(topic: Topic, match: TagMatch) -> list[int]:
    ended, growing = topic.split_tags()
    assert growing is not None
    return [seq for generation in ended for seq in generation.find(Pattern(match))] + list(growing.scan(Pattern(match)))


def test_tags_of_records_that_went_are_forgotten_without_a_checkpoint():
    """Nothing of an ephemeral topic is ever stored, so nothing else would forget them."""
    topic = new_topic(durability="ephemeral", cap_records=1000)
    for n in range(60):
        body = b",".join(b'{"data":1,"tag":"user-%d"}' % (n * 1000 + i) for i in range(1000))
        request = decode_append(b'{"records":[' + body + b"]}", "t", Limits())
        topic.append(render_blocks(request.records, None, topic.next_seq, T0), T0)
        assert indexed(topic) <= GENERATION_RECORDS + 2000
    assert topic.count == 1000
    assert found(topic, TagMatch("Eq", "user-59999")) == [60_000]
    assert len([seq for seq in found(topic, TagMatch("Glob", "user-")) if seq > 59_000]) == 1000


class CountingList(list):
    removals = 0

    def __delitem__(self, key: object) -> None:
        self.removals += 1
        super().__delitem__(key)  # type: ignore[arg-type]


@pytest.mark.parametrize("how", ["cap_records", "cap_bytes", "ttl"])
def test_many_chunks_leave_in_one_go(how: str):
    topic = new_topic(ttl_ms=10)
    for _ in range(40):
        grow(topic, 256)
    topic.chunks = CountingList(topic.chunks)
    caps = {
        "cap_records": {"cap_records": 300},
        "cap_bytes": {"cap_bytes": topic.bytes // 40 + 10},
        "ttl": {"ttl_ms": 1},
    }
    topic.rebound(TopicConfig(**caps[how]), T0 + 5)  # type: ignore[arg-type]
    assert topic.chunks.removals == 1
    assert topic.count == {"cap_records": 300, "cap_bytes": topic.count, "ttl": 0}[how]
    assert topic.bytes == sum(chunk.live_bytes for chunk in topic.chunks)


def stored(chunks: int, per_file: int = 40) -> tuple[Topic, list[DataFile]]:
    """A topic whose chunks are in files, and those."""
    topic, files = new_topic(ttl_ms=10), []
    for number in range(chunks):
        grow(topic, 256)
        if number % per_file == 0:
            files.append(DataFile(number, "segment", f"{number}", 0, 1))
        chunk = topic.chunks[-1]
        chunk.file = files[-1]
        files[-1].chunks += 1
        files[-1].live += chunk.live
    return topic, files


@pytest.mark.parametrize("how", ["before_seq", "cap_records", "cap_bytes", "ttl", "removal"])
def test_a_long_front_goes_without_a_look_at_its_records(how: str, monkeypatch: pytest.MonkeyPatch):
    topic, files = stored(400)
    topic.delete(0, seqs((3, 4)))
    kept = 0 if how in ("removal", "ttl") else 300
    killed: list[Chunk] = []
    kill = Chunk.kill

    def count(chunk: Chunk, mask: int) -> tuple[int, int]:
        killed.append(chunk)
        return kill(chunk, mask)

    monkeypatch.setattr(Chunk, "kill", count)
    actions: dict[str, Callable[[], object]] = {
        "before_seq": lambda: topic.delete(topic.head_seq + 1 - kept, None),
        "cap_records": lambda: topic.rebound(TopicConfig(cap_records=kept), T0),
        "cap_bytes": lambda: topic.rebound(TopicConfig(cap_bytes=topic.chunks[-1].live_bytes * kept // 256 + 1), T0),
        "ttl": lambda: topic.expire(T0 + 11),
        "removal": topic.release_all,
    }
    actions[how]()
    assert len(killed) <= 1  # where the front ends
    assert (topic.count, len(topic.chunks)) == (kept, 2 if kept else 0)
    assert topic.bytes == sum(chunk.live_bytes for chunk in topic.chunks)
    assert sum(file.chunks for file in files) == 400  # on disk until they are buried
    steps = 1
    while topic.bury():
        steps += 1
    assert steps >= 398 // 64
    assert [file.live for file in files] == [0] * 9 + [kept]
    assert sum(file.chunks for file in files) == len(topic.chunks)


@pytest.mark.parametrize("how", ["stored", "removal", "ttl"])
def test_the_tags_of_very_many_records_are_forgotten_a_few_pieces_a_step(monkeypatch, how):
    monkeypatch.setattr(topic_module, "GENERATION_RECORDS", 16)
    topic = new_topic(ttl_ms=10)
    for _ in range(100):
        grow(topic, 16)
    pieces = len(topic.tag_generations)
    assert pieces == 100
    actions: dict[str, Callable[[], object]] = {
        "stored": lambda: topic.drop_tags(topic.head_seq),
        "removal": topic.release_all,
        "ttl": lambda: topic.expire(T0 + 11),
    }
    actions[how]()
    assert topic.tag_generations == []
    while topic.faded:
        assert pieces - len(topic.faded) <= topic_module.FADE_STEP
        pieces = len(topic.faded)
        topic.bury()
    assert pieces <= topic_module.FADE_STEP
    assert not topic.bury()


def test_a_delete_that_was_counted_ahead_leaves_a_front_alone_that_went_meanwhile():
    topic, _ = stored(100)
    deletion = Deletion(seqs((5, 5), (24_000, 24_001), (25_500, 25_500)))
    for _ in deletion.prepare(topic):
        pass
    assert topic.delete(25_000, None) == 24_999
    assert topic.delete(0, deletion.ranges, deletion) == 1
    assert topic.count == 600
    topic.delete(topic.head_seq + 1, None)
    assert topic.delete(0, deletion.ranges, deletion) == 0
    assert (topic.count, topic.bytes) == (0, 0)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), min_size=1), st.integers(0, 40))
def test_runs_that_go_at_once_are_entered_as_if_one_by_one(steps: list[tuple[int, int]], early: int):
    found, at = [], 1
    for gap, extra in steps:
        found.append((at + gap, at + gap + extra))
        at += gap + extra + 1
    one_by_one, at_once = Evicted(), Evicted()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loss, "RANGES_MAX", 4)
        for first, last in found:
            one_by_one.add(first, last, loss.TTL)
        for first, last in found[:early]:
            at_once.add(first, last, loss.TTL)
        if rest := found[early:]:
            at_once.add_newest(reversed(rest), rest[0][0], loss.TTL)
    assert (at_once.ranges, at_once.floor) == (one_by_one.ranges, one_by_one.floor)


def test_the_lifetimes_of_a_removed_topic_are_let_go_of_in_pieces(monkeypatch):
    monkeypatch.setattr(timetable, "FREE_STEP", 1)
    topic = new_topic()
    body = b'{"records":[' + b",".join([b'{"data":1,"ttl_ms":60000}'] * 10_000) + b"]}"
    request = decode_append(body, "t", Limits())
    blocks = render_blocks(request.records, None, topic.next_seq, T0)
    lay_terms(blocks, request.records, T0)
    topic.append(blocks, T0)
    assert topic.expiries is not None
    assert topic.expiries.count == 10_000
    topic.release_all()
    assert topic.expiries is None
    assert topic.faded, "some are left for later"
    while topic.bury():
        pass
    assert not topic.faded
