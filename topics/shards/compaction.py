"""Manual compaction: let go now what would go by itself, and say what that freed.

Space comes back whole files at a time, when a checkpoint finds files without a live record, and log files that it has
stored. That happens within CHECKPOINT_INTERVAL_MS of a change; this is for those who want it at once, or want to know.
Nothing is rewritten: a file with a live record in it stays. A crash on the way leaves what one in a checkpoint leaves.
"""

from collections.abc import Awaitable, Callable, Iterator

from topics import errors
from topics.aside import run_aside
from topics.errors import TopicsError
from topics.shards.expiry import expire_all
from topics.shards.files import Files
from topics.shards.slices import in_slices
from topics.shards.store import Store
from topics.shards.wal import DIRECTORY as LOG

ROUNDS = 3  # a pack can go one checkpoint after its last topic has let go of it
Sizes = dict[str, int]


async def compact(
    store: Store, leave_log_file: Callable[[], Awaitable[None]], checkpoint: Callable[[], Awaitable[bool]]
) -> dict[str, int]:
    """What it freed. Raises `not_ready` if the disk did not let it."""
    before = await _all_sizes(store)
    await in_slices(expire_all(store.engine))
    await in_slices(store.engine.graves.bury())
    await leave_log_file()
    for turn in range(ROUNDS):
        if turn and not store.has_unused_files():
            break
        if not await checkpoint():
            raise TopicsError(errors.NOT_READY, "the checkpoint was put off, see the log; what was there still is")
    return freed(before, await _all_sizes(store))


async def _all_sizes(store: Store) -> Sizes:
    """Of files in either tier. One that moves to the cold tier meanwhile keeps its path, so it has not gone."""
    hot = await run_aside(sizes, store.files)
    return hot | {info.path: info.size for info in store.data_files.values() if info.cold}


def freed(before: Sizes, after: Sizes) -> dict[str, int]:
    """Files that came meanwhile do not count against those that went. A log file that is the spare now has not gone."""
    gone = {path: size for path, size in before.items() if path not in after and _spare_of(path) not in after}
    return {
        "segments_removed": sum(path.endswith(".data") for path in gone),
        "log_files_removed": sum(path.startswith(f"{LOG}/") for path in gone),
        "bytes_freed": sum(gone.values()),
        "bytes_used": sum(after.values()),
    }


def _spare_of(path: str) -> str:
    """What a log file is called when it waits to be used again (`wal.retire`)."""
    number = path.removeprefix(f"{LOG}/").removesuffix(".wal")
    return f"{LOG}/spare-{int(number)}" if number.isdecimal() else ""


def sizes(files: Files) -> Sizes:
    """Of the log and the data files. In a thread: it opens each."""
    found: Sizes = {}
    for path in _paths(files):
        try:
            file = files.open(path)
        except FileNotFoundError:  # it has just gone
            continue
        try:
            found[path] = file.size()
        finally:
            file.close()
    return found


def _paths(files: Files) -> Iterator[str]:
    folders = [LOG, "packs", *(f"segments/{name}" for name in files.list("segments"))]
    for folder in folders:
        for name in files.list(folder):
            if not name.endswith(".tmp"):  # somebody is about to give it its name
                yield f"{folder}/{name}"
