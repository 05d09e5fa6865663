"""Calls that read a topic, from plan to answer; one that waits looks again until there is something to tell.

`diff` answers a client, `follow` (follow.py) a gateway that has live readers. A look that finds only records of the
reader's own nodes has nothing to tell. It moves the cursor past them and goes on waiting, so that a reader is not woken
by its own writes; when the time is up, the answer carries that cursor. A gap that swallowed those records as well is
told from where the call began.
"""

from collections.abc import Callable, Iterator
from functools import partial

import msgspec
import trio

from topics import limits
from topics.core import replies
from topics.core.block import BadBlock
from topics.core.derivation import is_blocked
from topics.core.diff import Buffer, Plan, render, render_into
from topics.core.diff import plan as plan_diff
from topics.core.loss import RECREATED
from topics.core.requests import U64_MAX, Diff
from topics.core.seek import cursor_at
from topics.core.topic import Topic
from topics.rpc.calls import Call
from topics.shards.engine import Engine
from topics.shards.polls import Poll, Polls
from topics.shards.reader import BlockReader, Missing, SegmentGone
from topics.shards.scheduler import Scheduler
from topics.shards.settling import Settling
from topics.shards.slices import in_slices
from topics.shards.store import Store


class Look:
    """One call, over all the times it looks."""

    __slots__ = (
        "asked", "call", "cold_segments", "ends", "poll", "query", "scanned", "settled", "throttle_ms", "topic_name",
    )  # fmt: skip

    def __init__(self, call: Call, topic_name: str, query: Diff, wait_ms: int) -> None:
        self.call = call
        self.topic_name = topic_name
        self.asked = query
        self.query = query  # from where it has come to
        self.scanned = 0
        self.settled = False  # it has waited for the copies of its topic's source
        self.cold_segments = 0
        self.throttle_ms = 0.0
        self.poll: Poll | None = None
        self.ends = trio.current_time() + wait_ms / 1000 if wait_ms else 0.0
        if wait_ms:
            call.on_cancel(self.cancel)

    @property
    def left_ms(self) -> int:
        return max(0, int((self.ends - trio.current_time()) * 1000)) if self.ends else 0

    def find_start(self, topic: Topic, now_ms: int) -> None:
        """Of a reader that begins at a time: its cursor, as far as can be told now."""
        assert self.query.from_ts is not None
        self.query = msgspec.structs.replace(self.query, from_seq=cursor_at(topic, self.query.from_ts, now_ms))

    def keep_start(self) -> None:
        """From here on it is a reader like any other."""
        self.asked = self.query = msgspec.structs.replace(self.query, from_ts=None)

    def move_to(self, plan: Plan) -> None:
        """What the plan covered has been looked at."""
        self.query = msgspec.structs.replace(self.query, from_seq=plan.next_from_seq)

    def cancel(self) -> None:
        if self.poll is not None:
            self.poll.cancel()

    def plan_on(self, topic: Topic, epoch: int = 0, until: int = U64_MAX) -> Plan:
        plan = plan_diff(topic, self.query, epoch, until)
        gap = plan.tombstone
        if gap is not None and gap.reason != RECREATED and self.query is not self.asked:
            whole = topic.gap_after(self.asked.from_seq)
            if whole is not None and whole.gap_to == gap.gap_to:  # what it has passed is gone, too
                plan.tombstone = whole
        return plan

    # --- what others do in their own way ----------------------------------------------------------------------------

    def is_put_off(self, engine: Engine, topic: Topic, again: Callable[[], None]) -> bool:
        """Whether it is too early to look; then `again` will be called."""
        return False

    def plan(self, topic: Topic) -> Plan:
        plan = self.plan_on(topic)
        if self.query.plain:
            for window in plan.windows:
                window.texts_only = True
        return plan

    def is_long(self, plan: Plan) -> bool:
        """Whether rendering is more than to cut a few pieces out of blocks."""
        windows = plan.windows
        if self.query.plain:
            return len(windows) > limits.INLINE_HOLES and any(window.dead for window in windows)
        return len(windows) > limits.INLINE_VIEWS

    def render(self, topic: Topic, plan: Plan) -> list[Buffer]:
        """What the plan shows."""
        return render(plan.windows, self.query, filter_nodes=topic.config.dedupe_node)

    def render_into(self, pieces: list[Buffer], topic: Topic, plan: Plan) -> Iterator[None]:
        """The same, in steps; others may go on in between, because the plan stays what it is."""
        return render_into(pieces, plan.windows, self.query, filter_nodes=topic.config.dedupe_node)

    def answer(self, topic: Topic, plan: Plan, pieces: list[Buffer]) -> bool:
        """Reply, unless there is nothing to tell and time is left."""
        if not pieces and plan.tombstone is None and plan.windows and self.left_ms:
            return False
        perf = {"records_scanned": self.scanned, "throttle_wait_ms": round(self.throttle_ms, 3)}
        if self.cold_segments:
            perf["cold_segments_read"] = self.cold_segments
        self.call.reply({"perf": perf}, self.body(topic, plan, pieces))
        return True

    def body(self, topic: Topic, plan: Plan, pieces: list[Buffer]) -> list[Buffer]:
        """The answer, as an open fragment."""
        return replies.difference(topic.name, plan, pieces)


class Diffs:
    def __init__(
        self, store: Store, reader: BlockReader, polls: Polls, scheduler: Scheduler, settling: Settling
    ) -> None:
        self._settling = settling
        self._engine = store.engine
        self._scheduler = scheduler
        self._reader = reader
        self._polls = polls

    def look(self, look: Look) -> None:
        """Answer, or arrange for another look. Raises if the topic is not there."""
        topic = self._engine.state.find(look.topic_name)
        if not self._engine.expire(topic):
            self._engine.endings.later(topic, lambda: self.look(look), look.call.fail)
            return
        topic.last_read_ms = self._engine.now()
        if look.query.from_ts is not None:
            look.find_start(topic, topic.last_read_ms)
        if topic.derived is not None and self._waits_for_copies(look, topic):
            return
        if look.query.from_ts is not None:
            look.keep_start()
        if look.is_put_off(self._engine, topic, partial(self._again, look)):
            return
        plan = look.plan(topic)
        if plan.empty and (left_ms := look.left_ms):
            look.poll = self._polls.wait(topic, left_ms, partial(self._again, look))
            return
        try:
            missing = self._reader.missing(plan)
        except BadBlock:
            self._reader.report_damage(topic, plan, partial(self._again, look))
            return
        if missing:
            look.call.run(self._look_on_disk, look, topic, plan, missing)
        else:
            self._answer(look, topic, plan)

    def _waits_for_copies(self, look: Look, topic: Topic) -> bool:
        """Whether a first look at a derived topic has to wait for its source, or any look for what is missing."""
        first, look.settled = not look.settled, True
        if first and not look.ends and not self._settling.is_settled(topic):
            look.call.run(self._look_later, look, topic)
            return True
        if is_blocked(topic, look.query.from_seq):
            look.call.run(self._look_when_there, look, topic)
            return True
        return False

    async def _look_later(self, look: Look, topic: Topic) -> None:
        await self._settling.wait(topic)
        self.look(look)

    async def _look_when_there(self, look: Look, topic: Topic) -> None:
        await self._settling.wait_for_refill(topic, look.query.from_seq)
        self.look(look)

    def _again(self, look: Look) -> None:
        if look.call.finished:
            return  # its caller is gone
        look.throttle_ms += self._scheduler.waited_ms
        self._engine.redo(lambda: self.look(look), look.call.fail)

    async def _look_on_disk(self, look: Look, topic: Topic, plan: Plan, missing: list[Missing]) -> None:
        try:
            look.cold_segments += await self._reader.fill(missing)
        except BadBlock:
            self._reader.report_damage(topic, plan, partial(self._again, look))
            return
        except SegmentGone:
            self._again(look)
            return
        if self._is_gone(topic):
            self.look(look)
        else:
            self._answer(look, topic, plan)

    def _answer(self, look: Look, topic: Topic, plan: Plan) -> None:
        look.scanned += plan.scanned
        if look.is_long(plan):
            look.call.run(self._render, look, topic, plan)
            return
        self._tell(look, topic, plan, look.render(topic, plan))

    async def _render(self, look: Look, topic: Topic, plan: Plan) -> None:
        pieces: list[Buffer] = []
        await in_slices(look.render_into(pieces, topic, plan))
        if self._is_gone(topic):
            self.look(look)
        else:
            self._tell(look, topic, plan, pieces)

    def _is_gone(self, topic: Topic) -> bool:
        """Whether it was removed since the plan was made: its name may have a new life by now."""
        return self._engine.state.by_id.get(topic.id) is not topic

    def _tell(self, look: Look, topic: Topic, plan: Plan, pieces: list[Buffer]) -> None:
        if look.answer(topic, plan, pieces):
            return
        look.move_to(plan)
        if plan.caught_up:
            self.look(look)
        else:
            look.call.run(self._look_on, look)

    async def _look_on(self, look: Look) -> None:
        """There is more behind what was filtered out; others get a turn first."""
        await trio.lowlevel.checkpoint()
        self.look(look)
