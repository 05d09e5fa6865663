"""The snapshot log: a checkpoint counts when it is committed, and what a crash leaves is the one before."""

from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topics.core.chunk import DataFile
from topics.core.config import DEFAULT, TopicConfig, intern
from topics.core.derivation import Derived, Mark
from topics.core.idempotency import KeyWindow, Remembered
from topics.core.loss import CAP, TTL
from topics.core.ranges import SeqRanges
from topics.core.topic import Topic
from topics.shards import snapshot
from topics.shards.snapshot import BadSnapshot, Commit, SnapshotLog, SnapshotState, decode_snapshot, read_snapshot
from topics.testing.faulty_files import FaultyFiles, SimulatedCrash

HEADER = 64
RECORD = 24
many = settings(max_examples=80, deadline=None)


def get(files: FaultyFiles, path: str) -> bytes:
    file = files.open(path)
    return file.read_at(0, file.size())


def put(files: FaultyFiles, path: str, data: bytes) -> None:
    files.unlink(path)
    files.create(path).write_at(0, [data])


def data_file(file_id: int) -> DataFile:
    info = DataFile(file_id, "segment", f"segments/1/seg-{file_id}.data", file_id * 1000, 1)
    info.size = file_id * 10
    return info


def commit_of(
    cut_lsn: int, added: tuple[int, ...] = (), removed: tuple[int, ...] = (), topics: tuple[int, ...] = ()
) -> Commit:
    commit = Commit()
    commit.cut_lsn = cut_lsn
    commit.next_topic_id, commit.next_epoch, commit.next_cell = cut_lsn + 1, cut_lsn + 2, cut_lsn + 3
    commit.next_file_id, commit.now_ms = cut_lsn + 4, cut_lsn + 5
    commit.added = [data_file(file_id) for file_id in added]
    commit.removed_files, commit.removed_topics = list(removed), list(topics)
    return commit


def told(state: SnapshotState) -> tuple[Any, ...]:
    """Everything a state says, without the seed and the position."""
    commit = state.commit
    files = {info.id: (info.kind, info.path, info.seed, info.topic_id, info.size) for info in state.files.values()}
    scalars = (
        commit.cut_lsn, commit.next_topic_id, commit.next_epoch, commit.next_cell, commit.next_file_id, commit.now_ms,
    )  # fmt: skip
    return scalars, state.topics, files


GROUPS: list[tuple[dict[int, bytes], Commit]] = [
    ({1: b"one", 2: b"two"}, commit_of(10, added=(1, 2))),
    ({2: b"two again"}, commit_of(20, added=(3,), removed=(1,))),
    ({}, commit_of(30, topics=(1,))),
    ({i: b"many %d" % i for i in range(3, 1200)}, commit_of(40, added=(4,))),  # three records of topics
]


def new_log(files: FaultyFiles) -> SnapshotLog:
    return SnapshotLog(files, read_snapshot(files))


def write_all(files: FaultyFiles) -> list[tuple[int, tuple[Any, ...]]]:
    """Commit every group; (end of the file, state) after each, an empty one first."""
    log = new_log(files)
    states: list[tuple[int, tuple[Any, ...]]] = [(HEADER, told(SnapshotState()))]
    for topics, commit in GROUPS:
        log.commit(topics.items(), commit)
        states.append((len(get(files, "snapshot.1")), told(read_snapshot(files))))
    return states


@pytest.fixture(scope="module")
def written() -> tuple[bytes, list[tuple[int, tuple[Any, ...]]]]:
    files = FaultyFiles()
    states = write_all(files)
    return get(files, "snapshot.1"), states


def state_within(states: list[tuple[int, tuple[Any, ...]]], size: int) -> tuple[Any, ...]:
    return [state for end, state in states if end <= size][-1]


# -- whole snapshots


def test_a_new_shard_has_none():
    assert told(read_snapshot(FaultyFiles())) == told(SnapshotState())


def test_checkpoints_add_up(written):
    _, states = written
    scalars, topics, files = states[2][1]
    assert scalars == (20, 21, 22, 23, 24, 25)
    assert topics == {1: b"one", 2: b"two again"}
    assert sorted(files) == [2, 3]
    assert files[3] == ("segment", "segments/1/seg-3.data", 3000, 1, 30)
    assert states[3][1][1] == {2: b"two again"}
    assert len(states[4][1][1]) == 1198


def test_a_restart_between_checkpoints_changes_nothing(written):
    files = FaultyFiles()
    for topics, commit in GROUPS:
        log = new_log(files)
        log.commit(topics.items(), commit)
        log.close()
    assert told(read_snapshot(files)) == written[1][-1][1]


def test_the_log_is_rewritten_when_it_has_grown(monkeypatch):
    monkeypatch.setattr(snapshot, "REWRITE_MIN_BYTES", 0)
    files = FaultyFiles()
    log = new_log(files)
    for cut in range(1, 40):
        log.commit([(1, b"x" * 100), (cut, b"y")], commit_of(cut, added=(cut,), removed=(cut - 1,), topics=(cut - 1,)))
        state = read_snapshot(files)
        assert state.commit.cut_lsn == cut
        assert sorted(state.files) == [cut]
    (generation,) = snapshot.generations(files)
    assert generation > 3
    assert len(get(files, snapshot.path_of(generation))) < 5 * 400


@pytest.mark.parametrize("rewritten", [False, True])
def test_a_file_that_became_cold_is_so_from_then_on(monkeypatch, rewritten):
    """A program that does not know cold files cannot read its entry, and so does not take the file for lost."""
    files = FaultyFiles()
    log = SnapshotLog(files, SnapshotState())
    hot = DataFile(7, "segment", "segments/1/seg-1.data", 99, 1)
    hot.size = 1000
    first, second = Commit(), Commit()
    first.added = [hot]
    log.commit([], first)
    if rewritten:
        monkeypatch.setattr(snapshot, "REWRITE_MIN_BYTES", 0)
        monkeypatch.setattr(snapshot, "REWRITE_FACTOR", 0)
    cold = DataFile(7, "segment", "segments/1/seg-1.data", 99, 1)
    cold.size, cold.cold, cold.deleted = 1000, True, SeqRanges.from_ascending([3, 4, 9]).encode()
    second.changed = [cold]
    log.commit([], second)
    found = read_snapshot(files)
    (info,) = found.files.values()
    assert (info.id, info.size, info.cold, info.deleted) == (7, 1000, True, bytes([2, 3, 1, 3, 0]))
    assert found.generation == 1 + rewritten
    packed = msgpack.unpackb(second.pack())[6]
    assert packed == [[7, "segment", "segments/1/seg-1.data", 99, 1, 1000, 1, bytes([2, 3, 1, 3, 0])]]
    assert msgpack.unpackb(first.pack())[6] == [[7, "segment", "segments/1/seg-1.data", 99, 1, 1000]]


def test_the_newest_generation_counts():
    files = FaultyFiles()
    write_all(files)
    put(files, "snapshot.0", b"an older one that a crash left behind")
    put(files, "snapshot.tmp", b"half a newer one")
    assert read_snapshot(files).generation == 1


# -- topics


def busy_topic() -> Topic:
    topic = Topic(5, "jobs", 9, intern(TopicConfig(ttl_ms=1000, durability="fsync", dead_letter="jobs.dlq")))
    topic.head_seq, topic.last_ts, topic.delete_below = 2**63, 2**52, 17
    topic.evicted.add(1, 10, CAP)
    topic.evicted.add(12, 15, TTL)
    topic.holes.add(20, 30, "crash")
    topic.holes.add(40, 41, "corrupt")
    topic.applied_lsn, topic.ceiling, topic.cell, topic.last_write_ms = 77, 2**63 + 100, 3, 2**52
    topic.resident_from = 2**63
    topic.created_ms = 2**51
    return topic


def scalars_of(topic: Topic) -> tuple[Any, ...]:
    return (
        topic.id, topic.name, topic.epoch, topic.config, topic.head_seq, topic.last_ts, topic.delete_below,
        topic.evicted.cap_seq, topic.evicted.ttl_seq, topic.evicted.ranges, topic.holes.items, topic.applied_lsn,
        topic.ceiling, topic.cell, topic.last_write_ms, topic.resident_from, topic.created_ms,
    )  # fmt: skip


@pytest.mark.parametrize("topic", [busy_topic(), Topic(1, "t", 1, DEFAULT)], ids=["busy", "fresh"])
def test_a_topic_comes_back(topic):
    decoded, unflipped = snapshot.decode_topic(topic.id, snapshot.encode_topic(topic, 6))
    assert scalars_of(decoded) == scalars_of(topic)
    assert decoded.next_seq == topic.head_seq + 1
    assert decoded.packs_from == 6
    assert not unflipped


@pytest.mark.parametrize("members", [17, 18])
def test_an_entry_from_before_a_member_was_added_is_read(members):
    """Of a topic without and with routers that lead to it, as they were written until it was kept when it was made."""
    topic = busy_topic()
    topic.derived = Derived(Mark(5, 1, "s", 3, 2, 7, 6, 5, {"r": 1}, [])) if members == 18 else None
    fields = msgpack.unpackb(snapshot.encode_topic(topic, 6), strict_map_key=False)
    decoded, _ = snapshot.decode_topic(topic.id, msgpack.packb(fields[:members]))
    assert (decoded.created_ms, decoded.derived is not None) == (0, members == 18)
    assert scalars_of(decoded)[:-1] == scalars_of(topic)[:-1]


# -- idempotency keys


def fresh_keys(window: KeyWindow, *seqs: int) -> bytes:
    for seq in seqs:
        window.add(b"%016d" % seq, seq, 2, 1000 * seq)
    return b"".join(run.encode() for run in window.take_fresh())


def test_a_checkpoint_stores_only_the_keys_that_are_new():
    window = KeyWindow()
    assert len(fresh_keys(window, *range(1000))) == 36_000
    assert len(fresh_keys(window, 1000)) == 36
    assert fresh_keys(window) == b""


def test_keys_are_gathered_over_the_groups_and_go_with_their_topic():
    files, window = FaultyFiles(), KeyWindow()
    log = new_log(files)
    entry = snapshot.encode_topic(Topic(1, "t", 1, DEFAULT), 0)
    log.commit([(1, entry), (2, entry)], commit_of(1), [(1, fresh_keys(window, 1, 2)), (2, b"x" * 36)])
    log.commit([(1, entry)], commit_of(2, topics=(2,)), [(1, fresh_keys(window, 3))])
    state = read_snapshot(files)
    assert list(state.keys) == [1]
    topic, _ = snapshot.decode_topic(1, state.topics[1], bytes(state.keys[1]))
    assert topic.keys is not None
    assert len(topic.keys) == 3
    assert topic.keys.find(b"%016d" % 2, 2000, 0) == Remembered(2, 2, 2000)
    assert topic.keys.take_fresh() == [], "they are stored already"


def test_a_rewrite_drops_the_keys_whose_window_has_passed(monkeypatch):
    monkeypatch.setattr(snapshot, "REWRITE_MIN_BYTES", 0)
    files = FaultyFiles()
    log = new_log(files)
    entry = snapshot.encode_topic(Topic(1, "t", 1, intern(TopicConfig(idempotency_window_ms=5000))), 0)
    while read_snapshot(files).generation < 2:
        late = commit_of(1)
        late.now_ms = late.began_ms = 20_000
        log.commit([(1, entry)], late, [(1, fresh_keys(KeyWindow(), 3, 14, 15, 20))])
    state = read_snapshot(files)
    topic, _ = snapshot.decode_topic(1, state.topics[1], bytes(state.keys[1]))
    assert topic.keys is not None
    assert topic.keys.find(b"%016d" % 15, 20_000, 5000) is not None
    assert len(topic.keys) == 2


def test_a_rewrite_keeps_the_keys_of_a_window_that_grew_while_topics_were_captured(monkeypatch):
    """The entry has the shorter one, but what was in it when the capture began is still in the longer one."""
    monkeypatch.setattr(snapshot, "REWRITE_MIN_BYTES", 0)
    files = FaultyFiles()
    log = new_log(files)
    entry = snapshot.encode_topic(Topic(1, "t", 1, intern(TopicConfig(idempotency_window_ms=5000))), 0)
    while read_snapshot(files).generation < 2:
        commit = commit_of(1)
        commit.began_ms, commit.now_ms = 8_000, 20_000
        log.commit([(1, entry)], commit, [(1, fresh_keys(KeyWindow(), 2, 4))])
    state = read_snapshot(files)
    topic, _ = snapshot.decode_topic(1, state.topics[1], bytes(state.keys[1]))
    assert topic.keys is not None
    assert [topic.keys.find(b"%016d" % seq, 20_000, 60_000) is not None for seq in (2, 4)] == [False, True]


def test_a_key_that_was_forgotten_stays_so_over_a_start_when_its_window_has_grown():
    topic = Topic(1, "t", 1, intern(TopicConfig(idempotency_window_ms=120_000)))
    topic.keys = KeyWindow()
    stored = fresh_keys(topic.keys, 1, 2, 3)
    topic.keys.forget_before(2500)  # the window was short then
    decoded, _ = snapshot.decode_topic(1, snapshot.encode_topic(topic, 0), stored)
    assert decoded.keys is not None
    assert [decoded.keys.find(b"%016d" % seq, 3000, 120_000) is not None for seq in (1, 2, 3)] == [False, False, True]
    assert len(decoded.keys) == 1


# -- what a crash leaves


def test_every_truncation_is_the_last_checkpoint_that_is_whole(written):
    data, states = written
    sizes = {*range(HEADER + 400), *(end + by for end, _ in states for by in (-1, 0, 1)), *range(0, len(data), 97)}
    for size in sorted(size for size in sizes if size <= len(data)):
        if size < HEADER:
            with pytest.raises(BadSnapshot, match="Nothing was changed"):
                decode_snapshot(data[:size], 1)
        else:
            state = decode_snapshot(data[:size], 1)
            assert told(state) == state_within(states, size)
            assert state.end in [end for end, _ in states]


@given(st.binary(max_size=120))
@many
def test_what_follows_the_last_checkpoint_does_not_count(tail):
    files = FaultyFiles()
    states = write_all(files)
    data = get(files, "snapshot.1")
    put(files, "snapshot.1", data + tail)
    assert told(read_snapshot(files)) == states[-1][1]
    log = new_log(files)
    assert get(files, "snapshot.1") == data
    log.commit([(7, b"after")], commit_of(50))
    assert read_snapshot(files).topics[7] == b"after"


@given(st.binary(max_size=200))
@many
def test_arbitrary_bytes_are_no_snapshot(data):
    with pytest.raises(BadSnapshot):
        decode_snapshot(data, 1)


def test_every_flipped_byte_of_the_header_is_found(written):
    data, _ = written
    for at in range(HEADER):
        with pytest.raises(BadSnapshot):
            decode_snapshot(data[:at] + bytes((data[at] ^ 1,)) + data[at + 1 :], 1)


def outcomes(data: bytes, states: list[tuple[int, tuple[Any, ...]]], positions: range, mask: int) -> None:
    """A spoiled snapshot is refused, or read as a checkpoint that did happen."""
    for at in positions:
        spoiled = data[:at] + bytes((data[at] ^ mask,)) + data[at + 1 :]
        try:
            state = decode_snapshot(spoiled, 1)
        except BadSnapshot:
            continue
        assert told(state) in [told_state for end, told_state in states if end <= at or end == HEADER]


@pytest.mark.parametrize("mask", [0x01, 0x80, 0xFF])
def test_a_flipped_byte_of_a_body_never_makes_up_a_state(written, mask):
    data, states = written
    first_body = HEADER + RECORD
    outcomes(data, states, range(first_body, first_body + 15), mask)
    outcomes(data, states, range(states[3][0] + RECORD, len(data), 501), mask)


FIELDS = {"magic": (0, 4), "length": (4, 8), "kind": (8, 12), "group": (12, 16), "checksum": (16, 24)}


@pytest.mark.parametrize("field", FIELDS)
def test_a_flipped_byte_of_a_record_head_never_makes_up_a_state(written, field):
    data, states = written
    low, high = FIELDS[field]
    for end, _ in states[:-1]:
        for mask in (1, 2, 3, 0x80):
            outcomes(data, states, range(end + low, end + high), mask)


def test_damage_before_a_later_checkpoint_is_refused_not_rolled_back(written):
    """The log that went with the later checkpoints is gone, and their files would be swept as litter."""
    data, states = written
    at = states[1][0] + RECORD + 3  # in the second of four checkpoints
    with pytest.raises(BadSnapshot):
        decode_snapshot(data[:at] + bytes((data[at] ^ 1,)) + data[at + 1 :], 1)


@pytest.mark.parametrize("rewrite", [False, True])
def test_a_crash_at_any_step_of_a_checkpoint_leaves_the_old_or_the_new_one(monkeypatch, rewrite):
    files = FaultyFiles()
    log = new_log(files)
    log.commit(GROUPS[0][0].items(), GROUPS[0][1])
    log.close()
    before = told(read_snapshot(files))
    if rewrite:
        monkeypatch.setattr(snapshot, "REWRITE_MIN_BYTES", 0)
        monkeypatch.setattr(snapshot, "REWRITE_FACTOR", 0)

    def checkpoint(on: FaultyFiles) -> None:
        new_log(on).commit(GROUPS[1][0].items(), GROUPS[1][1])

    clean = files.clone()
    checkpoint(clean)
    after = told(read_snapshot(clean))
    for step in range(clean.calls):
        for seed in range(8):
            dying = files.clone(seed)
            dying.crash_at(step)
            with pytest.raises(SimulatedCrash):
                checkpoint(dying)
            survivor = dying.crash(seed, power_loss=seed % 2 == 0)
            assert told(read_snapshot(survivor)) in (before, after)
            checkpoint(survivor)
            assert told(read_snapshot(survivor)) == after
    for seed in range(20):
        assert told(read_snapshot(clean.crash(seed))) == after
