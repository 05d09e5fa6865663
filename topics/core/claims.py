"""One pass over a queue: which jobs go to whom.

Jobs that were leased before come first, in seq order, then those that never were; where jobs have priorities, the
highest level first (line.py). They are divided over everybody who claims together, proportional to what each asks for,
and dealt in turn. A job that has been delivered as often as it may is not dealt: it is due for the dead-letter topic.
"""

from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heapreplace, nlargest

import msgspec

from topics import limits
from topics.core.chunk import Chunk
from topics.core.effort import Effort
from topics.core.leases import Leases
from topics.core.line import Line, Pick, chunk_of, chunks_above, has_levels, jobs_in, waiting_in
from topics.core.topic import Topic
from topics.limits import JOB_PRIORITY_MAX

_Candidate = tuple[int, bool, int, int, int, Chunk]  # in the order in which jobs are dealt; where it comes from


class Want(msgspec.Struct, gc=False, eq=False):
    """What one claimer asks for, and gets."""

    jobs: int
    bytes: int  # of the jobs together; one is given whatever its size
    picks: list[Pick] = []
    share: int = 0  # what is still to come of its part; nothing once a job was too large for it


def deal(
    topic: Topic, leases: Leases, wants: Sequence[Want], max_deliveries: int, due_max: int, now: int = 0
) -> list[Pick]:
    """Fill `wants`. The jobs that are due for the dead-letter topic, at most `due_max`: others wait for a later pass.

    Nothing is leased yet, but free jobs that were picked are not picked again: the caller leases or moves them.
    `max_deliveries` 0: any number. What each gets is in the order of the seqs, or by levels, if there are some. Where
    very many are due, or gone, it is cut short, and `leases` says so: there may be jobs that nobody has looked at, and
    who still has a share is to be dealt to again once what it got is leased.
    """
    effort = Effort(limits.PASS_STEP)
    ready = leases.ready(jobs_in(topic))
    if len(wants) == 1:
        wants[0].share = max(0, min(ready, wants[0].jobs))
    else:
        for want, share in zip(wants, divide(ready, [want.jobs for want in wants]), strict=True):
            want.share = share
    hungry = [want for want in wants if want.share]
    due: list[Pick] = []
    if max_deliveries or leases.overdue or leases.overdue_at or leases.line is not None:
        jobs = _undue(topic, leases, max_deliveries, due, due_max, now, effort)
    else:
        jobs = _available(topic, leases, effort)
    pick = _fill(hungry[0], jobs) if len(hungry) == 1 else _deal_in_turn(hungry, jobs)
    leases.cut_short = effort.used_up
    if pick is not None:
        leases.free.put_back(pick[0])
    if not has_levels(leases.line):
        for want in wants:
            want.picks.sort(key=_seq_of)
    return due


def _fill(want: Want, jobs: Iterator[Pick]) -> Pick | None:
    """Nobody else is there; a job that was too large for it, if there is one."""
    picks, room, share = want.picks, want.bytes, want.share
    for pick in jobs:
        seq, chunk = pick
        room -= chunk.sizes[seq - chunk.first_seq]
        if room < 0 and picks:
            want.share = 0
            return pick
        picks.append(pick)
        share -= 1
        if not share:
            break
    want.share = share
    return None


def _deal_in_turn(hungry: list[Want], jobs: Iterator[Pick]) -> Pick | None:
    """The same for any number of them."""
    pick = next(jobs, None) if hungry else None
    while pick is not None and hungry:
        for want in tuple(hungry):
            if pick is None:
                break
            if _fits(want, pick):
                pick = next(jobs, None) if want.share or len(hungry) > 1 else None
            if not want.share:
                hungry.remove(want)
    return pick


def _fits(want: Want, pick: Pick) -> bool:
    """Give it the job, unless it is too large: then it gets no more at all."""
    size = pick[1].sizes[pick[0] - pick[1].first_seq]
    if want.picks and size > want.bytes:
        want.share = 0
        return False
    want.picks.append(pick)
    want.bytes -= size
    want.share -= 1
    return True


def _seq_of(pick: Pick) -> int:
    return pick[0]


def _undue(
    topic: Topic, leases: Leases, max_deliveries: int, due: list[Pick], due_max: int, now: int, effort: Effort
) -> Iterator[Pick]:
    _take_overdue(topic, leases, max_deliveries, due, due_max, effort)
    if effort.used_up:
        return
    passed = 0
    taken = {seq for seq, _ in due}
    line = leases.line
    available = _available(topic, leases, effort) if line is None else _by_level(leases, line, now, effort)
    if not max_deliveries:
        yield from available
        return
    for pick in available:
        if leases.deliveries(pick[0]) < max_deliveries:
            yield pick
        elif len(due) == due_max:
            leases.overdue.append(pick[0])
            passed += 1
            if passed == limits.OVERDUE_STEP:
                effort.left = 0
                return
        elif pick[0] not in taken:
            due.append(pick)


def _take_overdue(
    topic: Topic, leases: Leases, max_deliveries: int, due: list[Pick], due_max: int, effort: Effort
) -> None:
    """Those that passes before had to leave. They are out of the order, so that each is passed by only once; when the
    limit has changed they get back into it, and nothing is dealt before all are."""
    overdue = leases.overdue
    if leases.overdue_at != max_deliveries:
        for seq in overdue[-effort.left :]:
            leases.free.put_back(seq)
        del overdue[-effort.left :]
        if overdue:
            effort.left = 0
            return
        leases.overdue_at = max_deliveries
    taken: set[int] = set()
    for seq in overdue[:due_max]:
        chunk = chunk_of(topic, seq)  # it may have left meanwhile, or be somebody's again
        if seq not in taken and chunk is not None and leases.is_idle(seq) and leases.deliveries(seq) >= max_deliveries:
            taken.add(seq)
            due.append((seq, chunk))
    del overdue[:due_max]


def _available(topic: Topic, leases: Leases, effort: Effort) -> Iterator[Pick]:
    """Every job that may be claimed, in the order in which they are."""
    seen: set[int] = set()  # a job may stand in the order of free ones twice
    chunk: Chunk | None = None
    while (seq := leases.free.pick(effort)) is not None:
        chunk = chunk_of(topic, seq, chunk)
        if seq not in seen and chunk is not None:
            seen.add(seq)
            yield seq, chunk
        else:
            effort.left -= 1
            if effort.left <= 0:
                return
    if not effort.used_up:
        yield from waiting(topic, leases, 0, effort)


def waiting(topic: Topic, leases: Leases, priority: int, effort: Effort) -> Iterator[Pick]:
    """The jobs of a priority that were never leased. What is dead before the first of them is not looked at again."""
    cursor = leases.cursor_of(priority)
    has_found = False
    for chunk in chunks_above(topic, cursor):
        in_vain = True
        for seq in waiting_in(chunk, priority, cursor):
            if leases.is_leaving(seq):
                continue
            if in_vain:
                if not has_found:
                    leases.pass_by(priority, seq - 1)
                in_vain, has_found = False, True
            yield seq, chunk
        if in_vain:
            if not has_found:
                leases.pass_by(priority, chunk.last_seq)
            effort.left -= 1
            if effort.left <= 0:
                return


def _by_level(leases: Leases, line: Line, now: int, effort: Effort) -> Iterator[Pick]:
    """The same with priorities: of each the first free and the first waiting job are compared."""
    frees = [(priority, leases.free.of(priority, effort)) for priority in line.priorities]
    sources = frees + [(priority, waiting(line.topic, leases, priority, effort)) for priority in line.priorities]

    def look(number: int) -> _Candidate | None:
        priority, jobs = sources[number]
        found = next(jobs, None)
        if found is None:
            return None
        seq, chunk = found
        if number < len(frees):
            since = line.heaps[priority][0][0]
            return -line.level(priority, since, now), False, since, seq, number, chunk
        since = chunk.base_ts + chunk.ts[seq - chunk.first_seq]
        level = line.level(priority, since, now)
        return -level, level < JOB_PRIORITY_MAX, since, seq, number, chunk

    first = [found for number in range(len(sources)) if (found := look(number)) is not None]
    heapify(first)
    while first and not effort.used_up:
        best = first[0]
        number = best[4]
        if number < len(frees):
            leases.free.take(sources[number][0])
        yield best[3], best[5]
        if (found := look(number)) is not None:
            heapreplace(first, found)
        else:
            heappop(first)


def divide(available: int, wanted: Sequence[int]) -> list[int]:
    """Shares of what is available, proportional to what each wants, whole, and none more than that.

    What the proportion leaves over goes, one each, to those whose parts were cut most, the first ones among equals; so
    equal wants differ by one at most.
    """
    total = sum(wanted)
    if available >= total:
        return list(wanted)
    if available <= 0:
        return [0] * len(wanted)
    shares = [available * want // total for want in wanted]
    left = available - sum(shares)  # fewer than were cut at all
    for index in nlargest(left, range(len(wanted)), key=lambda index: available * wanted[index] % total):
        shares[index] += 1
    return shares
