"""The parts of a data directory that no shard owns: FORMAT, SLOTS, and which shard directories there are."""

from collections.abc import Iterator
from pathlib import Path

from topics.shards.findings import CORRUPT, MISSING, TORN, Finding, Tally
from topics.supervisor import slotmap, slotswap
from topics.supervisor.datadir import FORMAT, DataDirError, MissingShard, NewerFormat, has_format

REFUSED = "The server does not start. Restore the data directory as it was."


def shard_dirs(path: Path) -> list[Path]:
    return sorted(found for found in path.glob("shard-*") if found.is_dir() and found.name[6:].isdecimal())


def check_data_dir(path: Path, tally: Tally) -> Iterator[Finding]:
    """Raises NewerFormat if nothing can be said about it."""
    if slotswap.is_pending(path):
        what = "a rebalance was cut short when it was all but done"
        yield Finding(TORN, slotswap.FILE, None, None, what, "Nothing: the next start finishes it.")
        return
    started = any((shard / "wal").is_dir() for shard in shard_dirs(path))
    yield from _check_format(path, tally)
    try:
        found = slotmap.load(path)
        if found is not None:
            tally.files += 1
            slotmap.check_directories(path, found)
        elif started:
            what = "the map of hash slots is not there"
            yield Finding(
                MISSING, slotmap.FILE, None, None, what, "The next start makes it anew from the shards' marks."
            )
        used = slotmap.read_used(path)
        slotmap.owners_of_used(found.slots if found else None, used)
    except DataDirError as error:
        kind = MISSING if isinstance(error, MissingShard) else CORRUPT
        yield Finding(kind, slotmap.FILE, None, None, str(error), REFUSED)
        return
    if found is not None:
        yield from _check_marks(found.slots, used)


def _check_format(path: Path, tally: Tally) -> Iterator[Finding]:
    try:
        if has_format(path):
            tally.files += 1
        else:
            what = "the version of the directory is not there"
            yield Finding(MISSING, "FORMAT", None, None, what, f"The next start writes it: topics {FORMAT}.")
    except NewerFormat:
        raise
    except DataDirError as error:
        yield Finding(CORRUPT, "FORMAT", 0, None, str(error), f"Write it anew: the word topics, a space, {FORMAT}.")


def _check_marks(slots: list[int], used: dict[int, set[int]]) -> Iterator[Finding]:
    """The map is dealt by the marks, and a shard marks only what the map gives it."""
    for shard, marked in sorted(used.items()):
        wrong = sorted(slot for slot in marked if slots[slot] != shard)
        if wrong:
            file = f"{slotmap.shard_dir(Path(), shard).name}/{slotmap.USED_FILE}"
            names = ", ".join(map(str, wrong[:8])) + (" …" if len(wrong) > 8 else "")
            what = f"it marks slots that the map gives to another shard: {names}"
            todo = (
                "Before the next start, find out which of the two was changed; it would move the slots to this shard."
            )
            yield Finding(CORRUPT, file, wrong[0] // 8, None, what, todo)
