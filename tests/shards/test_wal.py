"""The log's writer: frames, files, rotation, spares, and what survives which end."""

import errno

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.shards.wal_logs import body_of, frame, frames_of, get, read, write_groups
from topics import limits
from topics.failpoints import parse
from topics.shards import wal, walscan
from topics.shards.failing_files import FailingFiles
from topics.shards.files import RealFiles
from topics.shards.wal import HEADER_BYTES, BadLog, Frame, WalWriter
from topics.testing.faulty_files import FaultyFiles

KIB = 1024


def names(files: FaultyFiles) -> list[str]:
    return files.list("wal")


def writer_on(files: FaultyFiles, *, next_lsn: int = 1, number: int = 1, file_bytes: int = 4 * KIB) -> WalWriter:
    return WalWriter(files, next_lsn=next_lsn, next_number=number, file_bytes=file_bytes)


# -- headers and frames


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_a_file_header_comes_back(seed, first_lsn):
    header = wal.encode_file_header(seed, first_lsn)
    assert len(header) == HEADER_BYTES
    assert wal.decode_file_header(header + b"more") == (seed, first_lsn)


@given(st.binary(max_size=100))
def test_arbitrary_bytes_are_no_file_header(data):
    assert wal.decode_file_header(data) is None
    assert walscan.scan_file(data).frames == []


def test_every_flipped_bit_of_a_file_header_is_found():
    header = wal.encode_file_header(7, 1)
    for bit in range(8 * HEADER_BYTES):
        spoiled = (int.from_bytes(header, "little") ^ 1 << bit).to_bytes(HEADER_BYTES, "little")
        assert wal.decode_file_header(spoiled) is None


def test_a_log_of_another_version_is_refused_and_left_alone(monkeypatch):
    files = FaultyFiles()
    with monkeypatch.context() as patch:
        patch.setattr(wal, "VERSION", 2)
        writer = writer_on(files)
        write_groups(writer, [[40], [40]])
        writer.close()
    before = get(files, wal.file_path(1))
    with pytest.raises(BadLog, match="version 2"):
        read(files)
    assert get(files, wal.file_path(1)) == before


@given(st.lists(st.binary(max_size=3000), min_size=1, max_size=5), st.integers(0, 255), st.integers(0, 2**64 - 1))
@settings(deadline=None)
def test_a_frame_comes_back_however_it_was_cut_into_parts(parts, kind, seed):
    size = sum(map(len, parts))
    encoded = b"".join(wal.encode_frame(Frame(9, kind, parts, size, ()), 5, seed))
    assert len(encoded) == wal.FRAME_BYTES + size + -size % 8
    (found,) = walscan.scan_file(wal.encode_file_header(seed, 9) + encoded).frames
    assert (found.lsn, found.synced, found.kind, bytes(found.body)) == (9, 5, kind, b"".join(parts))
    assert found.end == HEADER_BYTES + len(encoded)


def test_frames_stand_at_multiples_of_eight_and_say_what_was_synced():
    files = FaultyFiles()
    writer = writer_on(files)
    write_groups(writer, [[1, 7, 8], [9], [0, 5000, 15]])
    found = frames_of(files, 1)
    assert [(f.lsn, f.synced, len(f.body)) for f in found] == [
        (1, 0, 1), (2, 0, 7), (3, 0, 8), (4, 3, 9), (5, 4, 0), (6, 4, 5000), (7, 4, 15),
    ]  # fmt: skip
    assert all(f.offset % 8 == 0 for f in found)
    assert [bytes(f.body) for f in found] == [body_of(f.lsn, len(f.body)) for f in found]


# -- durability


@pytest.mark.parametrize("seed", range(20))
def test_what_was_synced_survives_a_power_loss_from_the_first_frame_on(seed):
    files = FaultyFiles()
    writer = writer_on(files)
    write_groups(writer, [[40], [900, 30]])
    lsns, report = read(files.crash(seed))
    assert lsns == [1, 2, 3]
    assert report.damage == []


@pytest.mark.parametrize("spare", [False, True])
@pytest.mark.parametrize("seed", range(40))
def test_a_power_loss_leaves_a_prefix_with_all_that_was_synced(seed, spare):
    files = FaultyFiles()
    writer = writer_on(files, file_bytes=2 * KIB)
    for _ in range(8):
        if spare:
            wal.prepare_spare(files, 2 * KIB)
        write_groups(writer, [[300, 40], [5, 700]])
    synced = writer.synced_lsn
    write_groups(writer, [[10, 600, 20, 900, 30]], sync_last=False)
    survivor = files.crash(seed)
    lsns, report = read(survivor)
    assert lsns == list(range(1, len(lsns) + 1))
    assert synced <= len(lsns) <= synced + 5
    assert report.damage == []
    walscan.settle(survivor, report)
    assert read(survivor)[0] == lsns


@pytest.mark.parametrize("file_bytes", [HEADER_BYTES, 4 * KIB])
def test_frames_read_after_a_kill_are_made_durable_before_the_log_goes_on(file_bytes):
    """They were only in the page cache, and the next writer calls everything below it synced."""
    files = FaultyFiles()
    writer = writer_on(files, file_bytes=file_bytes)
    write_groups(writer, [[40], [50, 60]], sync_last=False)
    killed = files.crash(0, power_loss=False)
    lsns, report = read(killed)
    assert lsns == [1, 2, 3]
    walscan.settle(killed, report)
    again = writer_on(killed, next_lsn=4, number=report.next_number, file_bytes=file_bytes)
    write_groups(again, [[70]])
    for seed in range(20):
        lsns, report = read(killed.crash(seed))
        assert lsns == [1, 2, 3, 4]
        assert report.damage == []


def test_a_failed_sync_is_not_taken_for_a_good_one():
    files = FaultyFiles()
    writer = writer_on(files)
    writer.write([frame(1)])
    files.fail_at(files.calls, errno.EIO)
    with pytest.raises(OSError, match="sync") as caught:
        writer.sync()
    assert caught.value.errno == errno.EIO
    assert (writer.synced_lsn, writer.written_lsn) == (0, 1)


# -- rotation


def test_a_full_file_is_left_for_the_next_one():
    files = FaultyFiles()
    writer = writer_on(files, file_bytes=1 * KIB)
    write_groups(writer, [[400]] * 7)
    assert names(files) == ["0000000001.wal", "0000000002.wal", "0000000003.wal"]
    assert [[f.lsn for f in frames_of(files, n)] for n in (1, 2, 3)] == [[1, 2, 3], [4, 5, 6], [7]]
    assert writer.sealed == [(1, 3), (2, 6)]
    assert (writer.number, writer.rotations) == (3, 2)
    assert read(files)[0] == [1, 2, 3, 4, 5, 6, 7]


def test_a_ready_spare_is_used_as_soon_as_the_prepared_bytes_are_full():
    files = FaultyFiles()
    writer = writer_on(files, file_bytes=1 * KIB)
    wal.prepare_spare(files, 1 * KIB)
    write_groups(writer, [[400]] * 3)
    assert names(files) == ["0000000001.wal", "0000000002.wal"]
    assert [[f.lsn for f in frames_of(files, n)] for n in (1, 2)] == [[1, 2], [3]]
    assert len(get(files, wal.file_path(2))) == 1 * KIB


def test_a_file_is_never_left_while_it_holds_unsynced_frames():
    files = FaultyFiles()
    writer = writer_on(files, file_bytes=1 * KIB)
    wal.prepare_spare(files, 1 * KIB)
    for lsn in range(1, 8):
        writer.write([frame(lsn, 400)])
    assert names(files) == ["0000000001.wal", "spare-0"]
    writer.sync()
    writer.write([frame(8, 400)])
    assert writer.sealed == [(1, 7)]


@pytest.mark.parametrize("spare", [False, True])
def test_a_frame_larger_than_a_file_gets_one_of_its_own_size(spare):
    files = FaultyFiles()
    writer = writer_on(files, file_bytes=1 * KIB)
    write_groups(writer, [[40]])
    if spare:
        wal.prepare_spare(files, 1 * KIB)
    write_groups(writer, [[20_000], [40], [40, 30_000, 40]])
    assert read(files)[0] == [1, 2, 3, 4, 5, 6]
    walscan.settle(files, read(files)[1])
    assert read(files)[0] == [1, 2, 3, 4, 5, 6]


def test_the_first_file_is_filled_ahead_but_small():
    files = FaultyFiles()
    WalWriter(files, next_lsn=1, next_number=1)
    assert len(get(files, wal.file_path(1))) == limits.WAL_FIRST_FILE_BYTES


# -- spares


def test_a_spare_is_zeros_and_made_once():
    files = FaultyFiles()
    writer_on(files)
    wal.prepare_spare(files, 3 * limits.MIB // 2)
    assert get(files, "wal/spare-0") == bytes(3 * limits.MIB // 2)
    calls = files.calls
    wal.prepare_spare(files, 1 * KIB)
    assert files.calls == calls


def test_a_spare_goes_to_the_disk_little_at_a_time():
    """Else the syncs of all logs would wait behind the whole of it."""
    files = FaultyFiles()
    writer_on(files)
    begun = len(files.trace)
    wal.prepare_spare(files, 3 * limits.MIB)
    steps = [line.split()[0] for line in files.trace[begun:] if "spare-0.tmp" in line]
    assert steps == ["unlink", "create", *["write_at", "sync"] * 3, "rename"]


def test_a_spare_that_nobody_will_need_is_given_up():
    files = FaultyFiles()
    writer_on(files)
    asked = iter([True, True, False])
    wal.prepare_spare(files, 8 * limits.MIB, go_on=lambda: next(asked))
    assert names(files) == ["0000000001.wal"]


def test_a_spare_whose_room_goes_meanwhile_leaves_no_litter():
    files = FaultyFiles()
    writer_on(files)
    full = FailingFiles(files, parse("wal.prepare=error:ENOSPC@2"))
    with pytest.raises(OSError, match="No space left"):
        wal.prepare_spare(full, 4 * limits.MIB)
    assert names(files) == ["0000000001.wal"]


@pytest.mark.parametrize("short", [True, False])
def test_the_last_of_the_room_is_not_for_spares(short):
    files = FaultyFiles()
    writer_on(files)
    files.set_free_bytes(limits.SPACE_SHORT_BYTES + 4 * limits.MIB - short)
    wal.prepare_spare(files, 4 * limits.MIB)
    assert wal.spares(files) == ([] if short else ["spare-0"])


@pytest.mark.parametrize("short", [True, False])
def test_a_file_that_is_no_longer_needed_goes_when_room_is_short(short):
    files = FaultyFiles()
    writer_on(files)
    files.set_free_bytes(limits.SPACE_SHORT_BYTES - short)
    wal.retire(files, 1)
    assert names(files) == ([] if short else ["spare-1"])


def test_a_file_that_has_grown_is_left_on_demand():
    """Without a spare and below its full size it would grow on; what it holds could never be given back."""
    files = FaultyFiles()
    writer = writer_on(files, file_bytes=limits.WAL_FILE_BYTES)
    lsn = 1
    while not writer.grown:
        writer.write([frame(lsn, limits.MIB // 2)])
        writer.sync()
        lsn += 1
    assert writer.number == 1
    writer.leave_file = True
    writer.write([frame(lsn)])
    assert (writer.number, writer.sealed, writer.leave_file) == (2, [(1, lsn - 1)], False)


def test_a_spare_that_a_crash_cut_short_is_made_anew():
    files = FaultyFiles()
    writer_on(files)
    files.create("wal/spare-0.tmp").write_at(0, [b"half"])
    assert wal.spares(files) == []
    wal.prepare_spare(files, 1 * KIB)
    assert names(files) == ["0000000001.wal", "spare-0"]
    assert get(files, "wal/spare-0") == bytes(1 * KIB)


def test_retired_files_become_the_spare_and_then_go():
    files = FaultyFiles()
    writer = writer_on(files, file_bytes=1 * KIB)
    write_groups(writer, [[400]] * 9)
    assert [number for number, _ in writer.sealed] == [1, 2]
    wal.retire(files, 1)
    wal.retire(files, 2)
    assert names(files) == ["0000000003.wal", "spare-1"]
    assert read(files, after_lsn=6)[0] == [7, 8, 9]


def test_a_huge_file_does_not_become_the_spare(monkeypatch):
    monkeypatch.setattr(limits, "WAL_FILE_BYTES", 1 * KIB)
    files = FaultyFiles()
    writer = writer_on(files, file_bytes=1 * KIB)
    write_groups(writer, [[10_000], [40], [40]])
    wal.retire(files, 1)
    assert names(files) == ["0000000002.wal"]


@pytest.mark.parametrize("seed", range(30))
def test_stale_frames_of_a_recycled_file_never_check(seed):
    """Same positions, same sizes, same bodies: only the seed differs."""
    files = FaultyFiles()
    writer = writer_on(files, file_bytes=1 * KIB)
    write_groups(writer, [[400]] * 4)
    stale = get(files, wal.file_path(1))
    wal.retire(files, 1)
    write_groups(writer, [[400]] * 2)
    assert writer.number == 3
    found = frames_of(files, 3)
    assert [f.lsn for f in found] == [5, 6]
    left = stale[found[-1].end :]
    assert get(files, wal.file_path(3))[found[-1].end :] == left
    assert left.startswith(wal.FRAME_MAGIC), "an old frame stands right behind the new ones"
    assert read(files, after_lsn=3)[0] == [4, 5, 6]
    lsns, report = read(files.crash(seed), after_lsn=3)
    assert lsns == [4, 5, 6]
    assert report.damage == []


def test_the_writer_works_on_real_files(tmp_path):
    files = RealFiles(str(tmp_path))
    writer = WalWriter(files, next_lsn=1, next_number=1, file_bytes=4 * KIB)
    wal.prepare_spare(files, 4 * KIB)
    write_groups(writer, [[400, 6000], [40], [5], [4500], [7]])
    writer.close()
    lsns, report = read(files)
    assert lsns == [1, 2, 3, 4, 5, 6]
    assert report.damage == []
