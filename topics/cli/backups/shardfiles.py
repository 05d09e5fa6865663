"""What makes up a shard's state at a cut: the snapshot, the data files that it names, the log up to it.

The head register is left out, since it runs ahead of the cut; an empty one stands for it, which nobody believes. So
that no start takes what was reserved for what was lost, the log of the copy ends with a mark that says it is complete.

Segments in the cold directory never change, so they are copied once. The two marks that tie the directories together
are copied, too: a restored data directory knows its restored cold directory.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from topics.cli.backups.store import BackupStore, BadBackup, Copy
from topics.core.events import IDLE
from topics.shards import datafile, slots, snapshot, wal, walscan
from topics.shards.cold import ID_PATH, OWNER_PATH
from topics.shards.readonly_files import ReadOnlyFiles
from topics.shards.recovery import REGISTER
from topics.shards.wal import Frame

Note = Callable[[int], None]
DATA = ("packs", "segments")


class Folder:
    """A directory that is copied to `name` in the store; `known` are copies of an earlier backup, by path."""

    def __init__(self, store: BackupStore, directory: Path, name: str, known: dict[str, Copy], note: Note) -> None:
        self.directory = directory
        self._store = store
        self._name = name
        self._known = dict(known)
        self._note = note

    def copy_changed(self, path: str) -> Copy:
        known = self._unchanged(path)
        if known is None:
            known = self._known[path] = self.copy(path)
        return known

    def copy(self, path: str) -> Copy:
        copy = self._store.copy(self.directory / path, f"{self._name}/{path}")
        self._note(copy.size)
        return copy

    def put(self, path: str, data: bytes) -> Copy:
        self._note(len(data))
        return self._store.put(data, f"{self._name}/{path}")

    def paths(self, *folders: str) -> Iterator[str]:
        for folder in folders:
            for parent, _, names in os.walk(self.directory / folder):
                for name in sorted(names):
                    yield os.path.relpath(os.path.join(parent, name), self.directory)

    def work_bytes(self, *folders: str) -> int:
        """Of all these files once, to check them, and of those that changed once more, to copy them."""
        total = 0
        for path in self.paths(*folders):
            with suppress(FileNotFoundError):
                size = os.path.getsize(self.directory / path)
                total += size if self._unchanged(path) is not None else 2 * size
        return total

    def _unchanged(self, path: str) -> Copy | None:
        known = self._known.get(path)
        return known if known is not None and known.unchanged(os.stat(self.directory / path)) else None


class ShardFiles:
    """`cold` is the shard's part of the cold directory, if anybody said where that is."""

    def __init__(self, hot: Folder, cold: Folder | None) -> None:
        self._hot = hot
        self._cold = cold

    def work_bytes(self) -> int:
        """About how many bytes copying and checking tell of."""
        cold = self._cold.work_bytes("segments") if self._cold is not None else 0
        return self._hot.work_bytes(*DATA, wal.DIRECTORY) + cold

    def copy_ahead(self) -> None:
        """Data files, while the server goes on. What changes or goes meanwhile is seen to later."""
        ahead = [(self._hot, path) for path in self._hot.paths(*DATA)]
        if self._cold is not None:
            ahead += [(self._cold, path) for path in self._cold.paths("segments")]
        for folder, path in ahead:
            with suppress(FileNotFoundError):
                folder.copy_changed(path)

    def copy_held(self, lsn: int) -> tuple[dict[str, Copy], dict[str, Copy]]:
        """The shard's state at this lsn: its files, and those in the cold directory. They hold still."""
        hot = self._hot
        files = ReadOnlyFiles(str(hot.directory))
        made: dict[str, Copy] = {}
        cold: dict[str, Copy] = {}
        cut_lsn = 0
        if known := snapshot.generations(files):
            path = snapshot.path_of(known[-1])
            made[path] = hot.copy(path)
            snap = snapshot.read_snapshot(files)
            cut_lsn = snap.commit.cut_lsn
            for info in snap.files.values():
                made[datafile.index_path(info.path)] = hot.copy_changed(datafile.index_path(info.path))
                if not info.cold:
                    made[info.path] = hot.copy_changed(info.path)
            cold = self._copy_cold([info.path for info in snap.files.values() if info.cold])
        made |= self._copy_log(files, cut_lsn, lsn)
        for path in (slots.PATH, *([ID_PATH] if cold else [])):
            if files.exists(path):
                made[path] = hot.copy(path)
        made[REGISTER] = hot.put(REGISTER, bytes(8))
        return made, cold

    def _copy_cold(self, paths: list[str]) -> dict[str, Copy]:
        if not paths:
            return {}
        if self._cold is None:
            raise BadBackup("there are segments in the cold directory: say where it is, by --cold-dir")
        return {path: self._cold.copy_changed(path) for path in (*paths, OWNER_PATH)}

    def _copy_log(self, files: ReadOnlyFiles, after_lsn: int, lsn: int) -> dict[str, Copy]:
        made: dict[str, Copy] = {}
        last = 0
        for number in walscan.list_files(files):
            data = walscan.load(files, number)
            wanted = [frame for frame in walscan.scan_file(data).frames if frame.lsn <= lsn]
            if wanted and wanted[-1].lsn > after_lsn:
                last = number
                made[wal.file_path(number)] = self._hot.put(wal.file_path(number), data[: wanted[-1].end])
        path = wal.file_path(last + 1)
        made[path] = self._hot.put(path, complete_mark(lsn))
        return made


def complete_mark(lsn: int) -> bytes:
    """A log file that says: what came before, up to this lsn, is all there was."""
    seed = int.from_bytes(os.urandom(8), "little")
    frame = Frame(lsn + 1, IDLE, [b""], 0, ())
    return wal.encode_file_header(seed, lsn + 1) + b"".join(wal.encode_frame(frame, lsn, seed))
