"""Carrying a plan out on a data directory that no server runs on.

1. Each shard that is divided is copied whole, once for each part (topics/shards/split.py).
2. From each copy goes what belongs to the other parts.
3. Every part is checked as `topics verify` does, and together they must hold what there was.
4. The parts take the place of the old directories (topics/supervisor/slotswap.py).

Up to the last step nothing that counts is touched.
"""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from topics import limits
from topics.cli.rebalancing.plan import Plan, make_plan, new_map
from topics.shards import datafile, wal
from topics.shards.cold import ID_PATH
from topics.shards.findings import CannotCheck, Tally
from topics.shards.readonly_files import ReadOnlyFiles
from topics.shards.split import HasColdSegments, facts_of, keep_only, sizes_of_slots
from topics.shards.verify import check_shard
from topics.shards.walscan import QUARANTINE
from topics.supervisor import slotmap, slotswap
from topics.supervisor.datadir import sync_dir

Note = Callable[[int], None]
NOT_FOR_NEW = (QUARANTINE, ID_PATH)  # they tell about the old shard alone


class CannotRebalance(Exception):
    """Nothing was changed; the message says why."""


class Layout(msgspec.Struct, frozen=True):
    """How a data directory stands: used slots with their owners, and about how much each holds."""

    shards: int
    slots: list[int]
    owners: dict[int, int]
    sizes: dict[int, int]

    def share(self, shard: int, owners: dict[int, int]) -> tuple[int, int]:
        """(slots, bytes) that this shard has by a map."""
        mine = [slot for slot, owner in owners.items() if owner == shard]
        return len(mine), sum(self.sizes.get(slot, 0) for slot in mine)


def look(data_dir: Path) -> Layout:
    """Reads only. Raises CannotRebalance, DataDirError, BadSnapshot, OSError."""
    if slotswap.is_pending(data_dir):
        raise CannotRebalance("a rebalance was cut short when it was all but done; the server's next start finishes it")
    found = slotmap.load(data_dir)
    if found is None:
        raise CannotRebalance(f"{data_dir} has no map of its shards: start the server on it once")
    slotmap.check_directories(data_dir, found)
    owners = slotmap.owners_of_used(found.slots, slotmap.read_used(data_dir))
    sizes: dict[int, int] = {}
    for shard in sorted(set(owners.values())):
        try:
            sizes |= sizes_of_slots(slotmap.shard_dir(data_dir, shard))
        except HasColdSegments:
            raise CannotRebalance(f"shard {shard} has segments in the cold directory, which cannot be moved") from None
        except (datafile.BadFile, FileNotFoundError) as error:
            raise CannotRebalance(f"shard {shard} is damaged ({error}): see `topics verify`") from None
    return Layout(found.shards, found.slots, owners, sizes)


def plan_for(layout: Layout, shards: int) -> Plan:
    return make_plan(layout.owners, layout.sizes, shards)


def work_bytes(data_dir: Path, plan: Plan) -> int:
    """What is copied: the free space that it takes until it is done."""
    return sum(
        os.path.getsize(path) * len(plan.members(source))
        for source in plan.families
        for path in _files_of(slotmap.shard_dir(data_dir, source))
    )


def rebalance(data_dir: Path, layout: Layout, plan: Plan, shards: int, note: Note) -> Tally:
    """For whoever holds the directory's lock. Raises CannotRebalance, DataDirError, BadSnapshot, OSError."""
    need, free = work_bytes(data_dir, plan), shutil.disk_usage(data_dir).free
    if free < need + limits.SPACE_SHORT_BYTES:
        raise CannotRebalance(f"it takes {need + limits.SPACE_SHORT_BYTES} bytes of free space; there are {free}")
    made = slotswap.begin(data_dir)
    now_ms, tally = time.time_ns() // 1_000_000, Tally()
    slots = new_map(plan, layout.slots, shards)
    try:
        for source in plan.families:
            original = slotmap.shard_dir(data_dir, source)
            parts = {shard: slotmap.shard_dir(made, shard) for shard in plan.members(source)}
            _divide(original, parts, slots, now_ms, tally, note)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise
    names = [slotmap.shard_dir(data_dir, shard).name for shard in plan.swapped]
    text = msgspec.json.encode(slotmap.SlotMap(slotmap.VERSION, shards, slots)).decode()
    slotswap.commit(data_dir, names, {slotmap.FILE: text})
    return tally


def _divide(original: Path, parts: dict[int, Path], slots: list[int], now_ms: int, tally: Tally, note: Note) -> None:
    for part in parts.values():
        same = part.name == original.name
        _copy(original, part, () if same else NOT_FOR_NEW, note)
    before = facts_of(next(iter(parts.values())), now_ms)
    for shard, part in parts.items():
        keep_only(part, {slot for slot, owner in enumerate(slots) if owner == shard}, now_ms)
        _check(shard, part, tally)
    after = [facts_of(part, now_ms) for part in parts.values()]
    together = {name: facts for one in after for name, facts in one.items()}
    if sum(map(len, after)) != len(before) or together != before:
        raise CannotRebalance(f"the parts of {original.name} do not hold what it held; nothing was changed")
    for part in parts.values():
        _sync_all(part)


def _check(shard: int, part: Path, tally: Tally) -> None:
    try:
        for finding in check_shard(ReadOnlyFiles(str(part)), tally, lambda size: None):
            if finding.damage:
                raise CannotRebalance(
                    f"shard {shard}: {finding.file}: {finding.what}. Nothing was changed; see `topics verify`"
                )
    except CannotCheck as error:
        raise CannotRebalance(f"shard {shard}: {error}") from None


def _files_of(directory: Path) -> Iterator[Path]:
    for path in sorted(directory.rglob("*")):
        spare = path.parent.name == wal.DIRECTORY and path.name.startswith("spare-")
        if path.is_file() and not spare and path.suffix != ".tmp":
            yield path


def _copy(source: Path, target: Path, without: tuple[str, ...], note: Note) -> None:
    target.mkdir(mode=0o700)
    for path in _files_of(source):
        relative = path.relative_to(source)
        if relative.parts[0] not in without:
            (target / relative).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            shutil.copyfile(path, target / relative)
            note(path.stat().st_size)


def _sync_all(directory: Path) -> None:
    for folder, _, names in os.walk(directory):
        for name in names:
            fd = os.open(os.path.join(folder, name), os.O_RDONLY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        sync_dir(Path(folder))
