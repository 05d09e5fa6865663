"""What a rebalance moves: every used slot keeps one owner, new shards get a fair part of one old shard."""

from hypothesis import given, settings
from hypothesis import strategies as st

from topics.cli.rebalancing.plan import make_plan, new_map
from topics.supervisor.slotmap import deal

slots = st.dictionaries(st.integers(0, 1023), st.tuples(st.integers(0, 3), st.integers(1, 10**9)), max_size=200)


@given(slots, st.integers(1, 12))
@settings(max_examples=200, deadline=None)
def test_any_plan(used, shards):
    owners = {slot: shard for slot, (shard, _) in used.items()}
    sizes = {slot: size for slot, (_, size) in used.items()}
    plan = make_plan(owners, sizes, shards)
    held = set(owners.values())
    assert plan.owners.keys() == owners.keys()
    children = [child for others in plan.families.values() for child in others]
    assert len(children) == len(set(children))
    assert not held & set(children), "only shards that hold nothing are given something"
    assert all(child < shards for child in children)
    for slot, shard in plan.owners.items():
        old = owners[slot]
        assert shard == old or shard in plan.families[old]
    for source in plan.families:
        parts = {part: [sizes[slot] for slot in owners if plan.owners[slot] == part] for part in plan.members(source)}
        assert all(parts.values()), "nobody goes without"
        largest = max(max(part) for part in parts.values())
        totals = [sum(part) for part in parts.values()]
        assert max(totals) - min(totals) <= largest


@given(slots, st.integers(1, 12), st.integers(1, 12))
@settings(max_examples=200, deadline=None)
def test_any_map(used, before, shards):
    owners = {slot: shard % before for slot, (shard, _) in used.items()}
    old = deal(owners, before)
    plan = make_plan(owners, {}, shards)
    new = new_map(plan, old, shards)
    assert {slot: new[slot] for slot in owners} == plan.owners
    unused = [slot for slot in range(1024) if slot not in owners]
    assert all(new[slot] < shards for slot in unused)
    if len(unused) > 1000 and shards >= before:
        assert {new[slot] for slot in unused} >= set(range(shards)), "new topics come to every shard"
    if set(plan.owners.values()) == set(range(shards)) and shards >= before:
        for slot in unused:
            assert new[slot] in (plan.members(old[slot]) if old[slot] in plan.families else [old[slot]])


def test_every_new_shard_takes_from_the_one_with_the_most():
    owners = {slot: slot % 2 for slot in range(100)}
    assert make_plan(owners, dict.fromkeys(owners, 10), 4).families == {0: [2], 1: [3]}
    heavy = {slot: 1000 if slot % 2 else 1 for slot in owners}
    assert make_plan(owners, heavy, 4).families == {1: [2, 3]}


def test_nothing_to_do():
    owners = {slot: slot % 2 for slot in range(100)}
    for shards in (1, 2):
        plan = make_plan(owners, {}, shards)
        assert (plan.owners, plan.families, plan.swapped) == (owners, {}, [])
    assert make_plan({}, {}, 4).families == {}
    assert make_plan({7: 0}, {7: 100}, 4).families == {}, "one slot cannot be divided"
