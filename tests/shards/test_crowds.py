"""Commands that waited together go on a few a turn, and nobody overtakes those of his topic."""

import threading
from typing import Any

import pytest
import trio
import trio.testing

from tests.shards.test_service import ask, serving
from topics import limits
from topics.core.config import TopicConfig
from topics.core.requests import decode_append
from topics.core.topic import Topic
from topics.errors import TopicsError
from topics.limits import Limits
from topics.shards.crowds import Crowds
from topics.testing.driver import Driver
from topics.testing.outcomes import Answer
from topics.testing.rpc_pair import until

MANY = 40


@pytest.fixture(autouse=True)
def one_a_turn(monkeypatch):
    monkeypatch.setattr(limits, "CROWD_NS", -1)


@pytest.fixture
def topic() -> Topic:
    return Topic(1, "t", 1, TopicConfig())


class Loop:
    """Turns of a loop, one by one."""

    def __init__(self) -> None:
        self.crowds = Crowds()
        self.told = 0
        self.crowds.on_more = self._tell

    def _tell(self) -> None:
        self.told += 1


def test_they_go_on_one_turn_after_the_other():
    loop, seen = Loop(), list[int]()
    loop.crowds.let_go([lambda n=n: seen.append(n) for n in range(3)])  # type: ignore[misc]
    assert (seen, loop.told) == ([0], 1)
    assert not loop.crowds.run()
    assert loop.crowds.run()
    assert seen == [0, 1, 2]


def test_who_comes_meanwhile_waits_behind_and_has_two_of_them_go_on(topic):
    loop, seen = Loop(), list[int]()
    loop.crowds.let_pass(topic, [lambda n=n: seen.append(n) for n in range(5)])  # type: ignore[misc]
    assert seen == [0]
    assert topic.parked == []
    topic.parked.append(lambda: seen.append(99))
    loop.crowds.hasten(topic)
    assert seen == [0, 1, 2]
    loop.crowds.finish()
    assert seen == [0, 1, 2, 3, 4, 99]
    assert topic.parked is None
    assert not loop.crowds.waits


def test_the_rest_waits_for_one_that_makes_others_wait(topic):
    loop, seen = Loop(), list[int]()

    def change() -> None:
        assert topic.parked is None, "it does not wait for itself"
        topic.parked = []

    loop.crowds.let_pass(topic, [lambda: seen.append(0), change, lambda: seen.append(2)])
    topic.parked.append(lambda: seen.append(3))
    loop.crowds.finish()
    assert seen == [0]
    parked, topic.parked = topic.parked, None
    loop.crowds.let_pass(topic, parked)
    loop.crowds.finish()
    assert seen == [0, 2, 3]


def test_those_that_were_in_front_are_in_front_again(topic):
    loop, seen = Loop(), list[int]()
    loop.crowds.let_pass(topic, [lambda: seen.append(0), lambda: seen.append(3)])
    loop.crowds.let_pass(topic, [lambda: seen.append(1), lambda: seen.append(2)])
    loop.crowds.finish()
    assert seen == [0, 1, 2, 3]


def test_one_that_lets_others_go_does_not_run_them_itself():
    loop, seen = Loop(), list[str]()

    def first() -> None:
        loop.crowds.let_go([lambda: seen.append("other")])
        seen.append("first")

    loop.crowds.let_go([first])
    loop.crowds.finish()
    assert seen == ["first", "other"]


def test_all_are_refused_when_the_log_fails():
    driver = Driver().start()
    driver.put("t", {"durability": "fsync"})
    driver.commit()
    engine = driver.store.engine
    loops = list[int]()
    engine.crowds.on_more = lambda: loops.append(1)  # somebody would call again
    answers = [append(driver, KEYED) for _ in range(MANY)]
    driver.commit()
    assert [answer.given for answer in answers].count(True) < MANY
    assert loops
    engine.poison("broken")
    assert all(answer.given for answer in answers)
    assert isinstance(answers[-1].error, TopicsError)


def append(driver: Driver, body: bytes) -> Answer:
    answer = Answer()
    driver.store.engine.append("t", decode_append(body, "t", Limits()), answer.done, answer.fail)
    return answer


# --- in a shard ---------------------------------------------------------------------------------------------------

KEYED = b'{"records":[{"data":1}],"idempotency_key":"k"}'


class Slow:
    """Calls to a shard whose log waits to be synced until all of them have come."""

    def __init__(self, service: Any, connection: Any) -> None:
        self.engine = service._engine
        self._connection = connection
        self._opened, store = threading.Event(), service._store
        sync = store.sync_log

        def sync_later() -> int:
            assert self._opened.wait(10)
            lsn: int = sync()
            return lsn

        store.sync_log = sync_later
        self.answers: list[Any] = []

    async def begin(self, nursery: trio.Nursery, method: str, body: bytes) -> None:
        """In the order of these."""
        index = len(self.answers)
        self.answers.append(None)

        async def call() -> None:
            self.answers[index] = await ask(self._connection, method, body)

        nursery.start_soon(call)
        await trio.testing.wait_all_tasks_blocked()

    def sync(self) -> None:
        self._opened.set()


async def test_retries_of_a_key_that_is_on_its_way_all_get_its_seq():
    async with serving() as (service, connection):
        await ask(connection, "put", b'{"durability":"fsync"}')
        slow = Slow(service, connection)
        async with trio.open_nursery() as nursery:
            for _ in range(MANY):
                await slow.begin(nursery, "append", KEYED)
            slow.sync()
            await until(lambda: slow.engine.crowds.waits)
            assert None in slow.answers, "not all in one turn"
        assert [answer["first_seq"] for answer in slow.answers] == [1] * MANY
        assert [answer["deduped"] for answer in slow.answers] == [False] + [True] * (MANY - 1)
        assert (await ask(connection, "state"))["head_seq"] == 1


async def test_writes_behind_a_change_keep_their_order_with_those_that_come_while_they_go_on():
    async with serving() as (service, connection):
        await ask(connection, "put", b'{"durability":"fsync"}')
        slow = Slow(service, connection)
        async with trio.open_nursery() as nursery:
            await slow.begin(nursery, "put", b'{"durability":"disk"}')
            for _ in range(MANY):
                await slow.begin(nursery, "append", b'{"records":[{"data":1}]}')
            slow.sync()
            await until(lambda: slow.engine.crowds.waits)
            late = await ask(connection, "append", b'{"records":[{"data":2}]}')
        assert [answer["first_seq"] for answer in slow.answers[1:]] == list(range(1, MANY + 1))
        assert late["first_seq"] == MANY + 1


async def test_a_change_among_writes_that_go_on_comes_in_its_place():
    async with serving() as (service, connection):
        await ask(connection, "put", b'{"durability":"fsync"}')
        slow = Slow(service, connection)
        async with trio.open_nursery() as nursery:
            await slow.begin(nursery, "put", b'{"durability":"disk"}')
            await slow.begin(nursery, "append", b'{"records":[{"data":1},{"data":2}]}')
            await slow.begin(nursery, "put", b'{"durability":"disk","cap_records":1}')
            await slow.begin(nursery, "append", b'{"records":[{"data":3}]}')
            await slow.begin(nursery, "remove", b"")
            await slow.begin(nursery, "append", b'{"records":[{"data":4}]}')
            slow.sync()
        first, removed, last = slow.answers[1], slow.answers[4], slow.answers[5]
        assert (first["first_seq"], slow.answers[3]["first_seq"]) == (1, 3)
        assert removed["deleted"] is True
        assert (last["first_seq"], last["created"]) == (1, True)


async def test_nothing_is_under_way_before_all_have_gone_on():
    """What a shard that stops waits for: a write that goes on later would be lost."""
    async with serving() as (service, connection):
        await ask(connection, "put", b'{"durability":"fsync"}')
        slow = Slow(service, connection)
        async with trio.open_nursery() as nursery:
            for _ in range(MANY):
                await slow.begin(nursery, "append", KEYED)
            slow.sync()
            await until(lambda: slow.engine.crowds.waits)
            await service._committer.flushed()
            assert not slow.engine.crowds.waits


def test_writes_behind_a_removal_are_not_overtaken_by_those_that_find_the_next_topic():
    driver = Driver().start()
    engine = driver.store.engine
    engine.crowds.on_more = lambda: None  # the turns of a loop come later

    def append(number: int) -> Answer:
        answer = Answer()
        request = decode_append(b'{"records":[{"data":%d}]}' % number, "t", Limits())
        engine.append("t", request, answer.done, answer.fail)
        return answer

    append(0)
    driver.commit()
    removed = Answer()
    engine.remove_topic("t", False, removed.done, removed.fail)
    answers = [append(number) for number in range(1, 6)]
    driver.commit()
    answers.append(append(6))
    for _ in range(2):
        engine.crowds.finish()
        driver.commit()
    assert [answer.result.first_seq for answer in answers] == [1, 2, 3, 4, 5, 6]


def test_a_command_that_fails_leaves_the_others_in_line(topic):
    loop, seen = Loop(), list[int]()
    with pytest.raises(ZeroDivisionError):
        loop.crowds.let_pass(topic, [lambda: seen.append(1 // 0), lambda: seen.append(2)])
    loop.crowds.finish()
    assert (seen, topic.parked) == ([2], None)
