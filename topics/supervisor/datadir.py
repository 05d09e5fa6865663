"""The data directory as the supervisor sees it: one server at a time, and a format it can read.

    LOCK     flock'd while a server runs; {"pid": …, "run_dir": …} says which, and where its admin socket is. A program
             that has it open for itself (topics/embedded) holds it, too, without a run directory
    FORMAT   "topics 1": the version of everything below; a newer one is refused
    SLOTS    see slotmap.py
    shard-00 …

The lock's descriptor is inherited by the children, and a flock belongs to all who share it. So when a supervisor is
killed, the directory stays locked until its last child has ended: a new server can never open a log that somebody
still writes to, nor meet its own port in use. It waits a moment for them instead.
"""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from topics.malformed import MALFORMED
from topics.owners import explain

FORMAT = 1
ORPHAN_WAIT_S = 15.0  # children of a killed supervisor end within seconds


class DataDirError(Exception):
    """The data directory cannot be used; the message says why and what to do."""


class NewerFormat(DataDirError):
    """A later version of topics wrote it; nothing is wrong with it."""


class MissingShard(DataDirError):
    """A shard's directory was taken away."""


class Holder(msgspec.Struct, frozen=True):
    """What LOCK says about the server that holds it."""

    pid: int
    run_dir: str  # empty: no server, but a program that has opened the directory for itself


class DataDir:
    """The locked directory. Closing it (or the death of everybody who holds `lock_fd`) gives it back."""

    def __init__(self, path: Path, lock_fd: int, previous: Holder | None) -> None:
        self.path = path
        self.lock_fd = lock_fd
        self.previous = previous  # the server before this one, if it was killed

    def publish(self, run_dir: str) -> None:
        """Tell who runs here."""
        text = msgspec.json.encode(Holder(os.getpid(), run_dir))
        os.ftruncate(self.lock_fd, 0)
        os.pwrite(self.lock_fd, text, 0)

    def close(self) -> None:
        os.ftruncate(self.lock_fd, 0)
        os.close(self.lock_fd)


@contextmanager
def using(path: Path) -> Iterator[None]:
    """What the system refuses inside of it is told in one line, with the file and whose it is: DataDirError."""
    try:
        yield
    except OSError as error:
        raise DataDirError(f"cannot use the data directory {path}: {explain(error, path)}") from None


def open_data_dir(path: Path) -> DataDir:
    with using(path):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(path / "LOCK", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _lock(path, fd)
        with using(path):
            if not has_format(path):
                write_file(path / "FORMAT", f"topics {FORMAT}\n".encode())
    except BaseException:
        os.close(fd)
        raise
    return DataDir(path, fd, _holder(fd))


def running(path: Path) -> Holder | None:
    """Who uses the directory, if anybody. A clean stop empties LOCK; a server that was killed may still be named."""
    try:
        fd = os.open(path / "LOCK", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        return _holder(fd)
    finally:
        os.close(fd)


@contextmanager
def shared_data_dir(path: Path) -> Iterator[None]:
    """Hold an existing directory against servers for as long as somebody only looks at it. Changes nothing.

    A copy may lack LOCK. Then nothing can be held, and a server that came meanwhile is an error at the end.
    """
    if not (path / "FORMAT").exists() and not (path / "SLOTS").exists() and not list(path.glob("shard-*")):
        raise DataDirError(f"{path} is not a data directory of topics")
    try:
        fd = os.open(path / "LOCK", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield
        if (path / "LOCK").exists():
            raise DataDirError(f"a server has come to {path} meanwhile, so nothing can be said about it") from None
        return
    except OSError as error:
        raise DataDirError(f"cannot lock {path / 'LOCK'}: {error.strerror}") from None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        holder = _holder(fd)
        if holder is not None and not holder.run_dir:
            raise DataDirError(f"{_user(holder)} uses {path}: end it first, or look at a copy") from None
        who = f" (pid {holder.pid})" if holder else ""
        raise DataDirError(f"a server{who} runs on {path}: stop it first, or look at a copy") from None
    finally:
        os.close(fd)


def _lock(path: Path, fd: int) -> None:
    deadline = time.monotonic() + ORPHAN_WAIT_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            holder = _holder(fd)
            if (holder is not None and _alive(holder.pid)) or time.monotonic() > deadline:
                raise DataDirError(f"{_user(holder)} uses the data directory {path}") from None
        except OSError as error:
            raise DataDirError(f"cannot lock {path / 'LOCK'}: {error.strerror}") from None
        time.sleep(0.02)  # it was killed and its children are about to end, or it has not yet said who it is


def _holder(fd: int) -> Holder | None:
    with suppress(*MALFORMED):
        return msgspec.json.decode(os.pread(fd, 4096, 0), type=Holder)
    return None


def _user(holder: Holder | None) -> str:
    if holder is None:
        return "another server"
    return f"another server (pid {holder.pid})" if holder.run_dir else f"a program with topics.open (pid {holder.pid})"


def _alive(pid: int) -> bool:
    if pid == os.getpid():  # a container starts every server with the same pid
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def has_format(path: Path) -> bool:
    """Whether FORMAT is there; DataDirError if it does not name a format that can be read."""
    file = path / "FORMAT"
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return False
    word, _, number = text.strip().partition(" ")
    if word != "topics" or not number.isdecimal() or len(number) > 9:
        raise DataDirError(f"{file} does not name a format of topics; is {path} the right data directory?")
    if int(number) > FORMAT:
        raise NewerFormat(f"{path} was written by a newer topics (format {number}; this one reads {FORMAT})")
    return True


def write_file(path: Path, data: bytes) -> None:
    """Replace a small file atomically and durably. A crash leaves the old content or the new, and maybe a .tmp."""
    tmp = path.with_name(path.name + ".tmp")
    with open(tmp, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(tmp, path)
    sync_dir(path.parent)


def sync_dir(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
