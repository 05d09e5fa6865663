"""What a feed got from its shard in one answer: blocks, rendered once for each view that somebody has of them."""

from collections.abc import Iterator, Sequence
from time import monotonic
from typing import NamedTuple, Protocol

from topics.core.blockform import decode_block
from topics.core.diff import Buffer, Slice, render
from topics.core.loss import resumes_at
from topics.core.requests import Diff, quoted
from topics.core.watching import Subscription
from topics.errors import TopicsError
from topics.rpc.open_calls import Reply


class Gap(NamedTuple):
    """A tombstone, as shards send it."""

    gap_from: int
    gap_to: int
    reason: str
    missed: int

    def members(self, earliest_seq: int, head_seq: int) -> bytes:
        """Of its tombstone, but for the topic."""
        return (
            b'"$type":"tombstone","$seq":%d,"reason":"%b","gap_from":%d,"gap_to":%d,"missed_estimate":%d,'
            b'"earliest_seq":%d,"head_seq":%d'
        ) % (
            resumes_at(self.reason, self.gap_to, earliest_seq),
            self.reason.encode(),
            self.gap_from,
            self.gap_to,
            self.missed,
            earliest_seq,
            head_seq,
        )


class View:
    """What a reader wants to see of a record, and how much at a time. Equal ones are one object (`view_of`)."""

    __slots__ = ("__weakref__", "query", "subscription")

    def __init__(self, subscription: Subscription) -> None:
        self.subscription = subscription
        self.query = Diff(
            limit=subscription.limit,
            nodes=frozenset(quoted(node) for node in subscription.nodes),
            include_tags=subscription.tags,
            include_meta=subscription.meta,
            include_data=subscription.data,
            batch_bytes=subscription.batch_bytes,
        )


class Renderer(Protocol):
    """How frames look: SSE or WebSocket."""

    def record(
        self, topic: str, pieces: Sequence[Buffer], from_seq: int, to_seq: int, head_seq: int
    ) -> list[bytes]: ...

    def tombstone(self, topic: str, gap: Gap, earliest_seq: int, head_seq: int) -> bytes: ...

    def caught_up(self, topic: str, head_seq: int) -> bytes: ...

    def throttled(self, topic: str, wait_ms: int) -> bytes: ...

    def unavailable(self, topic: str, error: TopicsError) -> bytes: ...

    def topic_deleted(self, topic: str, head_seq: int) -> bytes: ...


class Frame(NamedTuple):
    """One frame of a batch, and where its topic stands after it. Nothing to send: all records were filtered out."""

    to_seq: int
    buffers: list[bytes]


class Batch:
    """Records (from_seq, to_seq] of one topic."""

    __slots__ = (
        "_dedupe", "_frames", "arrived", "earliest_seq", "epoch", "from_seq", "gap", "head_seq", "size",
        "slices", "throttle_ms", "to_seq", "topic",
    )  # fmt: skip

    def __init__(self, topic: str, reply: Reply) -> None:
        head = reply.head
        self.topic = topic
        self.from_seq: int = head["from_seq"]
        self.to_seq: int = head["to_seq"]
        self.head_seq: int = head["head_seq"]
        self.earliest_seq: int = head["earliest_seq"]
        self.epoch: int = head["epoch"]
        self.gap = Gap(*head["tombstone"]) if head["tombstone"] else None
        self.throttle_ms: int = head["throttle_ms"]
        self.size = len(reply.body)
        self.arrived = monotonic()
        self.slices = list(_slices(reply.body, head["dead"]))
        self._dedupe: bool = head["dedupe"]
        self._frames: dict[tuple[View, Renderer, int], list[Frame]] = {}

    @property
    def empty(self) -> bool:
        return self.to_seq == self.from_seq and self.gap is None

    def frames(self, view: View, renderer: Renderer, from_seq: int) -> list[Frame]:
        """For a reader at `from_seq`, which is this batch's or lies within it. Rendered once."""
        key = (view, renderer, from_seq)
        found = self._frames.get(key)
        if found is None:
            found = self._frames[key] = list(self._render(view, renderer, from_seq))
        return found

    def _render(self, view: View, renderer: Renderer, from_seq: int) -> Iterator[Frame]:
        slices = self.slices
        if from_seq > self.from_seq:
            slices = [part for part in (_after(part, from_seq) for part in slices) if part is not None]
        parts = list(split(slices, view.query.limit, view.query.batch_bytes))
        for index, (group, last_seq) in enumerate(parts):
            to_seq = last_seq if index + 1 < len(parts) else self.to_seq
            pieces = render(group, view.query, filter_nodes=self._dedupe)
            buffers = renderer.record(self.topic, pieces, from_seq, to_seq, self.head_seq) if pieces else []
            yield Frame(to_seq, buffers)
            from_seq = to_seq
        if not parts:
            yield Frame(self.to_seq, [])


def _slices(body: bytes, masks: list[bytes]) -> Iterator[Slice]:
    offset = 0
    for mask in masks:
        block, head = decode_block(body, offset)
        offset += head.frame_len
        yield Slice(block, int.from_bytes(mask, "little"), 0, len(block))


def _after(part: Slice, seq: int) -> Slice | None:
    assert part.block is not None
    low = max(part.low, seq + 1 - part.block.first_seq)
    return Slice(part.block, part.dead, low, part.high) if low < part.high else None


def split(slices: Sequence[Slice], limit: int, budget: int) -> Iterator[tuple[list[Slice], int]]:
    """Groups of at most `limit` live records and `budget` bytes (but one record at least), each with its last seq.

    The last seq of the last group is not to be relied on.
    """
    if sum(part.high - part.low for part in slices) <= limit and sum(map(_text_size, slices)) <= budget:
        if slices:
            yield list(slices), 0
        return
    group: list[Slice] = []
    room, left, last = limit, budget, 0
    for part in slices:
        assert part.block is not None
        block, sizes, low = part.block, part.block.sizes(), part.low
        for index in range(part.low, part.high):
            if part.dead >> index & 1:
                continue
            if not room or (sizes[index] > left and room < limit):
                if low < index:
                    group.append(Slice(block, part.dead, low, index))
                yield group, last
                group, low, room, left = [], index, limit, budget
            room -= 1
            left -= sizes[index]
            last = block.first_seq + index
        group.append(Slice(block, part.dead, low, part.high))
    if group:
        yield group, last


def _text_size(part: Slice) -> int:
    assert part.block is not None
    return len(part.block.text) + len(part.block.tags)
