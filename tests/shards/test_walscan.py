"""Reading the log back: torn is cut exactly, damage is kept and told, and doing it twice changes nothing."""

from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.shards.wal_logs import flip, frames_of, get, put, read, tree, verdict, write_groups
from topics import limits
from topics.shards import wal, walscan
from topics.shards.wal import FRAME_BYTES, HEADER_BYTES, WalWriter
from topics.shards.walscan import Damage, Gap, WalReport
from topics.testing.faulty_files import FaultyFiles, SimulatedCrash

SECTOR = 512
PATH = wal.file_path(1)


def new_log(groups: list[list[int]], *, file_bytes: int = 8192, sync_last: bool = True) -> FaultyFiles:
    files = FaultyFiles()
    writer = WalWriter(files, next_lsn=1, next_number=1, file_bytes=file_bytes)
    write_groups(writer, groups, sync_last=sync_last)
    return files


def several_files() -> FaultyFiles:
    """Frames 1-9, three in each of three files."""
    files = new_log([[400]] * 9, file_bytes=1024)
    assert walscan.list_files(files) == [1, 2, 3]
    return files


def check_settled(files: FaultyFiles, after_lsn: int = 0) -> tuple[list[int], WalReport]:
    """Read, settle, and make sure that neither a second settling nor a second reading sees anything else."""
    lsns, report = read(files, after_lsn)
    assert verdict(read(files, after_lsn)[1]) == verdict(report)
    walscan.settle(files, report)
    once = tree(files)
    walscan.settle(files, report)
    assert tree(files) == once
    again, second = read(files, after_lsn)
    assert again == lsns
    assert second.last_lsn == report.last_lsn
    walscan.settle(files, second)
    assert tree(files) == once
    return lsns, report


# -- whole logs


def test_an_empty_shard_has_an_empty_log():
    lsns, report = check_settled(FaultyFiles())
    assert (lsns, report.cut, report.damage, report.next_number, report.last_lsn) == ([], None, [], 1, 0)


def test_a_log_that_was_never_written_to():
    files = new_log([])
    lsns, report = check_settled(files)
    assert (lsns, report.cut, report.next_number) == ([], (1, HEADER_BYTES), 2)
    assert get(files, PATH) == get(files, PATH)[:HEADER_BYTES]


def test_a_clean_log_over_several_files():
    files = several_files()
    before = tree(files)
    done = []
    report = WalReport(0)
    assert [f.lsn for f in walscan.read_log(files, report, lambda a, b: done.append((a, b)))] == list(range(1, 10))
    assert tree(files) == before
    assert done == [(1, 3), (2, 3), (3, 3)]
    assert (report.damage, report.last_lsn, report.last_kind, report.next_number) == ([], 9, 4, 4)
    assert report.files == [(1, 3), (2, 6), (3, 9)]
    assert report.cut == (3, frames_of(files, 3)[-1].end)
    check_settled(files)
    assert files.list("quarantine") == []


def test_zeros_behind_the_last_frame_are_not_damage():
    files = new_log([[40], [50]])
    scan = walscan.scan_file(get(files, PATH))
    assert [f.lsn for f in scan.frames] == [1, 2]
    assert scan.bad == []
    assert not get(files, PATH)[scan.frames[-1].end :].strip(b"\0")


@pytest.mark.parametrize("after_lsn", range(10))
def test_only_frames_above_the_snapshot_are_given(after_lsn):
    lsns, report = check_settled(several_files(), after_lsn)
    assert lsns == list(range(after_lsn + 1, 10))
    assert (report.last_lsn, report.last_kind, report.damage) == (9, 4, [])


def test_names_that_are_no_log_files_are_left_alone():
    files = several_files()
    for name in ("x.wal", "5.wal", "00000000²3.wal", "0000000009.wal.tmp", "new.tmp"):
        files.create(f"wal/{name}").write_at(0, [b"?"])
    assert check_settled(files)[0] == list(range(1, 10))
    assert get(files, "wal/5.wal") == b"?"


# -- torn tails

TORN = [[40, 300], [700], [30, 900, 0, 500, 1300, 10]]  # the last group was never synced
LAST = range(4, 10)


@pytest.fixture(scope="module")
def torn() -> FaultyFiles:
    return new_log(TORN, sync_last=False)


def test_a_log_cut_off_at_any_byte_of_the_last_group(torn):
    data = get(torn, PATH)
    found = {f.lsn: f for f in frames_of(torn, 1)}
    for size in range(found[4].offset, found[9].end):
        files = torn.clone()
        put(files, PATH, data[:size])
        lsns, report = read(files)
        whole = [f for f in found.values() if f.offset + FRAME_BYTES + len(f.body) <= size]
        assert lsns == [f.lsn for f in whole]
        assert report.cut == (1, whole[-1].end)
        assert report.damage == []
        walscan.settle(files, report)
        assert get(files, PATH) == data[: min(size, whole[-1].end)]
        assert read(files)[0] == lsns


@pytest.mark.parametrize("spoil", ["zero", "flip", "noise"])
def test_any_sector_of_the_last_group_lost_while_later_frames_are_whole(torn, spoil):
    data = get(torn, PATH)
    found = frames_of(torn, 1)
    start, end = found[3].offset, found[-1].end
    for sector in range(start // SECTOR, -(-end // SECTOR)):
        low, high = max(start, sector * SECTOR), min(end, (sector + 1) * SECTOR)
        size = high - low
        lost = {
            "zero": bytes(size),
            "flip": bytes(byte ^ 0xFF for byte in data[low:high]),
            "noise": (b"TWF1" + bytes(range(60))) * (size // 64 + 1),
        }[spoil][:size]
        files = torn.clone()
        put(files, PATH, data[:low] + lost + data[high:])
        lsns, report = check_settled(files)
        last = max(f.lsn for f in found if f.offset + FRAME_BYTES + len(f.body) <= low)
        assert lsns == list(range(1, last + 1))
        assert report.cut == (1, found[last - 1].end)
        assert report.damage == []
        assert get(files, PATH) == data[: found[last - 1].end]


def test_any_byte_of_the_last_group_flipped(torn):
    found = frames_of(torn, 1)
    for f in found[3:]:
        for offset in {
            f.offset,
            f.offset + 5,
            f.offset + 9,
            f.offset + 17,
            f.offset + 25,
            f.offset + 33,
            f.offset + 39,
        }:
            files = torn.clone()
            flip(files, 1, offset)
            lsns, report = read(files)
            assert lsns == list(range(1, f.lsn))
            assert report.cut == (1, found[f.lsn - 2].end)


def test_a_torn_tail_is_cut_over_stale_frames_too():
    files = new_log([[400]] * 4, file_bytes=1024)
    writer = WalWriter(files, next_lsn=5, next_number=3, file_bytes=1024)
    wal.retire(files, 1)
    write_groups(writer, [[400], [400], [400]])
    write_groups(writer, [[300, 350]], sync_last=False)  # into the recycled file
    number = writer.number
    assert [f.lsn for f in frames_of(files, number)][-2:] == [8, 9]
    flip(files, number, frames_of(files, number)[-2].offset + 60)
    lsns, report = check_settled(files, after_lsn=3)
    assert lsns == [4, 5, 6, 7]
    assert report.damage == []


def test_the_last_synced_frame_is_a_torn_tail_as_long_as_nothing_says_otherwise():
    files = new_log([[40], [50]])
    flip(files, 1, frames_of(files, 1)[1].offset + 50)
    assert check_settled(files)[0] == [1]


def test_a_log_continues_after_a_cut():
    files = new_log(TORN, sync_last=False)
    flip(files, 1, frames_of(files, 1)[5].offset + 20)
    lsns, report = check_settled(files)
    assert lsns == [1, 2, 3, 4, 5]
    writer = WalWriter(files, next_lsn=6, next_number=report.next_number, file_bytes=8192)
    write_groups(writer, [[10], [20, 30]])
    lsns, report = check_settled(files)
    assert lsns == [1, 2, 3, 4, 5, 6, 7, 8]
    assert report.damage == []
    assert report.files == [(1, 5), (2, 8)]


def test_a_tear_at_the_very_start_of_a_file():
    """Both files are listed, or the next checkpoint would not trim them."""
    files = new_log([[400]] * 3, file_bytes=1024)
    writer = WalWriter(files, next_lsn=4, next_number=2, file_bytes=1024)
    write_groups(writer, [[100, 200]], sync_last=False)
    flip(files, 2, HEADER_BYTES + 50)
    lsns, report = check_settled(files)
    assert (lsns, report.damage, report.gaps) == ([1, 2, 3], [], [])
    assert report.cut == (1, frames_of(files, 1)[-1].end)
    assert report.files == [(1, 3), (2, 3)]
    assert len(get(files, wal.file_path(2))) == HEADER_BYTES


# -- damage


@pytest.mark.parametrize("lsn", range(1, 9))
@pytest.mark.parametrize("at", [0, 5, 9, 16, 24, 32, 36, 40, 200, 439])
def test_a_flipped_byte_that_later_frames_call_synced(lsn, at):
    files = several_files()
    number, index = (lsn - 1) // 3 + 1, (lsn - 1) % 3
    spoiled = frames_of(files, number)[index]
    flip(files, number, spoiled.offset + at)
    lsns, report = check_settled(files)
    assert lsns == [other for other in range(1, 10) if other != lsn]
    assert report.damage == [Damage(number, spoiled.offset, spoiled.end, lsn, lsn)]
    assert report.last_lsn == 9
    name = f"quarantine/wal-{number:010d}-{spoiled.offset}-{spoiled.end}.bin"
    assert files.list("quarantine") == [name.removeprefix("quarantine/")]
    assert get(files, name) == get(files, wal.file_path(number))[spoiled.offset : spoiled.end]
    assert read(files)[1].damage == report.damage


def test_neighbouring_and_scattered_damage():
    files = several_files()
    for number, index in ((1, 1), (1, 2), (2, 0), (2, 2)):
        flip(files, number, frames_of_all(files, number)[index] + 100)
    lsns, report = check_settled(files)
    assert lsns == [1, 5, 7, 8, 9]
    assert [(d.file, d.first_lsn, d.last_lsn) for d in report.damage] == [(1, 2, 4), (2, 2, 4), (2, 6, 6)]
    assert len(files.list("quarantine")) == 3


def frames_of_all(files: FaultyFiles, number: int) -> list[int]:
    """Where the three frames of a file stand, good or not."""
    return [HEADER_BYTES + i * (FRAME_BYTES + 400) for i in range(3)]


def test_damage_and_a_torn_tail_in_one_log():
    files = new_log(TORN, sync_last=False)
    found = frames_of(files, 1)
    flip(files, 1, found[1].offset + 45)
    flip(files, 1, found[6].offset + 45)
    lsns, report = check_settled(files)
    assert lsns == [1, 3, 4, 5, 6]
    assert [(d.first_lsn, d.last_lsn) for d in report.damage] == [(2, 2)]
    assert report.cut == (1, found[5].end)


def test_a_missing_file_is_damage_without_bytes():
    files = several_files()
    files.unlink(wal.file_path(2))
    lsns, report = check_settled(files)
    assert lsns == [1, 2, 3, 7, 8, 9]
    assert report.damage == [Damage(2, 0, 0, 4, 6)]
    assert files.list("quarantine") == []


def test_a_missing_first_file_is_damage_unless_the_snapshot_covers_it():
    files = several_files()
    files.unlink(wal.file_path(1))
    assert check_settled(files, after_lsn=3)[1].damage == []
    lsns, report = check_settled(files)
    assert lsns == [4, 5, 6, 7, 8, 9]
    assert [(d.first_lsn, d.last_lsn, d.offset == d.end) for d in report.damage] == [(1, 3, True)]
    assert [(d.first_lsn, d.last_lsn) for d in read(files, after_lsn=1)[1].damage] == [(2, 3)]


@pytest.mark.parametrize("lost", [1, 2])
def test_what_the_snapshot_covers_is_never_damage(lost):
    """Retired files come back in any combination after a power loss: renames and unlinks were not synced."""
    files = several_files()
    files.unlink(wal.file_path(lost))
    flip(files, 3 - lost, HEADER_BYTES + 100)
    lsns, report = check_settled(files, after_lsn=6)
    assert lsns == [7, 8, 9]
    assert (report.damage, report.last_lsn) == ([], 9)


def test_a_retired_file_whose_header_was_already_written_anew():
    """The crash came between the new header and the new name: the old name holds a new header and old frames."""
    files = several_files()
    data = get(files, PATH)
    put(files, PATH, wal.encode_file_header(77, 10) + data[HEADER_BYTES:])
    lsns, report = check_settled(files, after_lsn=3)
    assert lsns == [4, 5, 6, 7, 8, 9]
    assert report.damage == []


def test_a_gap_has_room_for_what_was_in_it_and_no_more():
    files = several_files()
    spoiled = frames_of(files, 1)[1]
    flip(files, 1, spoiled.offset)
    assert check_settled(files)[1].gaps == [Gap(2, 2, spoiled.end - spoiled.offset)]


@pytest.mark.parametrize(("number", "index"), [(1, 2), (2, 0)])
def test_where_a_file_ends_nobody_knows_how_much_there_was(number, index):
    """It may have been longer: then its end is as missing as the frame that can be seen."""
    files = several_files()
    at = frames_of(files, number)[index].offset
    put(files, wal.file_path(number), get(files, wal.file_path(number))[:at] if index else b"")
    (gap,) = check_settled(files)[1].gaps
    assert gap.room == limits.UNSTORED_BYTES_MAX


@pytest.mark.parametrize("cut_off", [True, False])
def test_a_file_is_left_for_the_next_one_only_when_it_is_synced(cut_off):
    """No later frame is needed to know that what is missing in front of a file was there."""
    files = several_files()
    writer = WalWriter(files, next_lsn=10, next_number=4, file_bytes=1024)
    writer.close()
    last = frames_of(files, 3)[-1]
    if cut_off:
        put(files, wal.file_path(3), get(files, wal.file_path(3))[: last.offset])
    else:
        flip(files, 3, last.offset + 50)
    lsns, report = check_settled(files)
    assert lsns == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [gap[:2] for gap in report.gaps] == [(9, 9)]
    assert (report.has_lost_end, report.next_lsn) == (True, 10)
    assert len(files.list("quarantine")) == (not cut_off)


@pytest.mark.parametrize("after_lsn", [0, 5, 9])
def test_a_log_that_ends_before_what_the_snapshot_knows_has_lost_its_end(after_lsn):
    files = several_files()
    files.unlink(wal.file_path(3))
    report = WalReport(after_lsn, vouched=9)
    assert [found.lsn for found in walscan.read_log(files, report)] == list(range(after_lsn + 1, 7))
    assert report.has_lost_end
    assert report.next_lsn > 10
    assert [(d.first_lsn, d.offset == d.end) for d in report.damage] == [(max(after_lsn, 6) + 1, True)]
    walscan.settle(files, report)
    assert frames_of(files, 2)[-1].lsn == 6


def test_the_number_of_gaps_does_not_decide_how_often_the_log_is_read(monkeypatch):
    files = FaultyFiles()
    writer = WalWriter(files, next_lsn=1, next_number=1, file_bytes=40_000)
    write_groups(writer, [[10]] * 3000)
    numbers = walscan.list_files(files)
    for number in numbers:
        data = bytearray(get(files, wal.file_path(number)))
        for found in frames_of(files, number)[1:-1:2]:
            data[found.offset] ^= 1
        put(files, wal.file_path(number), bytes(data))
    scanned = Mock(side_effect=walscan.scan_file)
    monkeypatch.setattr(walscan, "scan_file", scanned)
    lsns, report = read(files)
    assert len(report.gaps) == 3000 - len(lsns) > 1000
    assert scanned.call_count == len(numbers) > 2
    monkeypatch.undo()
    check_settled(files)
    assert len(files.list("quarantine")) == len(numbers), "as one stretch for each file"


# -- damaged headers


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("offset", [0, 7, 8, 12, 24, 31, 40, 56, 63])
def test_frames_stand_behind_a_bad_header_as_long_as_its_seed_is_whole(number, offset):
    files = several_files()
    flip(files, number, offset)
    lsns, report = check_settled(files)
    assert lsns == list(range(1, 10))
    assert report.damage == []


@pytest.mark.parametrize("offset", range(16, 24))
def test_a_lost_seed_inside_the_log_is_damage_of_the_whole_file(offset):
    files = several_files()
    flip(files, 2, offset)
    spoiled = get(files, wal.file_path(2))
    lsns, report = check_settled(files)
    assert lsns == [1, 2, 3, 7, 8, 9]
    assert report.damage == [Damage(2, 0, len(spoiled), 4, 6)]
    assert get(files, f"quarantine/wal-0000000002-0-{len(spoiled)}.bin") == spoiled
    assert get(files, wal.file_path(2)) == spoiled


def test_a_lost_header_sector_at_the_end_of_the_log_deletes_nothing():
    """Nothing later calls these frames synced, but a named file has had a good header, and its frames may be acked."""
    files = several_files()
    data = get(files, wal.file_path(3))
    spoiled = bytes(HEADER_BYTES) + data[HEADER_BYTES:]
    put(files, wal.file_path(3), spoiled)
    lsns, report = check_settled(files)
    assert lsns == [1, 2, 3, 4, 5, 6]
    assert [(d.file, d.offset, d.end, d.first_lsn) for d in report.damage] == [(3, 0, len(data), 7)]
    assert get(files, wal.file_path(3)) == spoiled
    assert get(files, f"quarantine/wal-0000000003-0-{len(data)}.bin") == spoiled
    assert report.has_lost_end
    assert report.next_lsn > 7 + len(data) // FRAME_BYTES, "no frame that may have been there has its lsn given again"
    writer = WalWriter(files, next_lsn=report.next_lsn, next_number=report.next_number, file_bytes=1024)
    write_groups(writer, [[40], [50]])
    lsns, second = check_settled(files)
    assert lsns == [1, 2, 3, 4, 5, 6, report.next_lsn, report.next_lsn + 1]
    assert not second.has_lost_end
    assert second.gaps == report.gaps


def test_a_lost_header_of_the_only_file_deletes_nothing():
    files = new_log([[40], [50]])
    put(files, PATH, bytes(SECTOR) + get(files, PATH)[SECTOR:])
    before = get(files, PATH)
    assert check_settled(files)[0] == []
    assert get(files, PATH) == before


def test_a_bad_header_over_zeros_says_nothing_of_what_was_behind_it():
    """It may never have had a frame. Nobody knows: what was in it may be damaged as well as the header is."""
    files = new_log([[400]] * 3, file_bytes=1024)
    writer = WalWriter(files, next_lsn=4, next_number=2, file_bytes=1024)
    writer.close()
    flip(files, 2, 18)
    lsns, report = check_settled(files)
    assert lsns == [1, 2, 3]
    assert report.has_lost_end
    assert [(gap.first_lsn, gap.room) for gap in report.gaps] == [(4, limits.UNSTORED_BYTES_MAX)]


def test_a_file_that_is_begun_anew_does_not_hide_behind_a_copy_of_an_older_one():
    files = several_files()
    flip(files, 1, frames_of(files, 1)[1].offset + 60)
    check_settled(files)
    for number in walscan.list_files(files):
        files.unlink(wal.file_path(number))
    assert read(files)[1].next_number == 2


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65])
def test_a_file_that_is_hardly_there(size):
    files = several_files()
    put(files, wal.file_path(3), get(files, wal.file_path(3))[:size])
    assert check_settled(files)[0] == [1, 2, 3, 4, 5, 6]


# -- crashes while settling, and arbitrary bytes


def test_a_crash_at_any_step_of_settling_leads_to_the_same_log():
    files = new_log(TORN, sync_last=False)
    found = frames_of(files, 1)
    flip(files, 1, found[1].offset + 45)
    flip(files, 1, found[6].offset + 45)
    expected, report = read(files)
    clean = files.clone()
    walscan.settle(clean, report)
    for step in range(clean.calls):
        for seed in range(6):
            dying = files.clone(seed)
            dying.crash_at(step)
            with pytest.raises(SimulatedCrash):
                walscan.settle(dying, report)
            survivor = dying.crash(seed, power_loss=seed % 2 == 0)
            lsns, second = read(survivor)
            assert lsns == expected
            assert second.damage == report.damage
            walscan.settle(survivor, second)
            assert {k: v for k, v in tree(survivor).items() if not k.endswith(".tmp")} == tree(clean)


@pytest.mark.parametrize("seed", range(8))
def test_what_was_set_aside_survives_a_power_loss(seed):
    """From then on the shard may serve, and a checkpoint may let the log file go."""
    files = new_log(TORN)
    flip(files, 1, frames_of(files, 1)[1].offset + 45)
    _, report = read(files)
    walscan.settle(files, report)
    kept = {path: data for path, data in tree(files).items() if path.startswith("quarantine/")}
    assert len(kept) == len(report.damage) == 1
    left = tree(files.crash(seed, power_loss=True))
    assert {path: left.get(path) for path in kept} == kept


@given(st.binary(max_size=400), st.integers(0, 2**64 - 1))
@settings(deadline=None)
def test_arbitrary_bytes_behind_a_header_hold_no_frame(data, seed):
    scan = walscan.scan_file(wal.encode_file_header(seed, 1) + data)
    assert scan.frames == []
    assert all(HEADER_BYTES <= low < high <= HEADER_BYTES + len(data) for low, high in scan.bad)


@given(st.lists(st.tuples(st.integers(64, 3999), st.integers(0, 255)), max_size=6))
@settings(deadline=None, max_examples=150)
def test_whatever_is_spoiled_the_frames_that_stand_are_the_ones_written(changes):
    files = new_log([[40, 300], [700], [30, 900, 0]], file_bytes=4096)
    data = bytearray(get(files, PATH))
    for offset, value in changes:
        data[offset] = value
    put(files, PATH, bytes(data))
    lsns, report = check_settled(files)
    assert lsns == sorted(set(lsns))
    assert set(lsns) <= set(range(1, 7))
    lost = {lsn for d in report.damage for lsn in range(d.first_lsn, d.last_lsn + 1)}
    assert not lost & set(lsns)
    assert set(range(1, report.last_lsn + 1)) == lost | set(lsns)


def test_many_lookalikes_in_a_payload_do_not_slow_the_reader_down(monkeypatch):
    """A damaged frame full of magics with fitting lengths: hashing at each of them would take minutes."""
    hashed = []

    def digest(data: memoryview, seed: int = 0) -> int:
        hashed.append(len(data))
        return xxhash.xxh3_64_intdigest(data, seed)

    monkeypatch.setattr(walscan, "xxhash", SimpleNamespace(xxh3_64_intdigest=digest))
    bait = (b"TWF1" + (1 << 18).to_bytes(4, "little")) * 100_000
    files = FaultyFiles()
    writer = WalWriter(files, next_lsn=1, next_number=1, file_bytes=1 << 20)
    for lsn, body in ((1, bait), (2, b"2:")):
        writer.write([wal.Frame(lsn, 4, [body], len(body), ())])
        writer.sync()
    flip(files, 1, HEADER_BYTES + 60)
    lsns, report = read(files)
    assert lsns == [2]
    assert [(d.first_lsn, d.last_lsn) for d in report.damage] == [(1, 1)]
    assert sum(hashed) < 10 * len(bait)
