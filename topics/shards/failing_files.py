"""The file-system port with failpoints in it (see `topics/failpoints.py`). For tests only."""

import os
import re
import signal
import threading
import time
from collections.abc import Callable, Sequence

from topics.failpoints import Failpoint
from topics.shards.cold_files import ColdFiles
from topics.shards.files import Buffer, File, Files, Register

# In the cold directory only segments are written, each under its own name.
_COLD = {"cold.write": "segment.write", "cold.sync": "segment.sync", "cold.read": "read", "cold.unlink": "unlink"}
_LOG_FILE = re.compile(r"wal/[0-9]+\.wal")


class _Name:
    """What an open file is called now: the log writes on to a file after it was renamed."""

    __slots__ = ("path",)

    def __init__(self, path: str) -> None:
        self.path = path


class FailingFiles:
    """Implements `Files` by handing everything on, unless a failpoint has something else in mind."""

    def __init__(self, inner: Files, points: Sequence[Failpoint]) -> None:
        self._inner = inner
        self._points = points
        self._reached = [0] * len(points)
        self._lock = threading.Lock()  # the log and a checkpoint are written by different threads
        self._names: dict[str, _Name] = {}

    def reach(self, name: str | None, tear: Callable[[], None] = lambda: None) -> None:
        """A step is about to be done; `tear` does half of it."""
        for index, point in enumerate(self._points):
            if point.name != name:
                continue
            with self._lock:
                turn = self._reached[index] - point.skip
                self._reached[index] += 1
            if turn >= 0 and (point.times is None or turn < point.times):
                _act(point, tear)

    def _named(self, path: str) -> _Name:
        return self._names.setdefault(path, _Name(path))

    # --- the port -------------------------------------------------------------------------------------------------

    def open(self, path: str) -> "FailingFile":
        return FailingFile(self, self._named(path), self._inner.open(path), fresh=False)

    def create(self, path: str) -> "FailingFile":
        return FailingFile(self, self._named(path), self._inner.create(path), fresh=True)

    def rename(self, old: str, new: str) -> None:
        self.reach(_rename_point(old, new))
        self._inner.rename(old, new)
        name = self._named(old)
        del self._names[old]
        name.path = new
        self._names[new] = name

    def unlink(self, path: str) -> None:
        self.reach("wal.retire" if _LOG_FILE.fullmatch(path) else "unlink")
        self._inner.unlink(path)
        self._names.pop(path, None)

    def sync_dir(self, path: str) -> None:
        self.reach("dir.sync")
        self._inner.sync_dir(path)

    def exists(self, path: str) -> bool:
        return self._inner.exists(path)

    def list(self, directory: str) -> list[str]:
        return self._inner.list(directory)

    def make_dir(self, path: str) -> None:
        self._inner.make_dir(path)

    def remove_dir(self, path: str) -> None:
        self._inner.remove_dir(path)

    def free_bytes(self) -> int:
        return self._inner.free_bytes()

    def map_register(self, path: str, capacity: int) -> Register:
        return self._inner.map_register(path, capacity)

    def boot_id(self) -> str:
        return self._inner.boot_id()


class FailingColdFiles(FailingFiles):
    """The same for the cold directory, with failpoints of its own."""

    def __init__(self, inner: ColdFiles, points: Sequence[Failpoint]) -> None:
        super().__init__(inner, [point._replace(name=_COLD[point.name]) for point in points if point.name in _COLD])
        self._cold = inner

    def make_root(self) -> None:
        self._cold.make_root()

    def remove_root(self) -> None:
        self._cold.remove_root()

    def open(self, path: str) -> "FailingFile":
        self.reach("read")
        return super().open(path)


class FailingFile:
    def __init__(self, files: FailingFiles, name: _Name, inner: File, *, fresh: bool) -> None:
        self._files = files
        self._name = name
        self._inner = inner
        self._fresh = fresh  # made by this process, and not written before

    def write_at(self, offset: int, parts: Sequence[Buffer]) -> None:
        def tear() -> None:
            whole = b"".join(parts)
            self._inner.write_at(offset, [whole[: len(whole) // 2]])

        self._files.reach(_file_point("write", self._name.path, self._fresh), tear)
        self._inner.write_at(offset, parts)

    def sync(self) -> None:
        self._files.reach(_file_point("sync", self._name.path, self._fresh))
        self._inner.sync()

    def truncate(self, size: int) -> None:
        self._files.reach("truncate")
        self._inner.truncate(size)

    def read_at(self, offset: int, size: int) -> bytes:
        return self._inner.read_at(offset, size)

    def read_cached(self, offset: int, size: int) -> bytes | bytearray | None:
        return self._inner.read_cached(offset, size)

    def drop_cache(self) -> None:
        self._inner.drop_cache()

    def size(self) -> int:
        return self._inner.size()

    def close(self) -> None:
        self._inner.close()


def _file_point(operation: str, path: str, fresh: bool) -> str | None:
    if path.startswith("wal/"):
        return f"wal.{operation}" if _LOG_FILE.fullmatch(path) else "wal.prepare"
    if path.startswith(("segments/", "packs/")):
        kind = "segment" if path.startswith("segments/") else "pack"
        return f"{kind if fresh else 'flags'}.{operation}"
    if path.startswith(("snapshot.", "slots.used")):
        return f"{path.partition('.')[0]}.{operation}"
    return None


def _rename_point(old: str, new: str) -> str | None:
    if _LOG_FILE.fullmatch(new):
        return "wal.rotate"
    if _LOG_FILE.fullmatch(old):
        return "wal.retire"
    if new.startswith("wal/"):
        return "wal.prepare"
    return "snapshot.rename" if new.startswith("snapshot.") else None


def _act(point: Failpoint, tear: Callable[[], None]) -> None:
    if point.action == "error":
        raise OSError(point.argument, f"{os.strerror(point.argument)} (failpoint {point.name})")
    if point.action == "pause":
        time.sleep(point.argument / 1000)
        return
    if point.action == "tear":
        tear()
    os.kill(os.getpid(), signal.SIGKILL)
