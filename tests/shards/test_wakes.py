"""Very many who are told at once: readers of one topic, writes of one sync, polls whose time is up.

Each step tells a few of them, everybody in order, and others go on in between.
"""

import gc
import json
from collections import Counter
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from tests.shards.queue_shard import serving as serving_queues
from tests.shards.test_service import ask, serving
from topics import limits
from topics.core import diff
from topics.core.config import TopicConfig
from topics.core.requests import decode_append
from topics.core.topic import Topic
from topics.errors import TopicsError
from topics.limits import Limits
from topics.rpc import Call
from topics.shards.checkpoint import Checkpoint
from topics.shards.diffs import Look
from topics.shards.polls import Poll, Polls
from topics.shards.queues import Claimer
from topics.shards.scheduler import Scheduler
from topics.shards.timers import Timers
from topics.testing.driver import Driver
from topics.testing.outcomes import Answer
from topics.testing.rpc_pair import until

MANY = 100
STEP_NS = limits.YIELD_AFTER_NS // 4  # what each reader takes: four fit into a turn


@pytest.fixture
def small_steps(monkeypatch):
    """Others may go on after each, so that no test depends on how fast the machine is."""
    monkeypatch.setattr(limits, "YIELD_AFTER_NS", -1)


# --- readers of one topic -------------------------------------------------------------------------------------------


class Crowd:
    """Topics with readers who take their time, and who note what they have seen."""

    def __init__(self) -> None:
        self.now_ns = 1
        engine: Any = SimpleNamespace(now=lambda: 1_700_000_000_000, log=SimpleNamespace(crowded=False))
        self.engine = engine
        self.scheduler = Scheduler(engine, lambda: self.now_ns)
        self.seen: list[tuple[str, int]] = []
        self.waits: list[float] = []
        self.stays = True
        self.ids = 0

    def topic(self, name: str, readers: int) -> Topic:
        self.ids += 1
        topic = Topic(self.ids, name, 1, TopicConfig())
        for number in range(readers):
            self.wait(topic, number)
        return topic

    def wait(self, topic: Topic, number: int) -> None:
        def look() -> None:
            self.now_ns += STEP_NS
            self.seen.append((f"{topic.name}{number}", topic.head_seq))
            self.waits.append(self.scheduler.waited_ms)
            if self.stays:
                self.wait(topic, number)

        topic.waiters = {**(topic.waiters or {}), look: None}

    def write(self, topic: Topic) -> None:
        topic.head_seq += 1
        if topic.waiters:
            self.engine.on_change(topic)


async def test_many_readers_of_a_topic_look_a_few_a_turn_and_in_their_order(nursery):
    crowd = Crowd()
    nursery.start_soon(crowd.scheduler.run)
    topic = crowd.topic("t", MANY)
    crowd.write(topic)
    assert len(crowd.seen) <= 5  # the first of them at once
    turns: list[int] = []
    while len(crowd.seen) < MANY:
        turns.append(len(crowd.seen))
        await trio.lowlevel.checkpoint()
    assert max(after - before for before, after in pairwise(turns)) <= 5
    await trio.testing.wait_all_tasks_blocked()
    assert crowd.seen == [(f"t{number}", 1) for number in range(MANY)]  # each once, although all wait again
    assert crowd.waits[0] == 0
    assert crowd.waits[-1] > 10  # and they are told that they had to wait
    assert len(crowd.scheduler) == 0
    assert len(topic.waiters or ()) == MANY


async def test_what_changes_while_they_look_is_told_to_everybody_once(nursery):
    crowd = Crowd()
    nursery.start_soon(crowd.scheduler.run)
    topic = crowd.topic("t", MANY)
    crowd.write(topic)
    await until(lambda: len(crowd.seen) >= MANY // 2)
    told = len(crowd.seen)
    crowd.write(topic)
    await trio.testing.wait_all_tasks_blocked()
    first, second = crowd.seen[:MANY], crowd.seen[MANY:]
    assert first == [(f"t{number}", 1 if number < told else 2) for number in range(MANY)]
    assert second == [(f"t{number}", 2) for number in range(told)]  # the others have seen it


async def test_other_topics_are_served_between_them(nursery):
    crowd = Crowd()
    nursery.start_soon(crowd.scheduler.run)
    crowd.write(crowd.topic("t", MANY))
    crowd.write(crowd.topic("u", 1))
    await until(lambda: ("u0", 1) in crowd.seen)
    assert len(crowd.seen) < 20


async def test_a_reader_that_fails_does_not_keep_a_topic_from_being_served(nursery):
    crowd = Crowd()
    topic = crowd.topic("t", MANY)

    def fail() -> None:
        raise RuntimeError("on purpose")

    topic.waiters = {fail: None, **(topic.waiters or {})}
    with pytest.raises(RuntimeError, match="on purpose"):
        crowd.write(topic)
    nursery.start_soon(crowd.scheduler.run)
    crowd.wait(topic, 0)
    crowd.write(topic)
    await trio.testing.wait_all_tasks_blocked()
    assert ("t0", 2) in crowd.seen


async def test_polls_of_a_topic_that_is_deleted_while_they_are_woken(small_steps):
    async with serving() as (service, connection):
        await ask(connection, "append", b'{"records":[{"data":1}]}')
        answers: list[int] = []
        refusals: list[str] = []

        async def poll() -> None:
            try:
                answers.append((await ask(connection, "diff", b'{"from_seq":1,"wait_ms":20000}'))["next_from_seq"])
            except TopicsError as error:
                refusals.append(error.code)

        async with trio.open_nursery() as nursery:
            for _ in range(MANY):
                nursery.start_soon(poll)
            topic = service._engine.state.topics["t"]
            await until(lambda: len(topic.waiters or ()) == MANY)
            await ask(connection, "append", b'{"records":[{"data":2}]}')
            assert len(answers) < MANY
            await ask(connection, "remove")
        assert set(answers) == {2}
        assert set(refusals) <= {"topic_not_found"}
        assert len(answers) + len(refusals) == MANY
        assert len(service.polls) == 0


# --- time that is up ------------------------------------------------------------------------------------------------


class Steps(trio.abc.Instrument):
    """Counts the steps of the loop's tasks."""

    number = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.number += 1


@pytest.mark.parametrize("kind", ["polls", "timers"])
async def test_what_ends_together_ends_a_few_a_step(kind, small_steps, autojump_clock, nursery):
    ended: dict[int, int] = {}
    steps = Steps()
    trio.lowlevel.add_instrument(steps)
    polls, timers, topic = Polls(), Timers(), Topic(1, "t", 1, TopicConfig())
    nursery.start_soon(polls.run if kind == "polls" else timers.run)

    def begin(number: int) -> Any:
        def end() -> None:
            ended[number] = steps.number

        return polls.wait(topic, 1000, end) if kind == "polls" else timers.after(1000, end)

    begun = [begin(number) for number in range(MANY)]
    for number in range(1, MANY, 2):
        begun[number].cancel()
    await trio.sleep(0.999)
    assert not ended
    await trio.sleep(0.02)
    assert list(ended) == list(range(0, MANY, 2))  # in their order
    assert max(Counter(ended.values()).values()) <= 2  # of them in one step
    assert len(polls) == 0
    assert not topic.waiters


async def test_polls_that_are_over_leave_nothing_behind(autojump_clock):
    polls, topic = Polls(), Topic(1, "t", 1, TopicConfig())
    for _ in range(MANY):
        polls.wait(topic, 30_000, lambda: None)
        assert len(polls) == 1
        topic.run_waiters()
        assert len(polls) == 0
    assert len(polls._next) == 1


async def test_what_has_waited_is_freed_without_the_garbage_collector(monkeypatch):
    """It is too old for young collections by then, and a shard makes no others."""
    monkeypatch.setattr(limits, "RPC_UNHEARD_MAX", 0)  # else the last answers are remembered
    gc.collect()
    gc.disable()
    try:
        async with serving_queues() as shard:
            await shard.make()
            await shard.produce(1, topic="t")
            for wait_ms in (1, 20_000):  # its time is up, or there is something
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(shard.call, "diff", "t", {"from_seq": 1, "wait_ms": wait_ms})
                    nursery.start_soon(shard.call, "claim", "q", {"node": "w", "max": 1, "wait_ms": wait_ms})
                    if wait_ms > 1:
                        await until(lambda: count_objects(Look, Claimer, Poll) == 3)
                        await shard.produce(2, topic="t")
                        await shard.produce(1)
            assert count_objects(Look, Claimer, Poll, Call) == 0
    finally:
        gc.enable()


def count_objects(*kinds: type) -> int:
    return sum(isinstance(item, kinds) for item in gc.get_objects())


# --- writes of one sync ---------------------------------------------------------------------------------------------


def begin_writes(driver: Driver, topics: list[str]) -> list[Answer]:
    answers = []
    for name in topics:
        answers.append(Answer())
        request = decode_append(b'{"records":[{"data":1}]}', name, Limits())
        driver.store.engine.append(name, request, answers[-1].done, answers[-1].fail)
    return answers


def test_what_is_durable_happens_in_slices_and_counts_as_durable_when_it_has():
    driver = Driver().start()
    engine = driver.store.engine
    for name in ("a", "b"):
        driver.put(name, {"durability": "fsync"})
    driver.commit()
    before = engine.log.durable_lsn
    answers = begin_writes(driver, ["a", "b"] * 10)
    woken: list[int] = []
    for _ in range(3):
        engine.log.when_synced(lambda: woken.append(engine.log.durable_lsn))
    frames = engine.log.take()
    driver.store.write_group(frames)
    lsn = driver.store.sync_log()
    for step in range(1, 21):
        assert woken == []
        assert not engine.durable(lsn, lambda _: False)
        assert [answer.given for answer in answers] == [True] * step + [False] * (20 - step)
        assert engine.log.durable_lsn == before + step
        assert engine.log.synced_lsn == lsn
        assert not engine.awaits_sync  # it is on disk, only not applied
        assert Checkpoint(driver.store, Limits(), None).commit.cut_lsn == before + step
        heads = driver.topic("a").head_seq, driver.topic("b").head_seq
        assert heads == ((step + 1) // 2, step // 2)
    assert woken == [lsn]  # one in any case, however little time is left
    assert not engine.durable(lsn, lambda _: False)
    assert engine.durable(lsn, lambda _: False)
    assert woken == [lsn] * 3


def test_a_write_behind_one_that_is_durable_but_not_applied_waits_for_it():
    driver = Driver().start()
    engine = driver.store.engine
    driver.put("a", {"durability": "fsync"})
    driver.commit()
    begin_writes(driver, ["a", "a"])
    driver.store.write_group(engine.log.take())
    lsn = driver.store.sync_log()
    assert not engine.durable(lsn, lambda _: False)
    (late,) = begin_writes(driver, ["a"])
    engine.durable(lsn)
    assert driver.topic("a").head_seq == 2
    assert not late.given
    assert engine.awaits_sync
    driver.commit()
    assert late.given


async def test_writes_of_one_sync_are_applied_a_few_a_turn_and_in_order(small_steps):
    async with serving() as (service, connection):
        await connection.call("put", {"topic": "t"}, b'{"durability":"fsync"}')
        engine, durable = service._engine, service._engine.durable
        steps: list[int] = []

        def watched(*given: Any) -> bool:
            done = durable(*given)
            steps.append(engine.state.topics["t"].head_seq)
            return done

        engine.durable = watched  # type: ignore[method-assign, assignment]
        answers: list[int] = []

        async def write(number: int) -> None:
            answers.append((await ask(connection, "append", b'{"records":[{"data":%d}]}' % number))["last_seq"])

        async with trio.open_nursery() as nursery:
            for number in range(MANY):
                nursery.start_soon(write, number)
        assert sorted(answers) == list(range(1, MANY + 1))
        assert max(after - before for before, after in pairwise([0, *steps])) == 1
        await service._committer.flushed()
        assert engine.log.durable_lsn == engine.log.last_lsn


# --- large answers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "view", [{"include_tags": True}, {"include_meta": False}, {"include_data": False}, {"node": ["n1"]}, {}]
)
async def test_a_large_answer_is_rendered_a_block_a_step(view, small_steps, monkeypatch):
    steps = Steps()
    trio.lowlevel.add_instrument(steps)
    rendered: list[int] = []
    pieces_of = diff._pieces

    def place(seq: int) -> int:
        return (seq - 1) % limits.BLOCK_RECORDS_MAX

    def watched(*given: Any) -> list[diff.Buffer]:
        pieces = pieces_of(*given)
        rendered.append(steps.number)
        assert len(pieces) <= diff.RUNS_MAX
        return pieces

    monkeypatch.setattr(diff, "_pieces", watched)
    async with serving() as (_, connection):
        record = {"data": 1, "meta": {"k": "v"}}
        for _ in range(10):
            records = [{**record, "node": f"n{n % 3}", "tag": f"t{n % 10}"} for n in range(limits.BLOCK_RECORDS_MAX)]
            await ask(connection, "append", json.dumps({"records": records}).encode())
        await ask(connection, "delete", b'{"match":"t7"}')  # holes
        page = await ask(connection, "diff", json.dumps({"limit": 10_000, "bulk": True, **view}).encode())
        assert len(rendered) == 10
        assert max(Counter(rendered).values()) == 1
        wanted = [seq for seq in range(1, 2561) if place(seq) % 10 != 7 and ("node" not in view or place(seq) % 3 != 1)]
        assert [item["$seq"] for item in page["records"]] == wanted
        assert all(
            item["data"] == 1 if view.get("include_data", True) else "data" not in item for item in page["records"]
        )
