"""Reading the log back: which frames stand, where it was torn, and what is damage.

The rules, in the order they are applied to the frames of all files:

- a frame with the expected lsn stands;
- a gap (bad bytes, a missing file) that some later good frame calls synced is damage: the bytes go to quarantine, the
  later frames stand, and replay is told so that readers get a tombstone;
- any other gap is a torn tail: nothing after it was ever synced, so the log is cut there.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import xxhash

from topics import limits
from topics.shards import wal
from topics.shards.files import Files

QUARANTINE = "quarantine"


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
    bad: list[tuple[int, int]]  # byte ranges between and after the good frames that hold something else


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
        self.last_kind = 0
        self.next_number = 1
        self.damage: list[Damage] = []
        self.cut: tuple[int, int] | None = None  # (file, offset): nothing from here on stands
        self.files: list[tuple[int, int]] = []  # (number, last lsn up to and including this file)


def list_files(files: Files) -> list[int]:
    numbers = [name.removesuffix(".wal") for name in files.list(wal.DIRECTORY) if name.endswith(".wal")]
    return sorted(int(number) for number in numbers if number.isdigit())


def load(files: Files, number: int) -> bytes:
    file = files.open(wal.file_path(number))
    try:
        return file.read_at(0, file.size())
    finally:
        file.close()


def scan_file(data: bytes) -> Scan:
    header = wal.decode_file_header(data)
    if header is None:
        return Scan([], [(0, len(data))] if any(data[:4096]) else [])
    seed, _ = header
    view = memoryview(data)
    frames: list[Found] = []
    bad: list[tuple[int, int]] = []
    at = wal.HEADER_BYTES
    while at < len(data):
        found = _frame_at(view, at, seed)
        if found is None:
            start = at
            at = _next_good(data, view, at, seed)
            if at < len(data) or any(data[start : start + wal.FRAME_BYTES]):
                bad.append((start, at))
            continue
        frames.append(found)
        at = found.end
    return Scan(frames, bad)


def _frame_at(view: memoryview, at: int, seed: int) -> Found | None:
    if at + wal.FRAME_BYTES > len(view) or view[at : at + 4] != wal.FRAME_MAGIC:
        return None
    _, length, check = wal.FRAME_HEAD.unpack_from(view, at)
    end = at + wal.FRAME_BYTES + length
    if length > limits.WAL_FRAME_MAX or end > len(view):
        return None
    if xxhash.xxh3_64_intdigest(view[at + 16 : end], seed) != check:
        return None
    lsn, synced, kind = wal.FRAME_REST.unpack_from(view, at + 16)
    return Found(at, end + (-length % 8), lsn, synced, kind, view[at + wal.FRAME_BYTES : end])


def _next_good(data: bytes, view: memoryview, at: int, seed: int) -> int:
    """Offset of the next frame that checks, or the end of the data."""
    while True:
        at = data.find(wal.FRAME_MAGIC, at + 1)
        if at < 0:
            return len(data)
        if at % 8 == 0 and _frame_at(view, at, seed) is not None:
            return at


def read_log(
    files: Files, report: WalReport, progress: Callable[[int, int], None] = lambda done, total: None
) -> Iterator[Found]:
    """The frames that stand above `report.last_lsn`, in order.

    Reading changes nothing on disk; `settle` does, once everything has been applied.
    """
    numbers = list_files(files)
    report.next_number = numbers[-1] + 1 if numbers else 1
    after_lsn = report.last_lsn
    expected = 0
    ended = (numbers[0], wal.HEADER_BYTES) if numbers else (0, 0)  # where the last good frame ended
    for index, number in enumerate(numbers):
        scan = scan_file(load(files, number))
        for at, found in enumerate(scan.frames):
            # Files before the snapshot's position were trimmed; a gap above it is a gap.
            expected = expected or min(found.lsn, after_lsn + 1)
            if found.lsn < expected:
                continue
            if found.lsn > expected:
                if _synced_from(files, scan.frames[at:], numbers[index + 1 :]) < expected:
                    report.cut = ended
                    return
                report.damage += _damage(files, numbers, ended, (number, found.offset), expected, found.lsn - 1)
            expected = found.lsn + 1
            ended = (number, found.end)
            report.last_kind = found.kind
            if found.lsn > after_lsn:
                report.last_lsn = found.lsn
                yield found
        report.files.append((number, max(expected - 1, 0)))
        progress(index + 1, len(numbers))
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
    """The damaged byte ranges between two good frames; one without bytes if a whole file is missing."""
    ranges = [
        Damage(number, max(low, start[1]) if number == start[0] else low, high, first_lsn, last_lsn)
        for number in numbers
        if start[0] <= number <= end[0]
        for low, high in scan_file(load(files, number)).bad
        if start < (number, high) and (number, low) < end
    ]
    return ranges or [Damage(end[0], 0, 0, first_lsn, last_lsn)]


def settle(files: Files, report: WalReport) -> None:
    """Make the judgement permanent: copy damage to quarantine, cut a torn tail off. Safe to repeat after a crash."""
    for damage in report.damage:
        _quarantine(files, damage)
    if report.cut is not None:
        number, offset = report.cut
        for later in (other for other in list_files(files) if other >= number):
            _cut_file(files, later, offset if later == number else wal.HEADER_BYTES)


def _cut_file(files: Files, number: int, offset: int) -> None:
    file = files.open(wal.file_path(number))
    try:
        if file.size() > offset:
            file.truncate(offset)
            file.sync()
    finally:
        file.close()


def _quarantine(files: Files, damage: Damage) -> None:
    files.make_dir(QUARANTINE)
    path = f"{QUARANTINE}/wal-{damage.file:010d}-{damage.offset}.bin"
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
    files.sync_dir(QUARANTINE)
