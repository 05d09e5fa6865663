"""Turns: whatever the order of arrival, nobody begins before those that must be done first, and all get their turn."""

import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from topics.gateway.ws_turns import Turn, Turns

commands = st.lists(
    st.tuples(st.sets(st.sampled_from("abc"), max_size=3), st.booleans(), st.integers(0, 3)), max_size=12
)


async def _run(given: list[tuple[set[str], bool, int]]) -> tuple[Turns, list[int], dict[int, set[int]]]:
    """Take turns in this order, each command working for some rounds: who ended in which order, and who had ended by
    the time each began."""
    turns = Turns()
    ended: list[int] = []
    found: dict[int, set[int]] = {}

    async def work(number: int, turn: Turn, rounds: int) -> None:
        await turn.begin()
        found[number] = set(ended)
        for _ in range(rounds):
            await trio.lowlevel.checkpoint()
        ended.append(number)
        turn.end()

    async with trio.open_nursery() as nursery:
        for number, (names, shared, rounds) in enumerate(given):
            nursery.start_soon(work, number, turns.take(sorted(names), shared=shared), rounds)
            if rounds == 0:
                await trio.lowlevel.checkpoint()
    return turns, ended, found


@given(commands)
def test_everybody_waits_for_those_before_about_the_same_and_for_no_shared_ones(given):
    turns, ended, found = trio.run(_run, given)
    assert sorted(ended) == list(range(len(given)))
    for number, (names, shared, _) in enumerate(given):
        for other, (names_before, shared_before, _) in enumerate(given[:number]):
            if names & names_before and not (shared and shared_before):
                assert other in found[number], (other, number)
    assert turns._last == {}


def test_shared_turns_go_on_beside_one_another():
    async def main() -> None:
        turns = Turns()
        first, second, third = (turns.take(["t"], shared=shared) for shared in (True, True, False))
        with trio.fail_after(60):
            await second.begin()
            await first.begin()
        with trio.move_on_after(60) as waiting:
            await third.begin()
        assert waiting.cancelled_caught
        first.end()
        second.end()
        with trio.fail_after(60):
            await third.begin()

    trio.run(main, clock=MockClock(autojump_threshold=0))
