"""Consumer groups of one shard: who waits is woken, the log stays small, what a crash takes from a topic."""

import threading
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
import trio

from tests.shards.queue_shard import QueueShard, serving
from topics import errors, limits
from topics.errors import TopicsError
from topics.shards.fetches import FetchLook
from topics.testing.faulty_files import FaultyFiles


class Waiting:
    """A fetch that waits at the shard."""

    def __init__(self) -> None:
        self.over = trio.Event()
        self.answer: dict[str, Any] | None = None
        self.error: TopicsError | None = None

    async def run(self, shard: QueueShard, body: dict[str, Any]) -> None:
        try:
            self.answer = await shard.call("group.fetch", "t", {"wait_ms": 30_000, **body}, group="g")
        except TopicsError as error:
            self.error = error
        self.over.set()


@asynccontextmanager
async def waiting(shard: QueueShard, **body: Any):
    async with trio.open_nursery() as nursery:
        fetch = Waiting()
        nursery.start_soon(fetch.run, shard, body)
        with trio.fail_after(60):
            while not shard.shard.store.engine.state.topics["t"].waiters:  # type: ignore[union-attr]
                await trio.sleep(0.001)
            assert not fetch.over.is_set()
            yield fetch
            await fetch.over.wait()


async def group(shard: QueueShard, call: str, **body: Any) -> dict[str, Any]:
    return await shard.call(f"group.{call}", "t", body, group="g")


async def test_what_comes_ends_the_wait():
    async with serving() as shard:
        await shard.call("put", "t", {})
        async with waiting(shard, consumer="a") as fetch:
            await shard.produce(1, topic="t")
        assert fetch.answer is not None
        assert [record["$seq"] for record in fetch.answer["records"]] == [1]


async def test_a_seek_back_ends_the_wait():
    async with serving() as shard:
        await shard.produce(1, 2, topic="t")
        async with waiting(shard, **{"from": "latest"}) as fetch:
            await group(shard, "seek", to=1)
        assert fetch.answer is not None
        assert [record["$seq"] for record in fetch.answer["records"]] == [2]
        assert fetch.answer["cursor_seq"] == 1


async def test_a_fetch_tells_the_cursor_that_it_has_read_from(monkeypatch):
    """Records may take a while to be read; another consumer may have acknowledged them by then."""
    answer = FetchLook.body

    def late(self, topic, plan, pieces):
        self._group.show(2)
        return answer(self, topic, plan, pieces)

    async with serving() as shard:
        await shard.produce(1, 2, topic="t")
        monkeypatch.setattr(FetchLook, "body", late)
        told = await group(shard, "fetch", **{"from": "earliest"})
        assert (told["cursor_seq"], [record["$seq"] for record in told["records"]]) == (0, [1, 2])


async def test_a_wait_goes_on_from_where_the_group_is_meanwhile():
    """What is acknowledged while it waits is not given again."""
    async with serving() as shard:
        await shard.call("put", "t", {})
        await shard.call("append", "t", {"records": [{"data": 1, "node": "me"}, {"data": 2, "node": "me"}]})
        async with waiting(shard, node="me") as fetch:
            await group(shard, "ack", seq=2)
            await shard.produce(3, topic="t")
        assert fetch.answer is not None
        assert (fetch.answer["cursor_seq"], [record["$seq"] for record in fetch.answer["records"]]) == (2, [3])


async def test_a_new_consumer_ends_the_wait_of_the_old_one():
    async with serving() as shard:
        await shard.call("put", "t", {})
        async with waiting(shard, consumer="old") as fetch:
            await group(shard, "fetch", consumer="new")
        assert fetch.error is not None
        assert fetch.error.code == errors.TAKEN_OVER


async def test_a_stream_that_comes_back_after_its_shard_was_away_takes_over_from_nobody():
    """Even if so many have read since that the group has forgotten it."""
    async with serving() as shard:
        await shard.call("put", "t", {})
        for n in range(limits.GROUP_LEFT_MAX + 2):
            await group(shard, "fetch", consumer=f"c{n}")
        head = {"topic": "t", "group": "g", "consumer": "c0"}
        with pytest.raises(TopicsError) as refused:
            async with shard.connection.stream("group.attach", head, credits=1) as stream:
                await anext(stream)
        assert refused.value.code == errors.TAKEN_OVER
        async with shard.connection.stream("group.attach", head | {"start": "earliest"}, credits=1) as stream:
            assert (await anext(stream)).head["cursor"] == 0  # a new stream does


@pytest.mark.parametrize("what", ["group", "topic"])
async def test_a_removal_ends_the_wait(what):
    async with serving() as shard:
        await shard.call("put", "t", {})
        async with waiting(shard) as fetch:
            if what == "group":
                await group(shard, "remove")
            else:
                await shard.call("remove", "t")
        assert fetch.error is not None
        assert fetch.error.code == (errors.GROUP_NOT_FOUND if what == "group" else errors.TOPIC_NOT_FOUND)


async def test_a_topic_that_takes_the_place_of_another_has_no_groups():
    async with serving() as shard:
        await shard.produce(1, 2, 3, topic="t")
        await group(shard, "put", **{"from": "latest"})
        await shard.call("remove", "t")
        await shard.produce(1, topic="t")
        assert (await shard.call("group.list", "t"))["groups"] == []
        assert (await group(shard, "fetch"))["cursor_seq"] == 0


async def test_many_acks_do_not_fill_the_disk_and_stand_after_a_crash(monkeypatch):
    monkeypatch.setattr(limits, "GROUP_EVENTS_MIN", 50)
    files = FaultyFiles()
    acks = 3 * limits.GROUP_EVENTS_MIN + 20
    async with serving(files, crash=True) as shard:
        await shard.produce(*range(acks), topic="t")
        await group(shard, "put")
        await shard.call("group.put", "t", {}, group="other")
        await shard.call("group.put", "t", {}, group="gone")
        await shard.call("group.remove", "t", group="gone")
        for seq in range(1, acks + 1):
            await group(shard, "ack", seq=seq)
        store = shard.shard.store
        assert store is not None
        assert store.engine.state.topics["$groups"].count <= limits.GROUP_EVENTS_MIN + 1
    async with serving(files.crash(0, power_loss=True)) as shard:
        listed = (await shard.call("group.list", "t"))["groups"]
        assert [(one["group"], one["cursor_seq"]) for one in listed] == [("g", acks), ("other", 0)]


@pytest.mark.parametrize("events", range(8))
async def test_a_log_is_written_anew_a_few_groups_an_event_whatever_comes_between(monkeypatch, events):
    """And whenever it crashes."""
    monkeypatch.setattr(limits, "GROUP_EVENTS_MIN", 10)
    monkeypatch.setattr(limits, "GROUP_EVENTS_RECORD", 2)
    files = FaultyFiles()
    async with serving(files, crash=True) as shard:
        await shard.produce(*range(20), topic="t")
        for n in range(10):
            await shard.call("group.put", "t", {}, group=f"g{n}")
        store = shard.shard.store
        assert store is not None
        log = store.engine.state.topics["$groups"]
        before = log.head_seq
        changes = [
            ("seek", "g9", {"to": 5}),  # begins it: g0 and g1
            ("remove", "g0", {}),  # which has had its turn
            ("remove", "g8", {}),  # and which has not
            ("put", "new", {}),
            ("seek", "g1", {"to": 7}),
            ("seek", "new", {"to": 8}),
            ("put", "g8", {}),
        ]
        for number, (method, name, body) in enumerate(changes[:events], 1):
            await shard.call(f"group.{method}", "t", body, group=name)
            assert log.head_seq <= before + 2 * number, "a record for a few groups, and one for the event"
        assert (log.count < log.head_seq) == (events > 4), "what was before is gone when all have had their turn"
        listed = (await shard.call("group.list", "t"))["groups"]
    async with serving(files.crash(0, power_loss=True)) as shard:
        again = (await shard.call("group.list", "t"))["groups"]
        assert [(one["group"], one["cursor_seq"]) for one in again] == [
            (one["group"], one["cursor_seq"]) for one in listed
        ]


async def test_a_log_written_anew_forgets_topics_that_are_gone(monkeypatch):
    monkeypatch.setattr(limits, "GROUP_EVENTS_MIN", 50)
    async with serving() as shard:
        for name in ("t", "gone"):
            await shard.produce(1, topic=name)
            await shard.call("group.put", name, {}, group="g")
        await shard.call("remove", "gone")
        for n in range(limits.GROUP_EVENTS_MIN):
            await group(shard, "seek", to=n % 2)
        store = shard.shard.store
        assert store is not None
        assert store.engine.state.topics["$groups"].count == 1 + 2  # written anew, and two that came later


async def test_a_shard_has_a_limit_of_groups(monkeypatch):
    monkeypatch.setattr(limits, "GROUPS_PER_SHARD_MAX", 2)
    async with serving() as shard:
        for name in ("t", "u", "v"):
            await shard.call("put", name, {})
        await shard.call("group.put", "t", {}, group="g")
        await shard.call("group.put", "u", {}, group="g")
        refused = await shard.refused("group.put", "v", {}, group="g")
        assert (refused.code, refused.detail["limit"]) == ("throttled", "groups_per_shard")
        await shard.call("remove", "u")
        await shard.call("group.put", "v", {}, group="g")


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk"])
async def test_a_crash_that_takes_records_leaves_no_cursor_beyond_the_end(durability):
    files = FaultyFiles()
    async with serving(files, crash=True) as shard:
        await shard.call("put", "t", {"durability": durability})
        await shard.produce(*range(20), topic="t")
        await group(shard, "put", **{"from": "latest"})
        await shard.produce(*range(5), topic="t")
    async with serving(files.crash(0, power_loss=True)) as shard:
        state = await group(shard, "state")
        assert state["cursor_seq"] <= state["head_seq"]
        assert state["cursor_seq"] == (20 if durability != "ephemeral" else min(20, state["head_seq"]))
        (seq,) = await shard.produce("new", topic="t")
        page = await group(shard, "fetch")
        while not page["caught_up"]:  # what was lost comes first, as tombstones
            await group(shard, "ack", seq=page["next_from_seq"])
            page = await group(shard, "fetch")
        assert [record["$seq"] for record in page["records"]][-1] == seq


async def test_a_full_disk_refuses_an_ack_and_nothing_has_moved():
    async with serving() as shard:
        await shard.produce(1, 2, topic="t")
        await group(shard, "put")
        store = shard.shard.store
        assert store is not None
        store.engine.space_bytes = 0
        refused = await shard.refused("group.ack", "t", {"seq": 1}, group="g")
        assert refused.code == errors.STORAGE_FULL
        assert (await group(shard, "state"))["cursor_seq"] == 0
        assert (await group(shard, "fetch"))["next_from_seq"] == 2  # reads go on


async def test_nothing_is_told_before_it_is_durable(monkeypatch):
    """Also not to somebody who asks for the same again, as after a lost answer."""
    async with serving() as shard:
        await shard.produce(1, 2, 3, topic="t")
        await group(shard, "put")
        store = shard.shard.store
        assert store is not None
        synced, sync = threading.Event(), store.sync_log
        monkeypatch.setattr(store, "sync_log", lambda: (synced.wait(30), sync())[1])
        answers: list[dict[str, Any]] = []

        async def ack(seq: int) -> None:
            answers.append(await group(shard, "ack", seq=seq))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ack, 2)
            while store.engine.state.topics["t"].groups["g"].cursor != 2:  # type: ignore[index]
                await trio.sleep(0.001)
            nursery.start_soon(ack, 2)
            nursery.start_soon(ack, 1)
            for _ in range(20):
                assert (await group(shard, "state"))["cursor_seq"] == 0
                assert (await shard.call("state", "t"))["groups"]["g"]["lag"] == 3
                assert len((await group(shard, "fetch"))["records"]) == 3
            assert answers == []
            synced.set()
        assert [(answer["cursor_seq"], answer["moved"]) for answer in answers].count((2, True)) == 1
        assert {answer["cursor_seq"] for answer in answers} == {2}
        assert [record["$seq"] for record in (await group(shard, "fetch"))["records"]] == [3]


async def test_what_is_stored_of_a_group():
    async with serving() as shard:
        await shard.produce(1, 2, topic="t")
        await group(shard, "fetch", consumer="a")
        await group(shard, "ack", seq=2)
        await group(shard, "remove")
        store = shard.shard.store
        assert store is not None
        (chunk,) = store.engine.state.topics["$groups"].chunks
        assert chunk.block is not None
        text = bytes(chunk.block.text)
        topic = store.engine.state.topics["t"].id
        now = shard.clock.now_ms()
        for event in (
            [1, topic, now, "g", [0, "a", [], now, now]],
            [2, topic, now, "g", [2]],
            [3, topic, now, "g", []],
        ):
            assert msgspec.msgpack.encode([event]) in text
