"""The call `delete`: records by position, or those whose tag matches.

A match is resolved to seqs and becomes one event, whatever it hits: readers see all of it or nothing, and a caller
that goes away stops it before it is logged or not at all. What takes long is done before that: reading in a thread,
counting in slices of the loop (see topics/core/deletion.py).
"""

import logging
from collections.abc import Callable

from topics import errors, limits
from topics.aside import run_aside
from topics.core.chunk import Chunk
from topics.core.deletion import Deletion
from topics.core.loss import CORRUPT
from topics.core.requests import Delete
from topics.core.tags import Pattern
from topics.core.topic import Topic
from topics.errors import TopicsError, topic_not_found
from topics.rpc.calls import Call
from topics.shards.marks import Marks
from topics.shards.match import MatchPlan
from topics.shards.reader import BlockReader
from topics.shards.slices import in_slices
from topics.shards.store import Store

log = logging.getLogger(__name__)
Answer = Callable[[int], None]


class Deletes:
    def __init__(self, store: Store, reader: BlockReader, check_open: Callable[[], None], marks: Marks) -> None:
        """`check_open` raises when the shard takes no more writes."""
        self._marks = marks
        self._store = store
        self._engine = store.engine
        self._reader = reader
        self._check_open = check_open

    def start(self, call: Call, topic: Topic, request: Delete, answer: Answer) -> None:
        if topic.derived is not None and topic.derived.missing:
            message = f'copies in topic "{topic.name}" are being made again from its source; retry in a moment'
            raise TopicsError(errors.NOT_READY, message, {"topic": topic.name, "retry_after_ms": 500})
        if request.match is None:
            assert request.before_seq is not None
            self._marks.write_one(topic)  # or a replay would not know how much there was to delete
            self._engine.delete_records(topic, request.before_seq, None, answer, call.fail)
            return
        plan = self._store.plan_match(topic, Pattern(request.match), request.before_seq)
        if plan.takes_long:
            call.run(self._delete_match, call, topic, plan, answer)
        else:
            self._engine.delete_records(topic, 0, plan.resolve(), answer, call.fail)

    async def _delete_match(self, call: Call, topic: Topic, plan: MatchPlan, answer: Answer) -> None:
        """Cancelled before the last line, it has deleted nothing; that line cannot be cancelled."""
        deletion = await run_aside(lambda: Deletion(plan.resolve()))
        _check_size(deletion)
        self._check_there(topic)
        self._lose(topic, plan.damaged)
        await in_slices(deletion.prepare(topic))
        self._check_there(topic)
        self._engine.delete_records(topic, 0, deletion.ranges, answer, call.fail, deletion)

    def _check_there(self, topic: Topic) -> None:
        self._check_open()
        if topic.removing or self._engine.state.by_id.get(topic.id) is not topic:
            raise topic_not_found(topic.name)

    def _lose(self, topic: Topic, damaged: list[Chunk]) -> None:
        """Blocks that cannot be read are not in the way of a delete: readers are told, and the rest is deleted."""
        for chunk in damaged:
            if topic.holds(chunk):
                self._reader.damaged_blocks += 1
                self._engine.lose_range(topic, chunk.first_seq, chunk.last_seq, CORRUPT, lambda _: None)


def _check_size(deletion: Deletion) -> None:
    if len(deletion.encoded) > limits.DELETE_BYTES_MAX:
        raise TopicsError(
            errors.PAYLOAD_TOO_LARGE,
            f"{deletion.ranges.count} scattered records match, too many for one delete; use before_seq to take fewer",
            {"records": deletion.ranges.count},
        )
