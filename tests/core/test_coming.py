"""Keys whose write is on its way: who waits for which."""

from hypothesis import given
from hypothesis import strategies as st

from topics.core.coming import ComingKeys
from topics.core.keyruns import NewKeys, prepare


def keys(*names: int) -> list[bytes]:
    return [bytes([name]) * 16 for name in names]


def prepared(*names: int) -> NewKeys:
    return prepare(tuple(enumerate(keys(*names))), 1, 1)


def nothing() -> None:
    """What a retry does."""


def test_the_keys_of_a_large_write_stay_together_and_its_own_key_is_waited_for_with_them():
    coming, large = ComingKeys(), prepared(1, 2, 3)
    coming.add(keys(9), large)
    assert coming.waiting_for(keys(4, 5)) is None
    for found in (coming.waiting_for(keys(4, 2)), coming.waiting_for(keys(9))):
        assert found is not None
        found.append(nothing)
    assert coming.take(keys(9), large) == [nothing, nothing]
    assert not coming
    assert coming.waiting_for(keys(1, 9)) is None


def test_of_two_large_writes_each_has_those_who_wait_for_it():
    coming, first, second = ComingKeys(), prepared(1, 2), prepared(3, 4)
    coming.add((), first)
    coming.add((), second)
    waiting = coming.waiting_for(keys(4))
    assert waiting is not None
    waiting.append(nothing)
    assert coming.take((), first) == []
    assert coming.take((), second) == [nothing]


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 4)), max_size=12))
def test_all_that_wait_are_taken_once(writes):
    coming, name, waits = ComingKeys(), 0, 0
    for is_large, count in writes:
        mine = range(name + 1, name + 1 + count)
        name += count
        coming.add(() if is_large else keys(*mine), prepared(*mine) if is_large else None)
        for key in mine:
            waiting = coming.waiting_for(keys(key))
            assert waiting is not None
            waiting.append(nothing)
            waits += 1
    assert coming.take_all() == [nothing] * waits
    assert not coming
