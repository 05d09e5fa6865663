"""The judge of histories: what is right passes, and each kind of wrong is found."""

import itertools
from math import inf

import pytest

from topics.errors import TOPIC_NOT_FOUND
from topics.testing.history import (
    APPEND,
    DELETE,
    DIFF,
    KILL,
    OK,
    POWER,
    PUT,
    REFUSED,
    REMOVE,
    STATE,
    STOP,
    UNKNOWN,
    Crash,
    History,
    Op,
    selects,
)
from topics.testing.judge import check


class Story:
    """Writes down a history, one thing after another; `began`, `ended` and `lost` tell what overlapped."""

    def __init__(self, durability="fsync", **config):
        self.clock = itertools.count(10, 10)
        self.history = History()
        self.head = 0
        self.note(PUT, {"config": {"durability": durability, **config}}, {"created": True})

    def note(self, kind, args, result=None, *, began=None, ended=None, outcome=OK, epochs=(1, 1), error=""):
        began = next(self.clock) if began is None else began
        ended = inf if outcome == UNKNOWN else next(self.clock) if ended is None else ended
        op = Op("c", kind, "t", args, began, 0, ended, 0, outcome, result or {}, error, epochs)
        self.history.ops.append(op)
        return op

    def append(self, write, first, *tags, head=None, deduped=False, node=None, **when):
        tags = tags or (None,)
        last = first + len(tags) - 1
        self.head = max(self.head, last)
        args = {"write": write, "tags": list(tags), "node": node, "keyed": True}
        result = {"first_seq": first, "last_seq": last, "head_seq": head or last, "deduped": deduped}
        return self.note(APPEND, args, result, **when)

    def lose_append(self, write, *tags):
        """A write whose answer never came."""
        self.note(APPEND, {"write": write, "tags": list(tags or (None,)), "node": None}, outcome=UNKNOWN)

    def read(self, head, *shown, start=0, until=None, gap=None, node=None, limit=100, **when):
        """`shown` are (seq, write) or (seq, write, number, tag)."""
        records = []
        for seq, write, *rest in shown:
            number, tag = (*rest, 0, None)[:2] if rest else (0, None)
            records.append({"$seq": seq, "$ts": 1000 + seq, "data": [write, number]} | ({"$tag": tag} if tag else {}))
        until = head if until is None else until
        tombstone = None if gap is None else {"gap_from": gap[0], "gap_to": gap[1], "reason": gap[2]}
        page = {"records": records, "next_from_seq": until, "head_seq": head, "caught_up": until == head}
        args = {"from_seq": start, "limit": limit, "wait_ms": 0, "node": node}
        return self.note(DIFF, args, page | {"tombstone": tombstone}, **when)

    def delete(self, match=None, before_seq=None, **when):
        args = {"match": match, "before_seq": before_seq}
        return self.note(
            DELETE, args, {"deleted": 1, "head_seq": self.head} if when.get("outcome", OK) == OK else {}, **when
        )

    def crash(self, kind=KILL):
        self.history.crashes.append(Crash(next(self.clock), next(self.clock), kind))

    @property
    def problems(self):
        return check(self.history)

    def fails(self, words):
        assert any(words in problem for problem in self.problems), self.problems


def test_what_is_right_passes():
    story = Story()
    story.append("a", 1, "x", None)
    story.append("b", 3)
    story.read(3, (1, "a", 0, "x"), (2, "a", 1), (3, "b"))
    story.lose_append("c")  # it happened
    story.lose_append("never")
    story.delete("x")
    story.read(4, (2, "a", 1), (3, "b"), (4, "c"))
    story.append("b", 3, head=4, deduped=True)
    story.read(4, (4, "c"), start=3)
    assert story.problems == []


def test_operations_that_overlap_may_take_effect_in_either_order():
    story = Story()
    story.append("b", 1, began=100, ended=200)
    story.append("a", 2, began=100, ended=150)
    story.read(2, (1, "b"), (2, "a"), began=110, ended=120)
    story.delete("x", began=300, ended=400)
    story.append("c", 3, "x", began=310, ended=390)
    story.read(3, (1, "b"), (2, "a"), (3, "c", 0, "x"), began=395, ended=399)
    story.read(3, (1, "b"), (2, "a"), began=395, ended=500)
    assert story.problems == []


def test_an_acked_write_that_is_not_there_is_found():
    story = Story()
    story.append("a", 1)
    story.append("b", 2)
    story.read(2, (2, "b"))
    story.fails("seq 1 is missing without a word")


def test_a_lost_tail_is_found():
    story = Story()
    story.append("a", 1)
    story.append("b", 2)
    story.crash()
    story.read(1, (1, "a"))
    story.fails("the head went back from 2")


def test_writes_in_another_order_than_they_were_acked_are_found():
    story = Story()
    story.append("a", 2)
    story.append("b", 1, head=2)
    story.fails("at or below the head 2")


def test_one_seq_for_two_writes_is_found():
    story = Story()
    story.append("a", 1, began=1, ended=9)
    story.append("b", 1, began=1, ended=9)
    story.fails("was of write a, now of b")


def test_a_write_that_is_there_twice_is_found():
    story = Story()
    story.append("a", 1)
    story.append("a", 2)
    story.fails("there twice")


@pytest.mark.parametrize("window_ms", [6, 7])
def test_a_write_may_be_there_twice_if_its_key_was_forgotten_in_between(window_ms):
    """Whichever of the two is seen first. A record's time is 1000 and its seq."""
    story = Story(idempotency_window_ms=window_ms)
    story.lose_append("a")
    story.append("b", 2, *[None] * 6)
    story.append("a", 8)
    story.read(8, (8, "a"), start=7)
    story.read(8, (1, "a"), *((2 + n, "b", n, None) for n in range(6)), (8, "a"))
    if window_ms < 7:
        assert story.problems == []
    else:
        story.fails("there twice")


def test_a_stale_read_is_found():
    story = Story()
    story.lose_append("a")
    story.read(1, (1, "a"))
    story.read(0)
    story.fails("the head went back from 1")


def test_a_record_that_changes_is_found():
    story = Story()
    story.append("a", 1, "x")
    story.read(1, (1, "a", 0, "y"))
    story.fails("not what was written")


@pytest.mark.parametrize("shown", [(1, "nobody"), (1, "a", 7)])
def test_a_record_that_nobody_wrote_is_found(shown):
    story = Story()
    story.append("a", 1)
    story.read(1, shown)
    story.fails("never written")


def test_a_record_that_is_read_before_it_was_written_is_found():
    story = Story()
    story.read(1, (1, "a"))
    story.append("a", 1)
    story.fails("never written")


def test_a_refused_write_that_is_there_is_found():
    story = Story()
    story.note(APPEND, {"write": "a", "tags": [None], "node": None}, outcome=REFUSED)
    story.read(1, (1, "a"))
    story.fails("was refused")


def test_a_deleted_record_that_comes_back_is_found():
    story = Story()
    story.append("a", 1, "x")
    story.delete("x")
    story.read(1, (1, "a", 0, "x"))
    story.fails("after its deletion was acked")


def test_a_record_that_a_reader_missed_and_another_sees_again_is_found():
    story = Story()
    story.append("a", 1, "x")
    story.delete("x", outcome=UNKNOWN)  # it happened, as the first reader sees
    story.read(1)
    story.read(1, (1, "a", 0, "x"))
    story.fails("is back")


def test_half_a_delete_is_found():
    story = Story()
    story.append("a", 1, "x", "x")
    story.delete("x", began=100, ended=200)
    story.read(2, (1, "a", 0, "x"), began=110, ended=120)
    story.fails("half a delete")


def test_half_a_write_is_found():
    story = Story()
    story.lose_append("a", None, None)
    story.read(1, (1, "a"))
    story.fails("not the rest of its write")


def test_deletes_take_what_is_there_and_nothing_that_comes_later():
    story = Story()
    story.delete("x")
    story.append("a", 1, "x")
    story.read(1)
    story.fails("missing without a word")


def test_seqs_of_a_write_are_one_run():
    story = Story()
    story.append("a", 1, None, None).result["last_seq"] = 5
    story.fails("not one run")


@pytest.mark.parametrize(
    ("page", "words"),
    [
        ({"next_from_seq": 1}, "the cursor lies before"),
        ({"caught_up": False}, "caught_up"),
        ({"next_from_seq": 9}, "behind the head"),
    ],
)
def test_an_answer_that_contradicts_itself_is_found(page, words):
    story = Story()
    story.append("a", 1, None, None)
    story.read(2, (1, "a"), (2, "a", 1)).result |= page
    story.fails(words)


def test_records_out_of_order_are_found():
    story = Story()
    story.append("a", 1, None, None)
    story.read(2, (2, "a", 1), (1, "a"))
    story.fails("not in order")


def test_times_that_go_back_are_found():
    story = Story()
    story.append("a", 1, None, None)
    story.read(2, (1, "a"), (2, "a", 1)).result["records"][1]["$ts"] = 5
    story.fails("times go back")


def test_a_reader_that_is_not_moved_on_is_found():
    story = Story()
    story.append("a", 1)
    story.read(1, until=0)
    story.fails("not moved on")


# --- tombstones and crashes ---------------------------------------------------------------------------------------


def lossy(durability, crash, reason="crash", **config):
    story = Story(durability, **config)
    story.append("a", 1)
    story.append("b", 2)
    if crash:
        story.crash(crash)
    story.read(2, (2, "b"), gap=(1, 1, reason))
    return story


@pytest.mark.parametrize(
    ("durability", "crash"), [("disk", KILL), ("disk", POWER), ("memory", KILL), ("ephemeral", STOP)]
)
def test_a_crash_may_take_what_it_says_from_such_topics(durability, crash):
    assert lossy(durability, crash).problems == []


@pytest.mark.parametrize(("durability", "crash"), [("fsync", POWER), ("disk", None), ("disk", STOP)])
def test_a_loss_that_cannot_be_is_found(durability, crash):
    lossy(durability, crash).fails("cannot be gone by crash")


def test_what_was_synced_for_another_topic_is_safe_too():
    story = Story("disk")
    story.append("a", 1)
    story.note(PUT, {"config": {"durability": "fsync"}}, {"created": True}).topic = "another"
    story.crash(POWER)
    story.append("b", 2)
    story.read(2, (2, "b"), gap=(1, 1, "crash"))
    story.fails("cannot be gone by crash")


def test_caps_and_ages_explain_what_is_beyond_them_only():
    assert lossy("fsync", None, "cap", cap_records=1).problems == []
    lossy("fsync", None, "cap", cap_records=2).fails("cannot be gone by cap")
    lossy("fsync", None, "cap").fails("cannot be gone by cap")
    lossy("fsync", None, "ttl").fails("cannot be gone by ttl")
    lossy("disk", KILL, "corrupt").fails("for the reason corrupt")


def test_a_lossy_topic_may_undo_a_delete_in_a_crash_and_only_then():
    story = Story("disk")
    story.append("a", 1, "x")
    story.delete("x")
    story.crash()
    story.read(1, (1, "a", 0, "x"))
    assert story.problems == []
    story.history.crashes.clear()
    story.fails("after its deletion was acked")


def test_a_write_that_a_crash_took_may_be_written_again():
    story = Story("disk")
    story.append("a", 1)
    story.crash()
    story.append("a", 2)
    story.read(2, (2, "a"), gap=(1, 1, "crash"))
    assert story.problems == []


# --- topics -------------------------------------------------------------------------------------------------------


def test_a_topic_that_is_gone_is_found():
    story = Story()
    story.note(STATE, {}, outcome=REFUSED, error=TOPIC_NOT_FOUND)
    story.fails("is not found")


def test_a_removed_topic_that_is_back_is_found():
    story = Story()
    story.note(REMOVE, {}, {"deleted": True})
    story.note(STATE, {}, {"head_seq": 0, "count": 0})
    story.fails("removed and not made again")


def test_an_epoch_that_goes_back_is_found():
    story = Story()
    story.append("a", 1, epochs=(2, 2))
    story.read(1, (1, "a"), epochs=(1, 1))
    story.fails("epoch 2 was there before")


def test_another_life_of_a_name_begins_anew():
    story = Story()
    story.append("a", 1, None, None)
    story.note(REMOVE, {}, {"deleted": True})
    story.note(PUT, {"config": {"durability": "fsync"}}, {"created": True}, epochs=(0, 2))
    story.append("b", 1, epochs=(2, 2))
    story.read(1, (1, "b"), start=2, gap=(1, 1, "recreated"), epochs=(2, 2))
    assert story.problems == []


@pytest.mark.parametrize(
    ("args", "seq", "tag", "chosen"),
    [
        ({"match": "a"}, 1, "a", True),
        ({"match": "a"}, 1, "ab", False),
        ({"match": "a*"}, 1, "ab", True),
        ({"match": "*"}, 1, None, False),
        ({"before_seq": 2}, 1, None, True),
        ({"before_seq": 1}, 1, None, False),
        ({"match": "a", "before_seq": 1}, 1, "a", False),
    ],
)
def test_what_a_delete_selects(args, seq, tag, chosen):
    assert selects(Op("c", DELETE, "t", args, 0), seq, tag) is chosen
