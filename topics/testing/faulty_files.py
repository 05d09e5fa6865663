"""The crash-testing twin of `topics.shards.files.RealFiles`: a disk in memory that remembers what was never synced.

What a crash leaves (`FaultyFiles.crash`):

| what                               | process killed | power lost                                                     |
|------------------------------------|----------------|----------------------------------------------------------------|
| bytes written, then synced         | there          | there                                                          |
| bytes written, not synced          | there          | each 512-byte sector as after some prefix of the writes to it: |
|                                    |                | a write is lost, whole or torn, and later ones may outlive it  |
| size changed, not synced           | there          | after a prefix of the changes, or partly extended; holes are 0 |
| name changed, directory synced     | there          | there, if the directory itself is                              |
| name changed, directory not synced | there          | any subset (`ordered_dirs`: a prefix per directory); changes   |
|                                    |                | of one name keep their order; a rename is all or nothing       |
| name moved to another directory    | there          | durable once the directory it moved to is synced               |
| bytes or names whose sync failed   | there, until   | a part of them; no later sync makes up for the others          |
|                                    | `drop_cache`   |                                                                |
| register cells set, never synced   | there          | as bytes: each sector old, new, or as it once was in between   |
| boot_id                            | the same       | another                                                        |

What a kill leaves is as unsynced as before: a power loss after it may still take it. Every choice comes from the seeds
handed in: the same calls and seeds give the same disk. Mutating calls are counted in `calls` from 0 and described in
`trace`: `trace[n]` is the call that `fail_at(n)` or `crash_at(n)` hits. Opening and reading is counted apart
in `reads`, for `fail_read_at`. A lock makes calls atomic, so that threads may share the disk as they share the real
one. Directories cannot be renamed.
"""

import contextlib
import copy
import errno
import random
import threading
from collections.abc import Callable, Sequence

from topics.shards.files import Buffer
from topics.testing.faulty_nodes import FileNode, Names

CELL_BYTES = 8
UNLIMITED_BYTES = 1 << 40

_Effect = Callable[[], object]


class SimulatedCrash(BaseException):
    """The process is gone. Not an Exception, so that no handler of the code under test survives its own death."""


class _Handle:
    """What an open file and a mapped register share: a node that outlives its name, until closed."""

    def __init__(self, files: "FaultyFiles", node: FileNode, path: str) -> None:
        self._files = files
        self._open_node: FileNode | None = node
        self._path = path  # as opened; only for the trace

    def _node(self) -> FileNode:
        self._files.check_alive()
        if self._open_node is None:
            raise OSError(errno.EBADF, self._path)
        return self._open_node

    def close(self) -> None:
        self._open_node = None  # no error after a crash: a dead process cannot tell


class FaultyFile(_Handle):
    def write_at(self, offset: int, parts: Sequence[Buffer]) -> None:
        data = b"".join(parts)
        if data:
            self._files.write(self._node(), offset, data, self._path)

    def read_at(self, offset: int, size: int) -> bytes:
        self._files.note_read(f"read_at {self._path} @{offset} +{size}")
        return bytes(self._node().data[offset : offset + size])

    def read_cached(self, offset: int, size: int) -> bytes | bytearray | None:
        data = bytes(self._node().data[offset : offset + size])
        return data if len(data) == size and not self._files.is_cold() else None

    def sync(self) -> None:
        self._files.sync(self._node(), self._path)

    def drop_cache(self) -> None:
        self._node().drop_cache()

    def size(self) -> int:
        return len(self._node().data)

    def truncate(self, size: int) -> None:
        self._files.resize(self._node(), size, f"truncate {self._path} to {size}")


class FaultyRegister(_Handle):
    def get(self, index: int) -> int:
        return int.from_bytes(self._node().data[self._cell(index)], "little")

    def set(self, index: int, value: int) -> None:
        self._node().write(self._cell(index).start, value.to_bytes(CELL_BYTES, "little"))

    def _cell(self, index: int) -> slice:
        if not 0 <= index < self.capacity():
            raise IndexError(f"register cell {index} of {self.capacity()}")
        return slice(index * CELL_BYTES, (index + 1) * CELL_BYTES)

    def capacity(self) -> int:
        return len(self._node().data) // CELL_BYTES

    def grow(self, capacity: int) -> None:
        if capacity > self.capacity():
            self._files.resize(self._node(), capacity * CELL_BYTES, f"grow {self._path} to {capacity}")


class FaultyFiles:
    """A disk in memory that can fail, fill up and crash; implements `topics.shards.files.Files`."""

    def __init__(self, seed: int = 0, *, cold_reads: bool = False) -> None:
        self.calls = 0
        self.trace: list[str] = []
        self._seed = seed
        self._fault_rng = random.Random(seed)
        self._cold_rng = random.Random(seed)  # apart, so that a read does not change what a fault does
        self._cold_reads = cold_reads
        self._names = Names()
        self._capacity_bytes: int | None = None
        self._boot = 1
        self._failures: dict[int, int] = {}
        self.reads = 0
        self.failed_reads: list[str] = []
        self._read_failures: dict[int, int] = {}
        self._crash_index: int | None = None
        self._dead = False
        self._lock = threading.RLock()

    def fail_at(self, call_index: int, error: int = errno.EIO) -> None:
        """That mutating call raises OSError(error); a write leaves any prefix, a sync leaves its bytes in doubt."""
        self._failures[call_index] = error

    def fail_read_at(self, read_index: int, error: int = errno.EIO) -> None:
        """That `open` or `read_at`, which are counted apart in `reads`, raises OSError(error)."""
        self._read_failures[read_index] = error

    def crash_at(self, call_index: int) -> None:
        """That mutating call raises SimulatedCrash, before, after or (a write) amid its effect; all later calls do."""
        self._crash_index = call_index

    def set_free_bytes(self, free_bytes: int) -> None:
        """From here on files may grow by this much in total, plus what shrinking and unlinking gives back."""
        self._capacity_bytes = self._names.used_bytes() + free_bytes

    def crash(self, seed: int, *, power_loss: bool = True, ordered_dirs: bool = False) -> "FaultyFiles":
        """The disk as the next process finds it. This one is dead from here on, but may be crashed with other seeds."""
        self._dead = True
        survivor = self.clone(seed)
        if power_loss:
            survivor._names.lose_power(random.Random(seed), ordered_dirs)
            survivor._boot += 1
        return survivor

    def clone(self, seed: int | None = None) -> "FaultyFiles":
        """An independent copy of the disk, unsynced parts included; without handles, faults, count and trace."""
        twin = FaultyFiles(self._seed if seed is None else seed, cold_reads=self._cold_reads)
        with self._lock:
            twin._names = copy.deepcopy(self._names)
        twin._capacity_bytes, twin._boot = self._capacity_bytes, self._boot
        return twin

    def open(self, path: str) -> FaultyFile:
        self.note_read(f"open {path}")
        return FaultyFile(self, self._names.file(path), path)

    def create(self, path: str) -> FaultyFile:
        node = FileNode()
        self._call(f"create {path}", lambda: self._names.create(path, node))
        return FaultyFile(self, node, path)

    def exists(self, path: str) -> bool:
        self.check_alive()
        return self._names.find(path) is not None

    def list(self, directory: str) -> list[str]:
        return self._names.entries(directory) if self.exists(directory) else []

    def make_dir(self, path: str) -> None:
        self._call(f"make_dir {path}", lambda: self._names.make_dir(path))

    def rename(self, old: str, new: str) -> None:
        self._call(f"rename {old} -> {new}", lambda: self._names.rename(old, new))

    def unlink(self, path: str) -> None:
        self._call(f"unlink {path}", lambda: self._names.unlink(path))

    def remove_dir(self, path: str) -> None:
        with contextlib.suppress(OSError):
            self._call(f"remove_dir {path}", lambda: self._names.remove_dir(path))

    def sync_dir(self, path: str) -> None:
        names, rng = self._names, self._fault_rng
        self._call(f"sync_dir {path}", lambda: names.sync_dir(path), failed=lambda: names.sync_dir_partly(path, rng))

    def free_bytes(self) -> int:
        self.check_alive()
        capacity = self._capacity_bytes
        return UNLIMITED_BYTES if capacity is None else max(0, capacity - self._names.used_bytes())

    def map_register(self, path: str, capacity: int) -> FaultyRegister:
        self._call(f"map_register {path} {capacity}", lambda: self._map(path, capacity))
        return FaultyRegister(self, self._names.file(path), path)

    def boot_id(self) -> str:
        self.check_alive()
        return f"boot-{self._boot}"

    def check_alive(self) -> None:
        if self._dead:
            raise SimulatedCrash("this process has crashed")

    def note_read(self, text: str) -> None:
        """One call that changes nothing: count it, then let it happen or fail."""
        with self._lock:
            self.check_alive()
            index, self.reads = self.reads, self.reads + 1
            if index in self._read_failures:
                self.failed_reads.append(text)
                raise OSError(self._read_failures[index], text)

    def is_cold(self) -> bool:
        return self._cold_reads and self._cold_rng.random() < 0.5

    def write(self, node: FileNode, offset: int, data: bytes, path: str) -> None:
        def tear() -> None:
            self._write(node, offset, data[: self._fault_rng.choice((0, self._fault_rng.randint(0, len(data))))])

        text = f"write_at {path} @{offset} +{len(data)}"
        self._call(text, lambda: self._write(node, offset, data), failed=tear, torn=tear)

    def sync(self, node: FileNode, path: str) -> None:
        self._call(f"sync {path}", node.sync, failed=lambda: node.sync_partly(self._fault_rng))

    def resize(self, node: FileNode, size: int, text: str) -> None:
        self._call(text, lambda: self._resize(node, size))

    def _call(self, text: str, effect: _Effect, failed: _Effect = lambda: None, torn: _Effect = lambda: None) -> None:
        """One mutating call: count it, then let it happen, fail or be the last one."""
        with self._lock:
            self.check_alive()
            index, self.calls = self.calls, self.calls + 1
            self.trace.append(text)
            if index == self._crash_index:
                with contextlib.suppress(OSError):
                    self._fault_rng.choice((torn, effect))()
                self._dead, self.trace[index] = True, f"{text} -> crash"
                raise SimulatedCrash(self.trace[index])
            if index in self._failures:
                self.trace[index] += f" -> {errno.errorcode[self._failures[index]]}"
                with contextlib.suppress(OSError):
                    failed()
                raise OSError(self._failures[index], text)
            effect()

    def _write(self, node: FileNode, offset: int, data: bytes) -> None:
        missing = self._missing_bytes(node, offset + len(data))
        if missing < len(data):
            node.write(offset, data[: len(data) - missing])
        if missing:
            raise OSError(errno.ENOSPC, "the rest of a write finds no room")

    def _resize(self, node: FileNode, size: int) -> None:
        if self._missing_bytes(node, size):
            raise OSError(errno.ENOSPC, "a longer file finds no room")
        node.truncate(size)

    def _missing_bytes(self, node: FileNode, size: int) -> int:
        growth = size - len(node.data)
        return max(0, growth - self.free_bytes()) if growth > 0 else 0

    def _map(self, path: str, capacity: int) -> None:
        if self._names.find(path) is None:
            self._names.create(path, FileNode())
        node = self._names.file(path)
        self._resize(node, max(capacity, len(node.data) // CELL_BYTES, 1) * CELL_BYTES)
