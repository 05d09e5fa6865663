"""A pass over a queue looks past only so much that is gone, and the next one goes on behind it."""

import random
from heapq import heappop
from itertools import count

import msgspec
import pytest

from tests.core.test_leases import claim, delete, produce, queue
from topics import limits
from topics.core.claims import Want, deal
from topics.core.lease_parts import Grant
from topics.core.leases import Leases
from topics.core.line import chunk_of, waiting_in
from topics.core.ranges import SeqRanges
from topics.core.render import render_blocks
from topics.core.requests import RecordIn
from topics.core.terms import lay_terms
from topics.core.topic import Topic

PLENTY = 1 << 40
STEP = 8


def claim_one(topic: Topic, held: Leases, now: int = 1000, max_deliveries: int = 0) -> tuple[int | None, int]:
    """What a claim of one gets, and the passes it took."""
    for passes in count(1):
        want = Want(1, PLENTY, [])
        deal(topic, held, [want], max_deliveries, 0, now)
        if want.picks or not held.cut_short:
            seqs = [seq for seq, _ in want.picks]
            held.claim([Grant("a", 1, now + 100_000, seqs, 0, held.codes_of(seqs))])
            return (seqs[0] if seqs else None), passes
    raise AssertionError


def settle(topic: Topic, held: Leases, now: int) -> None:
    while not held.settle(topic.earliest_seq, now):
        pass


@pytest.fixture
def looks(monkeypatch) -> list[int]:
    """Every entry or block that a pass looks at, until the list is cleared."""
    seen: list[int] = []

    def counted(function):
        def call(*given):
            seen.append(1)
            return function(*given)

        return call

    monkeypatch.setattr("topics.core.free_jobs.heappop", counted(heappop))
    monkeypatch.setattr("topics.core.claims.waiting_in", counted(waiting_in))
    monkeypatch.setattr(limits, "PASS_STEP", STEP)
    return seen


@pytest.mark.parametrize("terms", [{}, {"priority": 3}], ids=["alike", "priorities"])
@pytest.mark.parametrize("kind", ["free", "waiting"])
def test_a_pass_behind_a_delete_ends_after_so_many_looks(kind, terms, looks):
    topic, held = queue()
    produce(topic, 20_000, **terms)
    if kind == "free":
        claim(topic, held, 0, 20_000)
    settle(topic, held, 1000)
    delete(topic, range(2, 19_990))  # so that the front stays
    settle(topic, held, 1000)
    assert claim_one(topic, held)[0] == 1
    looks.clear()
    seq, passes = claim_one(topic, held)
    assert seq == 19_990
    assert passes > 70 // STEP  # there are at least 70 blocks in between
    assert len(looks) <= (passes + 1) * (STEP + 2)
    looks.clear()
    assert claim_one(topic, held) == (19_991, 1)  # nobody looks again
    assert len(looks) <= STEP


def test_where_no_job_has_priority_0_nobody_looks_for_one_twice(looks):
    topic, held = queue()
    produce(topic, 20_000, priority=5)
    claim_one(topic, held)
    looks.clear()
    assert claim_one(topic, held) == (2, 1)
    assert len(looks) <= 3
    produce(topic, 1)
    produce(topic, 1, priority=4)
    delete(topic, range(3, 20_001))
    settle(topic, held, 1000)
    assert [claim_one(topic, held)[0] for _ in range(3)] == [20_002, 20_001, None]


@pytest.mark.parametrize("terms", [{}, {"priority": 3}], ids=["alike", "priorities"])
def test_jobs_that_waited_for_the_dead_letter_topic_are_back_in_order_before_one_is_dealt(terms, monkeypatch):
    monkeypatch.setattr(limits, "PASS_STEP", 100)
    topic, held = queue()
    produce(topic, 1000, **terms)
    claim(topic, held, 0, 1000)
    settle(topic, held, 1000)
    assert claim_one(topic, held, max_deliveries=1) == (None, 1)
    assert len(held.overdue) == 1000
    left = []
    want = Want(1, PLENTY, [])
    while not want.picks:
        deal(topic, held, [want], 5, 0, 1000)
        left.append(len(held.overdue))
    assert left == [900, 800, 700, 600, 500, 400, 300, 200, 100, 0]
    assert want.picks[0][0] == 1


@pytest.mark.parametrize("seed", range(40))
def test_passes_that_are_cut_short_deal_the_same_jobs_in_the_same_order(seed, monkeypatch):
    """As one that is not."""
    orders = []
    for step in (1, 1 << 40):
        monkeypatch.setattr(limits, "PASS_STEP", step)
        drawn = random.Random(seed)
        topic, held = queue(priority_age_ms=drawn.choice([0, 10]))
        ranked = drawn.random() < 0.7
        for _ in range(30):
            terms = {"priority": drawn.choice([0, 3, 3, 9]), "delay_ms": drawn.choice([None, 20])} if ranked else {}
            produce(topic, drawn.choice([1, 40, 300]), drawn.randrange(30), **terms)
        for _ in range(drawn.randrange(60)):
            claim_one(topic, held, 5)
        settle(topic, held, 200_000)
        for _ in range(3):
            first = drawn.randrange(1, topic.head_seq)
            delete(topic, [seq for seq in range(first, topic.head_seq) if drawn.random() < 0.9])
        settle(topic, held, 200_000)
        order = []
        while (seq := claim_one(topic, held, 200_000)[0]) is not None:
            assert chunk_of(topic, seq) is not None
            order.append(seq)
        assert len(order) == len(set(order)) == topic.count
        orders.append(order)
    assert orders[0] == orders[1]


@pytest.mark.parametrize("priority", [0, 5])
def test_jobs_that_come_back_below_the_cursor_of_their_priority_are_not_passed_by(priority):
    """A crash took them; when they are made again, those behind them were claimed."""
    topic, held = queue()
    topic.next_seq = 4
    produce(topic, 1, priority=9)
    produce(topic, 1, priority=priority)
    assert [claim_one(topic, held)[0] for _ in range(3)] == [4, 5, None]
    records = [RecordIn(msgspec.Raw(b"1"), priority=priority)] * 3
    blocks = render_blocks(records, None, 1, 0)
    lay_terms(blocks, records, 0)
    topic.refill(blocks, SeqRanges())
    assert [claim_one(topic, held)[0] for _ in range(4)] == [1, 2, 3, None]
