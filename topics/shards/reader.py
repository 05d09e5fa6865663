"""Fetching blocks that are not resident, without ever stopping the loop.

A block that the page cache holds is read in place (RWF_NOWAIT), a few in one turn of the loop; anything else is read
in a thread. So is what is compressed and more than a turn may unpack; unpacked blocks are kept for a while
(unpacked.py). A block that does not check is reported as lost: its range becomes a hole, and the read is planned anew
so that the reader is told.

Blocks in the cold tier are always read in threads, a few of them, which nothing else uses. If the cold directory cannot
be read, or not soon enough, the reader is refused: that says nothing about the records.
"""

import time
from collections.abc import Callable, Sequence

import trio

from topics import limits
from topics.core.block import BadBlock, Block
from topics.core.blockform import BlockHead, is_packed, stored_text
from topics.core.chunk import DataFile
from topics.core.diff import Plan, Window
from topics.core.loss import CORRUPT
from topics.core.packing import compression_of, is_loaded
from topics.core.topic import Topic
from topics.shards import datafile
from topics.shards.cold import ColdUnavailable, place_of, read_in_thread, refusal
from topics.shards.files import File
from topics.shards.store import Store
from topics.shards.unpacked import UnpackedBlocks

READ_THREADS = 4


class SegmentGone(Exception):
    """What was to be read went meanwhile with all its records: look again."""


Missing = tuple[Window, File | None]  # None: in the cold tier


class BlockReader:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._threads = trio.CapacityLimiter(READ_THREADS)
        self.damaged_blocks = 0

    def missing(self, plan: Plan) -> list[Missing]:
        """Fill in what can be had at once; what is left, with the files to read it from. Raises BadBlock.

        The files are taken now, while the plan's state stands: one that is retired later stays readable.
        """
        absent = [(window, self._handle(window)) for window in plan.windows if not self._has_block(window)]
        if len(absent) > limits.INLINE_BLOCKS:
            return absent
        turn = _Turn(self._store.unpacked)
        return [(window, handle) for window, handle in absent if not turn.read(window, handle)]

    def _has_block(self, window: Window) -> bool:
        if window.block is None:
            window.block = self._store.unpacked.get(window.chunk)
        return window.block is not None

    def _handle(self, window: Window) -> File | None:
        file = _file(window)
        return None if file.cold else self._store.handles.get(file)

    async def fill(self, missing: Sequence[Missing]) -> int:
        """Read the rest: from the page cache in short turns, from the disk in a thread; how many cold segments.

        Raises BadBlock, OSError, SegmentGone, or a refusal if cold blocks cannot be had now.
        """
        waiting: list[tuple[Window, File]] = []
        turn = _Turn(self._store.unpacked)
        for window, handle in missing:
            if handle is not None and not turn.read(window, handle):
                waiting.append((window, handle))
            if turn.is_over:
                await trio.lowlevel.checkpoint()
                turn = _Turn(self._store.unpacked)
        if waiting:
            unpacked = await trio.to_thread.run_sync(_read_all, waiting, limiter=self._threads, abandon_on_cancel=True)
            for window in unpacked:
                _keep(self._store.unpacked, window)
        cold = [window for window, handle in missing if handle is None]
        return await self._fill_cold(cold) if cold else 0

    async def _fill_cold(self, windows: list[Window]) -> int:
        segments = len({_file(window).id for window in windows})
        try:
            blocks = await read_in_thread(self._store.cold, [place_of(window.chunk) for window in windows])
        except ColdUnavailable as error:
            if all(_file(window).id in self._store.data_files for window in windows):
                raise refusal(str(error)) from error
            raise SegmentGone from error
        for window, block in zip(windows, blocks, strict=True):
            window.block = block
            window.damaged = block is None
        if None in blocks:
            raise BadBlock("a block in the cold tier does not check")
        return segments

    def report_damage(self, topic: Topic, plan: Plan, then: Callable[[], None]) -> None:
        """Record the ranges of the plan's bad blocks as lost; `then` runs when readers see that.

        Readers have nothing to be told of what is dead; a router that wanted it (remains.py) finds it gone.
        """
        bad = [window.chunk for window in plan.windows if window.block is None and not self._readable(window)]
        self.damaged_blocks += len(bad)
        spent = {id(chunk) for chunk in topic.spent or ()}
        topic.let_go(bad)
        bad = [chunk for chunk in bad if id(chunk) not in spent]
        if not bad:
            then()
        for chunk in bad:  # applied in this order, perhaps not before writes that are pending now
            done = (lambda _: then()) if chunk is bad[-1] else (lambda _: None)
            self._store.engine.lose_range(topic, chunk.first_seq, chunk.last_seq, CORRUPT, done)

    def _readable(self, window: Window) -> bool:
        """Of a cold block only what a thread has found out."""
        handle = self._handle(window)
        if handle is None:
            return not window.damaged
        try:
            _read_all([(window, handle)])
        except BadBlock:
            return False
        return True


def _file(window: Window) -> DataFile:
    assert window.chunk.file is not None
    return window.chunk.file


class _Turn:
    """What the loop reads before others get their turn."""

    def __init__(self, unpacked: UnpackedBlocks) -> None:
        self._unpacked = unpacked
        self._room = limits.INLINE_UNPACK_BYTES
        self._until = time.perf_counter_ns() + limits.YIELD_AFTER_NS

    @property
    def is_over(self) -> bool:
        return time.perf_counter_ns() > self._until

    def read(self, window: Window, handle: File | None) -> bool:
        """Whether its block could be had at once. Raises BadBlock."""
        data = handle.read_cached(window.chunk.offset, window.chunk.length) if handle is not None else None
        if data is None:
            return False
        if not is_packed(data):
            window.block = _decode(window, data)
            return True
        head = BlockHead(data)
        if head.text_len > self._room or not is_loaded(compression_of(stored_text(data, head))):
            return False
        self._room -= head.text_len
        window.block = datafile.decode_frame(data, _file(window).seed)
        _keep(self._unpacked, window)
        return True


def _read_all(missing: Sequence[tuple[Window, File]]) -> list[Window]:
    """Read the blocks; those that were compressed."""
    unpacked = []
    for window, handle in missing:
        data = handle.read_at(window.chunk.offset, window.chunk.length)
        if is_packed(data):
            window.block = datafile.decode_frame(data, _file(window).seed)
            unpacked.append(window)
        else:
            window.block = _decode(window, data)
    return unpacked


def _keep(unpacked: UnpackedBlocks, window: Window) -> None:
    assert window.block is not None
    unpacked.add(window.chunk, window.block)


def _decode(window: Window, data: bytes | bytearray) -> Block:
    decode = datafile.decode_texts if window.texts_only else datafile.decode_frame
    return decode(data, _file(window).seed)
