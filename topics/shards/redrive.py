"""The call `redrive`: dead letters go back to a queue, here or on another shard.

    head        topic
    body        request: to, match, limit
    reply head  perf
    reply body  open fragment: topic, to, moved, remaining, pending

They are taken in the order of their seqs; of a topic that is a queue itself only those that nobody holds. Each is moved
like a dead letter on its way there (deadletters.py), so a crash of either side loses none and leaves none twice. The
answer comes when all are over, or after a while: `pending` are then still on their way, and get there.
"""

from collections.abc import Callable, Iterator
from itertools import islice

import trio

from topics import errors, limits
from topics.aside import run_aside
from topics.core.bits import runs, span
from topics.core.chunk import Chunk
from topics.core.line import chunk_of, chunks_above
from topics.core.queue_requests import Redrive, decode_redrive
from topics.core.ranges import SeqRanges
from topics.core.replies import opened
from topics.core.tags import Pattern
from topics.core.topic import Topic
from topics.errors import TopicsError, not_a_queue, topic_not_found
from topics.rpc.calls import Call
from topics.rpc.errors import RpcError
from topics.shards.copies import Copies
from topics.shards.deadletters import DeadLetters
from topics.shards.heads import TopicHead, read_head
from topics.shards.queue import Queue
from topics.shards.slices import in_slices
from topics.shards.store import Store


class Redrives:
    def __init__(
        self, store: Store, copies: Copies, dead_letters: DeadLetters, queue_of: Callable[[Topic], Queue]
    ) -> None:
        self._store = store
        self._engine = store.engine
        self._copies = copies
        self._dead_letters = dead_letters
        self._queue_of = queue_of

    def redrive(self, call: Call) -> None:
        name = read_head(call.head, TopicHead).topic
        request = decode_redrive(call.body, name, self._store.bounds)
        topic = self._engine.state.find(name)
        call.run(self._redrive, call, topic, request)

    async def _redrive(self, call: Call, topic: Topic, request: Redrive) -> None:
        """Cancelled before the first moves are logged it has done nothing; afterwards those that are go on."""
        await self._check_queue(request.to)
        matching = await self._matching(topic, request)
        queue = self._queue_of(topic)
        await queue.up_to_now()
        if queue.is_gone:
            raise topic_not_found(topic.name)
        letters = _Letters(queue, matching)
        await in_slices(letters.find(request.limit))
        if queue.is_gone:
            raise topic_not_found(topic.name)
        total = letters.count()
        outcomes: list[TopicsError | None] = []
        begun, refusal = await self._move(queue, letters.seqs, request.to, outcomes)
        moved = outcomes.count(None)
        refusal = next((error for error in outcomes if error is not None), refusal)
        if refusal is not None:
            message = f"{refusal.message} ({moved} dead letters were moved before, the others are where they were)"
            raise TopicsError(refusal.code, message, {**refusal.detail, "moved": moved})
        fields = {
            "topic": topic.name,
            "to": request.to,
            "moved": moved,
            "remaining": total - begun,
            "pending": begun - len(outcomes),
        }
        call.reply({"perf": {}}, opened(fields))

    async def _check_queue(self, name: str) -> None:
        try:
            found = await self._copies.type_of(name)
        except RpcError as error:
            message = f'the shard of topic "{name}" does not answer; nothing was moved, retry in a moment'
            raise TopicsError(errors.NOT_READY, message, {"topic": name, "retry_after_ms": 1000}) from error
        if found != "queue":
            raise not_a_queue(name)

    async def _matching(self, topic: Topic, request: Redrive) -> SeqRanges | None:
        """Seqs of what may be moved; some may be dead. None: all that are live."""
        if request.match is None:
            return None
        return await run_aside(self._store.plan_match(topic, Pattern(request.match), None).resolve)

    async def _move(
        self, queue: Queue, seqs: list[int], to: str, outcomes: list[TopicsError | None]
    ) -> tuple[int, TopicsError | None]:
        """Until all are over, but not for too long. How many have begun, and why others have not, unless that is why
        none has: then it raises."""
        begun = 0
        is_all = False
        all_over = trio.Event()

        def over(refusal: TopicsError | None) -> None:
            outcomes.append(refusal)
            if is_all and len(outcomes) == begun:
                all_over.set()

        refusal = None
        for first in range(0, len(seqs), limits.REDRIVE_STEP):
            some = [seq for seq in seqs[first : first + limits.REDRIVE_STEP] if _may_go(queue, seq)]
            try:
                if some:
                    self._dead_letters.start_back(queue, some, to, over)
            except TopicsError as error:
                if not begun:
                    raise
                refusal = error
                break
            begun += len(some)
            await trio.lowlevel.checkpoint()
        is_all = True
        if len(outcomes) < begun:
            with trio.move_on_after(limits.REDRIVE_WAIT_MS / 1000):
                await all_over.wait()
        return begun, refusal


class _Letters:
    """The dead letters that a call is about. A topic may have millions, so they are looked at a chunk a step."""

    def __init__(self, queue: Queue, matching: SeqRanges | None) -> None:
        self.seqs: list[int] = []  # of those that may go now, as many as are wanted
        self._queue = queue
        self._matching = matching
        self._counted: dict[int, tuple[Chunk, int, int]] = {}  # chunks, what was dead in them, and how many match

    def find(self, most: int) -> Iterator[None]:
        topic, at = self._queue.topic, 0
        while (chunk := next(chunks_above(topic, at), None)) is not None:
            if len(self.seqs) < most:
                is_idle = self._queue.leases.is_idle
                seqs = (chunk.first_seq + index for low, high in runs(self._mask(chunk)) for index in range(low, high))
                self.seqs += islice(filter(is_idle, seqs), most - len(self.seqs))
            elif self._matching is None:
                return
            if self._matching is not None:
                self._count(chunk)
            at = chunk.last_seq
            yield

    def count(self) -> int:
        """All that match at this moment, without those that are on their way already."""
        topic, moving = self._queue.topic, self._queue.leases.moving
        if self._matching is None:
            return topic.count - len(moving)
        return sum(map(self._count, topic.chunks)) - sum(seq in self._matching for seq in moving)

    def _count(self, chunk: Chunk) -> int:
        """Those of a chunk, which costs something only if it has changed."""
        known, dead, count = self._counted.get(id(chunk), (None, 0, 0))
        if known is not chunk or dead is not chunk.dead:
            count = self._mask(chunk).bit_count()
            self._counted[id(chunk)] = chunk, chunk.dead, count
        return count

    def _mask(self, chunk: Chunk) -> int:
        live = span(0, len(chunk)) & ~chunk.dead
        return live if self._matching is None else live & self._matching.bits(chunk.first_seq, len(chunk))[0]


def _may_go(queue: Queue, seq: int) -> bool:
    """It may have gone meanwhile, or be somebody's."""
    return not queue.is_gone and chunk_of(queue.topic, seq) is not None and queue.leases.is_idle(seq)
