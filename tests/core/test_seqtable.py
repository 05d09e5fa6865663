"""A table by seqs is a dict in whatever order it is used, its copies stay as they were, and no part of it is large."""

import random

import pytest

from topics.core.seqtable import SeqTable

PAGE = 1024


def check(table: SeqTable[int], model: dict[int, int]) -> None:
    assert dict(table.items()) == model
    assert table == SeqTable(model.items())
    assert sorted(table) == sorted(model)
    assert sorted(table.values()) == sorted(model.values())
    assert len(table) == table.count == len(model)


@pytest.mark.parametrize("seed", range(20))
def test_it_is_a_dict_and_copies_stay_as_they_were(seed):
    drawn = random.Random(seed)
    table: SeqTable[int] = SeqTable()
    model: dict[int, int] = {}
    copies: list[tuple[SeqTable[int], dict[int, int]]] = []
    for _ in range(2000):
        seqs = [drawn.randrange(4) * PAGE + drawn.randrange(30) for _ in range(drawn.randrange(6))]
        what = drawn.random()
        if what < 0.1:
            values = [drawn.randrange(9) for _ in seqs]
            table.put_all(seqs, values)
            model.update(zip(seqs, values, strict=True))
        elif what < 0.25:
            assert table.pop_all(seqs) == [model.pop(seq, None) for seq in seqs]
        assert table.get_all(seqs) == [model.get(seq) for seq in seqs]
        assert table.count == len(model)
        seq = drawn.randrange(4) * PAGE + drawn.randrange(30)
        if drawn.random() < 0.6:
            table.put(seq, value := drawn.randrange(9))
            model[seq] = value
        else:
            assert table.pop(seq) == model.pop(seq, None)
        assert table.get(seq) == model.get(seq)
        assert (seq in table) == (seq in model)
        if drawn.random() < 0.02:
            copies.append((table.copy(), model.copy()))
        if drawn.random() < 0.01 and copies:
            copies.append((table, model))
            table, model = copies.pop(drawn.randrange(len(copies)))  # a copy changes, too, and so does the copied
    check(table, model)
    for copied, then in copies:
        check(copied, then)


def test_no_part_of_it_is_large_and_none_is_kept_empty():
    table = SeqTable((seq, seq) for seq in range(100_000))
    assert max(map(len, table._pages.values())) == PAGE
    for seq in range(50_000):
        table.pop(seq)
    table.pop_all(range(50_000, 100_000))
    assert not table._pages


def test_a_copy_takes_no_entry_with_it_until_one_of_the_two_changes():
    table = SeqTable((seq, seq) for seq in range(10 * PAGE))
    copied = table.copy()
    assert all(page is copied._pages[place] for place, page in table._pages.items())
    for seq in range(PAGE, PAGE + 500):
        table.pop(seq)
        copied.put(2 * PAGE + seq, -1)
    own = [place for place, page in table._pages.items() if page is not copied._pages[place]]
    assert own == [1, 3]
    assert len(copied) == 10 * PAGE


def test_a_copy_can_be_gone_through_while_the_original_changes():
    table = SeqTable((seq, seq) for seq in range(3 * PAGE))
    seen = []
    for seq in table.copy():
        seen.append(seq)
        table.pop(seq)
        table.put(10 * PAGE + seq, seq)
    assert seen == list(range(3 * PAGE))
    assert sorted(table) == list(range(10 * PAGE, 13 * PAGE))
