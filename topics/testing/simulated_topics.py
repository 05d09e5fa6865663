"""What a history is about: the topics of each kind of history. The kind is a matter of the seed alone."""

import random
from typing import Any

Config = dict[str, Any]
LOGS, QUEUES, GROUPS, RECORDS = "logs", "queues", "groups", "records"
KINDS = (LOGS, QUEUES, GROUPS, LOGS, QUEUES, RECORDS)
DEAD = "dead"  # where dead letters go
SAFE: Config = {"durability": "fsync"}

# What may be lost is told by these, so a topic keeps its class; only one changes it.
LOG_CONFIGS: tuple[tuple[str, Config], ...] = (
    ("safe", SAFE),
    ("safe-too", SAFE),
    ("capped", {"durability": "fsync", "cap_records": 4}),
    ("dying", {"durability": "fsync", "ttl_ms": 30}),
    ("disk", {"durability": "disk"}),
    ("disk-capped", {"durability": "disk", "cap_bytes": 300}),
    ("memory", {"durability": "memory"}),
    ("ephemeral", {"durability": "ephemeral"}),
    ("changing", {"durability": "disk"}),
)
JOBS: Config = {"type": "queue", "durability": "fsync", "lease_ms": 150}
QUEUE_CONFIGS: tuple[tuple[str, Config], ...] = (
    ("jobs", JOBS),
    ("held", JOBS | {"leases_durable": True}),
    ("ranked", JOBS | {"priority_age_ms": 0}),
    ("ranked-held", JOBS | {"priority_age_ms": 0, "leases_durable": True}),
    ("doomed", JOBS | {"max_deliveries": 2, "dead_letter": DEAD}),
    ("doomed-held", JOBS | {"max_deliveries": 2, "dead_letter": DEAD, "leases_durable": True}),
    ("shared", JOBS | {"claim_jitter_ms": 20}),
    ("jobs-disk", JOBS | {"durability": "disk"}),
)
GROUP_CONFIGS: tuple[tuple[str, Config], ...] = (
    ("safe", SAFE),
    ("capped", {"durability": "fsync", "cap_records": 4}),
    ("disk", {"durability": "disk"}),
    ("memory", {"durability": "memory"}),
)
# Records with lifetimes, and records with keys.
RECORD_CONFIGS: tuple[tuple[str, Config], ...] = (
    ("lives", SAFE),
    ("lives-disk", {"durability": "disk"}),
    ("lives-capped", {"durability": "fsync", "cap_records": 5}),
    ("once", SAFE),
    ("once-soon", {"durability": "fsync", "idempotency_window_ms": 150}),
    ("once-disk", {"durability": "disk"}),
)


def has_keys(topic: str) -> bool:
    return topic.startswith("once")


def has_lifetimes(topic: str) -> bool:
    return topic.startswith("lives")


def kind_of(seed: int) -> str:
    return KINDS[seed % len(KINDS)]


def seeds_of(kind: str, count: int) -> list[int]:
    """The first ones whose histories are of this kind."""
    seeds = (seed for seed in range(count * len(KINDS)) if kind_of(seed) == kind)
    return [seed for _, seed in zip(range(count), seeds, strict=False)]


def is_queue(config: Config) -> bool:
    return config.get("type") == "queue"


def pick_topics(kind: str, dice: random.Random) -> dict[str, Config]:
    """Few, so that clients meet."""
    if kind == QUEUES:
        picked = dict(dice.sample(QUEUE_CONFIGS, dice.choice((1, 1, 2))))
        picked |= dict(dice.sample(LOG_CONFIGS, 1)) if dice.random() < 0.2 else {}
        return picked | ({DEAD: SAFE} if any("dead_letter" in config for config in picked.values()) else {})
    if kind == GROUPS:
        return dict(dice.sample(GROUP_CONFIGS, dice.choice((1, 1, 2))))
    if kind == RECORDS:
        return dict(dice.sample(RECORD_CONFIGS, dice.choice((1, 1, 2))))
    picked = dict(dice.sample(LOG_CONFIGS, dice.randint(1, 3)))
    return picked if dice.random() < 0.5 else picked | {"safe": SAFE}
