"""The engine's rules: who waits for whom, what is refused, and what a retry gets."""

from typing import Any

import pytest

from topics import errors, limits
from topics.core.config import parse_config
from topics.core.match import TagMatch
from topics.core.ranges import SeqRanges
from topics.core.requests import decode_append
from topics.errors import TopicsError
from topics.limits import Limits
from topics.shards import keymemory
from topics.testing.drafts import Draft
from topics.testing.driver import Driver
from topics.testing.outcomes import Answer
from topics.testing.reference import Query


@pytest.fixture
def driver() -> Driver:
    return Driver().start()


def records(n: int, data: bytes = b"1") -> list[Draft]:
    return [Draft(data)] * n


def call(driver: Driver, name: str, body: bytes) -> Answer:
    """An append that the model does not follow."""
    answer = Answer()
    driver.store.engine.append(name, decode_append(body, name, Limits()), answer.done, answer.fail)
    return answer


def put(driver: Driver, name: str, **config: Any) -> Answer:
    answer = Answer()
    driver.store.engine.put_topic(name, parse_config(config, name), answer.done, answer.fail)
    return answer


ONE = b'{"records":[{"data":1}]}'
KEYED = b'{"records":[{"data":1}],"idempotency_key":"k"}'


# --- when an answer is given --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("durability", "waits"), [("fsync", True), ("disk", False), ("memory", False)])
def test_only_an_fsync_write_waits_for_its_sync(driver: Driver, durability: str, waits: bool):
    driver.put("t", {"durability": durability})
    driver.commit()
    answer = driver.append("t", records(2))
    assert answer.given is not waits
    assert driver.topic("t").head_seq == (0 if waits else 2)  # unsynced records are not shown
    driver.write()
    assert answer.given is not waits
    driver.sync()
    assert answer.given
    driver.check_all()


def test_a_new_topic_is_seen_when_it_is_durable(driver: Driver):
    answer = driver.append("t", records(1))
    with pytest.raises(TopicsError, match="does not exist"):
        driver.topic("t")
    driver.commit()
    assert answer.result.created
    assert driver.topic("t").head_seq == 1


@pytest.mark.parametrize("durability", ["fsync", "disk", "memory"])
def test_a_write_behind_a_change_of_a_topic_that_is_not_durable_yet_is_of_the_new_class(durability: str):
    driver = Driver().start()
    put(driver, "t", durability="ephemeral")
    changed, written = put(driver, "t", durability=durability), call(driver, "t", ONE)
    removed = Answer()
    for _ in range(3):
        driver.commit()
    assert changed.result[0].config.durability == durability
    assert written.result.head_seq == driver.topic("t").count == 1
    driver.store.engine.remove_topic("t", False, removed.done, removed.fail)
    late = call(driver, "t", ONE)
    for _ in range(3):
        driver.commit()
    assert removed.result is True
    assert late.result.created


def test_an_answer_keeps_its_place_behind_one_that_waits(driver: Driver):
    driver.put("t", {"durability": "fsync"})
    driver.commit()
    driver.append("t", records(1))
    put(driver, "t", durability="disk")
    last = call(driver, "t", ONE)
    assert not last.given
    driver.commit()
    assert last.result.first_seq == 2


def test_control_commands_wait_for_one_another(driver: Driver):
    put(driver, "t")
    updated = put(driver, "t", cap_records=5)
    removed, anew = Answer(), Answer()
    driver.store.engine.remove_topic("t", False, removed.done, removed.fail)
    driver.store.engine.put_topic("t", parse_config({"cap_records": 7}, "t"), anew.done, anew.fail)
    assert not updated.given
    driver.commit()
    assert updated.result[1] is False
    assert removed.result is True
    assert anew.result[1] is True
    assert driver.store.engine.state.find("t").config.cap_records == 7


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize(("before", "after", "gone"), [(10, 0, 0), (10, 50, 0), (50, 10, 1), (10, 15, 1)])
def test_what_expires_while_a_ttl_waits_for_its_sync_stays_gone(before: int, after: int, gone: int, kept: bool):
    driver = Driver().start()
    driver.put("t", {"ttl_ms": before})
    driver.commit()
    driver.append("t", records(1))
    driver.commit()
    driver.clock.advance(5)
    driver.put("t", {"ttl_ms": after})
    driver.clock.advance(46 if gone else 10)
    assert driver.topic("t").evict_floor == 1 + gone  # only what is over by both
    driver.check_all()
    if kept:
        driver.write()
    driver.crash(0, power_loss=False)
    assert driver.topic("t").config.ttl_ms == (after if kept else before)
    if gone:
        assert driver.topic("t").evict_floor == 2
    driver.check_all()


def test_a_write_behind_a_removal_makes_a_new_topic(driver: Driver):
    driver.append("t", records(3))
    driver.commit()
    epoch = driver.topic("t").epoch
    driver.store.engine.remove_topic("t", False, lambda _: None, lambda _: None)
    answer = call(driver, "t", ONE)
    driver.commit()
    topic = driver.store.engine.state.find("t")
    assert (answer.result.created, topic.head_seq) == (True, 1)
    assert topic.epoch > epoch


def test_a_topic_with_records_is_not_removed_if_it_must_be_empty(driver: Driver):
    driver.append("t", records(1))
    driver.commit()
    with pytest.raises(TopicsError) as refused:
        driver.store.engine.remove_topic("t", True, lambda _: None, lambda _: None)
    assert refused.value.code == errors.TOPIC_NOT_EMPTY


def test_a_first_write_after_idleness_waits_so_that_the_idle_mark_stays_true(driver: Driver):
    driver.append("t", records(1))
    driver.commit()
    driver.store.engine.go_idle()
    driver.commit()
    first = driver.append("t", records(1))
    assert not first.given
    driver.commit()
    assert driver.append("t", records(1)).given


def test_a_write_above_the_durable_ceiling_waits(driver: Driver, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "CEILING_AHEAD", 8)
    driver.put("t", {})
    driver.commit()
    assert driver.append("t", records(8)).given
    assert not driver.append("t", records(1)).given
    driver.commit()
    assert driver.topic("t").ceiling >= 9


# --- refusals -----------------------------------------------------------------------------------------------------


def refuse(driver: Driver, name: str, count: int, data: bytes = b"1") -> TopicsError:
    topic = driver.store.engine.state.topics[name]
    before = (topic.next_seq, driver.store.engine.log.last_lsn)
    with pytest.raises(TopicsError) as refused:
        driver.append(name, records(count, data))
    assert (topic.next_seq, driver.store.engine.log.last_lsn) == before, "refused before any seq is taken"
    return refused.value


@pytest.mark.parametrize("durability", ["disk", "fsync"])
def test_a_full_topic_refuses_the_whole_write(driver: Driver, durability: str):
    driver.put("t", {"cap_records": 5, "discard": "reject", "durability": durability})
    driver.commit()
    driver.append("t", records(3))
    error = refuse(driver, "t", 3)
    assert error.code == errors.TOPIC_FULL
    assert {"cap_records", "cap_bytes", "head_seq", "earliest_seq"} <= error.detail.keys()
    driver.append("t", records(2))
    driver.commit()
    driver.delete("t", 2, None)
    driver.commit()
    driver.append("t", records(1))
    driver.commit()
    assert driver.topic("t").evict_floor == 1  # nothing acked was dropped
    driver.check_all()


def test_a_delete_makes_room_when_readers_see_it(driver: Driver):
    driver.append("t", records(3), config={"cap_records": 3, "discard": "reject", "durability": "fsync"})
    driver.commit()
    driver.delete("t", 3, None)
    with pytest.raises(TopicsError) as refused:
        driver.append("t", records(1))
    assert refused.value.code == errors.TOPIC_FULL
    driver.commit()
    driver.append("t", records(2))
    driver.commit()
    assert driver.topic("t").count == 3


def test_a_write_larger_than_the_cap_can_never_fit(driver: Driver):
    driver.put("t", {"cap_records": 5, "cap_bytes": 500, "discard": "reject"})
    driver.commit()
    assert refuse(driver, "t", 6).code == errors.RECORD_TOO_LARGE
    assert refuse(driver, "t", 1, b'"' + b"x" * 600 + b'"').code == errors.RECORD_TOO_LARGE


def test_the_write_that_makes_a_topic_counts_against_its_cap_while_it_waits(driver: Driver):
    config = {"cap_records": 5, "discard": "reject"}
    driver.append("t", records(5), config=config)
    assert refuse(driver, "t", 1).code == errors.TOPIC_FULL
    driver.commit()
    assert driver.topic("t").evict_floor == 1


def test_a_write_that_may_not_create_is_refused(driver: Driver):
    for more in (b'"create":false', b'"config":{"auto_create":false}'):
        with pytest.raises(TopicsError) as refused:
            call(driver, "t", b'{"records":[{"data":1}],%b}' % more)
        assert refused.value.code == errors.TOPIC_NOT_FOUND
    assert call(driver, "t", b'{"records":[{"data":1}],"create":true,"config":{"auto_create":false}}').error is None


def test_a_full_disk_refuses_before_a_seq_is_taken(driver: Driver):
    driver.append("t", records(1))
    driver.commit()
    driver.store.engine.space_bytes = limits.SPACE_RESERVE_BYTES
    assert refuse(driver, "t", 1).code == errors.STORAGE_FULL
    driver.store.engine.space_bytes = None
    assert driver.append("t", records(1)).given


def test_a_poisoned_engine_refuses_everything_and_forgets_nobody(driver: Driver):
    driver.put("t", {"durability": "fsync"})
    driver.commit()
    waiting = [call(driver, "t", KEYED), call(driver, "t", KEYED), put(driver, "t", cap_records=1)]
    waiting.append(put(driver, "t", cap_records=2))
    driver.store.engine.poison("EIO")
    assert [answer.error.code for answer in waiting if isinstance(answer.error, TopicsError)] == [errors.NOT_READY] * 4
    with pytest.raises(TopicsError):
        call(driver, "t", ONE)


# --- idempotency --------------------------------------------------------------------------------------------------


def test_a_retry_gets_the_seqs_of_the_original(driver: Driver):
    first = driver.append("t", records(3), key="k")
    driver.commit()
    again = driver.append("t", records(3), key="k")
    assert (again.result.first_seq, again.result.records, again.result.deduped) == (1, 3, True)
    assert first.result.deduped is False
    assert driver.topic("t").head_seq == 3


@pytest.mark.parametrize("durability", ["fsync", "disk", "ephemeral"])
def test_a_retry_that_races_its_original_waits_for_it(driver: Driver, durability: str):
    put(driver, "t", durability=durability)
    first, retry = call(driver, "t", KEYED), call(driver, "t", KEYED)
    assert not retry.given
    driver.commit()
    assert (first.result.deduped, retry.result.deduped) == (False, True)
    assert retry.result.first_seq == first.result.first_seq
    assert driver.topic("t").head_seq == 1


def test_a_retry_races_the_write_that_makes_the_topic(driver: Driver):
    first, retry = call(driver, "t", KEYED), call(driver, "t", KEYED)
    driver.commit()
    assert (first.result.created, retry.result.created, retry.result.deduped) == (True, False, True)


def test_a_key_is_remembered_for_its_window_and_no_longer(driver: Driver):
    driver.append("t", records(1), key="k", config={"idempotency_window_ms": 100})
    driver.commit()
    driver.clock.advance(100)
    assert driver.append("t", records(1), key="k").result.deduped
    driver.clock.advance(1)
    assert not driver.append("t", records(1), key="k").result.deduped


def test_keys_survive_a_restart_and_a_kill(driver: Driver):
    driver.append("t", records(2), key="k")
    driver.commit()
    driver.restart()
    assert driver.append("t", records(2), key="k").result.deduped
    driver.crash(0, power_loss=False)
    assert driver.append("t", records(2), key="k").result.deduped


def test_at_the_bound_new_keys_are_throttled_until_a_window_has_passed(driver: Driver, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "IDEMPOTENCY_KEYS_MAX", 2)
    driver.append("old", records(1), key="k1", config={"idempotency_window_ms": 50})
    driver.append("t", records(1), key="k2")
    driver.commit()
    with pytest.raises(TopicsError) as refused:
        driver.append("t", records(1), key="k3")
    assert refused.value.code == errors.THROTTLED
    assert driver.append("t", records(1), key="k2").result.deduped  # known ones are still answered
    assert driver.append("t", records(1)).error is None
    driver.clock.advance(keymemory.SWEEP_MS)
    driver.append("t", records(1), key="k3")
    driver.check_all()


# --- dedup keys ---------------------------------------------------------------------------------------------------


def keyed(*keys: str | None) -> bytes:
    fields = [b'{"data":1}' if key is None else b'{"data":1,"dedup_key":"%b"}' % key.encode() for key in keys]
    return b'{"records":[%b]}' % b",".join(fields)


def test_duplicates_are_left_out_and_told(driver: Driver):
    driver.append("t", [Draft(b"1", dedup="a"), Draft(b"2"), Draft(b"3", dedup="a"), Draft(b"4", dedup="b")])
    driver.commit()
    batch = [
        Draft(b"5", dedup="b"),
        Draft(b"6"),
        Draft(b"7", dedup="c"),
        Draft(b"8", dedup="c"),
        Draft(b"9", dedup="a"),
    ]
    result = driver.append("t", batch).result
    assert (result.first_seq, result.records, result.deduped) == (4, 2, False)
    assert result.duplicates == ((0, 3), (3, 5), (4, 1))
    driver.check_all()


def test_a_write_of_duplicates_alone_takes_no_seq(driver: Driver):
    call(driver, "t", keyed("a", "b"))
    driver.commit()
    before = driver.store.engine.log.last_lsn
    result = call(driver, "t", keyed("b", "a")).result
    assert (result.first_seq, result.records, result.head_seq, result.deduped) == (3, 0, 2, True)
    assert result.duplicates == ((0, 2), (1, 1))
    assert driver.store.engine.log.last_lsn == before
    assert call(driver, "t", ONE).result.first_seq == 3


def test_a_dedup_key_is_no_idempotency_key(driver: Driver):
    call(driver, "t", keyed("k"))
    driver.commit()
    result = call(driver, "t", KEYED).result
    assert (result.first_seq, result.deduped) == (2, False)


@pytest.mark.parametrize("durability", ["fsync", "disk", "ephemeral"])
def test_a_duplicate_of_a_write_on_its_way_waits_for_it(driver: Driver, durability: str):
    put(driver, "t", durability=durability)
    first = call(driver, "t", keyed("a", "b"))
    again, mixed = call(driver, "t", keyed("b")), call(driver, "t", keyed(None, "a", "c"))
    other = call(driver, "t", keyed("d"))
    assert not again.given
    assert not mixed.given
    driver.commit()
    assert first.result.records == 2
    assert (again.result.records, again.result.duplicates) == (0, ((0, 2),))
    assert (mixed.result.records, mixed.result.duplicates) == (2, ((1, 1),))
    assert (other.result.first_seq, mixed.result.first_seq) == (3, 4)  # nobody waits without a reason
    assert driver.topic("t").head_seq == 5
    assert driver.store.engine.state.keys_coming == 0


def test_a_poisoned_engine_refuses_duplicates_that_waited(driver: Driver):
    driver.put("t", {"durability": "fsync"})
    driver.commit()
    waiting = [call(driver, "t", keyed("a", "b")), call(driver, "t", keyed("b")), call(driver, "t", keyed("a", "c"))]
    driver.store.engine.poison("EIO")
    assert [answer.error.code for answer in waiting if isinstance(answer.error, TopicsError)] == [errors.NOT_READY] * 3


def test_a_dedup_key_is_remembered_for_the_window_and_no_longer(driver: Driver):
    driver.append("t", [Draft(b"1", dedup="a")], config={"idempotency_window_ms": 100})
    driver.commit()
    driver.clock.advance(100)
    assert driver.append("t", [Draft(b"2", dedup="a")]).result.duplicates == ((0, 1),)
    driver.clock.advance(1)
    assert driver.append("t", [Draft(b"3", dedup="a")]).result.first_seq == 2
    assert driver.append("t", [Draft(b"4", dedup="a")]).result.duplicates == ((0, 2),)


def test_a_deleted_record_is_still_the_one(driver: Driver):
    driver.append("t", [Draft(b"1", dedup="a")])
    driver.commit()
    driver.delete("t", 2, None)
    assert driver.append("t", [Draft(b"2", dedup="a")]).result.duplicates == ((0, 1),)


def test_dedup_keys_survive_a_restart_and_a_crash(driver: Driver):
    driver.append("t", [Draft(b"1", dedup="a"), Draft(b"2")], config={"durability": "fsync"})
    driver.commit()
    driver.restart()
    driver.append("t", [Draft(b"3"), Draft(b"4", dedup="b")])
    driver.commit()
    for power_loss in (False, True):
        driver.crash(1, power_loss=power_loss)
        result = driver.append("t", [Draft(b"5", dedup="b"), Draft(b"6", dedup="a")]).result
        assert (result.records, result.duplicates) == (0, ((0, 4), (1, 1)))
    driver.check_all()


def test_an_idempotency_key_and_dedup_keys_in_one_write(driver: Driver):
    driver.append("t", [Draft(b"1", dedup="a")], config={"idempotency_window_ms": 100})
    driver.commit()
    batch = [Draft(b"1", dedup="a"), Draft(b"2", dedup="b"), Draft(b"2", dedup="b"), Draft(b"3")]
    first = driver.append("t", batch, key="k").result
    assert (first.first_seq, first.records, first.duplicates) == (2, 2, ((0, 1), (2, 2)))
    again = driver.append("t", batch, key="k").result
    assert again[1:3] == first[1:3]
    assert (again.deduped, again.duplicates) == (True, first.duplicates)
    driver.clock.advance(100)  # the window of "a" has passed for a write of later, not for this one
    driver.check_all()


def test_a_write_of_duplicates_alone_keeps_its_own_key(driver: Driver):
    """Else it would be appended when its dedup keys are forgotten before it is sent again."""
    driver.append("t", [Draft(b"1", dedup="a")], config={"idempotency_window_ms": 100})
    driver.commit()
    driver.clock.advance(60)
    assert driver.append("t", [Draft(b"1", dedup="a")], key="k").result.duplicates == ((0, 1),)
    driver.commit()
    driver.clock.advance(60)
    for _ in range(2):
        again = driver.append("t", [Draft(b"1", dedup="a")], key="k").result
        assert (again.first_seq, again.records, again.deduped, again.duplicates) == (2, 0, True, ())
        driver.crash(2, power_loss=False)
    assert driver.append("t", [Draft(b"1", dedup="a")]).result.first_seq == 2
    driver.check_all()


def test_dedup_keys_count_against_the_bound(driver: Driver, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "IDEMPOTENCY_KEYS_MAX", 4)
    put(driver, "t", durability="fsync", idempotency_window_ms=50)
    driver.commit()
    call(driver, "t", keyed("a", "b"))
    for body in (keyed("c", "d", "e"), keyed("c", "d", None, "e")):
        with pytest.raises(TopicsError) as refused:  # those on their way count as well
            call(driver, "t", body)
        assert (refused.value.code, refused.value.detail["limit"]) == (errors.THROTTLED, "idempotency_keys")
    driver.commit()
    assert driver.store.engine.state.keys == 2
    call(driver, "t", keyed("c", "d"))
    driver.commit()
    assert call(driver, "t", keyed("a", "d")).result.records == 0  # known ones are still answered
    with pytest.raises(TopicsError):
        call(driver, "t", keyed("a", "e"))
    driver.clock.advance(keymemory.SWEEP_MS)
    call(driver, "t", keyed("e"))
    driver.commit()
    assert driver.topic("t").head_seq == 5


# --- classes ------------------------------------------------------------------------------------------------------


def test_ephemeral_records_are_gone_after_a_restart_but_their_seqs_are_not_used_again(driver: Driver):
    put(driver, "t", durability="ephemeral")
    driver.commit()
    before = driver.store.engine.log.last_lsn
    for _ in range(3):
        assert call(driver, "t", ONE).given
    assert driver.store.engine.log.last_lsn == before, "nothing is logged"
    survivor = reopen(driver)
    topic = survivor.topic("t")
    assert (topic.head_seq, topic.count) == (3, 0)
    assert b'"gap_from":1,"gap_to":3,"reason":"crash"' in survivor.page("t", Query())
    assert call(survivor, "t", ONE).result.first_seq == 4


@pytest.mark.parametrize("power_loss", [False, True])
def test_what_was_deleted_while_ephemeral_does_not_come_back(driver: Driver, power_loss: bool):
    driver.append("t", records(5))
    driver.commit()
    put(driver, "t", durability="ephemeral")
    driver.commit()
    topic = driver.topic("t")
    driver.store.engine.delete_records(topic, 3, None, lambda _: None, lambda _: None)
    call(driver, "t", ONE)
    put(driver, "t", durability="disk")
    driver.commit()
    assert topic.count == 4
    survivor = reopen(driver, power_loss=power_loss)
    topic = survivor.topic("t")
    assert seqs(survivor) == [3, 4, 5]
    assert topic.head_seq >= 6
    assert b'"gap_from":6,' in survivor.page("t", Query(from_seq=5))
    assert b'"reason":"crash"' in survivor.page("t", Query(from_seq=5))


def test_records_from_an_ephemeral_time_are_kept_once_a_checkpoint_has_them(driver: Driver):
    put(driver, "t", durability="ephemeral")
    driver.commit()
    call(driver, "t", ONE)
    put(driver, "t", durability="fsync")
    driver.commit()
    driver.store.checkpoint()
    assert reopen(driver, power_loss=True).topic("t").count == 1


def seqs(driver: Driver) -> list[int]:
    """What a reader of t gets, past all gaps."""
    topic = driver.topic("t")
    return [chunk.first_seq + i for chunk in topic.chunks for i in range(len(chunk)) if not chunk.dead >> i & 1]


@pytest.mark.parametrize("checkpoints", range(8))
@pytest.mark.parametrize("durability", ["fsync", "disk"])
def test_what_was_logged_outlives_an_ephemeral_time(driver: Driver, durability: str, checkpoints: int):
    """fsync → ephemeral → fsync, with a checkpoint after each part or not: only the middle part was at risk."""
    for part, config in enumerate((durability, "ephemeral", durability)):
        put(driver, "t", durability=config)
        driver.commit()
        for _ in range(3):
            call(driver, "t", ONE)
        driver.commit()
        if checkpoints >> part & 1:
            driver.store.checkpoint()
    stored = checkpoints >> 2 & 1
    for power_loss in (False, True):
        survivor = reopen(driver, power_loss=power_loss)
        assert seqs(survivor) == ([1, 2, 3, 4, 5, 6, 7, 8, 9] if stored else [1, 2, 3, 7, 8, 9])
        page = survivor.page("t", Query(from_seq=3, limit=1))
        assert (b'"gap_from":4,"gap_to":6,"reason":"crash","missed_estimate":3' in page) is not bool(stored)
        assert seqs(reopen(survivor)) == seqs(survivor)


def test_caps_and_deletes_of_an_ephemeral_time_hold_after_a_crash(driver: Driver):
    put(driver, "t", durability="fsync")
    driver.commit()
    for _ in range(6):
        call(driver, "t", ONE)
    driver.commit()
    put(driver, "t", durability="ephemeral")
    driver.commit()
    ranges = SeqRanges.from_ascending([4])
    driver.store.engine.delete_records(driver.topic("t"), 0, ranges, lambda _: None, lambda _: None)
    put(driver, "t", cap_records=6)
    driver.commit()
    for _ in range(2):
        call(driver, "t", ONE)
    assert seqs(driver) == [2, 3, 5, 6, 7, 8]
    put(driver, "t", durability="fsync", cap_records=5)
    driver.commit()
    assert seqs(driver) == [3, 5, 6, 7, 8]
    survivor = reopen(driver)
    topic = survivor.topic("t")
    assert (seqs(survivor), topic.evict_floor, topic.head_seq) == ([3, 5, 6], 3, 8)
    assert b'"gap_from":1,"gap_to":2,"reason":"cap","missed_estimate":2' in survivor.page("t", Query())
    assert b'"tombstone":null' in survivor.page("t", Query(from_seq=3, limit=1))


def test_a_delete_behind_the_end_of_an_ephemeral_time_is_logged(driver: Driver):
    put(driver, "t", durability="fsync")
    driver.commit()
    call(driver, "t", ONE)
    driver.commit()
    put(driver, "t", durability="ephemeral")
    driver.commit()
    put(driver, "t", durability="fsync")
    deleted = Answer()
    driver.store.engine.delete_records(driver.topic("t"), 2, None, deleted.done, deleted.fail)
    driver.commit()
    assert deleted.result == 1
    assert seqs(reopen(driver)) == []


def test_an_emptied_ephemeral_topic_is_told_once(driver: Driver):
    put(driver, "t", durability="ephemeral")
    driver.commit()
    call(driver, "t", ONE)
    survivor = reopen(driver)
    logged = survivor.store.engine.log.last_lsn
    assert reopen(survivor).store.engine.log.last_lsn == logged


def reopen(driver: Driver, *, power_loss: bool = False) -> Driver:
    return Driver(driver.disk.crash(1, power_loss=power_loss), clock=driver.clock).start()


def test_stamps_never_go_back_when_the_clock_does(driver: Driver):
    driver.append("t", records(1), config={"durability": "fsync"})
    driver.commit()
    driver.clock.jump_wall(-60_000)
    driver.append("t", records(1))
    driver.commit()
    reopened = reopen(driver)
    call(reopened, "t", ONE)
    reopened.commit()
    stamps = [record.ts for record in driver.model.topics["t"].live.values()]
    assert stamps == sorted(stamps)
    assert reopened.page("t", Query()).count(b'"$ts":%d' % stamps[0]) == 3


def test_expiry_that_only_a_reader_saw_is_told_after_the_files_went(driver: Driver):
    driver.append("t", records(20), config={"ttl_ms": 10})
    driver.commit()
    driver.checkpoint()
    driver.clock.advance(11)
    driver.topic("t")
    driver.checkpoint()
    driver.restart()
    assert driver.disk.list("packs") == []
    assert b'"reason":"ttl","missed_estimate":20' in driver.page("t", Query())


def test_a_match_finds_its_records_wherever_they_are(driver: Driver):
    driver.append("t", [Draft(b"1", tag) for tag in ("a", "ab", None, "b")] * 3)
    driver.commit()
    driver.checkpoint()  # a segment and a pack
    driver.append("t", [Draft(b"1", tag) for tag in ("a", "ab", None, "b")])
    assert driver.delete("t", 6, TagMatch("Eq", "a")).result == 2
    assert driver.delete("t", None, TagMatch("Glob", "a")).result == 6
    assert driver.delete("t", None, TagMatch("Glob", "")).result == 4
    driver.restart()
    assert driver.topic("t").count == 4


def test_bounds_that_end_an_ephemeral_time_hold_at_once(driver: Driver):
    """What expires before the change is durable is gone by the new bounds, and a replay agrees."""
    driver.append("t", records(5), config={"durability": "memory"})
    driver.commit()
    driver.put("t", {"durability": "ephemeral", "ttl_ms": 50})
    driver.commit()
    answer = driver.put("t", {"durability": "fsync", "ttl_ms": 0, "cap_records": 3})
    assert not answer.given
    assert driver.topic("t").count == 3
    driver.clock.advance(60)
    assert driver.topic("t").count == 3
    driver.check_all()
    driver.commit()
    assert answer.given
    driver.crash(1, power_loss=True)
    assert (driver.topic("t").count, driver.topic("t").evict_floor) == (3, 3)


def test_a_retry_does_not_bring_a_topic_back_that_is_removed_behind_its_original(driver: Driver):
    driver.append("t", records(1), config={"durability": "fsync"})
    driver.commit()
    original, retry = call(driver, "t", KEYED), call(driver, "t", KEYED)
    removed = Answer()
    driver.store.engine.remove_topic("t", False, removed.done, removed.fail)
    driver.store.commit_all()
    assert removed.result is True
    assert (retry.result.first_seq, retry.result.deduped) == (original.result.first_seq, True)
    assert "t" not in driver.store.engine.state.topics
