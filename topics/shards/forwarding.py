"""The source's side of forwarding: one worker for each pair of a source and a destination.

A worker reads its source like any reader, makes copies for every router of the pair and sends them, one message at a
time and in order. It sleeps until the source changes, or the connection to the destination's shard is lost. Where it
stands is what the destination says (derived.py); what a destination refuses is sent again, ever less often, and only
this worker waits.

After a crash of the destination the worker is asked for stretches of the source again. It remembers where copies of
the last messages ended up there, which helps to put them back in place.

After a loss of power a destination may not know how many copies it had (`unsure`). Everything behind the last place
that it knows is sent once more, also what has died since. What died before its turn came was never sent; the
destination knows of it, since a worker does not get past it before that is durable at both ends. Behind the place where
it was held up by a full destination nothing was sent; that place is in the routers' entries before long.
"""

import logging
from bisect import bisect_right
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from heapq import merge
from typing import TYPE_CHECKING, Any

import msgspec
import trio

from topics import errors, limits
from topics.core import derivation
from topics.core.bits import span
from topics.core.block import BadBlock
from topics.core.chunk import Chunk
from topics.core.diff import Plan, Window
from topics.core.diff import plan as plan_diff
from topics.core.forward import Copies, Selector, collect, collect_all, gaps_in
from topics.core.requests import Diff
from topics.core.topic import Topic
from topics.errors import TopicsError
from topics.rpc.errors import RpcError
from topics.shards.reader import SegmentGone

if TYPE_CHECKING:
    from topics.shards.routers import Router, Routers

log = logging.getLogger(__name__)
STAY = (errors.TOPIC_FULL, errors.RECORD_TOO_LARGE, errors.THROTTLED, errors.STORAGE_FULL)
FULL = (errors.TOPIC_FULL, errors.RECORD_TOO_LARGE)
Answer = Mapping[str, Any]
_pack = msgspec.msgpack.Encoder().encode


class Route:
    def __init__(self, routers: "Routers", source: Topic, dest: str) -> None:
        self._routers = routers
        self._engine = routers.engine
        self._source = source
        self._dest = dest
        self.dest_id = 0
        self.scope = trio.CancelScope()
        self.busy = trio.Lock()  # held for a message, and by whoever changes the definitions
        self.totals: dict[str, int] = {}
        self.cursor = 0  # everything up to here is forwarded, or not for these routers
        self._acked = 0  # as the destination knows it
        self._held = -1  # as the routers' entries have it
        self.sent_through = source.head_seq  # no copies of anything above were made; those of an earlier life count
        self._names: tuple[str, ...] = ()
        self._generations: dict[str, int] = {}
        self._start = 0
        self._selectors: list[Selector] = []
        self._selectors_of = (-1, False)
        self._definitions: list[Router] = []
        self._attached = False
        self._attach_head = 0  # the source's, when the destination was last asked where it stands
        self._losses = 0  # of the connection to the destination's shard
        self._wish: Answer | None = None  # what the destination wants to see again
        self._unsure = False  # whether it does not know how many copies it had
        self._redo_through: int | None = None  # then, the head of the source when that was sure itself
        self._positions: deque[tuple[int, int]] = deque(maxlen=limits.FORWARD_POSITIONS)
        self._skipped: list[tuple[int, int]] = []  # records that were gone when their turn came, since `_acked`
        self._recent_skips: deque[tuple[int, int]] = deque(maxlen=limits.FORWARD_POSITIONS)
        self._moved = trio.Event()  # the cursor did
        self._wake = trio.Event()  # for the worker
        self._waited = False  # for what is missing in the source itself
        self._pause_ms = 0
        self.blocked: Answer | None = None  # why it does not get on, while it does not

    def define(self, routers: Mapping[str, "Router"]) -> None:
        """These are the routers of the pair from now on; the oldest first."""
        ordered = sorted(routers.items(), key=lambda item: item[1].generation)
        self._names = tuple(name for name, _ in ordered)
        self._definitions = [router for _, router in ordered]
        self._held = max(router.held for _, router in ordered)
        self._generations = {name: router.generation for name, router in ordered}
        self._start = min(router.start for _, router in ordered)
        self.dest_id = ordered[-1][1].dest_id
        self._selectors_of = (-1, False)
        self._attached = False
        self._wake.set()

    def dest_lost(self) -> None:
        """Whatever the destination said does not count any more: it has to be asked where it stands."""
        self._losses += 1
        self._detach()
        self._wake.set()

    @property
    def is_agreed(self) -> bool:
        """Whether the destination wants to see nothing again, as far as is known here."""
        return self._attached and self._wish is None and not self._unsure

    @property
    def is_settled(self) -> bool:
        """Whether everything that the source shows now is forwarded."""
        return self.is_agreed and self.cursor >= self._source.head_seq

    async def settled(self) -> None:
        """Until what the source shows now is forwarded, or it turns out that the destination does not take it."""
        target = self._source.head_seq
        while not (self.is_agreed and self.cursor >= target) and not self._pause_ms:
            await self._moved.wait()

    # --- the worker -----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        with self.scope:
            while True:
                progress = await self._try(self._step)
                if progress:
                    await trio.lowlevel.checkpoint()
                elif self._pause_ms:
                    await self._sleep()
                else:
                    await self._changed()

    async def _try(self, step: Callable[[], Awaitable[bool]]) -> bool:
        """Whether there may be more to do at once; if not and there is a pause, after it."""
        try:
            async with self.busy:
                progress = await step()
        except TopicsError as error:
            self._failed(error)
            return False
        except Exception:
            log.exception("forwarding from %s to %s failed", self._source.name, self._dest)
            self._detach()
            self._block(errors.INTERNAL, "internal error; the log of the source's shard has it")
            self._pause()
            return False
        self._pause_ms = 0
        self.blocked = None
        return progress

    def _failed(self, error: TopicsError) -> None:
        if error.code == errors.TOPIC_NOT_FOUND:
            log.warning("%s is gone, and with it the routers from %s", self._dest, self._source.name)
            self._routers.dest_is_gone(list(self._names))
        if error.code not in STAY or isinstance(error, RpcError):
            self._detach()
        if not self._pause_ms:
            log.info("forwarding from %s to %s waits: %s", self._source.name, self._dest, error)
        self._block(error.code, error.message)
        self._pause()
        if error.code in FULL and self.is_agreed and self._held < 0 and self._pause_ms >= limits.FORWARD_RETRY_MAX_MS:
            self._held = self._acked
            self._routers.hold(self._names, self._held)

    def _block(self, code: str, message: str) -> None:
        since_ms = self.blocked["since_ms"] if self.blocked is not None else self._engine.now()
        self.blocked = {"code": code, "message": message, "after_seq": self.cursor, "since_ms": since_ms}

    def _detach(self) -> None:
        self._attached = False

    def _pause(self) -> None:
        """Try again later, and later still if that fails too."""
        self._pause_ms = min(max(2 * self._pause_ms, limits.FORWARD_RETRY_MIN_MS), limits.FORWARD_RETRY_MAX_MS)
        self._tell_moved()

    async def _sleep(self) -> None:
        """A pause, which a change of the definitions ends."""
        self._wake = trio.Event()
        with trio.move_on_after(self._pause_ms / 1000):
            await self._wake.wait()

    async def _changed(self) -> None:
        """Until the source or the definitions change, or the destination is lost."""
        wake = self._wake = trio.Event()
        source = self._source
        if source.waiters is None:
            source.waiters = {}
        source.waiters[wake.set] = None
        try:
            await wake.wait()
        finally:
            if source.waiters is not None:
                source.waiters.pop(wake.set, None)

    def _move_to(self, seq: int) -> None:
        self.cursor = seq
        self._tell_moved()

    def _tell_moved(self) -> None:
        self._moved.set()
        self._moved = trio.Event()

    # --- one step -------------------------------------------------------------------------------------------------

    async def _step(self) -> bool:
        if not self._attached:
            await self._attach()
            return True
        if self._wish is not None:
            return await self._fill()
        if self._unsure:
            return await self._redo()
        topic = self._source
        await self._engine.endings.wait(topic)
        if topic.head_seq <= self.cursor or derivation.is_blocked(topic, self.cursor):
            return await self._tell_progress()
        query = Diff(from_seq=self.cursor, limit=limits.FORWARD_RECORDS, batch_bytes=limits.FORWARD_BYTES)
        plan = plan_diff(topic, query)
        if plan.tombstone is not None:
            gap = plan.tombstone
            await self._release()
            self._take(await self._send("derived.trim", gap.gap_to, missed=max(1, gap.missed)))
            return True
        if not await self._load(plan):
            return True
        copies = collect(plan.windows, self._current_selectors())
        self._skipped += gaps_in(plan.windows, self.cursor, plan.next_from_seq)
        if self._skipped:
            await self._deaths_are_durable()
        if copies:
            if self._held >= 0:
                await self._send("derived.take", plan.next_from_seq, copies, probe=True)
                await self._release()
            self._take(await self._send("derived.take", plan.next_from_seq, copies))
        else:
            self._move_to(plan.next_from_seq)
            await self._tell_progress()
        return True

    async def _release(self) -> None:
        """Before anything is sent above the seq where the routers were held."""
        if self._held >= 0:
            await self._routers.release(self._names)
            self._held = -1

    async def _deaths_are_durable(self) -> None:
        """What is passed over must not come back to life."""
        log = self._engine.log
        if self._source.applied_lsn > log.synced_lsn:
            synced = trio.Event()
            log.when_synced(synced.set)
            await synced.wait()

    async def _tell_progress(self) -> bool:
        """Tell the destination how far the router is if it had nothing to send for long: that is what counts later."""
        if self.cursor - self._acked <= limits.FORWARD_SKIPPED_MAX:
            return False
        self._take(await self._send("derived.take", self.cursor, Copies()))
        return True

    async def _load(self, plan: Plan) -> bool:
        """Have the blocks; False if the plan does not hold any more: one is damaged, and readers are told, or gone."""
        reader = self._routers.reader
        try:
            missing = reader.missing(plan)
            if missing:
                await reader.fill(missing)
        except BadBlock:
            known = trio.Event()
            reader.report_damage(self._source, plan, known.set)
            await known.wait()
            return False
        except SegmentGone:
            return False
        return True

    def _current_selectors(self) -> list[Selector]:
        has_ids = bool(self._source.config.id_salt)
        if self._selectors_of != (self._source.epoch, has_ids):
            source = (self._source.id, self._source.epoch)
            self._selectors = [
                Selector(index, name, router.definition, router.start, source, has_ids=has_ids)
                for index, (name, router) in enumerate(zip(self._names, self._definitions, strict=True))
            ]
            self._selectors_of = (self._source.epoch, has_ids)
        return self._selectors

    async def _send(self, method: str, to_seq: int, copies: Copies | None = None, **more: Any) -> Answer:
        head = {
            "dest": self._dest,
            "dest_id": self.dest_id,
            "generation": max(self._generations.values()),
            "from_seq": self._acked,
            "to_seq": to_seq,
            "routers": self._names,
            "skipped": self._skipped,
            "volatile": self._source.config.durability in ("memory", "ephemeral"),
            **more,
        }
        self.sent_through = max(self.sent_through, to_seq)  # whether it is answered or not
        return await self._routers.ask(self._dest, method, head, copies)

    def _take(self, answer: Answer) -> None:
        """The destination has taken what was sent, or some of it."""
        if answer["again"]:
            self._detach()
            return
        self._note_doubt(answer)
        self._acked = answer["seq"]
        self._recent_skips.extend(self._skipped)
        self._skipped = []
        self._count(answer)
        self._positions.append((answer["seq"], answer["dest_seq"]))
        self._move_to(self._acked)

    def _note_doubt(self, answer: Answer) -> None:
        self._unsure = answer["unsure"]
        if not self._unsure:
            self._redo_through = None

    def _count(self, answer: Answer) -> None:
        """A destination that crashed may have forgotten the last ones."""
        for name, total in answer["totals"].items():
            self.totals[name] = max(self.totals.get(name, 0), total)

    # --- attaching ------------------------------------------------------------------------------------------------

    async def _attach(self) -> None:
        source = self._source
        self._attach_head = source.head_seq
        head = {
            "dest": self._dest,
            "dest_id": self.dest_id,
            "generation": max(self._generations.values()),
            "routers": self._generations,
            "source": source.name,
            "source_id": source.id,
            "epoch": source.epoch,
            "source_head": self._attach_head,
            "start": self._start,
            "cursor": self.cursor,
            "positions": list(self._positions),
            "skipped": list(self._recent_skips),
        }
        losses = self._losses
        answer = await self._routers.ask(self._dest, "derived.attach", head, None)
        self._attached = losses == self._losses
        self._settle_on(answer)

    def _settle_on(self, answer: Answer) -> None:
        self._wish = answer if answer["refill"] else None
        self._note_doubt(answer)
        self._count(answer)
        self._skipped = []
        if self._wish is None:
            self._acked = answer["seq"]
            self._move_to(self._acked)

    def _gives_up(self) -> bool:
        """In a cycle two topics may wait for one another; then what is missing here is lost there."""
        return self._waited and self._is_cyclic

    @property
    def _source_is_unsure(self) -> bool:
        return self._source.derived is not None and self._source.derived.unsure

    @property
    def _is_cyclic(self) -> bool:
        return any(router.definition.allow_cycle for router in self._definitions)

    async def _wait_a_while(self) -> None:
        with trio.move_on_after(limits.REFILL_WAIT_MS / 1000):
            await self._changed()
            return
        self._waited = True

    async def _fill(self) -> bool:
        """Show a stretch of the source again, records that have been deleted since included."""
        assert self._wish is not None
        from_seq, to_seq = self._wish["from_seq"], self._wish["to_seq"]
        topic = self._source
        last = self._attach_head if topic.derived is None else topic.head_seq
        if self._held >= 0:
            last = min(last, max(self._held, from_seq))  # copies of nothing above were sent
        in_doubt = self._source_is_unsure and not 0 < to_seq <= topic.head_seq
        if (in_doubt or derivation.is_missing(topic, from_seq, to_seq or last)) and not self._gives_up():
            await self._wait_a_while()
            return True
        plan, lost = _stretch(topic, from_seq, min(to_seq, topic.head_seq) if to_seq else last, whole=bool(to_seq))
        if not await self._load(plan):
            return True
        copies = collect_all(plan.windows, self._current_selectors())
        end = to_seq or plan.next_from_seq
        self._acked = from_seq
        at_end = not to_seq and plan.next_from_seq >= last
        gaps = _not_shown(plan.windows, from_seq, end)
        answer = await self._send("derived.fill", end, copies, lost=lost, gaps=gaps, last=at_end)
        if answer["again"]:
            self._detach()
        else:
            self._settle_on(answer)
        return True

    async def _redo(self) -> bool:
        """Forward what may have been forwarded before the power failed, in the same order, dead or alive."""
        topic = self._source
        await self._engine.endings.wait(topic)
        in_doubt = self._source_is_unsure and not self._is_cyclic
        if self._redo_through is None and not in_doubt:
            self._redo_through = min(self._held, topic.head_seq) if self._held >= 0 else topic.head_seq
        through = self._redo_through if self._redo_through is not None else topic.head_seq
        if self.cursor >= through:
            if in_doubt:
                return False  # it gets more itself
            self._take(await self._send("derived.take", self.cursor, Copies(), sure=True))
            return True
        if derivation.is_missing(topic, self.cursor, through) and not self._gives_up():
            await self._wait_a_while()
            return True
        plan, lost = _stretch(topic, self.cursor, through, whole=False)
        if lost:
            # Nobody knows which of them were forwarded: there is room for the copies of all.
            self._take(await self._send("derived.trim", self.cursor + lost, missed=lost * len(self._names)))
        elif await self._load(plan):
            copies = collect_all(plan.windows, self._current_selectors())
            self._take(await self._send("derived.take", plan.next_from_seq, copies, redone=True))
        return True


def _stretch(topic: Topic, from_seq: int, through: int, *, whole: bool) -> tuple[Plan, int]:
    """Every record that can still be shown, dead or not: all of them, or those of one message up to the first that
    cannot be shown; and how many seqs at the beginning cannot."""
    windows: list[Window] = []
    lost, at = 0, from_seq
    for chunk, dead in _dead_or_alive(topic, from_seq):
        if chunk.last_seq <= at:
            continue
        if chunk.first_seq > through or (windows and not whole and at - from_seq >= limits.FORWARD_RECORDS):
            break
        if windows and not whole and chunk.first_seq > at + 1:
            break
        if not windows:
            lost = max(0, chunk.first_seq - from_seq - 1)
        low, high = max(0, at + 1 - chunk.first_seq), min(len(chunk), through + 1 - chunk.first_seq)
        windows.append(Window(chunk.block, dead, low, high, chunk))
        at = chunk.first_seq + high - 1
    if not windows:
        lost, at = through - from_seq, through
    elif whole:
        at = through
    return Plan(windows, None, at, topic.head_seq, 0, 0), lost


def _not_shown(windows: list[Window], after: int, through: int) -> list[tuple[int, int]]:
    """Ranges of seqs above `after` that no window has."""
    gaps, at = [], after + 1
    for window in windows:
        first = window.chunk.first_seq + window.low
        if first > at:
            gaps.append((at, first - 1))
        at = window.chunk.first_seq + window.high
    return [*gaps, (at, through)] if at <= through else gaps


def _dead_or_alive(topic: Topic, from_seq: int) -> Iterator[tuple[Chunk, int]]:
    """Chunks with records above `from_seq` and their dead bits, in order. Two may hold the same records."""
    chunks = topic.chunks[bisect_right(topic.chunks, from_seq, key=lambda chunk: chunk.last_seq) :]
    spent = sorted(topic.spent or (), key=lambda chunk: chunk.first_seq)
    alive = ((chunk, chunk.dead) for chunk in chunks)
    dead = ((chunk, span(0, len(chunk))) for chunk in spent)
    yield from merge(alive, dead, key=lambda found: found[0].first_seq)
