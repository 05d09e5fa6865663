"""Feeds: a topic's new records come to a gateway once, and go to everybody here who follows the topic.

A feed is one task that repeats the call `follow` (shards/follow.py): the shard answers when there is something, and the
answer is handed to every live reader, which sends bytes that are shared by all with the same view. While a gateway
hands out, records gather at the shard and come in one answer: under load batches grow, and nothing else does.

Readers that are behind read for themselves; those who stand at the same place share one read. A reader that has come to
the head joins the feed. If the feed is a little ahead by then, its ring still has what lies between.
"""

import logging
import random
from collections import deque
from collections.abc import Callable
from time import monotonic, perf_counter_ns
from typing import Any
from weakref import WeakValueDictionary

import trio

from topics import errors, limits
from topics.core.watching import Subscription
from topics.errors import TopicsError
from topics.gateway.batches import Batch, View
from topics.gateway.places import Phase, Place
from topics.gateway.shard_calls import Shards
from topics.rpc.open_calls import Reply

log = logging.getLogger(__name__)
POLL_DEADLINE_MS = limits.FOLLOW_WAIT_MS_MAX + limits.CALL_DEADLINE_MS


class Feed:
    def __init__(self, topic: str, strong: bool, shards: Shards, forget: Callable[["Feed"], None]) -> None:
        self.topic = topic
        self.strong = strong
        self.places: dict[Place, None] = {}
        self.position = 0
        self.epoch = 0
        self.scope = trio.CancelScope()
        self._shards = shards
        self._forget = forget
        self._ring: deque[Batch] = deque()
        self._ring_bytes = 0

    def start_at(self, place: Place) -> None:
        self.position, self.epoch = place.seq, place.epoch

    def join(self, place: Place) -> list[Batch] | None:
        """Count a reader in; what the feed has already handed out and this reader has not got.

        None: it is too far behind and has to read on.
        """
        if place.epoch != self.epoch:
            return None
        missed: list[Batch] = []
        if place.seq < self.position:
            self._drop_old()
            missed = [batch for batch in self._ring if batch.to_seq > place.seq]
            if not missed or missed[0].from_seq > place.seq or any(batch.gap for batch in missed):
                return None
        place.phase, place.feed = Phase.LIVE, self
        self.places[place] = None
        return missed

    def leave(self, place: Place) -> None:
        place.feed = None
        self.places.pop(place, None)
        if not self.places:
            self.close()

    def close(self) -> None:
        self._forget(self)
        self.scope.cancel()

    async def run(self) -> None:
        with self.scope:
            try:
                await self._follow()
            except Exception:
                log.exception("the feed of a topic failed; its readers go on by themselves")
                for place in tuple(self.places):
                    place.watcher.fall_behind(place)
            finally:
                self._forget(self)

    async def _follow(self) -> None:
        pause_ms = 0
        while self.places:
            try:
                batch = Batch(self.topic, await self._poll())
            except TopicsError as error:
                if error.code == errors.TOPIC_NOT_FOUND:
                    self._topic_deleted()
                    return
                # The shard is down, or busy: streams stay open and go on when it is back.
                pause_ms = next_pause_ms(pause_ms)
                await trio.sleep(pause_ms * random.uniform(0.5, 1.0) / 1000)
                continue
            pause_ms = 0
            if not batch.empty or batch.epoch != self.epoch:
                await self._hand_out(batch)

    async def _poll(self) -> Reply:
        head = {
            "topic": self.topic,
            "from_seq": self.position,
            "epoch": self.epoch,
            "limit": limits.DIFF_LIMIT_MAX,
            "bytes": limits.BATCH_BYTES_DEFAULT,
            "wait_ms": limits.FOLLOW_WAIT_MS_MAX,
            "strong": self.strong,
            "blocks": True,
        }
        return await self._shards.call(self.topic, "follow", head, deadline_ms=POLL_DEADLINE_MS)

    async def _hand_out(self, batch: Batch) -> None:
        """With turns for others in between: while a crowd is served, its publishers go on, and the next batch grows."""
        self.position, self.epoch = batch.to_seq, batch.epoch
        self._remember(batch)
        until = perf_counter_ns() + limits.HAND_OUT_NS
        for place in tuple(self.places):
            if place.feed is self:
                place.watcher.deliver(place, batch)
            if perf_counter_ns() > until:
                await trio.lowlevel.checkpoint()
                until = perf_counter_ns() + limits.HAND_OUT_NS

    def _topic_deleted(self) -> None:
        for place in tuple(self.places):
            self.places.pop(place, None)
            place.watcher.topic_deleted(place)

    def _remember(self, batch: Batch) -> None:
        self._ring.append(batch)
        self._ring_bytes += batch.size
        self._drop_old()

    def _drop_old(self) -> None:
        oldest = monotonic() - limits.RING_MS / 1000
        while self._ring and (self._ring_bytes > limits.RING_BYTES or self._ring[0].arrived < oldest):
            self._ring_bytes -= self._ring.popleft().size


class Feeds:
    """All feeds of a gateway, and the reads of those who are behind."""

    def __init__(self, shards: Shards, nursery: trio.Nursery) -> None:
        self._shards = shards
        self._nursery = nursery
        self._feeds: dict[tuple[str, bool], Feed] = {}
        self._reads: dict[tuple[Any, ...], SharedRead] = {}
        self._views: WeakValueDictionary[Subscription, View] = WeakValueDictionary()

    def view_of(self, subscription: Subscription) -> View:
        """The one view of all readers who want to see the same."""
        key = Subscription(
            nodes=subscription.nodes,
            limit=subscription.limit,
            batch_bytes=subscription.batch_bytes,
            meta=subscription.meta,
            tags=subscription.tags,
            data=subscription.data,
        )
        view = self._views.get(key)
        if view is None:
            view = self._views[key] = View(key)
        return view

    def join(self, place: Place, strong: bool) -> list[Batch] | None:
        """Make a reader that has come to the head live; see `Feed.join`."""
        feed = self._feeds.get((place.topic, strong))
        if feed is None:
            feed = self._feeds[place.topic, strong] = Feed(place.topic, strong, self._shards, self._forget)
            feed.start_at(place)
            self._nursery.start_soon(feed.run)
        return feed.join(place)

    def _forget(self, feed: Feed) -> None:
        if self._feeds.get((feed.topic, feed.strong)) is feed:
            del self._feeds[feed.topic, feed.strong]

    async def read(self, place: Place, view: View, strong: bool) -> Reply:
        """What comes after a place. All who stand there with the same view get the same bytes."""
        key = (place.topic, place.seq, place.epoch, strong, view, place.credits)
        shared = self._reads.get(key)
        if shared is None:
            shared = self._reads[key] = SharedRead()
            try:
                shared.reply = await self._read(place, view, strong)
            except TopicsError as error:
                shared.error = error
            finally:
                del self._reads[key]
                shared.done.set()
        else:
            await shared.done.wait()
            if shared.reply is None and shared.error is None:  # whoever read for all of us was cancelled
                return await self.read(place, view, strong)
        if shared.error is not None:
            raise shared.error
        assert shared.reply is not None
        return shared.reply

    async def _read(self, place: Place, view: View, strong: bool) -> Reply:
        wanted = view.subscription
        head = {
            "topic": place.topic,
            "from_seq": place.seq,
            "epoch": place.epoch,
            "limit": wanted.limit if place.credits is None else min(wanted.limit, place.credits),
            "bytes": wanted.batch_bytes,
            "strong": strong,
            "counted": place.credits is not None,
            "nodes": wanted.nodes,
            "tags": wanted.tags,
            "meta": wanted.meta,
            "data": wanted.data,
        }
        return await self._shards.call(place.topic, "follow", head)


class SharedRead:
    __slots__ = ("done", "error", "reply")

    def __init__(self) -> None:
        self.done = trio.Event()
        self.reply: Reply | None = None
        self.error: TopicsError | None = None


def next_pause_ms(pause_ms: int) -> int:
    return min(max(2 * pause_ms, limits.FEED_RETRY_MIN_MS), limits.FEED_RETRY_MAX_MS)
