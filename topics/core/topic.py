"""One topic: its log as chunks, its two floors, and how events change it.

Pure: no clock, no disk. `now_ms` comes in, and expiry is settled before anything is counted. The log holds applied
records only, so `head_seq` is the published head; `next_seq` runs ahead of it while writes wait for their sync.

Invariants: chunks are ascending and disjoint; every record below `delete_below` or the evicted ones is dead;
count and bytes are those of the live records; evict_floor <= earliest_seq <= head_seq + 1.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING

from topics.core import lifetimes
from topics.core.bits import runs, span
from topics.core.block import Block
from topics.core.chunk import Chunk, excess_in
from topics.core.coming import ComingKeys
from topics.core.config import TopicConfig
from topics.core.deletion import Deletion, Strike, Strikes, strikes_in
from topics.core.idempotency import KeyWindow
from topics.core.leases import Leases
from topics.core.loss import CAP, TTL, Evicted, Holes, Tombstone, find_gap
from topics.core.names import is_hidden_name
from topics.core.ranges import SeqRanges
from topics.core.tags import GENERATION_RECORDS, TagGeneration
from topics.core.timetable import Timetable

if TYPE_CHECKING:
    from topics.core.derivation import Derived
    from topics.core.groups import Group

SEQ_BASE = 1
BURY_STEP = 64  # chunks that give their files back in one go
FADE_STEP = 8  # generations of tags that are let go in one go

_live = attrgetter("live")
_live_bytes = attrgetter("live_bytes")
_last_seq = attrgetter("last_seq")
_last_ts = attrgetter("last_ts")


class Topic:
    __slots__ = (
        "__weakref__", "applied_lsn", "becoming", "buried", "bytes", "ceiling", "cell", "chunks", "coming", "config",
        "count", "created_ms", "delete_below", "derived", "dirty", "epoch", "evicted", "expiries", "faded", "flips",
        "groups", "head_seq", "held", "hidden", "holes", "id", "keys", "last_read_ms", "last_ts", "last_write_ms",
        "leases", "name", "next_seq", "over", "packs_from", "parked", "pending", "pending_bytes", "pending_records",
        "published", "queued_ms", "refilled", "removing", "reserved", "resident_from", "spent", "stored_live",
        "tag_generations", "waiters",
    )  # fmt: skip

    def __init__(self, topic_id: int, name: str, epoch: int, config: TopicConfig) -> None:
        self.id = topic_id
        self.name = name
        self.hidden = is_hidden_name(name)
        self.epoch = epoch
        self.config = config
        self.becoming: TopicConfig | None = None  # the configuration that is logged but not durable yet
        self.next_seq = SEQ_BASE
        self.head_seq = SEQ_BASE - 1
        self.last_ts = 0
        self.created_ms = 0  # 0: nobody knows, it was made before that was kept
        self.count = 0
        self.bytes = 0
        self.chunks: list[Chunk] = []
        self.spent: list[Chunk] | None = None  # of a source of routers: dead, but perhaps to be copied again
        self.buried: list[Chunk] = []  # left at the front, many at once; their files still count them (`bury`)
        self.evicted = Evicted()
        self.holes = Holes()
        self.delete_below = 0
        self.expiries: Timetable | None = None  # of records with a lifetime of their own (lifetimes.py)
        self.over: SeqRanges | None = None  # those whose end waits for the log: nobody is shown them any more
        self.keys: KeyWindow | None = None
        self.tag_generations: list[tuple[int, TagGeneration]] = []  # (last seq it covers or 0 while open, index)
        self.faded: list[object] | None = None  # no longer of use, many at once: each takes its time (`bury`)
        self.last_write_ms: int | None = None
        self.last_read_ms: int | None = None
        self.leases: Leases | None = None  # once something was claimed, asked for more than to wait, or goes back
        self.groups: dict[str, Group] | None = None  # of consumers, once there was one
        self.derived: Derived | None = None  # while a router leads here
        self.refilled = False  # records came in behind others, which a file may have already
        self.queued_ms: int | None = None  # since when its readers wait to be served
        # Storage positions, kept here because they are per topic; the core only carries them.
        self.applied_lsn = 0
        self.ceiling = 0  # highest seq that may be acked before its own sync
        self.reserved = 0  # the ceiling that is on its way to the log
        self.resident_from = 0  # while `ephemeral`: the first seq that the log never had (residence.py)
        self.stored_live: tuple[int, int] | None = None  # the head and the last live seq, as a checkpoint found them
        self.cell = 0  # cell of the head register
        self.dirty = False
        self.packs_from = 0  # packs with a lower id hold only superseded copies of its records
        self.flips: list[Chunk] | None = None  # stored chunks whose delete flags are behind
        # Writes that are logged but not durable yet.
        self.published = False
        self.removing = False
        self.pending = 0
        self.pending_records = self.pending_bytes = 0
        self.coming: ComingKeys | None = None  # their keys
        self.parked: list[Callable[[], None]] | None = None
        self.waiters: dict[Callable[[], None], None] | None = None  # long-polls, in their order; none cost nothing
        # Commands behind a large write that is being rendered, or behind very many lifetimes that are over.
        self.held: list[Callable[[], None]] | None = None

    def __hash__(self) -> int:
        return self.id  # sets of topics have the same order in every run, so that what a test finds can be repeated

    # --- what readers see -----------------------------------------------------------------------------------------

    @property
    def earliest_seq(self) -> int:
        """The first live seq, or head_seq + 1."""
        return self.next_live(0)

    @property
    def evict_floor(self) -> int:
        return self.evicted.floor

    def next_live(self, seq: int) -> int:
        """The first live seq above `seq`, or head_seq + 1."""
        chunks = self.chunks
        for index in range(bisect_right(chunks, seq, key=_last_seq) if seq else 0, len(chunks)):
            chunk = chunks[index]
            if not chunk.live:
                continue
            low = max(0, seq + 1 - chunk.first_seq)
            alive = (~chunk.dead & ((1 << len(chunk.sizes)) - 1)) >> low
            if alive:
                return chunk.first_seq + low + (alive & -alive).bit_length() - 1
        return self.head_seq + 1

    def gap_after(self, from_seq: int) -> Tombstone | None:
        """The tombstone a cursor at `from_seq` must be shown before anything else."""
        if from_seq + 1 >= self.evicted.floor and not self.holes.items:
            return None
        return find_gap(self.evicted, self.holes, from_seq, self.next_live(from_seq))

    def take_waiters(self) -> Iterable[Callable[[], None]]:
        """Readers that wait for a change and are to look now. Those who wait again do so for the next one."""
        waiters, self.waiters = self.waiters, None
        return waiters or ()

    def run_waiters(self) -> None:
        for wake in self.take_waiters():
            wake()

    def take_waiting(self) -> list[Callable[[], None]]:
        """Commands that wait for a pending one; nothing waits any more."""
        waiting = [*(self.parked or ()), *(self.coming.take_all() if self.coming is not None else ())]
        self.parked = self.coming = None
        return waiting

    # --- growing --------------------------------------------------------------------------------------------------

    def append(self, blocks: list[Block], ts: int) -> None:
        """Take committed records in, then bring the topic back within its caps."""
        self.expire(ts)
        for block in blocks:
            self._push(block)
        self.head_seq = blocks[-1].last_seq
        self.next_seq = max(self.next_seq, self.head_seq + 1)
        self.last_ts = max(self.last_ts, ts)
        self.last_write_ms = self.last_ts
        self.enforce_caps()

    def _push(self, block: Block) -> None:
        tail = self.chunks[-1] if self.chunks else None
        self.count += len(block)
        if block.tags:
            self._index_tags(block)
        if block.extras is not None and block.extras.expiries is not None:
            lifetimes.note(self, block.first_seq, block.extras.expiries)
        if tail is not None and tail.open and tail.last_seq + 1 == block.first_seq and _takes(tail, block):
            self.bytes += tail.extend(block)
            return
        if tail is not None:
            tail.open = False
        chunk = Chunk.of(block)
        self.chunks.append(chunk)
        self.bytes += chunk.live_bytes

    def _index_tags(self, block: Block) -> None:
        generations = self.tag_generations
        if not generations or generations[-1][0]:
            generations.append((0, TagGeneration()))
        current = generations[-1][1]
        current.add(block)
        if current.records >= GENERATION_RECORDS:
            generations[-1] = (max(block.last_seq, self.head_seq), current)

    def refill(self, blocks: list[Block], struck: SeqRanges) -> None:
        """Put records in at seqs that are taken already; those in `struck` are deleted. Nothing may be there."""
        floor = max(self.evicted.floor, self.delete_below)
        for block in blocks:
            chunk = Chunk.of(block)
            chunk.open = False
            self.chunks.insert(bisect_left(self.chunks, block.first_seq, key=_last_seq), chunk)
            self.count += len(block)
            self.bytes += chunk.live_bytes
            if block.tags:
                self._index_tags(block)
            if block.first_seq < floor:
                self._kill(chunk, 0, min(len(block), floor - block.first_seq))
            for low, high in runs(struck.bits(block.first_seq, len(block))[0] if struck else 0):
                self._kill(chunk, low, high)
            if self.leases is not None:
                for low, high in runs(span(0, len(chunk)) & ~chunk.dead):
                    self.leases.come_back(block.first_seq + low, block.first_seq + high - 1)
        self.refilled = True
        self._pop_dead_front()
        self.enforce_caps()

    def close_tags(self) -> None:
        """End the current generation of the tag index at the head: a checkpoint is about to store these records."""
        if self.tag_generations and not self.tag_generations[-1][0]:
            self.tag_generations[-1] = (self.head_seq, self.tag_generations[-1][1])

    def logged_chunks(self) -> list[Chunk]:
        """Without those that are in memory alone, and are meant to be."""
        if not self.resident_from:
            return self.chunks
        return self.chunks[: bisect_left(self.chunks, self.resident_from, key=_last_seq)]

    def drop_tags(self, through_seq: int) -> None:
        """Records up to `through_seq` are gone, or found by their files from now on."""
        gone = [tags for last, tags in self.tag_generations if last and last <= through_seq]
        self.tag_generations = [(last, tags) for last, tags in self.tag_generations if not last or last > through_seq]
        if len(gone) > FADE_STEP:
            self.faded = [*(self.faded or ()), *gone]

    # --- shrinking ------------------------------------------------------------------------------------------------

    def expire(self, now_ms: int) -> None:
        """Let records whose time is over go. Amortised: each is looked at once.

        While a change of the TTL waits for its sync, only what is over by both: a crash may keep or lose the change,
        and what readers saw expire must not come back either way.
        """
        ttl = self.config.ttl_ms
        if ttl and self.becoming is not None:
            ttl = max(ttl, self.becoming.ttl_ms) if self.becoming.ttl_ms else 0
        if not ttl or not self.chunks:
            return
        oldest = now_ms - ttl  # expired: ts < oldest
        if self.chunks[0].base_ts + self.chunks[0].ts[0] >= oldest:
            return
        self._evict_chunks(bisect_left(self.chunks, oldest, key=_last_ts), TTL)
        if self.chunks:
            chunk = self.chunks[0]
            self._evict(chunk, bisect_left(chunk.ts, oldest - chunk.base_ts), TTL)
        self._pop_dead_front()

    def rebound(self, config: TopicConfig, ts: int) -> None:
        """Live by another configuration. What readers saw expire by the old one does not come back."""
        self.becoming = None
        self.expire(ts)
        self.config = config
        self.expire(ts)
        self.enforce_caps()

    def enforce_caps(self) -> None:
        """Evict the oldest live records until the topic is within both caps."""
        config = self.config
        if not (0 < config.cap_records < self.count or 0 < config.cap_bytes < self.bytes):
            return
        self._evict_chunks(self._whole_excess(), CAP)
        records = self.count - config.cap_records if config.cap_records else 0
        size = self.bytes - config.cap_bytes if config.cap_bytes else 0
        self._evict(self.chunks[0], excess_in(self.chunks[0], records, size), CAP)
        self._pop_dead_front()

    def _whole_excess(self) -> int:
        """How many chunks go whole: what stays without them still reaches a cap. Looks at the fewer of both sides."""
        cap_records = self.config.cap_records or self.count + 1
        cap_bytes = self.config.cap_bytes or self.bytes + 1
        count, size = self.count, self.bytes
        if count > 2 * cap_records or size > 2 * cap_bytes:
            count = size = 0
            for index in range(len(self.chunks) - 1, -1, -1):
                count += self.chunks[index].live
                size += self.chunks[index].live_bytes
                if count >= cap_records or size >= cap_bytes:
                    return index
        for index, chunk in enumerate(self.chunks):
            count -= chunk.live
            size -= chunk.live_bytes
            if count < cap_records and size < cap_bytes:
                return index
        raise AssertionError("over a cap without a record")

    def _evict_chunks(self, number: int, reason: str) -> None:
        """Lose every live record of the first chunks."""
        if not number:
            return
        first, last = self.next_live(0), self.chunks[number - 1].last_seq
        front, count = self._drop_front(number)
        if not count:
            return
        if count == last - first + 1:
            self.evicted.add(first, last, reason)
        else:
            self.evicted.add_newest(_live_runs(reversed(front)), first, reason)

    def _evict(self, chunk: Chunk, high: int, reason: str) -> None:
        """Lose the live records below index `high` of the first chunk that has any."""
        if chunk.live:
            for low, end in runs(span(0, high) & ~chunk.dead):
                self.evicted.add(chunk.first_seq + low, chunk.first_seq + end - 1, reason)
            self._kill(chunk, 0, high)

    def _kill(self, chunk: Chunk, low: int, high: int) -> int:
        count, size = chunk.kill(span(low, high))
        self.count -= count
        self.bytes -= size
        return count

    def _pop_dead_front(self) -> None:
        if not self.count:
            self._drop_front(len(self.chunks))
        elif self.chunks and not self.chunks[0].live:
            alive = (index for index, chunk in enumerate(self.chunks) if chunk.live)
            self._drop_front(next(alive, len(self.chunks)))

    def _drop_front(self, number: int) -> tuple[list[Chunk], int]:
        """Take the first chunks out of the log; also how many live records they had. Costs little, whatever they hold.

        A few give their files back at once. Many are only set aside: `bury` has to follow.
        """
        if not number:
            return [], 0
        front = self.chunks[:number]
        del self.chunks[:number]
        fewer = min(front, self.chunks, key=len)
        count, size = sum(map(_live, fewer)), sum(map(_live_bytes, fewer))
        if fewer is self.chunks:
            count, size = self.count - count, self.bytes - size
        self.count -= count
        self.bytes -= size
        if self.spent is not None:
            self.spent += front
        else:
            self._set_aside(front)
        through_seq = self.chunks[0].first_seq - 1 if self.chunks else self.head_seq
        if self.tag_generations and 0 < self.tag_generations[0][0] <= through_seq:
            self.drop_tags(through_seq)
        return front, count

    def _set_aside(self, chunks: list[Chunk]) -> None:
        self.buried += chunks
        if len(self.buried) <= BURY_STEP:
            self.bury()

    def let_go(self, chunks: Sequence[Chunk]) -> None:
        """Destinations have no need of these dead chunks any more."""
        if self.spent and chunks:
            going = {id(chunk) for chunk in chunks}
            front = [chunk for chunk in self.spent if id(chunk) in going]
            self.spent = [chunk for chunk in self.spent if id(chunk) not in going]
            self._set_aside(front)

    def bury(self) -> bool:
        """Let the files of some chunks go that left at the front, some tags, and some keys that are forgotten; whether
        there are more."""
        if self.faded:
            del self.faded[-FADE_STEP:]
        for chunk in self.buried[-BURY_STEP:]:
            release(chunk)
        del self.buried[-BURY_STEP:]
        untidy = self.keys is not None and self.keys.tidy()
        return untidy or bool(self.buried or self.faded)

    def holds(self, chunk: Chunk) -> bool:
        """Whether the chunk is still part of the log."""
        return not chunk.gone and bool(self.chunks) and chunk.first_seq >= self.chunks[0].first_seq

    # --- deleting -------------------------------------------------------------------------------------------------

    def delete(self, before_seq: int, ranges: SeqRanges | None, prepared: Deletion | None = None) -> int:
        """Remove live records below `before_seq` and in `ranges`; how many went. Never moves evict_floor.

        `prepared` is what the ranges come to, if it was worked out ahead.
        """
        deleted = 0
        if before_seq:
            before_seq = min(before_seq, self.head_seq + 1)
            self.delete_below = max(self.delete_below, before_seq)
            _, deleted = self._drop_front(bisect_left(self.chunks, before_seq, key=_last_seq))
            if self.chunks and self.chunks[0].first_seq < before_seq:
                deleted += self._kill(self.chunks[0], 0, before_seq - self.chunks[0].first_seq)
        if ranges is not None:
            strikes = prepared.still_in(self) if prepared is not None else strikes_in(self.chunks, ranges)
            deleted += self.strike(strikes, ranges)
        if self.expiries is not None and ranges is not None:
            lifetimes.forget(self, ranges)
        self._pop_dead_front()
        return deleted

    def strike(self, strikes: Strikes, ranges: SeqRanges) -> int:
        """Set what a delete of these ranges has come to; how many records went. No reader sees a half of it."""
        changed: list[Strike] = []
        flips = self.flips if self.flips is not None else []
        for strike in strikes.items:
            chunk, before, after, records, size = strike
            if chunk.dead is not before or chunk.gone:  # the same number is the same object if nobody has set it
                changed.append(strike)
                continue
            chunk.dead = after
            chunk.live -= records
            chunk.live_bytes -= size
            if not chunk.flags_dirty and chunk.file is not None:
                chunk.flags_dirty = True
                flips.append(chunk)
        self.flips = flips or None
        for strike in changed:
            strikes.leave_out(strike)
        for file, records in strikes.by_file.items():
            file.live -= records
        self.count -= strikes.records
        self.bytes -= strikes.size
        deleted = strikes.records
        for strike in changed:  # another delete has hit it since, or a checkpoint has put others in its place
            first, last = strike[0].first_seq, strike[0].last_seq
            deleted += self.strike(strikes_in(self.chunks, ranges, first, last), ranges)
        return deleted

    def owe_flags(self, chunk: Chunk) -> None:
        """The flags in the chunk's file are to be written by the next checkpoint."""
        chunk.flags_dirty = True
        if self.flips is None:
            self.flips = []
        self.flips.append(chunk)

    def prune(self) -> None:
        """Forget chunks inside the log that have no live record left. Many at once give their files back later."""
        dead = [chunk for chunk in self.chunks if not chunk.live]
        if not dead:
            return
        self.chunks = [chunk for chunk in self.chunks if chunk.live]
        if self.spent is not None:
            self.spent += dead
            return
        for chunk in dead:
            chunk.gone = True
        self._set_aside(dead)

    def split_tags(self) -> tuple[list[TagGeneration], TagGeneration | None]:
        """The tag index of records that no segment covers yet: generations that have ended, and the one that grows."""
        generations = [generation for _, generation in self.tag_generations]
        is_open = bool(self.tag_generations) and not self.tag_generations[-1][0]
        return (generations[:-1], generations[-1]) if is_open else (generations, None)

    # --- losing ---------------------------------------------------------------------------------------------------

    def lose(self, first: int, last: int, reason: str) -> None:
        """[first, last] was acked and is gone; the head continues above it if it lay at the end."""
        if first > last:
            return
        low = bisect_left(self.chunks, first, key=_last_seq)
        for chunk in self.chunks[low : bisect_right(self.chunks, last, low, key=attrgetter("first_seq"))]:
            self._kill(chunk, max(0, first - chunk.first_seq), min(len(chunk), last - chunk.first_seq + 1))
        self._pop_dead_front()
        self.holes.add(first, last, reason)
        self.head_seq = max(self.head_seq, last)
        self.next_seq = max(self.next_seq, self.head_seq + 1)
        if self.chunks:
            self.chunks[-1].open = False

    def release_all(self) -> None:
        """The topic is removed: its files are given back, as for a front."""
        self.close_tags()
        self.drop_tags(self.head_seq)
        if self.expiries is not None:
            self.faded, self.expiries = [*(self.faded or ()), *self.expiries.take_apart()], None
        self.let_go(self.spent or ())
        self.spent = None
        self._drop_front(len(self.chunks))


def release(chunk: Chunk) -> None:
    """It is no part of the log any more, and needs its file no longer."""
    chunk.gone = True
    if chunk.file is not None:
        chunk.file.chunks -= 1
        chunk.file.live -= chunk.live


def _takes(tail: Chunk, block: Block) -> bool:
    return tail.block is not None and tail.block.takes(block)


def _live_runs(newest_first: Iterator[Chunk]) -> Iterator[tuple[int, int]]:
    """Runs (first seq, last seq) of live records, the newest first; those of two chunks may touch."""
    for chunk in newest_first:
        n = len(chunk)
        if chunk.live == n:
            yield chunk.first_seq, chunk.last_seq
        elif chunk.live:
            for low, high in reversed(list(runs(span(0, n) & ~chunk.dead))):
                yield chunk.first_seq + low, chunk.first_seq + high - 1
