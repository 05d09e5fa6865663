"""What an audit found out about a topic, its archive and its copies, and what of that is a problem. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from spark_integration.jobs.manifest import Entry, Lost


@dataclass(frozen=True)
class Block:
    """Some neighbouring seqs of a log: what is there, and how it is ordered."""

    first: int  # of the seqs that belong to it, there or not
    records: int
    repeated: int  # seqs that are there more than once
    unordered: int  # records whose time is before that of the record in front of them
    first_ts: int
    last_ts: int


@dataclass(frozen=True)
class Log:
    """Records under seqs from 1 to `head`, of a topic, of an archive, or of a copy."""

    name: str
    head: int
    block_size: int
    blocks: list[Block] = field(default_factory=list)
    lost: list[Lost] = field(default_factory=list)

    @property
    def records(self) -> int:
        return sum(block.records for block in self.blocks)

    @property
    def repeated(self) -> int:
        return sum(block.repeated for block in self.blocks)

    @property
    def unordered(self) -> int:
        over_edges = sum(right.first_ts < left.last_ts for left, right in pairwise(self.blocks))
        return over_edges + sum(block.unordered for block in self.blocks)

    @property
    def lost_seqs(self) -> int:
        return sum(one.last - one.first + 1 for one in self.lost)

    @property
    def absent(self) -> int:
        """Seqs that are gone without a tombstone: they were deleted."""
        return self.head - self.lost_seqs - (self.records - self.repeated)

    def problems(self) -> Iterator[str]:
        if self.repeated:
            yield f"{self.name}: {self.repeated} seqs are there more than once"
        if self.unordered:
            yield f"{self.name}: {self.unordered} records are of an earlier time than the one in front of them"
        if self.absent < 0:
            yield f"{self.name}: {-self.absent} records are there that are told to be lost"


@dataclass(frozen=True)
class Archived:
    """A topic beside its archive."""

    log: Log
    gaps: list[tuple[int, int]]  # seqs between ranges of the manifest
    overlaps: int
    without_files: list[str]  # ranges
    miscounted: list[str]  # ranges
    missing: int  # in the topic and within the archived ranges, but not in the archive
    changed: int  # in both, and not the same
    only_here: int  # not in the topic any more, which is what archives are for

    def problems(self) -> Iterator[str]:
        yield from self.log.problems()
        for first, last in self.gaps:
            yield f"{self.log.name}: no range covers seq {first} to {last}"
        if self.overlaps:
            yield f"{self.log.name}: {self.overlaps} ranges overlap the one before"
        for name in self.without_files:
            yield f"{self.log.name}: the files of range {name} are gone"
        for name in self.miscounted:
            yield f"{self.log.name}: range {name} has not as many records as its manifest says"
        if self.missing:
            yield f"{self.log.name}: {self.missing} records of the topic are missing"
        if self.changed:
            yield f"{self.log.name}: {self.changed} records differ from the topic's"


@dataclass(frozen=True)
class Copied:
    """A topic beside a copy of it that a router makes."""

    router: str
    log: Log
    matched: int
    missing: int  # of the source, between the first and the last that was matched
    waiting: int  # of the source, behind the last that was matched
    doubled: int  # copies more than there are records of the same content, or of the same key
    alone: int  # copies whose record is not in the source, for whatever reason
    unordered: int  # among copies of records whose content is unique
    source_gone: int  # seqs that the source and its archive do not have any more

    def problems(self) -> Iterator[str]:
        yield from self.log.problems()
        gone = self.log.absent + self.log.lost_seqs
        if self.missing > gone:
            yield f"{self.log.name}: {self.missing} records have no copy, and only {gone} copies are gone"
        if self.doubled > self.source_gone:
            yield f"{self.log.name}: {self.doubled} copies are doubled"
        if self.unordered:
            yield f"{self.log.name}: {self.unordered} copies are not in the order of their source"


@dataclass(frozen=True)
class Finding:
    topic: str
    log: Log
    archived: Archived | None = None
    copies: list[Copied] = field(default_factory=list)

    def problems(self) -> list[str]:
        found = [*self.log.problems(), *(self.archived.problems() if self.archived else ())]
        return found + [problem for copied in self.copies for problem in copied.problems()]


def range_gaps(entries: Sequence[Entry]) -> list[tuple[int, int]]:
    return [(left.last + 1, right.first - 1) for left, right in pairwise(entries) if right.first > left.last + 1]


def range_overlaps(entries: Sequence[Entry]) -> int:
    return sum(right.first <= left.last for left, right in pairwise(entries))
