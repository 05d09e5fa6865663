"""Hidden topics: kept like any topic, seen by nobody."""

import msgspec
import pytest
import trio

from topics import errors
from topics.board import Board
from topics.core.config import ConfigPatch
from topics.core.names import is_topic_name
from topics.core.requests import Append, RecordIn
from topics.errors import TopicsError
from topics.ids import slot_of
from topics.shards import hidden
from topics.shards.quota import BoardQuota
from topics.shards.recovery import recover
from topics.shards.shard import Shard
from topics.testing.fake_clock import FakeClock
from topics.testing.faulty_files import FaultyFiles
from topics.testing.rpc_pair import rpc_pair

NAME = "$test"
BYTES = b'\x00not JSON, "quoted"\r\n\xff'


def refused(error: Exception) -> None:
    raise error


def opened(files: FaultyFiles):
    return recover(files, FakeClock())


def write(store, *values: bytes):
    topic = hidden.open(store.engine, NAME)
    records = [RecordIn(msgspec.Raw(value)) for value in values]
    store.engine.append(NAME, Append(records, None, None, None, None, False), lambda _: None, refused)
    return topic


def values(store) -> list[bytes]:
    topic = store.engine.state.topics[NAME]
    found = []
    for chunk in topic.chunks:
        block = hidden.read_block(store, chunk)
        found += [hidden.data_of(block, index) for index in hidden.live_in(chunk)]
    return found


def test_no_request_can_name_it():
    assert not is_topic_name(NAME)


@pytest.mark.parametrize("stored", [False, True])
def test_its_records_come_back_byte_for_byte(stored):
    files = FaultyFiles()
    store = opened(files)
    topic = write(store, BYTES, b"", b"2" * 70_000)
    assert (topic.head_seq, topic.published) == (0, False)
    store.commit_all()
    assert (topic.head_seq, topic.config.durability) == (3, "fsync")
    if stored:
        store.checkpoint()
    store = opened(files.crash(1))
    assert values(store) == [BYTES, b"", b"2" * 70_000]
    assert hidden.open(store.engine, NAME) is store.engine.state.topics[NAME]


def test_it_counts_nowhere_and_ties_no_slot(tmp_path):
    board = Board.create(str(tmp_path / "board"), shards=1, gateways=1)
    files = FaultyFiles()
    store = opened(files)
    for _ in range(2):  # as it is made, and as it comes back
        engine = store.engine
        engine.quota = BoardQuota(board, 0, engine.holdings, max_topics=1, max_bytes=60)
        engine.quota.publish()
        write(store, b"x" * 1000)
        assert engine.holdings.pending_bytes == 0
        store.commit_all()
        engine.quota.publish()
        held = engine.holdings
        assert (held.topics, held.records, held.bytes) == (0, 0, 0)
        assert (board.total("topics"), board.total("records_live"), board.total("bytes_live")) == (0, 0, 0)
        assert list(engine.state.list_names("", "")) == []
        assert store.slots.all() == set()
        store.checkpoint()
        files = files.crash(1)
        store = opened(files)
    engine = store.engine
    engine.quota = BoardQuota(board, 0, engine.holdings, max_topics=1)
    engine.put_topic("t", ConfigPatch({}), lambda _: None, refused)  # the one topic that the cap allows
    engine.remove_topic(NAME, False, lambda _: None, refused)
    assert engine.holdings.topics == 1


def test_slots_of_other_topics_are_marked_as_ever():
    store = opened(FaultyFiles())
    name = next(f"t{n}" for n in range(10_000) if slot_of(f"t{n}") == slot_of(NAME))
    write(store, b"1")
    store.commit_all()
    store.engine.put_topic(name, ConfigPatch({}), lambda _: None, refused)
    store.commit_all()
    assert store.slots.all() == {slot_of(NAME)}


async def test_no_call_tells_of_it():
    shard, stop = Shard(FaultyFiles()), trio.Event()
    async with trio.open_nursery() as nursery, rpc_pair(shard.handlers) as connection:
        nursery.start_soon(shard.run, stop)
        await shard.ready.wait()
        assert shard.store is not None
        write(shard.store, b"1")
        await connection.call("put", {"topic": "t"}, b"")
        for method, body in (("state", b""), ("diff", b""), ("append", b'{"records":[{"data":1}]}'), ("put", b"")):
            with pytest.raises(TopicsError) as caught:
                await connection.call(method, {"topic": NAME}, body)
            assert caught.value.code == errors.INVALID_REQUEST
        assert (await connection.call("list", {})).head["names"] == ["t"]
        assert (await connection.call("health", {})).head["topics"] == 1
        metrics = (await connection.call("metrics", {"topics": 10})).head
        assert (metrics["topics"], metrics["by_class"], metrics["records_live"]) == (1, {"disk": 1}, 0)
        assert [row[0] for row in metrics["per_topic"]] == ["t"]
        stop.set()
