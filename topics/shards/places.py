"""Where topics stand, and where in them a time is.

    method   head                           reply head                                            reply body
    places   topics, times (ts by topic)    by topic: [head_seq, earliest_seq, epoch, cursor]
    seek     topic, ts                      perf                                                  open fragment

A cursor is what a reader at that time has as its `from_seq`; without a time it is the head. Copies that are made
again after a crash are waited for where the answer depends on them.
"""

from collections.abc import Mapping
from functools import partial

from topics import limits
from topics.core import replies
from topics.core.derivation import is_blocked
from topics.core.names import check_topic_name
from topics.core.seek import cursor_at
from topics.core.topic import Topic
from topics.rpc.calls import Call, Handler
from topics.shards.engine import Engine
from topics.shards.heads import PlacesHead, SeekHead, read_head
from topics.shards.settling import Settling

METHODS = ("places", "seek")


class Places:
    def __init__(self, engine: Engine, settling: Settling) -> None:
        self._engine = engine
        self._settling = settling

    def handlers(self) -> Mapping[str, Handler]:
        return {"places": self.places, "seek": self.seek}

    def places(self, call: Call) -> None:
        head = read_head(call.head, PlacesHead)
        names = [check_topic_name(name) for name in head.topics[: limits.WATCH_TOPICS_HARD_MAX]]
        if any(self._is_early(name, ts) for name, ts in head.times.items()):
            call.run(self._places_later, call, names, head.times)
        else:
            self._answer_places(call, names, head.times)

    async def _places_later(self, call: Call, names: list[str], times: Mapping[str, int]) -> None:
        for name, ts in times.items():
            await self._wait(name, ts)
        self._answer_places(call, names, times)

    def _answer_places(self, call: Call, names: list[str], times: Mapping[str, int]) -> None:
        found: dict[str, list[int]] = {}
        for name in names:
            topic = self._engine.state.topics.get(name)
            if topic is not None and topic.published:
                if not self._engine.expire(topic):
                    again = partial(self._answer_places, call, names, times)
                    self._engine.endings.later(topic, again, call.fail)
                    return
                topic.last_read_ms = self._engine.now()
                cursor = self._cursor(topic, times[name]) if name in times else topic.head_seq
                found[name] = [topic.head_seq, topic.earliest_seq, topic.epoch, cursor]
        call.reply(found)

    def seek(self, call: Call) -> None:
        head = read_head(call.head, SeekHead)
        name = check_topic_name(head.topic)
        if self._is_early(name, head.ts):
            call.run(self._seek_later, call, name, head.ts)
        else:
            self._answer_seek(call, name, head.ts)

    async def _seek_later(self, call: Call, name: str, ts: int) -> None:
        await self._wait(name, ts)
        self._answer_seek(call, name, ts)

    def _answer_seek(self, call: Call, name: str, ts: int) -> None:
        topic = self._engine.state.find(name)
        topic.last_read_ms = self._engine.now()
        call.reply({"perf": {}}, replies.sought(topic, ts, self._cursor(topic, ts)))

    # --- times ----------------------------------------------------------------------------------------------------

    def _cursor(self, topic: Topic, ts: int) -> int:
        self._engine.expire(topic)
        return cursor_at(topic, ts, self._engine.now())

    def _is_early(self, name: str, ts: int) -> bool:
        """Whether what is at that time still has to come back."""
        topic = self._engine.state.topics.get(name)
        return topic is not None and topic.published and is_blocked(topic, self._cursor(topic, ts))

    async def _wait(self, name: str, ts: int) -> None:
        while self._is_early(name, ts):
            topic = self._engine.state.find(name)
            await self._settling.wait_for_refill(topic, self._cursor(topic, ts))
