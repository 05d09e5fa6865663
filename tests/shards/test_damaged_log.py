"""Damage in the log after the machine has started again: the head register tells nothing, and no reader is misled."""

import pytest

from tests.shards.wal_logs import get, put
from topics import limits
from topics.core.events import RESERVED
from topics.shards import wal, walscan
from topics.shards.recovery import recover
from topics.testing.drafts import Draft
from topics.testing.driver import Driver
from topics.testing.faulty_files import FaultyFiles

VICTIM = b'"victim"'


def spoil(driver: Driver, victim: bytes = VICTIM) -> None:
    """One bit, in the one place of the log that has these bytes."""
    driver.store.close()
    for path in map(wal.file_path, walscan.list_files(driver.disk)):
        data = bytearray(get(driver.disk, path))
        if victim in data:
            data[data.index(victim) + 1] ^= 1
            put(driver.disk, path, bytes(data))


def spoil_kind(driver: Driver, kind: int) -> None:
    """A bit of every frame of this kind."""
    for path in map(wal.file_path, walscan.list_files(driver.disk)):
        data = bytearray(get(driver.disk, path))
        for found in walscan.scan_file(bytes(data)).frames:
            if found.kind == kind:
                data[found.offset + 8] ^= 1
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
    driver.store.close()
    spoil_kind(driver, RESERVED)
    topic = recover(after_power_loss(driver), driver.clock).engine.state.topics["t"]
    assert topic.head_seq >= raised > 8, "whatever was acked up to there is not given again"
