"""A stream read. An offset says where every topic is and how the batch that ends there is cut:

    {"created": {"t1": 1794885303574}, "cut": [1, 100000], "new": {"t2": 0}, "seqs": {"t1": 400, "t2": 17}}

`new` holds topics that a pattern found for this batch or that were made anew, with the seq after which they begin.
`created` says when topics were made, by which one made anew is known although it has more records than were read of the
old one. Spark compares offsets as text, so keys are sorted, and when nothing is new the old offset is given back as it
was.
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
        return self._offset(starts, {}, _created(found))

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self._options.per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._found()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        found = self._target if self._target is not None else self._found()
        starts: dict[str, int] = dict(start["seqs"])
        known: dict[str, int] = start.get("created", {})
        created = known | self._looked_up(found, starts)
        anew = {topic for topic, ts in known.items() if ts != created[topic]}
        self._check_lost(starts, found, anew)
        new = {topic: one.earliest - 1 for topic, one in found.items() if topic not in starts or topic in anew}
        # A topic that is gone stays where it was: should the name come back, it is read from its beginning.
        heads = starts | {topic: bounds.head for topic, bounds in found.items()}
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        ends = admit(starts | new, heads, most)
        return start if ends == starts and not anew else self._offset(ends, new, created)

    def reportLatestOffset(self) -> Offset:
        return self._offset({topic: bounds.head for topic, bounds in self._found().items()}, {}, {})

    def _found(self) -> dict[str, Bounds]:
        """Without topics that were removed: whether that matters is for `failOnDataLoss` to say."""
        with Topics(self._options.server) as topics:
            return topics.bounds(self._options.selection, strict=False)

    def _looked_up(self, found: dict[str, Bounds], starts: dict[str, int]) -> dict[str, int]:
        """When topics were made. The list that a pattern looks through does not tell, so those with news are asked."""
        asked = [topic for topic, one in found.items() if one.created is None and one.head != starts.get(topic)]
        if not asked:
            return _created(found)
        with Topics(self._options.server) as topics:
            told = {topic: topics.created(topic) for topic in asked}
        return _created(found) | {topic: ts for topic, ts in told.items() if ts is not None}

    def _check_lost(self, starts: dict[str, int], found: dict[str, Bounds], anew: set[str]) -> None:
        if not self._options.fail_on_loss:
            return
        for topic, seq in starts.items():
            if topic not in found:
                what = f"{topic} does not exist any more"
            elif topic in anew or found[topic].head < seq:
                what = f"{topic} was made anew: its head is {found[topic].head}, this query has read up to {seq}"
            else:
                continue
            raise DataLoss(f"{what}. Set failOnDataLoss=false to go on.")

    def _offset(self, seqs: dict[str, int], new: dict[str, int], created: dict[str, int]) -> Offset:
        how = [self._options.min_partitions, self._options.per_partition]
        created, new, seqs = (dict(sorted(one.items())) for one in (created, new, seqs))
        return {"created": created, "cut": how, "new": new, "seqs": seqs}

    # --- one batch --------------------------------------------------------------------------------------------------

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """Depends on the two offsets alone, so that a batch that failed half-way comes again in the same pieces."""
        return [Piece(stretch) for stretch in cut(_stretches(start, end), Cut(*end["cut"]))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_piece(self._options, self._schema, partition)


def _created(found: dict[str, Bounds]) -> dict[str, int]:
    return {topic: bounds.created for topic, bounds in found.items() if bounds.created is not None}


def _stretches(start: Offset, end: Offset) -> Iterator[Stretch]:
    for topic, until in end["seqs"].items():
        after = end["new"].get(topic, start["seqs"].get(topic, 0))
        yield Stretch(topic, after if after <= until else 0, until)
