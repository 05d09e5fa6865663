"""Idle marks: a log that ends with one is complete, so a power loss took nothing of a `disk` topic."""

from collections.abc import Callable

import pytest

from tests.shards.wal_logs import get, put
from topics.shards import wal, walscan
from topics.shards.recovery import recover
from topics.testing.drafts import Draft
from topics.testing.driver import Driver
from topics.testing.reference import Query


@pytest.fixture
def driver() -> Driver:
    return Driver().start()


def records(n: int) -> list[Draft]:
    return [Draft(b"1")] * n


def be_idle(driver: Driver) -> None:
    """A topic whose log ends with an idle mark, and a new log file behind it."""
    driver.put("t", {"durability": "disk"})
    driver.commit()
    driver.store.engine.go_idle()
    driver.store.commit_all()
    driver.restart_in_place()


@pytest.mark.parametrize("seed", range(12))
def test_an_idle_mark_is_remembered_when_its_log_file_goes(driver: Driver, seed: int):
    """A log that ended idle lost nothing, also after a checkpoint trimmed the file with the mark."""
    driver.put("t", {})
    driver.commit()
    driver.append("t", records(2))
    driver.commit()
    driver.store.engine.go_idle()
    driver.store.commit_all()
    driver.restart_in_place()
    driver.checkpoint()
    driver.crash(seed, power_loss=True)
    assert driver.topic("t").head_seq == 2


def test_a_recovery_that_logs_something_is_idle_again(driver: Driver):
    """A `memory` topic gets a new epoch at each power loss. The `disk` topic beside it has lost nothing."""
    driver.append("m", records(1), config={"durability": "memory"})
    driver.append("t", records(2), config={"durability": "disk"})
    driver.commit()
    driver.stop()
    for seed in range(3):
        driver.crash(seed, power_loss=True)
        assert driver.topic("t").head_seq == 2
    assert driver.append("t", records(1)).given is False, "the first write after the mark waits for its sync"


def test_an_idle_mark_that_outlives_newer_log_files_says_nothing(driver: Driver):
    """A power loss takes some unlinks of a checkpoint and leaves others. What an older file ends with is not where the
    log ended: what was acked since and not synced is told as lost, and its seqs are not given out again."""
    be_idle(driver)
    older = {path: get(driver.disk, path) for path in map(wal.file_path, walscan.list_files(driver.disk)[:-1])}
    driver.append("t", records(2))
    driver.commit()
    driver.checkpoint()
    assert older
    assert not any(map(driver.disk.exists, older))
    for path, data in older.items():
        driver.disk.create(path).close()
        put(driver.disk, path, data)
    newest = wal.file_path(walscan.list_files(driver.disk)[-1])
    assert driver.append("t", records(3)).given  # into a file whose name does not last
    driver.disk.unlink(newest)
    driver.disk.sync_dir("wal")
    driver.store = recover(driver.disk.crash(1, power_loss=True), driver.clock)
    assert driver.topic("t").head_seq > 5
    assert b'"reason":"corrupt"' in driver.page("t", Query(from_seq=2))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: bytes(wal.HEADER_BYTES) + data[wal.HEADER_BYTES :],
        lambda data: bytes(len(data)),  # not even a trace of a frame is left
        lambda data: data[:30],
        lambda data: b"",
    ],
    ids=["header", "zeros", "cut off", "empty"],
)
def test_a_log_that_ends_in_a_file_that_cannot_be_read_does_not_end_idle(
    driver: Driver, spoil: Callable[[bytes], bytes]
):
    be_idle(driver)
    driver.append("t", records(2))
    driver.commit()
    driver.store.close()
    last = walscan.list_files(driver.disk)[-1]
    put(driver.disk, wal.file_path(last), spoil(get(driver.disk, wal.file_path(last))))
    driver.store = recover(driver.disk.crash(1, power_loss=True), driver.clock)
    topic = driver.store.engine.state.topics["t"]
    assert topic.head_seq > 2
    assert [hole.reason for hole in topic.holes.within(1, 2)] == ["corrupt"]
