"""Calls that nobody waits for: their outcome is told."""

import trio.testing

from topics.errors import TopicsError, topic_not_found
from topics.rpc import Call
from topics.rpc.open_calls import Reply, Told
from topics.testing.rpc_pair import until


class Teller(Told):
    def __init__(self):
        self.outcomes: list[Reply | str] = []

    def resolve(self, reply: Reply) -> None:
        self.outcomes.append(reply)

    def reject(self, error: TopicsError) -> None:
        self.outcomes.append(type(error).__name__ if error.code == "not_ready" else error.code)


async def told(connection, method, body=b"", deadline_ms=60_000):
    teller = Teller()
    assert connection.begin(teller, method, {"n": 1}, body, deadline_ms)
    await until(lambda: teller.outcomes)
    return teller.outcomes


async def test_a_reply(open_pair):
    async with open_pair({"echo": lambda call: call.reply(call.head, call.body)}) as connection:
        assert await told(connection, "echo", b"body") == [({"n": 1}, b"body")]
        assert connection.calls == {}


async def test_an_error(open_pair):
    def refuse(call):
        raise topic_not_found("a")

    async with open_pair({"refuse": refuse}) as connection:
        assert await told(connection, "refuse") == ["topic_not_found"]


async def test_a_deadline(open_pair):
    waiting: list[Call] = []
    async with open_pair({"wait": waiting.append}) as connection:
        assert await told(connection, "wait", deadline_ms=10) == ["DeadlineExceeded"]
        waiting[0].reply({})  # too late: not told a second time
        await trio.testing.wait_all_tasks_blocked()
        assert connection.calls == {}


async def test_the_loss_of_the_peer(open_pair):
    waiting: list[Call] = []
    async with open_pair({"wait": waiting.append}) as connection:
        teller = Teller()
        assert connection.begin(teller, "wait", {}, b"", 60_000)
        await until(lambda: waiting)
        await connection.aclose()
        assert teller.outcomes == ["PeerLost"]
        assert not connection.begin(Teller(), "wait", {}, b"", 60_000)


async def test_who_gives_up_is_told_nothing_and_the_server_is(open_pair):
    waiting: list[Call] = []
    async with open_pair({"wait": waiting.append}) as connection:
        teller = Teller()
        assert connection.begin(teller, "wait", {}, b"", 60_000)
        await until(lambda: waiting)
        teller.abandon()
        await until(lambda: waiting[0].cancelled)
        assert (teller.outcomes, connection.calls) == ([], {})


async def test_without_room_nothing_is_sent(open_pair, set_limits):
    set_limits(RPC_INFLIGHT_MAX=1)
    waiting: list[Call] = []
    async with open_pair({"wait": waiting.append}) as connection:
        assert connection.begin(Teller(), "wait", {}, b"", 60_000)
        assert not connection.begin(Teller(), "wait", {}, b"", 60_000)
        await until(lambda: waiting)
        assert len(connection.calls) == 1
