"""Which seqs to read, and how they are cut into partitions. Pure.

A stretch of a topic is (after, until]: the first seq that is not wanted any more stands on the left, as in the API.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class Bounds:
    """What a topic has at one moment."""

    earliest: int
    head: int
    created: int | None = None  # when it was made, where that is known: another time is another topic of the same name


@dataclass(frozen=True)
class Stretch:
    topic: str
    after: int
    until: int

    @property
    def size(self) -> int:
        return max(0, self.until - self.after)


@dataclass(frozen=True)
class Cut:
    """How stretches become partitions. Kept in a stream's offsets: a batch that is read again is cut as before."""

    least: int  # partitions
    records: int  # of one partition, at most


def cut(stretches: Iterable[Stretch], how: Cut) -> list[Stretch]:
    """Even pieces: none larger than `how.records`, about `how.least` in all, at least one for each topic."""
    wanted = [stretch for stretch in stretches if stretch.size]
    total = sum(stretch.size for stretch in wanted)
    pieces = []
    for stretch in wanted:
        parts = max(-(-stretch.size // how.records), -(-how.least * stretch.size // total))
        parts = min(parts, stretch.size)
        edges = [stretch.after + stretch.size * part // parts for part in range(parts + 1)]
        pieces += [Stretch(stretch.topic, low, high) for low, high in pairwise(edges)]
    return pieces


def admit(starts: Mapping[str, int], heads: Mapping[str, int], most: int | None) -> dict[str, int]:
    """Where a batch of at most `most` records ends: every topic gets its share of what is waiting.

    What rounding leaves goes to those it took most from, then to those with the most waiting: so none is passed over
    for ever, however many there are. A topic whose head is below its start has lost records; it is read up to its head.
    """
    waiting = {topic: max(0, head - starts[topic]) for topic, head in heads.items()}
    total = sum(waiting.values())
    if most is None or total <= most:
        return dict(heads)
    shares = {topic: most * count // total for topic, count in waiting.items()}
    by_need = sorted(waiting, key=lambda topic: (-(most * waiting[topic] % total), -waiting[topic], topic))
    for topic in by_need[: most - sum(shares.values())]:
        shares[topic] += 1
    return {topic: starts[topic] + shares[topic] if waiting[topic] else heads[topic] for topic in heads}
