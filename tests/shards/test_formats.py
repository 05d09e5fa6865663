"""Golden files: the bytes of every format, written once and kept in tests/golden.

A test here fails when a format changes. If that is intended, raise the version of the format, say in docs/formats.md
what an older or newer program does with it, and write the files anew:

    TOPICS_REGENERATE_GOLDEN=1 .venv/bin/python -m pytest tests/shards/test_formats.py

Then look at the difference: only what was meant to change may have.
"""

import itertools
import os
import struct
from pathlib import Path
from typing import Any

import msgpack
import msgspec
import pytest
import xxhash

from tests.core.strategies import Draft, block_of, comparable, facts
from topics.core.block import Block
from topics.core.blockform import check_frame, mask_from_flags
from topics.core.chunk import DataFile
from topics.core.config import TopicConfig, intern
from topics.core.derivation import Derived, Mark, Position
from topics.core.events import (
    MARKED,
    Appended,
    CeilingReserved,
    CreatedAndAppended,
    Event,
    Marked,
    RangeLost,
    RecordsDeleted,
    Recovered,
    TopicCreated,
    TopicRemoved,
    TopicUpdated,
    WentIdle,
    decode_event,
    encode_event,
)
from topics.core.idempotency import KeyWindow
from topics.core.loss import CAP, TTL
from topics.core.match import TagMatch
from topics.core.ranges import SeqRanges
from topics.core.residence import Kept
from topics.core.tags import Pattern
from topics.core.topic import Topic
from topics.shards import datafile, recovery, snapshot, wal, walscan
from topics.shards.datafile import PACK, SEGMENT, Stored
from topics.shards.files import Files, RealFiles
from topics.shards.slots import UsedSlots
from topics.shards.wal import Frame, WalWriter

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
REGENERATE = os.environ.get("TOPICS_REGENERATE_GOLDEN") == "1"
NAMES = (
    "wal/0000000001.wal",
    "wal/0000000002.wal",
    "segments/7/seg-00000000000000000001.data",
    "segments/7/seg-00000000000000000001.idx",
    "packs/pack-0000000002.data",
    "packs/pack-0000000002.idx",
    "packs/pack-0000000003.data",
    "packs/pack-0000000003.idx",
    "packs/pack-0000000004.data",
    "packs/pack-0000000004.idx",
    "snapshot.1",
    "slots.used",
    "heads.reg",
)
SEGMENT_PATH, PACK_PATH, JOBS_PATH, EXPIRING_PATH = NAMES[2], NAMES[4], NAMES[6], NAMES[8]


# -- what the files hold


def block(first_seq: int, ts: int, n: int) -> Block:
    """Tags, nodes and metas of every sort, line breaks, and records that have none of it."""
    tags = [b'"tenant42:job-1"', b"", '"é\\n𝄞"'.encode(), b'""', b'"tenant42:job-1"']
    nodes = [b'"eu-1"', b"", b'"eu-1"', '"né"'.encode(), b'""']
    datas = [b'{"a":1.0E+2}', b"null", b"[ 1,\r\n2 ]", b'"\\u00e9"', b"123456789012345678901234567890"]
    metas = [b"", b'{"k":"v"}', b"", b"{}", b""]
    drafts = []
    for i in range(n):
        node = nodes[i % 5]
        head = b'{"$seq":%d,"$ts":%d%b' % (first_seq + i, ts + i, b',"$node":' + node if node else b"")
        meta = metas[i % 5]
        text = b'%b,"data":%b%b}' % (head, datas[i % 5], b',"meta":' + meta if meta else b"")
        drafts.append(Draft(text, min(i, 1), tags[i % 5], node, len(head), len(meta), i % 3, i % 2))
    return block_of(first_seq, ts, drafts)


def with_terms(first_seq: int, ts: int, *terms: tuple[int, int, bytes, int]) -> Block:
    """Of each record its priority, the time before which it must not be claimed, where it was copied from, its end."""
    drafts = []
    for seq, (priority, due, origin, expires) in enumerate(terms, first_seq):
        head = b'{"$seq":%d,"$ts":%d' % (seq, ts)
        drafts.append(Draft(head + b',"data":1}', 0, b"", b"", len(head), 0, priority, 0, due, origin, expires))
    return block_of(first_seq, ts, drafts)


JOBS = with_terms(
    1, 1000, (9, 0, b"", 0), (0, 61_000, b"", 0), (0, 0, bytes(range(16)), 0), (3, 2**40, bytes(16), 0)
)  # fmt: skip
EXPIRING = with_terms(1, 1000, (0, 0, b"", 0), (0, 0, b"", 6_000), (0, 0, b"", 2**40))
MIXED = with_terms(4, 2000, (2, 0, b"", 7_000), (0, 3000, bytes(16), 0), (0, 4000, b"", 8_000))


CONFIG = intern(TopicConfig(ttl_ms=60_000, durability="fsync", priority=-5, dead_letter="jobs.dlq", auto_create=False))
CREATED = TopicCreated(7, "jobs", 3, CONFIG, 1_700_000_000_000, 65_536, 1)
MARK = Mark(8, 1_700_000_000_000_000, "s", 3, 2, 77, 20, 1_700_000_000_006, {"s->jobs": 12}, [(70, 71)], 5)
DEDUPS = ((0, bytes(range(16, 32))), (2, bytes(range(32, 48))))
EVENTS: list[Event] = [
    CREATED,
    TopicUpdated(7, intern(TopicConfig(cap_records=10)), 1_700_000_000_001, 4),
    TopicUpdated(7, intern(TopicConfig(durability="ephemeral")), 1_700_000_000_001, 4),
    TopicUpdated(7, CONFIG, 1_700_000_000_001, 4, Kept(SeqRanges.from_ascending([1, 3]), 4, 4, 1, 2, 0, [(2, 2)])),
    Appended(7, 3, 1_700_000_000_002, 5, 7, b"", [block(5, 1_700_000_000_002, 5), block(10, 1_700_000_000_002, 2)]),
    Appended(7, 3, 1_700_000_000_003, 12, 1, bytes(range(16)), [block(12, 1_700_000_000_003, 1)]),
    RecordsDeleted(7, 6, None, 1_700_000_000_004),
    RecordsDeleted(7, 0, SeqRanges.from_ascending([7, 8, 300, 2**40]), 1_700_000_000_004),
    CeilingReserved(7, 131_072),
    RangeLost(7, 13, 20, "crash", 0),
    CreatedAndAppended(
        TopicCreated(8, "a.b:c-d_e", 4, intern(TopicConfig()), 1_700_000_000_005, 0, 2),
        Appended(8, 4, 1_700_000_000_005, 1, 1, b"", [block(1, 1_700_000_000_005, 1)]),
    ),
    Marked([MARK]),
    Appended(8, 4, 1_700_000_000_006, 2, 3, b"", [block(2, 1_700_000_000_006, 3)], DEDUPS),
    Appended(8, 4, 1_700_000_000_007, 5, 0, bytes(range(16)), []),  # all its records were duplicates
    TopicRemoved(7),
    WentIdle(),
    Appended(8, 4, 1_700_000_000_008, 6, 1, b"", [block(6, 1_700_000_000_008, 1)], durability="disk"),
    Recovered([RangeLost(8, 7, 20, "corrupt", 0), RangeLost(9, 1, 0, "crash", 12)], 16, 13),
]
SEGMENT_BLOCKS = [
    Stored(7, 3, block(1, 1000, 7), 0b100_0001),  # the first and the last record are deleted
    Stored(7, 3, block(8, 2000, 2), 0),
    Stored(7, 3, block(20, 2**40, 1), 0b1),
]
PACK_BLOCKS = [Stored(8, 4, block(1, 1000, 2), 0), Stored(9, 5, block(6, 3000, 3), 0b010)]
JOB_BLOCKS = [Stored(10, 6, JOBS, 0b0100), Stored(10, 6, block(7, 3000, 1), 0)]
EXPIRING_BLOCKS = [Stored(11, 7, EXPIRING, 0b010), Stored(11, 7, MIXED, 0)]
SLOTS = {0, 7, 8, 600, 1023}
CELLS = [0x1122334455667788, 12, 0, 2**64 - 1, 65_536, 0, 0, 1]


def topic_state() -> Topic:
    topic = Topic(7, "jobs", 3, CONFIG)
    topic.head_seq, topic.last_ts, topic.delete_below = 20, 1_700_000_000_009, 6
    topic.evicted.add(1, 2, CAP)
    topic.evicted.add(4, 4, TTL)
    topic.holes.add(13, 20, "crash")
    topic.applied_lsn, topic.ceiling, topic.cell, topic.last_write_ms = 11, 131_072, 1, 1_700_000_000_008
    topic.resident_from, topic.created_ms = 21, 1_700_000_000_000
    topic.derived = Derived(MARK)
    topic.derived.missing, topic.derived.positions = [(14, 16), (19, 19)], [Position(60, 12, 5), Position(77, 20, 6)]
    topic.derived.struck.add(15, 15)
    topic.derived.skipped.add(70, 71)
    return topic


def keys_of(seq: int) -> bytes:
    window = KeyWindow()
    window.add(bytes(range(16)), seq, 1, 1_700_000_000_003)
    return b"".join(run.encode() for run in window.take_fresh())


def infos() -> tuple[DataFile, ...]:
    return (
        DataFile(1, SEGMENT, SEGMENT_PATH, 0x5EED0001, 7),
        DataFile(2, PACK, PACK_PATH, 0x5EED0002),
        DataFile(3, PACK, JOBS_PATH, 0x5EED0003),
        DataFile(4, PACK, EXPIRING_PATH, 0x5EED0004),
    )


ALL_BLOCKS = (SEGMENT_BLOCKS, PACK_BLOCKS, JOB_BLOCKS, EXPIRING_BLOCKS)


# -- writing them


def write_log(files: Files) -> None:
    """A group per event, each synced; the second file is begun in the middle."""
    writer = WalWriter(files, next_lsn=1, next_number=1, file_bytes=2048)
    for lsn, event in enumerate(EVENTS, 1):
        kind, body = encode_event(event)
        writer.write([Frame(lsn, kind, body, sum(map(len, body)), ())])
        writer.sync()
    writer.close()


def write_data(files: Files) -> list[DataFile]:
    files.make_dir("segments/7")
    files.make_dir("packs")
    added = list(infos())
    for info, items in zip(added, ALL_BLOCKS, strict=True):
        datafile.write_data_file(files, info, items)
    return added


def write_snapshot(files: Files, added: list[DataFile]) -> None:
    log = snapshot.SnapshotLog(files, snapshot.read_snapshot(files))
    first, second = snapshot.Commit(), snapshot.Commit()
    first.cut_lsn, first.next_topic_id, first.next_epoch, first.next_cell, first.next_file_id = 5, 8, 4, 2, 2
    first.added, first.now_ms = added[:1], 1_700_000_000_004
    log.commit([(6, b"\xc0"), (7, snapshot.encode_topic(topic_state(), 0))], first, [(7, keys_of(12))])
    second.cut_lsn, second.next_topic_id, second.next_epoch, second.next_cell, second.next_file_id = 11, 12, 8, 4, 5
    second.added, second.removed_topics, second.removed_files, second.now_ms = added[1:], [6], [99], 1_700_000_000_009
    log.commit([(7, snapshot.encode_topic(topic_state(), 2))], second, [(7, keys_of(20))])
    log.close()


def write_slots(files: Files) -> None:
    slots = UsedSlots(files)
    slots.mark(SLOTS)
    slots.close()


def write_register(files: Files) -> None:
    register = files.map_register(recovery.REGISTER, len(CELLS))
    for index, value in enumerate(CELLS):
        register.set(index, value)
    register.close()


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All files as this program writes them now, with seeds that are known."""
    root = tmp_path_factory.mktemp("formats")
    files = RealFiles(str(root))
    counter = itertools.count(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "urandom", lambda size: (b"seed%d" % next(counter)).ljust(size, b"."))
        write_log(files)
        write_snapshot(files, write_data(files))
        write_slots(files)
        write_register(files)
    if REGENERATE:
        for name in NAMES:
            (GOLDEN / name).parent.mkdir(parents=True, exist_ok=True)
            (GOLDEN / name).write_bytes((root / name).read_bytes())
    return root


@pytest.mark.parametrize("name", NAMES)
def test_the_bytes_are_the_golden_ones(fresh, name):
    assert (fresh / name).read_bytes() == (GOLDEN / name).read_bytes(), f"the format of {name} changed; see this module"


def test_nothing_else_is_written(fresh):
    assert {path.relative_to(fresh).as_posix() for path in fresh.rglob("*") if path.is_file()} == set(NAMES)


def test_every_kind_of_event_is_in_the_log():
    assert {encode_event(event)[0] for event in EVENTS} == set(range(1, 12))


# -- reading the golden ones


def golden(name: str) -> bytes:
    return (GOLDEN / name).read_bytes()


@pytest.fixture
def files(tmp_path: Path) -> RealFiles:
    """A shard's directory made of the golden files."""
    for name in NAMES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(golden(name))
    return RealFiles(str(tmp_path))


def test_the_golden_log_is_read(files):
    report = walscan.WalReport(0)
    found = [
        (frame.lsn, frame.synced, decode_event(frame.kind, frame.body)) for frame in walscan.read_log(files, report)
    ]
    assert [(lsn, synced) for lsn, synced, _ in found] == [(lsn, lsn - 1) for lsn in range(1, len(EVENTS) + 1)]
    assert [comparable(event) for _, _, event in found] == [comparable(event) for event in EVENTS]
    assert report.damage == []
    assert [number for number, _ in report.files] == [1, 2]


@pytest.mark.parametrize("which", range(4), ids=["segment", "pack", "jobs", "expiring"])
def test_golden_data_files_are_read(files, which):
    info, items = infos()[which], ALL_BLOCKS[which]
    index = datafile.decode_index(golden(datafile.index_path(info.path)), info.id)
    handle = files.open(info.path)
    assert len(index.entries) == len(items)
    for (entry, chunk), item in zip(datafile.chunks_of(info, index), items, strict=True):
        decoded = datafile.decode_frame(handle.read_at(chunk.offset, chunk.length), info.seed)
        assert facts(decoded) == facts(item.block)
        assert (entry.topic_id, entry.epoch) == (item.topic_id, item.epoch)
        assert datafile.read_flags(handle, chunk) == item.dead
        assert (chunk.ts, chunk.sizes) == (item.block.ts, item.block.sizes())
        extras = item.block.extras
        assert chunk.ranks == (item.block.priorities if extras is not None and extras.ranked else None)
        assert chunk.dues == (extras.dues if extras is not None else None)
        assert chunk.expiries == (extras.expiries if extras is not None else None)
    assert index.lost_bytes == 0
    os.unlink(Path(files._root) / datafile.index_path(info.path))
    info.size = len(golden(info.path))
    assert datafile.rebuild_index(files, info, golden(info.path)) == index


def test_the_golden_tag_run_is_searched(files):
    index = files.open(datafile.index_path(SEGMENT_PATH))
    for match in (TagMatch("Eq", "tenant42:job-1"), TagMatch("Glob", "é"), TagMatch("Eq", ""), TagMatch("Glob", "")):
        pattern = Pattern(match)
        expected = [
            fact.seq for item in SEGMENT_BLOCKS for fact in facts(item.block) if fact.tag and pattern.matches(fact.tag)
        ]
        assert datafile.find_tags(index, infos()[0], pattern) == expected


def test_a_mark_of_an_earlier_version_is_read():
    fields = msgspec.to_builtins(MARK)[:-1]
    assert decode_event(MARKED, msgpack.packb([fields])) == Marked([msgspec.structs.replace(MARK, boot=0)])


def test_the_golden_snapshot_is_read(files):
    state = snapshot.read_snapshot(files)
    commit = state.commit
    assert (commit.cut_lsn, commit.next_topic_id, commit.next_epoch, commit.next_cell) == (11, 12, 8, 4)
    assert (commit.next_file_id, commit.now_ms) == (5, 1_700_000_000_009)
    assert [(info.id, info.kind, info.path, info.seed, info.topic_id) for info in state.files.values()] == [
        (info.id, info.kind, info.path, info.seed, info.topic_id) for info in infos()
    ]
    assert sorted(state.topics) == [7]
    assert {topic_id: bytes(keys) for topic_id, keys in state.keys.items()} == {7: keys_of(12) + keys_of(20)}
    assert state.topics[7] == snapshot.encode_topic(topic_state(), 2)
    topic, unflipped = snapshot.decode_topic(7, state.topics[7])
    assert (topic.name, topic.epoch, topic.config, topic.head_seq, topic.ceiling) == ("jobs", 3, CONFIG, 20, 131_072)
    assert (topic.evicted.floor, topic.holes.items, topic.delete_below) == (5, [(13, 20, "crash")], 6)
    assert topic.created_ms == 1_700_000_000_000
    assert not unflipped


def test_the_golden_slots_and_register_are_read(files):
    assert UsedSlots(files).all() == SLOTS
    register = files.map_register(recovery.REGISTER, 1)
    assert [register.get(index) for index in range(register.capacity())] == CELLS
    register.close()


# -- the byte tables of docs/formats.md, read by hand


def u(data: bytes, offset: int, size: int) -> int:
    return int.from_bytes(data[offset : offset + size], "little")


def test_the_table_of_the_log():
    for name, first_lsn in ((NAMES[0], 1), (NAMES[1], None)):
        data = golden(name)
        assert data[:8] == b"TOPICSWL"
        assert (u(data, 8, 4), u(data, 12, 4), data[32:56]) == (1, 0, bytes(24))
        assert u(data, 56, 8) == xxhash.xxh3_64_intdigest(data[:56])
        seed, lsn = u(data, 16, 8), u(data, 24, 8)
        assert first_lsn in (None, lsn)
        at = 64
        while data[at : at + 4] == b"TWF1":
            length = u(data, at + 4, 4)
            assert u(data, at + 8, 8) == xxhash.xxh3_64_intdigest(data[at + 16 : at + 40 + length], seed)
            assert (u(data, at + 16, 8), u(data, at + 24, 8), data[at + 33 : at + 40]) == (lsn, lsn - 1, bytes(7))
            assert data[at + 32] == encode_event(EVENTS[lsn - 1])[0]
            lsn += 1
            at += 40 + length + -length % 8
        assert not data[at:].strip(b"\0")
    assert lsn == len(EVENTS) + 1


def test_the_table_of_appends():
    """Those with dedup keys, the one that has a key alone, and the one that names its class."""
    bodies = [b"".join(encode_event(event)[1]) for event in EVENTS if isinstance(event, Appended)]
    found = {u(body, 24, 8): body for body in bodies if u(body, 0, 8) == 8}
    assert [(u(body, 8, 8), u(body, 16, 8)) for body in found.values()] == [
        (4, 1_700_000_000_006),
        (4, 1_700_000_000_007),
        (4, 1_700_000_000_008),
    ]
    with_keys, key_alone = found[2], found[5]
    assert (u(with_keys, 32, 4), with_keys[36], with_keys[37], u(with_keys, 38, 2)) == (3, 0, 1, 1)
    assert u(with_keys, 40, 4) == 2
    read = tuple((u(with_keys, at, 4), with_keys[at + 4 : at + 20]) for at in (44, 64))
    assert read == DEDUPS
    assert len(by_hand(with_keys, 84)["records"]) == 3
    assert (u(key_alone, 32, 4), key_alone[36], key_alone[37], u(key_alone, 38, 2)) == (0, 16, 0, 0)
    assert key_alone[40:] == bytes(range(16))
    assert found[6][37] == 3 << 1


def by_hand(data: bytes, at: int) -> dict[str, Any]:
    """A block read with nothing but the table."""
    n, text_len, side_len = u(data, at + 24, 4), u(data, at + 28, 4), u(data, at + 36, 4)
    columns, widths = at + 72, (4, 4, 4, 2, 2, 2, 1, 1)
    starts = [columns + sum(widths[:i]) * n for i in range(8)]
    ends, ts, tag_ends, data_offs, meta_lens, node_ids, priorities, hops = (
        [u(data, start + i * width, width) for i in range(n)] for start, width in zip(starts, widths, strict=True)
    )
    side = data[columns + 20 * n : columns + 20 * n + side_len]
    text = data[columns + 20 * n + side_len : columns + 20 * n + side_len + text_len]
    nodes, left = [b""], side[tag_ends[-1] :]
    if left:
        count, left = u(left, 0, 2), left[2:]
        for _ in range(count):
            nodes.append(left[2 : 2 + u(left, 0, 2)])
            left = left[2 + u(left, 0, 2) :]
    times: dict[int, dict[int, int]] = {1: {}, 3: {}}
    origins = {}
    while u(data, at + 6, 2) & 16 and left:
        kind, length, part, left = left[0], u(left, 1, 4), left[5 : 5 + u(left, 1, 4)], left[5 + u(left, 1, 4) :]
        if kind in times:
            k = length // 10
            times[kind] = {u(part, 2 * i, 2): u(part, 2 * k + 8 * i, 8) for i in range(k)}
        else:
            assert kind == 2
            origins = {u(part, 18 * i, 2): part[18 * i + 2 : 18 * i + 18] for i in range(length // 18)}
    assert not left
    return {
        "frame_len": u(data, at, 4),
        "version, kind, flags": (data[at + 4], data[at + 5], u(data, at + 6, 2)),
        "first_seq, base_ts": (u(data, at + 8, 8), u(data, at + 16, 8)),
        "stored": u(data, at + 32, 4) == text_len,
        "owner": (u(data, at + 40, 8), u(data, at + 48, 8), u(data, at + 56, 8), u(data, at + 64, 8)),
        "records": [
            (
                text[ends[i - 1] + 1 if i else 0 : ends[i]],
                u(data, at + 16, 8) + ts[i],
                side[tag_ends[i - 1] if i else 0 : tag_ends[i]],
                nodes[node_ids[i]],
                data_offs[i],
                meta_lens[i],
                priorities[i],
                hops[i],
                times[1].get(i, 0),
                origins.get(i, b""),
                times[3].get(i, 0),
            )
            for i in range(n)
        ],
        "body_len": 72 + 20 * n + side_len + text_len,
    }


def test_the_table_of_blocks_and_data_files():
    for info, items, kind in zip(infos(), ALL_BLOCKS, (1, 2, 2, 2), strict=True):
        data = golden(info.path)
        assert data[:8] == b"TOPICSDF"
        assert (u(data, 8, 4), u(data, 12, 4)) == (1, kind)
        assert (u(data, 16, 8), u(data, 24, 8), u(data, 32, 8)) == (info.seed, info.id, info.topic_id)
        assert data[40:56] == bytes(16)
        assert u(data, 56, 8) == xxhash.xxh3_64_intdigest(data[:56])
        at = 64
        for item in items:
            found = by_hand(data, at)
            assert found["records"] == [
                tuple(fact)[2:3] + tuple(fact)[1:2] + tuple(fact)[3:] for fact in facts(item.block)
            ]
            flags = 1 * item.block.crlf + 2 * bool(item.block.tags) + 16 * (item.block in (JOBS, EXPIRING, MIXED))
            assert found["version, kind, flags"] == (1, 0, flags)
            assert found["first_seq, base_ts"] == (item.block.first_seq, item.block.base_ts)
            assert found["stored"]
            assert found["owner"] == (item.topic_id, item.epoch, 0, 0)
            end = at + found["body_len"]
            n = len(item.block)
            assert u(data, end, 8) == xxhash.xxh3_64_intdigest(data[at:end], info.seed)
            assert data[end + 8 : end + 8 + n] == bytes(0xD5 if item.dead >> i & 1 else 0 for i in range(n))
            assert found["frame_len"] == found["body_len"] + 8 + n
            check_frame(data[at:], info.seed)
            assert mask_from_flags(data[end + 8 : end + 8 + n]) == item.dead
            at += found["frame_len"]
        assert at == len(data)


def test_the_table_of_the_index():
    data = golden(datafile.index_path(SEGMENT_PATH))
    assert data[:8] == b"TOPICSIX"
    blocks, records, tags, tag_bytes = u(data, 12, 4), u(data, 16, 8), u(data, 24, 8), u(data, 32, 8)
    assert (u(data, 8, 4), blocks, records) == (1, 3, 10)
    assert (u(data, 40, 8), u(data, 48, 8)) == (len(golden(SEGMENT_PATH)), 1)
    ts_at = 64 + 56 * blocks
    run_at = ts_at + 8 * records
    blob_at = run_at + 16 * tags
    jobs_at = blob_at + tag_bytes
    assert len(data) == jobs_at + u(data, 56, 8) + 8
    assert data[jobs_at:-8] == bytes(fact.priority for item in SEGMENT_BLOCKS[:2] for fact in facts(item.block))
    assert u(data, len(data) - 8, 8) == xxhash.xxh3_64_intdigest(data[:-8])
    entry = struct.unpack_from("<5Q4I", data, 64 + 56)
    assert entry[:4] == (7, 3, 8, 2000)
    assert (entry[6], entry[7], entry[8]) == (2, 1 | 2, 0)
    run = [struct.unpack_from("<QIHH", data, run_at + 16 * i) for i in range(tags)]
    found = [(data[blob_at + offset : blob_at + offset + length], seq) for seq, offset, length, _ in run]
    assert found == sorted((fact.tag, fact.seq) for item in SEGMENT_BLOCKS for fact in facts(item.block) if fact.tag)
    assert tag_bytes == sum(map(len, {tag for tag, _ in found}))


def test_the_table_of_the_columns_of_jobs():
    data = golden(datafile.index_path(JOBS_PATH))
    assert [struct.unpack_from("<5Q4I", data, 64 + 56 * i)[7] for i in range(2)] == [2 | 4, 1]
    part = data[-8 - u(data, 56, 8) : -8]
    assert part[:4] == bytes((9, 0, 0, 3))
    assert (u(part, 4, 2), u(part, 6, 2), u(part, 8, 2)) == (2, 1, 3)
    assert (u(part, 10, 8), u(part, 18, 8), len(part)) == (61_000, 2**40, 26)


def test_the_table_of_the_columns_of_records_that_expire():
    data = golden(datafile.index_path(EXPIRING_PATH))
    assert [struct.unpack_from("<5Q4I", data, 64 + 56 * i)[7] for i in range(2)] == [8, 2 | 4 | 8]
    part = data[-8 - u(data, 56, 8) : -8]
    assert struct.unpack_from("<HHHQQ", part) == (2, 1, 2, 6_000, 2**40)
    assert part[22:25] == bytes((2, 0, 0))
    assert struct.unpack_from("<HHHQQ", part, 25) == (2, 1, 2, 3_000, 4_000)
    assert struct.unpack_from("<HHHQQ", part, 47) == (2, 0, 2, 7_000, 8_000)
    assert len(part) == 69


def test_the_table_of_the_snapshot():
    data = golden("snapshot.1")
    assert data[:8] == b"TOPICSSN"
    assert (u(data, 8, 4), u(data, 12, 4), u(data, 16, 8), data[32:56]) == (1, 0, 1, bytes(24))
    assert u(data, 56, 8) == xxhash.xxh3_64_intdigest(data[:56])
    seed, at, records = u(data, 24, 8), 64, []
    while at < len(data):
        assert data[at : at + 4] == b"TSR1"
        length, kind, group = u(data, at + 4, 4), u(data, at + 8, 4), u(data, at + 12, 4)
        body = data[at + 24 : at + 24 + length]
        assert u(data, at + 16, 8) == xxhash.xxh3_64_intdigest(data[at + 4 : at + 16] + body, seed)
        records.append((group, kind, len(msgpack.unpackb(body))))
        at += 24 + length
    assert records == [(1, 1, 2), (1, 3, 1), (1, 2, 10), (2, 1, 1), (2, 3, 1), (2, 2, 10)]


def test_the_tables_of_slots_and_register():
    assert golden("slots.used") == b"".join(
        bytes((sum(1 << bit for bit in range(8) if byte * 8 + bit in SLOTS),)) for byte in range(128)
    )
    assert golden("heads.reg") == struct.pack("<8Q", *CELLS)
    assert wal.FRAME_BYTES == 40
