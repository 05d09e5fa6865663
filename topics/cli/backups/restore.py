"""A backup put back as a data directory, and a cold one if there was any.

They get their names when they are whole; until then they are `<name>.restoring`. A crash between the two renames leaves
the cold directory in place and no data directory: the next restore says so.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

from topics.cli.backups.store import BackupStore, BadBackup, Copy, Manifest
from topics.supervisor import slotmap
from topics.supervisor.datadir import FORMAT, sync_dir, write_file

Note = Callable[[int], None]


def restore(store: BackupStore, target: Path, cold_target: Path | None, expect: Note, note: Note) -> Manifest:
    """Raises BadBackup, OSError. Nothing that is there is ever replaced. `expect` is told how much `note` will be."""
    manifest = store.load()
    if manifest is None:
        raise BadBackup(f"there is no complete backup in {store.path}")
    if manifest.format.strip() != f"topics {FORMAT}":
        raise BadBackup(f"the backup is of format {manifest.format.strip()!r}; this program reads topics {FORMAT}")
    has_cold = any(shard.cold for shard in manifest.shards)
    if has_cold and cold_target is None:
        raise BadBackup("there are segments of a cold directory in the backup: say where they go, by --cold-dir")
    places = [target, *([cold_target] if has_cold and cold_target is not None else [])]
    for place in places:
        if place.exists() and (not place.is_dir() or any(place.iterdir())):
            raise BadBackup(f"{place} is there already: move it away, or name another directory")
    expect(sum(copy.size for copy in manifest.copies()))
    made = [_fresh(place) for place in places]
    for shard in manifest.shards:
        _put_back(store, shard.files, slotmap.shard_dir(made[0], shard.shard), note)
        if shard.cold:
            _put_back(store, shard.cold, slotmap.shard_dir(made[1], shard.shard), note)
    write_file(made[0] / slotmap.FILE, manifest.slots.encode())
    write_file(made[0] / "FORMAT", manifest.format.encode())
    for folder in (below for one in made for below in (one, *one.rglob("*")) if below.is_dir()):
        sync_dir(folder)
    for one, place in reversed(list(zip(made, places, strict=True))):  # the data directory last: it needs the other one
        one.rename(place)  # onto nothing, or onto an empty directory
        sync_dir(place.parent)
    return manifest


def _fresh(place: Path) -> Path:
    made = place.with_name(place.name + ".restoring")
    if made.exists():
        shutil.rmtree(made)  # of a restore that did not come to its end
    made.mkdir(mode=0o700, parents=True)
    return made


def _put_back(store: BackupStore, files: dict[str, Copy], folder: Path, note: Note) -> None:
    folder.mkdir(mode=0o700)
    for path, copy in files.items():
        store.restore(copy, folder / path)
        note(copy.size)
