"""Files that fail the next operation of one kind on one part of the tree, however many others run beside it."""

from collections.abc import Callable
from typing import Any

from topics.shards.files import Buffer, File, Files


class TrapFiles:
    """Implements `Files` by handing everything to another one."""

    def __init__(self, inner: Files) -> None:
        self.inner = inner
        self._trap: tuple[str, str, int] | None = None

    def fail_next(self, operation: str, prefix: str, error: int) -> None:
        """The next `write_at` or `sync` on a file opened under `prefix` raises OSError(error)."""
        self._trap = (operation, prefix, error)

    def check(self, operation: str, path: str) -> None:
        if self._trap is not None and operation == self._trap[0] and path.startswith(self._trap[1]):
            error = self._trap[2]
            self._trap = None
            raise OSError(error, f"{operation} of {path} was told to fail")

    def open(self, path: str) -> "TrapFile":
        return TrapFile(self, path, self.inner.open(path))

    def create(self, path: str) -> "TrapFile":
        return TrapFile(self, path, self.inner.create(path))

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return getattr(self.inner, name)  # type: ignore[no-any-return]


class TrapFile:
    def __init__(self, trap: TrapFiles, path: str, inner: File) -> None:
        self._trap = trap
        self._path = path
        self._inner = inner

    def write_at(self, offset: int, parts: "list[Buffer]") -> None:
        self._trap.check("write_at", self._path)
        self._inner.write_at(offset, parts)

    def sync(self) -> None:
        self._trap.check("sync", self._path)
        self._inner.sync()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return getattr(self._inner, name)  # type: ignore[no-any-return]
