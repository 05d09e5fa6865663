"""What makes up a shard's state at a cut: the snapshot, the data files that it names, the log up to it.

The head register is left out, since it runs ahead of the cut; an empty one stands for it, which nobody believes. So
that no start takes what was reserved for what was lost, the log of the copy ends with a mark that says it is complete.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from topics.cli.backups.store import BackupStore, BadBackup, Copy
from topics.core.events import IDLE
from topics.shards import datafile, slots, snapshot, wal, walscan
from topics.shards.readonly_files import ReadOnlyFiles
from topics.shards.recovery import REGISTER
from topics.shards.wal import Frame

Note = Callable[[int], None]


class ShardFiles:
    """`known` are copies of an earlier backup, by path."""

    def __init__(self, store: BackupStore, directory: Path, known: dict[str, Copy], note: Note) -> None:
        self._store = store
        self._directory = directory
        self._known = dict(known)
        self._note = note

    def copy_ahead(self) -> None:
        """Data files, while the server goes on. What changes or goes meanwhile is seen to later."""
        for path in self._data_paths():
            try:
                self._copy_changed(path)
            except FileNotFoundError:
                continue

    def copy_held(self, lsn: int) -> dict[str, Copy]:
        """The shard's state at this lsn. Its files hold still."""
        files = ReadOnlyFiles(str(self._directory))
        made: dict[str, Copy] = {}
        cut_lsn = 0
        if known := snapshot.generations(files):
            path = snapshot.path_of(known[-1])
            made[path] = self._copy(path)
            snap = snapshot.read_snapshot(files)
            cut_lsn = snap.commit.cut_lsn
            if any(info.cold for info in snap.files.values()):
                raise BadBackup("there are segments in the cold directory, which a backup does not hold")
            for info in snap.files.values():
                for name in (info.path, datafile.index_path(info.path)):
                    made[name] = self._copy_changed(name)
        made |= self._copy_log(files, cut_lsn, lsn)
        if files.exists(slots.PATH):
            made[slots.PATH] = self._copy(slots.PATH)
        made[REGISTER] = self._put(REGISTER, bytes(8))
        return made

    def _data_paths(self) -> Iterator[str]:
        for folder in ("packs", "segments"):
            for parent, _, names in os.walk(self._directory / folder):
                for name in sorted(names):
                    yield os.path.relpath(os.path.join(parent, name), self._directory)

    def _copy_changed(self, path: str) -> Copy:
        known = self._known.get(path)
        if known is None or not known.unchanged(os.stat(self._directory / path)):
            known = self._known[path] = self._copy(path)
        return known

    def _copy(self, path: str) -> Copy:
        copy = self._store.copy(self._directory / path, self._name(path))
        self._note(copy.size)
        return copy

    def _put(self, path: str, data: bytes) -> Copy:
        self._note(len(data))
        return self._store.put(data, self._name(path))

    def _name(self, path: str) -> str:
        return f"{self._directory.name}/{path}"

    def _copy_log(self, files: ReadOnlyFiles, after_lsn: int, lsn: int) -> dict[str, Copy]:
        made: dict[str, Copy] = {}
        last = 0
        for number in walscan.list_files(files):
            data = walscan.load(files, number)
            wanted = [frame for frame in walscan.scan_file(data).frames if frame.lsn <= lsn]
            if wanted and wanted[-1].lsn > after_lsn:
                last = number
                made[wal.file_path(number)] = self._put(wal.file_path(number), data[: wanted[-1].end])
        path = wal.file_path(last + 1)
        made[path] = self._put(path, complete_mark(lsn))
        return made


def complete_mark(lsn: int) -> bytes:
    """A log file that says: what came before, up to this lsn, is all there was."""
    seed = int.from_bytes(os.urandom(8), "little")
    frame = Frame(lsn + 1, IDLE, [b""], 0, ())
    return wal.encode_file_header(seed, lsn + 1) + b"".join(wal.encode_frame(frame, lsn, seed))
