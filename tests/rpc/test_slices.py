"""Connections with very many calls: a little at a time, and others go on in between."""

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from topics import limits
from topics.errors import TopicsError
from topics.rpc import Call, serve
from topics.rpc.deadlines import LOOK_AGAIN_S, TICK_S, Deadlines
from topics.rpc.server import ServerConnection
from topics.rpc.transport import receiver_of
from topics.rpc.wire import CALL, HEADER_BYTES, REPLY, Decoder, encode, hello, pack_head
from topics.testing.rpc_pair import rpc_pair, until

MANY = 50


@pytest.fixture
def small_steps(monkeypatch):
    """Others may go on after each call, so that no test depends on how fast the machine is."""
    monkeypatch.setattr(limits, "YIELD_AFTER_NS", -1)
    monkeypatch.setattr(limits, "RPC_SLICE_NS", -1)


def a_call(call_id: int, method: str = "wait") -> bytes:
    return encode(CALL, call_id, pack_head((method, None, 0, {})))


def largest(counts: list[int]) -> int:
    return max(after - before for before, after in pairwise(counts))


async def count_turns(counts: list[int], items: list[Any]) -> None:
    while True:
        counts.append(len(items))
        await trio.lowlevel.checkpoint()


async def test_calls_that_take_long_are_taken_one_a_turn(small_steps, nursery):
    ours, theirs = trio.testing.memory_stream_pair()
    calls: list[Call] = []
    counts: list[int] = []
    nursery.start_soon(serve, theirs, {"wait": calls.append})
    await ours.send_all(hello() + b"".join(a_call(number + 1) for number in range(MANY)))
    nursery.start_soon(count_turns, counts, calls)
    await until(lambda: len(calls) == MANY)
    assert largest(counts) <= 2
    nursery.cancel_scope.cancel()


async def test_many_quick_calls_are_taken_together(nursery, monkeypatch):
    monkeypatch.setattr(limits, "RPC_SLICE_NS", 10**15)
    ours, theirs = trio.testing.memory_stream_pair()
    calls: list[Call] = []
    counts: list[int] = []
    nursery.start_soon(serve, theirs, {"wait": calls.append})
    await ours.send_all(hello() + b"".join(a_call(number + 1) for number in range(MANY)))
    nursery.start_soon(count_turns, counts, calls)
    await until(lambda: len(calls) == MANY)
    assert limits.RPC_SLICE_MESSAGES <= largest(counts) <= 2 * limits.RPC_SLICE_MESSAGES
    nursery.cancel_scope.cancel()


# --- a connection that is lost --------------------------------------------------------------------------------------


class Lost:
    """A server that is about to lose a client with many open calls."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.told: list[int] = []
        self.counts: list[int] = []
        self.ours, theirs = trio.testing.memory_stream_pair()
        self.server = ServerConnection(theirs, {"wait": self._wait})

    def _wait(self, call: Call) -> None:
        number = len(self.calls)
        self.calls.append(call)
        call.on_cancel(lambda: self.told.append(number))

    async def begin(self, nursery: trio.Nursery) -> None:
        await self.ours.send_all(hello())
        await self.server.greet()
        nursery.start_soon(self.server.run)
        await self.ours.send_all(b"".join(a_call(number + 1) for number in range(MANY)))
        await until(lambda: len(self.calls) == MANY)
        nursery.start_soon(count_turns, self.counts, self.told)


async def test_its_calls_are_cancelled_a_few_a_turn_and_in_order(small_steps, nursery):
    lost = Lost()
    await lost.begin(nursery)
    await lost.ours.aclose()
    await until(lambda: len(lost.told) == MANY)
    assert lost.told == list(range(MANY))
    assert largest(lost.counts) <= 2
    assert lost.server.calls == {}
    nursery.cancel_scope.cancel()


async def test_from_the_first_moment_no_call_answers_any_more(small_steps, nursery):
    lost = Lost()
    await lost.begin(nursery)
    await lost.ours.send_all(b"".join(a_call(number + 1) for number in range(MANY, 2 * MANY)))
    await lost.ours.aclose()
    await until(lambda: lost.told)
    taken = len(lost.calls)
    assert len(lost.told) < taken
    before = lost.server.outbox.queued_bytes
    late: list[int] = []
    for call in lost.calls:
        assert call.cancelled
        call.reply({})
        call.fail(TopicsError("internal", "nobody hears it"))
        call.on_cancel(lambda: late.append(1))
    assert lost.server.outbox.queued_bytes == before
    assert len(late) == taken  # at once
    await until(lambda: len(lost.told) == taken)
    assert len(lost.calls) == taken  # and none is dispatched
    nursery.cancel_scope.cancel()


async def test_a_server_that_stops_meanwhile_still_cancels_all_and_ends(small_steps):
    lost = Lost()
    async with trio.open_nursery() as nursery:
        await lost.begin(nursery)
        nursery.cancel_scope.cancel()
    assert lost.told == list(range(MANY))


async def test_callers_learn_of_a_lost_peer_a_few_a_turn_and_may_give_up_before(small_steps):
    refused: list[int] = []
    scopes: dict[int, trio.CancelScope] = {}
    counts: list[int] = []

    async def ask(number: int) -> None:
        with trio.CancelScope() as scopes[number]:
            try:
                await connection.call("wait", {})
            except TopicsError:
                refused.append(number)

    calls: list[Call] = []
    async with rpc_pair({"wait": calls.append}) as connection:
        async with trio.open_nursery() as nursery, trio.open_nursery() as callers:
            for number in range(MANY):
                callers.start_soon(ask, number)
            await until(lambda: len(calls) == MANY)
            nursery.start_soon(count_turns, counts, refused)
            await connection.aclose()
            for scope in scopes.values():
                scope.cancel()
            await until(lambda: not callers.child_tasks)
            nursery.cancel_scope.cancel()
        assert 1 <= len(refused) < MANY  # each was told, or had given up
        assert connection.calls == {}


# --- deadlines ------------------------------------------------------------------------------------------------------


class Sweeper:
    def __init__(self) -> None:
        self.calls: dict[int, Any] = {}
        self.deadlines: Deadlines[Any] = Deadlines(self.calls)
        self.now = 1000.0
        self.looks = 0

    def open(self, call_id: int, after: float) -> None:
        self.calls[call_id] = SimpleNamespace(expires=self.now + after)

    def sweep(self) -> list[int]:
        self.now = self.deadlines.next_sweep(self.now)
        found = list(self.deadlines.sweep(self.now))
        self.looks = len(found)
        passed = [item[0] for item in found if item is not None]
        for call_id in passed:
            del self.calls[call_id]
        return passed


def test_a_deadline_is_found_in_the_tick_in_which_it_passes():
    sweeper = Sweeper()
    deadlines = {number: 1000.0 + number * 0.0371 for number in range(1, 200)}
    for number, expires in deadlines.items():
        sweeper.open(number, expires - sweeper.now)
    while sweeper.calls:
        for number in sweeper.sweep():
            assert deadlines[number] <= sweeper.now < deadlines[number] + TICK_S + 1e-9
    assert sweeper.deadlines.is_idle


def test_calls_are_not_looked_at_all_the_time():
    sweeper = Sweeper()
    for number in range(1, 1001):
        sweeper.open(number, 30.0)
    looks = []
    for _ in range(round(20 / TICK_S)):
        assert sweeper.sweep() == []
        looks.append(sweeper.looks)
    assert sum(looks) <= 1000 * (20 / LOOK_AGAIN_S + 1)


def test_what_is_over_leaves_nothing_behind_for_long():
    sweeper = Sweeper()
    sweeper.open(1, 1e6)
    for number in range(2, 20_000, 100):
        for call_id in range(number, number + 100):
            sweeper.open(call_id, 1e6)
        sweeper.sweep()
        for call_id in range(number, number + 100):
            del sweeper.calls[call_id]
    for _ in range(round(LOOK_AGAIN_S / TICK_S) + 1):
        sweeper.sweep()
    assert sum(map(len, sweeper.deadlines._ticks.values())) == 1
    sweeper.calls.clear()
    assert sweeper.deadlines.is_idle


def test_calls_without_a_deadline_cost_nothing():
    sweeper = Sweeper()
    for number in range(1, 100):
        sweeper.open(number, float("inf"))
    assert not sweeper.deadlines.is_idle
    sweeper.sweep()
    assert sweeper.deadlines.is_idle
    sweeper.open(100, 0.001)
    assert not sweeper.deadlines.is_idle
    assert sweeper.sweep() == [100]


async def test_deadlines_that_pass_together_are_seen_to_a_few_a_step(small_steps, autojump_clock, nursery):
    lost = Lost()
    await lost.ours.send_all(hello())
    await lost.server.greet()
    nursery.start_soon(lost.server.run)
    timed = [encode(CALL, number + 1, pack_head(("wait", 100, 0, {}))) for number in range(MANY)]
    await lost.ours.send_all(b"".join(timed))
    await until(lambda: len(lost.calls) == MANY)
    steps: list[int] = []

    class Steps(trio.abc.Instrument):
        def after_task_step(self, task: trio.lowlevel.Task) -> None:
            steps.append(len(lost.told))

    trio.lowlevel.add_instrument(Steps())
    await trio.sleep(0.2)
    assert lost.told == list(range(MANY))
    assert largest([0, *steps]) <= 2
    late = encode(CALL, MANY + 1, pack_head(("answer", None, 0, {})))
    lost.server._handlers = {"answer": lambda call: call.reply({})}
    await lost.ours.send_all(late)
    answers = Decoder()
    kinds: list[int] = []
    while REPLY not in kinds:
        kinds += [kind for kind, *_ in answers.feed(bytes(await lost.ours.receive_some()))]
    nursery.cancel_scope.cancel()


@pytest.mark.parametrize("piece", [1, 40, 300, 16 * 1024])
async def test_what_is_read_at_once_is_decoded_in_pieces_and_nothing_is_lost(monkeypatch, piece):
    """Small messages, and one that is large, in one read of a socket."""
    monkeypatch.setattr(limits, "RPC_DECODE_BYTES", piece)
    messages: list[Any] = [(CALL, number + 1, ["wait", None, 0, {}], b"x" * number) for number in range(MANY)]
    messages.insert(20, (CALL, 1000, ["wait", None, 0, {}], b"y" * 40_000))
    sent = b"".join(encode(kind, call_id, pack_head(head), body) for kind, call_id, head, body in messages)
    assert len(sent) < limits.RPC_READ_BYTES
    ours, theirs = trio.socket.socketpair()
    with ours, theirs:
        receive = receiver_of(trio.SocketStream(theirs), Decoder())
        await ours.send(sent)
        found: list[Any] = []
        most = 0
        while len(found) < len(messages):
            got = await receive()
            most = max(most, len(got))
            found += got
    assert found == messages
    assert most <= 2 + piece // HEADER_BYTES
