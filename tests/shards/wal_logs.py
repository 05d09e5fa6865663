"""Logs to be read back: writing them, looking at their bytes, and spoiling them."""

from collections.abc import Sequence

from topics.shards import wal, walscan
from topics.shards.files import Files
from topics.shards.wal import Frame, WalWriter
from topics.shards.walscan import Found, WalReport


def body_of(lsn: int, size: int) -> bytes:
    return (b"%d:" % lsn * size)[:size]


def frame(lsn: int, size: int = 40, kind: int = 4) -> Frame:
    """Large bodies come in parts, as the engine hands them over."""
    body = body_of(lsn, size)
    parts = [body[:10], body[10:4000], body[4000:]] if size > 4000 else [body]
    return Frame(lsn, kind, parts, size, ())


def write_groups(writer: WalWriter, groups: Sequence[Sequence[int]], *, sync_last: bool = True) -> None:
    """One group per list of body sizes, each synced before the next."""
    for index, sizes in enumerate(groups):
        first = writer.written_lsn + 1
        writer.write([frame(first + i, size) for i, size in enumerate(sizes)])
        if sync_last or index < len(groups) - 1:
            writer.sync()


def read(files: Files, after_lsn: int = 0) -> tuple[list[int], WalReport]:
    """The lsns that stand, and the report; every body is looked at."""
    report = WalReport(after_lsn)
    lsns = []
    for found in walscan.read_log(files, report):
        assert bytes(found.body) == body_of(found.lsn, len(found.body))
        lsns.append(found.lsn)
    return lsns, report


def verdict(report: WalReport) -> tuple[object, ...]:
    return (report.last_lsn, report.last_kind, report.next_number, report.damage, report.cut, report.files)


def frames_of(files: Files, number: int) -> list[Found]:
    return walscan.scan_file(walscan.load(files, number)).frames


def get(files: Files, path: str) -> bytes:
    file = files.open(path)
    try:
        return file.read_at(0, file.size())
    finally:
        file.close()


def put(files: Files, path: str, data: bytes) -> None:
    """Replace a file's bytes, as rot or a torn write would: durably, beside everything else."""
    file = files.open(path)
    file.truncate(0)
    file.write_at(0, [data])
    file.sync()
    file.close()


def flip(files: Files, number: int, offset: int, mask: int = 0xFF) -> None:
    data = bytearray(get(files, wal.file_path(number)))
    data[offset] ^= mask
    put(files, wal.file_path(number), bytes(data))


def tree(files: Files) -> dict[str, bytes]:
    names = [f"{folder}/{name}" for folder in ("wal", "quarantine") for name in files.list(folder)]
    return {name: get(files, name) for name in names}
