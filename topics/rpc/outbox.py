"""What waits to be sent on one connection: the queue, its order and its bounds. No I/O.

Two lanes. Small messages (up to RPC_JOIN_BYTES) are encoded at once, and all that are pending leave in one send.
Larger ones keep references to the caller's buffers and leave in turn, one chunk each, so a large body never holds up
a small message, nor another large one. Messages of one call never overtake each other.

The bound: a caller asks `has_room` before `put`. All messages together stay below RPC_SEND_QUEUE_BYTES, the last
quarter of which is kept for small ones; one *huge* body (more than a quarter) may be under way beside that, because it
could not be sent at all otherwise. Frames that end something (replies, cancels) are always taken: whoever produces
them stops taking on work while more than RPC_SEND_QUEUE_BYTES are queued.
"""

from collections import deque
from collections.abc import Callable
from itertools import accumulate, takewhile

from topics import limits
from topics.rpc.wire import CHUNK, HEADER, Body, Buffer, pieces_of

_header = HEADER.pack

FRAME_COST = 64  # what a queued message costs in memory beside its bytes


class _Bulk:
    """A message that leaves piece by piece."""

    __slots__ = ("after", "call_id", "charged", "huge", "left", "opened", "prefix", "then", "total", "views")

    def __init__(self, kind: int, call_id: int, head: bytes, views: list[memoryview], total: int) -> None:
        self.call_id = call_id
        self.prefix = HEADER.pack(kind, len(head), total, call_id) + head
        self.views = views[::-1]  # the next piece is last, where pop() is cheap
        self.total = total
        self.left = total
        self.charged = len(self.prefix) + total + FRAME_COST
        self.huge = False
        self.after = 0  # small messages that have to leave first: some may be of the same call
        self.opened = False  # counts in the receiver's budget of unfinished bodies
        self.then: list[tuple[int, bytes, Body, int]] = []  # later messages of the same call, with their cost

    def next_piece(self, out: list[Buffer]) -> int:
        """Append the next frame to `out`; the number of its bytes."""
        size = min(self.left, limits.RPC_CHUNK_BYTES)
        prefix = self.prefix or HEADER.pack(CHUNK, 0, size, self.call_id)
        self.prefix = b""
        self.left -= size
        out.append(prefix)
        missing = size
        while missing:
            view = self.views.pop()
            if view.nbytes > missing:
                self.views.append(view[missing:])
                view = view[:missing]
            out.append(view)
            missing -= view.nbytes
        return len(prefix) + size


class Outbox:
    def __init__(self, on_pending: Callable[[], None] | None = None) -> None:
        self.queued_bytes = 0  # everything but the one huge body, also what is being sent right now
        self.wake = on_pending  # set while the writer sleeps
        self._small: list[bytes] = []
        self._small_taken = 0  # how many have left, ever
        self._join_bytes = limits.RPC_JOIN_BYTES
        self._turns: deque[_Bulk] = deque()  # larger messages under way, next one first
        self._unopened: deque[_Bulk] = deque()  # those that have to wait for the receiver's budget
        self._opened_bytes = 0
        self._bulk_of: dict[int, _Bulk] = {}
        self._huge: _Bulk | None = None
        self._taken_cost = 0

    @property
    def empty(self) -> bool:
        return not (self._small or self._turns or self._unopened)

    def has_room(self, size: int) -> bool:
        queue = limits.RPC_SEND_QUEUE_BYTES
        if size <= limits.RPC_JOIN_BYTES:
            return self.queued_bytes + size <= queue
        if size > queue // 4:
            return self._huge is None and self.queued_bytes <= queue
        return self.queued_bytes + size <= queue - queue // 4

    def put(self, kind: int, call_id: int, head: bytes = b"", body: Body = b"") -> None:
        """Queue one message. Buffers of a large body must not change until the call has ended."""
        if type(body) is bytes and len(head) + len(body) <= self._join_bytes and call_id not in self._bulk_of:
            frame = _header(kind, len(head), len(body), call_id) + head + body  # the path of nearly every message
            self._small.append(frame)
            self.queued_bytes += len(frame) + FRAME_COST
        else:
            self._put_other(kind, call_id, head, body)
        if self.wake is not None:
            self.wake()

    def drop(self, call_id: int, last: bytes = b"") -> None:
        """What is not sent of this call's large messages never will be; the frame `last` goes in its place."""
        bulk = self._bulk_of.get(call_id)
        if bulk is None:
            if last:
                self._put_small(last)
        else:
            # It keeps its turn for `last`, and its share of the receiver's budget until that has left.
            self._truncate(bulk, last)
        if self.wake is not None:
            self.wake()

    def take(self) -> list[Buffer]:
        """The buffers of the next send; call `sent` when they have left."""
        batch: list[Buffer] = []
        budget = limits.RPC_SEND_BATCH_BYTES - self._take_small(batch)
        self._open_more()
        passed = 0  # bulks that have to wait for small messages of a later send
        while passed < len(self._turns):
            if self._turns[0].after > self._small_taken:
                self._turns.rotate(-1)
                passed += 1
                continue
            budget -= self._take_turn(batch)
            if budget < limits.RPC_CHUNK_BYTES:
                break
        return batch

    def sent(self) -> None:
        self.queued_bytes -= self._taken_cost
        self._taken_cost = 0

    def _put_small(self, frame: bytes) -> None:
        self._small.append(frame)
        self.queued_bytes += len(frame) + FRAME_COST

    def _put_other(self, kind: int, call_id: int, head: bytes, body: Body) -> None:
        views, total = pieces_of(body)
        before = self._bulk_of.get(call_id)
        if before is not None:
            cost = len(head) + total + FRAME_COST
            before.then.append((kind, head, body, cost))
            self.queued_bytes += cost
        elif len(head) + total <= limits.RPC_JOIN_BYTES:
            self._put_small(b"".join([HEADER.pack(kind, len(head), total, call_id), head, *views]))
        else:
            self._put_bulk(_Bulk(kind, call_id, head, views, total))

    def _put_bulk(self, bulk: _Bulk) -> None:
        self._bulk_of[bulk.call_id] = bulk
        bulk.after = self._small_taken + len(self._small)
        if self._huge is None and bulk.total > limits.RPC_SEND_QUEUE_BYTES // 4:
            bulk.huge = True
            self._huge = bulk
        else:
            self.queued_bytes += bulk.charged
        # A message of one frame is never unfinished at the receiver, so it need not wait for the budget.
        (self._turns if bulk.total <= limits.RPC_CHUNK_BYTES else self._unopened).append(bulk)

    def _take_small(self, batch: list[Buffer]) -> int:
        frames = self._small
        if not frames:
            return 0
        if self.queued_bytes <= limits.RPC_SEND_BATCH_BYTES:
            self._small = []
        else:
            sizes = accumulate(map(len, frames))
            count = 1 + sum(1 for _ in takewhile(lambda size: size < limits.RPC_SEND_BATCH_BYTES, sizes))
            frames, self._small = frames[:count], frames[count:]
        self._small_taken += len(frames)
        joined = b"".join(frames)
        batch.append(joined)
        self._taken_cost += len(joined) + len(frames) * FRAME_COST
        return len(joined)

    def _open_more(self) -> None:
        while self._unopened:
            bulk = self._unopened[0]
            if self._opened_bytes + bulk.total > limits.RPC_PARTIAL_BYTES:
                return
            bulk.opened = True
            self._opened_bytes += bulk.total
            self._turns.append(self._unopened.popleft())

    def _take_turn(self, batch: list[Buffer]) -> int:
        bulk = self._turns.popleft()
        dropped = not (bulk.prefix or bulk.left)  # and nothing to say about it
        size = 0 if dropped else bulk.next_piece(batch)
        if bulk.left:
            self._charge_taken(bulk, min(size, bulk.charged))
            self._turns.append(bulk)
        else:
            self._charge_taken(bulk, bulk.charged)
            self._finish(bulk)
        return size

    def _finish(self, bulk: _Bulk) -> None:
        if bulk.opened:
            self._opened_bytes -= bulk.total
        if self._huge is bulk:
            self._huge = None
        del self._bulk_of[bulk.call_id]
        for kind, head, body, cost in bulk.then:
            self.queued_bytes -= cost
            self.put(kind, bulk.call_id, head, body)

    def _charge_taken(self, bulk: _Bulk, cost: int) -> None:
        """These bytes are on their way out; they stay counted until `sent`."""
        bulk.charged -= cost
        if not bulk.huge:
            self._taken_cost += cost

    def _truncate(self, bulk: _Bulk, last: bytes) -> None:
        if self._huge is bulk:
            self._huge = None
        if not bulk.huge:
            self.queued_bytes -= bulk.charged
        self.queued_bytes -= sum(cost for *_, cost in bulk.then)
        bulk.then.clear()
        bulk.charged = bulk.left = 0
        bulk.views, bulk.prefix = [], last
