"""Reading the log back: which frames stand, where it was torn, and what is damage.

The rules, in the order they are applied to the frames of all files:

- frames that the snapshot covers are passed over, whatever state they are in;
- a frame with the expected lsn stands;
- a gap (bad bytes, a missing file) that some later good frame calls synced is damage: the bytes go to quarantine, the
  later frames stand, and replay is told so that readers get a tombstone;
- any other gap is a torn tail: nothing after it was ever synced, so the log is cut there;
- a file whose header is unreadable was synced all the same (see wal.py). Its frames still check if the seed is whole;
  else it is damage, also at the end of the log, and the file is left as it is.
"""

import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple

import xxhash

from topics import limits
from topics.shards import wal
from topics.shards.files import Files

QUARANTINE = "quarantine"
_FILE_NAME = re.compile(r"([0-9]{10})\.wal")
_ANY_LSN = range(1 << 64)


class Found(NamedTuple):
    """A good frame."""

    offset: int
    end: int
    lsn: int
    synced: int
    kind: int
    body: memoryview


class Scan(NamedTuple):
    frames: list[Found]
    bad: list[tuple[int, int]]  # byte ranges before, between and after the good frames that hold something else
    unreadable: bool  # the header is bad and no frame checks


class Damage(NamedTuple):
    """Frames [first_lsn, last_lsn] were synced and are unreadable; offset == end if a whole file is missing."""

    file: int
    offset: int
    end: int
    first_lsn: int
    last_lsn: int


class WalReport:
    """What reading the log found out; filled while `read_log` is consumed."""

    def __init__(self, after_lsn: int) -> None:
        self.last_lsn = after_lsn
        self.last_kind = 0  # of the frame with that lsn, if the log still has it
        self.has_lost_end = False  # it ends in files that cannot be read: who knows what there was
        self.next_number = 1
        self.damage: list[Damage] = []
        self.cut: tuple[int, int] | None = None  # (file, offset): nothing from here on stands
        self.files: list[tuple[int, int]] = []  # (number, last lsn up to and including this file)


def list_files(files: Files) -> list[int]:
    return sorted(int(match[1]) for name in files.list(wal.DIRECTORY) if (match := _FILE_NAME.fullmatch(name)))


def first_lsn(files: Files) -> int | None:
    """The lsn with which the log begins; None if there is no log, or if a file does not tell."""
    headers = []
    for number in list_files(files):
        file = files.open(wal.file_path(number))
        try:
            headers.append(wal.decode_file_header(file.read_at(0, wal.HEADER_BYTES)))
        finally:
            file.close()
    return min((header[1] for header in headers if header is not None), default=None) if None not in headers else None


def load(files: Files, number: int) -> bytes:
    file = files.open(wal.file_path(number))
    try:
        return file.read_at(0, file.size())
    finally:
        file.close()


# --- one file -----------------------------------------------------------------------------------------------------


def scan_file(data: bytes) -> Scan:
    header = wal.decode_file_header(data)
    if header is None:
        return _scan_headless(data)
    seed, first_lsn = header
    return Scan(*_scan_frames(data, seed, range(first_lsn, first_lsn + len(data) // wal.FRAME_BYTES)), False)


def _scan_headless(data: bytes) -> Scan:
    """The seed may be whole although the header is not; the frames' checksums tell."""
    seed = int.from_bytes(data[16:24], "little")
    frames, bad = _scan_frames(data, seed, _ANY_LSN)
    if frames:
        return Scan(frames, [(0, wal.HEADER_BYTES), *bad], False)
    return Scan([], [(0, len(data))] if data.strip(b"\0") else [], True)


def _scan_frames(data: bytes, seed: int, lsns: range) -> tuple[list[Found], list[tuple[int, int]]]:
    view = memoryview(data)
    frames: list[Found] = []
    bad: list[tuple[int, int]] = []
    at = wal.HEADER_BYTES
    while at < len(data):
        found = _frame_at(view, at, seed, lsns)
        if found is None:
            start = at
            at = _next_good(data, view, at, seed, lsns)
            if at < len(data) or any(data[start : start + wal.FRAME_BYTES]):
                bad.append((start, at))
            continue
        frames.append(found)
        at = found.end
    return frames, bad


def _frame_at(view: memoryview, at: int, seed: int, lsns: range) -> Found | None:
    """The frame at `at` if it checks. Lsns that cannot be in this file spare hashing stale frames and payloads."""
    if at + wal.FRAME_BYTES > len(view) or view[at : at + 4] != wal.FRAME_MAGIC:
        return None
    _, length, check = wal.FRAME_HEAD.unpack_from(view, at)
    lsn, synced, kind = wal.FRAME_REST.unpack_from(view, at + 16)
    end = at + wal.FRAME_BYTES + length
    if length > limits.WAL_FRAME_MAX or end > len(view) or lsn not in lsns:
        return None
    if xxhash.xxh3_64_intdigest(view[at + 16 : end], seed) != check:
        return None
    return Found(at, end + (-length % 8), lsn, synced, kind, view[at + wal.FRAME_BYTES : end])


def _next_good(data: bytes, view: memoryview, at: int, seed: int, lsns: range) -> int:
    """Offset of the next frame that checks, or the end of the data."""
    for candidate in _magics(data, at + 1):
        if _frame_at(view, candidate, seed, lsns) is not None:
            return candidate
    return len(data)


def _magics(data: bytes, at: int) -> Iterator[int]:
    """Offsets from `at` on where a frame could start."""
    while (at := data.find(wal.FRAME_MAGIC, at)) >= 0:
        if at % 8 == 0:
            yield at
        at += 1


def _claimed_lsn(data: bytes, expected: int) -> int:
    """The highest lsn that looks like a frame of this file, unchecked; below `expected` if nothing was written."""
    plausible = range(expected, expected + len(data) // wal.FRAME_BYTES)
    best = expected - 1
    for at in _magics(data, 0):
        if at + wal.FRAME_BYTES <= len(data):
            lsn, _, _ = wal.FRAME_REST.unpack_from(data, at + 16)
            best = max(best, lsn) if lsn in plausible else best
    return best


# --- the whole log ------------------------------------------------------------------------------------------------


def read_log(
    files: Files, report: WalReport, progress: Callable[[int, int], None] = lambda done, total: None
) -> Iterator[Found]:
    """The frames that stand above `report.last_lsn`, in order.

    Reading changes nothing on disk; `settle` does, once everything has been applied.
    """
    numbers = list_files(files)
    report.next_number = numbers[-1] + 1 if numbers else 1
    after_lsn = report.last_lsn
    expected = after_lsn + 1
    ended = (numbers[0], wal.HEADER_BYTES) if numbers else (0, 0)  # where the last good frame ended
    unreadable: list[Damage] = []  # whole files since then
    for index, number in enumerate(numbers):
        data = load(files, number)
        scan = scan_file(data)
        if scan.unreadable:
            report.has_lost_end = True
            if (claimed := _claimed_lsn(data, expected)) >= expected:
                unreadable.append(Damage(number, 0, len(data), expected, claimed))
        for at, found in enumerate(scan.frames):
            if found.lsn > expected:
                if _synced_from(files, scan.frames[at:], numbers[index + 1 :]) < expected:
                    report.cut = ended
                    report.files += [(later, expected - 1) for later in numbers[index:]]
                    return
                report.damage += _damage(files, numbers, ended, (number, found.offset), expected, found.lsn - 1)
            if found.lsn >= expected:
                expected = found.lsn + 1
                report.last_lsn = found.lsn
                yield found
            elif found.lsn > after_lsn:
                continue
            ended = (number, found.end)
            if found.lsn == report.last_lsn:  # not one of a file that a checkpoint's sweep left, and later ones not
                report.last_kind = found.kind
            unreadable.clear()
            report.has_lost_end = False
        report.files.append((number, expected - 1))
        progress(index + 1, len(numbers))
    report.damage += unreadable
    report.cut = ended if ended[0] else None


def _synced_from(files: Files, frames: list[Found], later: list[int]) -> int:
    """The furthest `synced` that these frames and those of the later files state."""
    best = max((found.synced for found in frames), default=0)
    for number in later:
        best = max(best, max((found.synced for found in scan_file(load(files, number)).frames), default=0))
    return best


def _damage(
    files: Files, numbers: list[int], start: tuple[int, int], end: tuple[int, int], first_lsn: int, last_lsn: int
) -> list[Damage]:
    """The damaged byte ranges between two good frames, and one without bytes where files are missing."""
    between = [number for number in numbers if start[0] <= number <= end[0]]
    ranges = [
        Damage(number, low, high, first_lsn, last_lsn)
        for number in between
        for low, high in scan_file(load(files, number)).bad
        if start < (number, high) and (number, low) < end
    ]
    ranges += [Damage(one + 1, 0, 0, first_lsn, last_lsn) for one, other in pairwise(between) if one + 1 < other]
    return ranges or [Damage(end[0], 0, 0, first_lsn, last_lsn)]


# --- making it permanent ------------------------------------------------------------------------------------------


def settle(files: Files, report: WalReport) -> None:
    """Make the judgement permanent: copy damage to quarantine, cut a torn tail off. Safe to repeat after a crash."""
    if report.damage:
        files.make_dir(QUARANTINE)
        files.sync_dir(".")
        for damage in report.damage:
            _quarantine(files, damage)
        files.sync_dir(QUARANTINE)
    if report.cut is not None:
        number, offset = report.cut
        for later in (other for other in list_files(files) if other >= number):
            _cut_file(files, later, offset if later == number else wal.HEADER_BYTES)


def _cut_file(files: Files, number: int, offset: int) -> None:
    file = files.open(wal.file_path(number))
    try:
        header = wal.decode_file_header(file.read_at(0, wal.HEADER_BYTES))
        if header is None and scan_file(load(files, number)).unreadable:
            return  # nothing is ever deleted because a checksum failed
        if file.size() > offset:
            file.truncate(offset)
        # Also when there was nothing to cut: frames that a killed process left in the page cache were read as good,
        # and from now on the log calls them synced.
        file.sync()
    finally:
        file.close()


def _quarantine(files: Files, damage: Damage) -> None:
    path = f"{QUARANTINE}/wal-{damage.file:010d}-{damage.offset}-{damage.end}.bin"
    if files.exists(path) or damage.end == damage.offset:
        return
    source = files.open(wal.file_path(damage.file))
    try:
        data = source.read_at(damage.offset, damage.end - damage.offset)
    finally:
        source.close()
    tmp = path + ".tmp"
    files.unlink(tmp)
    copy = files.create(tmp)
    try:
        copy.write_at(0, [data])
        copy.sync()
    finally:
        copy.close()
    files.rename(tmp, path)
