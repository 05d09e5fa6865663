"""Who is served first, what is put off, for how long, and how that is told."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from tests.shards.test_service import LARGE, ONE, ask, serving
from topics import errors, limits
from topics.core.config import TopicConfig
from topics.core.priority import AGE_CAP_MS
from topics.core.topic import Topic
from topics.errors import TopicsError
from topics.shards.scheduler import Scheduler

TURN_NS = limits.YIELD_AFTER_NS


class Shop:
    """A scheduler whose clock moves by what serving takes, and readers that note when they were served."""

    def __init__(self, cost_ns: int = 0) -> None:
        self.now_ms = 1_700_000_000_000
        engine: Any = SimpleNamespace(now=lambda: self.now_ms, log=SimpleNamespace(crowded=False), on_change=None)
        self.clock_ns = 1
        self.cost_ns = cost_ns
        self.served: list[str] = []
        self.waits: dict[str, float] = {}
        self.engine = engine
        self.scheduler = Scheduler(engine, lambda: self.clock_ns)

    def topic(self, name: str, priority: int | None = None) -> Topic:
        topic = Topic(len(name) * 1000 + hash(name) % 997, name, 1, TopicConfig(priority=priority))
        self.wait_on(topic)
        return topic

    def wait_on(self, topic: Topic) -> None:
        def served() -> None:
            self.clock_ns += self.cost_ns
            self.served.append(topic.name)
            self.waits[topic.name] = self.scheduler.waited_ms

        topic.waiters = {served: None}

    def change(self, *topics: Topic) -> None:
        for topic in topics:
            self.engine.on_change(topic)

    def pass_ms(self, ms: int) -> None:
        self.now_ms += ms
        self.clock_ns += ms * 1_000_000

    @contextmanager
    def pressure(self) -> Iterator[None]:
        self.engine.log.crowded = True
        yield
        self.engine.log.crowded = False


@pytest.fixture
async def busy(nursery):
    """A shop that has just spent its share of the turn."""
    shop = Shop(cost_ns=TURN_NS)
    shop.change(shop.topic("first"))
    nursery.start_soon(shop.scheduler.run)
    await trio.testing.wait_all_tasks_blocked()
    return shop


async def test_an_idle_shard_serves_at_once():
    shop = Shop()
    for name in ("a", "b", "c"):
        shop.change(shop.topic(name, -1000))
        assert shop.served[-1] == name
    assert len(shop.scheduler) == 0
    assert set(shop.waits.values()) == {0.0}


async def test_a_busy_one_serves_by_effective_priority(busy, autojump_clock):
    topics = [busy.topic(name, priority) for name, priority in (("d", -500), ("c", 0), ("b", 400), ("a", 900))]
    busy.change(*topics)
    assert busy.served == ["first"]  # the rest waits for its turn
    await trio.testing.wait_all_tasks_blocked()
    assert busy.served == ["first", "a", "b", "c", "d"]


async def test_a_topic_that_was_just_read_counts_as_500(busy, autojump_clock):
    read, unread = busy.topic("read"), busy.topic("unread")
    read.last_read_ms = busy.now_ms
    busy.change(unread, read)
    await trio.testing.wait_all_tasks_blocked()
    assert busy.served == ["first", "read", "unread"]


async def test_changes_while_it_waits_are_served_once(busy, autojump_clock):
    topic = busy.topic("t")
    busy.change(topic, topic, topic)
    assert len(busy.scheduler) == 1
    await trio.testing.wait_all_tasks_blocked()
    assert busy.served == ["first", "t"]
    assert topic.queued_ms is None


async def test_others_get_a_turn_while_much_waits(busy, autojump_clock):
    turns: list[int] = []
    busy.change(*(busy.topic(f"t{n}") for n in range(5)))

    async def somebody_else() -> None:
        while len(busy.served) < 6:
            turns.append(len(busy.served))
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(somebody_else)
    assert len(set(turns)) >= 4  # between nearly any two that were served


async def test_low_bands_are_held_back_under_pressure_only(busy, autojump_clock):
    with busy.pressure():
        busy.change(busy.topic("low", 0), busy.topic("high", 900))
        await trio.testing.wait_all_tasks_blocked()
        assert busy.served == ["first", "high"]
    await trio.sleep(2 * limits.AGING_TICK_MS / 1000)
    assert busy.served == ["first", "high", "low"]


@pytest.mark.parametrize("priority", [None, 0, -300, -1000])
async def test_but_never_for_longer_than_ageing_takes(busy, priority, autojump_clock):
    with busy.pressure():
        busy.change(busy.topic("low", priority))
        await trio.sleep(1)
        assert busy.served == ["first"]
        busy.pass_ms(AGE_CAP_MS)
        await trio.sleep(2 * limits.AGING_TICK_MS / 1000)
        assert busy.served == ["first", "low"]
    assert busy.waits["low"] >= AGE_CAP_MS


async def test_ageing_makes_room_step_by_step(busy, autojump_clock):
    """+100 a second: 0 is out of the low bands after 2.5 s."""
    with busy.pressure():
        busy.change(busy.topic("low", 0))
        busy.pass_ms(2400)
        await trio.sleep(1)
        assert busy.served == ["first"]
        busy.pass_ms(100)
        await trio.sleep(1)
        assert busy.served == ["first", "low"]


# --- a real shard ---------------------------------------------------------------------------------------------------


async def test_the_wait_of_a_diff_is_measured():
    async with serving() as (service, connection):
        await ask(connection, "append", ONE)
        replies: list[Any] = []

        async def poll() -> None:
            replies.append(await connection.call("diff", {"topic": "t"}, b'{"from_seq":1,"wait_ms":20000}'))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(poll)
            while service._engine.state.topics["t"].waiters is None:
                await trio.sleep(0.001)
            service._engine.state.topics["t"].last_read_ms = None
            service.scheduler.lag_ms = 2 * limits.LAG_PRESSURE_MS  # it forgets that in a few ticks
            await ask(connection, "append", ONE)
            assert not replies
        assert replies[0].head["perf"]["throttle_wait_ms"] >= limits.AGING_TICK_MS / 2
        assert json.loads(bytes(replies[0].body) + b"}")["next_from_seq"] == 2


@pytest.mark.parametrize("body", [ONE, LARGE])
async def test_at_the_high_water_mark_writes_are_refused(body: bytes, monkeypatch: Any):
    monkeypatch.setattr(limits, "LARGE_WRITE_WAIT_MS", 10)
    monkeypatch.setattr("topics.shards.scheduler.LAG_WEIGHT", 0.0)  # it stays as late as it is said to be
    async with serving() as (service, connection):
        await ask(connection, "append", ONE)
        service.scheduler.lag_ms = limits.LAG_HIGH_MS + 500
        with pytest.raises(TopicsError) as refused:
            await ask(connection, "append", body)
        assert refused.value.code == errors.THROTTLED
        assert refused.value.detail["retry_after_ms"] == limits.LAG_HIGH_MS + 500
        assert "limit" not in refused.value.detail
        assert (await ask(connection, "diff", b"{}"))["head_seq"] == 1  # readers are still served
        service.scheduler.lag_ms = 0
        assert (await ask(connection, "append", body))["last_seq"] == 2


async def test_a_write_may_opt_out_and_wait(monkeypatch: Any):
    monkeypatch.setattr("topics.shards.scheduler.LAG_WEIGHT", 0.0)
    async with serving() as (service, connection):
        await ask(connection, "append", ONE)
        service.scheduler.lag_ms = limits.LAG_HIGH_MS + 500
        answers: list[Any] = []

        async def insist() -> None:
            answers.append(await ask(connection, "append", ONE[:-1] + b',"disable_backpressure":true}'))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(insist)
            await ask(connection, "diff", b"{}")
            assert not answers
            service.scheduler.lag_ms = 0
        assert answers[0]["last_seq"] == 2


async def test_the_loops_lateness_is_felt_and_forgotten(nursery, autojump_clock):
    shop = Shop()
    nursery.start_soon(shop.scheduler.run)
    await trio.testing.wait_all_tasks_blocked()
    for _ in range(10):
        autojump_clock.jump(1.0)  # nobody got a turn for a second
        await trio.testing.wait_all_tasks_blocked()
    assert shop.scheduler.lag_ms > limits.LAG_PRESSURE_MS
    assert shop.scheduler.under_pressure
    await trio.sleep(2)
    assert not shop.scheduler.under_pressure
