"""Putting new shard directories in the place of old ones, all of them or none: the last step of a rebalance.

    rebalance.new/shard-NN   what is to be; complete and synced before REBALANCE is written
    REBALANCE                JSON: which directories are swapped, and the new SLOTS. From now on there is no way back
    rebalance.old/shard-NN   what was, until everything is done

A crash before REBALANCE leaves the old data directory, and `rebalance.new`, which nobody reads; the next start or
rebalance removes it. A crash after it leaves some directories swapped and some not; whoever locks the data directory
next, a server or a rebalance, finishes it before anything else.
"""

import os
import re
import shutil
from pathlib import Path

import msgspec

from topics.malformed import MALFORMED
from topics.supervisor.datadir import DataDirError, sync_dir, write_file

FILE = "REBALANCE"
NEW, OLD = "rebalance.new", "rebalance.old"
VERSION = 1


class Swap(msgspec.Struct, frozen=True):
    version: int
    directories: list[str]  # names below the data directory
    files: dict[str, str]  # small files that are replaced with them: name → text


def begin(data_dir: Path) -> Path:
    """Finish what a crash cut short, remove what one left that came to nothing; where new directories are made."""
    finish(data_dir)
    made = data_dir / NEW
    made.mkdir(mode=0o700)
    return made


def commit(data_dir: Path, directories: list[str], files: dict[str, str]) -> None:
    """Everything in `rebalance.new` is synced. After this the new directories count, whatever happens."""
    sync_dir(data_dir / NEW)
    write_file(data_dir / FILE, msgspec.json.encode(Swap(VERSION, directories, files)))
    finish(data_dir)


def is_pending(data_dir: Path) -> bool:
    return (data_dir / FILE).exists()


def finish(data_dir: Path) -> None:
    """May be repeated after a crash at any point. For whoever holds the directory's lock."""
    swap = _load(data_dir)
    if swap is not None:
        (data_dir / OLD).mkdir(mode=0o700, exist_ok=True)
        for name in swap.directories:
            _swap(data_dir, name)
        for name, text in swap.files.items():
            write_file(data_dir / name, text.encode())
        os.unlink(data_dir / FILE)
        sync_dir(data_dir)
    for left in (OLD, NEW):
        shutil.rmtree(data_dir / left, ignore_errors=True)


def _swap(data_dir: Path, name: str) -> None:
    new, now, old = data_dir / NEW / name, data_dir / name, data_dir / OLD / name
    if not new.exists():  # done before
        return
    if now.exists():
        os.rename(now, old)
        sync_dir(data_dir / OLD)
        sync_dir(data_dir)
    os.rename(new, now)
    sync_dir(data_dir)
    sync_dir(data_dir / NEW)


def _load(data_dir: Path) -> Swap | None:
    try:
        found = msgspec.json.decode((data_dir / FILE).read_bytes(), type=Swap)
    except FileNotFoundError:
        return None
    except MALFORMED as error:
        raise DataDirError(f"{data_dir / FILE} is damaged: {error}") from None
    names = [*found.directories, *found.files]
    if not all(re.fullmatch(r"[\w.-]+", name) and name.strip(".") for name in names):
        raise DataDirError(f"{data_dir / FILE} is damaged: it names what is not in the data directory")
    if found.version != VERSION:
        raise DataDirError(f"{data_dir / FILE} is of version {found.version}; this program knows {VERSION}")
    return found
