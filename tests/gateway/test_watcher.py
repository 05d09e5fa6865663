"""A live reader by itself: advice under pressure, and a client that does not take its frames."""

import json
from typing import Any

import pytest
import trio
import trio.testing

from tests.gateway.test_batches import block_of
from topics.core.blockform import encode_body
from topics.core.watching import Subscription
from topics.errors import NOT_READY, TopicsError
from topics.gateway import sse
from topics.gateway.batches import Batch, View
from topics.gateway.places import Phase, Place
from topics.gateway.sinks import QueueSink, TooSlow, drain
from topics.gateway.watch_stream import SseWatcher
from topics.limits import (
    STREAM_SEND_BUFFER_BYTES,
    THROTTLE_NOTICE_EVERY_MS,
    THROTTLE_NOTICE_MS,
    UNAVAILABLE_NOTICE_EVERY_MS,
    Limits,
)
from topics.rpc.open_calls import Reply

VIEW = View(Subscription())


def batch(from_seq: int, to_seq: int, throttle_ms: int = 0) -> Batch:
    count = to_seq - from_seq
    block = block_of(from_seq + 1, [1] * count, [0] * count)
    head = {
        "from_seq": from_seq,
        "to_seq": to_seq,
        "head_seq": to_seq,
        "earliest_seq": 1,
        "epoch": 1,
        "tombstone": None,
        "dead": [b""],
        "dedupe": True,
        "throttle_ms": throttle_ms,
    }
    return Batch("t", Reply(head, encode_body(block, 1, 1)))


class Taps:
    """Frames as they are pushed."""

    def __init__(self) -> None:
        self.stalled = False
        self.taken = 0
        self.frames: list[bytes] = []
        self.opened = trio.Event()

    def push(self, buffers: list[bytes]) -> None:
        self.frames.append(b"".join(buffers))

    async def flush_some(self) -> None:
        await self.opened.wait()
        self.stalled = False

    def advice(self) -> list[dict[str, Any]]:
        events = [frame for frame in self.frames if frame.startswith(b"event: error")]
        return [json.loads(frame.split(b"data: ")[1]) for frame in events]


@pytest.fixture
def live(nursery):
    """A watcher that is up to date in one topic."""
    sink = Taps()
    ended: list[Exception] = []
    watcher = SseWatcher(None, sse.RENDERER, sink, nursery, ended.append, Limits())  # type: ignore[arg-type]
    place = watcher.add("t", 0, 1, VIEW)
    watcher._behind.clear()
    place.phase = Phase.LIVE
    return watcher, place, sink, ended


async def test_readers_of_a_topic_that_had_to_wait_are_told_now_and_then(live, autojump_clock):
    watcher, place, sink, _ = live
    watcher.deliver(place, batch(0, 1, THROTTLE_NOTICE_MS - 1))
    assert not sink.advice()
    watcher.deliver(place, batch(1, 2, 1500))
    (advice,) = sink.advice()
    assert (advice["code"], advice["retry_after_ms"], advice["topics"]) == (429, 1500, ["t"])
    assert isinstance(advice["error"], str)
    assert sink.frames[-1].startswith(b"id: ")  # the stream goes on with its records
    watcher.deliver(place, batch(2, 3, 1500))
    assert len(sink.advice()) == 1
    await trio.sleep(THROTTLE_NOTICE_EVERY_MS / 1000)
    watcher.deliver(place, batch(3, 4, 700))
    assert [advice["retry_after_ms"] for advice in sink.advice()] == [1500, 700]
    assert place.seq == 4


class Refusing:
    """Feeds that cannot read what comes next, for a while."""

    def __init__(self, error: TopicsError) -> None:
        self.error: TopicsError | None = error

    async def read(self, place: Place, view: View, strong: bool) -> Reply:
        if self.error is not None:
            raise self.error
        found = {"from_seq": 0, "to_seq": 1, "head_seq": 2, "earliest_seq": 1, "epoch": 1, "tombstone": None}
        place.watcher.remove(place)
        return Reply(found, b"")


@pytest.mark.parametrize(
    ("reason", "told"), [("cold_unavailable", [(503, "cold_unavailable", ["t"])]), ("replaying", [])]
)
async def test_who_comes_to_records_that_cannot_be_read_is_told_and_goes_on_later(live, autojump_clock, reason, told):
    watcher, place, sink, ended = live
    feeds = watcher._feeds = Refusing(TopicsError(NOT_READY, "not now", {"reason": reason, "retry_after_ms": 1000}))
    watcher.fall_behind(place)
    await trio.sleep(UNAVAILABLE_NOTICE_EVERY_MS / 1000 - 1)
    assert [(each["code"], each["reason"], each["topics"]) for each in sink.advice()] == told
    await trio.sleep(UNAVAILABLE_NOTICE_EVERY_MS / 1000)
    assert len(sink.advice()) == 2 * len(told)
    assert not ended
    assert watcher.places
    feeds.error = None
    await trio.sleep(60)
    assert not watcher.places  # it was read for again


async def test_a_frame_that_is_not_taken_does_not_count_for_the_session(live, autojump_clock):
    watcher, place, sink, ended = live
    watcher.deliver(place, batch(0, 2))
    assert watcher.cursors(watcher.places.values()) == {"t": (2, 1)}
    sink.stalled = True
    watcher._send(place, 3, [b"frame"])
    assert watcher.cursors(watcher.places.values()) == {"t": (2, 1)}
    watcher.deliver(place, batch(3, 4))
    assert (place.phase, place.seq) == (Phase.BEHIND, 3)  # what comes now is not kept for it
    watcher.remove(place)
    await trio.sleep(Limits().slow_consumer_ms / 1000 + 1)
    assert [type(error) for error in ended] == [TooSlow]


async def test_any_frame_that_is_not_taken_is_waited_for(live, autojump_clock):
    """Also one that no record is in, with nothing behind it."""
    watcher, place, sink, ended = live
    sink.stalled = True
    watcher.topic_deleted(place)
    await trio.testing.wait_all_tasks_blocked()
    sink.opened.set()
    await trio.testing.wait_all_tasks_blocked()
    assert not sink.stalled
    assert not ended


async def test_slow_is_who_takes_nothing(autojump_clock):
    moved = 0
    sink = QueueSink(lambda: moved)
    sink.push([b"x" * (STREAM_SEND_BUFFER_BYTES + 1)])
    sink.push([b"y"])
    assert sink.stalled
    over = trio.Event()

    async def wait() -> None:
        with pytest.raises(TooSlow):
            await drain(sink, 10)
        over.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        for _ in range(5):
            await trio.sleep(9)
            moved += 1
        assert not over.is_set()
        await trio.sleep(21)
        assert over.is_set()


async def test_a_queue_that_is_emptied_goes_on():
    sink = QueueSink(lambda: 0)
    big = b"x" * (STREAM_SEND_BUFFER_BYTES + 1)
    sink.push([big])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(drain, sink, 10)
        await trio.testing.wait_all_tasks_blocked()
        assert await sink.next() == big
    assert not sink.stalled
    sink.end()
    assert await sink.next() is None
