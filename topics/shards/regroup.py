"""Captured blocks, regrouped for their files: small ones joined, the whole cut to segments. Runs in a thread."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import islice

from topics.core.block import BadBlock, Block, coalesce
from topics.limits import Limits
from topics.shards import datafile
from topics.shards.captures import Capture, Source
from topics.shards.datafile import Stored


def coalesced(capture: Capture) -> list[Stored]:
    """The captured records in as few blocks as possible, with what was dead at capture."""
    blocks = []
    readable = []
    for source in capture.sources:
        block = source.block
        if block is None:
            assert source.handle is not None and source.chunk.file is not None
            data = source.handle.read_at(source.chunk.offset, source.chunk.length)
            try:
                block = datafile.decode_frame(data, source.chunk.file.seed)
            except BadBlock:
                continue  # stays where it is; a reader that meets it reports it
        blocks.append(block)
        readable.append(source)
    capture.sources = readable
    topic, spoiled = capture.topic, [source for source in readable if source.dead]
    packing = topic.config.packing
    return [Stored(topic.id, topic.epoch, block, _dead(block, spoiled), packing) for block in coalesce(blocks)]


def _dead(block: Block, spoiled: list[Source]) -> int:
    """The dead bits of `block`, taken from the captured chunks it was made of. Both are in order of seq."""
    dead = 0
    first = bisect_left(spoiled, block.first_seq, key=lambda source: source.chunk.last_seq)
    for source in islice(spoiled, first, None):
        if source.chunk.first_seq > block.last_seq:
            break
        dead |= shift(source.dead, source.chunk.first_seq - block.first_seq, len(block))
    return dead


def shift(mask: int, by: int, n: int) -> int:
    moved = mask << by if by >= 0 else mask >> -by
    return moved & ((1 << n) - 1)


def split(blocks: list[Stored], bounds: Limits) -> Iterator[tuple[list[Stored], bool]]:
    """Runs of at most a segment's records and bytes; the flag tells whether the run is full."""
    group: list[Stored] = []
    events = size = 0
    waiting = list(reversed(blocks))
    while waiting:
        stored = waiting.pop()
        n = len(stored.block)
        # A block has up to 64 KiB. A bound that is smaller cuts it, but not a record.
        fits = max(1, bisect_right(stored.block.ends, bounds.segment_bytes))
        if n > fits:
            waiting.append(_part(stored, fits, n))
            stored = _part(stored, 0, fits)
            n = fits
        room = bounds.segment_events - events
        if n > room:
            waiting.append(_part(stored, room, n))
            if not room:
                yield group, True
                group, events, size = [], 0, 0
                continue
            stored = _part(stored, 0, room)
            n = room
        if group and size + len(stored.block.text) > bounds.segment_bytes:
            yield group, True
            group, events, size = [], 0, 0
        group.append(stored)
        events += n
        size += len(stored.block.text)
    if group:
        yield group, events >= bounds.segment_events or size >= bounds.segment_bytes


def _part(stored: Stored, low: int, high: int) -> Stored:
    mask = (stored.dead >> low) & ((1 << (high - low)) - 1)
    return stored._replace(block=stored.block.cut(low, high), dead=mask)
