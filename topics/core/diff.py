"""The read path: choose a window of the log, then cut it out of its blocks.

`plan` runs against the topic's state at one instant and fixes everything that the answer will say: which records,
which tombstone, where the cursor goes. Blocks that are not resident are fetched afterwards; `render` then only
slices. So a record that is evicted or deleted while a block is being read cannot turn into a silent gap.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence

import msgspec

from topics.core.bits import runs, span
from topics.core.block import Block
from topics.core.chunk import Chunk
from topics.core.loss import RECREATED, Tombstone
from topics.core.requests import U64_MAX, Diff
from topics.core.topic import SEQ_BASE, Topic

Buffer = bytes | bytearray | memoryview
META_HEAD = len(b',"meta":')
RUNS_MAX = 8  # of the records of a block; more than that are joined, because each costs whoever sends it


class Slice(msgspec.Struct):
    """Records [low, high) of a block, without those whose bit in `dead` is set."""

    block: Block | None
    dead: int
    low: int
    high: int


class Window(Slice):
    """A slice of one chunk, as it was when the plan was made. Its block may have to be fetched."""

    chunk: Chunk
    texts_only: bool = False  # of a block that is fetched, nothing but its texts is needed
    damaged: bool = False  # whoever fetched its block found that it does not check


class Plan(msgspec.Struct):
    windows: list[Window]
    tombstone: Tombstone | None
    next_from_seq: int
    head_seq: int
    earliest_seq: int
    scanned: int

    @property
    def caught_up(self) -> bool:
        return self.next_from_seq == self.head_seq

    @property
    def empty(self) -> bool:
        """Nothing to tell: a long-poll may wait."""
        return self.caught_up and not self.windows and self.tombstone is None


def plan(topic: Topic, query: Diff, epoch: int = 0, until: int = U64_MAX) -> Plan:
    """What a diff at this instant answers. The caller has expired the topic.

    `epoch` is that of the life the cursor is from, 0 if it does not say. Seqs above `until` are not there yet.
    """
    head = min(topic.head_seq, until)
    earliest = topic.earliest_seq
    from_seq = query.from_seq
    if from_seq > topic.head_seq or (epoch and epoch != topic.epoch):  # a cursor from another life of this name
        tombstone: Tombstone | None = Tombstone(SEQ_BASE, head, RECREATED, 0)
        start = earliest - 1
    else:
        tombstone = topic.gap_after(from_seq)
        start = tombstone.gap_to if tombstone is not None else from_seq
    missing = topic.derived.first_missing(start) if topic.derived is not None and topic.derived.missing else None
    windows, scanned, next_from = _select(topic, start, query, head if missing is None else min(head, missing - 1))
    next_from = max(start, next_from)  # what lies beyond `until` may be a gap, or where a cursor already is
    return Plan(windows, tombstone, next_from, max(head, next_from), earliest, scanned)


def _select(topic: Topic, start: int, query: Diff, head: int) -> tuple[list[Window], int, int]:
    hole = topic.holes.after(start) if topic.holes.items else None
    stop = min(hole.first, head + 1) if hole is not None else head + 1  # records below this may be delivered
    windows: list[Window] = []
    room, budget, scanned = query.limit, query.batch_bytes, 0
    last = start
    chunks = topic.chunks
    for index in range(bisect_right(chunks, start, key=lambda chunk: chunk.last_seq), len(chunks)):
        chunk = chunks[index]
        if chunk.first_seq >= stop:
            break
        if not chunk.live:
            continue
        low = max(0, start + 1 - chunk.first_seq)
        high = min(len(chunk), stop - chunk.first_seq)
        high, taken, size = _fit(chunk, low, high, room, budget, first=not windows)
        if taken:
            dead = chunk.dead
            if topic.over is not None:
                dead |= topic.over.bits(chunk.first_seq, len(chunk))[0]
            windows.append(Window(chunk.block, dead, low, high, chunk))
            room -= taken
            budget -= size
            scanned += high - low
            last = chunk.first_seq + high - 1
        if not room or chunk.first_seq + high < min(stop, chunk.last_seq + 1):
            return windows, scanned, _settle(topic, last, stop)
    return windows, scanned, stop - 1


def _settle(topic: Topic, last: int, stop: int) -> int:
    """The cursor after a full window: just before the next record there is, so that removed ones are skipped once."""
    return min(topic.next_live(last), stop) - 1


def _fit(chunk: Chunk, low: int, high: int, room: int, budget: int, *, first: bool) -> tuple[int, int, int]:
    """(end, live records, bytes) of the longest run from `low` within room and budget; one record if `first`."""
    if not chunk.dead:
        end = min(high, low + room)
        size = chunk.live_bytes if end - low == len(chunk) else sum(chunk.sizes[low:end])
        if size <= budget:
            return end, end - low, size
    taken = size = 0
    dead, sizes = chunk.dead, chunk.sizes
    for index in range(low, high):
        if dead >> index & 1:
            continue
        if taken == room or (size + sizes[index] > budget and not (first and not taken)):
            return index, taken, size
        taken += 1
        size += sizes[index]
    return high, taken, size


# --- rendering ----------------------------------------------------------------------------------------------------


def render(windows: Sequence[Slice], query: Diff, *, filter_nodes: bool) -> list[Buffer]:
    """The records' texts, to be joined by commas. Every window's block is present."""
    pieces: list[Buffer] = []
    nodes = query.nodes if filter_nodes else frozenset()
    for window in windows:
        pieces += _pieces(window, query, nodes)
    return pieces


def render_into(pieces: list[Buffer], windows: Sequence[Slice], query: Diff, *, filter_nodes: bool) -> Iterator[None]:
    """The same, a window a step."""
    nodes = query.nodes if filter_nodes else frozenset()
    for window in windows:
        pieces += _pieces(window, query, nodes)
        yield


def count(windows: Sequence[Slice], query: Diff, *, filter_nodes: bool) -> int:
    """How many records `render` shows."""
    nodes = query.nodes if filter_nodes else frozenset()
    shown = 0
    for window in windows:
        assert window.block is not None
        shown += _shown(window.block, window, _hidden(window.block, nodes)).bit_count()
    return shown


def _hidden(block: Block, nodes: frozenset[bytes]) -> set[int]:
    """Numbers of the nodes whose records are not for this reader."""
    return {i + 1 for i, node in enumerate(block.nodes) if node in nodes} if nodes and block.nodes else set()


def _pieces(window: Slice, query: Diff, nodes: frozenset[bytes]) -> list[Buffer]:
    block = window.block
    assert block is not None
    shown = _shown(block, window, _hidden(block, nodes))
    whole = (
        query.include_data
        and (query.include_meta or not any(block.meta_lens))
        and not (query.include_tags and block.tags)
    )
    if not whole:
        return [_views(block, shown, query)] if shown else []
    pieces: list[Buffer] = []
    for low, high in runs(shown):
        text = memoryview(block.text)[block.start(low) : block.ends[high - 1]]
        # The block of an open tail goes on growing, which it cannot while somebody looks at its text.
        pieces.append(text.tobytes() if isinstance(block.text, bytearray) else text)
    return pieces if len(pieces) <= RUNS_MAX else [b",".join(pieces)]


def _shown(block: Block, window: Slice, hidden: set[int]) -> int:
    """The mask of the records to deliver."""
    shown = span(window.low, window.high) & ~window.dead
    if hidden:
        for index, node in enumerate(block.node_ids[window.low : window.high], window.low):
            if node in hidden:
                shown &= ~(1 << index)
    return shown


def _views(block: Block, shown: int, query: Diff) -> bytes:
    """Records with their tags spliced in, or without meta or data: one text a block, however many they are."""
    text, ends, tags, tag_ends = block.text, block.ends, block.tags, block.tag_ends
    data, meta = query.include_data, query.include_meta
    with_tags = query.include_tags and bool(tags)
    parts: list[Buffer] = []
    for low, high in runs(shown):
        start, tag_start = block.start(low), tag_ends[low - 1] if low else 0
        for index in range(low, high):
            end, data_at = ends[index], start + block.data_offs[index]
            meta_len = block.meta_lens[index]
            meta_at = end - 1 - (META_HEAD + meta_len if meta_len else 0)
            if with_tags and tag_ends[index] > tag_start:
                parts += (text[start:data_at], b',"$tag":', tags[tag_start : tag_ends[index]])
                start = data_at
            if data:
                parts.append(text[start : end if meta else meta_at])
            else:
                parts.append(text[start:data_at])
                parts.append(text[meta_at:end] if meta else b"")
            parts.append(b"," if meta else b"},")
            start, tag_start = end + 1, tag_ends[index]
    return b"".join(parts)[:-1]
