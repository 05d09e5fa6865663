"""The file-system port without its writing half, for whoever only looks: by construction, not a byte is changed."""

import errno
import os
from typing import Any, NoReturn, cast

from topics.shards.files import RealFile, RealFiles


class ReadOnlyFiles(RealFiles):
    """An existing directory tree. Everything that would change it raises OSError (EROFS)."""

    def __init__(self, root: str) -> None:
        self._root = root  # and nothing is made

    def open(self, path: str) -> RealFile:
        return RealFile(os.open(self._path(path), os.O_RDONLY | os.O_CLOEXEC))

    def size(self, path: str) -> int:
        return os.stat(self._path(path)).st_size

    def _refuse(self, *_: object) -> NoReturn:
        raise OSError(errno.EROFS, "this directory is only looked at")

    create = make_dir = rename = unlink = remove_dir = sync_dir = map_register = cast(Any, _refuse)
