"""Golden files of what the first ones have not: a snapshot that names a file in the cold directory, and a topic with
message ids and compression, in its entry there and in the events that make and change it.

They are in tests/golden_later, written anew like those of test_formats.py.
"""

import os
from pathlib import Path

import msgpack
import pytest
import xxhash

from tests.shards.test_formats import REGENERATE, keys_of, topic_state, u
from topics.core.chunk import DataFile
from topics.core.config import TopicConfig, intern
from topics.core.events import CREATED, UPDATED, Event, TopicCreated, TopicUpdated, decode_event, encode_event
from topics.core.ranges import SeqRanges
from topics.core.topic import Topic
from topics.shards import snapshot
from topics.shards.datafile import PACK, SEGMENT
from topics.shards.files import RealFiles

GOLDEN = Path(__file__).resolve().parents[1] / "golden_later"
NOW = 1_700_000_000_000
CONFIG = intern(
    TopicConfig(
        type="queue", compression="zstd", compression_min_bytes=300, message_ids=True, id_salt=2**64 - 2, ids_from=41
    )
)
STORED_CONFIG = {
    "type": "queue", "compression": "zstd", "compression_min_bytes": 300, "message_ids": True, "id_salt": 2**64 - 2,
    "ids_from": 41,
}  # fmt: skip
CREATED_TOPIC = TopicCreated(7, "jobs", 3, CONFIG, NOW, 65_536, 1)
UPDATED_TOPIC = TopicUpdated(7, CONFIG, NOW + 1, 40)
EVENTS: dict[str, Event] = {"created": CREATED_TOPIC, "updated": UPDATED_TOPIC}
DELETED = SeqRanges.from_ascending([3, 4, 300, 2**40])
NAMES = ("snapshot.1", *EVENTS)


def topic() -> Topic:
    made = topic_state()
    made.config = CONFIG
    return made


def infos() -> tuple[DataFile, ...]:
    """The first one is hot in the first checkpoint, and cold in the second."""
    cold = DataFile(1, SEGMENT, "segments/7/seg-00000000000000000001.data", 0x5EED0001, 7)
    hot = DataFile(2, PACK, "packs/pack-0000000002.data", 0x5EED0002)
    bare = DataFile(3, SEGMENT, "segments/7/seg-00000000000000000041.data", 2**64 - 1, 7)
    cold.size, hot.size, bare.size = 4096, 2**33, 64
    return cold, hot, bare


def write(root: Path) -> None:
    cold, hot, bare = infos()
    log = snapshot.SnapshotLog(RealFiles(str(root)), snapshot.SnapshotState())
    first, second = snapshot.Commit(), snapshot.Commit()
    first.cut_lsn, first.next_topic_id, first.next_file_id, first.now_ms, first.added = 5, 8, 3, NOW, [cold, hot]
    log.commit([(7, snapshot.encode_topic(topic(), 2))], first, [(7, keys_of(12))])
    cold.cold, cold.deleted = True, DELETED.encode()
    bare.cold, bare.deleted = True, SeqRanges().encode()
    second.cut_lsn, second.next_topic_id, second.next_file_id, second.now_ms = 9, 8, 4, NOW + 9
    second.added, second.changed, second.idle_lsn = [bare], [cold], 9
    log.commit([], second)
    log.close()
    for name, event in EVENTS.items():
        (root / name).write_bytes(b"".join(encode_event(event)[1]))


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("later")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "urandom", lambda size: b"seed1".ljust(size, b"."))
        write(root)
    if REGENERATE:
        GOLDEN.mkdir(exist_ok=True)
        for name in NAMES:
            (GOLDEN / name).write_bytes((root / name).read_bytes())
    return root


@pytest.mark.parametrize("name", NAMES)
def test_the_bytes_are_the_golden_ones(fresh, name):
    assert (fresh / name).read_bytes() == (GOLDEN / name).read_bytes(), f"the format of {name} changed: test_formats.py"


def test_the_golden_snapshot_is_read():
    state = snapshot.read_snapshot(RealFiles(str(GOLDEN)))
    cold, hot, bare = state.files.values()
    assert [(info.id, info.kind, info.path, info.seed, info.topic_id, info.size) for info in (cold, hot, bare)] == [
        (info.id, info.kind, info.path, info.seed, info.topic_id, info.size) for info in infos()
    ]
    assert (cold.cold, hot.cold, bare.cold) == (True, False, True)
    assert (cold.deleted, hot.deleted, bare.deleted) == (DELETED.encode(), b"", SeqRanges().encode())
    assert (state.group, state.commit.cut_lsn, state.commit.idle_lsn, state.commit.next_file_id) == (2, 9, 9, 4)
    read, _ = snapshot.decode_topic(7, state.topics[7], bytes(state.keys[7]))
    assert read.config is CONFIG
    assert read.keys is not None
    assert len(read.keys) == 1


def test_the_golden_events_are_read():
    assert decode_event(CREATED, (GOLDEN / "created").read_bytes()) == CREATED_TOPIC
    assert decode_event(UPDATED, (GOLDEN / "updated").read_bytes()) == UPDATED_TOPIC


def test_the_tables():
    """docs/formats.md, with nothing but msgpack and the checksum."""
    assert msgpack.unpackb((GOLDEN / "created").read_bytes()) == [7, "jobs", 3, STORED_CONFIG, NOW, 65_536, 1]
    assert msgpack.unpackb((GOLDEN / "updated").read_bytes()) == [7, STORED_CONFIG, NOW + 1, 40, None]
    data, at, bodies = (GOLDEN / "snapshot.1").read_bytes(), 64, []
    seed = u(data, 24, 8)
    while at < len(data):
        size, body = u(data, at + 4, 4), data[at + 24 : at + 24 + u(data, at + 4, 4)]
        assert data[at : at + 4] == b"TSR1"
        assert u(data, at + 16, 8) == xxhash.xxh3_64_intdigest(data[at + 4 : at + 16] + body, seed)
        bodies.append((u(data, at + 8, 4), u(data, at + 12, 4), msgpack.unpackb(body)))
        at += 24 + size
    assert [(kind, group) for kind, group, _ in bodies] == [(1, 1), (3, 1), (2, 1), (2, 2)]
    ((_, entry),) = bodies[0][2]
    assert msgpack.unpackb(entry)[2] == STORED_CONFIG
    segment = [1, "segment", "segments/7/seg-00000000000000000001.data", 0x5EED0001, 7, 4096]
    assert bodies[2][2][6] == [segment, [2, "pack", "packs/pack-0000000002.data", 0x5EED0002, 0, 2**33]]
    # Deletes as ranges: three of them; 3 and 4, then 300 (295 - 1 behind), then 2^40.
    ranges = b"\x03\x03\x01\xa6\x02\x00" + leb128(2**40 - 302) + b"\x00"
    assert bodies[3][2][6][1] == [*segment, 1, ranges]
    assert bodies[3][2][6][0] == [3, "segment", "segments/7/seg-00000000000000000041.data", 2**64 - 1, 7, 64, 1, b"\0"]


def leb128(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))
