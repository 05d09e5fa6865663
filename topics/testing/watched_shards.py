"""Puts every shard that runs inside a test under the ordering monitor (disk_monitor.py), whoever makes it.

Called before anything imports `recover` or makes a `Shard`. A disk that is monitored already, or is one of the
simulation's, is left to whoever made it: they know what to expect of it. A shard is watched until a call to its disk
fails; how it gets over that is what the crash sweep and the simulation look into. Cold directories are not watched.
Shards in processes of their own are if `watched_process.py` runs them; those of a whole server are not.
"""

from typing import Any

from topics.shards import recovery, shard, wal
from topics.shards.files import Files
from topics.shards.store import Store
from topics.testing.disk_monitor import MonitoredFiles
from topics.testing.simulated_world import SimulatedDisk

VIOLATIONS: list[str] = []  # by any of them


def watch_shards() -> None:
    recover, make = recovery.recover, shard.Shard.__init__

    def watched_recover(files: Files, *args: Any, **options: Any) -> Store:
        watched = _watched(files)
        store = recover(watched, *args, **options)
        if isinstance(watched, MonitoredFiles) and watched.violations is VIOLATIONS:
            _watch_acks(store, watched)
        return store

    def watched_shard(self: shard.Shard, files: Files, *args: Any, **options: Any) -> None:
        make(self, _watched(files), *args, **options)

    recovery.recover = shard.recover = watched_recover  # type: ignore[attr-defined]
    shard.Shard.__init__ = watched_shard  # type: ignore[method-assign]


def _watched(files: Files) -> Files:
    if isinstance(files, MonitoredFiles | SimulatedDisk):
        return files
    return MonitoredFiles(files, until_failure=True, violations=VIOLATIONS)


def _watch_acks(store: Store, monitor: MonitoredFiles) -> None:
    """The engine lets answers go when it hears that the log is durable: by then it has to be."""
    write_group, durable = store.write_group, store.engine.durable
    written: list[int] = []  # last frames of groups that nobody has called durable yet; ascending

    def watched_write_group(frames: Any) -> None:
        write_group(frames)
        monitor.note_write(frames[-1].lsn, wal.file_path(store.writer.number), store.writer.end_offset)
        written.append(frames[-1].lsn)

    def watched_durable(lsn: int, *has_time: Any) -> bool:
        while written and written[0] <= lsn:
            monitor.check_acked(written.pop(0))
        return durable(lsn, *has_time)

    store.write_group = watched_write_group  # type: ignore[method-assign]
    store.engine.durable = watched_durable  # type: ignore[method-assign, assignment]
