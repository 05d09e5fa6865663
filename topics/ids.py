"""Names and numbers that every process computes alike."""

import xxhash

SLOTS = 1024


def slot_of(name: str) -> int:
    """The hash slot of a topic name. A slot belongs to one shard, so any process can find a topic by arithmetic."""
    return xxhash.xxh3_64_intdigest(name.encode()) % SLOTS
