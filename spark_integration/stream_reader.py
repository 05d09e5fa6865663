"""A stream read. An offset says where every topic is and how the batch that ends there is cut:

    {"cut": [1, 100000], "new": {"t2": 0}, "seqs": {"t1": 400, "t2": 17}}

`new` holds topics that a pattern found for this batch, with the seq after which they begin. Spark compares offsets as
text, so keys are sorted, and when nothing is new the old offset is given back as it was.
"""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from spark_integration.batch_reader import Piece, check_positions, read_piece, start_of
from spark_integration.options import ReadOptions
from spark_integration.planning import Bounds, Cut, Stretch, admit, cut
from spark_integration.reading import DataLoss
from spark_integration.server import Topics

Offset = dict[str, Any]


class TopicsStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._target: dict[str, Bounds] | None = None

    # --- where to begin and how far to go ---------------------------------------------------------------------------

    def initialOffset(self) -> Offset:
        options = self._options
        with Topics(options.server) as topics:
            found = topics.bounds(options.selection)
            check_positions(options.starting, found, "startingOffsets")
            starts = {topic: start_of(topics, options, topic, bounds) for topic, bounds in found.items()}
        return self._offset(starts, {})

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self._options.per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._found()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        found = self._target if self._target is not None else self._found()
        starts: dict[str, int] = dict(start["seqs"])
        new = {topic: bounds.earliest - 1 for topic, bounds in found.items() if topic not in starts}
        self._check_lost(starts, found)
        # A topic that is gone stays where it was: should the name come back, it is read from its beginning.
        heads = starts | {topic: bounds.head for topic, bounds in found.items()}
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        ends = admit(starts | new, heads, most)
        return start if ends == starts else self._offset(ends, new)

    def reportLatestOffset(self) -> Offset:
        return self._offset({topic: bounds.head for topic, bounds in self._found().items()}, {})

    def _found(self) -> dict[str, Bounds]:
        with Topics(self._options.server) as topics:
            return topics.bounds(self._options.selection)

    def _check_lost(self, starts: dict[str, int], found: dict[str, Bounds]) -> None:
        if not self._options.fail_on_loss:
            return
        for topic, seq in starts.items():
            if topic not in found:
                what = f"{topic} does not exist any more"
            elif found[topic].head < seq:
                what = f"{topic} was made anew: its head is {found[topic].head}, this query has read up to {seq}"
            else:
                continue
            raise DataLoss(f"{what}. Set failOnDataLoss=false to go on.")

    def _offset(self, seqs: dict[str, int], new: dict[str, int]) -> Offset:
        how = [self._options.min_partitions, self._options.per_partition]
        return {"cut": how, "new": dict(sorted(new.items())), "seqs": dict(sorted(seqs.items()))}

    # --- one batch --------------------------------------------------------------------------------------------------

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """Depends on the two offsets alone, so that a batch that failed half-way comes again in the same pieces."""
        return [Piece(stretch) for stretch in cut(_stretches(start, end), Cut(*end["cut"]))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_piece(self._options, self._schema, partition)


def _stretches(start: Offset, end: Offset) -> Iterator[Stretch]:
    for topic, until in end["seqs"].items():
        after = start["seqs"].get(topic, end["new"].get(topic, 0))
        yield Stretch(topic, after if after <= until else 0, until)
