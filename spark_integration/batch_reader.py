"""A batch read: the end is fixed when the query is planned, so that every attempt of every task reads the same."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.types import StructType

from spark_integration.options import LATEST, BadOption, Position, ReadOptions
from spark_integration.pages import Batches
from spark_integration.planning import Bounds, Cut, Stretch, cut
from spark_integration.reading import read_stretch
from spark_integration.server import Topics


class Piece(InputPartition):
    """A partition of a read."""

    def __init__(self, stretch: Stretch) -> None:
        super().__init__(stretch)


def read_piece(options: ReadOptions, wanted: StructType, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    if isinstance(partition, Piece):  # Spark makes a partition of its own when there is nothing to read
        yield from read_stretch(options, Batches(wanted), partition.value)


class TopicsReader(DataSourceReader):
    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        options = self._options
        with Topics(options.server) as topics:
            stretches = self.narrowed(stretches_of(topics, options))
        return [Piece(stretch) for stretch in cut(stretches, Cut(options.min_partitions, options.per_partition))]

    def narrowed(self, stretches: list[Stretch]) -> list[Stretch]:
        return stretches

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_piece(self._options, self._schema, partition)


class PushingReader(TopicsReader):
    """With `pushFilters=true`: conditions on seq and topic decide what is fetched. Spark checks them all again."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._after = 0
        self._until = 2**63 - 1
        self._topic: str | None = None

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        for one in filters:
            self._take(one)
        return filters

    def narrowed(self, stretches: list[Stretch]) -> list[Stretch]:
        return [
            replace(stretch, after=max(stretch.after, self._after), until=min(stretch.until, self._until))
            for stretch in stretches
            if self._topic in (None, stretch.topic)
        ]

    def _take(self, one: Filter) -> None:
        match one:
            case EqualTo(("topic",), str(name)):
                self._topic = name
            case EqualTo(("seq",), int(seq)):
                self._bound(seq - 1, seq)
            case GreaterThan(("seq",), int(seq)):
                self._bound(seq, self._until)
            case GreaterThanOrEqual(("seq",), int(seq)):
                self._bound(seq - 1, self._until)
            case LessThan(("seq",), int(seq)):
                self._bound(0, seq - 1)
            case LessThanOrEqual(("seq",), int(seq)):
                self._bound(0, seq)

    def _bound(self, after: int, until: int) -> None:
        self._after, self._until = max(self._after, after), min(self._until, until)


# --- where a read begins and ends -------------------------------------------------------------------------------------


def stretches_of(topics: Topics, options: ReadOptions) -> list[Stretch]:
    found = topics.bounds(options.selection)
    check_positions(options.starting, found, "startingOffsets")
    check_positions(options.ending, found, "endingOffsets")
    return [
        Stretch(topic, start_of(topics, options, topic, bounds), _end_of(topics, options, topic, bounds))
        for topic, bounds in sorted(found.items())
    ]


def check_positions(position: Position, found: dict[str, Any], name: str) -> None:
    if isinstance(position, dict) and (strange := sorted(set(position) - set(found))):
        raise BadOption(f"{name} names {strange[0]!r}, which is not among the topics that are read")


def start_of(topics: Topics, options: ReadOptions, topic: str, bounds: Bounds) -> int:
    """The seq after which to read. A seq that is given is the first one to be read."""
    if options.starting_ts is not None:
        return topics.first_at(topic, bounds, options.starting_ts)
    if isinstance(options.starting, dict) and topic in options.starting:
        if options.starting[topic] > bounds.head + 1:
            raise BadOption(
                f"startingOffsets asks {topic!r} for seqs from {options.starting[topic]} on; its head is {bounds.head}"
            )
        return max(0, options.starting[topic] - 1)
    return bounds.head if options.starting == LATEST else bounds.earliest - 1


def _end_of(topics: Topics, options: ReadOptions, topic: str, bounds: Bounds) -> int:
    """The last seq to read. A seq that is given is the first one not to be read, as is a time."""
    if options.ending_ts is not None:
        return topics.first_at(topic, bounds, options.ending_ts)
    if isinstance(options.ending, dict) and topic in options.ending:
        if options.ending[topic] > bounds.head + 1:
            raise BadOption(
                f"endingOffsets asks {topic!r} for seqs up to {options.ending[topic] - 1}; its head is {bounds.head}"
            )
        return max(0, options.ending[topic] - 1)
    return bounds.head
