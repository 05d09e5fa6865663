"""The disk monitor lets careful code pass and catches each kind of carelessness."""

import errno
from collections.abc import Callable

import pytest

from topics.shards.files import Files
from topics.shards.slots import PATH, UsedSlots
from topics.testing.disk_monitor import MonitoredFiles, OrderingViolation
from topics.testing.faulty_files import FaultyFiles


@pytest.fixture
def inner() -> FaultyFiles:
    files = FaultyFiles()
    files.make_dir("wal")
    files.make_dir("segments")
    files.create("snapshot.1").write_at(0, [b"old"])
    files.create("wal/1").write_at(0, [b"frames"])
    return files


@pytest.fixture
def files(inner) -> MonitoredFiles:
    return MonitoredFiles(inner)


def publish(files: Files, path: str) -> None:
    file = files.create(f"{path}.tmp")
    file.write_at(0, [b"new"])
    file.sync()
    files.rename(f"{path}.tmp", path)


def test_publish_then_sync_the_directory_then_unlink(files, inner):
    publish(files, "snapshot.2")
    files.sync_dir("")
    files.unlink("wal/1")
    files.unlink("snapshot.1")
    assert inner.list("") == ["segments", "snapshot.2", "wal"]


def test_rename_before_sync(files, inner):
    files.create("snapshot.2.tmp").write_at(0, [b"new"])
    with pytest.raises(OrderingViolation, match=r"rename snapshot\.2\.tmp -> snapshot\.2"):
        files.rename("snapshot.2.tmp", "snapshot.2")
    assert inner.exists("snapshot.2.tmp")


def test_rename_after_an_unsynced_truncation(files):
    file = files.open("snapshot.1")
    file.truncate(1)
    with pytest.raises(OrderingViolation):
        files.rename("snapshot.1", "snapshot.2")
    file.sync()
    files.rename("snapshot.1", "snapshot.2")


def test_unlink_before_the_successors_name_is_synced(files, inner):
    publish(files, "snapshot.2")
    with pytest.raises(OrderingViolation, match=r"unlink wal/1 before the name snapshot\.2 is synced"):
        files.unlink("wal/1")
    assert inner.exists("wal/1")


def test_marks_of_used_slots_are_no_successors(files):
    """They are written for frames to come, while a checkpoint lets old ones go."""
    UsedSlots(files).close()
    files.open(PATH).write_at(0, [b"x"])
    files.unlink("wal/1")


def test_unlink_before_the_successors_directory_is_synced(files):
    files.make_dir("segments/7")
    publish(files, "segments/7/seg-1")
    files.sync_dir("segments/7")
    with pytest.raises(OrderingViolation, match="the name segments/7 is synced"):
        files.unlink("wal/1")
    files.sync_dir("segments")
    files.unlink("wal/1")


def test_unlink_before_the_successors_data_is_synced(files):
    file = files.create("segments/seg-1")
    file.write_at(0, [b"x"])
    files.sync_dir("segments")
    with pytest.raises(OrderingViolation, match="the data of segments/seg-1"):
        files.unlink("snapshot.1")
    file.sync()
    files.unlink("snapshot.1")


def test_a_file_may_always_go_itself_and_temporary_ones_too(files):
    files.create("segments/seg-1").write_at(0, [b"x"])
    files.create("segments/seg-2.tmp").write_at(0, [b"x"])
    files.unlink("segments/seg-2.tmp")
    files.unlink("segments/absent")
    files.unlink("segments/seg-1")
    files.unlink("snapshot.1")


def test_the_log_and_spares_and_registers_are_exempt(files):
    files.create("wal/2").write_at(0, [b"x"])
    files.create("spare").write_at(0, [b"x"])
    files.map_register("heads", 1).set(0, 1)
    files.unlink("snapshot.1")


def test_the_exemption_can_be_chosen(inner):
    files = MonitoredFiles(inner, exempt=lambda path: path.startswith("segments/"))
    files.create("segments/seg-1").write_at(0, [b"x"])
    files.unlink("snapshot.1")
    files.create("wal/2")
    with pytest.raises(OrderingViolation):
        files.unlink("wal/1")


def test_ack_needs_the_bytes_and_the_name(files):
    file = files.create("wal/2")
    file.write_at(0, [b"12345"])
    for token in "abc":
        files.note_write(token, "wal/2", 5)
    with pytest.raises(OrderingViolation, match=r"'a' is acknowledged before wal/2 is synced to 5"):
        files.check_acked("a")
    file.sync()
    with pytest.raises(OrderingViolation, match="the name wal/2"):
        files.check_acked("b")
    files.sync_dir("wal")
    files.check_acked("c")
    with pytest.raises(OrderingViolation, match="no write is noted"):
        files.check_acked("c")


def test_ack_does_not_wait_for_what_comes_after_it(files):
    file = files.open("wal/1")
    file.write_at(6, [b"aa"])
    files.note_write(1, "wal/1", 8)
    file.sync()
    file.write_at(8, [b"bb"])
    files.note_write(2, "wal/1", 10)
    files.check_acked(1)
    with pytest.raises(OrderingViolation):
        files.check_acked(2)


def test_ack_of_bytes_that_were_never_written(files):
    files.open("wal/1")
    files.note_write("a", "wal/1", 7)
    with pytest.raises(OrderingViolation):
        files.check_acked("a")


class WritesWhileSyncing(FaultyFiles):
    """A disk on which another write comes in while a sync is under way."""

    amid_sync: Callable[[], None] | None = None

    def sync(self, node, path):
        super().sync(node, path)
        if self.amid_sync is not None:
            self.amid_sync()


def test_a_sync_covers_only_what_was_written_when_it_began():
    inner = WritesWhileSyncing()
    inner.create("log")
    files = MonitoredFiles(inner)
    file = files.open("log")
    file.write_at(0, [b"aa"])
    inner.amid_sync = lambda: file.write_at(2, [b"bb"])
    file.sync()
    files.note_write("before", "log", 2)
    files.note_write("amid", "log", 4)
    files.check_acked("before")
    with pytest.raises(OrderingViolation):
        files.check_acked("amid")


def test_a_failed_sync_is_never_made_good(files, inner):
    file = files.open("wal/1")
    file.write_at(6, [b"aa"])
    files.note_write("a", "wal/1", 8)
    inner.fail_at(inner.calls, errno.EIO)
    with pytest.raises(OSError, match="sync wal/1"):
        file.sync()
    file.sync()
    with pytest.raises(OrderingViolation):
        files.check_acked("a")


def test_a_failed_write_leaves_the_file_unsynced(files, inner):
    file = files.create("segments/x.tmp")
    inner.fail_at(inner.calls, errno.ENOSPC)
    with pytest.raises(OSError, match="write_at"):
        file.write_at(0, [b"abc"])
    with pytest.raises(OrderingViolation):
        files.rename("segments/x.tmp", "segments/x")


def test_acks_follow_a_renamed_file(files):
    file = files.open("wal/1")
    file.write_at(6, [b"aa"])
    file.sync()
    files.note_write("a", "wal/1", 8)
    files.rename("wal/1", "wal/one")
    with pytest.raises(OrderingViolation, match="the name wal/one"):
        files.check_acked("a")


def test_a_removed_directory_is_not_waited_for(files):
    files.make_dir("segments/7")
    files.remove_dir("segments/7")
    publish(files, "segments/seg")
    files.sync_dir("segments/")
    files.unlink("wal/1")
