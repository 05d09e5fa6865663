"""Where backups are kept: copies by content, and the manifest that says which make up a backup."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import msgspec
import xxhash

from topics import limits
from topics.malformed import MALFORMED
from topics.shards.readonly_files import ReadOnlyFiles
from topics.supervisor.datadir import sync_dir, write_file

MANIFEST, INCOMPLETE, FILES = "BACKUP", "INCOMPLETE", "files"
VERSION = 1
WITH_COLD = 2  # of a manifest that names files of a cold directory, so that no older program leaves them out
WORDS = b"A backup was begun here and not finished. If there is a BACKUP, it is an older one, and whole.\n"


class BadBackup(Exception):
    """It cannot be used; the message says why."""


class Copy(msgspec.Struct, frozen=True):
    """One file of a backup, and how the original looked when it was copied."""

    stored: str  # below `files`
    size: int
    xxh3: str
    mtime_ns: int = 0
    inode: int = 0
    source_size: int = 0
    fresh: bool = True  # changed so recently that another change might not show

    def unchanged(self, found: os.stat_result) -> bool:
        seen = (found.st_mtime_ns, found.st_ino, found.st_size)
        return not self.fresh and seen == (self.mtime_ns, self.inode, self.source_size)


class ShardCopy(msgspec.Struct):
    """A shard as it was at its cut."""

    shard: int
    lsn: int
    cut_ms: int
    files: dict[str, Copy]
    cold: dict[str, Copy] = {}  # what it had in the cold directory


class Manifest(msgspec.Struct):
    version: int
    taken_ms: int
    format: str  # of the data directory
    slots: str
    shards: list[ShardCopy]

    def copies(self) -> Iterator[Copy]:
        for shard in self.shards:
            yield from shard.files.values()
            yield from shard.cold.values()


class BackupStore:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.copied_files = 0
        self.copied_bytes = 0

    def load(self) -> Manifest | None:
        try:
            found = msgspec.json.decode((self.path / MANIFEST).read_bytes(), type=Manifest)
        except FileNotFoundError:
            return None
        except MALFORMED as error:
            raise BadBackup(f"{self.path / MANIFEST} cannot be read: {error}") from None
        if found.version not in (VERSION, WITH_COLD):
            raise BadBackup(f"{self.path} has a backup of version {found.version}; this program knows {WITH_COLD}")
        return found

    def begin(self) -> None:
        """Raises BadBackup if something else is there."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        foreign = {entry.name for entry in self.path.iterdir()} - {MANIFEST, MANIFEST + ".tmp", INCOMPLETE, FILES}
        if foreign:
            raise BadBackup(
                f"{self.path} holds other things ({sorted(foreign)[0]}): name a directory for backups alone"
            )
        write_file(self.path / INCOMPLETE, WORDS)

    def commit(self, manifest: Manifest) -> None:
        """Everything is durable before the manifest names it."""
        for folder in {self.path, *(self._path(copy.stored).parent for copy in manifest.copies())}:
            for part in (folder, *folder.parents):
                sync_dir(part)
                if part == self.path:
                    break
        write_file(self.path / MANIFEST, msgspec.json.encode(manifest))
        (self.path / INCOMPLETE).unlink()
        sync_dir(self.path)
        self._drop_others({copy.stored for copy in manifest.copies()})

    def _drop_others(self, named: set[str]) -> None:
        for folder, _, names in os.walk(self.path / FILES, topdown=False):
            for name in names:
                path = os.path.join(folder, name)
                if os.path.relpath(path, self.path / FILES) not in named:
                    os.unlink(path)
            if not os.listdir(folder):
                os.rmdir(folder)

    def _path(self, stored: str) -> Path:
        return self.path / FILES / stored

    # --- files ----------------------------------------------------------------------------------------------------

    def copy(self, source: Path, name: str) -> Copy:
        """A file as it is now; FileNotFoundError if there is none. Who lets it change meanwhile copies it again."""
        with open(source, "rb") as file:
            found, now_ns = os.fstat(file.fileno()), time.time_ns()
            size, digest, stored = self._store(name, iter(lambda: file.read(limits.BACKUP_COPY_BYTES), b""))
        fresh = now_ns - found.st_mtime_ns < limits.BACKUP_FRESH_MS * 1_000_000
        return Copy(stored, size, digest, found.st_mtime_ns, found.st_ino, found.st_size, fresh)

    def put(self, data: bytes, name: str) -> Copy:
        size, digest, stored = self._store(name, iter([data]))
        return Copy(stored, size, digest)

    def _store(self, name: str, pieces: Iterator[bytes]) -> tuple[int, str, str]:
        tmp = self._path(name + ".tmp")
        tmp.parent.mkdir(parents=True, exist_ok=True)
        size, digest = 0, xxhash.xxh3_64()
        with open(tmp, "wb") as file:
            for piece in pieces:
                digest.update(piece)
                size += file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        stored = f"{name}.{digest.hexdigest()}"
        os.replace(tmp, self._path(stored))
        self.copied_files += 1
        self.copied_bytes += size
        return size, digest.hexdigest(), stored

    def restore(self, copy: Copy, target: Path) -> None:
        """Raises BadBackup if the copy is not what it was."""
        digest = xxhash.xxh3_64()
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            with open(self._path(copy.stored), "rb") as source, open(target, "xb") as file:
                _pour(source, file, digest)
        except FileNotFoundError:
            raise BadBackup(f"{self._path(copy.stored)} is not there any more") from None
        if digest.hexdigest() != copy.xxh3:
            raise BadBackup(f"{self._path(copy.stored)} is not as it was written")


def _pour(source: IO[bytes], target: IO[bytes], digest: "xxhash.xxh3_64") -> None:
    while piece := source.read(limits.BACKUP_COPY_BYTES):
        digest.update(piece)
        target.write(piece)
    target.flush()
    os.fsync(target.fileno())


class CopiedFiles(ReadOnlyFiles):
    """One shard of a backup as if it were a shard's directory, for checks."""

    def __init__(self, store: BackupStore, files: dict[str, Copy]) -> None:
        super().__init__(str(store.path / FILES))
        self._files = files

    def _path(self, path: str) -> str:
        if path not in self._files:
            raise FileNotFoundError(path)
        return super()._path(self._files[path].stored)

    def exists(self, path: str) -> bool:
        return path in self._files

    def list(self, directory: str) -> list[str]:
        prefix = "" if directory == "." else directory + "/"
        below = (path.removeprefix(prefix) for path in self._files if path.startswith(prefix))
        return sorted({path.partition("/")[0] for path in below})
