"""Who used the processor: this process and all its descendants, by what they are."""

from collections.abc import Mapping
from os import getpid
from pathlib import Path

from loadtest.servers import processor_s

KINDS = {
    "topics.shards": "shards",
    "topics.gateway": "gateways",
    "pyspark.worker": "Spark's Python",
    "pyspark.sql": "Spark's Python",
    "java": "Spark's Java",
}


def seconds_by_pid() -> dict[int, tuple[str, float]]:
    """(kind, processor seconds so far) of every process below this one that is of a kind that counts."""
    below = _descendants(getpid())
    found = {}
    for pid in below:
        try:
            command = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
            kind = next((name for part, name in KINDS.items() if part in command), None)
            if kind is not None:
                found[pid] = kind, processor_s(pid)
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has just ended
    return found


def us_per_record(
    before: Mapping[int, tuple[str, float]], after: Mapping[int, tuple[str, float]], records: int
) -> dict[str, float]:
    used = dict.fromkeys(KINDS.values(), 0.0)
    for pid, (kind, seconds) in after.items():
        used[kind] += seconds - before.get(pid, (kind, 0.0))[1]
    return {kind: seconds / records * 1e6 for kind, seconds in used.items()}


def _descendants(root: int) -> set[int]:
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            parents[int(entry.name)] = int(fields[1])
    below = {root}
    while True:
        more = {pid for pid, parent in parents.items() if parent in below} - below
        if not more:
            return below
        below |= more
