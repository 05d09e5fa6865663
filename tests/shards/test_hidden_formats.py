"""Golden records of the hidden topics `$groups` and `$leases`, kept in tests/golden_hidden: u32 length, then the data.

Written anew like those of test_formats.py. Topics themselves are golden there; this is what stands in these two.
"""

from pathlib import Path
from typing import Any

import msgpack
import msgspec
import pytest

from tests.shards.test_formats import REGENERATE, u
from topics.core import groups, lease_events
from topics.core.config import TopicConfig
from topics.core.groups import Group, GroupEvent
from topics.core.lease_events import Kept, LeaseEvent, Replayed
from topics.core.lease_parts import Failure, Grant, Lease, Move
from topics.core.lease_snapshot import Snapshot
from topics.core.leases import Leases
from topics.core.topic import Topic

GOLDEN = Path(__file__).resolve().parents[1] / "golden_hidden"
NOW = 1_700_000_000_000
TOPIC = Topic(7, "jobs", 3, TopicConfig())
BILLING = Group("billing", 5, NOW - 9, NOW - 5, "b", ("né", "a"))
GROUPS: list[list[GroupEvent]] = [
    [groups.made(TOPIC, "é:1", 0, None, NOW)],
    [groups.kept(TOPIC, BILLING, NOW), groups.moved(TOPIC, BILLING, 2**40, NOW + 1)],  # as when it is written anew
    [groups.passed_on(TOPIC, BILLING, "a", NOW + 2)],
    [groups.removed(TOPIC, BILLING, NOW + 3)],
]


def all_of_it() -> Leases:
    """Everything that a `kept` can tell."""
    leases = Leases()
    leases.cursor, leases.dead_lettered = 40, 2
    leases.claim([Grant("w1", 10, NOW + 30_000, [41, 43]), Grant("wé", 12, NOW + 60_000, [44], owner=5)])
    leases.release([43], NOW + 5000, NOW, Failure("no bucket", NOW))
    leases.moving.put(30, Move("jobs.dead", 3, NOW, "boom", NOW - 1))
    leases._cursors = {9: 44}
    leases.free.spared.put(41, 2)
    return leases


LEASES: list[tuple[int, list[Any]] | Kept] = [
    lease_events.claimed([Grant("w1", 7, NOW + 30_000, [1, 2, 300]), Grant("é", 10, NOW + 100, [4])]),
    lease_events.claimed([Grant("w1", 11, NOW + 30_000, [5, 6, 7], codes=bytes((9, 254, 255)))]),
    lease_events.claimed([Grant("w2", 14, NOW + 30_000, [8], owner=2**40)]),
    lease_events.extended([1, 2], NOW + 90_000),
    lease_events.released([300], NOW + 1000),
    lease_events.released([5], 0, Failure("no bucket", NOW), counts=True),
    lease_events.released([6], 0, None, counts=False),
    lease_events.moving([(4, Move("jobs.dead", 3, NOW, "boom", NOW - 1)), (9, Move("jobs", 0, NOW, back=True))]),
    lease_events.moved([4]),
    lease_events.moved([9], back=True),
    lease_events.stayed([7]),
    Kept(all_of_it().snapshot(), clean=True, durable=False),
    lease_events.voided(),
    lease_events.begun(),
    lease_events.extended([41], NOW + 70_000),
    Kept(all_of_it().snapshot(), clean=False, durable=True, begun=True),
]


def records(name: str) -> list[bytes]:
    """As they are written now."""
    if name == "groups":
        return [groups.encode(events) for events in GROUPS]
    return [
        made.encode(7, 3, NOW + n)
        if isinstance(made, Kept)
        else lease_events.encode(LeaseEvent(made[0], 7, 3, NOW + n, made[1]))
        for n, made in enumerate(LEASES)
    ]


def golden(name: str) -> list[bytes]:
    data, at, found = (GOLDEN / name).read_bytes(), 0, []
    while at < len(data):
        found.append(data[at + 4 : at + 4 + u(data, at, 4)])
        at += 4 + u(data, at, 4)
    return found


@pytest.fixture(scope="module", autouse=True)
def _regenerate() -> None:
    if REGENERATE:
        GOLDEN.mkdir(exist_ok=True)
        for name in ("groups", "leases"):
            parts = [len(record).to_bytes(4, "little") + record for record in records(name)]
            (GOLDEN / name).write_bytes(b"".join(parts))


@pytest.mark.parametrize("name", ["groups", "leases"])
def test_the_bytes_are_the_golden_ones(name):
    assert records(name) == golden(name), f"the form of ${name} changed; see test_formats.py"


def test_every_kind_is_there():
    assert {event.kind for events in GROUPS for event in events} == {groups.KEPT, groups.MOVED, groups.REMOVED}
    kinds = {lease_events.decode(record).kind for record in records("leases")}
    assert kinds == set(range(lease_events.CLAIMED, lease_events.BEGUN + 1))


def test_the_golden_groups_are_read():
    known: dict[str, Group] = {}
    made, anew, passed_on, removed = golden("groups")
    for event in groups.decode(made) + groups.decode(anew):
        assert event.topic_id == 7
        groups.apply(known, event)
    assert known["é:1"] == Group("é:1", 0, NOW, NOW)
    assert known["billing"] == Group("billing", 2**40, NOW - 9, NOW + 1, "b", ("né", "a"), shown=5)
    groups.apply(known, *groups.decode(passed_on))
    assert (known["billing"].consumer, known["billing"].left) == ("a", ("né", "b"))
    groups.apply(known, *groups.decode(removed))
    assert sorted(known) == ["é:1"]


def test_the_table_of_groups():
    """docs/formats.md, with nothing but msgpack."""
    found = [msgpack.unpackb(record) for record in golden("groups")]
    assert found == [
        [[1, 7, NOW, "é:1", [0, "", [], NOW, NOW]]],
        [[1, 7, NOW, "billing", [5, "b", ["né", "a"], NOW - 9, NOW - 5]], [2, 7, NOW + 1, "billing", [2**40]]],
        [[1, 7, NOW + 2, "billing", [5, "a", ["né", "b"], NOW - 9, NOW - 5]]],
        [[3, 7, NOW + 3, "billing", []]],
    ]


def test_the_golden_leases_are_read():
    queue = Replayed()
    events = [lease_events.decode(record) for record in golden("leases")]
    for event in events[:11]:
        queue.apply(event)
    assert queue.moved == {4, 9}
    assert (queue.leases.dead_lettered, len(queue.leases.moving)) == (1, 0)
    assert queue.leases.lease_of(1) == Lease(7, "w1", NOW + 90_000, noted=NOW + 30_000)
    assert queue.leases.lease_of(8) == Lease(14, "w2", NOW + 30_000, 2**40, NOW + 30_000)
    queue.apply(events[11])
    assert (queue.clean, queue.durable) == (True, False)
    assert queue.leases.snapshot() == all_of_it().snapshot()
    queue.apply(events[12])
    assert (queue.clean, queue.leases.snapshot()) == (False, all_of_it().without_leases().snapshot())
    for event in events[13:]:
        queue.apply(event)
    everything = all_of_it()
    everything.extend([41], NOW + 70_000)
    assert (queue.clean, queue.durable, queue.leases.snapshot()) == (False, True, everything.snapshot())


def test_the_table_of_leases():
    found = [msgpack.unpackb(record) for record in golden("leases")]
    assert [(kind, topic_id, epoch, ts) for kind, topic_id, epoch, ts, _ in found] == [
        (kind, 7, 3, NOW + n) for n, kind in enumerate((1, 1, 1, 2, 3, 3, 3, 4, 5, 5, 6, 7, 8, 9, 2, 7))
    ]
    fields = [record[4] for record in found]
    assert fields[:3] == [
        [["w1", 7, NOW + 30_000, [1, 2, 300]], ["é", 10, NOW + 100, [4]]],
        [["w1", 11, NOW + 30_000, [5, 6, 7], bytes((9, 254, 255))]],
        [["w2", 14, NOW + 30_000, [8], b"", 2**40]],
    ]
    assert fields[3:7] == [
        [[1, 2], NOW + 90_000],
        [[300], NOW + 1000],
        [[5], 0, ["no bucket", NOW], True],
        [[6], 0, None, False],
    ]
    assert fields[7] == [[4, "jobs.dead", 3, NOW, "boom", NOW - 1, False], [9, "jobs", 0, NOW, "", 0, True]]
    assert fields[8:11] == [[[4]], [[9], True], [[7]]]
    clean, durable, (cursor, dead, nodes, held, delayed, deliveries, moving, cursors, failures, spared) = fields[11]
    assert (clean, durable, dead, nodes) == (True, False, 2, ["w1", "wé"])
    assert (cursor, cursors) == (44, [[9, 44]])
    assert held == [[41, 10, NOW + 30_000, 0], [44, 12, NOW + 60_000, 1, 5]]
    assert (delayed, deliveries) == ([[43, NOW + 5000]], [])
    assert (moving, failures) == ([[30, "jobs.dead", 3, NOW, "boom", NOW - 1, False]], [[43, "no bucket", NOW]])
    assert spared == [[41, 2]]
    assert fields[12] == fields[13] == []
    assert fields[15] == [False, True, fields[11][2], True]


def test_the_table_of_parts():
    *parts, last = [msgpack.unpackb(record) for record in LEASES[-1].in_parts(1, 7, 3, NOW)]  # type: ignore[union-attr]
    assert [part[:4] for part in parts] == [[10, 7, 3, NOW]] * 6
    fields = [part[4][0] for part in parts]
    assert fields[0] == [0, 0, ["w1"], [[41, 10, NOW + 30_000, 0]], [], [], [], [], [], []]
    assert fields[1] == [0, 0, ["wé"], [[44, 12, NOW + 60_000, 0, 5]], [], [], [], [], [], []]
    assert (fields[2][4], fields[3][6]) == ([[43, NOW + 5000]], [[30, "jobs.dead", 3, NOW, "boom", NOW - 1, False]])
    assert (fields[4][8], fields[5][9]) == ([[43, "no bucket", NOW]], [[41, 2]])
    assert last == [7, 7, 3, NOW, [False, True, [44, 2, [], [], [], [], [], [[9, 44]], [], []], True]]


@pytest.mark.parametrize(("fields", "later"), [(7, ("cursors", "failures", "spared")), (9, ("spared",))])
def test_leases_as_earlier_versions_kept_them_are_read(fields, later):
    whole = msgpack.unpackb(Kept(all_of_it().snapshot(), clean=True, durable=True).encode(7, 3, NOW))[4][2]
    expected = msgspec.structs.replace(all_of_it().snapshot(), **{name: getattr(Snapshot(), name) for name in later})
    assert Leases.of(Snapshot.unpack(whole[:fields])).snapshot() == expected
