"""A peer in the same process behaves like one across a socket."""

import pytest
import trio

from topics import errors
from topics.errors import TopicsError
from topics.rpc import Call, DeadlineExceeded, LocalPeer


@pytest.fixture
async def nursery():
    async with trio.open_nursery() as opened:
        yield opened
        opened.cancel_scope.cancel()


def peer_of(nursery: trio.Nursery, **handlers) -> LocalPeer:
    return LocalPeer(lambda: handlers, nursery)


async def test_an_answer_at_once_later_and_from_a_task(nursery):
    waiting: list[Call] = []

    async def work(call: Call) -> None:
        await trio.lowlevel.checkpoint()
        call.reply({"task": True}, [b"a", memoryview(b"bc")])

    peer = peer_of(
        nursery,
        now=lambda call: call.reply({"got": call.head}, call.body),
        later=waiting.append,
        task=lambda call: call.run(work, call),
    )
    reply = await peer.call("now", {"a": (1, 2)}, [b"x", b"y"])
    assert reply == ({"got": {"a": [1, 2]}}, b"xy")
    assert await peer.call("task", {}) == ({"task": True}, b"abc")

    async def ask() -> None:
        assert (await peer.call("later", {})).head == {"late": 1}
        waiting.clear()

    nursery.start_soon(ask)
    await trio.testing.wait_all_tasks_blocked()
    waiting[0].reply({"late": 1})
    await trio.testing.wait_all_tasks_blocked()
    assert not waiting


async def test_neither_side_sees_objects_of_the_other(nursery):
    kept: list = []

    def keep(call: Call) -> None:
        kept.append(call.head["list"])
        call.reply({"list": kept[0]})

    sent = [1]
    reply = await peer_of(nursery, keep=keep).call("keep", {"list": sent})
    reply.head["list"].append(2)
    sent.append(3)
    assert kept == [[1]]


async def test_refusals_arrive_as_they_were_and_nothing_else_does(nursery):
    def refuse(call: Call) -> None:
        raise TopicsError(errors.TOPIC_FULL, "full", {"topic": "t"})

    async def fall(call: Call) -> None:
        raise ValueError("secret")

    peer = peer_of(nursery, refuse=refuse, fall=lambda call: call.run(fall, call))
    with pytest.raises(TopicsError, match="full") as caught:
        await peer.call("refuse", {})
    assert (caught.value.code, caught.value.detail) == (errors.TOPIC_FULL, {"topic": "t"})
    for method in ("fall", "unknown"):
        with pytest.raises(TopicsError) as caught:
            await peer.call(method, {})
        assert caught.value.code == errors.INTERNAL
        assert "secret" not in caught.value.message


async def test_a_caller_that_goes_is_told_to_the_handler(nursery, autojump_clock):
    gone: list[str] = []
    calls: list[Call] = []

    def hold(call: Call) -> None:
        calls.append(call)
        call.on_cancel(lambda: gone.append(call.method))

    peer = peer_of(nursery, hold=hold)
    with pytest.raises(DeadlineExceeded):
        await peer.call("hold", {}, deadline_ms=100)
    with trio.move_on_after(1):
        await peer.call("hold", {})
    assert gone == ["hold", "hold"]
    for call in calls:
        assert call.cancelled
        call.reply({})  # nobody hears it


async def test_an_answer_is_given_once(nursery):
    peer = peer_of(nursery, twice=lambda call: (call.reply({}), call.reply({})))
    assert await peer.call("twice", {}) == ({}, b"")
    with pytest.raises(RuntimeError, match="no streams"):
        await peer.connect()
