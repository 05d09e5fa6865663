"""The order of a queue whose jobs are not all alike: priorities, and times before which a job must not be claimed.

A queue gets a `Line` with its first job that has either; until then it costs nothing. What the line knows of a job is
in the job's block and, resident, in its chunk, so it is all there again after a restart.

The level of a job is its priority and one more for every `priority_age_ms` it has waited, 9 at most. The highest
level comes first, in it those that were leased before or whose time has come, then the rest; each in the order in
which they began to wait. In level 9, where all get to, that order alone counts. While no job has a priority there is
one level.

Jobs of one priority grow old in the order of their seqs, so each priority has a cursor of its own over those that were
never leased, and of ten priorities only the ten first jobs are compared. Jobs with a time wait in the timetable
instead, and no cursor stops at them: when their time comes they are free.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Container, Iterator, Set
from heapq import heappush
from operator import attrgetter
from typing import TYPE_CHECKING

from topics.core.bits import runs, span, spread
from topics.core.block import Block
from topics.core.chunk import Chunk
from topics.core.timetable import Timetable
from topics.limits import JOB_PRIORITY_MAX

if TYPE_CHECKING:
    from topics.core.topic import Topic

LEVELS = JOB_PRIORITY_MAX + 1
Pick = tuple[int, Chunk]
_last_seq = attrgetter("last_seq")
_DIGITS = [bytes(b"1"[0] if byte == priority else b"0"[0] for byte in range(256)) for priority in range(LEVELS)]


class Line:
    __slots__ = ("_near", "heaps", "priorities", "timetable", "topic")

    def __init__(self, topic: "Topic") -> None:
        self.topic = topic
        self.heaps: list[list[tuple[int, int, int]]] = [[] for _ in range(LEVELS)]  # free jobs: since when, seq, rounds
        self.priorities = {0}  # that some job has or had
        self.timetable = Timetable()
        self._near: Chunk | None = None  # where the last look was; the next is mostly there too

    def enlist(self, block: Block) -> None:
        """Jobs that are about to come in."""
        extras = block.extras
        assert extras is not None
        if extras.ranked:
            self.priorities.update(block.priorities)
        for index, due in extras.dues or ():
            self.timetable.add(block.first_seq + index, due)

    def recall(self, cursor_of: Callable[[int], int], busy: Set[int], delivered: Container[int]) -> Iterator[int]:
        """After a replay: the jobs that a cursor has passed, and those that have a time and were delivered. The others
        that have one go into the timetable, unless they are busy."""
        highest = max(map(cursor_of, range(LEVELS)))
        for chunk in self.topic.chunks:
            if chunk.ranks is not None:
                self.priorities.update(chunk.ranks)
            if chunk.first_seq > highest and chunk.dues is None:
                continue
            timed = chunk.dues.mask if chunk.dues is not None else 0
            for low, high in runs(span(0, len(chunk)) & ~chunk.dead):
                for index in range(low, high):
                    seq = chunk.first_seq + index
                    if not timed >> index & 1:
                        if seq <= cursor_of(rank_in(chunk, index)):
                            yield seq
                    elif seq in delivered:
                        yield seq
                    elif seq not in busy:
                        assert chunk.dues is not None
                        self.timetable.add(seq, chunk.dues.get(index))

    def terms(self, seq: int) -> tuple[int, int, bool]:
        """The priority of a job, since when it counts as waiting, and whether it had to wait for its time."""
        chunk = self._chunk_of(seq)
        if chunk is None:
            return 0, 0, False
        index = seq - chunk.first_seq
        if chunk.dues is None:
            return rank_in(chunk, index), chunk.base_ts + chunk.ts[index], False
        due = chunk.dues.get(index)
        return rank_in(chunk, index), max(due, chunk.base_ts + chunk.ts[index]), bool(due)

    def priority(self, seq: int) -> int:
        chunk = self._chunk_of(seq)
        return rank_in(chunk, seq - chunk.first_seq) if chunk is not None else 0

    def _chunk_of(self, seq: int) -> Chunk | None:
        chunk = self._near
        if chunk is None or not 0 <= seq - chunk.first_seq < len(chunk.sizes):
            chunk = self._near = chunk_of(self.topic, seq)
        return chunk

    def set_free(self, seq: int, rounds: int) -> None:
        """Each delivery, whether it counts or not, makes it as much younger as it takes to grow a level: one that
        always comes back comes later and later, and starves nobody."""
        priority, since, _ = self.terms(seq)
        heappush(self.heaps[priority], (since + rounds * self.topic.config.priority_age_ms, seq, rounds))

    def level(self, priority: int, since: int, now: int) -> int:
        age_ms = self.topic.config.priority_age_ms
        if len(self.priorities) == 1 or not age_ms or now <= since:
            return priority
        return min(JOB_PRIORITY_MAX, priority + (now - since) // age_ms)


def has_levels(line: Line | None) -> bool:
    """Whether jobs have priorities: if not, who claims some gets them in the order of their seqs."""
    return line is not None and len(line.priorities) > 1


def chunk_of(topic: "Topic", seq: int, near: Chunk | None = None) -> Chunk | None:
    """The chunk with this record, if it is live. Looks at `near` first, which must be in the log."""
    if near is not None and 0 <= seq - near.first_seq < len(near.sizes):
        chunk: Chunk | None = near
    else:
        index = bisect_left(topic.chunks, seq, key=_last_seq)
        chunk = topic.chunks[index] if index < len(topic.chunks) else None
    if chunk is None or seq < chunk.first_seq or chunk.dead >> (seq - chunk.first_seq) & 1:
        return None
    return chunk


def is_gone(topic: "Topic", seq: int) -> bool:
    """Whether a job is neither live nor a copy that a crash took, which is to come back."""
    if chunk_of(topic, seq) is not None:
        return False
    derived = topic.derived
    return derived is None or not derived.awaits(seq) or seq < max(topic.evict_floor, topic.delete_below)


def first_job(topic: "Topic") -> int:
    """Below this seq all jobs are gone for good."""
    missing = topic.derived.missing if topic.derived is not None else None
    return min(topic.earliest_seq, missing[0][0]) if missing else topic.earliest_seq


def jobs_in(topic: "Topic") -> int:
    """How many there are, copies that are to come back included: they may be leased."""
    derived = topic.derived
    return topic.count + sum(derived.awaited_in(*run) for run in derived.missing) if derived else topic.count


def rank_in(chunk: Chunk, index: int) -> int:
    return chunk.ranks[index] if chunk.ranks is not None else 0


def is_uneven(topic: "Topic") -> bool:
    """Whether some of its jobs have a priority or a time."""
    return any(chunk.ranks is not None or chunk.dues is not None for chunk in topic.chunks)


def chunks_above(topic: "Topic", cursor: int) -> Iterator[Chunk]:
    chunks = topic.chunks
    for place in range(bisect_right(chunks, cursor, key=_last_seq) if cursor else 0, len(chunks)):
        yield chunks[place]


def waiting_in(chunk: Chunk, priority: int, cursor: int) -> Iterator[int]:
    """Seqs of the live jobs of a priority above a cursor, those with a time left out. What is dead costs next to
    nothing."""
    if not chunk.live:
        return
    first, low = chunk.first_seq, max(0, cursor + 1 - chunk.first_seq)
    skip = chunk.dead | chunk.dues.mask if chunk.dues is not None else chunk.dead
    if chunk.ranks is None:
        if not priority:
            for start, end in runs(span(low, len(chunk)) & ~skip):
                yield from range(first + start, first + end)
        return
    places, what = chunk.ranks, priority
    if skip:
        if places.find(priority, low) < 0:
            return
        places, what = spread(int(places[::-1].translate(_DIGITS[priority]), 2) & ~skip), 1
    index = places.find(what, low)
    while index >= 0:
        yield first + index
        index = places.find(what, index + 1)


def live_jobs(topic: "Topic", through_seq: int) -> Iterator[int]:
    """The live seqs up to `through_seq`, ascending."""
    for chunk in topic.chunks:
        if chunk.first_seq > through_seq:
            return
        high = min(len(chunk), through_seq + 1 - chunk.first_seq)
        for low, end in runs(span(0, high) & ~chunk.dead):
            yield from range(chunk.first_seq + low, chunk.first_seq + end)
