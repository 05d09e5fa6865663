"""The destination's side of forwarding: copies come in and take their place.

    method          head                                                      body    reply head
    derived.attach  dest, dest_id, generation, routers (name → generation),           seq, dest_seq, totals, refill,
                    source, source_id, epoch, source_head, start, cursor,             from, to
                    positions
    derived.take    dest, dest_id, generation, from_seq, to_seq, routers      copies  seq, dest_seq, again
    derived.trim    as take, missed                                                   seq, dest_seq, again
    derived.fill    as take, lost, last                                       copies  as attach

Copies are applied and not logged: a checkpoint stores them, and until then their source could make them again. `take`
says which part of the source its copies are of; if that does not follow on what is here, they are not taken and the
source has to attach again. So nothing comes twice, whoever crashed, and no message of an earlier life or of a router
that has been retired changes anything.

After a crash the seqs of copies that no checkpoint had are missing (topics/core/derivation.py). `attach` then asks for
a stretch of the source, from one known position to the next; `fill` puts its copies where they were. What the source
cannot show any more is a hole that readers are told of.

After a loss of power nobody knows how many copies came behind the last position that is durable. The source makes all
of them again (`redone`), also of what has died since. So that they come to the same seqs, what was passed over is
durable here before copies of anything behind it are seen.
"""

import logging
from bisect import bisect_left, bisect_right
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import msgspec
import trio
from msgspec.structs import replace

from topics.core import derivation
from topics.core import state as core
from topics.core.derivation import UNKNOWN, Derived, Mark, Position
from topics.core.events import Appended, Event, Marked, RangeLost
from topics.core.forward import Copies, render
from topics.core.ids import ids_of
from topics.core.loss import SOURCE_TRIM
from topics.core.topic import Topic
from topics.errors import topic_not_found
from topics.rpc.calls import Call, Handler
from topics.shards import idtimes
from topics.shards.answers import Done, Fail
from topics.shards.heads import AttachDerivedHead, FillHead, LinkHead, TakeHead, TrimHead, read_head
from topics.shards.idtimes import Floors
from topics.shards.links import Links
from topics.shards.marks import Marks
from topics.shards.store import Store
from topics.shards.waiting import wait_for

log = logging.getLogger(__name__)
METHODS = ("derived.attach", "derived.take", "derived.trim", "derived.fill")
Answer = Mapping[str, Any]
_copies = msgspec.msgpack.Decoder(Copies)


class Derivation:
    def __init__(self, store: Store, links: Links, marks: Marks) -> None:
        self._store = store
        self._engine = store.engine
        self._links = links
        self._marks = marks

    def handlers(self) -> Mapping[str, Handler]:
        def attach(call: Call) -> None:
            call.run(_answer, call, self.attach, read_head(call.head, AttachDerivedHead))

        def take(call: Call) -> None:
            call.run(_answer, call, self.take, read_head(call.head, TakeHead), _copies.decode(call.body))

        def trim(call: Call) -> None:
            call.run(_answer, call, self.trim, read_head(call.head, TrimHead))

        def fill(call: Call) -> None:
            call.run(_answer, call, self.fill, read_head(call.head, FillHead), _copies.decode(call.body))

        return dict(zip(METHODS, (attach, take, trim, fill), strict=True))

    def _find(self, name: str, topic_id: int) -> Topic:
        topic = self._engine.state.find(name)
        if topic.id != topic_id or topic.removing:
            raise topic_not_found(name)
        return topic

    # --- attaching ------------------------------------------------------------------------------------------------

    async def attach(self, head: AttachDerivedHead) -> Answer:
        """Agree on where to begin. Durable before the first copy comes, so that a replay knows what copies are."""
        topic = self._find(head.dest, head.dest_id)
        for name, generation in head.routers.items():  # they are there, unless a drop did not get to its end
            await self._links.link(LinkHead(name, generation, head.source, head.dest))
        await self._settled(topic)
        # Copies whose sender gave up waiting may still have their turn to come.
        await wait_for(lambda done, fail: self._engine.in_turn(topic, lambda: done(None), fail))
        self._find(head.dest, head.dest_id)
        known = topic.derived
        mark = self._wanted(topic, head)
        if known is None or mark != known.mark(topic):
            await self._marks.change(topic, mark)
        assert topic.derived is not None
        if topic.derived.missing:
            for seq, dest_seq in head.positions:
                topic.derived.know(Position(seq, dest_seq, 0))
            for first, last in head.skipped:
                topic.derived.skip(first, last)
        return _standing(topic.derived)

    def _wanted(self, topic: Topic, head: AttachDerivedHead) -> Mark:
        known = topic.derived
        if known is None or (known.source, known.source_id) != (head.source, head.source_id):
            seq, dest_seq, totals = head.start, topic.head_seq, dict[str, int]()
        else:
            seq, dest_seq, totals = known.seq, known.dest_seq, known.totals
            if known.source_epoch != head.epoch:  # the source lost its end and uses those seqs again
                seq = min(seq, head.source_head)
        if topic.config.durability == "ephemeral":  # what it knew may be gone with its records
            seq = max(seq, head.cursor)
        routers = {name: totals.get(name, 0) for name in head.routers}
        source = (head.source, head.source_id, head.epoch)
        boot = known.boot if known is not None and known.unsure else self._engine.state.boot
        return Mark(topic.id, head.generation, *source, seq, dest_seq, topic.last_ts, routers, [], boot)

    async def _settled(self, topic: Topic) -> None:
        """Until no change of the topic itself is under way."""
        while (waiting := topic.parked if topic.parked is not None else topic.held) is not None:
            free = trio.Event()
            waiting.append(free.set)
            await free.wait()

    # --- copies ---------------------------------------------------------------------------------------------------

    async def take(self, head: TakeHead, copies: Copies) -> Answer:
        """Take the copies, or as many as there is room for. Raises if there is none."""
        topic = self._find(head.dest, head.dest_id)
        await self._settled(topic)
        derived = self._follows(topic, head)
        if derived is None:
            return {"again": True}
        if topic.config.message_ids and derived.id_ts == UNKNOWN:
            derived.id_ts = await idtimes.newest(self._store, topic)
            if self._follows(topic, head) is not derived:
                return {"again": True}
        if head.probe:
            self._fitting(topic, copies)
            return _where(derived)
        if head.skipped:
            await self._note_skipped(topic, derived, head.skipped)
            if self._follows(topic, head) is not derived:
                return {"again": True}
        if head.redone and derived.skipped:
            copies = copies.pick([index for index, seq in enumerate(copies.seqs) if seq not in derived.skipped])
        count, to_seq = self._fitting(topic, copies), head.to_seq
        if count < len(copies):
            to_seq = copies.seqs[count] - 1
            copies = copies.part(0, count)

        def taken() -> None:
            """In one step with the records, so that whoever looks at the topic sees both or neither."""
            derived.seq = to_seq
            if count:
                derived.dest_seq = topic.head_seq
            _count(derived, head.routers, copies.routers)
            self._marks.note(topic)

        if count:
            await wait_for(lambda done, fail: self._append(topic, head.volatile, copies, taken, done, fail))
        else:
            taken()
        if head.sure and derived.unsure:
            await self._be_sure(topic, derived, volatile=head.volatile)
        return _where(derived)

    async def _note_skipped(self, topic: Topic, derived: Derived, skipped: Sequence[tuple[int, int]]) -> None:
        """Until it is durable that these records of the source are passed over: nobody would know after a crash."""
        mark = derived.mark(topic)
        await self._logged(topic, derived, Marked([replace(mark, skipped=[*mark.skipped, *skipped])]))

    async def give_up(self, topic: Topic) -> None:
        """No source makes copies for this topic again."""
        if topic.derived is not None and topic.derived.unsure and not topic.derived.taking:
            await self._be_sure(topic, topic.derived, volatile=True)

    async def _be_sure(self, topic: Topic, derived: Derived, *, volatile: bool) -> None:
        """All copies that can be made again are here. A source that is itself not durable may have lost others, which
        had seqs as well; none of them was above the ceiling."""
        events: list[Event] = []
        first, last = topic.next_seq, topic.ceiling
        if volatile and topic.config.durability in ("disk", "fsync") and first <= last:
            topic.next_seq = last + 1
            events.append(RangeLost(topic.id, first, last, SOURCE_TRIM, 0))
        mark = replace(derived.mark(topic), boot=self._engine.state.boot)
        await self._logged(topic, derived, *events, Marked([mark]))
        derived.unsure = False
        self._engine.register.set(topic.cell, topic.head_seq)
        self._engine.wake_readers(topic)

    async def _logged(self, topic: Topic, derived: Derived, *events: Event) -> None:
        """Until these events are durable and applied; no copies are taken meanwhile."""

        def submit(done: Done, fail: Fail) -> None:
            for event in events[:-1]:
                self._engine.submit(topic, event, True, lambda _: None, lambda _: None)
            self._engine.submit(topic, events[-1], True, done, fail)

        derived.taking = True
        try:
            await wait_for(submit)
        finally:
            derived.taking = False

    def _follows(self, topic: Topic, head: TakeHead) -> Derived | None:
        """The topic's state, if the message is of now and goes on where the last one ended."""
        self._engine.check_writable()
        derived = topic.derived
        if derived is None or derived.generation != head.generation or derived.missing or topic.removing:
            return None
        return derived if derived.seq == head.from_seq and not derived.taking else None

    def _fitting(self, topic: Topic, copies: Copies) -> int:
        """How many there is room for, in a topic that does not evict. Copies of one record stay together."""
        self._engine.expire(topic)
        config, count = topic.config, len(copies)
        if config.discard != "reject" or not count:
            return count
        if config.cap_records:
            count = min(count, config.cap_records - topic.count - topic.pending_records)
        if config.cap_bytes:
            room = config.cap_bytes - topic.bytes - topic.pending_bytes
            sizes = accumulate(self._sizes(topic, copies))
            count = min(count, sum(size <= room for size in sizes))
        while 0 < count < len(copies) and copies.seqs[count] == copies.seqs[count - 1]:
            count -= 1
        if count <= 0:
            together = copies.seqs.count(copies.seqs[0])
            core.check_room(topic, together, sum(self._sizes(topic, copies.part(0, together))))
        return count

    def _sizes(self, topic: Topic, copies: Copies) -> list[int]:
        """What each copy would count for in the topic."""
        blocks = render(copies, topic.next_seq, max(self._engine.now(), topic.last_ts), ids_of(topic, 0))
        return [size for block in blocks for size in block.sizes()]

    def _append(
        self, topic: Topic, volatile: bool, copies: Copies, taken: Callable[[], None], done: Done, fail: Fail
    ) -> None:
        """As any append, but that the log is not told."""
        engine = self._engine
        ts = max(engine.now(), topic.last_ts)
        first_seq, last_seq = topic.next_seq, topic.next_seq + len(copies) - 1
        blocks = render(copies, first_seq, ts, ids_of(topic, 0))
        event = Appended(topic.id, topic.epoch, ts, first_seq, len(copies), b"", blocks)
        engine.admit(0, topic, event)
        topic.next_seq = last_seq + 1
        derivation.note_id_time(topic, max(copies.times))
        durability = topic.config.durability
        reserves = durability == "disk" or (durability == "fsync" and volatile)
        reserve = reserves and engine.needs_reserve(topic, last_seq)
        size = engine.pend(topic, event)
        assert topic.derived is not None
        topic.derived.taking = True

        def finish() -> None:
            engine.settle(topic, event, size)
            if topic.derived is not None:
                topic.derived.taking = False
            engine.apply_resident(topic, event)
            engine.register.set(topic.cell, last_seq)
            engine.log.bytes_since_checkpoint += copies.size
            taken()
            done(None)
            engine.wake_readers(topic)

        engine.in_turn(topic, finish, fail, after_sync=reserve and last_seq > topic.ceiling)

    async def trim(self, head: TrimHead) -> Answer:
        """The source lost records before it could forward them. They take seqs, so that readers are told; both are
        durable before anything comes behind them."""
        topic = self._find(head.dest, head.dest_id)
        await self._settled(topic)
        derived = self._follows(topic, head)
        if derived is None:
            return {"again": True}
        self._marks.write_one(topic)  # what follows is not a copy: copies end here
        first, last = topic.next_seq, topic.next_seq + head.missed - 1
        topic.next_seq = last + 1
        skipped = [*derived.fresh, (head.from_seq + 1, head.to_seq)]
        mark = replace(derived.mark(topic), seq=head.to_seq, dest_seq=last, skipped=skipped)
        await self._logged(topic, derived, RangeLost(topic.id, first, last, SOURCE_TRIM, 0), Marked([mark]))
        self._engine.register.set(topic.cell, last)
        self._engine.wake_readers(topic)
        return _where(derived)

    # --- copies that are made again -------------------------------------------------------------------------------

    async def fill(self, head: FillHead, copies: Copies) -> Answer:
        """Put copies where they were. Answers what is wanted next."""
        topic = self._find(head.dest, head.dest_id)
        derived = topic.derived
        self._engine.check_writable()
        if derived is None or derived.generation != head.generation:
            return {"again": True}
        floors = await idtimes.before_missing(self._store, topic)
        if topic.derived is derived and derived.missing and derived.base().seq == head.from_seq:
            self._fill(topic, derived, head, copies, floors)
            if not derived.missing:
                log.info("%s: all copies are back", topic.name)
                self._marks.write_one(topic)
            self._engine.wake_readers(topic)
        return _standing(derived)

    def _fill(self, topic: Topic, derived: Derived, head: FillHead, copies: Copies, floors: Floors) -> None:
        """Up to the next known position all copies and all seqs are at hand: they are brought in line from the end.
        Behind the last one copies come as they come, until all seqs are taken."""
        target = derived.next_position()
        if target is not None and head.to_seq != target.seq:
            return
        copies = copies.pick([index for index, seq in enumerate(copies.seqs) if seq not in derived.skipped])
        if target is None and derived.unsure:
            _keep_together(topic, derived, copies)
        slots = derived.slots(target.dest_seq if target is not None else None)
        if target is not None:
            gaps = [gap for gap in head.gaps if derived.skipped.count_between(*gap) <= gap[1] - gap[0]]
            copies, slots = _in_line(copies, slots, gaps, lambda lost: self._lose(topic, lost))
            through, to_seq = target.dest_seq, target.seq
        else:
            skipped = derived.skipped.count_between(head.from_seq + 1, head.from_seq + head.lost) if head.lost else 0
            lost, slots = slots[: head.lost - skipped], slots[head.lost - skipped :]
            self._lose(topic, lost)
            rest = slots[len(copies) :]
            to_seq = _come_to(derived, head, copies, len(slots))
            copies, slots = copies.part(0, len(slots)), slots[: len(copies)]
            through = slots[-1] if slots else lost[-1] if lost else derived.missing[0][0] - 1
            if head.last:
                self._lose(topic, rest)
                through = topic.head_seq
        self._put_back(topic, copies, slots, target.ts if target is not None else 0, floors)
        _count(
            derived, head.routers, [r for seq, r in zip(copies.seqs, copies.routers, strict=True) if seq > derived.seq]
        )
        if slots:
            derived.dest_seq = max(derived.dest_seq, slots[-1])
        derived.seq = max(derived.seq, to_seq)
        if target is None:
            derived.know(Position(to_seq, through, 0))
        derived.filled(through)

    def _put_back(self, topic: Topic, copies: Copies, slots: list[int], ts: int, floors: Floors) -> None:
        engine, derived = self._engine, topic.derived
        assert derived is not None
        records, size = topic.count, topic.bytes
        for low, high in idtimes.parted(topic, derivation.runs_of(slots), slots):
            at = derivation.time_at(topic, slots[low], ts or engine.now())
            ids = idtimes.ids_behind(topic, slots[low], floors)
            topic.refill(render(copies.part(low, high), slots[low], at, ids), derived.struck)
            topic.last_ts = max(topic.last_ts, at)
            topic.last_write_ms = max(topic.last_write_ms or 0, at)
        engine.note_change(topic, records, size)

    def _lose(self, topic: Topic, seqs: list[int]) -> None:
        """Told to readers at once, and to the log."""
        for low, high in derivation.runs_of(seqs):
            first, last = seqs[low], seqs[high - 1]
            topic.lose(first, last, SOURCE_TRIM)
            self._engine.lose_range(topic, first, last, SOURCE_TRIM, lambda _: None)


def _in_line(
    copies: Copies, slots: list[int], gaps: Sequence[tuple[int, int]], lose: Callable[[list[int]], None]
) -> tuple[Copies, list[int]]:
    """As many copies as slots. If the source has fewer, those in its gaps are lost, and what lies between two gaps; if
    it has more, some were deleted before they were forwarded."""
    excess = len(copies) - len(slots)
    if excess > 0:
        dropped = set([index for index, dead in enumerate(copies.dead) if dead][-excess:])
        if len(dropped) < excess:
            log.error("%d copies more than there is room for; the oldest are left out", excess - len(dropped))
        kept = [index for index in range(len(copies)) if index not in dropped]
        copies = copies.pick(kept[len(kept) - len(slots) :])
    elif excess < 0:
        low = bisect_left(copies.seqs, gaps[0][0]) if gaps else 0
        high = bisect_right(copies.seqs, gaps[-1][1]) if gaps else 0
        end = len(slots) - (len(copies) - high)
        lose(slots[low:end])
        copies, slots = copies.pick([*range(low), *range(high, len(copies))]), slots[:low] + slots[end:]
    return copies, slots


def _keep_together(topic: Topic, derived: Derived, copies: Copies) -> None:
    """Copies of one record came together: if some of their seqs are known, so are the others."""
    known = len(derived.slots(None))
    if 0 < known < len(copies):
        last = copies.seqs[known - 1]
        derivation.miss(topic, topic.head_seq + copies.seqs[known:].count(last))


def _come_to(derived: Derived, head: FillHead, copies: Copies, slots: int) -> int:
    """How far this message brings the topic. What no seq is left for, or perhaps had one that nobody knows of, is
    looked at once more."""
    if len(copies) > slots:
        return copies.seqs[slots] - 1
    if copies and (len(copies) == slots or (derived.unsure and head.last)):
        return copies.seqs[-1]
    return head.from_seq if derived.unsure and head.last else head.to_seq


def _count(derived: Derived, names: Sequence[str], routers: Sequence[int]) -> None:
    for router in routers:
        derived.totals[names[router]] = derived.totals.get(names[router], 0) + 1


def _where(derived: Derived) -> dict[str, Any]:
    return {
        "again": False,
        "seq": derived.seq,
        "dest_seq": derived.dest_seq,
        "totals": derived.totals,
        "unsure": derived.unsure,
    }


def _standing(derived: Derived) -> Answer:
    """Where the topic stands, and which part of the source it wants to see again."""
    answer = _where(derived)
    if not derived.missing:
        return answer | {"refill": False}
    target = derived.next_position()
    return answer | {"refill": True, "from_seq": derived.base().seq, "to_seq": target.seq if target is not None else 0}


async def _answer(call: Call, method: Callable[..., Awaitable[Answer]], *args: object) -> None:
    call.reply(await method(*args))
