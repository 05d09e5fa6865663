"""Remembered keys: what is found and counted, against a plain reference; and nothing that takes long."""

import sys
from hashlib import blake2b

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.strategies import many
from topics.core import idempotency, keyruns, keytable
from topics.core.idempotency import END_OF_TIME, KeyWindow, Remembered
from topics.core.keyruns import RUN_KEYS, Run, drop_older, prepare
from topics.core.keytable import PLACES, SPREAD_AT, KeyTable

WINDOW = 40


def digest(n: int) -> bytes:
    return blake2b(b"%d" % n, digest_size=16).digest()


def filled(keys: int, ts: int = 1000, *, at_once: bool = True) -> KeyWindow:
    window = KeyWindow()
    if at_once:
        window.add_all(prepare(tuple((n, digest(n)) for n in range(keys)), 1, ts))
    else:
        for n in range(keys):
            window.add(digest(n), 1 + n, 1, ts)
    return window


# --- what it knows ------------------------------------------------------------------------------------------------

steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 12)),
        st.tuples(st.just("add many"), st.sets(st.integers(0, 12), min_size=1)),
        st.tuples(st.just("wait"), st.integers(1, 30)),
        st.tuples(st.sampled_from(["tidy", "take", "take some", "give back", "store", "restart"]), st.just(0)),
    ),
    max_size=40,
)


@many
@given(steps)
def test_against_a_plain_reference(given_steps):
    """Written as a topic does it: what is over is forgotten before something comes, and no key comes in its window."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keytable, "SPREAD_AT", 4)
        for module in (keyruns, idempotency):
            patch.setattr(module, "RUN_KEYS", 3)
        patch.setattr(idempotency, "TIDY_STEP", 2)
        _follow(given_steps)


def _follow(given_steps):
    window, now, seq = KeyWindow(), 1000, 1
    known: dict[int, Remembered] = {}
    all_stored: dict[int, Remembered] = {}
    taken: list[Run] = []
    stored = b""
    for what, arg in given_steps:
        if what in ("add", "add many"):
            window.forget_before(now - WINDOW)
            known = {n: found for n, found in known.items() if now - found.ts <= WINDOW}
            new = sorted({arg} if what == "add" else arg, key=lambda n: n % 5)
            new = [n for n in new if n not in known]
            if what == "add many" and new:
                window.add_all(prepare(tuple((i, digest(n)) for i, n in enumerate(new)), seq, now))
            else:
                for i, n in enumerate(new):
                    window.add(digest(n), seq + i, 1, now)
            known |= {n: Remembered(seq + i, 1, now) for i, n in enumerate(new)}
            seq += len(new)
        elif what == "wait":
            now += arg
        elif what == "tidy":
            window.tidy()
        elif what == "take":
            taken += window.take_fresh()
        elif what == "take some":
            taken += window.take_fresh(seq - 2)
        elif what == "give back":
            window.give_back(taken)
            taken = []
        elif what == "store":
            taken += window.take_fresh()
            stored += b"".join(run.encode() for run in taken)
            taken, all_stored = [], dict(known)
        elif what == "restart":
            window, known, taken = KeyWindow(), dict(all_stored), []
            window.load(stored)
            window.forget_before(now - WINDOW)
            known = {n: found for n, found in known.items() if now - found.ts <= WINDOW}
        for n in range(13):
            found = known.get(n)
            open_still = found is not None and now - found.ts <= WINDOW
            assert window.find(digest(n), now, WINDOW) == (found if open_still else None)
        assert len(window) == len(known)


def test_what_is_forgotten_stays_so_when_the_window_grows():
    window = filled(1)
    assert window.forget_before(1001) == 1
    assert window.find(digest(0), 1001, END_OF_TIME) is None
    assert window.forget_before(900) == 0


@pytest.mark.parametrize("stamps", [(9, 5, 6, 9), (5, 6, 9, 9)])
def test_a_key_that_is_stored_twice_counts_once(stamps):
    stored = b"".join(digest(n) + keyruns.pack_value(n, 1, ts) for n, ts in zip((0, 1, 2, 0), stamps, strict=True))
    window = KeyWindow()
    window.load(stored)
    assert len(window) == 3
    assert window.forget_before(8) == 2 - (stamps[0] == 5)
    assert window.find(digest(0), 9, WINDOW) == Remembered(0, 1, 9)
    window.forget_before(10)
    assert len(window) == 0


def test_large_and_small_writes_leave_the_same():
    made = [filled(3 * RUN_KEYS + 7, at_once=at_once) for at_once in (True, False)]
    assert len(made[0]) == len(made[1]) == 3 * RUN_KEYS + 7
    stored = [b"".join(run.encode() for run in window.take_fresh()) for window in made]
    assert stored[0] == stored[1]


# --- in small steps -----------------------------------------------------------------------------------------------


def test_the_table_is_a_dict():
    table, plain = KeyTable(), {}
    for n in range(3 * SPREAD_AT):
        plain[digest(n)] = b"%d" % n
        assert table.put(digest(n), plain[digest(n)]) is None
    assert table.put(digest(1), b"other") == b"1"
    table.discard(digest(1), plain[digest(1)])
    assert table.get(digest(1)) == b"other"
    for n in range(2, 3 * SPREAD_AT):
        table.discard(digest(n), plain[digest(n)])
    assert [table.get(digest(n)) for n in range(3)] == [b"0", b"other", None]
    assert len(table) == 2


def test_no_part_of_the_table_is_large_and_few_grow_at_a_time():
    table, grown, before = KeyTable(), [], 0
    for n in range(200_000):
        table.put(digest(n), b"")
        if n % 2000 == 0:
            sizes = [sys.getsizeof(part) for part in table._parts]
            grown.append(sum(sizes) - before)
            before = sum(sizes)
    assert len(table._parts) == PLACES
    assert max(map(len, table._parts)) < 2 * 200_000 / PLACES
    late = grown[50:]  # from 100,000 on each of these steps adds two per cent or less
    assert max(late) < 0.1 * before, "one dict would have doubled"


def test_a_million_keys_are_forgotten_at_once_but_leave_the_table_some_at_a_time():
    keys = 20 * RUN_KEYS
    window = filled(keys)
    window.add(b"x" * 16, 1, 1, 2000)
    assert window.forget_before(1500) == keys
    assert len(window) == 1
    assert window.find(digest(5), 1000, WINDOW) is None
    before, tidied = len(window._table), 0
    assert before == keys + 1
    while window.tidy():
        assert before - len(window._table) <= idempotency.TIDY_STEP
        before, tidied = len(window._table), tidied + 1
    assert tidied >= keys // idempotency.TIDY_STEP
    assert (len(window._table), window.untidy) == (1, False)
    assert window.find(b"x" * 16, 2000, WINDOW) == Remembered(1, 1, 2000)


def test_nothing_holds_on_to_what_is_forgotten():
    window = filled(5 * RUN_KEYS)
    window.forget_before(END_OF_TIME)
    while window.tidy():
        pass
    assert (window._fresh, window._runs, window._old, len(window._table)) == ([], [], [], 0)


def test_what_is_taken_changes_no_more():
    window = filled(5, at_once=False)
    taken = window.take_fresh()
    before = [run.encode() for run in taken]
    window.add(b"x" * 16, 9, 1, 1000)
    assert [run.encode() for run in taken] == before
    assert [len(run) for run in window.take_fresh()] == [1]


def test_stored_keys_are_dropped_in_pieces():
    window = filled(3 * RUN_KEYS)
    window.add(b"x" * 16, 1, 1, 2000)
    stored = bytearray(b"".join(run.encode() for run in window.take_fresh()))
    assert b"".join(drop_older(stored, 1000)) == stored
    assert max(map(len, drop_older(stored, 1000))) == 36 * RUN_KEYS
    assert list(drop_older(stored, 1001)) == [bytes(stored[-36:])]
    assert list(drop_older(stored, 2001)) == []


def test_a_large_lot_is_found_at_once_and_takes_its_place_a_few_keys_at_a_time():
    table = KeyTable()
    for n in range(0, 3000, 3):
        table.put(digest(n), b"old %d" % n)
    lot = {digest(n): b"new %d" % n for n in range(2000)}
    table.put_all(keytable.spread(lot, lot.values()))
    assert table.put(digest(1), b"newer") == b"new 1"
    taken = lot[digest(2)]
    assert table.discard(digest(2), taken) is False
    expected = {digest(n): b"old %d" % n for n in range(0, 3000, 3)} | lot | {digest(1): b"newer"}
    del expected[digest(2)]
    steps = 0
    while True:
        assert {key: table.get(key) for key in map(digest, range(3000))} == {
            key: expected.get(key) for key in map(digest, range(3000))
        }
        if not table.has_lots:
            break
        table.merge(200)
        steps += 1
    assert steps > 5
    assert len(table) == len(expected)


def test_lots_that_nobody_merges_do_not_pile_up():
    table, lots = KeyTable(), 3 * keytable.LOTS_MAX
    for n in range(lots):
        table.put_all(keytable.spread([digest(n)], [b"%d" % n]))
        assert len(table._lots) <= keytable.LOTS_MAX
    assert [table.get(digest(n)) for n in range(lots)] == [b"%d" % n for n in range(lots)]
