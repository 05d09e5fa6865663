"""Beginning at a time: a cursor that shows every record since, and tells of whatever may have been among them."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tests.core.strategies import many
from topics.core.config import TopicConfig
from topics.core.diff import plan, render
from topics.core.loss import CRASH
from topics.core.ranges import SeqRanges
from topics.core.render import render_blocks
from topics.core.requests import Diff, decode_append
from topics.core.seek import cursor_at
from topics.core.topic import Topic
from topics.limits import Limits

T0 = 1_700_000_000_000
NOW = T0 + 1000


class Known:
    """A topic beside the time of every record it ever had, and which of them were lost."""

    def __init__(self, **config: int) -> None:
        self.topic = Topic(1, "t", 1, TopicConfig(**config))  # type: ignore[arg-type]
        self.times: dict[int, int] = {}
        self.deleted: set[int] = set()

    def append(self, count: int, ts: int) -> None:
        body = msgspec.json.encode({"records": [{"data": n} for n in range(count)]})
        first = self.topic.next_seq
        self.topic.append(render_blocks(decode_append(body, "t", Limits()).records, None, first, ts), ts)
        self.times |= dict.fromkeys(range(first, first + count), ts)

    def lose(self, count: int, ts: int) -> None:
        """A crash takes records before anybody has read them."""
        first = self.topic.next_seq
        self.topic.lose(first, first + count - 1, CRASH)
        self.times |= dict.fromkeys(range(first, first + count), ts)

    def delete(self, seqs: list[int]) -> None:
        there = sorted(set(seqs) & self.live)
        self.topic.delete(0, SeqRanges.from_ascending(there))
        self.deleted |= set(there)

    def delete_below(self, seq: int) -> None:
        self.deleted |= {there for there in self.live if there < seq}
        self.topic.delete(seq, None)

    @property
    def live(self) -> set[int]:
        found: set[int] = set()
        at = 0
        while True:
            page = plan(self.topic, Diff(from_seq=at, limit=10**6))
            for window in page.windows:
                first = window.chunk.first_seq
                found |= {first + i for i in range(window.low, window.high) if not window.dead >> i & 1}
            at = page.next_from_seq
            if page.caught_up:
                return found

    def read(self, ts: int) -> tuple[list[int], set[int]]:
        """Seqs that a reader from this time on is shown, and those that its tombstones cover."""
        shown: list[int] = []
        gone: set[int] = set()
        at = cursor_at(self.topic, ts, NOW)
        while True:
            query = Diff(from_seq=at, limit=3)
            page = plan(self.topic, query)
            if page.tombstone is not None:
                gone |= set(range(page.tombstone.gap_from, page.tombstone.gap_to + 1))
            texts = b",".join(bytes(piece) for piece in render(page.windows, query, filter_nodes=False))
            shown += [record["$seq"] for record in msgspec.json.decode(b"[" + texts + b"]")]
            at = page.next_from_seq
            if page.caught_up:
                return shown, gone

    def check(self, ts: int) -> None:
        shown, gone = self.read(ts)
        live = self.live
        assert shown == sorted(seq for seq in live if self.times[seq] >= ts)
        lost = {seq for seq in self.times if seq not in live and seq not in self.deleted and self.times[seq] >= ts}
        assert lost <= gone
        assert not gone or len(self.times) > len(live) + len(self.deleted), "a tombstone although nothing was lost"


steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 300) | st.integers(1, 4), st.integers(0, 3)),
        st.tuples(st.just("lose"), st.integers(1, 3), st.integers(0, 3)),
        st.tuples(st.just("delete"), st.integers(0, 12), st.integers(1, 4)),
        st.tuples(st.just("before"), st.integers(0, 12), st.just(0)),
        st.tuples(st.just("prune"), st.just(0), st.just(0)),
    ),
    max_size=12,
)


@many
@given(steps, st.sampled_from([{}, {"cap_records": 5}, {"cap_records": 400}, {"ttl_ms": 3}]))
def test_every_time_in_any_topic(steps, config):
    known = Known(**config)
    ts = T0
    for what, number, step in steps:
        if what == "append":
            ts += step
            known.append(number, ts)
        elif what == "lose":
            known.lose(number, ts)
        elif what == "delete":
            known.delete([max(1, known.topic.head_seq - number + i) for i in range(step)])
        elif what == "before":
            known.delete_below(max(1, known.topic.head_seq - number))
        else:
            known.topic.prune()
    for wanted in range(T0 - 1, ts + 2):
        known.check(wanted)


def test_the_first_of_many_at_one_time():
    known = Known()
    for ts in (10, 10, 20, 20, 20, 40):
        known.append(200, T0 + ts)
    cursors = {ts: cursor_at(known.topic, T0 + ts, NOW) for ts in (0, 10, 11, 20, 21, 40, 41)}
    assert cursors == {0: 0, 10: 0, 11: 400, 20: 400, 21: 1000, 40: 1000, 41: 1200}


def test_a_time_to_come_is_the_head_and_nothing_is_said_to_be_lost():
    known = Known(cap_records=2)
    known.append(5, T0)
    known.lose(2, T0)
    assert cursor_at(known.topic, NOW + 1, NOW) == 7
    assert known.read(NOW + 1) == ([], set())


def test_an_empty_topic():
    topic = Topic(1, "t", 1, TopicConfig())
    assert [cursor_at(topic, ts, NOW) for ts in (0, NOW, NOW + 1)] == [0, 0, 0]


def test_what_was_evicted_may_have_been_as_new():
    known = Known(cap_records=3)
    known.append(5, T0)
    known.append(2, T0 + 10)
    assert known.read(T0 + 5) == ([6, 7], set())  # an older record is left, so whatever went was older still
    known.append(2, T0 + 20)
    assert known.read(T0 + 5) == ([7, 8, 9], {6})
    assert known.read(T0 + 15) == ([8, 9], set())


def test_nothing_older_is_left():
    known = Known(cap_records=3)
    known.append(256, T0)
    known.append(3, T0 + 10)
    assert known.read(T0 + 5) == ([257, 258, 259], set(range(1, 257)))
    assert known.read(T0 + 11) == ([], set())


def test_everything_expired_and_the_time_is_later_than_all_of_it():
    known = Known(ttl_ms=5)
    known.append(3, T0)
    known.topic.expire(T0 + 100)
    assert known.read(T0 + 1) == ([], set())
    assert known.read(T0) == ([], {1, 2, 3})


def test_no_file_is_read_and_few_chunks_are_looked_at():
    known = Known()
    for n in range(4000):
        known.append(1, T0 + n)
    looked = 0

    class Counting(list):
        def __getitem__(self, index):
            nonlocal looked
            looked += 1
            return super().__getitem__(index)

    known.topic.chunks = Counting(known.topic.chunks)
    for chunk in known.topic.chunks:
        chunk.block = None
    looked = 0
    assert cursor_at(known.topic, T0 + 2345, T0 + 4000) == 2345
    assert 0 < looked <= 12
