"""Records with a lifetime of their own: which of them are over.

Whoever wrote such a record asked for its end, so it goes like a record that was deleted: silently, and through the same
event. That event is logged by whoever first notices (`Engine.expire`), before anything else happens to the topic, so a
replay never has to know what time it was. It holds seqs that may have gone before; a delete does not mind.

A topic without such records has no timetable. One that has keeps sixteen bytes for each, until it is gone.

Very many may be over at the same moment. They are taken a step at a time, each with an event of its own, and nobody
looks at the topic before it is done (topics/shards/endings.py).
"""

from math import inf
from typing import TYPE_CHECKING

from topics.core.bits import runs
from topics.core.deletion import selected_in
from topics.core.extras import Times
from topics.core.leases import leases_of
from topics.core.ranges import SeqRanges
from topics.core.timetable import Timetable

if TYPE_CHECKING:
    from topics.core.topic import Topic


RANGES_MAX = 512


def note(topic: "Topic", first_seq: int, expiries: Times) -> None:
    """Records that come in, with higher seqs than all before: those of a block."""
    if topic.expiries is None:
        topic.expiries = Timetable()
    topic.expiries.add_all(expiries.seqs(first_seq), expiries.when, *expiries.bounds)


def are_over(topic: "Topic", now_ms: int) -> bool:
    """Whether there may be records to take."""
    expiries = topic.expiries
    return expiries is not None and expiries.first is not None and expiries.first <= now_ms


def take_over(topic: "Topic", now_ms: int, most: float = inf) -> SeqRanges | None:
    """The records whose time is over by now, once: the caller deletes them. None if there are none. About so many at
    most; `are_over` says whether that was all."""
    expiries = topic.expiries
    if expiries is None:
        return None
    front = topic.chunks[0].first_seq if topic.chunks else topic.head_seq + 1
    front = max(front, topic.delete_below, topic.evict_floor)
    if expiries.count and expiries.first_seq < front:  # they went at the front, for another reason
        expiries.drop_below(front)
    over = expiries.pop_ranges(now_ms, most) if are_over(topic, now_ms) else None
    if not expiries.count:
        topic.expiries = None
    return over or None


def hide(topic: "Topic", over: SeqRanges) -> int:
    """The delete has to wait, but from now on nobody reads or claims these. What `unhide` has to be told."""
    if topic.over is None:
        topic.over = SeqRanges()
    for first, last in over:
        topic.over.add(first, last)
    if topic.config.type == "queue":
        leases = leases_of(topic)
        for chunk, mask in selected_in(topic.chunks, over):
            for low, high in runs(mask & ~chunk.dead):
                seqs = range(chunk.first_seq + low, chunk.first_seq + high)
                leases.leave([seq for seq in seqs if not leases.is_leaving(seq)])
        if leases.line is not None:
            for _ in leases.line.timetable.drop(over):
                pass
    return topic.over.count


def unhide(topic: "Topic", hidden: int) -> None:
    """They are deleted now. If others were hidden since, it is left to them: what is dead may well stay hidden."""
    if topic.over is not None and topic.over.count == hidden:
        topic.over = None


def forget(topic: "Topic", gone: SeqRanges) -> None:
    """These were deleted. Very many scattered ones stay until their time: to look for each would hold the loop."""
    if topic.expiries is None:
        return
    if gone.range_count == 1:
        for first, last in gone:
            topic.expiries.drop_range(first, last)
    elif gone.range_count <= RANGES_MAX:
        for _ in topic.expiries.drop(gone):
            pass


def recall(topic: "Topic") -> None:
    """After a start has hung stored chunks under the topic: those of their records that are live."""
    for chunk in topic.chunks:
        expiries, chunk.expiries = chunk.expiries, None
        if expiries is not None:
            alive = expiries.without(chunk.dead)
            if alive.at:
                note(topic, chunk.first_seq, alive)
