"""A backup put back as a data directory. It gets its name when it is whole; until then it is `<name>.restoring`."""

import shutil
from collections.abc import Callable
from pathlib import Path

from topics.cli.backups.store import BackupStore, BadBackup, Manifest
from topics.supervisor import slotmap
from topics.supervisor.datadir import FORMAT, sync_dir, write_file

Note = Callable[[int], None]


def restore(store: BackupStore, target: Path, note: Note) -> Manifest:
    """Raises BadBackup, OSError. Nothing that is there is ever replaced."""
    manifest = store.load()
    if manifest is None:
        raise BadBackup(f"there is no complete backup in {store.path}")
    if manifest.format.strip() != f"topics {FORMAT}":
        raise BadBackup(f"the backup is of format {manifest.format.strip()!r}; this program reads topics {FORMAT}")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise BadBackup(f"{target} is there already: move it away, or name another directory")
    made = target.with_name(target.name + ".restoring")
    if made.exists():
        shutil.rmtree(made)  # of a restore that did not come to its end
    made.mkdir(mode=0o700, parents=True)
    for shard in manifest.shards:
        folder = slotmap.shard_dir(made, shard.shard)
        folder.mkdir(mode=0o700)
        for path, copy in shard.files.items():
            store.restore(copy, folder / path)
            note(copy.size)
    write_file(made / slotmap.FILE, manifest.slots.encode())
    write_file(made / "FORMAT", manifest.format.encode())
    for folder in (made, *(path for path in made.rglob("*") if path.is_dir())):
        sync_dir(folder)
    made.rename(target)  # onto nothing, or onto an empty directory
    sync_dir(target.parent)
    return manifest
