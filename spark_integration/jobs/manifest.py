"""What an archive holds: one small file for every range of seqs that is complete.

    ARCHIVE/data/topic=orders/range=…1-…90000/date=2026-11-16/part-….parquet
    ARCHIVE/_manifest/orders/…1-…90000.json

Only what the manifest names counts. A crash leaves data that it does not name, which the next run removes.
"""

from dataclasses import asdict, dataclass, field
from typing import Any
from urllib.parse import quote, unquote

from spark_integration.jobs.storage import Storage


@dataclass(frozen=True)
class Lost:
    """Seqs that were gone from the topic before they could be archived."""

    first: int
    last: int
    reason: str


@dataclass(frozen=True)
class Entry:
    """Every record of `topic` from `first` to `last` that existed when it was archived."""

    topic: str
    first: int
    last: int
    records: int
    first_ts: int | None
    last_ts: int | None
    lost: list[Lost] = field(default_factory=list)
    created: int | None = None  # when the topic was made; archives of before do not say

    @property
    def range(self) -> str:
        return f"{self.first:020}-{self.last:020}"


class Archive:
    def __init__(self, storage: Storage, root: str) -> None:
        self._storage = storage
        self.root = root.rstrip("/")

    def topics(self) -> list[str]:
        return [unquote(name) for name in self._storage.names(f"{self.root}/_manifest")]

    def entries(self, topic: str) -> list[Entry]:
        """In the order of their seqs."""
        folder = f"{self.root}/_manifest/{quote(topic, safe='')}"
        names = [name for name in self._storage.names(folder) if not name.startswith(".")]
        return [_entry(self._storage.read_json(f"{folder}/{name}")) for name in names]

    def folder(self, entry: Entry) -> str:
        return f"{self._topic_folder(entry.topic)}/range={entry.range}"

    def add(self, entry: Entry) -> None:
        file = f"{self.root}/_manifest/{quote(entry.topic, safe='')}/{entry.range}.json"
        self._storage.write_json(file, asdict(entry))

    def remove_strays(self, topic: str) -> None:
        """Data of runs that did not finish."""
        named = {f"range={entry.range}" for entry in self.entries(topic)}
        for name in self._storage.names(self._topic_folder(topic)):
            if name.startswith("range=") and name not in named:
                self._storage.remove(f"{self._topic_folder(topic)}/{name}")

    def _topic_folder(self, topic: str) -> str:
        # Quoted as Spark quotes the values of partition folders: Hadoop takes no ':' in a path.
        return f"{self.root}/data/topic={quote(topic, safe='')}"


def _entry(fields: dict[str, Any]) -> Entry:
    return Entry(**{**fields, "lost": [Lost(**lost) for lost in fields["lost"]]})


def joined(lost: list[Lost]) -> list[Lost]:
    """Neighbours of the same reason as one: every partition tells of its own part."""
    made: list[Lost] = []
    for one in sorted(lost, key=lambda one: one.first):
        if made and made[-1].reason == one.reason and made[-1].last + 1 >= one.first:
            made[-1] = Lost(made[-1].first, max(made[-1].last, one.last), one.reason)
        else:
            made.append(one)
    return made
