"""The private run directory and the port file.

Unix-socket paths are limited to about 107 bytes, so sockets live in a short directory of their own, only for this
user, made at start and removed at stop. One that a killed server left behind is removed by the next server of its
data directory, which finds its name in LOCK.
"""

import os
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

PREFIX = "topics-"
LONGEST_SOCKET = "/gateway-00.sock"
SOCKET_PATH_MAX = 107


class RunDirError(Exception):
    """No run directory can be made; the message names the setting."""


def make_run_dir(base: str | None, xdg: str | None) -> Path:
    """A new directory below `base`, else below `xdg` (the user's runtime directory) if it serves, else in /tmp."""
    if base is None and xdg and _fits(xdg) and os.access(xdg, os.W_OK | os.X_OK):
        base = xdg
    base = base or "/tmp"
    if not _fits(base):
        raise RunDirError(f"TOPICS_RUN_DIR (--run-dir) {base} is too long: sockets in it would exceed 107 bytes")
    try:
        os.makedirs(base, mode=0o700, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=PREFIX, dir=os.path.abspath(base)))
    except OSError as error:
        raise RunDirError(f"TOPICS_RUN_DIR (--run-dir) {base} cannot be used: {error.strerror}") from None


def remove_run_dir(path: Path) -> None:
    """Only a directory of ours that looks like one we made; a wrong name in LOCK must not delete anything else."""
    with suppress(OSError):
        status = os.lstat(path)
        ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
        if ours and path.is_absolute() and path.name.startswith(PREFIX):
            shutil.rmtree(path, ignore_errors=True)


def write_port_file(path: Path, address: str) -> None:
    """Atomic: a reader sees the whole address or no file."""
    tmp = path.with_name(path.name + ".tmp")
    tmp.write_text(address, encoding="ascii")
    os.replace(tmp, path)


def _fits(base: str) -> bool:
    longest = os.path.join(os.path.abspath(base), PREFIX + "x" * 8 + LONGEST_SOCKET)
    return len(os.fsencode(longest)) <= SOCKET_PATH_MAX
