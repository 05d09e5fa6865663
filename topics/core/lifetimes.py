"""Records with a lifetime of their own: which of them are over.

Whoever wrote such a record asked for its end, so it goes like a record that was deleted: silently, and through the same
event. That event is logged by whoever first notices (`Engine.expire`), before anything else happens to the topic, so a
replay never has to know what time it was. It holds seqs that may have gone before; a delete does not mind.

A topic without such records has no timetable. One that has keeps sixteen bytes for each, until it is gone.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from topics.core.bits import runs
from topics.core.deletion import selected_in
from topics.core.leases import leases_of
from topics.core.ranges import SeqRanges
from topics.core.timetable import Timetable

if TYPE_CHECKING:
    from topics.core.topic import Topic


RANGES_MAX = 1024


def note(topic: "Topic", first_seq: int, expiries: Iterable[tuple[int, int]]) -> None:
    """Records that come in, with higher seqs than all before: by index, with the time of each."""
    for index, when in expiries:
        if topic.expiries is None:
            topic.expiries = Timetable()
        topic.expiries.add(first_seq + index, when)


def take_over(topic: "Topic", now_ms: int) -> SeqRanges | None:
    """The records whose time is over by now, once: the caller deletes them. None if there are none."""
    expiries = topic.expiries
    if expiries is None:
        return None
    front = topic.chunks[0].first_seq if topic.chunks else topic.head_seq + 1
    front = max(front, topic.delete_below, topic.evict_floor)
    if expiries.count and expiries.first_seq < front:  # they went at the front, for another reason
        expiries.drop_range(0, front - 1)
    over = expiries.pop_ranges(now_ms) if expiries.first is not None and expiries.first <= now_ms else None
    if not expiries.count:
        topic.expiries = None
    return over or None


def hide(topic: "Topic", over: SeqRanges) -> SeqRanges:
    """The delete has to wait, but from now on nobody reads or claims these. What `unhide` has to be told."""
    hidden = SeqRanges()
    for ranges in (topic.over, over):
        for first, last in ranges or ():
            hidden.add(first, last)
    topic.over = hidden
    if topic.config.type == "queue":
        leases = leases_of(topic)
        for chunk, mask in selected_in(topic.chunks, over):
            for low, high in runs(mask & ~chunk.dead):
                seqs = range(chunk.first_seq + low, chunk.first_seq + high)
                leases.leave([seq for seq in seqs if not leases.is_leaving(seq)])
        if leases.line is not None:
            for first, last in over:
                leases.line.timetable.drop_range(first, last)
    return hidden


def unhide(topic: "Topic", hidden: SeqRanges) -> None:
    """They are deleted now. If others were hidden since, it is left to them: what is dead may well stay hidden."""
    if topic.over is hidden:
        topic.over = None


def forget(topic: "Topic", gone: SeqRanges) -> None:
    """These were deleted. Very many scattered ones stay until their time: to look for each would hold the loop."""
    if topic.expiries is not None and gone.range_count <= RANGES_MAX:
        for first, last in gone:
            topic.expiries.drop_range(first, last)


def recall(topic: "Topic") -> None:
    """After a start has hung stored chunks under the topic: those of their records that are live."""
    for chunk in topic.chunks:
        expiries, chunk.expiries = chunk.expiries, None
        if expiries is not None:
            note(topic, chunk.first_seq, [(index, when) for index, when in expiries if not chunk.dead >> index & 1])
