"""The last step of a checkpoint in the loop: topics give up captured chunks for the stored ones.

What died since the capture stays dead; if the file does not know of it, its flags are owed (`Topic.flips`). Done in
steps, each of which leaves the topic whole, so that other calls are served in between.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import TYPE_CHECKING

from topics.core.chunk import Chunk
from topics.core.topic import Topic, release
from topics.shards.captures import Capture, Output
from topics.shards.regroup import shift

if TYPE_CHECKING:
    from topics.shards.store import Store

STEP = 32  # stored blocks that are put in place before others get their turn


def install(store: "Store", capture: Capture) -> Iterator[None]:
    """Replace the captured chunks that are still in the log by the stored ones."""
    topic = capture.topic
    captured = {id(source.chunk) for source in capture.sources}
    for group in _steps(capture):
        if store.engine.state.by_id.get(topic.id) is not topic:
            return
        _replace(store, topic, captured, group)
        yield
    if topic.spent:  # dead chunks that were captured, or have died since, have successors too
        topic.let_go([chunk for chunk in topic.spent if id(chunk) in captured])
        store.engine.graves.note(topic)
    if topic.flips:  # what was deleted in them meanwhile is owed by their successors
        topic.flips = [chunk for chunk in topic.flips if id(chunk) not in captured]
    topic.drop_tags(capture.last_seq)
    store.engine.graves.note(topic)
    while capture.sources or capture.outputs:  # a large topic's old blocks would take long to free in one go
        del capture.sources[-STEP:], capture.outputs[-STEP:]
        yield


def _steps(capture: Capture) -> Iterator[list[Output]]:
    """The outputs in groups that begin and end where captured chunks do."""
    ends = {source.chunk.last_seq for source in capture.sources}
    group: list[Output] = []
    for output in capture.outputs:
        group.append(output)
        if len(group) >= STEP and output.chunk.last_seq in ends:
            yield group
            group = []
    if group:
        yield group


def _replace(store: "Store", topic: Topic, captured: set[int], group: list[Output]) -> None:
    first, last = group[0].chunk.first_seq, group[-1].chunk.last_seq
    low = bisect_left(topic.chunks, first, key=lambda chunk: chunk.last_seq)
    high = bisect_right(topic.chunks, last, key=lambda chunk: chunk.first_seq)
    old = [chunk for chunk in topic.chunks[low:high] if id(chunk) in captured]
    others = [chunk for chunk in topic.chunks[low:high] if id(chunk) not in captured]
    stored = [output.chunk for output in group if _take_over(topic, output, old)]
    topic.chunks[low:high] = sorted(stored + others, key=lambda chunk: chunk.first_seq)
    for chunk in stored:
        store.cache.add(chunk)
    for chunk in old:
        release(chunk)


def _take_over(topic: Topic, output: Output, old: list[Chunk]) -> bool:
    """Make the stored chunk say what its predecessors say now; whether anything in it is live."""
    chunk = output.chunk
    n = len(chunk)
    dead = ~_alive(chunk, old) & ((1 << n) - 1)
    chunk.kill(dead)
    chunk.file = output.info
    if not chunk.live and topic.spent is None:
        chunk.gone = True
    else:
        output.info.chunks += 1
        output.info.live += chunk.live
        if not chunk.live and topic.spent is not None:
            chunk.block = None  # whoever wants it reads the file
            topic.spent.append(chunk)
    if dead & ~output.dead:  # deleted since capture: the log still knows, the file does not
        topic.owe_flags(chunk)
    return chunk.live > 0


def _alive(chunk: Chunk, old: list[Chunk]) -> int:
    """The records of `chunk` that are live in its predecessors."""
    alive = 0
    for index in range(bisect_left(old, chunk.first_seq, key=lambda previous: previous.last_seq), len(old)):
        previous = old[index]
        if previous.first_seq > chunk.last_seq:
            break
        live_bits = ~previous.dead & ((1 << len(previous)) - 1)
        alive |= shift(live_bits, previous.first_seq - chunk.first_seq, len(chunk))
    return alive
