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
| bytes or names whose sync failed   | there          | a part of them; no later sync makes up for the others          |
| register cells set, never synced   | there          | as bytes: each sector old, new, or as it once was in between   |
| boot_id                            | the same       | another                                                        |

What a kill leaves is as unsynced as before: a power loss after it may still take it. Every choice comes from the seeds
handed in: the same calls and seeds give the same disk. Mutating calls are counted in `calls` from 0 and described in
`trace`: `trace[n]` is the call that `fail_at(n)` or `crash_at(n)` hits. A lock makes them atomic, so that threads may
share the disk as they share the real one. Directories cannot be renamed.
"""

import contextlib
import copy
import errno
import random
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

from topics.shards.files import Buffer

SECTOR_BYTES = 512
CELL_BYTES = 8
UNLIMITED_BYTES = 1 << 40

_Effect = Callable[[], object]


class SimulatedCrash(BaseException):
    """The process is gone. Not an Exception, so that no handler of the code under test survives its own death."""


class _Change(NamedTuple):
    """Bytes laid down at `start`, and the size the file then has; a truncation lays zeros over what it cuts off."""

    start: int
    data: bytes
    size_after: int

    def end(self) -> int:
        return self.start + len(self.data)

    def apply(self, image: bytearray) -> None:
        _resize(image, max(len(image), self.end()))
        image[self.start : self.end()] = self.data
        _resize(image, self.size_after)

    def apply_sector(self, image: bytearray, sector: int) -> None:
        low, high = max(self.start, sector * SECTOR_BYTES), min(self.end(), (sector + 1) * SECTOR_BYTES)
        image[low:high] = self.data[low - self.start : high - self.start]

    def sectors(self) -> range:
        return range(self.start // SECTOR_BYTES, -(-self.end() // SECTOR_BYTES)) if self.data else range(0)


class _FileNode:
    """A file's bytes: as programs see them, as the disk surely has them, and the changes not synced yet."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.durable = bytearray()
        self.shared = False  # with a clone or each other: to be copied before the next change
        self.changes: list[_Change] = []

    def __deepcopy__(self, memo: dict[int, object]) -> "_FileNode":
        twin = _FileNode()
        twin.data, twin.durable, twin.changes = self.data, self.durable, self.changes.copy()
        twin.shared = self.shared = True
        return twin

    def write(self, offset: int, data: bytes) -> None:
        self._change(_Change(offset, data, max(len(self.data), offset + len(data))))

    def truncate(self, size: int) -> None:
        self._change(_Change(size, bytes(max(0, len(self.data) - size)), size))

    def _change(self, change: _Change) -> None:
        self._own()
        change.apply(self.data)
        self.changes.append(change)

    def _own(self) -> None:
        if self.shared:
            self.data, self.durable, self.shared = bytearray(self.data), bytearray(self.durable), False

    def sync(self) -> None:
        self._own()
        for change in self.changes:
            change.apply(self.durable)
        self.changes.clear()

    def sync_partly(self, rng: random.Random) -> None:
        """A failed sync: some of it is on disk, the rest now counts as clean and will never be (fsyncgate)."""
        if self.changes:
            self.durable = self._image_on_disk(rng)
            self.changes.clear()

    def lose_power(self, rng: random.Random) -> None:
        """Become what the disk holds."""
        self.sync_partly(rng)
        self.data, self.shared = self.durable, True

    def _image_on_disk(self, rng: random.Random) -> bytearray:
        sizes = [len(self.durable), *(change.size_after for change in self.changes)]
        landed = rng.choice((0, len(self.changes), rng.randint(0, len(self.changes))))
        image = bytearray(self.durable)
        _resize(image, max(len(image), *(change.end() for change in self.changes)))
        self._land_sectors(rng, image, landed)
        low, high = sizes[landed] // SECTOR_BYTES + 1, sizes[min(landed + 1, len(self.changes))] // SECTOR_BYTES
        partly_extended = low <= high and rng.random() < 0.5
        _resize(image, rng.randint(low, high) * SECTOR_BYTES if partly_extended else sizes[landed])
        return image

    def _land_sectors(self, rng: random.Random, image: bytearray, sizes_landed: int) -> None:
        # The cache holds a sector's latest bytes: whichever change of it landed last brought the earlier ones along.
        # A truncation whose size landed took the blocks behind it: nothing older is ever seen there again.
        last_cut = max((n for n, c in enumerate(self.changes[:sizes_landed]) if c.size_after < c.end()), default=-1)
        lands = _choose_landing(rng, len(image) // SECTOR_BYTES)
        stale: set[int] = set()  # sectors of which a change never reached the disk
        for number, change in enumerate(self.changes):
            for sector in change.sectors():
                if number <= last_cut or (sector not in stale and lands(sector)):
                    change.apply_sector(image, sector)
                else:
                    stale.add(sector)


def _resize(image: bytearray, size: int) -> None:
    del image[size:]
    image.extend(bytes(size - len(image)))


def _choose_landing(rng: random.Random, sectors: int) -> Callable[[int], bool]:
    """Which sectors reach the disk: none, all, the first ones, the last ones, or each by the toss of a coin."""
    cut = rng.randint(0, sectors)
    chance = rng.choice((0.0, 0.1, 0.5, 0.9, 1.0))
    return rng.choice((lambda sector: sector < cut, lambda sector: sector >= cut, lambda _: rng.random() < chance))


class _Directory:
    """A name that other names may stand below; its entries are the paths that begin with it."""


_Node = _FileNode | _Directory

# One atomic change of names; None removes a name. It is durable once the directory of its last name is synced.
_Edits = tuple[tuple[str, _Node | None], ...]


def _edit(names: dict[str, _Node], edits: _Edits) -> None:
    for path, node in edits:
        if node is None:
            names.pop(path, None)
        else:
            names[path] = node


def _clean(path: str) -> str:
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if ".." in parts or path.startswith("/"):
        raise ValueError(f"not a path below the root: {path}")
    return "/".join(parts)


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


class _Names:
    """The names of a disk: as programs see them, as the disk surely has them, and the changes not synced yet."""

    def __init__(self) -> None:
        self.visible: dict[str, _Node] = {"": _Directory()}
        self.durable = dict(self.visible)
        self.pending: list[_Edits] = []

    def find(self, path: str) -> _Node | None:
        return self.visible.get(_clean(path))

    def file(self, path: str) -> _FileNode:
        node = self.find(path)
        if isinstance(node, _FileNode):
            return node
        raise OSError(errno.ENOENT if node is None else errno.EISDIR, path)

    def directory(self, path: str) -> str:
        """Its clean path."""
        node = self.find(path)
        if isinstance(node, _Directory):
            return _clean(path)
        raise OSError(errno.ENOENT if node is None else errno.ENOTDIR, path)

    def entries(self, path: str) -> list[str]:
        directory = self.directory(path)
        return sorted(name.rpartition("/")[2] for name in self.visible if name and _parent(name) == directory)

    def create(self, path: str, node: _Node) -> None:
        self.directory(_parent(_clean(path)))
        if self.find(path) is not None:
            raise OSError(errno.EEXIST, path)
        self._change((_clean(path), node))

    def make_dir(self, path: str) -> None:
        path = _clean(path)
        node = self.find(path)
        if isinstance(node, _FileNode):
            raise OSError(errno.EEXIST, path)
        if node is None:
            self.make_dir(_parent(path))
            self._change((path, _Directory()))

    def unlink(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.file(path)
            self._change((_clean(path), None))

    def remove_dir(self, path: str) -> None:
        if self.entries(path) or not _clean(path):
            raise OSError(errno.ENOTEMPTY, path)
        below = [name for name in self.durable if name.startswith(f"{_clean(path)}/")]
        self._change(*((name, None) for name in (*below, _clean(path))))

    def rename(self, old: str, new: str) -> None:
        node, replaced = self.file(old), self.find(new)
        self.directory(_parent(_clean(new)))
        if isinstance(replaced, _Directory):
            raise OSError(errno.EISDIR, new)
        if replaced is not node:
            self._change((_clean(old), None), (_clean(new), node))

    def _change(self, *edits: tuple[str, _Node | None]) -> None:
        _edit(self.visible, edits)
        self.pending.append(edits)

    def sync_dir(self, path: str) -> None:
        directory = self.directory(path)
        self._settle(lambda home: home == directory)

    def sync_dir_partly(self, path: str, rng: random.Random) -> None:
        """A failed sync: some of the changes are durable now, the others will never be."""
        self._settle(lambda home: home == _clean(path) and rng.random() < 0.5)
        self.pending = [edits for edits in self.pending if _parent(edits[-1][0]) != _clean(path)]

    def _settle(self, lands: Callable[[str], bool], *, ordered: bool = False) -> None:
        """Make durable the changes that land, and the earlier ones of the same names (`ordered`: directories)."""
        forced: set[str] = set()
        landed: list[_Edits] = []
        others: list[_Edits] = []
        for edits in reversed(self.pending):
            touched = {_parent(path) if ordered else path for path, _ in edits}
            settled = lands(_parent(edits[-1][0])) or not forced.isdisjoint(touched)
            forced |= touched if settled else set()
            (landed if settled else others).append(edits)
        for edits in reversed(landed):
            _edit(self.durable, edits)
        self.pending = others[::-1]

    def lose_power(self, rng: random.Random, ordered: bool) -> None:
        """Become what the disk holds; a name below a lost directory is lost with it."""
        chance = rng.choice((0.0, 0.2, 0.5, 0.8, 1.0))
        self._settle(lambda _: rng.random() < chance, ordered=ordered)
        self.pending.clear()
        self.visible = {}
        for path, node in sorted(self.durable.items()):  # a directory comes before what is below it
            if not path or isinstance(self.visible.get(_parent(path)), _Directory):
                self.visible[path] = node
                if isinstance(node, _FileNode):
                    node.lose_power(rng)
        self.durable = self.visible.copy()

    def used_bytes(self) -> int:
        return sum(len(node.data) for node in self.visible.values() if isinstance(node, _FileNode))


class _Handle:
    """What an open file and a mapped register share: a node that outlives its name, until closed."""

    def __init__(self, files: "FaultyFiles", node: _FileNode, path: str) -> None:
        self._files = files
        self._open_node: _FileNode | None = node
        self._path = path  # as opened; only for the trace

    def _node(self) -> _FileNode:
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
        return bytes(self._node().data[offset : offset + size])

    def read_cached(self, offset: int, size: int) -> bytes | None:
        data = self.read_at(offset, size)
        return data if len(data) == size and not self._files.is_cold() else None

    def sync(self) -> None:
        self._files.sync(self._node(), self._path)

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
        self._names = _Names()
        self._capacity_bytes: int | None = None
        self._boot = 1
        self._failures: dict[int, int] = {}
        self._crash_index: int | None = None
        self._dead = False
        self._lock = threading.RLock()

    def fail_at(self, call_index: int, error: int = errno.EIO) -> None:
        """That mutating call raises OSError(error); a write leaves any prefix, a sync leaves its bytes in doubt."""
        self._failures[call_index] = error

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
        self.check_alive()
        return FaultyFile(self, self._names.file(path), path)

    def create(self, path: str) -> FaultyFile:
        node = _FileNode()
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

    def is_cold(self) -> bool:
        return self._cold_reads and self._cold_rng.random() < 0.5

    def write(self, node: _FileNode, offset: int, data: bytes, path: str) -> None:
        def tear() -> None:
            self._write(node, offset, data[: self._fault_rng.choice((0, self._fault_rng.randint(0, len(data))))])

        text = f"write_at {path} @{offset} +{len(data)}"
        self._call(text, lambda: self._write(node, offset, data), failed=tear, torn=tear)

    def sync(self, node: _FileNode, path: str) -> None:
        self._call(f"sync {path}", node.sync, failed=lambda: node.sync_partly(self._fault_rng))

    def resize(self, node: _FileNode, size: int, text: str) -> None:
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

    def _write(self, node: _FileNode, offset: int, data: bytes) -> None:
        missing = self._missing_bytes(node, offset + len(data))
        if missing < len(data):
            node.write(offset, data[: len(data) - missing])
        if missing:
            raise OSError(errno.ENOSPC, "the rest of a write finds no room")

    def _resize(self, node: _FileNode, size: int) -> None:
        if self._missing_bytes(node, size):
            raise OSError(errno.ENOSPC, "a longer file finds no room")
        node.truncate(size)

    def _missing_bytes(self, node: _FileNode, size: int) -> int:
        growth = size - len(node.data)
        return max(0, growth - self.free_bytes()) if growth > 0 else 0

    def _map(self, path: str, capacity: int) -> None:
        if self._names.find(path) is None:
            self._names.create(path, _FileNode())
        node = self._names.file(path)
        self._resize(node, max(capacity, len(node.data) // CELL_BYTES, 1) * CELL_BYTES)
