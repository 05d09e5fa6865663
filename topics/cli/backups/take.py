"""A backup of a running server.

1. Data files are copied while everything goes on; they change little.
2. Every shard makes a checkpoint and holds its files still.
3. What goes from shard to shard pauses, every shard notes its cut, and it goes on. So no cut has what another shard has
   not sent yet, and none lacks what another one knows to be there.
4. What is still missing is copied, shard by shard, and the shard is let go.
5. All of it is checked; then the manifest is written. Cold segments are part of it all.

A shard or this program that ends on the way leaves the server as it was and no new backup.
"""

import os
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import trio

from topics import limits
from topics.cli.backups.shardfiles import Folder, ShardFiles
from topics.cli.backups.store import VERSION, WITH_COLD, BackupStore, BadBackup, CopiedFiles, Manifest, ShardCopy
from topics.errors import NOT_READY, TopicsError
from topics.rpc import Connection, RpcError, connect_unix
from topics.shards.findings import CannotCheck, Tally
from topics.shards.snapshot import BadSnapshot
from topics.shards.verify import check_shard
from topics.supervisor import slotmap

HOLD_MS = limits.BACKUP_HOLD_MS + limits.CALL_DEADLINE_MS
Note = Callable[[int], None]
Cuts = dict[int, tuple[int, int]]  # shard → lsn, time


class Backup:
    """One backup, from what is known before it begins."""

    def __init__(self, data_dir: Path, run_dir: Path, cold_dir: Path | None, store: BackupStore, note: Note) -> None:
        """Raises BadBackup."""
        before = store.load()
        store.begin()
        slots = slotmap.load(data_dir)
        if slots is None:
            raise BadBackup(f"{data_dir} has no map of its shards")
        known = {shard.shard: shard for shard in before.shards} if before is not None else {}
        self._data_dir, self._run_dir, self._store, self._note = data_dir, run_dir, store, note
        self._files: dict[int, ShardFiles] = {}
        for shard in sorted(set(range(slots.shards)) | set(slots.slots)):
            old = known.get(shard) or ShardCopy(shard, 0, 0, {})
            place = slotmap.shard_dir(data_dir, shard)
            hot = Folder(store, place, place.name, old.files, note)
            cold = Folder(store, cold_dir / place.name, f"cold/{place.name}", old.cold, note) if cold_dir else None
            self._files[shard] = ShardFiles(hot, cold)

    def work_bytes(self) -> int:
        """About how many bytes `note` will be told of."""
        return sum(one.work_bytes() for one in self._files.values())

    def take(self) -> tuple[Manifest, Tally]:
        """Raises BadBackup, TopicsError (RpcError), OSError."""
        for one in self._files.values():
            one.copy_ahead()
        place = self._data_dir
        manifest = Manifest(
            VERSION, int(time.time() * 1000), (place / "FORMAT").read_text(), (place / slotmap.FILE).read_text(), []
        )
        result = trio.run(_copy_together, self._run_dir, self._files)
        if isinstance(result, Exception):
            raise result
        manifest.shards = result
        if any(shard.cold for shard in manifest.shards):
            manifest.version = WITH_COLD
        tally = check(self._store, manifest, self._note)
        self._store.commit(manifest)
        return manifest, tally


def check(store: BackupStore, manifest: Manifest, note: Note) -> Tally:
    """Everything that counts in a backup. Raises BadBackup."""
    tally = Tally()
    for shard in manifest.shards:
        try:
            files, cold = CopiedFiles(store, shard.files), CopiedFiles(store, shard.cold)
            for finding in check_shard(files, tally, note, cold if shard.cold else None):
                if finding.damage:
                    raise BadBackup(f"shard {shard.shard}: {finding.file}: {finding.what} (`topics verify` tells more)")
        except CannotCheck as error:
            raise BadBackup(f"shard {shard.shard}: {error}") from None
    return tally


async def _copy_together(run_dir: Path, files: dict[int, ShardFiles]) -> list[ShardCopy] | Exception:
    """What went wrong is given back rather than raised, so that no group wraps it."""
    async with trio.open_nursery() as nursery:
        try:
            connections = {
                shard: await connect_unix(os.path.join(run_dir, f"shard-{shard}.sock"), nursery) for shard in files
            }
            result: list[ShardCopy] | Exception = await _try(connections, files)
        except BadSnapshot as error:
            result = BadBackup(str(error))
        except (BadBackup, TopicsError, OSError) as error:
            result = error
        nursery.cancel_scope.cancel()
    return result


async def _try(connections: dict[int, Connection], files: dict[int, ShardFiles]) -> list[ShardCopy]:
    """Again if the shards could not agree on a moment; not after something else failed."""
    for _ in range(limits.BACKUP_TRIES - 1):
        try:
            return await _attempt(connections, files)
        except RpcError:
            raise
        except TopicsError as error:
            if error.code != NOT_READY:
                raise
        await trio.sleep(limits.BACKUP_PAUSE_MS / 1000)
    return await _attempt(connections, files)


async def _attempt(connections: dict[int, Connection], files: dict[int, ShardFiles]) -> list[ShardCopy]:
    made = []
    async with AsyncExitStack() as held:
        holds = {}
        for shard, connection in connections.items():
            stream = await held.enter_async_context(connection.stream("backup.hold", {}, deadline_ms=HOLD_MS))
            await stream.__anext__()
            holds[shard] = stream
        cuts = await _cut(connections)
        for shard, (lsn, now_ms) in cuts.items():
            copies, cold = await trio.to_thread.run_sync(files[shard].copy_held, lsn)
            await connections[shard].call("backup.held", {}, deadline_ms=limits.CALL_DEADLINE_MS)
            made.append(ShardCopy(shard, lsn, now_ms, copies, cold))
            holds[shard].abandon()
    return made


async def _cut(connections: dict[int, Connection]) -> Cuts:
    """The cuts of all shards, at a moment when nothing is under way from one to another."""
    cuts: Cuts = {}

    async def ask(shard: int, method: str) -> None:
        reply = await connections[shard].call(method, {}, deadline_ms=limits.CALL_DEADLINE_MS)
        if method == "backup.cut":
            cuts[shard] = (reply.head["lsn"], reply.head["now_ms"])
        if method == "backup.resume" and not reply.head["paused"]:
            raise TopicsError(NOT_READY, "the shards could not be paused for long enough")

    for method in ("backup.pause", "backup.cut", "backup.resume"):
        await _each(connections, ask, method)
    return dict(sorted(cuts.items()))


async def _each(connections: dict[int, Connection], ask: Callable[..., object], method: str) -> None:
    failed: list[TopicsError] = []

    async def one(shard: int) -> None:
        try:
            await ask(shard, method)  # type: ignore[misc]
        except TopicsError as error:
            failed.append(error)

    async with trio.open_nursery() as nursery:
        for shard in connections:
            nursery.start_soon(one, shard)
    if failed:
        raise failed[0]
