"""Wraps any `Files` and checks, as a test runs, that the code under test does things in an order a crash cannot hurt.

| rule                                                       | why                                                     |
|------------------------------------------------------------|---------------------------------------------------------|
| a file is not renamed while it has unsynced data           | the new name could survive without its bytes            |
| nothing is unlinked while a file created or renamed in     | the old copy could go before the new one is durable     |
| this run has unsynced data or an unsynced name             |                                                         |
| nothing is acknowledged before its bytes, its file's name  | the acknowledged write could be gone                    |
| and that of each new directory above it are synced         |                                                         |

The second rule leaves out `exempt` paths (the log, temporary files, spares: their loss is what recovery is for; the
marks of used slots, which are written beside a checkpoint and ahead of frames that no log has yet) and register files,
which promise nothing beyond the process. Unlinking a ".tmp" file is always allowed: it is no one's
predecessor. After a failed sync a file counts as unsynced for good; a restart begins with a new monitor, which takes
what it finds for durable. The monitor changes nothing on the disk; a lock keeps its notes straight between threads.

Code that goes on after a failure leaves files behind which the monitor cannot know to be abandoned. So whoever uses it
either says which paths these are (`exempt`), or lets it watch `until_failure` only.
"""

import contextlib
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence

from topics.shards.files import Buffer, File, Files, Register
from topics.shards.slots import PATH as MARKS


class OrderingViolation(AssertionError):
    """A crash at this moment could lose what must not be lost."""


def is_exempt(path: str) -> bool:
    return path.startswith("wal/") or path.endswith((".tmp", "spare")) or path == MARKS


class _Record:
    """What is known of one file: its name, and which of its bytes no sync has covered yet."""

    def __init__(self, path: str, size: int) -> None:
        self.path: str | None = path  # None once it is unlinked or replaced
        self.size = size
        self.sync_failed = False
        self._unsynced: list[tuple[int, int, int]] = []  # start, end, number of the change
        self._changes = 0
        self._changes_at_sync = 0  # how many there were when the latest sync began

    def note_change(self, start: int, end: int, size: int) -> None:
        self._changes += 1
        self.size = size
        last = self._unsynced[-1] if self._unsynced else (0, -1, 0)
        if last[1] == start and last[2] > self._changes_at_sync:  # appends that the same sync will cover
            self._unsynced[-1] = (last[0], end, self._changes)
        elif start < end:
            self._unsynced.append((start, end, self._changes))

    def begin_sync(self) -> int:
        self._changes_at_sync = self._changes
        return self._changes

    def end_sync(self, changes: int) -> None:
        """A sync succeeded that began after this many changes; the later ones it may have missed."""
        self._unsynced = [extent for extent in self._unsynced if extent[2] > changes]

    def is_synced(self) -> bool:
        return not self._unsynced and not self.sync_failed

    def is_synced_before(self, end: int) -> bool:
        return end <= self.size and not self.sync_failed and all(end <= start for start, _, _ in self._unsynced)


class MonitoredFile:
    """A `File` whose writes and syncs are noted."""

    def __init__(self, inner: File, record: _Record, owner: "MonitoredFiles") -> None:
        self._inner = inner
        self._record = record
        self._owner = owner
        self._lock = owner.lock

    def write_at(self, offset: int, parts: Sequence[Buffer]) -> None:
        end = offset + sum(len(part) for part in parts)
        try:
            with self._owner.noting_failure():
                self._inner.write_at(offset, parts)
        finally:  # a failed write may have left anything
            with self._lock:
                self._record.note_change(offset, end, max(self._record.size, end))

    def truncate(self, size: int) -> None:
        try:
            with self._owner.noting_failure():
                self._inner.truncate(size)
        finally:
            with self._lock:
                self._record.note_change(min(size, self._record.size), max(size, self._record.size), size)

    def sync(self) -> None:
        with self._lock:
            changes = self._record.begin_sync()
        try:
            with self._owner.noting_failure():
                self._inner.sync()
        except OSError:
            self._record.sync_failed = True
            raise
        with self._lock:
            self._record.end_sync(changes)

    def read_at(self, offset: int, size: int) -> bytes:
        return self._inner.read_at(offset, size)

    def drop_cache(self) -> None:
        self._inner.drop_cache()

    def read_cached(self, offset: int, size: int) -> bytes | bytearray | None:
        return self._inner.read_cached(offset, size)

    def size(self) -> int:
        return self._inner.size()

    def close(self) -> None:
        self._inner.close()


class MonitoredFiles:
    """`inner`, watched; implements `topics.shards.files.Files`. `exempt`: paths that an unlink need not wait for.

    What is violated is also noted in `violations`, for the case that the code under test gets over the exception.
    """

    def __init__(
        self,
        inner: Files,
        *,
        exempt: Callable[[str], bool] = is_exempt,
        until_failure: bool = False,
        violations: list[str] | None = None,
    ) -> None:
        self.violations = [] if violations is None else violations
        self.lock = threading.Lock()
        self._inner = inner
        self._exempt = exempt
        self._until_failure = until_failure
        self._failed = False
        self._records: dict[str, _Record] = {}  # of files opened in this run
        self._fresh: set[str] = set()  # created or renamed into place in this run, and still linked
        self._unsynced_names: set[str] = set()  # files and directories
        self._acks: dict[Hashable, list[tuple[_Record, int]]] = {}

    @contextlib.contextmanager
    def noting_failure(self) -> Iterator[None]:
        """Not of what says no more than what is there."""
        try:
            yield
        except (FileNotFoundError, FileExistsError):
            raise
        except OSError:
            self._failed = True
            raise

    def _violated(self, text: str) -> None:
        if self._until_failure and self._failed:
            return
        self.violations.append(text)
        raise OrderingViolation(text)

    def note_write(self, token: Hashable, path: str, end_offset: int) -> None:
        """The acknowledgement of `token` needs the bytes of `path` before `end_offset`; may be called repeatedly."""
        with self.lock:
            self._acks.setdefault(token, []).append((self._records[path], end_offset))

    def check_acked(self, token: Hashable) -> None:
        """`token` is being acknowledged, which happens once: everything noted for it must be durable now."""
        with self.lock:
            if token not in self._acks:
                self._violated(f"{token!r} is acknowledged, but no write is noted for it")
            for record, end_offset in self._acks.pop(token, []):
                if not record.is_synced_before(end_offset):
                    self._violated(f"{token!r} is acknowledged before {record.path} is synced to {end_offset}")
                name = self._unsynced_name_of(record.path or "")
                if name is not None:
                    self._violated(f"{token!r} is acknowledged before the name {name} is synced")

    def open(self, path: str) -> MonitoredFile:
        file = self._inner.open(path)
        with self.lock:
            record = self._records.setdefault(path, _Record(path, file.size()))
        return MonitoredFile(file, record, self)

    def create(self, path: str) -> MonitoredFile:
        with self.noting_failure():
            file = self._inner.create(path)
        with self.lock:
            record = self._records[path] = _Record(path, 0)
            self._fresh.add(path)
            self._unsynced_names.add(path)
        return MonitoredFile(file, record, self)

    def rename(self, old: str, new: str) -> None:
        with self.lock:
            record = self._records.get(old)
            if record is not None and not record.is_synced():
                self._violated(f"rename {old} -> {new} before the data of {old} is synced")
        with self.noting_failure():
            self._inner.rename(old, new)
        with self.lock:
            self._forget(new)
            self._forget(old)
            self._fresh.add(new)
            self._unsynced_names.add(new)
            if record is not None:
                self._records[new], record.path = record, new

    def unlink(self, path: str) -> None:
        if not path.endswith(".tmp") and self._inner.exists(path):
            with self.lock:
                self._check_successors(path)
        with self.noting_failure():
            self._inner.unlink(path)
        with self.lock:
            self._forget(path)

    def make_dir(self, path: str) -> None:
        with self.lock:
            new = [directory for directory in _with_parents(path) if not self._inner.exists(directory)]
        with self.noting_failure():
            self._inner.make_dir(path)
        with self.lock:
            self._unsynced_names.update(new)

    def remove_dir(self, path: str) -> None:
        self._inner.remove_dir(path)
        with self.lock:
            if not self._inner.exists(path):
                self._unsynced_names.discard(path)

    def sync_dir(self, path: str) -> None:
        directory = "" if path == "." else path.rstrip("/")
        with self.lock:
            covered = {name for name in self._unsynced_names if _parent(name) == directory}
        with self.noting_failure():
            self._inner.sync_dir(path)
        with self.lock:
            self._unsynced_names -= covered

    def map_register(self, path: str, capacity: int) -> Register:
        return self._inner.map_register(path, capacity)

    def exists(self, path: str) -> bool:
        return self._inner.exists(path)

    def list(self, directory: str) -> list[str]:
        return self._inner.list(directory)

    def free_bytes(self) -> int:
        return self._inner.free_bytes()

    def boot_id(self) -> str:
        return self._inner.boot_id()

    def _forget(self, path: str) -> None:
        record = self._records.pop(path, None)
        if record is not None:
            record.path = None
        self._fresh.discard(path)
        self._unsynced_names.discard(path)

    def _check_successors(self, path: str) -> None:
        for successor in sorted(self._fresh - {path}):
            if self._exempt(successor):
                continue
            record = self._records.get(successor)
            if record is not None and not record.is_synced():
                self._violated(f"unlink {path} before the data of {successor} is synced")
            name = self._unsynced_name_of(successor)
            if name is not None:
                self._violated(f"unlink {path} before the name {name} is synced")

    def _unsynced_name_of(self, path: str) -> str | None:
        return next((name for name in _with_parents(path) if name in self._unsynced_names), None)


def _with_parents(path: str) -> Iterator[str]:
    while path:
        yield path
        path = _parent(path)


def _parent(path: str) -> str:
    return path.rpartition("/")[0]
