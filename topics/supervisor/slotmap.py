"""The slot map: which shard owns which of the 1,024 hash slots.

`SLOTS` in the data directory is JSON, `{"version": 1, "shards": N, "slots": [1024 shard numbers]}`. Only the supervisor
writes it, at start, before any shard runs; so a map is never changed under a running process. A shard marks a slot in
its own `slots.used` bitmap, durably, before the first topic in it. What is marked stays where it is; the rest is
dealt anew when the number of shards changes. To move what is marked takes a rebalance (slotswap.py).

A crash while the map is written leaves the old one. The shard directories are made durable first, so a shard that
the map names and that has no directory means that data was taken away, and the server says so instead of starting.
"""

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from topics.ids import SLOTS as COUNT
from topics.malformed import MALFORMED
from topics.supervisor import slotswap
from topics.supervisor.datadir import DataDirError, MissingShard, sync_dir, write_file

FILE = "SLOTS"
USED_FILE = "slots.used"
VERSION = 1


class SlotMap(msgspec.Struct, frozen=True):
    version: int
    shards: int  # the number of shards the slots were last dealt to
    slots: list[int]


def shard_dir(data_dir: Path, shard: int) -> Path:
    return data_dir / f"shard-{shard:02d}"


def settle(data_dir: Path, shards: int) -> tuple[list[int], list[int]]:
    """Bring the map on disk up to date. Returns slot → shard, and the shards that have to be served.

    First a rebalance that a crash cut short is finished.
    """
    slotswap.finish(data_dir)
    old = load(data_dir)
    check_directories(data_dir, old)
    owners = owners_of_used(old.slots if old else None, read_used(data_dir))
    if old and old.shards == shards and all(old.slots[slot] == shard for slot, shard in owners.items()):
        slots = old.slots
    else:
        slots = deal(owners, shards)
    served = sorted(set(range(shards)) | set(slots))
    for shard in served:
        shard_dir(data_dir, shard).mkdir(mode=0o700, exist_ok=True)
    sync_dir(data_dir)
    if old is None or slots is not old.slots:
        write_file(data_dir / FILE, msgspec.json.encode(SlotMap(VERSION, shards, slots)))
    return slots, served


def deal(owners: Mapping[int, int], shards: int) -> list[int]:
    """Used slots stay with their owners; each other slot goes to the shard that has the fewest so far."""
    load = [0] * shards
    for shard in owners.values():
        if shard < shards:
            load[shard] += 1
    slots = []
    for slot in range(COUNT):
        owner = owners.get(slot)
        if owner is None:
            owner = load.index(min(load))
            load[owner] += 1
        slots.append(owner)
    return slots


def owners_of_used(old: list[int] | None, used: Mapping[int, set[int]]) -> dict[int, int]:
    """Slot → the shard that holds its topics."""
    owners: dict[int, int] = {}
    for shard, slots in sorted(used.items()):
        for slot in slots:
            other = owners.setdefault(slot, shard)
            if other != shard:
                raise DataDirError(
                    f"slot {slot} is used by shard {other} and by shard {shard}; the slot map "
                    f"{f'names shard {old[slot]}' if old else 'is missing'}. Restore the data directory as it was."
                )
    return owners


def load(data_dir: Path) -> SlotMap | None:
    try:
        text = (data_dir / FILE).read_bytes()
    except FileNotFoundError:
        return None
    try:
        found = msgspec.json.decode(text, type=SlotMap)
    except MALFORMED as error:
        raise DataDirError(f"{data_dir / FILE} is damaged: {error}") from None
    numbers = (found.shards - 1, *found.slots)
    if found.version != VERSION or len(found.slots) != COUNT or not all(0 <= shard < COUNT for shard in numbers):
        raise DataDirError(f"{data_dir / FILE} is damaged: not a map of {COUNT} slots, version {VERSION}")
    return found


def read_used(data_dir: Path) -> dict[int, set[int]]:
    """Shard → the slots it has marked, over every shard directory there is."""
    used = {}
    for entry in os.scandir(data_dir):
        number = entry.name.removeprefix("shard-")
        if entry.name.startswith("shard-") and number.isascii() and number.isdigit():
            used[int(number)] = _read_bitmap(Path(entry.path) / USED_FILE)
    return used


def _read_bitmap(path: Path) -> set[int]:
    try:
        bits = path.read_bytes()
    except FileNotFoundError:
        return set()
    return {slot for slot in range(min(COUNT, len(bits) * 8)) if bits[slot // 8] >> slot % 8 & 1}


def check_directories(data_dir: Path, old: SlotMap | None) -> None:
    named = set(range(old.shards)) | set(old.slots) if old else set()
    missing = [shard_dir(data_dir, shard).name for shard in sorted(named) if not shard_dir(data_dir, shard).is_dir()]
    if missing:
        raise MissingShard(f"{data_dir} lacks {', '.join(missing)}, which its slot map names: restore the data")
