"""The file-system port below the cold directory.

It differs from that of the data directory in one thing: nothing is made by the way. A cold directory that is not
mounted looks like an empty one, and files that were put there would be hidden as soon as it is mounted again. So its
root is made by `make_root` alone, and only when it is used for the first time (see cold.py).
"""

import os
from contextlib import suppress
from typing import Protocol

from topics.shards.files import Files, RealFile, RealFiles, make_durable_dir


class ColdFiles(Files, Protocol):
    def make_root(self) -> None:
        """Make the root, durably; no error if it is there."""
        ...

    def remove_root(self) -> None:
        """Remove the root if it is empty; no error if it is not, or is not there."""
        ...


class RealColdFiles(RealFiles):
    """What is there is opened for reading only: a cold file never changes."""

    def __init__(self, root: str) -> None:
        self._root = root  # and nothing is made

    def make_root(self) -> None:
        make_durable_dir(os.path.abspath(self._root))

    def remove_root(self) -> None:
        with suppress(OSError):
            os.rmdir(self._root)

    def open(self, path: str) -> RealFile:
        return RealFile(os.open(self._path(path), os.O_RDONLY | os.O_CLOEXEC))

    def make_dir(self, path: str) -> None:
        """FileNotFoundError if the root is not there."""
        at = self._root
        for name in path.split("/"):
            at = os.path.join(at, name)
            if not os.path.isdir(at):
                os.mkdir(at, mode=0o700)
