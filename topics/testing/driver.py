"""Drives one shard's store by hand, step by step, beside its reference model: no threads, no event loop.

Each command goes to the engine; what the engine accepts is entered into the model's log, and is folded into the model
when the engine says it is done. `check` compares the two, byte for byte. A crash is survived by recovering from what
the disk has left and asking the model whether that is allowed.
"""

import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any, Self

from topics.core.config import parse_config
from topics.core.match import TagMatch
from topics.core.requests import decode_append
from topics.core.tags import Pattern
from topics.core.topic import Topic
from topics.limits import Limits
from topics.shards import datafile, wal
from topics.shards.answers import Appending
from topics.shards.checkpoint import Checkpoint
from topics.shards.cold import ColdTier
from topics.shards.files import Files
from topics.shards.recovery import recover
from topics.shards.store import Store
from topics.testing.comparison import (
    Mismatch,
    append_body,
    digest_of,
    expect,
    found_of,
    page_body,
    page_of,
    queries,
    salted,
    settings_of,
)
from topics.testing.disk_monitor import MonitoredFiles, is_exempt
from topics.testing.drafts import Draft, Record, Settings
from topics.testing.fake_clock import FakeClock
from topics.testing.faulty_files import FaultyFiles
from topics.testing.outcomes import Answer, FailedStart, Poisoned
from topics.testing.reference import Entry, Found, Page, Query, ReferenceShard, ReferenceTopic

SMALL = Limits(segment_events=8, segment_bytes=4096)
NO_TOPIC = ReferenceTopic("", 0, Settings())
_END = object()


class Driver:
    def __init__(
        self,
        files: FaultyFiles | None = None,
        *,
        clock: FakeClock | None = None,
        bounds: Limits = SMALL,
        wal_file_bytes: int = 2048,
        monitored: bool = True,
    ) -> None:
        self.disk = files or FaultyFiles()
        self.clock = clock or FakeClock()
        self.model = ReferenceShard()
        self.work: Checkpoint | None = None
        self.abandoned = 0  # checkpoints
        self._bounds = bounds
        self._wal_file_bytes = wal_file_bytes
        self._monitored = monitored
        self._now_ms = 0
        self._lsn_of: list[int] = []  # of each entry of the model's log
        self._waiting: list[tuple[Answer, Entry, int]] = []
        self._captured: list[Entry] = []
        self._gated: set[int] = set()  # lsns of what may be acked only when it is synced
        self._monitor: MonitoredFiles | None = None
        self._excused: set[str] = set()  # files the monitor need not watch: abandoned, or only their flags unsynced
        self._epoch = 0  # the highest that anybody has seen
        self.store: Store  # from `start` on

    def start(self) -> Self:
        self.store = self._recover()
        return self

    def _recover(self) -> Store:
        files: Files = self.disk
        self._monitor = None
        if self._monitored:
            exempt = lambda path: is_exempt(path) or path in self._excused  # noqa: E731
            files = self._monitor = MonitoredFiles(self.disk, exempt=exempt)
        try:
            cold = self._cold_tier(files)
            return recover(files, self.clock, self._bounds, wal_file_bytes=self._wal_file_bytes, cold=cold)
        except OSError as error:
            raise FailedStart(str(error)) from error

    def _cold_tier(self, files: Files) -> ColdTier | None:
        return None

    # --- time -----------------------------------------------------------------------------------------------------

    def now(self) -> int:
        self._now_ms = max(self._now_ms, self.clock.now_ms())
        return self._now_ms

    @property
    def busy(self) -> bool:
        """Whether a command waits for its sync."""
        return bool(self._waiting)

    def waiting_records(self, name: str) -> list[Record]:
        """Records of accepted writes that wait for their sync."""
        head_seq = self.model.topics[name].head_seq if name in self.model.topics else 0
        waiting = [(e.ts, draft) for _, e, _ in self._waiting if e.topic == name for draft in e.drafts]
        settings = settings_of(self.store.engine.state.topics[name]) if waiting else Settings()
        return [settings.record(seq, ts, draft) for seq, (ts, draft) in enumerate(waiting, head_seq + 1)]

    def keys_coming(self, name: str) -> set[str]:
        """Dedup keys of accepted writes that wait for their sync."""
        waiting = [draft.dedup for _, e, _ in self._waiting if e.topic == name for draft in e.drafts]
        return {key for key in waiting if key is not None}

    # --- commands -------------------------------------------------------------------------------------------------

    def put(self, name: str, config: dict[str, Any]) -> Answer:
        answer, now, known = Answer(), self.now(), self._settings_in_log(name)
        self._expire(name)
        before = self.store.engine.log.last_lsn
        self.store.engine.put_topic(name, parse_config(config, name), answer.done, answer.fail)
        if known is None:
            settings = salted(self.store.engine.state.topics[name], Settings.of(config))
            self._enter(self.model.create(name, self._new_epoch(name), settings, now), answer, before)
        elif self.store.engine.log.last_lsn > before:
            settings = salted(self.store.engine.state.topics[name], Settings.of(config, known))
            entry = self.model.update(name, settings, now)
            entry.at_once = known.durability == "ephemeral" != settings.durability
            if not entry.at_once:
                self.model.topics[name].becoming = settings
            self._enter(entry, answer, before)
        return answer

    def append(
        self, name: str, drafts: list[Draft], *, key: str | None = None, config: dict[str, Any] | None = None
    ) -> Answer:
        answer, now = Answer(), self.now()
        request = decode_append(append_body(drafts, key, config), name, Limits())
        topic = self._expire(name)
        before = self.store.engine.log.last_lsn
        known = name in self.store.engine.state.topics
        remembered = topic.find_key(key, now) if topic is not None and key is not None else None
        kept, duplicates = (topic or NO_TOPIC).sift(drafts, now, len(self.waiting_records(name)))
        resident = known and self.store.engine.state.topics[name].config.durability == "ephemeral"
        self.store.engine.append(name, request, answer.done, answer.fail)
        if topic is not None and remembered is not None:
            expect((answer.result.first_seq, answer.result.records, answer.result.deduped), (*remembered[:2], True))
            expect(answer.result.duplicates, topic.retell(drafts, remembered, now), name, "told again")
        elif topic is not None and not kept and key is None:
            expect(answer.result, Appending(name, topic.head_seq + 1, 0, topic.head_seq, False, True, duplicates))
        elif resident:
            self._enter(self.model.append(name, kept, now, key, duplicates, resident=True), answer, before)
        elif self.store.engine.log.last_lsn == before:
            expect(answer.given, False)  # a retry that waits for its original
        elif not known:
            settings = salted(self.store.engine.state.topics[name], Settings.of(config or {}))
            entry = self.model.create_and_append(name, self._new_epoch(name), settings, kept, now, key)
            entry.duplicates = duplicates
            self._enter(entry, answer, before)
        else:
            self._enter(self.model.append(name, kept, now, key, duplicates), answer, before)
        return answer

    def delete(self, name: str, before_seq: int | None, match: TagMatch | None) -> Answer:
        answer, now = Answer(), self.now()
        topic = self.topic(name)
        expected = self.model.topics[name]
        expected.expire(now)
        ranges = None
        if match is not None:
            ranges = self.store.plan_match(topic, Pattern(match), before_seq).resolve()
            selected = [seq for seq in expected.select(before_seq, match) if seq <= topic.head_seq]
            found = [seq for first, last in ranges for seq in range(first, last + 1) if seq in expected.live]
            expect(found, selected)
        before = self.store.engine.log.last_lsn
        below = before_seq or 0 if match is None else 0
        self.store.engine.delete_records(topic, below, ranges, answer.done, answer.fail)
        seqs = expected.select(before_seq, match) if match is not None else None
        count = None if self._waiting else len(expected.select(before_seq, match))
        resident = topic.config.durability == "ephemeral"
        self._enter(self.model.delete(name, before_seq, seqs, now, resident=resident), answer, before)
        if count is not None and answer.given:
            expect(answer.result, count)
        return answer

    def remove(self, name: str) -> Answer:
        self._expire(name)
        answer, before = Answer(), self.store.engine.log.last_lsn
        self.store.engine.remove_topic(name, False, answer.done, answer.fail)
        if self.store.engine.log.last_lsn > before:
            self._enter(self.model.remove(name), answer, before)
        return answer

    def topic(self, name: str) -> Topic:
        topic = self.store.engine.state.find(name)
        self.store.engine.endings.finish(topic)
        return topic

    def _expire(self, name: str) -> ReferenceTopic | None:
        """Ahead of a command: what the engine logs about records that are over is none of its own frames."""
        topic = self.model.topics.get(name)
        if topic is not None:
            topic.expire(self.now())
            self.store.engine.endings.finish(self.store.engine.state.topics[name])
        return topic

    def _new_epoch(self, name: str) -> int:
        epoch = self.store.engine.state.topics[name].epoch
        assert epoch > self._epoch, "an epoch is used again"
        return epoch

    def _settings_in_log(self, name: str) -> Settings | None:
        topic = self.model.fold(len(self.model.log)).get(name)
        return topic.settings if topic is not None else None

    def _enter(self, entry: Entry, answer: Answer, before_lsn: int) -> None:
        assert (self.store.engine.log.last_lsn > before_lsn) is not entry.resident, "accepted, but not logged"
        self._lsn_of.append(self.store.engine.log.last_lsn)
        self._waiting.append((answer, entry, self.store.engine.log.last_lsn))
        if entry.at_once:
            entry.change(self.model.topics)
        if not entry.resident and (entry.is_control or self._is_fsync(entry.topic)):
            self._gated.add(self.store.engine.log.last_lsn)
        self._settle()

    def _is_fsync(self, name: str) -> bool:
        return self.store.engine.state.topics[name].config.durability == "fsync"

    def _settle(self) -> None:
        """Fold what has been answered into the model, in the order of the log."""
        still = []
        for answer, entry, lsn in self._waiting:
            if not answer.given:
                still.append((answer, entry, lsn))
                continue
            assert answer.error is None, answer.error
            if not entry.resident:  # it has no frame; the lsn is that of an earlier command
                self._check_durable(lsn)
            if not entry.at_once:
                entry.change(self.model.topics)
            result = answer.result
            if isinstance(result, Appending):
                self.model.note_ack(entry.topic, result.first_seq + result.records - 1)
                expect((result.records, result.duplicates), (len(entry.drafts), entry.duplicates), entry.topic)
        self._waiting = still

    def _check_durable(self, lsn: int) -> None:
        """No ack before its sync, if it has to wait for one."""
        if lsn in self._gated:
            self._gated.discard(lsn)
            if self._monitor is not None:
                self._monitor.check_acked(lsn)

    # --- the log --------------------------------------------------------------------------------------------------

    def write(self) -> None:
        """Write what waits, without a sync. A failed write or sync poisons the engine, as the committer would."""
        frames = self.store.engine.log.take()
        if frames:
            with self._poisoning():
                self.store.write_group(frames)
            self._note_written(frames[0].lsn, frames[-1].lsn)
            self.model.written = self._entries_up_to(frames[-1].lsn)

    def _note_written(self, first_lsn: int, last_lsn: int) -> None:
        path, end = wal.file_path(self.store.writer.number), self.store.writer.end_offset
        for lsn in self._gated:
            if self._monitor is not None and first_lsn <= lsn <= last_lsn:
                self._monitor.note_write(lsn, path, end)

    @contextlib.contextmanager
    def _poisoning(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.model.written = self.model.durable  # a restart begins with what the disk has
            self.store.engine.poison(str(error))
            raise Poisoned(str(error)) from error

    def sync(self) -> None:
        with self._poisoning():
            lsn = self.store.sync_log()
        self.model.durable = max(self.model.durable, self._entries_up_to(lsn))
        self.store.engine.durable(lsn)
        self._settle()

    def commit(self) -> None:
        while self.store.engine.log.depth or self.store.writer.synced_lsn < self.store.writer.written_lsn:
            self.write()
            self.sync()

    def _entries_up_to(self, lsn: int) -> int:
        return sum(known <= lsn for known in self._lsn_of)

    # --- checkpoints ----------------------------------------------------------------------------------------------

    def checkpoint(self, between: Callable[[], None] = lambda: None) -> None:
        """One checkpoint; `between` is done after each of its stages."""
        try:
            for step in self.checkpoint_steps():
                step()
                between()
        except OSError as error:
            assert self.work is not None
            if self.work.committing:
                self.store.engine.poison(str(error))
                raise Poisoned(str(error)) from error
            for info in self.work.commit.added:
                self._excused |= {info.path, datafile.index_path(info.path)}
            list(self.work.abandon())
            self.work.remove_litter()
            self.work, self.abandoned = None, self.abandoned + 1

    def checkpoint_steps(self) -> Iterator[Callable[[], None]]:
        """The stages of one checkpoint; anything may happen between two of them."""
        yield from _each(self.store.engine.graves.bury())
        work = self.work = self.store.begin_checkpoint()
        self._captured = []
        yield from self._capture_stages(work)
        yield self._catch_up
        yield lambda: self._write(work)
        yield from _each(work.install())
        yield lambda: self.store.forget(work)
        yield work.sweep
        self.work = None

    def _capture_stages(self, work: Checkpoint) -> Iterator[Callable[[], None]]:
        captures = 0
        for stage in _each(work.capture()):
            yield stage
            if len(work.captures) > captures:  # what it has of its last topic is stored if this checkpoint is
                captures = len(work.captures)
                waiting = [entry for _, entry, _ in self._waiting if not entry.at_once]
                name = work.captures[-1].topic.name
                self._captured += [e for e in self.model.log if e.topic == name and e not in waiting]

    def _write(self, work: Checkpoint) -> None:
        work.write()
        for entry in self._captured:
            entry.stored = True
        flips = [flip for flips in work.flips.values() for flip in flips if not flip.done]
        self._excused |= {flip.chunk.file.path for flip in flips if flip.chunk.file is not None}

    def _catch_up(self) -> None:
        assert self.work is not None
        if self.store.engine.log.durable_lsn < self.work.needs_lsn:
            self.commit()

    # --- crashes --------------------------------------------------------------------------------------------------

    def restart(self) -> None:
        """A clean stop and start."""
        self.stop()
        self.survive(self.disk.crash(0, power_loss=False), power_loss=False)

    def restart_in_place(self) -> None:
        """As `restart`, on the same disk, whose count of calls goes on."""
        self.stop()
        self.survive(self.disk, power_loss=False)

    def stop(self) -> None:
        self.commit()
        self.checkpoint()
        self.store.engine.go_idle()
        self.commit()
        self.store.close()

    def crash(self, seed: int, *, power_loss: bool) -> None:
        self.survive(self.disk.crash(seed, power_loss=power_loss), power_loss=power_loss)

    def fork(self) -> Self:
        """A driver that knows the same, to try out another end."""
        twin = type(self)(
            self.disk,
            clock=self.clock,
            bounds=self._bounds,
            wal_file_bytes=self._wal_file_bytes,
            monitored=self._monitored,
        )
        model = self.model
        twin.model = ReferenceShard(
            dict(model.topics), list(model.log), dict(model.acked_head), model.durable, model.written
        )
        twin._now_ms, twin._epoch = self._now_ms, self._epoch
        twin._lsn_of = list(self._lsn_of)
        twin._excused = set(self._excused)
        return twin

    def survive(self, disk: FaultyFiles, *, power_loss: bool) -> None:
        """Recover from what is left and hold it against everything the model allows."""
        self.disk, self.work = disk, None
        self.store = self._recover()
        self.adopt(power_loss=power_loss)

    def adopt(self, *, power_loss: bool) -> None:
        found = {topic.name: found_of(topic) for topic in self.store.engine.state.by_id.values()}
        least = self.model.durable if power_loss else max(self.model.durable, self.model.written)
        problems = []
        log = list(self.model.log)
        for length in range(len(log), least - 1, -1):
            wrong = self._try(length, found, power_loss=power_loss)
            if wrong is None:
                self._lsn_of = [0] * len(self.model.log)
                self._waiting = []
                self._gated = set()
                return
            problems.append(f"{length} of {len(log)} entries: {wrong}")
        raise Mismatch("no prefix of the log explains what was recovered:\n" + "\n".join(problems))

    def _try(self, length: int, found: dict[str, Found], *, power_loss: bool) -> str | None:
        before = (
            list(self.model.log),
            dict(self.model.topics),
            dict(self.model.acked_head),
            self.model.durable,
            self.model.written,
        )
        wrong = self.model.recover(length, found, power_loss=power_loss)
        if wrong is None:
            try:
                self.check_all()
            except Mismatch as error:
                wrong = str(error)
        if wrong is not None:
            self.model.log, self.model.topics, self.model.acked_head, self.model.durable, self.model.written = before
        return wrong

    # --- comparing ------------------------------------------------------------------------------------------------

    def check_all(self) -> None:
        """Every topic, every byte of every record, and what readers at the edges are told."""
        for name, topic in self._checked_topics():
            for from_seq in sorted({topic.head_seq + 1, topic.earliest_seq - 1, topic.evict_floor - 1}):
                self._check_page(name, Query(from_seq=from_seq, limit=1), topic)
            self._check_walk(name, topic, 64)

    def check(self, rng: random.Random) -> None:
        """As `check_all`, with random readers."""
        for name, topic in self._checked_topics():
            for query in queries(topic, rng):
                self._check_page(name, query, topic)
            self._check_walk(name, topic, rng.choice((1, 3, 64)))

    def _checked_topics(self) -> Iterator[tuple[str, ReferenceTopic]]:
        """All topics, as far as numbers and settings tell."""
        state = self.store.engine.state
        published = {name for name, topic in state.topics.items() if topic.published}
        expect(published, set(self.model.topics))
        for name, topic in self.model.topics.items():
            self._epoch = max(self._epoch, topic.epoch)
            topic.expire(self.now())
            self._check_topic(self.topic(name), topic)
            yield name, topic

    def _check_topic(self, topic: Topic, expected: ReferenceTopic) -> None:
        for field in ("head_seq", "earliest_seq", "evict_floor", "count", "bytes", "epoch"):
            expect(getattr(topic, field), getattr(expected, field), topic.name, field)
        expect(settings_of(topic), expected.settings, topic.name, "config")
        for key in expected.keys:
            digest, window_ms = digest_of(key), topic.config.idempotency_window_ms
            found = topic.keys.find(digest, self.now(), window_ms) if topic.keys else None
            expect(found, expected.find_key(key, self.now()), topic.name, "key", key)
        assert topic.evict_floor <= topic.earliest_seq <= topic.head_seq + 1

    def _check_page(self, name: str, query: Query, topic: ReferenceTopic) -> Page:
        page = topic.page(query)
        expect(self.page(name, query), page_body(name, page), name, query)
        return page

    def _check_walk(self, name: str, topic: ReferenceTopic, limit: int) -> None:
        """A reader that starts at nothing gets everything, in order, and ends."""
        from_seq, texts = 0, []
        while True:
            page = self._check_page(name, Query(from_seq=from_seq, limit=limit, tags=True), topic)
            texts += page.texts
            assert page.next_from_seq > from_seq or page.next_from_seq == topic.head_seq, "no progress"
            from_seq = page.next_from_seq
            if from_seq == topic.head_seq:
                break
        expect(texts, [record.text(tags=True) for record in topic.live.values()])

    def page(self, name: str, query: Query) -> bytes:
        return page_of(self.store, self.topic(name), query)


def _each(steps: Iterator[None]) -> Iterator[Callable[[], None]]:
    """Every single step of a generator as a stage."""
    going = True

    def advance() -> None:
        nonlocal going
        going = next(steps, _END) is not _END

    while going:
        yield advance
