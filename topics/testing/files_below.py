"""A folder of one disk as a file-system port of its own: so two directories crash at the same moment."""

from topics.shards.files import File, Files, Register


class FilesBelow:
    """Implements `topics.shards.cold_files.ColdFiles`."""

    def __init__(self, inner: Files, folder: str) -> None:
        self._inner = inner
        self._folder = folder

    def _path(self, path: str) -> str:
        return self._folder if path == "." else f"{self._folder}/{path}"

    def make_root(self) -> None:
        self._inner.make_dir(self._folder)
        self._inner.sync_dir(".")

    def remove_root(self) -> None:
        self._inner.remove_dir(self._folder)

    def open(self, path: str) -> File:
        return self._inner.open(self._path(path))

    def create(self, path: str) -> File:
        return self._inner.create(self._path(path))

    def exists(self, path: str) -> bool:
        return self._inner.exists(self._path(path))

    def list(self, directory: str) -> list[str]:
        return self._inner.list(self._path(directory))

    def make_dir(self, path: str) -> None:
        if not self._inner.exists(self._folder):
            raise FileNotFoundError(self._folder)
        if not self._inner.exists(self._path(path)):
            self._inner.make_dir(self._path(path))

    def rename(self, old: str, new: str) -> None:
        self._inner.rename(self._path(old), self._path(new))

    def unlink(self, path: str) -> None:
        self._inner.unlink(self._path(path))

    def remove_dir(self, path: str) -> None:
        self._inner.remove_dir(self._path(path))

    def sync_dir(self, path: str) -> None:
        self._inner.sync_dir(self._path(path))

    def free_bytes(self) -> int:
        return self._inner.free_bytes()

    def map_register(self, path: str, capacity: int) -> Register:
        return self._inner.map_register(self._path(path), capacity)

    def boot_id(self) -> str:
        return self._inner.boot_id()
