"""The judge itself: each kind of wrong is found."""

import time

import pytest

from tests.system.history import Deletion, History, Write

SAFE, LOOSE = "safe", "loose"


@pytest.fixture
def history():
    return History([SAFE], [LOOSE])


def begun(history, key, topic=SAFE, count=1, tag=None):
    write = Write(topic, key, count, tag)
    history.begin(write)
    return write


def reply(first, count=1, deduped=False):
    seqs = list(range(first, first + count))
    last = seqs[-1]
    return {"first_seq": first, "last_seq": last, "seqs": seqs, "count": count, "head_seq": last, "deduped": deduped}


def acked(history, key, first, **of):
    write = begun(history, key, **of)
    history.ack(write, reply(first, write.count))
    return write


def deleted(history, tag, topic=SAFE, before_seq=None):
    deletion = Deletion(topic, tag, before_seq)
    history.begin_delete(deletion)
    deletion.acked = time.monotonic()


def record(seq, key, n=0, tag=None):
    return {"$seq": seq, "data": [key, n], **({"$tag": tag} if tag else {})}


def gap(first, last, reason="crash"):
    return {"gap_from": first, "gap_to": last, "reason": reason}


def test_what_is_right_passes(history):
    acked(history, "a", 1, count=2, tag="x")
    acked(history, "b", 3)
    acked(history, "c", 1, topic=LOOSE)
    again = acked(history, "d", 2, topic=LOOSE)
    history.ack(again, reply(3))  # a crash took the first one
    deleted(history, "x")
    assert history.verify(SAFE, [record(3, "b")], [], 1).deleted == 2
    assert history.verify(LOOSE, [record(1, "c"), record(3, "d")], [gap(2, 2)], 2).lost == 1
    history.check_reader(SAFE, {3}, set())


@pytest.mark.parametrize(
    ("records", "gaps", "count"),
    [
        ([record(1, "a")], [], 1),  # the second is gone
        ([record(1, "a"), record(2, "b"), record(3, "b")], [], 3),  # one twice
        ([record(1, "a"), record(2, "c")], [], 2),  # other data
        ([record(1, "a"), record(2, "b")], [], 3),  # a wrong count
        ([record(1, "a")], [gap(2, 2)], 1),  # lost with notice, where nothing may be lost
        ([record(1, "a"), record(2, "b", tag="t")], [], 2),  # a tag it never had
    ],
)
def test_a_wrong_content_is_found(history, records, gaps, count):
    acked(history, "a", 1)
    acked(history, "b", 2)
    with pytest.raises((AssertionError, KeyError)):
        history.verify(SAFE, records, gaps, count)


def test_a_deleted_record_that_is_there_is_found(history):
    acked(history, "a", 1, tag="x")
    deleted(history, "x")
    with pytest.raises(AssertionError, match="deleted"):
        history.verify(SAFE, [record(1, "a", tag="x")], [], 1)
    with pytest.raises(AssertionError, match="deletion was acked"):
        history.saw(SAFE, [record(1, "a")], time.monotonic())


def test_a_skipped_seq_is_found(history):
    acked(history, "a", 1)
    acked(history, "b", 3)
    with pytest.raises(AssertionError, match="skipped"):
        history.verify(SAFE, [record(1, "a"), record(3, "b")], [], 2)


@pytest.mark.parametrize("topic", [SAFE, LOOSE])
def test_a_seq_that_is_acked_twice_is_found(history, topic):
    waiting = begun(history, "b", topic)
    acked(history, "a", 1, topic=topic)
    with pytest.raises(AssertionError, match="two writes"):
        history.ack(waiting, reply(1))


def test_a_second_ack_that_is_not_the_first_is_found(history):
    write = acked(history, "a", 1)
    history.ack(write, reply(1, deduped=True))
    with pytest.raises(AssertionError, match="twice"):
        history.ack(write, reply(2))


def test_a_seq_below_one_that_was_acked_before_is_found(history):
    acked(history, "a", 5)
    late = begun(history, "b")
    with pytest.raises(AssertionError):
        history.ack(late, reply(4))


def test_a_reader_that_was_led_past_a_record_is_found(history):
    acked(history, "a", 1)
    with pytest.raises(AssertionError, match="led past"):
        history.check_reader(SAFE, set(), set())


def test_a_record_that_changes_is_found(history):
    history.saw(SAFE, [record(1, "a")], 0.0)
    with pytest.raises(AssertionError):
        history.saw(SAFE, [record(1, "b")], 0.0)
