"""Reading the log back: which frames stand, where it was torn, and what is damage.

The rules, in the order they are applied to the frames of all files:

- frames that the snapshot covers are passed over, whatever state they are in;
- a frame with the expected lsn stands;
- a gap (bad bytes, a missing file) is damage if something says that what was there had been synced: a later file (one
  is begun only when all before it is), a good frame, or the snapshot. The bytes go to quarantine, the later frames
  stand, and replay is told so that readers get a tombstone;
- any other gap is a torn tail: nothing after it was ever synced, so the log is cut there;
- a file whose header is unreadable was synced all the same (see wal.py). Its frames still check if the seed is whole;
  else it is damage, and the file is left as it is. At the end of the log nothing says then how much there was: the log
  goes on behind all that there may have been (`Gap.room`).
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby, islice, pairwise
from operator import itemgetter
from typing import NamedTuple

import xxhash

from topics import limits
from topics.shards import wal
from topics.shards.files import Files

QUARANTINE = "quarantine"
QUARANTINE_NAME = re.compile(r"wal-([0-9]{10})-([0-9]+)-([0-9]+)\.bin")  # of the bytes from one offset to another
_FILE_NAME = re.compile(r"([0-9]{10})\.wal")
_ANY_LSN = range(1 << 64)
_NO_OFFSET = 1 << 63  # behind all that a file can have


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


Place = tuple[int, int, int]  # file, offset, end


class Gap(NamedTuple):
    """Frames [first_lsn, last_lsn] were synced and are not there; `room` is how many bytes they had at most."""

    first_lsn: int
    last_lsn: int
    room: int


class WalReport:
    """What reading the log found out; filled while `read_log` is consumed.

    `vouched` is the lsn up to which the snapshot knows the log to have been synced.
    """

    def __init__(self, after_lsn: int, vouched: int = 0) -> None:
        self.vouched = vouched
        self.last_lsn = after_lsn
        self.last_kind = 0  # of the frame with that lsn, if the log still has it
        self.next_lsn = after_lsn + 1
        self.next_number = 1
        self.gaps: list[Gap] = []  # ascending
        self.damage: list[Damage] = []  # where they are: one gap may be in several places
        self.orphans: list[Place] = []  # frames that stand and mean nothing without one that is missing
        self.reading = 0  # the file that the last frame came from
        self.cut: tuple[int, int] | None = None  # (file, offset): nothing from here on stands
        self.files: list[tuple[int, int]] = []  # (number, last lsn up to and including this file)

    @property
    def has_lost_end(self) -> bool:
        """It ends with a gap."""
        return self.next_lsn > self.last_lsn + 1


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
            if at < len(data) or data.count(0, start) < at - start:
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


# --- the whole log ------------------------------------------------------------------------------------------------


def read_log(
    files: Files, report: WalReport, progress: Callable[[int, int], None] = lambda done, total: None
) -> Iterator[Found]:
    """The frames that stand above `report.last_lsn`, in order.

    Reading changes nothing on disk; `settle` does, once everything has been applied.
    """
    return _Reading(files, report).frames(progress)


class _Reading:
    def __init__(self, files: Files, report: WalReport) -> None:
        self._files = files
        self._report = report
        self._numbers = list_files(files)
        self._after_lsn = report.last_lsn
        self._expected = report.last_lsn + 1
        self._ended = (self._numbers[0], wal.HEADER_BYTES) if self._numbers else (0, 0)  # the last good frame
        self._bad: dict[int, list[tuple[int, int]]] = {}  # of the files from there on
        self._begun = 0  # the lsn with which the newest file that tells it begins
        self._newest = 0  # the highest lsn seen
        self._is_unreadable = False  # the newest file, and so it does not tell how the log ended
        self._stated: int | None = None  # how far the log was synced, as its newest file tells

    def frames(self, progress: Callable[[int, int], None]) -> Iterator[Found]:
        report, numbers = self._report, self._numbers
        report.next_number = max([*numbers, *_set_aside(self._files)], default=0) + 1
        for index, number in enumerate(numbers):
            report.reading = number
            data = load(self._files, number)
            scan = scan_file(data)
            self._note(number, data, scan)
            for found in scan.frames:
                if found.lsn > self._expected and self._is_torn(number, scan.frames):
                    report.cut = self._ended
                    report.files.append((number, report.last_lsn))
                    report.next_lsn = self._expected
                    return
                if self._take(number, found):
                    yield found
            report.files.append((number, self._expected - 1))
            progress(index + 1, len(numbers))
        self._end()

    def _note(self, number: int, data: bytes, scan: Scan) -> None:
        """What a file says as a whole."""
        self._bad = {other: bad for other, bad in self._bad.items() if other >= self._ended[0]}
        self._bad[number] = scan.bad
        header = wal.decode_file_header(data)
        if header is not None:
            self._begun = header[1]
            self._newest = max(self._newest, header[1] - 1)
        if header is not None or scan.frames or scan.unreadable:  # else there is nothing in it that could tell
            self._is_unreadable = scan.unreadable

    def _take(self, number: int, found: Found) -> bool:
        """Whether the frame is one that stands and was not there before."""
        report = self._report
        is_new = found.lsn >= self._expected
        self._newest = max(self._newest, found.lsn)
        if found.lsn > self._expected:
            self._lose(self._expected, found.lsn - 1, (number, found.offset))
        if is_new:
            self._expected = report.next_lsn = found.lsn + 1
            report.last_lsn = found.lsn
        elif found.lsn > self._after_lsn:
            return False
        self._ended = (number, found.end)
        if found.lsn == report.last_lsn:  # not one of a file that a checkpoint's sweep left, and later ones not
            report.last_kind = found.kind
        return is_new

    def _is_torn(self, number: int, frames: list[Found]) -> bool:
        """Whether the gap in front of one of a file's frames is where the log was torn: in the newest file, unless
        something says that it was synced. Frames before the gap cannot."""
        if number != self._numbers[-1]:
            return False
        if self._stated is None:
            stated = max(found.synced for found in frames)
            self._stated = max(stated, self._begun - 1, self._report.vouched)
        return self._stated < self._expected

    def _end(self) -> None:
        """All files are read: what was synced and did not come, at the end of the log?"""
        report = self._report
        known = max(self._after_lsn, report.vouched)
        if self._is_unreadable or self._newest < known:
            ends = self._ends_before(self._numbers[-1]) if self._numbers else 1
            most = self._expected + ends * limits.UNSTORED_BYTES_MAX // wal.FRAME_BYTES
            self._lose(self._expected, max(known, self._newest, most))
        elif self._begun > self._expected:
            self._lose(self._expected, self._begun - 1)
        else:
            report.cut = self._ended if self._ended[0] else None

    def _lose(self, first_lsn: int, last_lsn: int, until: tuple[int, int] | None = None) -> None:
        """A gap, from where the last good frame ended to a place in the log, or to its end."""
        report, start = self._report, self._ended
        end = until or (self._numbers[-1] if self._numbers else 0, _NO_OFFSET)
        is_inside = start[0] == until[0] if until else False
        if until and start[1] == wal.HEADER_BYTES:
            is_inside = is_inside and 0 < self._begun <= first_lsn
        room = end[1] - start[1] if is_inside else self._ends_before(end[0]) * limits.UNSTORED_BYTES_MAX
        report.gaps.append(Gap(first_lsn, last_lsn, room))
        report.damage += [Damage(*place, first_lsn, last_lsn) for place in self._places(start, end)]
        report.next_lsn = last_lsn + 1

    def _ends_before(self, number: int) -> int:
        """How many files end in a gap from the last good frame to somewhere in this one.

        Nobody knows how much they had: together no more than is logged before a checkpoint begins. But each start
        begins a file, and may have given up as much again, which is to be told anew if its frame is in the gap.
        """
        at, offset = self._ended
        return max(1, number - at + (offset == wal.HEADER_BYTES))  # without a good frame this one ends in it, too

    def _places(self, start: tuple[int, int], end: tuple[int, int]) -> list[Place]:
        """The damaged byte ranges between two places, and one without bytes where files are missing."""
        between = [number for number in self._numbers if start[0] <= number <= end[0]]
        places = []
        for number in between:
            bad = self._bad.get(number, [])
            at = bisect_right(bad, start[1], key=itemgetter(1)) if number == start[0] else 0
            for low, high in islice(bad, at, None):
                if (number, low) >= end:
                    break
                places.append((number, low, high))
        places += [(one + 1, 0, 0) for one, other in pairwise(between) if one + 1 < other]
        return places or [(max(end[0], 1), 0, 0)]


# --- making it permanent ------------------------------------------------------------------------------------------


def settle(files: Files, report: WalReport) -> None:
    """Make the judgement permanent: copy damage to quarantine, cut a torn tail off. Safe to repeat after a crash."""
    if report.damage:
        files.make_dir(QUARANTINE)
        files.sync_dir(".")
        for stretch in _stretches(report):
            _quarantine(files, *stretch)
        files.sync_dir(QUARANTINE)
    if report.cut is not None:
        number, offset = report.cut
        for later in (other for other in list_files(files) if other >= number):
            _cut_file(files, later, offset if later == number else wal.HEADER_BYTES)


def _stretches(report: WalReport) -> Iterator[Place]:
    """What to set aside: each range of bytes, or all of a file from the first to the last if there are very many."""
    damaged = [(one.file, one.offset, one.end) for one in report.damage if one.end > one.offset]
    for number, found in groupby(sorted({*damaged, *report.orphans}), itemgetter(0)):
        ranges = _joined(found)
        if len(ranges) > limits.QUARANTINE_COPIES_MAX:
            ranges = [(number, ranges[0][1], ranges[-1][2])]
        yield from ranges


def _joined(places: Iterable[Place]) -> list[Place]:
    """Ascending ranges of one file, those that touch as one."""
    joined: list[Place] = []
    for number, low, high in places:
        if joined and joined[-1][2] == low:
            low = joined.pop()[1]
        joined.append((number, low, high))
    return joined


def _set_aside(files: Files) -> list[int]:
    """The log files of which there are copies: a new one of that name could not have its own."""
    return [int(match[1]) for name in files.list(QUARANTINE) if (match := QUARANTINE_NAME.fullmatch(name))]


def _cut_file(files: Files, number: int, offset: int) -> None:
    file = files.open(wal.file_path(number))
    try:
        header = wal.decode_file_header(file.read_at(0, wal.HEADER_BYTES))
        if header is None and not scan_file(load(files, number)).frames:
            return  # nothing is ever deleted because a checksum failed
        if file.size() > offset:
            file.truncate(offset)
        # Also when there was nothing to cut: frames that a killed process left in the page cache were read as good,
        # and from now on the log calls them synced.
        file.sync()
    finally:
        file.close()


def _quarantine(files: Files, number: int, offset: int, end: int) -> None:
    path = f"{QUARANTINE}/wal-{number:010d}-{offset}-{end}.bin"
    if files.exists(path):
        return
    source = files.open(wal.file_path(number))
    try:
        data = source.read_at(offset, end - offset)
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
