"""A live reader with credits: whatever comes, and whenever it grants more, it gets all it asked for and never more."""

import json
from functools import partial
from typing import Any

import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.gateway.test_batches import block_of
from topics.core.blockform import encode_body
from topics.core.watching import Subscription
from topics.gateway import ws_frames
from topics.gateway.feeds import Feeds
from topics.gateway.watcher import Watcher
from topics.limits import Limits
from topics.rpc.open_calls import Reply

steps = st.lists(
    st.tuples(st.sampled_from(["append", "grant", "settle", "stall", "take"]), st.integers(1, 7)), max_size=30
)


class Log:
    """A topic at its shard: answers `follow`, also one that waits."""

    def __init__(self) -> None:
        self.head_seq = 0
        self.grown = trio.Event()

    def append(self, count: int) -> None:
        self.head_seq += count
        self.grown.set()
        self.grown = trio.Event()

    async def call(self, topic: str, method: str, head: dict[str, Any], deadline_ms: int = 0) -> Reply:
        await trio.lowlevel.checkpoint()
        while head.get("wait_ms") and self.head_seq <= head["from_seq"]:
            await self.grown.wait()
        count = min(head["limit"], self.head_seq - head["from_seq"])
        first, to_seq = head["from_seq"] + 1, head["from_seq"] + count
        answer = {
            "from_seq": head["from_seq"], "to_seq": to_seq, "head_seq": self.head_seq, "earliest_seq": 1, "epoch": 1,
            "tombstone": None, "dead": [b""] if count else [], "dedupe": True, "throttle_ms": 0,
        }  # fmt: skip
        if head.get("blocks"):
            return Reply(answer, encode_body(block_of(first, [1] * count, [0] * count), 1, 1) if count else b"")
        if head["counted"]:
            answer["records"] = count
        return Reply(answer, b",".join(b'{"$seq":%d}' % seq for seq in range(first, to_seq + 1)))


class Client:
    """Counts what it gets."""

    def __init__(self) -> None:
        self.stalled = False
        self.taken = 0
        self.seqs: list[int] = []
        self.ops: list[str] = []
        self._open = trio.Event()

    def push(self, buffers: list[bytes]) -> None:
        frame = json.loads(b"".join(buffers))
        self.ops.append(frame["op"])
        if frame["op"] == "record":
            self.seqs += [record["$seq"] for record in frame["records"]]

    async def flush_some(self) -> None:
        await self._open.wait()
        self.stalled = False

    def take(self) -> None:
        self._open.set()
        self._open = trio.Event()


async def _run(history: Any, first: int, limit: int) -> None:
    log, client = Log(), Client()
    failures: list[Exception] = []
    async with trio.open_nursery() as nursery:
        feeds = Feeds(log, nursery)  # type: ignore[arg-type]
        watcher = Watcher(feeds, ws_frames.RENDERER, client, nursery, failures.append, Limits())
        place = watcher.add("t", 0, 1, feeds.view_of(Subscription(limit=limit)), first)
        granted = first
        for what, number in [*history, ("take", 0), ("settle", 0)]:
            if what == "append":
                log.append(number)
            elif what == "grant":
                granted += number
                watcher.grant(place, number)
            elif what == "stall":
                client.stalled = True
            elif what == "take":
                client.take()
            else:
                await trio.testing.wait_all_tasks_blocked()
            assert len(client.seqs) <= granted
            assert place.credits == granted - len(client.seqs) >= 0
        expected = min(granted, log.head_seq)
        if not client.stalled:
            assert client.seqs == list(range(1, expected + 1))
        assert not failures
        nursery.cancel_scope.cancel()


@settings(max_examples=200, deadline=None)
@given(steps, st.integers(0, 5), st.integers(1, 10))
def test_as_many_as_there_are_credits_and_all_of_those(history, first, limit):
    trio.run(_run, history, first, limit)


async def _wait_for_credits() -> list[str]:
    log, client = Log(), Client()
    async with trio.open_nursery() as nursery:
        feeds = Feeds(log, nursery)  # type: ignore[arg-type]
        watcher = Watcher(feeds, ws_frames.RENDERER, client, nursery, lambda _: None, Limits())
        place = watcher.add("t", 0, 1, feeds.view_of(Subscription()), 1)
        for act, count in ((log.append, 1), (log.append, 1), (partial(watcher.grant, place), 2), (log.append, 1)):
            await trio.testing.wait_all_tasks_blocked()
            act(count)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    return client.ops


def test_caught_up_is_told_again_after_a_wait_for_credits_only():
    ops = trio.run(_wait_for_credits)
    assert ops == ["caught_up", "record", "record", "caught_up", "record"]
