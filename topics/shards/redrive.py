"""The call `redrive`: dead letters go back to a queue, here or on another shard.

    head        topic
    body        request: to, match, limit
    reply head  perf
    reply body  open fragment: topic, to, moved, remaining, pending

They are taken in the order of their seqs; of a topic that is a queue itself only those that nobody holds. Each is moved
like a dead letter on its way there (deadletters.py), so a crash of either side loses none and leaves none twice. The
answer comes when all are over, or after a while: `pending` are then still on their way, and get there.
"""

from collections.abc import Callable
from itertools import islice

import trio

from topics import errors, limits
from topics.aside import run_aside
from topics.core.line import chunk_of, live_jobs
from topics.core.queue_requests import Redrive, decode_redrive
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
        """Cancelled before the moves are logged it has done nothing; afterwards they go on."""
        await self._check_queue(request.to)
        matching = await self._matching(topic, request)
        queue = self._queue_of(topic)
        await queue.up_to_now()
        if queue.is_gone:
            raise topic_not_found(topic.name)
        live = (
            live_jobs(topic, topic.head_seq) if matching is None else (seq for seq in matching if _is_live(topic, seq))
        )
        seqs = list(islice(filter(queue.leases.is_idle, live), request.limit))
        moving = queue.leases.moving  # for somebody else's redrive
        if matching is None:
            total = topic.count - len(moving)
        else:
            total = sum(_is_live(topic, seq) and seq not in moving for seq in matching)
        outcomes: list[TopicsError | None] = []
        if seqs:
            await self._move(queue, seqs, request.to, outcomes)
        moved = outcomes.count(None)
        refusal = next((error for error in outcomes if error is not None), None)
        if refusal is not None:
            message = f"{refusal.message} ({moved} dead letters were moved before, the others are where they were)"
            raise TopicsError(refusal.code, message, {**refusal.detail, "moved": moved})
        fields = {
            "topic": topic.name,
            "to": request.to,
            "moved": moved,
            "remaining": total - len(seqs),
            "pending": len(seqs) - len(outcomes),
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

    async def _matching(self, topic: Topic, request: Redrive) -> list[int] | None:
        """Seqs of what may be moved, ascending; some may be dead. None: all that are live."""
        if request.match is None:
            return None
        plan = self._store.plan_match(topic, Pattern(request.match), None)
        ranges = await run_aside(plan.resolve)
        return [seq for first, last in ranges for seq in range(first, last + 1)]

    async def _move(self, queue: Queue, seqs: list[int], to: str, outcomes: list[TopicsError | None]) -> None:
        """Until all are over, but not for too long."""
        all_over = trio.Event()

        def over(refusal: TopicsError | None) -> None:
            outcomes.append(refusal)
            if len(outcomes) == len(seqs):
                all_over.set()

        self._dead_letters.start_back(queue, seqs, to, over)
        with trio.move_on_after(limits.REDRIVE_WAIT_MS / 1000):
            await all_over.wait()


def _is_live(topic: Topic, seq: int) -> bool:
    return chunk_of(topic, seq) is not None
