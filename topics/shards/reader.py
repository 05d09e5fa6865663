"""Fetching blocks that are not resident, without ever stopping the loop.

A block that the page cache holds is read in place (RWF_NOWAIT); anything else is read in a thread. A block that does
not check is reported as lost: its range becomes a hole, and the read is planned anew so that the reader is told.
"""

from collections.abc import Callable

import trio

from topics.core.block import BadBlock
from topics.core.diff import Plan, Window
from topics.core.loss import CORRUPT
from topics.core.topic import Topic
from topics.shards import datafile
from topics.shards.files import File
from topics.shards.store import Store

READ_THREADS = 4


class BlockReader:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._threads = trio.CapacityLimiter(READ_THREADS)
        self.damaged_blocks = 0

    def fill_cached(self, plan: Plan) -> list[tuple[Window, File]]:
        """Fill in what can be had at once; what is left, with the files to read it from.

        The files are taken now, while the plan's state stands: one that is retired later stays readable.
        """
        missing = []
        for window in plan.windows:
            if window.block is None:
                chunk = window.chunk
                assert chunk.file is not None
                handle = self._store.handles.get(chunk.file)
                data = handle.read_cached(chunk.offset, chunk.length)
                if data is None:
                    missing.append((window, handle))
                else:
                    window.block = datafile.decode_frame(data, chunk.file.seed)
        return missing

    async def fill(self, missing: list[tuple[Window, File]]) -> None:
        """Read the rest in a thread. Raises BadBlock or OSError."""
        await trio.to_thread.run_sync(_read_all, missing, limiter=self._threads, abandon_on_cancel=True)

    def report_damage(self, topic: Topic, plan: Plan, then: Callable[[], None]) -> None:
        """Find the bad blocks of a plan and record their ranges as lost, then go on."""
        self.damaged_blocks += 1
        bad = [window for window in plan.windows if window.block is None and not _readable(self._store, window)]
        for window in bad:
            chunk = window.chunk
            self._store.engine.lose_range(topic, chunk.first_seq, chunk.last_seq, CORRUPT, lambda _: None)
        then()


def _read_all(missing: list[tuple[Window, File]]) -> None:
    for window, handle in missing:
        chunk = window.chunk
        assert chunk.file is not None
        window.block = datafile.decode_frame(handle.read_at(chunk.offset, chunk.length), chunk.file.seed)


def _readable(store: Store, window: Window) -> bool:
    chunk = window.chunk
    assert chunk.file is not None
    try:
        datafile.decode_frame(store.handles.get(chunk.file).read_at(chunk.offset, chunk.length), chunk.file.seed)
    except BadBlock:
        return False
    return True
