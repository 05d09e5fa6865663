"""Fetching blocks that are not resident, without ever stopping the loop.

A block that the page cache holds is read in place (RWF_NOWAIT), a few in one turn of the loop; anything else is read
in a thread. A block that does not check is reported as lost: its range becomes a hole, and the read is planned anew so
that the reader is told.
"""

import time
from collections.abc import Callable, Sequence

import trio

from topics import limits
from topics.core.block import BadBlock, Block
from topics.core.chunk import DataFile
from topics.core.diff import Plan, Window
from topics.core.loss import CORRUPT
from topics.core.topic import Topic
from topics.shards import datafile
from topics.shards.files import File
from topics.shards.store import Store

READ_THREADS = 4

Missing = tuple[Window, File]


class BlockReader:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._threads = trio.CapacityLimiter(READ_THREADS)
        self.damaged_blocks = 0

    def missing(self, plan: Plan) -> list[Missing]:
        """Fill in what can be had at once; what is left, with the files to read it from. Raises BadBlock.

        The files are taken now, while the plan's state stands: one that is retired later stays readable.
        """
        absent = [(window, self._store.handles.get(_file(window))) for window in plan.windows if window.block is None]
        if len(absent) > limits.INLINE_BLOCKS:
            return absent
        return [(window, handle) for window, handle in absent if not _read_cached(window, handle)]

    async def fill(self, missing: Sequence[Missing]) -> None:
        """Read the rest: from the page cache in short turns, from the disk in a thread. Raises BadBlock or OSError."""
        cold = []
        until = time.perf_counter_ns() + limits.YIELD_AFTER_NS
        for window, handle in missing:
            if not _read_cached(window, handle):
                cold.append((window, handle))
            if time.perf_counter_ns() > until:
                await trio.lowlevel.checkpoint()
                until = time.perf_counter_ns() + limits.YIELD_AFTER_NS
        if cold:
            await trio.to_thread.run_sync(_read_all, cold, limiter=self._threads, abandon_on_cancel=True)

    def report_damage(self, topic: Topic, plan: Plan, then: Callable[[], None]) -> None:
        """Record the ranges of the plan's bad blocks as lost; `then` runs when readers see that."""
        bad = [window.chunk for window in plan.windows if window.block is None and not self._readable(window)]
        self.damaged_blocks += len(bad)
        if not bad:
            then()
        for chunk in bad:  # applied in this order, perhaps not before writes that are pending now
            done = (lambda _: then()) if chunk is bad[-1] else (lambda _: None)
            self._store.engine.lose_range(topic, chunk.first_seq, chunk.last_seq, CORRUPT, done)

    def _readable(self, window: Window) -> bool:
        try:
            _read_all([(window, self._store.handles.get(_file(window)))])
        except BadBlock:
            return False
        return True


def _file(window: Window) -> DataFile:
    assert window.chunk.file is not None
    return window.chunk.file


def _read_cached(window: Window, handle: File) -> bool:
    data = handle.read_cached(window.chunk.offset, window.chunk.length)
    if data is not None:
        window.block = _decode(window, data)
    return data is not None


def _read_all(missing: Sequence[Missing]) -> None:
    for window, handle in missing:
        window.block = _decode(window, handle.read_at(window.chunk.offset, window.chunk.length))


def _decode(window: Window, data: bytes | bytearray) -> Block:
    decode = datafile.decode_texts if window.texts_only else datafile.decode_frame
    return decode(data, _file(window).seed)
