"""The end of a turn: after everything that could run, once, and for all that was put in it."""

import logging

import trio
import trio.testing

from topics.rpc.turns import Turns, turns


async def test_what_is_to_happen_at_the_end_sees_the_whole_turn():
    seen: list[object] = []
    order: list[int] = []

    async def note(n):
        order.append(n)

    async with trio.open_nursery() as nursery:
        for n in range(3):
            nursery.start_soon(note, n)
        turns().at_end(lambda: seen.append(list(order)))
        await trio.testing.wait_all_tasks_blocked()
        assert seen == [[]]  # this turn ends before the others begin
        turns().at_end(lambda: seen.append(len(order)))
        await trio.lowlevel.checkpoint()
    assert seen[1] == 3


async def test_an_action_runs_once_and_may_ask_for_another():
    ran: list[object] = []
    turns().at_end(lambda: turns().at_end(lambda: ran.append("second")))
    turns().at_end(lambda: ran.append("first"))
    await trio.lowlevel.checkpoint()
    await trio.lowlevel.checkpoint()
    assert ran == ["first", "second"]


async def test_an_action_that_fails_takes_nobody_with_it(caplog):
    ran: list[object] = []
    turns().at_end(lambda: ran.append(1 // 0))
    turns().at_end(lambda: ran.append(1))
    await trio.lowlevel.checkpoint()
    turns().at_end(lambda: ran.append(2))
    await trio.lowlevel.checkpoint()
    assert ran == [1, 2]
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


def test_every_loop_has_its_own():
    async def mine() -> Turns:
        assert turns() is turns()
        return turns()

    assert trio.run(mine) is not trio.run(mine)
