"""What a faulty disk is made of: the bytes of a file and the names of a directory tree, each in two states.

As programs see them, and as the disk surely has them; between the two lie the changes that no sync has covered. The
table of what a crash leaves of these is in faulty_files.py.
"""

import contextlib
import errno
import random
from collections.abc import Callable
from typing import NamedTuple

SECTOR_BYTES = 512


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


class FileNode:
    """A file's bytes: as programs see them, as the disk surely has them, and the changes not synced yet."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.durable = bytearray()
        self.shared = False  # with a clone or each other: to be copied before the next change
        self.changes: list[_Change] = []

    def __deepcopy__(self, memo: dict[int, object]) -> "FileNode":
        twin = FileNode()
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

    def drop_cache(self) -> None:
        """Show what the disk holds where no change waits to be written. The size is no matter of the cache."""
        size = len(self.data)
        self._own()
        self.data = bytearray(self.durable)
        for change in self.changes:
            change.apply(self.data)
        _resize(self.data, size)

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


_Node = FileNode | _Directory

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


class Names:
    """The names of a disk: as programs see them, as the disk surely has them, and the changes not synced yet."""

    def __init__(self) -> None:
        self.visible: dict[str, _Node] = {"": _Directory()}
        self.durable = dict(self.visible)
        self.pending: list[_Edits] = []

    def find(self, path: str) -> _Node | None:
        return self.visible.get(_clean(path))

    def file(self, path: str) -> FileNode:
        node = self.find(path)
        if isinstance(node, FileNode):
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
        if isinstance(node, FileNode):
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
                if isinstance(node, FileNode):
                    node.lose_power(rng)
        self.durable = self.visible.copy()

    def used_bytes(self) -> int:
        return sum(len(node.data) for node in self.visible.values() if isinstance(node, FileNode))
