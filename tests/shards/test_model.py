"""The engine against its reference model, step by random step, with crashes in between.

TOPICS_TEST_DEPTH multiplies how much is tried. A failure prints the steps that lead to it.
"""

import json
import os
import random
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from topics import limits
from topics.core import loss
from topics.core import topic as topics_in_core
from topics.core.match import TagMatch
from topics.core.seek import cursor_at
from topics.errors import TopicsError
from topics.limits import Limits
from topics.shards import checkpoint, snapshot
from topics.testing.cold_driver import ColdDriver
from topics.testing.drafts import Draft, Settings
from topics.testing.reference import Query, ReferenceTopic

DEPTH = int(os.environ.get("TOPICS_TEST_DEPTH", "1"))
NAMES = ("a", "a", "a", "b", "b", "c:x")
TAGS = (None, "t", "t:1", "t:2", "ü*", "")
NODES = (None, None, "n1", "näh")
DURABILITIES = ("fsync", "disk", "memory", "ephemeral")


@pytest.fixture(autouse=True)
def _small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """So small that a few records fill a block, a segment, a pack and a ceiling."""
    shrink_limits(monkeypatch)


def shrink_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CEILING_AHEAD", 8)
    monkeypatch.setattr(topics_in_core, "BURY_STEP", 1)
    monkeypatch.setattr(limits, "PACK_TOPIC_BYTES", 2000)
    monkeypatch.setattr(checkpoint, "PACK_CHUNKS_MAX", 3)
    monkeypatch.setattr(checkpoint, "PACKS_MAX", 3)
    monkeypatch.setattr(snapshot, "REWRITE_MIN_BYTES", 1500)
    monkeypatch.setattr(loss, "RANGES_MAX", 10**6)  # the model knows no bound


drafts = st.builds(
    Draft,
    data=st.sampled_from((b"1", b'{"k": "v"}', b'"' + b"x" * 60 + b'"', b"null", '"é\\n"'.encode())),
    tag=st.sampled_from(TAGS),
    node=st.sampled_from(NODES),
    meta=st.sampled_from((b"", b"", b'{"m":"1"}')),
    dedup=st.none(),
    ttl_ms=st.sampled_from((None, None, None, 5, 20)),
)
# Few keys, so that most of them come again: in the same write, in later ones, in other topics.
keyed = st.builds(
    Draft,
    data=st.sampled_from((b"1", b"null")),
    tag=st.none(),
    node=st.none(),
    meta=st.just(b""),
    dedup=st.sampled_from((None, "d1", "d2", "d3", "k1")),
    ttl_ms=st.sampled_from((None, None, 20)),
)
batches = st.one_of(
    st.lists(drafts, min_size=1, max_size=4), st.builds(lambda d, n: [d] * n, drafts, st.integers(1, 300))
)
configs = st.fixed_dictionaries(
    {},
    optional={
        "durability": st.sampled_from(DURABILITIES),
        "ttl_ms": st.sampled_from((0, 10, 50)),
        "cap_records": st.sampled_from((0, 3, 20)),
        "cap_bytes": st.sampled_from((0, 200, 3000)),
        "discard": st.sampled_from(("old", "reject")),
        "idempotency_window_ms": st.sampled_from((0, 20, 120_000)),
        "message_ids": st.booleans(),
        "compression": st.sampled_from(("none", "gzip", "zstd")),
        "compression_min_bytes": st.sampled_from((0, 300, 1024)),
    },
)
matches = st.one_of(
    st.none(),
    st.builds(TagMatch, st.just("Eq"), st.sampled_from(("t", "t:1", "ü*", "none", ""))),
    st.builds(TagMatch, st.just("Glob"), st.sampled_from(("t", "t:", "", "ü"))),
)


class ShardMachine(RuleBasedStateMachine):
    @initialize(
        seed=st.integers(0, 2**16),
        wal_file_bytes=st.sampled_from((512, 4096, 1 << 20)),
        events=st.sampled_from((8, 40)),
    )
    def start(self, seed: int, wal_file_bytes: int, events: int) -> None:
        self.rng = random.Random(seed)
        bounds = Limits(segment_events=events, segment_bytes=4096, hot_retain_segments=1)
        self.driver = ColdDriver(bounds=bounds, wal_file_bytes=wal_file_bytes)
        self.driver.start()
        self.steps: Any = None
        self.earliest: dict[tuple[str, int], int] = {}
        for name, durability in (("a", "fsync"), ("b", "disk")):
            batch = [Draft(b"%d" % n, TAGS[n % 4], NODES[n % 4]) for n in range(10)]
            self.driver.append(name, batch, config={"durability": durability})
        self.driver.commit()

    # --- commands -------------------------------------------------------------------------------------------------

    @rule(name=st.sampled_from(NAMES), config=configs)
    def put(self, name: str, config: dict[str, Any]) -> None:
        if not self._is_changing(name) and not self._is_coming(name):
            self.driver.put(name, config)

    @rule(name=st.sampled_from(NAMES), batch=st.lists(drafts, min_size=1, max_size=12))
    def append_mixed(self, name: str, batch: list[Draft]) -> None:
        self.append(name, batch, None, None)

    @rule(name=st.sampled_from(NAMES), draft=drafts)
    def append_one(self, name: str, draft: Draft) -> None:
        self.append(name, [draft], None, None)

    @rule(name=st.sampled_from(NAMES), batch=st.lists(keyed, min_size=1, max_size=6), key=st.sampled_from((None, "k1")))
    def append_keyed(self, name: str, batch: list[Draft], key: str | None) -> None:
        if not self.driver.keys_coming(name) & {draft.dedup for draft in batch}:  # it would wait: see test_engine.py
            self.append(name, batch, key, None)

    @rule(which=st.integers(0, 2), match=matches.filter(bool))
    def delete_matching(self, which: int, match: TagMatch) -> None:
        self.delete(which, None, match)

    @rule(which=st.integers(0, 2), op=st.sampled_from(("Eq", "Glob")), tag=st.sampled_from(("t", "t:1", "t:2")))
    def delete_tag(self, which: int, op: Any, tag: str) -> None:
        self.delete(which, None, TagMatch(op, tag))

    @rule(
        name=st.sampled_from(NAMES), batch=batches, key=st.sampled_from((None, None, "k1", "k2")),
        config=st.one_of(st.none(), configs),
    )  # fmt: skip
    def append(self, name: str, batch: list[Draft], key: str | None, config: dict[str, Any] | None) -> None:
        if self._is_changing(name) or (self._is_coming(name) and self._is_resident(name)):
            return
        if config is not None and config.get("durability") == "ephemeral":
            config = {**config, "durability": "memory"}  # its creation alone would be logged: two events of the model
        code = self._refusal(name, batch, key, config or {})
        if code is None:
            self.driver.append(name, batch, key=key, config=config)
            return
        with pytest.raises(TopicsError) as refused:
            self.driver.append(name, batch, key=key, config=config)
        assert refused.value.code == code

    def _refusal(self, name: str, batch: list[Draft], key: str | None, config: dict[str, Any]) -> str | None:
        """The code with which a write must be refused: by what readers see and every accepted write on its way there.

        Room that a delete makes is there when readers see it, not before.
        """
        accepted = self.driver.model.fold(len(self.driver.model.log)).get(name)
        if accepted is None:
            accepted = ReferenceTopic(name, 0, Settings.of(config))
        caps, now = accepted.settings, self.driver.now()
        if caps.discard != "reject" or (key is not None and accepted.find_key(key, now) is not None):
            return None
        seen = self.driver.model.topics.get(name, ReferenceTopic(name, 0, caps))
        seen.expire(now)
        batch, _ = seen.sift(batch, now, 0)
        waiting = self.driver.waiting_records(name)
        held_bytes = seen.bytes + sum(record.size for record in waiting)
        ts, next_seq = max(now, accepted.last_ts), accepted.head_seq + 1
        size = sum(caps.record(seq, ts, draft).size for seq, draft in enumerate(batch, next_seq))
        records = len(batch), seen.count + len(waiting)
        for cap, need, held in ((caps.cap_records, *records), (caps.cap_bytes, size, held_bytes)):
            if cap and need > cap:
                return "record_too_large"
            if cap and held + need > cap:
                return "topic_full"
        return None

    @rule(which=st.integers(0, 2), back=st.one_of(st.none(), st.integers(-2, 60)), match=matches)
    def delete(self, which: int, back: int | None, match: TagMatch | None) -> None:
        names = sorted(self.driver.model.topics)
        if not names or (back is None and match is None) or self._is_changing(names[which % len(names)]):
            return
        name = names[which % len(names)]
        topic = self.driver.model.topics[name]
        before_seq = max(0, topic.head_seq + 1 - back) if back is not None else None
        self.driver.delete(name, before_seq, match)

    @rule(which=st.integers(0, 2), ahead=st.integers(1, 5), batch=st.lists(drafts, min_size=1, max_size=3))
    def delete_ahead(self, which: int, ahead: int, batch: list[Draft]) -> None:
        """It means what is there: what gets those seqs later stays, over starts, too."""
        self.delete(which, -ahead, None)
        names = sorted(self.driver.model.topics)
        if names:
            self.append(names[which % len(names)], batch, None, None)

    @precondition(lambda self: not self.driver.busy)
    @rule(name=st.sampled_from(("a", "b")), old=st.integers(1, 3), new=st.integers(4, 8))
    def lose_some_to_time_and_others_to_a_cap(self, name: str, old: int, new: int) -> None:
        """One after the other, so that readers stand between the two losses."""
        self.put(name, {"ttl_ms": 10, "cap_records": 3, "discard": "old"})
        self.driver.commit()
        draft = Draft(b"1", None, None)
        self.append(name, [draft] * old, None, None)
        self.driver.commit()
        if not self.driver.busy:
            self.driver.clock.advance(15)
        self.append(name, [draft] * new, None, None)

    @rule(name=st.sampled_from(("a", "c:x")), really=st.integers(0, 3))
    def remove(self, name: str, really: int) -> None:
        if really:
            return
        if name in self.driver.model.topics and not self._is_changing(name) and not self._is_coming(name):
            self.driver.remove(name)

    def _is_changing(self, name: str) -> bool:
        """A control command waits for its sync: what comes now would be parked, which the model does not follow."""
        topic = self.driver.store.engine.state.topics.get(name)
        return topic is not None and (topic.parked is not None or topic.removing)

    def _is_resident(self, name: str) -> bool:
        return self.driver.store.engine.state.topics[name].config.durability == "ephemeral"

    def _is_coming(self, name: str) -> bool:
        topic = self.driver.store.engine.state.topics.get(name)
        return topic is not None and not topic.published

    # --- time and disk --------------------------------------------------------------------------------------------

    @precondition(lambda self: not self.driver.busy)
    @rule(ms=st.sampled_from((1, 9, 15, 60)))
    def pass_time(self, ms: int) -> None:
        self.driver.clock.advance(ms)

    @rule()
    def write(self) -> None:
        self.driver.write()

    @rule()
    def sync(self) -> None:
        self.driver.sync()

    @rule()
    def commit(self) -> None:
        self.driver.commit()

    @rule()
    def go_idle(self) -> None:
        self.driver.store.engine.go_idle()

    @rule()
    def checkpoint(self) -> None:
        self._end_checkpoint()
        self.driver.checkpoint()

    @rule(steps=st.integers(1, 3))
    def checkpoint_partly(self, steps: int) -> None:
        """Some stages of a checkpoint; other steps may come before the next ones."""
        if self.steps is None:
            self.steps = self.driver.checkpoint_steps()
        for _ in range(steps):
            step = next(self.steps, None)
            if step is None:
                self.steps = None
                return
            step()

    @rule()
    def copy_to_cold(self) -> None:
        """At any moment of a checkpoint; one that begins later makes the copies count."""
        self.driver.copy_all()

    @rule()
    def relocate(self) -> None:
        self._end_checkpoint()
        self.driver.relocate()

    def _end_checkpoint(self) -> None:
        for step in self.steps or ():
            step()
        self.steps = None

    @rule()
    def restart(self) -> None:
        self._end_checkpoint()
        self.driver.restart()

    @rule(seed=st.integers(0, 2**16), power_loss=st.booleans())
    def crash(self, seed: int, power_loss: bool) -> None:
        self.steps = None
        self.driver.crash(seed, power_loss=power_loss)
        durable = {(t.name, t.epoch) for t in self.driver.model.topics.values() if t.settings.durability == "fsync"}
        emptied = {entry.topic for entry in self.driver.model.log if entry.lost}
        durable = {key for key in durable if key[0] not in emptied}
        # Elsewhere a crash may take back a delete whose frame was not synced, or records that others were evicted for.
        self.earliest = {key: earliest for key, earliest in self.earliest.items() if key in durable}

    @rule()
    def evict_cache(self) -> None:
        """Read from files, not from what is still resident."""
        for topic in self.driver.store.engine.state.by_id.values():
            for chunk in topic.chunks:
                if chunk.file is not None:
                    chunk.block = None

    # --- what always holds ----------------------------------------------------------------------------------------

    @invariant()
    def engine_and_model_agree(self) -> None:
        self.driver.check(self.rng)

    @invariant()
    def a_reader_from_a_time_on_gets_what_is_that_new(self) -> None:
        for name, topic in self.driver.model.topics.items():
            topic.expire(self.driver.now())
            ts = topic.last_ts + self.rng.choice((-60, -10, -1, 0, 1))
            at, texts, head = cursor_at(self.driver.topic(name), ts, self.driver.now()), [], -1
            while at != head:
                page = json.loads(self.driver.page(name, Query(from_seq=at)) + b"}")
                texts += page["records"]
                at, head = page["next_from_seq"], page["head_seq"]
            assert [record["$seq"] for record in texts] == [r.seq for r in topic.live.values() if r.ts >= ts]

    @invariant()
    def earliest_only_grows(self) -> None:
        for topic in self.driver.model.topics.values():
            key = (topic.name, topic.epoch)
            assert topic.earliest_seq >= self.earliest.get(key, 0)
            self.earliest[key] = topic.earliest_seq


TestShard = ShardMachine.TestCase
TestShard.settings = settings(
    max_examples=40 * DEPTH,
    derandomize=DEPTH == 1,  # the same cases for every run of the suite; deeper runs try new ones each time
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
    database=None,
    report_multiple_bugs=False,
)
