"""Moving sealed segments to the cold tier, beside everything else.

After a checkpoint there may be more sealed segments of a topic than are to stay hot. The oldest are copied in a thread,
one after another and not too fast; a checkpoint then makes the copies count (see cold.py for the steps of a move). What
the cold tier no longer needs is removed here as well. Nobody waits for any of this. While the cold directory cannot be
used the work is put off, and goes on by itself.

Segments are sealed by checkpoints, which may be a minute apart. So that the hot tier does not grow for as long, one
follows soon after a topic has a segment's worth of new records.
"""

import logging
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator
from functools import partial
from math import inf

import trio

from topics import limits
from topics.core.chunk import DataFile
from topics.core.topic import Topic
from topics.limits import Limits
from topics.shards.cold import ColdTier, ColdUnavailable, Unmovable
from topics.shards.datafile import SEGMENT
from topics.shards.slices import in_slices
from topics.shards.store import Store

log = logging.getLogger(__name__)


def surplus(infos: Iterable[DataFile], bounds: Limits) -> list[DataFile]:
    """The hot segments, oldest first, that are not among the newest that every topic keeps hot."""
    by_topic: dict[int, list[DataFile]] = defaultdict(list)
    for info in infos:
        if info.kind == SEGMENT and not info.cold and info.live:
            by_topic[info.topic_id].append(info)
    found = []
    for segments in by_topic.values():
        segments.sort(key=lambda info: info.path, reverse=True)  # the path ends with the first seq
        kept_bytes = 0
        for newer, info in enumerate(segments):
            kept_bytes += info.size
            if newer >= bounds.hot_retain_segments or 0 < bounds.hot_retain_bytes < kept_bytes:
                found.append(info)
    return sorted(found, key=lambda info: info.id)


def to_move(store: Store) -> list[DataFile]:
    """What may move now, oldest first."""
    waiting = {info.id for info in store.copied}
    free = [info for info in store.data_files.values() if info.id not in waiting and not store.is_kept_hot(info)]
    return surplus(free, store.bounds)


def has_full_segment(topic: Topic, bounds: Limits) -> bool:
    """Whether a checkpoint would seal something."""
    records = size = 0
    for chunk in reversed(topic.logged_chunks()):
        if chunk.file is not None and chunk.file.kind == SEGMENT:
            break
        records += len(chunk)
        size += sum(chunk.sizes)
        if records >= bounds.segment_events or size >= min(limits.PACK_TOPIC_BYTES, bounds.segment_bytes):
            return True
    return False


class Relocator:
    def __init__(self, store: Store, cold: ColdTier, checkpoint: Callable[[], Awaitable[object]]) -> None:
        self._store = store
        self._cold = cold
        self._checkpoint = checkpoint
        self._thread = trio.CapacityLimiter(1)
        self._swept = False
        self._seen = -1  # files there were when nothing was left to move
        self._sealed_s = trio.current_time()
        self._checked_s = -inf

    async def run(self) -> None:
        """Until cancelled. A step under way in a thread is left to itself then: all it can leave is litter."""
        pause_ms = limits.COLD_RETRY_MIN_MS
        while True:
            try:
                await self._seal()
                if self._has_work:
                    await self._work()
                    self._note("")
                    pause_ms = limits.COLD_RETRY_MIN_MS
                await trio.sleep(limits.COLD_CHECK_MS / 1000)
            except ColdUnavailable as error:
                self._note(str(error))
                await trio.sleep(pause_ms / 1000)
                pause_ms = min(2 * pause_ms, limits.COLD_RETRY_MAX_MS)

    @property
    def _has_work(self) -> bool:
        """Whether files have come since nothing was left to do, or anything else is open; now and then just to look."""
        store = self._store
        if trio.current_time() - self._checked_s > limits.COLD_RETRY_MAX_MS / 1000:
            return True
        return bool(not self._swept or store.cold_litter or store.copied or store.next_file_id != self._seen)

    async def _seal(self) -> None:
        """A checkpoint, if one is worth it and the last look is long enough ago."""
        if trio.current_time() - self._sealed_s < limits.COLD_SEAL_MS / 1000:
            return
        full: list[Topic] = []
        await in_slices(self._find_full(full))
        if full:
            await self._checkpoint()
        self._sealed_s = trio.current_time()

    def _find_full(self, found: list[Topic]) -> Iterator[None]:
        for topic in list(self._store.engine.dirty):
            if not self._store.keeps_hot(topic) and has_full_segment(topic, self._store.bounds):
                found.append(topic)
                return
            yield

    def _note(self, problem: str) -> None:
        before, self._cold.problem = self._cold.problem, problem
        if problem and not before:
            log.error(
                "the cold directory cannot be used: %s. Until it is back, segments stay in the data directory, and "
                "reads of those that have moved are refused",
                problem,
            )
        elif before and not problem:
            log.info("the cold directory can be used again")

    async def _work(self) -> None:
        """One round. Raises ColdUnavailable."""
        store = self._store
        await self._in_thread(self._cold.check)
        self._checked_s = trio.current_time()
        if not self._swept:
            known = {info.path for info in store.data_files.values() if info.cold}
            await self._in_thread(partial(self._cold.sweep, known))
            self._swept = True
        await self._clear_litter()
        seen = store.next_file_id
        moves = to_move(store)
        for info in moves[: limits.COLD_MOVES]:
            await self._copy(info)
        if store.copied:
            await self._checkpoint()
        if store.copied:  # it was put off
            await trio.sleep(limits.COLD_RETRY_MIN_MS / 1000)
        if len(moves) <= limits.COLD_MOVES:
            self._seen = seen

    async def _clear_litter(self) -> None:
        """The list stays as it is until the files are gone; more may be added meanwhile."""
        litter = list(self._store.cold_litter)
        if litter:
            await self._in_thread(partial(self._cold.remove, litter))
            del self._store.cold_litter[: len(litter)]

    async def _copy(self, info: DataFile) -> None:
        store = self._store
        if info.id not in store.data_files:
            return
        try:
            await self._in_thread(partial(self._cold.copy, info, _keep_pace))
        except Unmovable as error:
            if info.id in store.data_files:
                log.warning("a segment stays in the data directory: %s", error)
            store.keep_hot(info)
            return
        store.copied.append(info)

    async def _in_thread(self, work: Callable[[], None]) -> None:
        await trio.to_thread.run_sync(work, limiter=self._thread, abandon_on_cancel=True)


def _keep_pace(size: int) -> None:
    time.sleep(size / limits.COLD_COPY_BYTES_PER_S)
