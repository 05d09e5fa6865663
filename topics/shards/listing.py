"""Pages of a shard's topics, in the order of their names; the gateway merges those of all shards.

A page is made some names at a time, each lot of one instant and behind the one before. So it is as long as was asked
for if there are so many, in order and without duplicates, whatever is made or removed meanwhile.
"""

from itertools import islice

import trio

from topics import limits
from topics.aside import next_please
from topics.core import replies
from topics.core.topic import Topic
from topics.rpc.calls import Call
from topics.shards.engine import Engine
from topics.shards.heads import ListHead, read_head


class _Page:
    def __init__(self, engine: Engine, head: ListHead) -> None:
        self._engine = engine
        self._head = head
        self._limit = min(head.limit, limits.LIST_PAGE_MAX)
        self._names: list[str] = []
        self._entries: list[bytes] = []

    def _next(self, number: int) -> list[str]:
        head = self._head
        after = self._names[-1] if self._names else head.after
        return list(islice(self._engine.state.list_names(after, head.prefix, head.prefixes or ()), number))

    def take_some(self) -> Topic | bool:
        """A few more; whether that was all. Or a topic of which very much is over: it has to be waited for."""
        number = min(limits.LIST_STEP, self._limit - len(self._names))
        names, now = self._next(number), self._engine.now()
        for name in names:
            topic = self._engine.state.topics[name]
            if not self._engine.expire(topic):
                return topic
            if self._head.touch:
                topic.last_read_ms = now
            self._names.append(name)
            self._entries.append(replies.topic_summary(topic, now))
        return len(names) < number or len(self._names) == self._limit

    def reply(self, call: Call) -> None:
        sizes = [len(entry) for entry in self._entries]
        more = bool(self._next(1))
        call.reply({"names": self._names, "sizes": sizes, "more": more}, b"".join(self._entries))


class Listing:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def page(self, call: Call) -> None:
        page = _Page(self._engine, read_head(call.head, ListHead))
        found = page.take_some()
        if found is True:
            page.reply(call)
        else:
            call.run(self._go_on, call, page, found)

    async def _go_on(self, call: Call, page: _Page, found: Topic | bool) -> None:
        while found is not True:
            if isinstance(found, Topic):
                await self._engine.endings.wait(found)
            else:
                next_please()
                await trio.lowlevel.checkpoint()
            found = page.take_some()
        page.reply(call)
