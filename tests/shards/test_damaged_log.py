"""Damage in the log after the machine has started again: the head register tells nothing, and no reader is misled."""

from typing import Any

import pytest

from tests.shards.wal_logs import get, put
from topics import limits
from topics.core.events import APPENDED, RECOVERED, REMOVED, RESERVED, UPDATED, RangeLost, encode_event
from topics.core.requests import decode_append
from topics.core.topic import BURY_STEP
from topics.limits import Limits
from topics.shards import wal, walscan
from topics.shards.answers import Appending
from topics.shards.files import REMOVED_CELL
from topics.shards.losses import LOSS_BYTES_MIN
from topics.shards.recovery import recover
from topics.shards.store import Store
from topics.testing.comparison import append_body
from topics.testing.drafts import Draft
from topics.testing.driver import Driver
from topics.testing.faulty_files import FaultyFiles, SimulatedCrash

VICTIM = b'"victim"'


def spoil(driver: Driver, victim: bytes = VICTIM) -> None:
    """One bit, in the one place of the log that has these bytes."""
    driver.store.close()
    for path in map(wal.file_path, walscan.list_files(driver.disk)):
        data = bytearray(get(driver.disk, path))
        if victim in data:
            data[data.index(victim) + 1] ^= 1
            put(driver.disk, path, bytes(data))


def spoil_frames(driver: Driver, kind: int, topic: str | None = None, *, only: int | None = None) -> None:
    """A bit of every frame of this kind, or of those that are of one topic, or of one of them."""
    driver.store.close()
    of_topic = driver.topic(topic).id.to_bytes(8, "little") if topic is not None else b""
    number = 0
    for path in map(wal.file_path, walscan.list_files(driver.disk)):
        data = bytearray(get(driver.disk, path))
        for found in walscan.scan_file(bytes(data)).frames:
            if found.kind == kind and bytes(found.body).startswith(of_topic):
                data[found.offset + 8] ^= only in (None, number)
                number += 1
        put(driver.disk, path, bytes(data))


def end_of_others(driver: Driver, *, idle: bool = False) -> None:
    """Frames that call all before them synced."""
    for _ in range(2):
        driver.append("other", [Draft(b"1")])
        driver.commit()
    if idle:
        driver.store.engine.go_idle()
        driver.store.commit_all()


def after_power_loss(driver: Driver) -> FaultyFiles:
    return driver.disk.crash(1, power_loss=True)


def spoil_last_file(driver: Driver, how: str) -> None:
    """The newest file of the log is there, and tells nothing."""
    driver.store.close()
    path = wal.file_path(walscan.list_files(driver.disk)[-1])
    data = get(driver.disk, path)
    put(driver.disk, path, {"zeros": bytes(len(data)), "noise": b"?" * len(data), "short": data[:20]}[how])


def start(driver: Driver, disk: FaultyFiles) -> Store:
    """A start that goes on in a log of small files."""
    return recover(disk, driver.clock, wal_file_bytes=20_000)


def go_on(driver: Driver) -> None:
    """The machine starts again. From here on the driver's model knows nothing: see `write`."""
    driver.disk = after_power_loss(driver)
    driver.store = start(driver, driver.disk)


def write(store: Store, *names: str, data: bytes = b"1") -> None:
    """A record to each of these `fsync` topics, durably; then the log says that it is."""
    for name in (*names, "other", "other"):
        body = append_body([Draft(data if name != "other" else b"1")], None, {"durability": "fsync"})
        answers: list[Any] = []
        store.engine.append(name, decode_append(body, name, Limits()), answers.append, answers.append)
        store.commit_all()
        assert isinstance(answers[0], Appending)


def holes_of(store: Store, name: str) -> list[tuple[int, int, str]]:
    return [tuple(hole) for hole in store.engine.state.topics[name].holes.items]  # type: ignore[misc]


@pytest.mark.parametrize("idle", [True, False])
@pytest.mark.parametrize("durability", ["fsync", "disk"])
def test_the_last_write_of_a_topic_in_a_damaged_frame_is_told_and_its_seqs_are_not_given_again(
    durability: str, idle: bool
):
    driver = Driver(wal_file_bytes=20_000).start()
    driver.put("other", {"durability": "fsync"})
    driver.append("t", [Draft(b"1")], config={"durability": durability})
    driver.commit()
    driver.append("t", [Draft(VICTIM)] * 2)
    driver.commit()
    end_of_others(driver, idle=idle)
    spoil(driver)
    disk = after_power_loss(driver)
    for _ in range(2):  # the second time it is known from the log, and nothing is added
        store = recover(disk, driver.clock)
        topic, other = (store.engine.state.topics[name] for name in ("t", "other"))
        head = topic.head_seq
        assert head >= 3
        assert [tuple(hole) for hole in topic.holes.items] == [(2, head, "corrupt")]
        assert (topic.count, other.count, other.holes.items) == (1, 2, [])
        disk = disk.crash(2, power_loss=True)
        assert recover(disk.clone(), driver.clock).engine.state.topics["t"].head_seq == head


def test_a_topic_that_goes_on_behind_the_damage_has_lost_just_that():
    driver = Driver(wal_file_bytes=20_000).start()
    driver.put("t", {"durability": "fsync"})
    driver.append("t", [Draft(VICTIM)] * 2)
    driver.commit()
    driver.append("t", [Draft(b"1")])
    driver.commit()
    end_of_others(driver)
    spoil(driver)
    topic = recover(after_power_loss(driver), driver.clock).engine.state.topics["t"]
    assert topic.head_seq == 3
    assert [tuple(hole) for hole in topic.holes.items] == [(1, 2, "corrupt")]


def test_a_topic_that_a_checkpoint_has_stored_behind_the_damage_has_lost_nothing():
    driver = Driver(wal_file_bytes=20_000).start()
    driver.append("t", [Draft(b"1")], config={"durability": "fsync"})
    driver.commit()
    driver.append("t", [Draft(VICTIM)] * 2)
    driver.commit()
    driver.checkpoint()
    end_of_others(driver)
    spoil(driver)
    topic = recover(after_power_loss(driver), driver.clock).engine.state.topics["t"]
    assert (topic.head_seq, topic.count, topic.holes.items) == (3, 3, [])


def test_the_id_and_epoch_of_a_topic_whose_creation_is_damaged_are_not_given_again():
    driver = Driver(wal_file_bytes=20_000).start()
    driver.put("other", {"durability": "fsync"})
    driver.commit()
    driver.put("victim", {"durability": "fsync"})
    driver.commit()
    lost = driver.topic("victim")
    end_of_others(driver)
    spoil(driver, b"victim")
    store = recover(after_power_loss(driver), driver.clock)
    assert set(store.engine.state.topics) == {"other"}
    assert store.engine.state.next_topic_id > lost.id
    assert store.engine.state.next_epoch > lost.epoch


def test_a_ceiling_that_was_raised_in_a_damaged_frame_is_not_passed_by(monkeypatch):
    monkeypatch.setattr(limits, "CEILING_AHEAD", 8)
    driver = Driver(wal_file_bytes=20_000).start()
    driver.put("other", {"durability": "fsync"})
    driver.append("t", [Draft(b"1")])
    driver.commit()
    for _ in range(3):
        driver.append("t", [Draft(b"1")] * 3)
        driver.commit()
    raised = driver.topic("t").ceiling
    end_of_others(driver)
    spoil_frames(driver, RESERVED)
    topic = recover(after_power_loss(driver), driver.clock).engine.state.topics["t"]
    assert topic.head_seq >= raised > 8, "whatever was acked up to there is not given again"


# -- told once, whatever comes between


@pytest.mark.parametrize("idle", [True, False])
@pytest.mark.parametrize("power_loss", [True, False])
def test_what_a_start_has_told_is_not_told_again(power_loss: bool, idle: bool):
    """Not even if the log with the damage is still there when the power fails, and the register tells nothing."""
    driver = Driver(wal_file_bytes=20_000).start()
    for durability in ("fsync", "disk"):
        driver.append(durability, [Draft(b"1")] * 3, config={"durability": durability})
        driver.commit()
    driver.put("other", {"durability": "fsync"})
    driver.append("other", [Draft(VICTIM)])
    driver.commit()
    end_of_others(driver, idle=idle)
    spoil(driver)
    disk = driver.disk.crash(3, power_loss=power_loss)
    store = start(driver, disk)
    told = {name: holes_of(store, name) for name in ("fsync", "disk", "other")}
    assert told["other"][0] == (1, 1, "corrupt")
    assert bool(told["disk"]) == bool(told["fsync"]) == power_loss, "the register knows that they have lost nothing"
    for seed in range(4):
        disk = disk.crash(seed, power_loss=True)
        store = start(driver, disk)
        assert {name: holes_of(store, name) for name in told} == told


def test_a_crash_at_any_call_of_a_start_costs_a_disk_topic_nothing():
    """A `memory` topic gets an epoch from each power loss, so the start writes to a log that was idle."""
    driver = Driver().start()
    driver.append("m", [Draft(b"1")], config={"durability": "memory"})
    driver.append("t", [Draft(b"1")] * 2, config={"durability": "disk"})
    driver.commit()
    driver.stop()
    disk = after_power_loss(driver)
    whole = disk.clone()
    recover(whole, driver.clock)
    for call in range(whole.calls):
        for seed in range(3):
            twin = disk.clone()
            twin.crash_at(twin.calls + call)
            with pytest.raises(SimulatedCrash):
                recover(twin, driver.clock)
            store = recover(twin.crash(seed, power_loss=True), driver.clock)
            assert holes_of(store, "t") == [], f"crash at {whole.trace[call]}"
            assert store.engine.state.topics["t"].head_seq == 2


# -- a log whose end is lost


@pytest.mark.parametrize("how", ["zeros", "noise", "short"])
def test_acked_writes_in_a_last_file_that_tells_nothing_are_told(how: str):
    driver = Driver(wal_file_bytes=20_000).start()
    driver.append("t", [Draft(b"1")] * 2, config={"durability": "fsync"})
    driver.commit()
    driver.restart_in_place()
    driver.append("t", [Draft(b"1")] * 5)
    driver.commit()
    spoil_last_file(driver, how)
    disk = after_power_loss(driver)
    store = start(driver, disk)
    head = store.engine.state.topics["t"].head_seq
    assert head >= 7
    assert holes_of(store, "t") == [(3, head, "corrupt")]
    assert store.damaged_ranges
    again = start(driver, disk.crash(2, power_loss=True))
    assert holes_of(again, "t") == [(3, head, "corrupt")]
    assert again.engine.state.topics["t"].head_seq == head


@pytest.mark.parametrize("power_loss", [True, False])
def test_ids_of_topics_in_a_last_file_that_tells_nothing_are_never_given_again(power_loss: bool):
    driver = Driver(wal_file_bytes=20_000).start()
    driver.put("other", {"durability": "fsync"})
    driver.commit()
    driver.restart_in_place()
    driver.put("victim", {"durability": "fsync"})
    driver.commit()
    lost = driver.topic("victim")
    spoil_last_file(driver, "zeros")
    disk = driver.disk.crash(1, power_loss=power_loss)
    for _ in range(3):
        store = start(driver, disk)
        assert set(store.engine.state.topics) == {"other"}
        assert store.engine.state.next_topic_id > lost.id
        assert store.engine.state.next_epoch > lost.epoch
        disk = disk.crash(2, power_loss=power_loss)


def test_writes_behind_a_lost_end_count_although_the_snapshot_knew_of_later_frames():
    """A topic's entry in the snapshot names the last frame that it has. New frames are above all of those."""
    driver = Driver(wal_file_bytes=20_000).start()
    driver.append("t", [Draft(b"1")] * 2, config={"durability": "fsync"})
    driver.commit()
    driver.append("t", [Draft(b"1")] * 2)
    driver.commit()
    driver.checkpoint()
    known = driver.topic("t").applied_lsn
    driver.store.close()
    for number in walscan.list_files(driver.disk):
        driver.disk.unlink(wal.file_path(number))
    driver.disk.sync_dir("wal")
    store = start(driver, after_power_loss(driver))
    assert store.engine.log.last_lsn > known
    assert store.engine.state.topics["t"].count == 4
    assert holes_of(store, "t") == [(5, store.engine.state.topics["t"].head_seq, "corrupt")]


@pytest.mark.parametrize("in_front", [True, False])
@pytest.mark.parametrize("whole_file", [True, False])
def test_what_came_behind_a_lost_end_is_not_given_again_if_it_is_lost_too(whole_file: bool, in_front: bool):
    """The start that told of it had given up very many seqs, ids and epochs, and that is lost with its frame. With good
    frames in front of all that, or after a checkpoint that covers them."""
    driver = Driver(wal_file_bytes=20_000).start()
    driver.append("t", [Draft(b"1")] * 2, config={"durability": "fsync"})
    driver.put("other", {"durability": "fsync"})
    driver.commit()
    driver.restart_in_place()
    if not in_front:
        driver.checkpoint()
        assert len(walscan.list_files(driver.disk)) == 1
    driver.append("t", [Draft(b"1")] * 5)
    driver.commit()
    spoil_last_file(driver, "noise")
    go_on(driver)
    write(driver.store, "t", "new", data=VICTIM)
    acked, new, next_lsn = driver.topic("t").head_seq, driver.topic("new"), driver.store.engine.log.last_lsn + 1
    if whole_file:
        spoil_last_file(driver, "noise")
    else:
        spoil_frames(driver, RECOVERED)
        spoil(driver)
    store = start(driver, after_power_loss(driver))
    state = store.engine.state
    assert state.topics["t"].head_seq >= acked
    assert (state.next_topic_id > new.id, state.next_epoch > new.epoch) == (True, True)
    assert store.engine.log.last_lsn + 1 >= next_lsn
    assert holes_of(store, "t") == [(3, state.topics["t"].head_seq, "corrupt")]


# -- how much there may have been


def test_a_damaged_batch_is_told_whole_though_smaller_ones_are_allowed_now():
    driver = Driver(wal_file_bytes=200_000).start()
    driver.append("t", [Draft(b"1")], config={"durability": "fsync"})
    driver.commit()
    driver.append("t", [Draft(b"1")] * 900 + [Draft(VICTIM)])
    driver.commit()
    end_of_others(driver)
    spoil(driver)
    store = recover(after_power_loss(driver), driver.clock, Limits(batch_records=1))
    assert store.engine.state.topics["t"].head_seq >= 902


def test_a_record_takes_the_log_no_less_than_is_counted_for_one():
    driver = Driver().start()
    driver.put("t", {"durability": "fsync"})
    driver.commit()
    before = driver.store.writer.end_offset
    driver.append("t", [Draft(b"1")] * 256)
    driver.commit()
    assert driver.store.writer.end_offset - before >= 256 * limits.RECORD_BYTES_MIN


# -- classes that changed in the damage


def change_class(driver: Driver, old: str, new: str, at: int = 1) -> None:
    """From one class to another; the frame that says so is damaged."""
    driver.put("other", {"durability": "fsync"})
    driver.append("t", [Draft(b"1")] * at, config={"durability": old})
    driver.commit()
    driver.put("t", {"durability": new})
    driver.commit()


@pytest.mark.parametrize("stands", [True, False])
def test_a_topic_that_became_disk_in_the_damage_gives_no_seq_twice(stands: bool):
    """What it acked behind that was not synced, and its ceiling is in the damage. Nor does a frame that stands behind
    it tell how far it came."""
    driver = Driver(wal_file_bytes=20_000).start()
    change_class(driver, "fsync", "disk")
    driver.append("t", [Draft(b"1")])
    driver.commit()
    end_of_others(driver)
    assert driver.append("t", [Draft(b"1")] * 3).given, "acked ahead of its sync"
    acked = driver.topic("t").head_seq
    for kind in (UPDATED, RESERVED, *(() if stands else (APPENDED,))):
        spoil_frames(driver, kind, "t" if kind == APPENDED else None)
    store = recover(after_power_loss(driver), driver.clock)
    topic = store.engine.state.topics["t"]
    assert topic.config.durability == ("disk" if stands else "fsync"), "as a write that stands says"
    assert topic.head_seq >= acked
    assert holes_of(store, "t") == [(2 + stands, topic.head_seq, "corrupt")]


def test_a_topic_that_became_fsync_in_the_damage_is_told_what_it_lost_above_its_ceiling(monkeypatch):
    monkeypatch.setattr(limits, "CEILING_AHEAD", 8)
    driver = Driver(wal_file_bytes=20_000).start()
    change_class(driver, "disk", "fsync", at=2)
    for _ in range(3):
        driver.append("t", [Draft(b"1")] * 9)
        driver.commit()
    acked = driver.topic("t").head_seq
    end_of_others(driver, idle=True)
    for kind in (UPDATED, APPENDED):
        spoil_frames(driver, kind, "t" if kind == APPENDED else None)
    store = recover(after_power_loss(driver), driver.clock)
    topic = store.engine.state.topics["t"]
    assert topic.config.durability == "disk"
    assert topic.head_seq >= acked > topic.count


def test_a_topic_that_keeps_its_class_behind_the_damage_has_lost_just_what_is_missing():
    driver = Driver(wal_file_bytes=20_000).start()
    driver.put("other", {"durability": "fsync"})
    driver.append("t", [Draft(b"1")], config={"durability": "fsync"})
    driver.append("other", [Draft(VICTIM)])
    driver.commit()
    driver.append("t", [Draft(b"1")])
    driver.commit()
    end_of_others(driver)
    spoil(driver)
    store = recover(after_power_loss(driver), driver.clock)
    assert (store.engine.state.topics["t"].head_seq, holes_of(store, "t")) == (2, [])


@pytest.mark.parametrize("old", ["memory", "ephemeral"])
def test_writes_behind_a_change_to_fsync_that_is_damaged_are_told(old: str):
    driver = Driver(wal_file_bytes=20_000).start()
    change_class(driver, old, "fsync")
    driver.append("t", [Draft(b"1")] * 5)
    driver.commit()
    end_of_others(driver)
    for kind in (UPDATED, APPENDED):
        spoil_frames(driver, kind, "t" if kind == APPENDED else None)
    topic = recover(after_power_loss(driver), driver.clock).engine.state.topics["t"]
    assert topic.head_seq >= 6
    assert topic.count == (old == "memory")
    assert [tuple(hole) for hole in topic.holes.items] == [(1 + topic.count, topic.head_seq, "corrupt")]


@pytest.mark.parametrize("power_loss", [True, False])
@pytest.mark.parametrize("old", ["memory", "ephemeral", "disk"])
def test_a_write_that_stands_behind_a_damaged_change_of_class_is_kept_by_the_new_class(old: str, power_loss: bool):
    driver = Driver(wal_file_bytes=20_000).start()
    change_class(driver, old, "fsync")
    driver.append("t", [Draft(b"1")] * 5)
    driver.commit()
    end_of_others(driver)
    spoil_frames(driver, UPDATED)
    disk = driver.disk.crash(1, power_loss=power_loss)
    for _ in range(2):
        store = start(driver, disk)
        topic = store.engine.state.topics["t"]
        assert topic.config.durability == "fsync"
        assert (topic.head_seq, topic.count) == (6, 5 if old == "ephemeral" else 6)
        assert holes_of(store, "t") == ([(1, 1, "corrupt")] if old == "ephemeral" else [])
        disk = disk.crash(2, power_loss=True)


# -- damage at another time


def test_damage_in_front_of_what_an_earlier_start_has_told_is_told_too():
    """The start has told of nothing but a new epoch, and of damage elsewhere, when these writes were still whole."""
    driver = Driver(wal_file_bytes=20_000).start()
    driver.append("m", [Draft(b"1")], config={"durability": "memory"})
    driver.append("t", [Draft(b"1")] * 2, config={"durability": "fsync"})
    driver.put("other", {"durability": "fsync"})
    driver.commit()
    driver.append("other", [Draft(b'"first"')])
    driver.commit()
    driver.append("t", [Draft(VICTIM)] * 3)
    driver.commit()
    end_of_others(driver)
    spoil(driver, b'"first"')
    disk = after_power_loss(driver)
    store = start(driver, disk)
    assert holes_of(store, "t") == []
    driver.disk, driver.store = disk, store
    spoil(driver)
    for seed in range(3):
        store = start(driver, disk := disk.crash(seed, power_loss=True))
        head = store.engine.state.topics["t"].head_seq
        assert head >= 5
        assert holes_of(store, "t") == [(3, head, "corrupt")]


def test_a_start_answers_only_for_what_it_has_told_itself():
    """Another frame told of the damage. If that one is damaged in turn, all of it is told again."""
    driver = Driver(wal_file_bytes=20_000).start()
    driver.append("m", [Draft(b"1")], config={"durability": "memory"})
    driver.append("t", [Draft(b"1")] * 2, config={"durability": "fsync"})
    driver.put("other", {"durability": "fsync"})
    driver.commit()
    driver.append("t", [Draft(VICTIM)] * 3)
    driver.commit()
    end_of_others(driver)
    spoil(driver)
    go_on(driver)
    write(driver.store, "t", data=VICTIM)
    acked = driver.topic("t").head_seq
    driver.store.close()
    go_on(driver)  # tells of a new epoch for the memory topic
    spoil_frames(driver, RECOVERED, only=0)
    spoil(driver)
    store = start(driver, after_power_loss(driver))
    assert store.engine.state.topics["t"].head_seq >= acked
    assert holes_of(store, "t") == [(3, store.engine.state.topics["t"].head_seq, "corrupt")]


def test_damage_in_front_of_a_loss_that_was_told_leaves_no_hole_without_a_reason():
    driver = Driver(wal_file_bytes=20_000).start()
    driver.append("t", [Draft(b"1")] * 2, config={"durability": "disk"})
    driver.commit()
    driver.append("t", [Draft(VICTIM)] * 3)
    driver.commit()
    driver.disk, driver.store = after_power_loss(driver), driver.store
    driver.store = start(driver, driver.disk)  # an open ceiling is told as lost
    told = holes_of(driver.store, "t")
    assert [hole[0] for hole in told] == [6]
    spoil(driver)
    store = start(driver, driver.disk.crash(1, power_loss=False))
    assert holes_of(store, "t") == [(3, 5, "corrupt"), *told]


def test_damage_that_reaches_over_the_frame_up_to_which_a_checkpoint_has_a_topic():
    """The topics of a checkpoint are captured one after another, while writes go on."""
    driver = Driver(wal_file_bytes=20_000).start()
    driver.append("t", [Draft(b"1")], config={"durability": "fsync"})
    driver.append("other", [Draft(b"1")], config={"durability": "fsync"})
    driver.commit()
    work = driver.store.begin_checkpoint()
    driver.append("t", [Draft(VICTIM)])
    driver.commit()
    list(work.capture())
    driver.store.commit_all()
    work.write()
    assert driver.topic("t").applied_lsn > work.commit.cut_lsn
    driver.append("t", [Draft(b"1")] * 3)
    driver.commit()
    end_of_others(driver)
    spoil_frames(driver, APPENDED, "t")
    store = start(driver, after_power_loss(driver))
    head = store.engine.state.topics["t"].head_seq
    assert head >= 5
    assert holes_of(store, "t") == [(3, head, "corrupt")]


def test_epochs_that_a_start_gave_in_a_frame_that_is_damaged_now_are_not_given_again():
    driver = Driver(wal_file_bytes=20_000).start()
    for name in "abcdefgh":
        driver.append(name, [Draft(b"1")], config={"durability": "memory"})
    driver.put("other", {"durability": "fsync"})
    driver.commit()
    driver.crash(1, power_loss=True)
    seen = max(topic.epoch for topic in driver.store.engine.state.by_id.values())
    end_of_others(driver)
    spoil_frames(driver, RECOVERED)
    for power_loss in (True, False):
        assert start(driver, driver.disk.crash(1, power_loss=power_loss)).engine.state.next_epoch > seen


def test_a_loss_takes_a_frame_no_less_than_is_counted_for_one():
    _, body = encode_event(RangeLost(1, 1, 0, "crash", 1))
    assert sum(map(len, body)) >= LOSS_BYTES_MIN


# -- a removal that is damaged


def removed_and_made_again(driver: Driver, again: str) -> None:
    driver.append("t", [Draft(b'"old"')] * 9, config={"durability": "fsync"})
    driver.commit()
    driver.remove("t")
    driver.commit()
    driver.append(again, [Draft(b'"new"')] * 2, config={"durability": "fsync"})
    driver.put("other", {"durability": "fsync"})
    driver.commit()
    end_of_others(driver)
    spoil_frames(driver, REMOVED)


@pytest.mark.parametrize("power_loss", [True, False])
@pytest.mark.parametrize("again", ["t", "u"])
def test_a_topic_whose_removal_is_damaged_does_not_come_back_beside_what_has_its_name_or_its_cell(
    again: str, power_loss: bool
):
    driver = Driver(wal_file_bytes=20_000).start()
    removed_and_made_again(driver, again)
    disk = driver.disk.crash(1, power_loss=power_loss)
    for round_number in range(3):
        store = start(driver, disk)
        state = store.engine.state
        assert list(state.list_names("", "")) == sorted([again, "other"])
        assert {topic.name for topic in state.by_id.values()} == {again, "other"}
        assert (state.topics[again].head_seq, state.topics[again].count) == (2, 2)
        assert holes_of(store, again) == []
        if round_number == 1:
            store.checkpoint()
        disk = disk.crash(round_number, power_loss=power_loss)


@pytest.mark.parametrize("power_loss", [True, False])
def test_nor_if_what_had_its_name_since_is_removed_as_well(power_loss: bool):
    driver = Driver(wal_file_bytes=20_000).start()
    driver.put("other", {"durability": "fsync"})
    for data in (b'"old"', b'"new"'):
        driver.append("t", [Draft(data)], config={"durability": "fsync"})
        driver.commit()
        driver.remove("t")
        driver.commit()
    end_of_others(driver)
    spoil_frames(driver, REMOVED, only=0)
    store = start(driver, driver.disk.crash(1, power_loss=power_loss))
    assert set(store.engine.state.topics) == set(store.engine.state.names) == {"other"}


def test_the_name_alone_tells_that_a_topic_was_removed():
    """The one that has it now has another cell: somebody else took the old one."""
    driver = Driver(wal_file_bytes=20_000).start()
    driver.put("other", {"durability": "fsync"})
    driver.append("t", [Draft(b'"old"')] * 3, config={"durability": "fsync"})
    driver.commit()
    driver.remove("t")
    driver.commit()
    driver.append("u", [Draft(b"1")], config={"durability": "fsync"})
    driver.commit()
    driver.append("t", [Draft(b'"new"')], config={"durability": "fsync"})
    driver.commit()
    driver.remove("u")
    driver.commit()
    end_of_others(driver)
    spoil_frames(driver, REMOVED, only=0)
    topics = start(driver, after_power_loss(driver)).engine.state.by_id.values()
    assert sorted((topic.name, topic.head_seq) for topic in topics) == [("other", 2), ("t", 1)]


def test_files_of_a_topic_that_comes_back_only_to_go_again_go_with_it():
    driver = Driver(wal_file_bytes=20_000).start()
    driver.put("t", {"durability": "fsync"})
    for _ in range(BURY_STEP // 16):
        driver.append("t", [Draft(b"1")] * 256 * 32)
        driver.commit()
    driver.checkpoint()
    driver.remove("t")
    driver.commit()
    end_of_others(driver)
    spoil_frames(driver, REMOVED)
    store = start(driver, driver.disk.crash(1, power_loss=False))
    store.checkpoint()
    store.checkpoint()
    assert [info.path for info in store.data_files.values() if info.live] == [
        info.path for info in store.data_files.values()
    ]


def test_a_removal_in_a_newest_file_that_is_gone_is_known_from_the_register():
    driver = Driver(wal_file_bytes=20_000).start()
    driver.put("other", {"durability": "fsync"})
    driver.append("t", [Draft(b"1")] * 2, config={"durability": "fsync"})
    driver.commit()
    driver.restart_in_place()
    driver.remove("t")
    driver.commit()
    driver.store.close()
    driver.disk.unlink(wal.file_path(walscan.list_files(driver.disk)[-1]))
    driver.disk.sync_dir("wal")
    assert set(start(driver, driver.disk.crash(1, power_loss=False)).engine.state.topics) == {"other"}


def test_a_register_of_another_boot_removes_nothing():
    driver = Driver(wal_file_bytes=20_000).start()
    driver.append("t", [Draft(b"1")] * 2, config={"durability": "fsync"})
    driver.commit()
    driver.store.engine.register.set(driver.topic("t").cell, REMOVED_CELL)
    driver.store.close()
    store = start(driver, after_power_loss(driver))
    assert (store.engine.state.topics["t"].head_seq, holes_of(store, "t")) == (2, [])


def test_a_topic_whose_removal_is_damaged_stays_removed_as_long_as_the_register_knows():
    driver = Driver(wal_file_bytes=20_000).start()
    driver.put("other", {"durability": "fsync"})
    driver.append("t", [Draft(b"1")] * 2, config={"durability": "fsync"})
    driver.commit()
    driver.remove("t")
    driver.commit()
    end_of_others(driver)
    spoil_frames(driver, REMOVED)
    disk = driver.disk.crash(1, power_loss=False)
    for _ in range(3):  # and once that start has told of it, whatever happens
        store = start(driver, disk)
        assert set(store.engine.state.topics) == {"other"}
        disk = disk.crash(2, power_loss=True)


# -- what is set aside


def test_writes_of_a_topic_whose_creation_is_damaged_are_kept_in_quarantine():
    driver = Driver(wal_file_bytes=20_000).start()
    driver.put("other", {"durability": "fsync"})
    driver.commit()
    driver.put("gone", {"durability": "fsync"})
    driver.commit()
    driver.append("gone", [Draft(b'"kept for people"')] * 2)
    driver.commit()
    end_of_others(driver)
    spoil(driver, b"gone")
    disk = after_power_loss(driver)
    start(driver, disk)
    copies = [get(disk, f"{walscan.QUARANTINE}/{name}") for name in disk.list(walscan.QUARANTINE)]
    assert any(b'"kept for people"' in copy for copy in copies)


def test_damaged_bytes_are_kept_also_behind_zeros():
    """The snapshot says that there was more, and the log ends with what is left of it."""
    driver = Driver(wal_file_bytes=20_000).start()
    driver.append("t", [Draft(b"1")], config={"durability": "fsync"})
    driver.commit()
    work = driver.store.begin_checkpoint()
    driver.append("t", [Draft(VICTIM)] * 5)
    driver.commit()
    list(work.capture())
    driver.store.commit_all()
    work.write()
    driver.store.close()
    path = wal.file_path(walscan.list_files(driver.disk)[-1])
    last = walscan.scan_file(get(driver.disk, path)).frames[-1]
    data = get(driver.disk, path)
    put(driver.disk, path, data[: last.offset] + bytes(40) + data[last.offset + 40 :])
    disk = after_power_loss(driver)
    assert start(driver, disk).damaged_ranges
    assert any(VICTIM in get(disk, f"{walscan.QUARANTINE}/{name}") for name in disk.list(walscan.QUARANTINE))
