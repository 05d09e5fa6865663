"""Watch sessions over RPC: who gets which cursors, when a session ends, and what restarts leave of it."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from topics import errors, limits
from topics.board import Board
from topics.errors import TopicsError
from topics.limits import Limits
from topics.rpc.connection import Connection
from topics.rpc.open_calls import Reply, Stream
from topics.shards.boardslot import BoardSlot
from topics.shards.session import Session, decode_definition, decode_saved
from topics.shards.shard import Shard
from topics.testing.fake_clock import FakeClock
from topics.testing.faulty_files import FaultyFiles
from topics.testing.rpc_pair import rpc_pair, until
from topics.testing.shard_process import ShardProcess

TTL_MS = 300_000
DEFINITION = b'{"topics":\xff'  # opaque


class Gateway:
    """The calls a gateway makes."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    async def create(self, wid: str = "w", *, body: bytes = DEFINITION, owner: str = "", **cursors: Any) -> None:
        reply = await self.connection.call("watch.create", {"wid": wid, "owner": owner, "cursors": cursors}, body)
        assert (reply.head, reply.body) == ({}, b"")

    def attach(self, wid: str = "w", stream: str = "s1", *, owner: str = "*", cursors: Any = None) -> Stream:
        head = {"wid": wid, "owner": owner, "stream": stream}
        head |= {"cursors": cursors} if cursors is not None else {}
        return self.connection.stream("watch.attach", head, credits=1)

    async def detach(self, wid: str = "w", stream: str = "s1", **cursors: Any) -> None:
        reply = await self.connection.call("watch.detach", {"wid": wid, "stream": stream, "cursors": cursors})
        assert reply.head == {}

    async def progress(self, wid: str = "w", stream: str = "s1", **cursors: Any) -> None:
        reply = await self.connection.call("watch.progress", {"sessions": {wid: [stream, cursors]}})
        assert reply.head == {}

    async def look(self, wid: str = "w", stream: str = "look") -> dict[str, Any]:
        """What a stream would be told, without leaving a trace of it but an access."""
        async with self.attach(wid, stream) as opened:
            told = (await item(opened)).head
            if told["clean"]:
                await self.detach(wid, stream, **told["cursors"])
        return told

    async def refusal(self, wid: str = "w", **head: Any) -> TopicsError:
        with pytest.raises(TopicsError) as caught:
            async with self.attach(wid, **head) as stream:
                await item(stream)
        return caught.value


async def item(stream: Stream) -> Reply:
    with trio.fail_after(60):
        return await anext(stream)


async def soon(condition: Callable[[], object]) -> None:
    with trio.fail_after(60):
        await until(condition)


@asynccontextmanager
async def begun(gateway: Gateway, stream: str) -> AsyncIterator[Stream]:
    async with gateway.attach("w", stream) as opened:
        await item(opened)
        yield opened


async def end(stream: Stream) -> dict[str, Any]:
    """The final reply of a stream that has no more items."""
    with trio.fail_after(60), pytest.raises(StopAsyncIteration):
        await anext(stream)
    assert stream.result is not None
    return stream.result.head


class Life:
    """Lives of one shard on a faulty disk."""

    def __init__(self) -> None:
        self.disk = FaultyFiles()
        self.clock = FakeClock()
        self.slot: BoardSlot | None = None
        self.shard: Shard

    @asynccontextmanager
    async def run(self, *, killed: bool = False) -> AsyncIterator[Gateway]:
        """One life. It ends with an orderly stop, or with the power going off."""
        self.shard = Shard(self.disk, Limits(), self.clock, self.slot)
        stop = trio.Event()
        async with trio.open_nursery() as nursery, rpc_pair(self.shard.handlers) as connection:
            nursery.start_soon(self.shard.run, stop)
            await self.shard.ready.wait()
            yield Gateway(connection)
            if killed:
                nursery.cancel_scope.cancel()
            stop.set()
        if killed:
            assert self.shard.committer is not None
            self.shard.committer.stop()
        self.disk = self.disk.crash(7, power_loss=killed)

    @property
    def sessions(self) -> Any:
        assert self.shard.service is not None
        return self.shard.service.sessions

    async def durable(self) -> None:
        assert self.shard.committer is not None
        await self.shard.committer.flushed()


@pytest.fixture
def life() -> Life:
    return Life()


@pytest.fixture
async def gateway(life: Life) -> AsyncIterator[Gateway]:
    async with life.run() as gateway:
        yield gateway


# --- one stream after the other -----------------------------------------------------------------------------------


async def test_a_stream_is_told_where_to_begin(life: Life, gateway: Gateway) -> None:
    await gateway.create(jobs=[5, 1], events=[0, 3])
    created_ms = life.clock.now_ms()
    life.clock.advance(1000)
    async with gateway.attach() as stream:
        told = await item(stream)
    assert told.head == {"cursors": {"jobs": [5, 1], "events": [0, 3]}, "clean": True, "created_ms": created_ms}
    assert told.body == DEFINITION


async def test_a_stream_that_detaches_leaves_its_final_cursors(gateway: Gateway) -> None:
    await gateway.create(jobs=[5, 1], gone=[1, 1])
    async with gateway.attach() as stream:
        await item(stream)
        await gateway.progress(jobs=[6, 1])
        await gateway.detach(jobs=[9, 1])
        assert await end(stream) == {"reason": "detached"}
    assert await gateway.look() == {**(await gateway.look()), "cursors": {"jobs": [9, 1]}, "clean": True}


async def test_a_stream_that_ends_without_a_word_leaves_what_it_told_last(life: Life, gateway: Gateway) -> None:
    await gateway.create(jobs=[5, 1], events=[7, 2])
    async with gateway.attach() as stream:
        await item(stream)
        await gateway.progress(jobs=[6, 1])
        await gateway.progress(jobs=[8, 1])
    told = await gateway.look()
    assert (told["cursors"], told["clean"]) == ({"jobs": [8, 1], "events": [7, 2]}, False)


async def test_a_lost_connection_ends_the_stream_too(life: Life, gateway: Gateway) -> None:
    await gateway.create(jobs=[5, 1])
    async with rpc_pair(life.shard.handlers) as other, Gateway(other).attach() as stream:
        await item(stream)
        await Gateway(other).progress(jobs=[6, 1])
        await other.aclose()
    await soon(lambda: life.sessions._idle)
    told = await gateway.look()
    assert (told["cursors"], told["clean"]) == ({"jobs": [6, 1]}, False)


async def test_only_the_stream_that_has_the_session_moves_it(gateway: Gateway) -> None:
    await gateway.create(jobs=[5, 1])
    await gateway.progress(jobs=[6, 1])
    await gateway.detach(jobs=[6, 1])
    await gateway.progress("unknown", jobs=[6, 1])
    await gateway.detach("unknown", jobs=[6, 1])
    async with gateway.attach() as stream:
        assert (await item(stream)).head["cursors"] == {"jobs": [5, 1]}
        await gateway.progress("w", "another", jobs=[6, 1])
        await gateway.detach("w", "another", jobs=[6, 1])
        await gateway.detach(jobs=[7, 1])
        await gateway.progress(jobs=[8, 1])
        await gateway.detach(jobs=[8, 1])
    assert (await gateway.look())["cursors"] == {"jobs": [7, 1]}


async def test_a_session_opens_to_its_owner(gateway: Gateway) -> None:
    await gateway.create("owned", owner="key-a")
    await gateway.create("open")
    assert (await gateway.refusal("owned", owner="key-b")).code == errors.UNAUTHORIZED
    assert (await gateway.refusal("owned", owner="")).code == errors.UNAUTHORIZED
    for wid, owner in (("owned", "key-a"), ("owned", "*"), ("open", "key-b"), ("open", "")):
        async with gateway.attach(wid, owner=owner) as stream:
            await item(stream)


async def test_heads_and_sizes_are_checked(gateway: Gateway) -> None:
    await gateway.create("largest", body=b"x" * limits.WATCH_DEFINITION_BYTES)
    async with gateway.attach("largest") as stream:
        assert (await item(stream)).body == b"x" * limits.WATCH_DEFINITION_BYTES
    for code, head, size in (
        (errors.PAYLOAD_TOO_LARGE, {}, limits.WATCH_DEFINITION_BYTES + 1),
        (errors.INVALID_REQUEST, {"wid": "x" * (limits.WATCH_ID_MAX + 1)}, 1),
        (errors.INVALID_REQUEST, {"wid": ""}, 1),
        (errors.INVALID_REQUEST, {"wid": "largest"}, 1),
        (errors.INVALID_REQUEST, {"cursors": {"t": [-1, 0]}}, 1),
        (errors.INVALID_REQUEST, {"cursors": {"t": 1}}, 1),
    ):
        whole = {"wid": "w", "owner": "", "cursors": {}, **head}
        with pytest.raises(TopicsError) as caught:
            await gateway.connection.call("watch.create", whole, b"x" * size)
        assert caught.value.code == code
    assert (await gateway.refusal("w")).code == errors.NOT_FOUND


async def test_a_definition_comes_back_from_disk(life: Life, gateway: Gateway) -> None:
    await gateway.create("a", body=b"A" * 70_000)
    await gateway.create("b", body=b"B")
    await gateway.connection.call("checkpoint", {})
    assert life.shard.store is not None
    for chunk in life.shard.store.engine.state.topics["$sessions"].chunks:
        assert chunk.file is not None
        chunk.block = None
    for wid, body in (("a", b"A" * 70_000), ("b", b"B")):
        async with gateway.attach(wid) as stream:
            assert (await item(stream)).body == body


# --- two streams --------------------------------------------------------------------------------------------------


async def test_a_second_stream_takes_over_with_the_firsts_final_cursors(gateway: Gateway) -> None:
    await gateway.create(jobs=[5, 1])
    async with begun(gateway, "s1") as first, gateway.attach("w", "s2") as second:
        assert await end(first) == {"reason": "taken_over"}
        await gateway.progress("w", "s1", jobs=[6, 1])  # it is not on the session any more
        await gateway.detach("w", "s1", jobs=[9, 1])
        told = (await item(second)).head
        assert (told["cursors"], told["clean"]) == ({"jobs": [9, 1]}, True)
        await gateway.detach("w", "s1", jobs=[99, 1])
        await gateway.progress("w", "s2", jobs=[10, 1])
    told = await gateway.look()
    assert (told["cursors"], told["clean"]) == ({"jobs": [10, 1]}, False)


async def test_a_first_stream_that_stays_silent_is_not_waited_for_long(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "WATCH_TAKEOVER_MS", 20)
    await gateway.create(jobs=[5, 1])
    async with gateway.attach("w", "s1") as first:
        await item(first)
        await gateway.progress(jobs=[6, 1])
        async with gateway.attach("w", "s2") as second:
            told = (await item(second)).head
            assert (told["cursors"], told["clean"]) == ({"jobs": [6, 1]}, False)
            await gateway.detach("w", "s1", jobs=[99, 1])  # too late
    assert (await gateway.look())["cursors"] == {"jobs": [6, 1]}


async def test_a_third_stream_before_the_second_could_begin(gateway: Gateway) -> None:
    await gateway.create(jobs=[5, 1])
    async with begun(gateway, "s1") as first, gateway.attach("w", "s2") as second:
        assert await end(first) == {"reason": "taken_over"}
        async with gateway.attach("w", "s3") as third:
            assert await end(second) == {"reason": "taken_over"}
            await gateway.detach("w", "s2", jobs=[1, 1])  # it never had the session
            await gateway.detach("w", "s1", jobs=[9, 1])
            told = (await item(third)).head
            assert (told["cursors"], told["clean"]) == ({"jobs": [9, 1]}, True)


async def test_final_cursors_count_although_the_second_stream_gave_up(life: Life, gateway: Gateway) -> None:
    await gateway.create(jobs=[5, 1])
    async with gateway.attach("w", "s1") as first:
        await item(first)
        async with gateway.attach("w", "s2"):
            assert await end(first) == {"reason": "taken_over"}
        await soon(lambda: life.sessions._idle)
        await gateway.detach("w", "s1", jobs=[9, 1])
    told = await gateway.look()
    assert (told["cursors"], told["clean"]) == ({"jobs": [9, 1]}, True)


async def test_a_stream_that_never_began_changes_nothing(
    life: Life, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    await gateway.create(jobs=[5, 1])
    async with begun(gateway, "s1") as first, gateway.attach("w", "s2"):
        assert await end(first) == {"reason": "taken_over"}
        await gateway.progress("w", "s2", jobs=[9, 1])
        await gateway.detach("w", "s2", jobs=[9, 1])
    monkeypatch.setattr(limits, "WATCH_TAKEOVER_MS", 1)  # nobody tells the first one's cursors
    told = await gateway.look()
    assert (told["cursors"], told["clean"]) == ({"jobs": [5, 1]}, False)


async def test_a_stream_that_goes_on_brings_its_cursors(gateway: Gateway) -> None:
    await gateway.create(jobs=[5, 1], events=[1, 1])
    async with gateway.attach("w", "s1", cursors={"jobs": [8, 1]}) as stream:
        assert (await item(stream)).head["cursors"] == {"jobs": [8, 1]}
        async with gateway.attach("w", "s1", cursors={"jobs": [9, 1]}) as again:  # its first call may not be lost yet
            assert (await item(again)).head["cursors"] == {"jobs": [9, 1]}
            assert await end(stream) == {"reason": "taken_over"}
            await gateway.progress(jobs=[10, 1])
    assert (await gateway.look())["cursors"] == {"jobs": [10, 1]}


async def test_a_stream_that_goes_on_gives_way_to_a_newer_one(gateway: Gateway) -> None:
    await gateway.create(jobs=[5, 1])
    async with gateway.attach("w", "new") as new:
        await item(new)
        async with gateway.attach("w", "old", cursors={"jobs": [8, 1]}) as old:
            assert await end(old) == {"reason": "taken_over"}
        await gateway.progress("w", "new", jobs=[6, 1])
    assert (await gateway.look())["cursors"] == {"jobs": [6, 1]}


# --- the end of a session -----------------------------------------------------------------------------------------


async def test_an_idle_session_is_over_after_its_ttl(life: Life, gateway: Gateway) -> None:
    await gateway.create()
    life.clock.advance(TTL_MS)
    await gateway.look()  # still there, and this is an access
    life.clock.advance(TTL_MS)
    await gateway.look()
    life.clock.advance(TTL_MS + 1)
    assert (await gateway.refusal()).code == errors.NOT_FOUND
    await gateway.create()  # the wid is free again


async def test_a_session_with_a_stream_is_never_over(life: Life, gateway: Gateway) -> None:
    await gateway.create("idle")
    await gateway.create(jobs=[5, 1])
    async with gateway.attach() as stream:
        await item(stream)
        life.clock.advance(10 * TTL_MS)
        await gateway.create("other")
        await soon(lambda: set(life.sessions._sessions) == {"w", "other"})
        await gateway.progress(jobs=[6, 1])
    await soon(lambda: life.sessions._idle)
    assert (await gateway.look())["cursors"] == {"jobs": [6, 1]}


async def test_sessions_that_are_over_go_without_a_call(life: Life, gateway: Gateway) -> None:
    for n in range(limits.WATCH_COLLECT_MAX // 100):
        await gateway.create(f"w{n}")
    life.clock.advance(TTL_MS + 1)
    with trio.fail_after(60):
        while life.sessions._sessions:
            await trio.sleep(0.01)
    await life.durable()
    assert life.shard.store is not None
    assert life.shard.store.engine.state.topics["$sessions"].count == 0
    held = life.shard.store.engine.holdings
    assert (held.sessions, held.sessions_leaving) == (0, 0)


async def test_many_that_are_over_go_a_few_a_step(
    life: Life, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(7):
        await gateway.create(f"w{n}")
    monkeypatch.setattr(limits, "WATCH_COLLECT_MAX", 2)
    removed: list[int] = []
    really = life.sessions._remove

    def remove(sessions: list[Session]) -> None:
        removed.append(len(sessions))
        really(sessions)

    monkeypatch.setattr(life.sessions, "_remove", remove)
    life.clock.advance(TTL_MS + 1)
    await soon(lambda: not life.sessions._sessions)
    assert removed == [2, 2, 2, 1]


@pytest.fixture
def only_who_comes_collects(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the start of a shard on, so not in the test itself."""
    monkeypatch.setattr(limits, "WATCH_COLLECT_MAX", 2)
    monkeypatch.setattr(limits, "WATCH_COLLECT_MS", 3_600_000)


async def test_many_are_removed_in_turns_and_none_is_found_meanwhile(
    only_who_comes_collects: None, life: Life, gateway: Gateway
) -> None:
    for n in range(5):
        await gateway.create(f"w{n}")
    life.clock.advance(TTL_MS + 1)
    assert (await gateway.refusal("w4")).code == errors.NOT_FOUND
    assert "w4" in life.sessions._sessions
    await gateway.create("new")
    assert set(life.sessions._sessions) == {"w4", "new"}


# --- caps ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def board(tmp_path: Path) -> Board:
    return Board.create(str(tmp_path / "board"), shards=2, gateways=1)


async def throttled(gateway: Gateway, wid: str) -> None:
    with pytest.raises(TopicsError) as caught:
        await gateway.create(wid)
    assert caught.value.code == errors.THROTTLED
    assert caught.value.detail == {"limit": "max_watch_sessions", "max": 3, "retry_after_ms": 1000}


async def test_sessions_are_capped_over_all_shards(board: Board) -> None:
    lives = [Life(), Life()]
    for index, life in enumerate(lives):
        life.slot = BoardSlot(board, index, max_sessions=3)
    async with lives[0].run() as one, lives[1].run() as two:
        await one.create("a")
        await two.create("b")
        async with one.attach("a") as stream:
            await item(stream)
            await two.create("c")
            assert board.total("sessions") == 3
            await throttled(one, "d")
            await throttled(two, "d")
            lives[1].clock.advance(TTL_MS + 1)
            await two.create("d")  # which removed b and c first
            await lives[1].durable()
            await one.create("e")
            await throttled(one, "f")
            assert board.total("sessions") == 3


async def test_a_session_counts_until_its_removal_is_durable(board: Board, life: Life) -> None:
    life.slot = BoardSlot(board, 0, max_sessions=3)
    board.shard(1).set("counted", 1)
    async with life.run() as gateway:
        await gateway.create("a")
        await gateway.create("b")
        life.clock.advance(TTL_MS + 1)
        life.sessions.collect()
        assert life.shard.store is not None
        engine = life.shard.store.engine
        engine.quota.publish()
        assert (engine.holdings.sessions, board.total("sessions")) == (0, 2)
        await life.durable()
        engine.quota.publish()
        assert board.total("sessions") == 0


async def test_sessions_of_a_shard_that_is_down_count(board: Board, life: Life) -> None:
    life.slot = BoardSlot(board, 0, max_sessions=3)
    board.shard(1).set("counted", 1)
    async with life.run(killed=True) as gateway:
        await gateway.create("a")
        await gateway.create("b")
    assert board.total("sessions") == 2
    async with life.run() as gateway:
        assert board.total("sessions") == 2
        await gateway.create("c")
        await throttled(gateway, "d")


async def test_a_refused_session_leaves_nothing_behind(life: Life, gateway: Gateway) -> None:
    assert life.shard.store is not None
    engine = life.shard.store.engine
    await gateway.create("first")
    engine.space_bytes = 0
    with pytest.raises(TopicsError) as caught:
        await gateway.create()
    assert caught.value.code == errors.STORAGE_FULL
    assert engine.holdings.sessions == 1
    engine.space_bytes = None
    await gateway.create()


# --- restarts -----------------------------------------------------------------------------------------------------


async def test_an_orderly_stop_keeps_cursors_and_how_the_stream_ended(life: Life) -> None:
    async with life.run() as gateway:
        for wid in ("never", "detached", "cut-off", "open"):
            await gateway.create(wid, body=wid.encode(), jobs=[5, 1])
        for wid in ("detached", "cut-off"):
            async with gateway.attach(wid) as stream:
                await item(stream)
                await gateway.progress(wid, jobs=[6, 1])
                if wid == "detached":
                    await gateway.detach(wid, jobs=[7, 1])
        async with gateway.attach("open") as stream:
            await item(stream)
            await gateway.progress("open", jobs=[8, 1])
            await gateway.connection.call("health", {})
            await stop_in_order(life)
    expected = {"never": (5, True), "detached": (7, True), "cut-off": (6, False), "open": (8, False)}
    for _ in range(2):  # a second stop, after a life without any stream, keeps it as well
        async with life.run():
            found = life.sessions._sessions.items()
            assert {wid: (s.cursors["jobs"][0], s.clean) for wid, s in found} == expected
    async with life.run() as gateway:
        for wid, (seq, clean) in expected.items():
            async with gateway.attach(wid) as stream:
                told = await item(stream)
                assert (told.head["cursors"], told.head["clean"]) == ({"jobs": [seq, 1]}, clean)
                assert told.body == wid.encode()


async def stop_in_order(life: Life) -> None:
    """What the shard does at SIGTERM before its streams are cut off."""
    await life.shard._drain()


async def test_a_killed_shard_knows_what_was_saved_last(life: Life) -> None:
    async with life.run(killed=True) as gateway:
        await gateway.create(jobs=[5, 1])
        async with gateway.attach() as stream:
            await item(stream)
            await gateway.detach(jobs=[9, 1])
    async with life.run() as gateway:
        told = await gateway.look()
        assert (told["cursors"], told["clean"]) == ({"jobs": [5, 1]}, False)
        async with gateway.attach(cursors={"jobs": [9, 1]}) as stream:  # the live stream brings them back
            await item(stream)
            await gateway.detach(jobs=[10, 1])
    async with life.run(killed=True) as gateway, gateway.attach() as stream:
        told = (await item(stream)).head
        assert (told["cursors"], told["clean"]) == ({"jobs": [10, 1]}, True)
    async with life.run():
        pass  # an orderly stop does not make it clean again
    async with life.run(killed=True) as gateway:
        told = await gateway.look()
        assert (told["cursors"], told["clean"]) == ({"jobs": [10, 1]}, False)


async def test_a_removed_session_does_not_come_back(life: Life) -> None:
    async with life.run() as gateway:
        for wid in ("a", "b"):
            await gateway.create(wid)
            async with gateway.attach(wid) as stream:
                await item(stream)
    async with life.run(killed=True) as gateway:  # now cursors of both are in the book
        life.clock.advance(TTL_MS)
        await gateway.look("b")
        life.clock.advance(1)
        assert (await gateway.refusal("a")).code == errors.NOT_FOUND
        await life.durable()
    async with life.run() as gateway:
        assert set(life.sessions._sessions) == {"b"}
        life.clock.advance(TTL_MS)  # the restart was an access
        await gateway.look("b")


async def test_many_sessions_are_saved(life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "WATCH_SAVE_BYTES", 2000)
    async with life.run() as gateway:
        for n in range(300):
            await gateway.create(f"w{n}", jobs=[n, 1])
            async with gateway.attach(f"w{n}") as stream:
                await item(stream)
                await gateway.detach(f"w{n}", jobs=[n + 1, 1])
    async with life.run():
        assert {wid: s.cursors["jobs"][0] for wid, s in life.sessions._sessions.items()} == {
            f"w{n}": n + 1 for n in range(300)
        }
        assert all(session.clean for session in life.sessions._sessions.values())


async def test_cursors_that_could_not_be_saved_are_not_called_clean(
    life: Life, caplog: pytest.LogCaptureFixture
) -> None:
    async with life.run() as gateway:
        await gateway.create(jobs=[5, 1])
        async with gateway.attach() as stream:
            await item(stream)
            await gateway.detach(jobs=[9, 1])
        assert life.shard.store is not None
        life.shard.store.engine.space_bytes = 0
        await stop_in_order(life)
        assert "not saved" in caplog.text
        life.shard.store.engine.space_bytes = None
        life.sessions._sessions.clear()  # or the stop that ends this life would save them after all
    async with life.run() as gateway:
        told = await gateway.look()
        assert (told["cursors"], told["clean"]) == ({"jobs": [5, 1]}, False)


async def test_a_shard_that_stops_takes_no_more_calls(life: Life, gateway: Gateway) -> None:
    await gateway.create()
    async with gateway.attach() as stream:
        await item(stream)
        await stop_in_order(life)
        for call in (gateway.create("new"), gateway.detach(), gateway.progress(), gateway.look()):
            with pytest.raises(TopicsError) as caught:
                await call
            assert caught.value.code == errors.SHUTTING_DOWN


async def test_a_stream_that_waits_while_the_shard_stops_is_refused(life: Life, gateway: Gateway) -> None:
    await gateway.create()
    async with begun(gateway, "s1") as first, gateway.attach("w", "s2") as second:
        assert await end(first) == {"reason": "taken_over"}
        await stop_in_order(life)
        life.sessions._sessions["w"].left.set()
        with pytest.raises(TopicsError) as caught:
            await item(second)
        assert caught.value.code == errors.SHUTTING_DOWN


def test_the_stored_forms_are_these() -> None:
    session = Session("w", "key", 1000, {"jobs": (5, 2)})
    definition = bytes.fromhex("94cd03e8a36b657981a46a6f6273920502c40364ef66")
    assert session.definition(b"d\xeff") == definition
    assert decode_definition(definition).definition == b"d\xeff"
    saved = bytes.fromhex("92c381a46a6f6273920502")
    assert session.saved() == saved
    assert decode_saved(saved).cursors == session.cursors == {"jobs": (5, 2)}


async def test_real_processes(shard: ShardProcess) -> None:
    shard.start()
    async with shard.connected() as client:
        gateway = Gateway(client.connection)
        await gateway.create(jobs=[5, 1])
        shard.kill()
    shard.start()
    async with shard.connected() as client:
        gateway = Gateway(client.connection)
        async with gateway.attach() as stream:
            told = await item(stream)
            assert (told.head["cursors"], told.head["clean"], told.body) == ({"jobs": [5, 1]}, False, DEFINITION)
            await gateway.detach(jobs=[9, 1])
        assert shard.stop() == 0
    shard.start()
    async with shard.connected() as client:
        told_again = await Gateway(client.connection).look()
        assert (told_again["cursors"], told_again["clean"]) == ({"jobs": [9, 1]}, True)
    shard.kill()
