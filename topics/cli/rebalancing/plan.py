"""Which hash slots go to which shard. Pure: sizes in, a plan out.

A shard that holds topics is divided among itself and shards that have never held any; two shards are never joined. So
a new shard gets its slots from one old one: the one that has the most for each of those who share it already.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec


class Plan(msgspec.Struct, frozen=True):
    owners: dict[int, int]  # every used slot → its shard from now on
    families: dict[int, list[int]]  # shard that is divided → the new shards that take a part of it

    def members(self, source: int) -> list[int]:
        return [source, *self.families[source]]

    @property
    def swapped(self) -> list[int]:
        return sorted({shard for source in self.families for shard in self.members(source)})


def make_plan(owners: Mapping[int, int], sizes: Mapping[int, int], shards: int) -> Plan:
    """`owners` are the used slots; `sizes` what is known of how much they hold. Numbers of shards begin at 0."""
    held: dict[int, list[int]] = {}
    for slot, shard in sorted(owners.items()):
        held.setdefault(shard, []).append(slot)
    families: dict[int, list[int]] = {}
    for fresh in (shard for shard in range(shards) if shard not in held):
        divisible = [shard for shard, slots in held.items() if len(slots) > 1 + len(families.get(shard, ()))]
        if not divisible:
            break
        share = {s: sum(_size(slot, sizes) for slot in held[s]) / (1 + len(families.get(s, ()))) for s in divisible}
        families.setdefault(max(sorted(share), key=lambda shard: share[shard]), []).append(fresh)
    after = dict(owners)
    for source, others in families.items():
        after |= _divide(held[source], [source, *others], sizes)
    return Plan(after, families)


def new_map(plan: Plan, old: Sequence[int], shards: int) -> list[int]:
    """Every slot → its shard. Unused ones stay in the family of their shard, for the sake of watch sessions in them.

    Shards that hold nothing and got nothing take theirs from those who have the most.
    """
    slots, counts = list(old), Counter(plan.owners.values())
    for slot, owner in enumerate(old):
        if slot in plan.owners:
            slots[slot] = plan.owners[slot]
            continue
        family = plan.members(owner) if owner in plan.families else [owner]
        choices = [shard for shard in family if shard < shards] or range(shards)
        slots[slot] = min(choices, key=lambda shard: counts[shard])
        counts[slots[slot]] += 1
    idle = [shard for shard in range(shards) if not counts[shard]]
    for slot in range(len(slots)):
        poorest = min(idle, key=lambda shard: counts[shard], default=None)
        if poorest is None or counts[poorest] >= len(slots) // shards:
            break
        if slot not in plan.owners and counts[slots[slot]] > len(slots) // shards:
            counts[slots[slot]] -= 1
            counts[poorest] += 1
            slots[slot] = poorest
    return slots


def _divide(slots: list[int], shards: list[int], sizes: Mapping[int, int]) -> dict[int, int]:
    """The largest first, each to the shard that has the least so far; of equals the one with the fewest slots."""
    loads = dict.fromkeys(shards, (0, 0))
    owners = {}
    for slot in sorted(slots, key=lambda slot: (-_size(slot, sizes), slot)):
        shard = min(shards, key=lambda shard: loads[shard])
        owners[slot] = shard
        size, count = loads[shard]
        loads[shard] = (size + _size(slot, sizes), count + 1)
    return owners


def _size(slot: int, sizes: Mapping[int, int]) -> int:
    return sizes.get(slot, 1)  # used, but nothing is stored: its topics are gone, or only in the log yet
