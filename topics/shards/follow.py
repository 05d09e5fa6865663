"""The call `follow`: what gateways read for streams. One serves all readers of a gateway that stand at the same place.

    head        topic, from_seq, epoch (of the life the cursor is from), limit, bytes, wait_ms,
                strong (only what is durable), blocks (answer with blocks), and for texts: nodes, tags, meta, data,
                counted (say how many records there are)
    reply head  from_seq, to_seq, head_seq, earliest_seq, epoch, throttle_ms (waited for its turn),
                tombstone ([gap_from, gap_to, reason, missed] or none), records (if counted)
    reply body  texts, joined by commas; or blocks (below), which the gateway renders for each view that it needs

A live reader is a `follow` with `wait_ms` that a gateway repeats: it is answered when there is something, and whatever
was written while the gateway was busy comes in one answer. So a gateway that cannot keep up costs the shard nothing.

Blocks: their bodies one after another, cut to the records that count; `dead` holds for each the mask of those that do
not, and `dedupe` tells whether nodes are to be filtered.
"""

from collections.abc import Callable, Iterator

from topics import limits
from topics.core.blockform import encode_body
from topics.core.diff import Buffer, Plan, Window, count
from topics.core.requests import U64_MAX, Diff, quoted
from topics.core.topic import Topic
from topics.rpc.calls import Call
from topics.shards.diffs import Look
from topics.shards.engine import Engine
from topics.shards.heads import FollowHead

MASK_BYTES = limits.BLOCK_RECORDS_MAX // 8
BLOCKS_AT_ONCE = 8  # are cut and encoded in the step of the look


class Follow(Look):
    __slots__ = ("_head", "_until")

    def __init__(self, call: Call, head: FollowHead) -> None:
        super().__init__(call, head.topic, _query(head), min(head.wait_ms, limits.FOLLOW_WAIT_MS_MAX))
        self._head = head
        self._until = -1  # for a strong reader: the head that is known to be durable; -1: ask again

    def is_put_off(self, engine: Engine, topic: Topic, again: Callable[[], None]) -> bool:
        """A strong reader waits for the sync of what it would see. By then there may be more, which is not for it."""
        if not self._head.strong:
            self._until = U64_MAX
        elif topic.config.durability == "ephemeral" or topic.applied_lsn <= engine.log.synced_lsn:
            self._until = topic.head_seq
        elif self._until < 0 and not self.call.finished:
            head_seq = topic.head_seq

            def synced() -> None:
                self._until = head_seq
                again()

            engine.log.when_synced(synced)
            return True
        return False

    def plan(self, topic: Topic) -> Plan:
        until, self._until = self._until, -1
        return self.plan_on(topic, self._head.epoch, until)

    def is_long(self, plan: Plan) -> bool:
        return len(plan.windows) > BLOCKS_AT_ONCE if self._head.blocks else super().is_long(plan)

    def render(self, topic: Topic, plan: Plan) -> list[Buffer]:
        if not self._head.blocks:
            return super().render(topic, plan)
        return [_cut_block(topic, window) for window in plan.windows]

    def render_into(self, pieces: list[Buffer], topic: Topic, plan: Plan) -> Iterator[None]:
        if not self._head.blocks:
            yield from super().render_into(pieces, topic, plan)
            return
        for window in plan.windows:
            pieces.append(_cut_block(topic, window))
            yield

    def answer(self, topic: Topic, plan: Plan, pieces: list[Buffer]) -> bool:
        if self._head.blocks:
            self.call.reply(self._reply(topic, plan, list(plan.windows)), pieces)
            return True
        if not pieces and plan.tombstone is None and plan.windows and self.left_ms:
            return False
        reply = self._reply(topic, plan, [])
        if self._head.counted:
            reply["records"] = count(plan.windows, self.query, filter_nodes=topic.config.dedupe_node)
        self.call.reply(reply, list(_joined(pieces)))
        return True

    def _reply(self, topic: Topic, plan: Plan, windows: list[Window]) -> dict[str, object]:
        gap = plan.tombstone
        return {
            "from_seq": self._head.from_seq,
            "to_seq": plan.next_from_seq,
            "head_seq": plan.head_seq,
            "earliest_seq": plan.earliest_seq,
            "epoch": topic.epoch,
            "tombstone": [gap.gap_from, gap.gap_to, gap.reason, gap.missed] if gap is not None else None,
            "dead": [_mask(window) for window in windows],
            "dedupe": topic.config.dedupe_node,
            "throttle_ms": round(self.throttle_ms),
        }


def _query(head: FollowHead) -> Diff:
    return Diff(
        from_seq=head.from_seq,
        limit=head.limit,
        nodes=frozenset(quoted(node) for node in head.nodes),
        include_tags=head.tags,
        include_meta=head.meta,
        include_data=head.data,
        batch_bytes=min(head.bytes, limits.BATCH_BYTES_MAX),
    )


def _mask(window: Window) -> bytes:
    dead = window.dead >> window.low & ((1 << (window.high - window.low)) - 1)
    return dead.to_bytes(MASK_BYTES, "little") if dead else b""


def _cut_block(topic: Topic, window: Window) -> bytes:
    block = window.block
    assert block is not None
    if window.low or window.high != len(block):
        block = block.cut(window.low, window.high)
    return encode_body(block, topic.id, topic.epoch)


def _joined(pieces: list[Buffer]) -> Iterator[Buffer]:
    for index, piece in enumerate(pieces):
        if index:
            yield b","
        yield piece
