"""Open a data directory for this process alone: settings, the lock, what a fork leaves.

The lock is the one that `topics serve` takes, so of servers and programs one has a directory at a time. It is held
until `close` or the end of the process, whatever ends it. A forked child has no database: the thread that ran it is
in the parent, so calls there are refused, and the child lets go of the lock it inherited.
"""

import os
import threading
from pathlib import Path
from typing import Any

from topics import errors
from topics.embedded.database import Database
from topics.embedded.instance import Instance
from topics.embedded.loop import Loop, failed
from topics.errors import TopicsError
from topics.failpoints import parse
from topics.settings import OPTIONS, Settings, SettingsError, load
from topics.supervisor import slotmap, slotswap
from topics.supervisor.colddir import check_cold_dir
from topics.supervisor.datadir import DataDir, DataDirError, open_data_dir, using
from topics.supervisor.rundir import remove_run_dir

GROUPS = ("Storage", "Limits")  # of OPTIONS, those that mean something without a server
LEFT_OUT = ("data_dir", "run_dir")
CAPS = ("max_topics", "max_total_bytes", "max_routers")  # the others count what only a server has
NAMES = frozenset(option.name for option in OPTIONS if option.group in GROUPS and option.name not in LEFT_OUT) | {
    *CAPS,
    "failpoints",
}

_open: dict[Path, DataDir | None] = {}  # None while its lock is waited for
_guard = threading.Lock()


def open_database(path: str | os.PathLike[str], *, shards: int | None = None, **options: Any) -> Database:
    """Open the data directory at `path`, made if absent, and recover what it holds.

    `options` are settings of the server that concern storage and sizes, in lower case: `cold_dir`,
    `max_record_bytes` … (docs/configuration.md). A new directory gets `shards` shards (1); one that is there
    keeps those it has unless told. Raises TopicsError: `not_ready` if somebody else has it open or it cannot be used.
    """
    if not os.fspath(path):
        raise errors.invalid("path must name a directory; it is empty", field="path")
    place = Path(os.path.realpath(path))
    chosen = _settings(place, shards, options)
    data = _take(place)
    try:
        instance = _instance(chosen, data.path, shards)
        loop = Loop(instance)
        loop.start()
    except DataDirError as error:
        _give_back(data)
        raise _unusable(error) from None
    except Exception as error:
        _give_back(data)
        raise failed(error) from error
    except BaseException:
        _give_back(data)
        raise
    return Database(instance, loop, lambda: _give_back(data))


def _settings(place: Path, shards: int | None, options: dict[str, Any]) -> Settings:
    for name in options:
        if name not in NAMES:
            raise TypeError(f"topics.open has no option {name!r}; there are shards, {', '.join(sorted(NAMES))}")
    flags = {name: os.fsdecode(value) if isinstance(value, os.PathLike) else str(value)
             for name, value in {"shards": shards, **options}.items() if value is not None}  # fmt: skip
    try:
        return load({}, {**flags, "data_dir": str(place)}, tty=False, cores=1).settings
    except SettingsError as error:
        raise errors.invalid(str(error)) from None


def _take(place: Path) -> DataDir:
    with _guard:
        if place in _open:
            raise TopicsError(errors.NOT_READY, f"this program has {place} open already", {"pid": os.getpid()})
        _open[place] = None
    try:
        data = _open[place] = open_data_dir(place)
    except BaseException as error:
        del _open[place]
        if isinstance(error, DataDirError):
            raise _unusable(error) from None
        raise
    try:
        data.publish("")
    except BaseException:
        _give_back(data)
        raise
    if data.previous is not None and data.previous.run_dir:
        remove_run_dir(Path(data.previous.run_dir))
    return data


def _give_back(data: DataDir) -> None:
    with _guard:
        if _open.pop(data.path, None) is data:
            data.close()


def _forget_in_child() -> None:
    """The parent goes on holding what it opened."""
    global _guard
    _guard = threading.Lock()  # another thread of the parent may have held it
    for data in _open.values():
        if data is not None:
            os.close(data.lock_fd)
    _open.clear()


os.register_at_fork(after_in_child=_forget_in_child)


def _instance(chosen: Settings, data_dir: Path, shards: int | None) -> Instance:
    with using(data_dir):
        slotswap.finish(data_dir)  # it may change how many shards there are
        known = slotmap.load(data_dir)
        wanted = known.shards if known is not None and shards is None else chosen.shards
        slots, served = slotmap.settle(data_dir, wanted)
    check_cold_dir(chosen.cold_dir, data_dir, served)
    return Instance(chosen, data_dir, slots, served, parse(chosen.failpoints or ""))


def _unusable(error: DataDirError) -> TopicsError:
    return TopicsError(errors.NOT_READY, str(error))
