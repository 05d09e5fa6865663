"""The file-system port: every byte the shard keeps goes through this small surface.

`RealFiles` is the operating system; `topics.testing.faulty_files.FaultyFiles` is its twin for crash tests, which keeps
what was synced apart from what was only written. Paths are relative to the shard's directory and use "/" as
separator, so that both twins see the same names. Nothing here is asynchronous: callers decide which thread waits.

Durability rules the callers rely on (and the faulty twin enforces):
- bytes written are durable only after `sync` on their file;
- a created, renamed or removed name is durable only after `sync_dir` on its directory;
- `rename` replaces its target atomically.
"""

import contextlib
import errno
import mmap
import os
from collections.abc import Sequence
from typing import Protocol

import xxhash

Buffer = bytes | bytearray | memoryview


class File(Protocol):
    """An open file. Positions are explicit; there is no seek."""

    def write_at(self, offset: int, parts: Sequence[Buffer]) -> None:
        """Write all parts one after another at `offset` (short writes are continued). OSError leaves any prefix."""
        ...

    def read_at(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes at `offset`; shorter only at the end of the file."""
        ...

    def read_cached(self, offset: int, size: int) -> bytes | bytearray | None:
        """As `read_at`, but None instead of waiting for the disk (RWF_NOWAIT)."""
        ...

    def sync(self) -> None:
        """fdatasync: everything written to this file is durable, or OSError (and then nothing is known)."""
        ...

    def drop_cache(self) -> None:
        """Read from the disk from now on: forget the cached bytes, but for those that are still to be written.

        After a failed sync the cache shows bytes that the disk never got, and counts them as written.
        """
        ...

    def size(self) -> int: ...

    def truncate(self, size: int) -> None: ...

    def close(self) -> None: ...


REMOVED_CELL = 2**64 - 1  # no head: the topic of this cell was removed


class Register(Protocol):
    """A mapped array of u64 that survives the death of the process but is not promised to survive the machine's."""

    def get(self, index: int) -> int: ...

    def set(self, index: int, value: int) -> None: ...

    def capacity(self) -> int: ...

    def grow(self, capacity: int) -> None: ...

    def close(self) -> None: ...


class Files(Protocol):
    """One directory tree."""

    def open(self, path: str) -> File:
        """Open an existing file for reading and writing; FileNotFoundError if absent."""
        ...

    def create(self, path: str) -> File:
        """Create a new file (FileExistsError if present), open for reading and writing."""
        ...

    def exists(self, path: str) -> bool: ...

    def list(self, directory: str) -> list[str]:
        """Names in a directory, sorted; empty if the directory is absent."""
        ...

    def make_dir(self, path: str) -> None:
        """Create a directory and its parents; no error if present."""
        ...

    def rename(self, old: str, new: str) -> None: ...

    def unlink(self, path: str) -> None:
        """Remove a file; no error if absent."""
        ...

    def remove_dir(self, path: str) -> None:
        """Remove an empty directory; no error if absent or not empty."""
        ...

    def sync_dir(self, path: str) -> None: ...

    def free_bytes(self) -> int: ...

    def map_register(self, path: str, capacity: int) -> Register:
        """Open or create the u64 register file with at least `capacity` entries, zero where new."""
        ...

    def boot_id(self) -> str:
        """Changes when the machine restarts: mapped pages of an older boot are not to be trusted."""
        ...


class RealFile:
    __slots__ = ("_fd", "_nowait")

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._nowait = True

    def write_at(self, offset: int, parts: Sequence[Buffer]) -> None:
        views = [memoryview(part) for part in parts if len(part)]
        while views:
            written = os.pwritev(self._fd, views[:1024], offset)
            offset += written
            done = 0
            while done < len(views) and written >= len(views[done]):
                written -= len(views[done])
                done += 1
            del views[:done]
            if written:
                views[0] = views[0][written:]

    def read_at(self, offset: int, size: int) -> bytes:
        data = os.pread(self._fd, size, offset)
        if len(data) == size or not data:
            return data
        parts = [data]
        got = len(data)
        while got < size:
            data = os.pread(self._fd, size - got, offset + got)
            if not data:
                break
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def read_cached(self, offset: int, size: int) -> bytes | bytearray | None:
        if not self._nowait:
            return None
        buffer = bytearray(size)
        try:
            got = os.preadv(self._fd, [buffer], offset, os.RWF_NOWAIT)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                raise
            self._nowait = False  # this file system cannot say; always use a thread
            return None
        return buffer if got == size else None

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def drop_cache(self) -> None:
        os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def close(self) -> None:
        fd, self._fd = self._fd, -1  # forgotten first: even a failed close gives the number free for another file
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:  # a reader may hold the last reference to a file that was retired meanwhile
        self.close()


class RealRegister:
    def __init__(self, path: str, capacity: int) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._map_file(max(capacity, os.fstat(self._fd).st_size // 8, 1))
        except BaseException:
            os.close(self._fd)
            raise

    def _map_file(self, capacity: int) -> None:
        # Every page is allocated here: a store to a hole for which the disk has no room would be a SIGBUS.
        size = os.fstat(self._fd).st_size
        try:
            os.posix_fallocate(self._fd, 0, capacity * 8)
        except OSError:
            os.ftruncate(self._fd, size)  # or the next process would ask for the same room and not start
            raise
        self._map = mmap.mmap(self._fd, capacity * 8)
        self._cells = memoryview(self._map).cast("Q")
        self._capacity = capacity

    def get(self, index: int) -> int:
        return self._cells[index]

    def set(self, index: int, value: int) -> None:
        self._cells[index] = value

    def capacity(self) -> int:
        return self._capacity

    def grow(self, capacity: int) -> None:
        if capacity <= self._capacity:
            return
        old_map, old_cells = self._map, self._cells
        self._map_file(capacity)  # an OSError leaves the old map in use
        old_cells.release()
        old_map.close()

    def close(self) -> None:
        self._cells.release()
        self._map.close()
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def _sync_dir(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_durable_dir(path: str) -> None:
    """The root's own name has to be synced here: no `sync_dir` reaches above the root."""
    parent = os.path.dirname(path)
    if not os.path.isdir(parent):
        make_durable_dir(parent)
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, mode=0o700)
    with contextlib.suppress(PermissionError):  # a parent we may pass through but not read was not made by us
        _sync_dir(parent)


class RealFiles:
    """The operating system's files below `root`."""

    def __init__(self, root: str) -> None:
        self._root = root
        make_durable_dir(os.path.abspath(root))

    def _path(self, path: str) -> str:
        return os.path.join(self._root, path)

    def open(self, path: str) -> RealFile:
        return RealFile(os.open(self._path(path), os.O_RDWR | os.O_CLOEXEC))

    def create(self, path: str) -> RealFile:
        return RealFile(os.open(self._path(path), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))

    def exists(self, path: str) -> bool:
        return os.path.exists(self._path(path))

    def list(self, directory: str) -> list[str]:
        try:
            return sorted(os.listdir(self._path(directory)))
        except FileNotFoundError:
            return []

    def make_dir(self, path: str) -> None:
        os.makedirs(self._path(path), mode=0o700, exist_ok=True)

    def rename(self, old: str, new: str) -> None:
        os.rename(self._path(old), self._path(new))

    def unlink(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path(path))

    def remove_dir(self, path: str) -> None:
        with contextlib.suppress(OSError):
            os.rmdir(self._path(path))

    def sync_dir(self, path: str) -> None:
        _sync_dir(self._path(path))

    def free_bytes(self) -> int:
        stat = os.statvfs(self._root)
        return stat.f_bavail * stat.f_frsize

    def map_register(self, path: str, capacity: int) -> RealRegister:
        return RealRegister(self._path(path), capacity)

    def boot_id(self) -> str:
        try:
            with open("/proc/sys/kernel/random/boot_id") as file:
                return file.read().strip()
        except OSError:
            return "unknown-boot"


def boot_mark(files: Files) -> int:
    """A number for this boot of the machine, never 0."""
    return xxhash.xxh3_64_intdigest(files.boot_id().encode()) or 1
