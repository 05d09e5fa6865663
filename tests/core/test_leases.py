"""Leases against a naive model: any interleaving keeps every job, gives none to two, and counts right."""

import random
from collections.abc import Sequence
from itertools import count

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from topics import limits
from topics.core import lease_events
from topics.core.claims import Want, deal, divide
from topics.core.config import TopicConfig
from topics.core.derivation import Derived, Mark, miss
from topics.core.events import TopicCreated, TopicRemoved
from topics.core.free_jobs import FreeJobs
from topics.core.lease_events import Kept, LeaseEvent, Replayed
from topics.core.lease_parts import Failure, Grant, Move
from topics.core.lease_settling import bring_up
from topics.core.leases import Leases, leases_of
from topics.core.line import first_job
from topics.core.queue_counts import counts as counts_of
from topics.core.ranges import SeqRanges
from topics.core.render import render_blocks
from topics.core.requests import RecordIn
from topics.core.state import ShardState, apply
from topics.core.terms import lay_terms
from topics.core.timetable import Timetable
from topics.core.topic import Topic

PLENTY = 1 << 40
NODES = ("a", "b")


def queue(jobs: int = 0, **config) -> tuple[Topic, Leases]:
    topic = Topic(1, "q", 1, TopicConfig(type="queue", **config))
    topic.leases = Leases()
    produce(topic, jobs)
    return topic, topic.leases


def produce(topic: Topic, jobs: int, ts: int = 0, **terms) -> None:
    """So many jobs that all ask for the same."""
    if jobs:
        records = [RecordIn(msgspec.Raw(b"1"), **terms)] * jobs
        blocks = render_blocks(records, None, topic.next_seq, ts)
        lay_terms(blocks, records, ts)
        for block in blocks:
            if block.extras is not None:
                leases_of(topic).enlist(topic, block)
        topic.append(blocks, ts)


def delete(topic: Topic, seqs: Sequence[int]) -> None:
    ranges = SeqRanges.from_ascending(sorted(seqs))
    assert topic.leases is not None
    topic.leases.drop(ranges)
    topic.delete(0, ranges)


def claim(topic: Topic, leases: Leases, now: int, *wants: int, max_deliveries: int = 0, lease_ms: int = 100):
    """What each gets, by one pass."""
    settle(topic, leases, now)
    asked = [Want(jobs, PLENTY, []) for jobs in wants]
    due = deal(topic, leases, asked, max_deliveries, 100, now)
    leases.move([seq for seq, _ in due], Move("dead", max_deliveries, now))
    got = [[seq for seq, _ in want.picks] for want in asked]
    leases.claim([Grant("a", 1, now + lease_ms, seqs, 0, leases.codes_of(seqs)) for seqs in got])
    return got


def settle(topic: Topic, leases: Leases, now: int) -> int:
    """Until all is done that is due; the steps it took."""
    for steps in count(1):
        if leases.settle(first_job(topic), now):
            return steps
    raise AssertionError


def counts(topic: Topic, leases: Leases, now: int) -> tuple[int, int]:
    settle(topic, leases, now)
    return leases.ready(topic.count), leases.in_flight


def entries(leases: Leases) -> tuple[int, int]:
    """How many deadlines and delays are kept."""
    return leases._deadlines.size, leases._delayed._calendar.size


# --- division -----------------------------------------------------------------------------------------------------


def test_fifty_jobs_for_ten_claimers_are_five_each():
    topic, leases = queue(50)
    assert [len(got) for got in claim(topic, leases, 0, *[10] * 10)] == [5] * 10
    assert counts(topic, leases, 0) == (0, 50)


def test_shares_follow_what_is_asked_for():
    assert divide(40, [10, 30, 40]) == [5, 15, 20]
    assert divide(9, [4, 2, 6]) == [3, 2, 4]  # 3, 1.5 and 4.5: what is whole gets nothing on top


@given(st.integers(0, 300), st.lists(st.integers(1, 40), min_size=1, max_size=12))
@settings(deadline=None)
def test_division_gives_everything_it_can_and_nobody_too_much(available, wanted):
    shares = divide(available, wanted)
    assert sum(shares) == min(available, sum(wanted))
    assert all(0 <= share <= want for share, want in zip(shares, wanted, strict=True))
    if available < sum(wanted):
        exact = [available * want / sum(wanted) for want in wanted]
        assert all(abs(share - fair) < 0.9999 for share, fair in zip(shares, exact, strict=True))


def test_a_large_job_is_given_alone_and_nothing_is_passed_by():
    topic, leases = queue()
    big = [RecordIn(msgspec.Raw(b'"%b"' % (b"x" * size))) for size in (1000, 1000, 10)]
    topic.append(render_blocks(big, None, 1, 0), 0)
    wants = [Want(3, 100, []), Want(3, 1100, [])]
    deal(topic, leases, wants, 0, 10)
    assert [[seq for seq, _ in want.picks] for want in wants] == [[1], [2]]
    leases.claim([Grant("a", 1, 9, [seq for seq, _ in want.picks]) for want in wants])
    assert claim(topic, leases, 0, 5) == [[3]]


# --- lives of a job -----------------------------------------------------------------------------------------------


def test_reclaimed_jobs_come_before_waiting_ones_in_seq_order():
    topic, leases = queue(6)
    assert claim(topic, leases, 0, 4) == [[1, 2, 3, 4]]
    leases.release([3], 0, 5)
    leases.release([1], 0, 5)
    assert claim(topic, leases, 5, 3) == [[1, 3, 5]]
    assert [leases.deliveries(seq) for seq in (1, 2, 3, 5, 6)] == [2, 1, 2, 1, 0]


def test_a_lease_ends_after_its_deadline_not_at_it():
    topic, leases = queue(1)
    claim(topic, leases, 0, 1, lease_ms=100)
    assert counts(topic, leases, 100) == (0, 1)
    assert counts(topic, leases, 101) == (1, 0)
    assert leases.holds([1], "a") == [True]  # nobody has claimed it meanwhile
    claim(topic, leases, 101, 1)
    assert leases.lease_of(1) is not None


def test_an_extended_lease_leaves_nothing_behind_that_ends_it():
    topic, leases = queue(1)
    claim(topic, leases, 0, 1, lease_ms=100)
    for now in range(0, 50_000, 10):
        leases.extend([1], now + 100_000)
    assert counts(topic, leases, 101) == (0, 1)
    assert leases._deadlines.size == 1
    assert counts(topic, leases, 49_990 + 100_000) == (0, 1)
    assert leases._deadlines.size == 1
    assert counts(topic, leases, 49_990 + 100_001) == (1, 0)


def test_a_lease_that_was_extended_and_not_looked_at_until_it_had_ended_has_ended():
    topic, leases = queue(2)
    claim(topic, leases, 0, 2, lease_ms=100)
    leases.extend([1], 150)
    leases.extend([2], 300)
    assert counts(topic, leases, 200) == (1, 1)
    assert leases.next_due == 301
    assert claim(topic, leases, 200, 2) == [[1]]
    assert leases.last_failure(2) is None
    assert counts(topic, leases, 301) == (2, 0)


def test_a_lease_that_is_made_shorter_ends_earlier_and_can_be_made_longer_again():
    topic, leases = queue(2)
    claim(topic, leases, 0, 2, lease_ms=1000)
    leases.extend([1, 2], 50)
    leases.extend([2], 90)
    assert counts(topic, leases, 51) == (1, 1)
    leases.extend([1], 2000)  # it had ended, and nobody has claimed it
    assert counts(topic, leases, 90) == (0, 2)
    assert counts(topic, leases, 91) == (1, 1)
    assert claim(topic, leases, 91, 2, lease_ms=10_000) == [[2]]
    assert counts(topic, leases, 2000) == (0, 2)
    assert counts(topic, leases, 2001) == (1, 1)


@pytest.mark.parametrize(
    "way", ["acked", "nacked", "nacked for later", "deleted", "evicted", "shortened", "claimed anew"]
)
def test_nothing_waits_for_the_deadline_of_a_lease_that_is_over(way):
    """With leases of a day that would be all that was done in a day."""
    day = 86_400_000
    topic, leases = queue(1000)
    for now in range(100):
        [seqs] = claim(topic, leases, now, 10, lease_ms=day)
        if way == "acked":
            leases.leave(seqs[:9])
            delete(topic, seqs[:9])
        elif way == "nacked":
            leases.release(seqs[:9], now, now)
        elif way == "nacked for later":
            leases.release(seqs, now + day, now)
            leases.drop_range(seqs[0], seqs[8])
        elif way == "deleted":
            delete(topic, seqs[:9])
        elif way == "evicted":
            topic.delete(seqs[9], None)
        elif way == "shortened":
            leases.extend(seqs, now + 1000)
            leases.extend(seqs, now + 50)
        else:
            leases.extend(seqs, now + 1)
            settle(topic, leases, now + 2)
        settle(topic, leases, now)
        assert sum(entries(leases)) <= leases.in_flight + leases._delayed.count <= 1000
    assert counts(topic, leases, 100 + day) == (topic.count, 0)
    assert entries(leases) == (0, 0)
    assert leases.next_due is None


def test_an_expired_lease_can_be_extended_until_somebody_else_has_the_job():
    topic, leases = queue(1)
    claim(topic, leases, 0, 1)
    assert counts(topic, leases, 200) == (1, 0)
    leases.extend([1], 300)
    assert counts(topic, leases, 250) == (0, 1)
    assert claim(topic, leases, 250, 1) == [[]]
    assert claim(topic, leases, 301, 1) == [[1]]


@pytest.mark.parametrize("terms", [{}, {"priority": 4}], ids=["alike", "priorities"])
def test_leases_that_are_always_extended_too_late_leave_nothing_behind_although_nobody_claims(terms):
    topic, leases = queue()
    produce(topic, 5, **terms)
    claim(topic, leases, 0, 5)
    for now in range(200, 50_000, 200):
        assert counts(topic, leases, now) == (5, 0)
        leases.extend([1, 2, 3, 4, 5], now + 100)
        assert counts(topic, leases, now) == (0, 5)
    heaps = leases.line.heaps if leases.line is not None else [leases.free._heap]
    assert sum(map(len, heaps)) <= 10
    assert claim(topic, leases, 50_000, 9) == [[1, 2, 3, 4, 5]]


def test_a_delayed_job_counts_in_neither_number_until_its_time():
    topic, leases = queue(2)
    claim(topic, leases, 0, 1)
    leases.release([1], 50, 0)
    assert counts(topic, leases, 49) == (1, 0)
    assert leases.next_due == 50
    assert counts(topic, leases, 50) == (2, 0)


def test_cohorts_leave_delivery_counters_right_although_seqs_interleave():
    topic, leases = queue(6)
    assert claim(topic, leases, 0, 3, 3) == [[1, 3, 5], [2, 4, 6]]
    assert [leases.deliveries(seq) for seq in range(1, 7)] == [1] * 6


def test_records_that_leave_the_log_leave_the_counters_too():
    topic, leases = queue(10, cap_records=10)
    claim(topic, leases, 0, 6)
    leases.release([5, 6], 50, 0)
    produce(topic, 2)  # evicts 1 and 2
    assert counts(topic, leases, 0) == (6, 2)
    delete(topic, [3, 5, 7])
    assert counts(topic, leases, 0) == (5, 1)
    topic.delete(9, None)
    assert counts(topic, leases, 0) == (4, 0)
    assert claim(topic, leases, 60, 9) == [[9, 10, 11, 12]]


def test_a_queue_that_was_removed_has_no_jobs_although_its_leases_are_not_forgotten_yet(monkeypatch):
    monkeypatch.setattr(limits, "FORGET_STEP", 2)
    state = ShardState()
    apply(state, TopicCreated(1, "q", 1, TopicConfig(type="queue"), 0, 0, 0), 1)
    topic = state.topics["q"]
    topic.published = True
    produce(topic, 9)
    claim(topic, leases_of(topic), 0, 9)
    assert counts_of(topic, 0)[:2] == (0, 9)
    apply(state, TopicRemoved(1), 2)
    assert counts_of(topic, 0)[:2] == (0, 0)


def test_a_hundred_thousand_leases_expire_together():
    topic, leases = queue(100_000)
    for _ in range(100):
        claim(topic, leases, 0, 1000)
    assert counts(topic, leases, 100) == (0, 100_000)
    assert counts(topic, leases, 101) == (100_000, 0)
    assert claim(topic, leases, 101, 3) == [[1, 2, 3]]
    assert counts(topic, leases, 101) == (99_997, 3)


@pytest.mark.parametrize("way", ["leases end", "delays end", "times come", "line", "jobs go", "jobs are deleted"])
def test_however_many_jobs_change_at_once_a_step_is_a_step(way, monkeypatch):
    """Each job costs a step its part, and between two steps every job is in one state."""
    done: list[int] = []
    for of, name in ((FreeJobs, "put_back"), (FreeJobs, "add_all"), (Leases, "_detach")):
        monkeypatch.setattr(of, name, counted(getattr(of, name), done))
    topic, leases = queue()
    produce(topic, 20_000, delay_ms=50 if way == "times come" else None)
    if way != "times come":
        claim(topic, leases, 0, 20_000)
    if way in ("delays end", "line"):
        leases.release(range(1, 20_001), 50 if way == "delays end" else 0, 0)
    if way == "line":
        produce(topic, 1, priority=5)
    done.clear()
    if way == "jobs go":
        topic.delete(10_001, None)
    elif way == "jobs are deleted":
        delete(topic, range(1, 20_001, 2))
        assert len(done) <= limits.FORGET_STEP
    now, over = 0 if way.startswith("jobs") else 101, False
    while not over:
        done.clear()
        over = leases.settle(topic.earliest_seq, now)
        assert over or len(done) >= limits.SETTLE_STEP
        assert len(done) <= 2 * limits.FORGET_STEP
        assert len({*leases.free.seqs} & {*leases._leases}) == leases._expired
        assert not {*leases.free.seqs} & {*leases._delayed.until}
    if way.startswith("jobs"):
        assert (leases.ready(topic.count), leases.in_flight) == (0, 10_000)
        return
    left = 20_000 + (way == "line")
    assert (leases.ready(topic.count), leases.in_flight) == (left, 0)
    assert len(claim(topic, leases, now, 30_000)[0]) == left


@pytest.mark.parametrize("terms", [{}, {"priority": 4}], ids=["alike", "priorities"])
def test_many_that_are_given_back_together_are_free_in_steps_and_in_their_order(terms, monkeypatch):
    monkeypatch.setattr(limits, "SETTLE_STEP", 100)
    topic, leases = queue()
    produce(topic, 1000, **terms)
    claim(topic, leases, 0, 1000)
    leases.release([*range(1, 901)], 0, 0, counts=False)
    leases.release([*range(901, 951)], 0, 0)
    assert (leases.ready(topic.count), leases.in_flight) == (50, 50)
    free = []
    while not leases.settle(topic.earliest_seq, 0):
        free.append(leases.ready(topic.count))
    assert free == [*range(150, 951, 100)]
    assert claim(topic, leases, 0, 2000) == [[*range(1, 951)]]
    assert [leases.deliveries(seq) for seq in (1, 900, 901, 950)] == [1, 1, 2, 2]


def counted(function, calls: list[int]):
    """The function, noting for which jobs, or job, it was called."""

    def call(self, seqs):
        calls.extend([seqs] if isinstance(seqs, int) else seqs)
        return function(self, seqs)

    return call


def test_a_delete_that_is_done_in_steps_is_of_those_that_were_there_and_takes_no_copy_of_all(monkeypatch):
    monkeypatch.setattr(limits, "FORGET_STEP", 100)
    topic, leases = queue(10_000)
    claim(topic, leases, 0, 5000, lease_ms=10**6)
    pages = dict(leases._leases._pages)
    topic.delete(9000, None)
    assert not leases.settle(topic.earliest_seq, 0)
    same = [place for place, page in leases._leases._pages.items() if page is pages[place]]
    assert len(same) == len(pages) - 1  # only what was forgotten so far is another
    assert settle(topic, leases, 0) >= 48
    assert counts(topic, leases, 0) == (1001, 0)
    assert (leases.known, leases.counted.times.count) == (0, 0)


def test_waiting_jobs_cost_nothing():
    topic, leases = queue(50_000)
    claim(topic, leases, 0, 1)
    assert leases.known == 1


# --- priorities and times -----------------------------------------------------------------------------------------


def test_the_highest_priority_comes_first_and_each_is_a_line_of_its_own():
    topic, leases = queue()
    for priority in (0, 5, 9, 5, 0, 9):
        produce(topic, 1, priority=priority)
    assert claim(topic, leases, 0, 4) == [[3, 6, 2, 4]]
    assert claim(topic, leases, 0, 4) == [[1, 5]]


def test_a_job_counts_for_one_more_for_every_age_it_has_waited_and_stops_at_the_top():
    topic, leases = queue(priority_age_ms=100)
    produce(topic, 1, 0, priority=1)
    produce(topic, 1, 99, priority=3)
    assert claim(topic, leases, 199, 1) == [[2]]  # levels 2 and 4
    produce(topic, 1, 200, priority=3)
    assert claim(topic, leases, 200, 1) == [[1]]  # both are at 3, and 1 has waited longer
    produce(topic, 1, 1000, priority=0)
    produce(topic, 1, 1000, priority=9)
    produce(topic, 1, 1900, priority=9)
    assert claim(topic, leases, 1900, 4, lease_ms=9999)[0][:4] == [1, 2, 3, 4]  # all are at 9 or more


def test_without_an_age_the_lowest_may_wait_for_ever():
    topic, leases = queue(priority_age_ms=0)
    produce(topic, 1, 0, priority=0)
    produce(topic, 1, 10**9, priority=1)
    assert claim(topic, leases, 10**9, 1) == [[2]]


def test_none_starves():
    topic, leases = queue(priority_age_ms=10)
    produce(topic, 1, 0, priority=0)
    for now in range(200):
        produce(topic, 2, now, priority=9)
        (seqs,) = claim(topic, leases, now, 1, lease_ms=10**6)
        if seqs == [1]:
            assert now == 90  # it has come to the level of the others, and is the oldest there
            return
        delete(topic, seqs)
    raise AssertionError("the first job was never given out")


@pytest.mark.parametrize("counts", [True, False])
@pytest.mark.parametrize("restarts", [False, True])
def test_none_starves_because_another_always_comes_back(counts, restarts):
    topic, leases = queue(priority_age_ms=10)
    produce(topic, 1, 0, priority=9)
    produce(topic, 1, 0, priority=0)
    for now in range(200):
        (seqs,) = claim(topic, leases, now, 1, lease_ms=10**6)
        if seqs == [2]:
            assert now == 90
            return
        leases.release(seqs, now, now, counts=counts)
        if restarts:
            replayed = Replayed()
            replayed.apply(kept(leases))
            topic.leases = leases = replayed.leases
            leases.match_with(topic)
    raise AssertionError("the job that waited was never given out")


def test_a_job_that_comes_back_keeps_its_priority():
    topic, leases = queue()
    produce(topic, 2, priority=7)
    produce(topic, 2)
    produce(topic, 1, priority=8)
    assert claim(topic, leases, 0, 2) == [[5, 1]]
    leases.release([1, 5], 0, 0)
    assert claim(topic, leases, 0, 3) == [[5, 1, 2]]
    assert [leases.deliveries(seq) for seq in range(1, 6)] == [2, 1, 0, 0, 2]


def test_a_scheduled_job_is_there_from_its_moment_on():
    topic, leases = queue()
    produce(topic, 1, 10, not_before=500)
    produce(topic, 1, 10, delay_ms=90)
    assert (counts(topic, leases, 99), leases.scheduled, leases.next_due) == ((0, 0), 2, 100)
    assert claim(topic, leases, 99, 5) == [[]]
    assert claim(topic, leases, 100, 5) == [[2]]
    assert (counts(topic, leases, 499), leases.scheduled) == ((1, 0), 1)  # the lease of 2 has ended
    assert [leases.deliveries(seq) for seq in (1, 2)] == [0, 1]
    assert claim(topic, leases, 500, 5) == [[1, 2]]
    assert [leases.deliveries(seq) for seq in (1, 2)] == [1, 2]


def test_a_time_that_has_passed_is_none():
    topic, leases = queue()
    produce(topic, 1, 1000, not_before=1000)
    assert leases.line is None
    assert claim(topic, leases, 1000, 1) == [[1]]


def test_times_come_before_waiting_jobs_while_there_are_no_priorities():
    topic, leases = queue()
    produce(topic, 2, 0, delay_ms=50)
    produce(topic, 3, 0)
    assert claim(topic, leases, 60_000_000, 3) == [[1, 2, 3]]


def test_scheduled_jobs_leave_with_their_records():
    topic, leases = queue(cap_records=6)
    produce(topic, 600, 0, delay_ms=1000)  # all but the last six are evicted at once
    assert (counts(topic, leases, 0), leases.scheduled) == ((0, 0), 6)
    delete(topic, [596, 600])
    assert (counts(topic, leases, 0), leases.scheduled) == ((0, 0), 4)
    topic.delete(598, None)
    assert (counts(topic, leases, 0), leases.scheduled) == ((0, 0), 2)
    assert claim(topic, leases, 1000, 9) == [[598, 599]]
    assert leases.scheduled == 0


def test_jobs_that_are_all_alike_have_no_line():
    topic, leases = queue(100)
    claim(topic, leases, 0, 10)
    assert leases.line is None
    produce(topic, 1, priority=0)
    assert leases.line is None


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3000)), max_size=700), st.data())
@settings(max_examples=40, deadline=None)
def test_a_timetable_is_a_sorted_list(gaps, data):
    table, naive, seq = Timetable(), {}, 0
    for gap, due in gaps:
        seq += 1 + gap
        table.add(seq, due)
        naive[seq] = due
    now = 0
    while naive and now <= 3000:
        assert table.first is not None
        assert table.first <= min(naive.values())
        now += data.draw(st.integers(0, 900))
        due = sorted((due, seq) for seq, due in naive.items() if due <= now)
        assert sorted(table.pop_due(now)) == due
        for _, seq in due:
            del naive[seq]
        first = data.draw(st.integers(0, seq + 5))
        last = first + data.draw(st.integers(0, 300))
        table.drop_range(first, last)
        naive = {seq: due for seq, due in naive.items() if not first <= seq <= last}
        assert table.count == len(naive)


def test_a_nack_without_penalty_is_no_delivery():
    topic, leases = queue(1)
    for _ in range(3):
        claim(topic, leases, 0, 1, max_deliveries=1)
        assert leases.deliveries(1) == 1
        leases.release([1], 0, 0, counts=False)
        assert leases.deliveries(1) == 0
    claim(topic, leases, 0, 1, max_deliveries=1)
    leases.release([1], 0, 0)
    assert claim(topic, leases, 0, 1, max_deliveries=1) == [[]]
    assert list(leases.moving) == [1]


def test_the_last_failure_is_the_last_one_whichever_way_it_failed():
    topic, leases = queue(1)
    assert leases.last_failure(1) is None
    claim(topic, leases, 0, 1)
    leases.release([1], 5, 5, Failure("no", 5))
    assert leases.last_failure(1) == Failure("no", 5)
    claim(topic, leases, 5, 1)
    assert leases.last_failure(1) == Failure("no", 5)
    leases.settle(1, 106)
    assert leases.last_failure(1) == Failure("lease expired", 105)
    delete(topic, [1])
    assert leases.last_failure(1) is None


# --- dead letters -------------------------------------------------------------------------------------------------


def test_a_job_is_due_when_it_was_delivered_often_enough():
    topic, leases = queue(2)
    claim(topic, leases, 0, 1, max_deliveries=1)
    assert claim(topic, leases, 200, 5, max_deliveries=1) == [[2]]
    assert list(leases.moving) == [1]
    assert counts(topic, leases, 200) == (0, 1)
    leases.stay([(1, None)])
    assert counts(topic, leases, 200) == (1, 1)
    assert claim(topic, leases, 200, 5, max_deliveries=1) == [[]]
    delete(topic, [1])
    assert (len(leases.moving), counts(topic, leases, 200)) == (0, (0, 1))


def test_a_pass_stops_at_its_share_of_dead_letters():
    topic, leases = queue(5)
    claim(topic, leases, 0, 5)
    leases.settle(1, 200)
    want = Want(5, PLENTY, [])
    assert [seq for seq, _ in deal(topic, leases, [want], 1, 2)] == [1, 2]
    assert want.picks == []


def test_after_a_crash_a_job_on_its_way_is_not_claimed_although_the_cursor_is_behind_it():
    topic, leases = queue(3)
    replayed = Replayed()
    replayed.apply(event(lease_events.moving([(2, Move("dead", 3, 0))])))
    leases = replayed.leases
    leases.match_with(topic)
    assert claim(topic, leases, 0, 5) == [[1, 3]]
    assert counts(topic, leases, 0) == (0, 2)
    leases.stay([(2, None)])
    assert claim(topic, leases, 0, 5, max_deliveries=3) == [[]]


def due_of(topic: Topic, leases: Leases, now: int, max_deliveries: int) -> tuple[list[int], list[int]]:
    """What a claim of one gets, and what leaves; two at a time may."""
    leases.settle(topic.earliest_seq, now)
    want = Want(1, PLENTY, [])
    due = [seq for seq, _ in deal(topic, leases, [want], max_deliveries, 2, now)]
    leases.move(due, Move("dead", max_deliveries, now))
    seqs = [seq for seq, _ in want.picks]
    leases.claim([Grant("a", 1, now + 100, seqs, 0, leases.codes_of(seqs))])
    return seqs, due


@pytest.mark.parametrize("terms", [{}, {"priority": 3}])
def test_jobs_behind_many_dead_letters_are_found(terms):
    topic, leases = queue()
    produce(topic, 7, **terms)
    claim(topic, leases, 0, 7)
    produce(topic, 2, **terms)
    assert due_of(topic, leases, 101, 1) == ([8], [1, 2])
    leases.extend([3], 150)  # its holder is still there
    assert due_of(topic, leases, 102, 1) == ([9], [4])
    assert due_of(topic, leases, 103, 1) == ([], [5, 6])
    assert due_of(topic, leases, 151, 1) == ([], [7, 3])
    assert counts(topic, leases, 151) == (0, 2)


@pytest.mark.parametrize("terms", [{}, {"priority": 3}])
def test_a_pass_looks_at_so_many_dead_letters_and_the_next_goes_on_behind_them(terms, monkeypatch):
    monkeypatch.setattr(limits, "OVERDUE_STEP", 3)
    topic, leases = queue()
    produce(topic, 7, **terms)
    claim(topic, leases, 0, 7)
    produce(topic, 1, **terms)
    assert due_of(topic, leases, 101, 1) == ([], [1, 2])
    assert leases.cut_short
    assert due_of(topic, leases, 101, 1) == ([8], [3, 4])
    assert not leases.cut_short
    assert due_of(topic, leases, 101, 1) == ([], [5, 6])
    assert due_of(topic, leases, 101, 1) == ([], [7])


def test_dead_letters_that_wait_are_jobs_again_when_the_limit_rises():
    topic, leases = queue(5)
    claim(topic, leases, 0, 5)
    assert due_of(topic, leases, 101, 1) == ([], [1, 2])
    assert due_of(topic, leases, 101, 2) == ([3], [])
    assert due_of(topic, leases, 101, 1) == ([], [4, 5])


# --- streams ------------------------------------------------------------------------------------------------------


def test_what_a_stream_holds_shrinks_by_acks_nacks_and_expiry():
    topic, leases = queue(4)
    leases.streams.open(7)
    leases.claim([Grant("a", 1, 100, [1, 2, 3, 4], 7)])
    leases.release([1], 0, 0)
    left = leases.leave([2])
    assert leases.streams.seqs(7) == [3, 4]
    leases.stay(left)
    assert leases.streams.count(7) == 3
    delete(topic, [2])
    leases.settle(1, 101)
    assert leases.streams.count(7) == 0
    leases.streams.close(7)


# --- replay -------------------------------------------------------------------------------------------------------


def event(made: tuple[int, list], ts: int = 0) -> LeaseEvent:
    return lease_events.decode(lease_events.encode(LeaseEvent(made[0], 1, 1, ts, made[1])))


def kept(leases: Leases, *, clean: bool = False, durable: bool = True) -> LeaseEvent:
    return lease_events.decode(Kept(leases.snapshot(), clean=clean, durable=durable).encode(1, 1, 0))


def test_jobs_that_come_back_behind_others_were_not_delivered():
    """A crash took them, and they are made again when one above them was claimed already."""
    topic, leases = queue()
    topic.next_seq = 6
    produce(topic, 1)
    assert claim(topic, leases, 0, 9) == [[6]]
    leases.logged = True
    topic.refill(render_blocks([RecordIn(msgspec.Raw(b"1"))] * 5, None, 1, 0), SeqRanges())
    replayed = Replayed()
    assert leases.stale  # so all is written before the next event
    replayed.apply(kept(leases))
    assert counts(topic, leases, 0) == (5, 1)
    for again in (leases, replayed.leases):
        again.match_with(topic)
        assert [again.deliveries(seq) for seq in range(1, 7)] == [0] * 5 + [1]
        assert claim(topic, again, 0, 9, max_deliveries=1) == [[1, 2, 3, 4, 5]]
        assert [again.deliveries(seq) for seq in range(1, 7)] == [1] * 6


def test_nothing_is_kept_of_jobs_that_were_free_and_are_gone_at_the_next_start():
    topic, leases = queue(3)
    claim(topic, leases, 0, 3)
    leases.release([1, 2], 0, 0, Failure("no", 0))
    leases.release([3], 0, 0, counts=False)
    replayed = Replayed()
    replayed.apply(kept(leases))
    topic.delete(0, SeqRanges.from_ascending([1, 3]))
    replayed.leases.match_with(topic)
    snapshot = replayed.leases.snapshot()
    assert (list(snapshot.failures), snapshot.spared.count) == ([2], 0)


def test_what_a_clean_stop_keeps_does_not_stand_after_the_next_start():
    topic, leases = queue(3)
    claim(topic, leases, 0, 2)
    leases.dead_lettered = 4
    replayed = Replayed()
    replayed.apply(kept(leases, clean=True, durable=False))
    assert (replayed.clean, replayed.leases.in_flight) == (True, 2)
    replayed.apply(event(lease_events.voided()))
    assert (replayed.clean, replayed.leases.in_flight, replayed.leases.dead_lettered) == (False, 0, 4)


def test_parts_of_something_that_was_never_ended_are_forgotten():
    topic, leases = queue(5)
    claim(topic, leases, 0, 5)
    leases.release([2], 100, 0, Failure("no", 0))
    leases.release([3], 0, 0, counts=False)
    told = [*Kept(leases.snapshot(), clean=False, durable=True, begun=True).in_parts(2, 1, 1, 0)]
    assert len(told) == 7  # of leases two; one each of delays, deliveries, failures and what does not count; the rest
    leases.release([1], 0, 0)
    again = [*Kept(leases.snapshot(), clean=False, durable=True, begun=True).in_parts(2, 1, 1, 0)]
    replayed = Replayed()
    for one in (*told[:4], *again):
        if one in (told[0], again[0]):
            replayed.apply(event(lease_events.begun()))
        replayed.apply(lease_events.decode(one))
    assert replayed.leases.snapshot() == leases.snapshot()


@pytest.mark.parametrize("parts", [0, 1, 2])
@pytest.mark.parametrize("ends", [True, False])
def test_what_happens_while_the_log_is_written_anew_stands_behind_it(ends, parts):
    """And if it is never ended, all that was before stands."""
    _, leases = queue(5)
    log = []

    def happens(made, *seqs):
        log.append(event(made))
        getattr(leases, made_by[made[0]])(*seqs)

    made_by = {lease_events.CLAIMED: "claim", lease_events.EXTENDED: "extend", lease_events.RELEASED: "release"}
    first, second = [Grant("a", 1, 100, [1, 2, 3])], [Grant("b", 4, 300, [1, 4])]
    happens(lease_events.claimed(first), first)
    whole = Kept(leases.snapshot(), clean=False, durable=True, begun=True)
    begun = len(log)
    log.append(event(lease_events.begun()))
    told = [lease_events.decode(record) for record in whole.in_parts(1, 1, 1, 0)]
    assert [one.kind for one in told] == [lease_events.PART] * 3 + [lease_events.KEPT]
    happens(lease_events.extended([3], 200), [3], 200)
    log += told[:parts]
    happens(lease_events.released([1], 0), [1], 0, 0)
    happens(lease_events.claimed(second), second)
    happens(lease_events.released([2], 50), [2], 50, 0)
    if ends:
        log = [*log[begun:], *told[parts:]]
    replayed = Replayed()
    for one in log:
        replayed.apply(one)
    assert replayed.leases.snapshot() == leases.snapshot()
    assert (leases.lease_of(1).node, leases.lease_of(3).deadline) == ("b", 200)  # type: ignore[union-attr]
    assert (leases.lease_of(2), leases.deliveries(1)) == (None, 2)


# --- the model ----------------------------------------------------------------------------------------------------


class Model(RuleBasedStateMachine):
    """The projection, its replay, and a naive list of jobs side by side.

    Steps are small, and what is due may be half done for a while: until somebody claims or holds a job.
    """

    def __init__(self):
        super().__init__()
        self.steps = limits.SETTLE_STEP, limits.FORGET_STEP
        limits.SETTLE_STEP, limits.FORGET_STEP = 1, 1

    def teardown(self):
        limits.SETTLE_STEP, limits.FORGET_STEP = self.steps

    @initialize(limit=st.sampled_from([0, 2]), age=st.sampled_from([0, 40, 60_000]))
    def begin(self, limit, age):
        self.now = 1000
        self.limit = limit
        self.topic, self.leases = queue(priority_age_ms=age)
        self.jobs: dict[int, dict] = {}  # seq → holder, deadline, due, times, number
        self.log = []
        self.number = 1
        self.dead: list[int] = []
        self.half = False
        self.rewrite: tuple[int, Kept] | None = None
        self.produce(6, None, None)

    def note(self, made):
        self.log.append(event(made, self.now))

    def is_free(self, job) -> bool:
        return not job["gone"] and job["due"] <= self.now and (job["holder"] is None or job["deadline"] < self.now)

    @rule(
        count=st.integers(1, 5),
        priority=st.sampled_from([None, None, None, 0, 1, 5, 9]),
        delay=st.sampled_from([None, None, None, 1, 70, 4000]),
    )
    def produce(self, count, priority, delay):
        first = self.topic.next_seq
        produce(self.topic, count, self.now, priority=priority, delay_ms=delay)
        due = self.now + (delay or 0)
        for seq in range(first, first + count):
            fresh = {"holder": None, "deadline": 0, "due": due, "times": 0, "spared": 0, "number": 0, "gone": False}
            self.jobs[seq] = fresh | {"rank": priority or 0, "since": due, "timed": bool(delay), "fresh": not delay}

    def in_order(self):
        """The jobs that may be claimed, by the naive rules."""
        line, age = self.leases.line, self.topic.config.priority_age_ms
        levels = line is not None and len(line.priorities) > 1

        def key(seq):
            job = self.jobs[seq]
            since = job["since"] + (job["times"] + job["spared"]) * age
            waited = max(0, self.now - since) // age if age and levels else 0
            level = min(9, job["rank"] + waited)
            return -level, job["fresh"] and (level < 9 or not levels), since if line is not None else seq, seq

        return sorted((seq for seq, job in self.jobs.items() if self.is_free(job)), key=key)

    @rule(ms=st.sampled_from([1, 50, 100, 101, 5000]), half=st.booleans())
    def wait(self, ms, half):
        self.now += ms
        self.half = self.half or half

    @rule()
    def settle_a_step(self):
        self.leases.settle(self.topic.earliest_seq, self.now)

    def settle(self):
        settle(self.topic, self.leases, self.now)
        self.half = False

    @rule(asks=st.lists(st.tuples(st.sampled_from(NODES), st.integers(1, 4)), min_size=1, max_size=3))
    def claim(self, asks):
        self.settle()
        wants = [Want(jobs, PLENTY, []) for _, jobs in asks]
        expected = self.in_order()
        due = [seq for seq, _ in deal(self.topic, self.leases, wants, self.limit, 100, self.now)]
        taken = {seq for want in wants for seq, _ in want.picks}
        assert {*due, *taken} == set(expected[: len(due) + len(taken)])
        assert len(asks) > 1 or self.leases.line is None or list(taken) == [] or self.is_sorted(wants[0], expected)
        for seq in due:
            assert self.is_free(self.jobs[seq])
            assert self.limit
            assert self.jobs[seq]["times"] == self.limit
            move = Move("dead", self.leases.deliveries(seq), self.now)
            assert move.deliveries == self.limit
            self.leases.move([seq], move)
            self.note(lease_events.moving([(seq, move)]))
            self.jobs[seq]["gone"] = True
            self.dead.append(seq)
        grants = []
        for (node, _), want in zip(asks, wants, strict=True):
            seqs = [seq for seq, _ in want.picks]
            grants.append(Grant(node, self.number, self.now + 100, seqs, 0, self.leases.codes_of(seqs)))
            self.number += len(want.picks)
        given = sum(len(grant.seqs) for grant in grants)
        free = [seq for seq, job in self.jobs.items() if self.is_free(job)]
        assert given == min(len(free), sum(jobs for _, jobs in asks)) or due
        self.leases.claim(grants)
        self.note(lease_events.claimed(grants))
        for grant in grants:
            for offset, seq in enumerate(grant.seqs):
                job = self.jobs[seq]
                assert self.is_free(job)
                assert not self.limit or job["times"] < self.limit
                number = grant.number + offset
                job |= {"holder": grant.node, "deadline": grant.deadline, "number": number, "times": job["times"] + 1}
                job["fresh"] = False
                assert self.leases.deliveries(seq) == job["times"]

    def is_sorted(self, want, expected) -> bool:
        """One claimer has its jobs in the order of their levels, or of their seqs if there are no levels."""
        seqs = [seq for seq, _ in want.picks]
        if self.leases.line is not None and len(self.leases.line.priorities) > 1:
            return seqs == [seq for seq in expected if seq in seqs]
        return seqs == sorted(seqs)

    def pick_held(self, data, node):
        """A few seqs, held or not; those that `node` holds by the naive rules."""
        self.settle()
        seqs = sorted(set(data.draw(st.lists(st.integers(1, self.topic.next_seq), max_size=4))))
        held = [seq for seq in seqs if self.jobs.get(seq, {"holder": None})["holder"] == node]
        held = [seq for seq in held if not self.jobs[seq]["gone"]]
        assert self.leases.holds(seqs, node) == [seq in held for seq in seqs]
        numbers = [self.jobs[seq]["number"] for seq in held]
        assert all(self.leases.holds(held, node, numbers))
        assert not any(self.leases.holds(held, node, [number - 1 for number in numbers]))
        return held

    @rule(data=st.data(), node=st.sampled_from(NODES), fails=st.booleans())
    def ack(self, data, node, fails):
        held = self.pick_held(data, node)
        left = self.leases.leave(held)
        if fails:
            self.leases.stay(left)
            return
        delete(self.topic, held)
        for seq in held:
            del self.jobs[seq]

    @rule(
        data=st.data(),
        node=st.sampled_from(NODES),
        delay=st.sampled_from([0, 0, 70]),
        reason=st.sampled_from(["", "it broke"]),
        counts=st.booleans(),
    )
    def nack(self, data, node, delay, reason, counts):
        held = self.pick_held(data, node)
        failure = Failure(reason, self.now) if reason else None
        self.leases.release(held, self.now + delay, self.now, failure, counts=counts)
        self.note(lease_events.released(held, self.now + delay, failure, counts=counts))
        for seq in held:
            self.jobs[seq] |= {"holder": None, "due": self.now + delay}
            self.jobs[seq]["times"] -= not counts
            self.jobs[seq]["spared"] += not counts
            if failure is not None:
                self.jobs[seq]["failure"] = failure

    @rule(node=st.sampled_from(NODES))
    def lose_a_worker(self, node):
        """What it holds is given back, however much else is due."""
        held = [seq for seq, job in self.jobs.items() if job["holder"] == node and not job["gone"]]
        self.leases.release(held, 0, self.now)
        self.note(lease_events.released(held, 0))
        for seq in held:
            self.jobs[seq] |= {"holder": None, "due": 0}

    @rule(data=st.data(), node=st.sampled_from(NODES), ms=st.sampled_from([500, 20, 10_000]))
    def extend(self, data, node, ms):
        held = self.pick_held(data, node)
        self.leases.extend(held, self.now + ms)
        self.note(lease_events.extended(held, self.now + ms))
        for seq in held:
            self.jobs[seq]["deadline"] = self.now + ms

    @rule(data=st.data(), stays=st.booleans())
    def settle_dead_letter(self, data, stays):
        if not self.dead:
            return
        seq = data.draw(st.sampled_from(self.dead))
        self.dead.remove(seq)
        if stays:
            self.leases.stay([(seq, None)])
            self.note(lease_events.stayed([seq]))
            self.jobs[seq] |= {"gone": False, "holder": None, "due": 0, "fresh": False}
        else:
            self.leases.dead_lettered += 1
            self.note(lease_events.moved([seq]))
            delete(self.topic, [seq])
            del self.jobs[seq]

    @rule(data=st.data(), half=st.booleans())
    def lose_some(self, data, half):
        """Records go without an ack, at the front or anywhere."""
        self.half = self.half or half
        seqs = sorted(set(data.draw(st.lists(st.integers(1, self.topic.next_seq), max_size=3))))
        if data.draw(st.booleans()) and seqs:
            self.topic.delete(seqs[0], None)
            seqs = [seq for seq in self.jobs if seq < seqs[0]]
        else:
            delete(self.topic, seqs)
        for seq in seqs:
            self.jobs.pop(seq, None)
        self.dead = [seq for seq in self.dead if seq in self.jobs]

    @precondition(lambda self: self.rewrite is None)
    @rule()
    def begin_rewrite(self):
        self.rewrite = len(self.log), Kept(self.leases.snapshot(), clean=False, durable=True, begun=True)
        self.note(lease_events.begun())

    @precondition(lambda self: self.rewrite is not None)
    @rule()
    def end_rewrite(self):
        assert self.rewrite is not None
        first, whole = self.rewrite
        self.rewrite = None
        self.log = [*self.log[first:], *map(lease_events.decode, whole.in_parts(2, 1, 1, self.now))]
        self.restart()

    @rule()
    def restart(self):
        self.rewrite = None
        replayed = Replayed()
        for happened in self.log:
            replayed.apply(happened)
        self.topic.leases = self.leases = replayed.leases
        self.leases.match_with(self.topic)
        for seq, job in self.jobs.items():
            assert self.leases.deliveries(seq) == job["times"]
            if job["holder"] is None:
                assert self.leases.last_failure(seq) == job.get("failure")
            elif not job["gone"]:
                lease = self.leases.lease_of(seq)
                assert lease is not None
                assert (lease.node, lease.number) == (job["holder"], job["number"])
                assert lease.deadline == job["deadline"]

    @precondition(lambda self: not self.half)
    @invariant()
    def counters_are_right(self):
        ready = sum(self.is_free(job) for job in self.jobs.values())
        flying = sum(
            job["holder"] is not None and job["deadline"] >= self.now and not job["gone"] for job in self.jobs.values()
        )
        assert counts(self.topic, self.leases, self.now) == (ready, flying)
        waiting = (job["timed"] and not job["times"] and job["due"] > self.now for job in self.jobs.values())
        assert self.leases.scheduled == sum(waiting) - sum(map(self.was_given_back, self.jobs.values()))

    @invariant()
    def what_is_over_costs_nothing(self):
        """However things ended, nothing is kept for when they would have."""
        assert entries(self.leases) == (self.leases.in_flight, self.leases._delayed.count)

    def was_given_back(self, job) -> bool:
        """Without a penalty and for later: it is not scheduled any more, although it counts no delivery."""
        return job["timed"] and not job["times"] and job["due"] > self.now and bool(job["number"])


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)


@pytest.mark.parametrize("seed", range(3))
def test_every_job_is_done_however_workers_fail(seed):
    """Workers that lose half of what they claim: in the end nothing is left, and nothing was passed by."""
    chance = random.Random(seed)
    topic, leases = queue(500)
    done: list[int] = []
    now = 0
    while topic.count:
        now += 150
        for seqs in claim(topic, leases, now, *[chance.randint(1, 20) for _ in range(4)]):
            finished = [seq for seq in seqs if chance.random() < 0.5]
            delete(topic, finished)
            done += finished
    assert sorted(done) == list(range(1, 501))


def test_leases_of_copies_that_a_crash_took_are_there_when_they_come_back():
    topic, leases = queue()
    topic.derived = Derived(Mark(1, 1))
    miss(topic, 4)
    produce(topic, 2)
    leases.claim([Grant("a", 1, 100, [1, 2, 3, 4])])
    topic.derived.struck.add(2, 2)  # it was done: its record comes back deleted
    leases.match_with(topic)
    assert counts_of(topic, 10)[:2] == (2, 3)
    assert claim(topic, leases, 10, 9) == [[5, 6]]
    assert claim(topic, leases, 99, 9) == [[]]
    assert claim(topic, leases, 1000, 9) == [[5, 6]]  # all leases are over by now, but who could claim a gap
    topic.refill(render_blocks([RecordIn(msgspec.Raw(b"1"))] * 4, None, 1, 0), topic.derived.struck)
    topic.derived.filled(4)
    assert claim(topic, leases, 1001, 9) == [[1, 3, 4]]


# --- up to now ----------------------------------------------------------------------------------------------------


def test_what_becomes_due_within_a_millisecond_in_which_all_was_done_happens_too():
    """Nothing is looked at twice for nothing, and nothing is missed."""
    topic, leases = queue(1000)
    assert bring_up(topic, leases, 5)
    (seqs,) = claim(topic, leases, 5, 600)
    assert bring_up(topic, leases, 5)
    leases.release(seqs, 5, 5)  # many: they are free as soon as somebody looks
    while not bring_up(topic, leases, 5):
        pass
    assert leases.ready(topic.count) == 1000
    (left,) = [leases.leave([7])]
    assert bring_up(topic, leases, 5)
    leases.stay(left)
    assert bring_up(topic, leases, 5)
    assert leases.ready(topic.count) == 1000
    claim(topic, leases, 5, 10)
    assert bring_up(topic, leases, 5)
    topic.delete(6, None)  # nobody tells the leases what goes at the front
    assert bring_up(topic, leases, 5)
    assert (leases.ready(topic.count), leases.in_flight) == (990, 5)
    produce(topic, 1, 5, delay_ms=1)
    while not bring_up(topic, leases, 5):  # those that are free get into a line
        pass
    assert (leases.ready(topic.count), leases.scheduled) == (990, 1)
    assert bring_up(topic, leases, 6)
    assert (leases.ready(topic.count), leases.scheduled) == (991, 0)


def test_a_queue_that_is_up_to_now_is_not_looked_at_again(monkeypatch):
    topic, leases = queue(10)
    looks: list[int] = []
    settle_all = Leases.settle

    def count(self, *given):
        looks.append(1)
        return settle_all(self, *given)

    monkeypatch.setattr(Leases, "settle", count)
    for _ in range(3):
        assert bring_up(topic, leases, 5)
    assert len(looks) == 1
    produce(topic, 1, 5)
    assert bring_up(topic, leases, 5)
    assert bring_up(topic, leases, 6)
    assert len(looks) == 3
