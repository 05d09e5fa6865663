"""The file-system port: what both twins promise, and what only the operating system can get wrong."""

import errno
import os
import random

import pytest

from topics.shards.files import Files, RealFiles
from topics.testing.disk_monitor import MonitoredFiles
from topics.testing.faulty_files import FaultyFiles


@pytest.fixture(params=["real", "faulty", "monitored"])
def files(request, tmp_path) -> Files:
    if request.param == "real":
        return RealFiles(str(tmp_path))
    return FaultyFiles() if request.param == "faulty" else MonitoredFiles(FaultyFiles(), exempt=lambda path: True)


@pytest.fixture
def real(tmp_path) -> RealFiles:
    return RealFiles(str(tmp_path))


# -- on every twin


def test_written_bytes_are_read_back(files):
    file = files.create("a")
    file.write_at(0, [b"hello ", bytearray(b"wor"), memoryview(b"ld")])
    assert file.read_at(0, 100) == b"hello world"
    assert file.read_at(6, 3) == b"wor"
    assert file.read_at(11, 3) == b""
    assert file.size() == 11


def test_a_hole_reads_as_zeros(files):
    file = files.create("a")
    file.write_at(5, [b"x"])
    assert file.read_at(0, 10) == b"\0\0\0\0\0x"


def test_nothing_to_write_writes_nothing(files):
    file = files.create("a")
    file.write_at(100, [b"", b""])
    file.write_at(100, [])
    assert file.size() == 0


def test_truncate_cuts_and_extends_with_zeros(files):
    file = files.create("a")
    file.write_at(0, [b"abcdef"])
    file.truncate(2)
    file.truncate(4)
    assert file.read_at(0, 10) == b"ab\0\0"


def test_create_refuses_what_exists_and_open_what_does_not(files):
    files.create("a")
    with pytest.raises(FileExistsError):
        files.create("a")
    with pytest.raises(FileNotFoundError):
        files.open("b")
    with pytest.raises(FileNotFoundError):
        files.create("missing/a")
    with pytest.raises(FileNotFoundError):
        files.sync_dir("missing")


def test_directories(files):
    files.make_dir("d/e")
    files.make_dir("d/e")
    files.create("d/e/b")
    files.create("d/e/a")
    files.remove_dir("d/e")
    assert files.list("d/e") == ["a", "b"]
    assert files.list("") == files.list(".") == ["d"]
    assert files.list("missing") == []
    files.unlink("d/e/a")
    files.unlink("d/e/a")
    files.unlink("d/e/b")
    files.remove_dir("d/e")
    files.remove_dir("d/e")
    assert files.list("d") == []
    for directory in ("d", "", "."):
        files.sync_dir(directory)


def test_rename_replaces_and_open_handles_stay_with_their_file(files):
    old, new = files.create("old"), files.create("new")
    old.write_at(0, [b"old"])
    new.write_at(0, [b"new"])
    old.sync()
    files.rename("old", "new")
    assert files.list("") == ["new"]
    assert files.open("new").read_at(0, 10) == b"old"
    assert new.read_at(0, 10) == b"new"
    old.write_at(3, [b"er"])
    assert files.open("new").read_at(0, 10) == b"older"


def test_an_unlinked_file_lives_while_it_is_open(files):
    file = files.create("a")
    files.unlink("a")
    file.write_at(0, [b"x"])
    file.sync()
    assert not files.exists("a")
    assert file.read_at(0, 1) == b"x"


def test_a_closed_file_is_of_no_use(files):
    file = files.create("a")
    file.close()
    file.close()
    with pytest.raises(OSError, match=r".") as caught:
        file.read_at(0, 1)
    assert caught.value.errno == errno.EBADF


def test_read_cached_is_right_or_none(files):
    file = files.create("a")
    data = random.Random(1).randbytes(10_000)
    file.write_at(0, [data])
    for offset, size in ((0, 10_000), (5000, 100), (9_999, 1), (9_000, 1_000), (3, 0)):
        assert file.read_cached(offset, size) in (data[offset : offset + size], None)
    assert file.read_cached(9_990, 100) in (data[9_990:], None)
    assert file.read_cached(20_000, 1) in (b"", None)


@pytest.mark.parametrize("synced", [True, False])
def test_dropping_the_cache_loses_nothing(files, synced):
    file = files.create("a")
    file.write_at(0, [b"bytes" * 2000])
    if synced:
        file.sync()
    file.drop_cache()
    assert file.read_at(0, 20_000) == b"bytes" * 2000


def test_a_register_keeps_its_cells(files):
    register = files.map_register("heads", 4)
    assert [register.get(index) for index in range(4)] == [0, 0, 0, 0]
    register.set(0, 1)
    register.set(3, 2**64 - 1)
    register.grow(2000)
    assert register.capacity() == 2000
    assert (register.get(0), register.get(3), register.get(1999)) == (1, 2**64 - 1, 0)
    register.set(1999, 7)
    register.grow(10)
    register.close()
    register.close()
    again = files.map_register("heads", 1)
    assert again.capacity() == 2000
    assert (again.get(0), again.get(3), again.get(1999)) == (1, 2**64 - 1, 7)
    assert files.exists("heads")


def test_a_register_has_at_least_one_cell_and_bounds(files):
    register = files.map_register("heads", 0)
    assert register.capacity() == 1
    with pytest.raises(IndexError):
        register.get(1)
    with pytest.raises(IndexError):
        register.set(1, 0)
    with pytest.raises((ValueError, OverflowError)):
        register.set(0, 2**64)


def test_the_boot_id_and_free_bytes_are_there(files):
    assert files.boot_id() == files.boot_id() != ""
    assert files.free_bytes() > 0


# -- only the operating system's


def test_more_parts_than_one_system_call_takes(real):
    rng = random.Random(2)
    parts = [rng.randbytes(rng.randrange(0, 9)) for _ in range(5000)]
    file = real.create("a")
    file.write_at(3, parts)
    assert file.read_at(3, 100_000) == b"".join(parts)


def test_short_writes_are_continued(real, monkeypatch):
    rng = random.Random(3)
    write = os.pwritev

    def write_some(fd, views, offset):
        data = b"".join(views)
        return write(fd, [data[: rng.randint(1, len(data))]], offset)

    monkeypatch.setattr(os, "pwritev", write_some)
    parts = [rng.randbytes(rng.randrange(0, 2000)) for _ in range(50)]
    file = real.create("a")
    file.write_at(7, parts)
    assert file.read_at(7, 1_000_000) == b"".join(parts)


def test_short_reads_are_continued(real, monkeypatch):
    read = os.pread
    file = real.create("a")
    file.write_at(0, [bytes(range(200))])
    monkeypatch.setattr(os, "pread", lambda fd, size, offset: read(fd, min(size, 7), offset))
    assert file.read_at(10, 100) == bytes(range(10, 110))
    assert file.read_at(190, 100) == bytes(range(190, 200))


def fail_with(number):
    def fail(*_):
        raise OSError(number, os.strerror(number))

    return fail


def test_read_cached_gives_up_where_the_file_system_cannot_say(real, monkeypatch):
    file = real.create("a")
    file.write_at(0, [b"x"])
    with monkeypatch.context() as patch:
        patch.setattr(os, "preadv", fail_with(errno.EAGAIN))
        assert file.read_cached(0, 1) is None
        patch.setattr(os, "preadv", fail_with(errno.EIO))
        with pytest.raises(OSError, match="Input/output"):
            file.read_cached(0, 1)
        patch.setattr(os, "preadv", fail_with(errno.EOPNOTSUPP))
        assert file.read_cached(0, 1) is None
    monkeypatch.setattr(os, "preadv", fail_with(errno.EIO))
    assert file.read_cached(0, 1) is None  # it is not asked again


def test_read_cached_asks_not_to_wait_for_the_disk(real, monkeypatch):
    """It is called in a loop. Whether a page is cached is the kernel's business: a test can only see what it asks."""
    read, asked = os.preadv, []

    def preadv(fd, buffers, offset, flags=0):
        asked.append(flags)
        return read(fd, buffers, offset, flags)

    file = real.create("a")
    file.write_at(0, [b"x" * 5000])
    monkeypatch.setattr(os, "preadv", preadv)
    monkeypatch.setattr(os, "pread", fail_with(errno.EIO))  # these may wait
    monkeypatch.setattr(os, "read", fail_with(errno.EIO))
    assert file.read_cached(100, 50) in (b"x" * 50, None)
    assert asked == [os.RWF_NOWAIT]


def test_a_failed_close_is_not_repeated(real, monkeypatch):
    file = real.create("a")
    close = os.close
    with monkeypatch.context() as patch:
        patch.setattr(os, "close", lambda fd: (close(fd), fail_with(errno.EIO)()))
        with pytest.raises(OSError, match="Input/output"):
            file.close()
    file.close()  # would otherwise close whatever file has the number by now


def test_a_register_that_cannot_grow_stays_as_it_was(real, monkeypatch, tmp_path):
    register = real.map_register("heads", 2)
    register.set(1, 5)
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", fail_with(errno.ENOSPC))
        with pytest.raises(OSError, match="No space"):
            register.grow(10_000)
        with pytest.raises(OSError, match="No space"):
            real.map_register("other", 1)
    assert register.capacity() == 2
    assert register.get(1) == 5
    assert (tmp_path / "heads").stat().st_size == 16
    register.grow(10_000)
    assert register.get(1) == 5


def test_register_pages_are_allocated_not_holes(real, tmp_path):
    real.map_register("heads", 100_000).close()
    assert (tmp_path / "heads").stat().st_blocks * 512 >= 800_000


def test_the_root_and_its_missing_parents_are_synced_into_place(tmp_path, monkeypatch):
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")))
    RealFiles(str(tmp_path / "data" / "shard-00"))
    assert synced == [str(tmp_path), str(tmp_path / "data")]
    assert (tmp_path / "data" / "shard-00").stat().st_mode & 0o777 == 0o700


def test_without_proc_the_boot_id_is_unknown(real, monkeypatch):
    monkeypatch.setattr("builtins.open", fail_with(errno.ENOENT))
    assert real.boot_id() == "unknown-boot"
