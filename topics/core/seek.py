"""Where a reader begins who knows a time and not a seq.

`$ts` never goes back within a topic, so the first record at or after a time is found by two binary searches, over the
chunks and within one of them. All they look at is resident: no file is read, whatever the topic holds.

The answer is a cursor: reading after it gives the records with `$ts` >= the time. What was lost and may have been that
new lies behind the cursor as well, so that its tombstone is shown like that of any other gap.
"""

from bisect import bisect_left
from operator import attrgetter

from topics.core.topic import Topic

_last_ts = attrgetter("last_ts")


def cursor_at(topic: Topic, ts: int, now_ms: int) -> int:
    """The `from_seq` of a reader that begins at `ts`; a time to come is the head. The caller has expired the topic."""
    if ts > max(now_ms, topic.last_ts):
        return topic.head_seq
    chunks = topic.chunks
    index = bisect_left(chunks, ts, key=_last_ts)
    if index < len(chunks):
        older = bisect_left(chunks[index].ts, ts - chunks[index].base_ts)
        if older:
            return chunks[index].first_seq + older - 1
    if index:
        return chunks[index - 1].last_seq
    # Nothing older is left. What was evicted may have been as new as that, unless the topic's last write was not.
    return topic.evicted.floor - 1 if ts > topic.last_ts else 0
