"""Whose files they are: messages about files that this process may not use.

A data directory belongs to one user. A command that another one ran in it (root, above all) leaves files that the
server cannot open, and "Permission denied" alone tells neither which file nor who made it.
"""

import os
import pwd
import shlex
from contextlib import suppress
from pathlib import Path


def user_name(uid: int) -> str:
    """As the machine calls it; the number of one it does not know, as in a container."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def is_denied(error: OSError, directory: Path) -> bool:
    """Whether it is for want of rights to something in the directory. No repetition mends that."""
    file = _file(error)
    return isinstance(error, PermissionError) and file is not None and file.is_relative_to(directory.absolute())


def explain(error: OSError, directory: Path) -> str:
    """Which file it was and what happened; for want of rights also whose it is, and what to do."""
    file = _file(error)
    if file is None:
        return error.strerror or str(error)
    what = f"{file}: {error.strerror}"
    return f"{what}; {_whose(file, directory.absolute())}" if isinstance(error, PermissionError) else what


def _file(error: OSError) -> Path | None:
    named = error.filename
    return Path(os.path.abspath(named)) if isinstance(named, str | os.PathLike) else None


def _whose(file: Path, directory: Path) -> str:
    place, owner, mode = _in_the_way(file, directory)
    me = user_name(os.geteuid())
    name = "it" if place == file else str(place)
    said = f"{name} belongs to {user_name(owner)} (mode {mode:04o}), and this process runs as {me}"
    if owner == os.geteuid() or not place.is_relative_to(directory):
        return said
    whole = directory.stat().st_uid
    other = "" if whole == os.geteuid() else f"run it as {user_name(whole)}, or "
    to = me if me.isdecimal() else f"{me}:"  # chown knows no group of a user that it does not know
    return f"{said}: {other}give all of the directory to {me} ({shlex.join(['chown', '-R', to, str(directory)])})"


def _in_the_way(file: Path, directory: Path) -> tuple[Path, int, int]:
    """Of the file and what is above it, up to the directory or what it would be in: the first that is another's, else
    the first that can be seen. With its owner and mode."""
    seen: list[tuple[Path, int, int]] = []
    for place in (file, *file.parents):
        with suppress(OSError):  # not there, or below what we may not enter
            found = place.stat()
            seen.append((place, found.st_uid, found.st_mode & 0o7777))
        if seen and directory not in place.parents:
            break
    return next((one for one in seen if one[1] != os.geteuid()), seen[0])
