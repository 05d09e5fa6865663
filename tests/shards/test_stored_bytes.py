"""Whatever stands on the disk, a decoder of stored bytes gives a value or raises the one error that it names.

Arbitrary bytes hardly ever get past a checksum, so there are also bodies that check and are not as this program writes
them: values of the golden files with a part exchanged, with the checksum put right. Blocks, events and seq ranges have
such tests in tests/core. What a start makes of it follows behind.
"""

import contextlib
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgpack
import msgspec
import pytest
import trio
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.shards.test_book_formats import BOOKS, WATCHED
from tests.shards.test_formats import EVENTS, GOLDEN, topic_state
from tests.shards.test_hidden_formats import GROUPS
from tests.shards.test_hidden_formats import records as hidden_records
from topics.cli.backups.store import BackupStore, BadBackup
from topics.core import groups, keyruns, lease_events, watching
from topics.core.chunk import DataFile
from topics.core.config import from_wire
from topics.core.events import APPENDED, BOTH, IDLE, RECOVERED, BadEvent, decode_event, encode_event
from topics.core.extras import BadExtras, Extras, Times
from topics.core.groups import BadGroupEvent
from topics.core.keyruns import BadKeys
from topics.core.lease_events import BadLeaseEvent, Replayed
from topics.core.match import TagMatch
from topics.core.requests import Append, RecordIn
from topics.core.state import ShardState, apply
from topics.core.tags import Pattern
from topics.limits import Limits
from topics.shards import (
    datafile,
    hidden,
    inspect,
    jobcolumns,
    leaselog,
    links,
    routers,
    session,
    sessions,
    snapshot,
    snapshot_form,
)
from topics.shards.book import BadEntry, Book
from topics.shards.cold import ColdTier, ColdUnavailable
from topics.shards.cold_files import RealColdFiles
from topics.shards.datafile import SEGMENT, BadFile
from topics.shards.files import RealFiles
from topics.shards.findings import Tally
from topics.shards.grouplog import GroupLog
from topics.shards.marks import Marks
from topics.shards.readonly_files import ReadOnlyFiles
from topics.shards.recovery import recover
from topics.shards.sessions import Sessions
from topics.shards.snapshot import BadSnapshot, Commit, SnapshotLog, SnapshotState, read_snapshot
from topics.shards.store import Store
from topics.shards.verify import check_shard
from topics.supervisor import datadir, slotmap, slotswap
from topics.supervisor.datadir import DataDirError
from topics.testing.fake_clock import FakeClock
from topics.testing.faulty_files import FaultyFiles

ENTRY = snapshot.encode_topic(topic_state(), 2)
GOLDEN_SNAPSHOT = (GOLDEN / "snapshot.1").read_bytes()
GOLDEN_INDEX = next(GOLDEN.glob("segments/7/*.idx")).read_bytes()
SEED = 7


class Case(NamedTuple):
    decode: Callable[[bytes], object]
    error: type[Exception]
    good: list[bytes]  # encodings that are right; msgpack, or JSON


def checked_snapshot(*records: tuple[int, bytes]) -> bytes:
    """A snapshot of one group in which every checksum holds."""
    head = snapshot._HEADER.pack(snapshot.MAGIC, snapshot.VERSION, 0, 1, SEED, bytes(24), 0)[:56]
    data = head + struct.pack("<Q", xxhash.xxh3_64_intdigest(head))
    for kind, body in records:
        fields = struct.pack("<III", len(body), kind, 1)
        data += snapshot.RECORD_MAGIC + fields + struct.pack("<Q", snapshot._check_of(fields, body, SEED)) + body
    return data


def decode_whole(kind: int) -> Callable[[bytes], SnapshotState]:
    last = [] if kind == snapshot_form.COMMIT else [(snapshot_form.COMMIT, Commit().pack())]
    return lambda body: snapshot.decode_snapshot(checked_snapshot((kind, body), *last), 1)


def bodies(kind: int) -> list[bytes]:
    return [found.body for _, _, found in snapshot.scan(GOLDEN_SNAPSHOT) if found is not None and found.kind == kind]


def decode_and_apply(data: bytes) -> None:
    Replayed().apply(lease_events.decode(data))


def decode_and_enter(data: bytes) -> None:
    known: dict[str, groups.Group] = {}
    for event in groups.decode(data):
        groups.apply(known, event)


CASES = {
    "topic": Case(lambda data: snapshot.decode_topic(7, data), BadSnapshot, [ENTRY]),
    "commit": Case(decode_whole(snapshot_form.COMMIT), BadSnapshot, bodies(snapshot_form.COMMIT)),
    "topics": Case(decode_whole(snapshot_form.TOPICS), BadSnapshot, bodies(snapshot_form.TOPICS)),
    "keys": Case(decode_whole(snapshot_form.KEYS), BadSnapshot, bodies(snapshot_form.KEYS)),
    "lease": Case(decode_and_apply, BadLeaseEvent, hidden_records("leases")),
    "group": Case(decode_and_enter, BadGroupEvent, hidden_records("groups")),
    "session": Case(session.decode_definition, BadEntry, [BOOKS["sessions"]["d:w_1"]]),
    "saved": Case(session.decode_saved, BadEntry, [BOOKS["sessions"]["c:w_1"]]),
    "router": Case(routers.decode_router, BadEntry, list(BOOKS["routers"].values())),
    "link": Case(links.decode_link, BadEntry, list(BOOKS["links"].values())),
    "config": Case(lambda data: from_wire(msgpack.unpackb(data, strict_map_key=False)), ValueError, [
        msgpack.packb({"ttl_ms": 5, "durability": "fsync", "priority": None, "id_salt": 2**64 - 1, "of_later": 1})
    ]),
    "watch": Case(watching.unpack, ValueError, [watching.pack(WATCHED)]),
}  # fmt: skip

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=3) | st.binary(max_size=40),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=2) | st.integers(0, 9), inner),
    max_leaves=6,
)


def exchange(value: Any, draw: Callable[[Any], Any]) -> Any:
    """The value with something else somewhere in it."""
    if isinstance(value, list | dict) and value and draw(st.integers(0, 4)):
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        changed = dict(value) if isinstance(value, dict) else list(value)
        at = draw(st.sampled_from(keys))
        changed[at] = exchange(value[at], draw)
        if not draw(st.integers(0, 7)) and isinstance(changed, list):
            del changed[draw(st.integers(0, len(changed) - 1)) :]
        return changed
    return draw(values)


@pytest.mark.parametrize("name", CASES)
def test_what_is_right_is_read(name):
    for data in CASES[name].good:
        CASES[name].decode(data)


@pytest.mark.parametrize("name", CASES)
@given(data=st.binary(max_size=60) | values.map(lambda value: msgpack.packb(value, use_bin_type=True)))
def test_arbitrary_bytes_are_a_value_or_refused(name, data):
    case = CASES[name]
    if name == "config":
        data = msgpack.packb(data)
    with contextlib.suppress(case.error):
        case.decode(data)


@pytest.mark.parametrize("name", CASES)
@given(data=st.data())
def test_a_changed_value_is_a_value_or_refused(name, data):
    case = CASES[name]
    good = data.draw(st.sampled_from(case.good))
    if name == "watch":
        changed = exchange(json.loads(good), data.draw)
        encoded = json.dumps(changed, default=str).encode()
    else:
        changed = exchange(msgpack.unpackb(good, strict_map_key=False), data.draw)
        encoded = msgpack.packb(changed, use_bin_type=True)
    with contextlib.suppress(case.error):
        case.decode(encoded)


@pytest.mark.parametrize("name", CASES)
def test_what_is_nested_without_end_is_refused(name):
    deep = b"[" * 100_000 if name == "watch" else b"\x91" * 100_000
    with pytest.raises((CASES[name].error, RecursionError) if name == "config" else CASES[name].error):
        CASES[name].decode(deep)


@given(st.binary(max_size=200))
def test_stored_keys_are_whole(data):
    for decode in (keyruns.decode, lambda data: snapshot.decode_topic(7, ENTRY, data)):
        if len(data) % 36:
            with pytest.raises((BadKeys, BadSnapshot)):
                decode(data)
        else:
            decode(data)


@given(st.binary(max_size=80) | st.tuples(st.sampled_from((1, 2, 3, 4)), st.binary(max_size=60)).map(
    lambda part: struct.pack("<BI", part[0], len(part[1])) + part[1]
), st.integers(1, 256))  # fmt: skip
def test_extensions_are_extensions_or_refused(data, n):
    for decode in (Extras().decode, Times.decode):
        with contextlib.suppress(BadExtras):
            decode(data, n)


@given(
    st.binary(max_size=80), st.lists(st.tuples(st.integers(0, 99), st.integers(1, 8), st.integers(0, 15)), max_size=3)
)
def test_columns_of_jobs_are_columns_or_refused(data, entries):
    with contextlib.suppress(BadExtras):
        jobcolumns.decode(data, entries)


@given(st.lists(st.tuples(st.integers(0, len(GOLDEN_INDEX) - 9), st.integers(0, 255)), min_size=1, max_size=3))
def test_an_index_whose_checksum_holds_is_an_index_or_refused(changes):
    data = bytearray(GOLDEN_INDEX)
    for at, value in changes:
        data[at] = value
    checked = bytes(data[:-8]) + struct.pack("<Q", xxhash.xxh3_64_intdigest(bytes(data[:-8])))
    info = DataFile(struct.unpack_from("<Q", data, 48)[0], SEGMENT, "f.data", 0, 7)
    try:
        index = datafile.decode_index(checked, info.id)
        for _, chunk in datafile.chunks_of(info, index):
            assert chunk.last_seq >= chunk.first_seq
            assert chunk.offset + chunk.length - len(chunk) >= 0
    except BadFile:
        pass


@given(
    st.lists(st.tuples(st.integers(8, len(GOLDEN_INDEX) - 1), st.integers(0, 255)), max_size=4), st.binary(max_size=99)
)
def test_a_search_for_tags_ends_whatever_the_index_says(changes, end):
    """It reads a few places of the file, and nobody has looked at its checksum since the start."""
    data = bytearray(GOLDEN_INDEX)
    for at, value in changes:
        data[at] = value
    files = FaultyFiles()
    file = files.create("f.idx")
    file.write_at(0, [bytes(data[: len(data) - len(end)]), end])
    info = DataFile(struct.unpack_from("<Q", data, 48)[0], SEGMENT, "f.data", 0, 7)
    for pattern in (TagMatch("Eq", "tenant42:job-1"), TagMatch("Glob", "t")):
        with contextlib.suppress(BadFile):
            datafile.find_tags(file, info, Pattern(pattern))


# -- the small files


def owner_of_the_cold_directory(path: Path) -> None:
    ColdTier(RealFiles(str(path)), RealColdFiles(str(path / "cold"))).check()


FILES: dict[str, tuple[str, Callable[[Path], object], type[Exception], Any]] = {
    "SLOTS": ("SLOTS", slotmap.load, DataDirError, {"version": 1, "shards": 2, "slots": [0, 1] * 512}),
    "REBALANCE": ("REBALANCE", slotswap.finish, DataDirError,
                  {"version": 1, "directories": ["shard-00"], "files": {"SLOTS": "{}"}}),
    "FORMAT": ("FORMAT", datadir.has_format, DataDirError, None),
    "LOCK": ("LOCK", datadir.running, DataDirError, {"pid": 1, "run_dir": "/run"}),
    "BACKUP": ("BACKUP", lambda path: BackupStore(path).load(), BadBackup,
               {"version": 1, "taken_ms": 1, "format": "topics 1", "slots": "{}",
                "shards": [{"shard": 0, "lsn": 1, "cut_ms": 1,
                            "files": {"a": {"stored": "a", "size": 1, "xxh3": ""}}}]}),
    "OWNER": ("cold/OWNER", owner_of_the_cold_directory, ColdUnavailable, None),
    "cold.id": ("cold.id", owner_of_the_cold_directory, ColdUnavailable, None),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
@given(data=st.data())
def test_a_small_file_is_read_or_refused(tmp_path_factory, name, data):
    path, read, error, good = FILES[name]
    directory = tmp_path_factory.mktemp("small")
    texts = st.binary(max_size=60) | st.sampled_from([b"[" * 9999, b"topics " + b"1" * 5000, b'{"pid":"\xff"}'])
    if good is not None:
        changed = exchange(good, data.draw)
        texts = st.just(json.dumps(changed, default=str).encode()) | texts
    (directory / path).parent.mkdir(exist_ok=True)
    (directory / path).write_bytes(data.draw(texts))
    with contextlib.suppress(error):
        read(directory)


@pytest.mark.parametrize("name", ["../other", "/etc", "..", "", "shard-00/wal"])
def test_a_rebalance_touches_nothing_outside_of_the_data_directory(tmp_path, name):
    for swap in ({"directories": [name], "files": {}}, {"directories": [], "files": {name: "x"}}):
        (tmp_path / "REBALANCE").write_text(json.dumps({"version": 1, **swap}))
        with pytest.raises(DataDirError, match="damaged"):
            slotswap.finish(tmp_path)


@pytest.mark.parametrize("shards", [2**62, 0, -1])
def test_a_slot_map_of_too_many_shards_is_damaged(tmp_path, shards):
    (tmp_path / "SLOTS").write_text(json.dumps({"version": 1, "shards": shards, "slots": [0] * 1024}))
    with pytest.raises(DataDirError, match="damaged"):
        slotmap.load(tmp_path)


# -- what a start makes of it

OTHER_CONFIG = msgpack.packb(["a", 1, {"durability": "firm"}, *msgpack.unpackb(ENTRY)[3:]])


def commit_of(file: list[Any]) -> bytes:
    packed: bytes = msgpack.packb([0, 1, 1, 1, 1, 0, [file], [], [], 0])
    return packed


BAD_RECORDS = {
    "commit": [(snapshot_form.COMMIT, msgpack.packb([1, 2, 3]))],
    "commit of strings": [(snapshot_form.COMMIT, msgpack.packb(["1"] * 10))],
    "commit with an unknown file": [(snapshot_form.COMMIT, commit_of([1, "zip", "f", 0, 0, 0]))],
    "deletes that are none": [
        (snapshot_form.COMMIT, commit_of([1, "segment", "f", 0, 0, 0, 1, b"\x09"]))
    ],
    "topics": [(snapshot_form.TOPICS, msgpack.packb({"a": 1})), (snapshot_form.COMMIT, Commit().pack())],
    "no msgpack": [(snapshot_form.KEYS, b"\xc1"), (snapshot_form.COMMIT, Commit().pack())],
    "an entry": [(snapshot_form.TOPICS, msgpack.packb([(7, b"\xc0")])), (snapshot_form.COMMIT, Commit().pack())],
    "an entry of another config": [
        (snapshot_form.TOPICS, msgpack.packb([(7, OTHER_CONFIG)])),
        (snapshot_form.COMMIT, Commit().pack()),
    ],
    "keys that are cut off": [
        (snapshot_form.TOPICS, msgpack.packb([(7, ENTRY)])),
        (snapshot_form.KEYS, msgpack.packb([(7, bytes(35))])),
        (snapshot_form.COMMIT, Commit().pack()),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_RECORDS)
def test_a_snapshot_that_checks_but_cannot_be_read_stops_the_start_and_is_reported(tmp_path, name):
    """BadSnapshot is exit status 65 (topics/shards/__main__.py), and nothing is changed."""
    data = checked_snapshot(*BAD_RECORDS[name])
    (tmp_path / "snapshot.1").write_bytes(data)
    with pytest.raises(BadSnapshot, match=r"snapshot.* cannot be used: .*Nothing was changed\. Restore"):
        recover(RealFiles(str(tmp_path)), FakeClock())
    assert (tmp_path / "snapshot.1").read_bytes() == data
    found = list(check_shard(ReadOnlyFiles(str(tmp_path)), Tally(), lambda size: None))
    assert [finding for finding in found if finding.damage and finding.file == "snapshot.1"]
    lines = list(inspect.describe(tmp_path / "snapshot.1", with_data=True))
    assert lines[0]["kind"] == "snapshot"


BAD_LEASES = [b"\xc1", b"", b"[]", msgpack.packb([1, 7, 3, 0, [["w1", 1, 2]]]), msgpack.packb([3, 7, 3, 0, 5])]
BAD_GROUPS = [b"\xc1", b"", b"[]", msgpack.packb([[1, 7, 0, "g", [5]]]), msgpack.packb([[2, 7, 0, "g", ["x"]]])]


def new_store(disk: FaultyFiles) -> Store:
    return recover(disk, FakeClock(), Limits())


def put_records(store: Store, name: str, records: list[bytes]) -> None:
    hidden.open(store.engine, name)
    request = Append([RecordIn(msgspec.Raw(record)) for record in records], None, None, None, None, False)
    store.engine.append(name, request, lambda _: None, lambda _: None)
    store.commit_all()


def test_lease_events_that_cannot_be_read_are_lost_and_the_others_are_not(caplog):
    disk = FaultyFiles()
    store = new_store(disk)
    put_records(store, leaselog.NAME, [*BAD_LEASES, hidden_records("leases")[0]])
    assert leaselog.load(new_store(disk)) == {}
    assert caplog.text.count("is lost") == len(BAD_LEASES)


def test_group_events_that_cannot_be_read_are_lost_and_the_others_are_not(caplog):
    disk = FaultyFiles()
    store = new_store(disk)
    put_records(store, "$groups", [*BAD_GROUPS, groups.encode(GROUPS[0])])
    assert GroupLog(new_store(disk))._events == 1
    assert caplog.text.count("are lost") == len(BAD_GROUPS)


def test_entries_of_books_that_cannot_be_read_are_lost_and_the_others_are_not(caplog):
    disk = FaultyFiles()
    store = new_store(disk)
    for name, known in (("$links", BOOKS["links"]), ("$sessions", BOOKS["sessions"]), ("$routers", BOOKS["routers"])):
        entries = {"d:bad": b"\xc1", "c:bad": b"", **{key: value for key, value in known.items() if value}}
        book = Book(store, name)
        list(book.load())
        book.put_all(entries, lambda _: None, lambda error: pytest.fail(str(error)))
    store.commit_all()

    async def start() -> None:
        started = new_store(disk)
        assert list(links.Links(started, Marks(started.engine)).into(8)) == ["a->b"]
        assert list(Sessions(started)._sessions) == ["w_1"]
        found = [name for name, _ in Book(started, "$routers").load_as(lambda _, entry: routers.decode_router(entry))]
        assert found == ["a->b", "a->é"]

    trio.run(start)
    assert caplog.text.count("is lost") == 6


def test_a_key_of_a_book_that_cannot_be_read_is_lost(caplog):
    disk = FaultyFiles()
    store = new_store(disk)
    put_records(store, "$links", [BOOKS["links"]["a->b"]])  # without a tag
    assert list(Book(new_store(disk), "$links").load()) == []
    assert "its key cannot be read" in caplog.text


def test_the_golden_snapshot_is_as_it_was():
    """The cases above stand on it."""
    files = FaultyFiles()
    log = SnapshotLog(files, read_snapshot(files))
    log.commit([(7, ENTRY)], Commit())
    log.close()
    assert read_snapshot(files).topics == {7: ENTRY}
    assert sessions.STOPPED in BOOKS["sessions"]


@pytest.mark.parametrize("count", [2**40, 2**59, 2**64 - 1])
def test_an_index_that_says_it_has_more_tags_than_a_file_can_hold_is_refused(tmp_path, count):
    """On a real disk: it does not even take such offsets and sizes."""
    data = bytearray(GOLDEN_INDEX)
    struct.pack_into("<Q", data, 24, count)
    (tmp_path / "f.idx").write_bytes(data)
    info = DataFile(struct.unpack_from("<Q", data, 48)[0], SEGMENT, "f.data", 0, 7)
    with pytest.raises(BadFile):
        datafile.find_tags(RealFiles(str(tmp_path)).open("f.idx"), info, Pattern(TagMatch("Glob", "t")))


@pytest.mark.parametrize(("at", "value"), [(44, 0), (40, 0), (32, 0)])
def test_an_index_of_blocks_that_cannot_be_is_refused(at, value):
    """Of the first block: its records are entered under the second one, or its length or place is none."""
    data = bytearray(GOLDEN_INDEX)
    first, second = 64, 64 + 56
    if at == 44:
        n = struct.unpack_from("<I", data, first + 44)[0]
        struct.pack_into("<I", data, second + 44, struct.unpack_from("<I", data, second + 44)[0] + n)
    struct.pack_into("<I", data, first + at, value)
    data[-8:] = struct.pack("<Q", xxhash.xxh3_64_intdigest(bytes(data[:-8])))
    with pytest.raises(BadFile, match="do not add up"):
        datafile.decode_index(bytes(data), struct.unpack_from("<Q", data, 48)[0])


STORED_EVENTS = [(kind, b"".join(parts)) for kind, parts in map(encode_event, EVENTS)]
PACKED_EVENTS = [event for event in STORED_EVENTS if event[0] not in (APPENDED, IDLE, BOTH, RECOVERED)]


@given(st.integers(1, len(STORED_EVENTS)), st.sampled_from(PACKED_EVENTS), st.data())
@settings(max_examples=400)
def test_an_event_that_is_read_can_be_applied(count, stored, data):
    """A start stops at one that is not as this program writes it; it does not come to grief half-way."""
    state = ShardState()
    state.replaying = True
    for lsn, (kind, body) in enumerate(STORED_EVENTS[:count], 1):
        apply(state, decode_event(kind, body), lsn)
    changed = exchange(msgpack.unpackb(stored[1], strict_map_key=False), data.draw)
    try:
        event = decode_event(stored[0], msgpack.packb(changed, use_bin_type=True))
    except BadEvent:
        return
    apply(state, event, count + 1)
