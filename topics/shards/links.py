"""The destination's side of routers: which ones lead here.

    method          head
    derived.link    name, generation, source, dest
    derived.unlink  names, generation, dest, dest_id
    derived.store   dest, dest_id

A link is durable before its router is defined, and goes before the definition does. A crash in between leaves a link
whose router is not there: it forwards nothing and is in nobody's way. The next put of that name writes it again, and
it goes with its topic.
"""

from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping

import msgspec

from topics import errors
from topics.core.derivation import Mark
from topics.core.topic import Topic
from topics.errors import TopicsError
from topics.rpc.calls import Call, Handler
from topics.shards.book import Book, decode_entry
from topics.shards.heads import LinkHead, StoreHead, UnlinkHead, read_head
from topics.shards.marks import Marks
from topics.shards.store import Store
from topics.shards.waiting import wait_for

NAME = "$links"
METHODS = ("derived.link", "derived.unlink", "derived.store")
Stored = Callable[[Topic], Awaitable[bool]]
_encode = msgspec.msgpack.Encoder().encode


async def _never(_: Topic) -> bool:
    return False


class Link(msgspec.Struct, frozen=True, array_like=True):
    """How the book has it."""

    generation: int
    source: str
    dest: str
    dest_id: int


def decode_link(entry: bytes) -> Link:
    """Raises BadEntry."""
    return decode_entry(entry, Link)


class Links:
    def __init__(self, store: Store, marks: Marks) -> None:
        """Reads the book, so it is for recovery's thread; everything else is for the loop."""
        self._engine = store.engine
        self._marks = marks
        self.stored: Stored = _never  # the shard's: see `Shard.stored`
        self._book = Book(store, NAME)
        self._links: dict[str, Link] = {}
        self._by_dest: dict[int, set[str]] = defaultdict(set)  # topic id → routers
        for name, link in self._book.load_as(lambda _, entry: decode_link(entry)):
            self._note(name, link)

    def handlers(self) -> Mapping[str, Handler]:
        return dict(zip(METHODS, (self._on_link, self._on_unlink, self._on_store), strict=True))

    def into(self, topic_id: int) -> dict[str, Link]:
        """The routers that lead to a topic, by name."""
        return {name: self._links[name] for name in sorted(self._by_dest.get(topic_id, ()))}

    def _note(self, name: str, link: Link) -> None:
        self._drop(name)
        self._links[name] = link
        self._by_dest[link.dest_id].add(name)

    def _drop(self, name: str) -> None:
        link = self._links.pop(name, None)
        if link is not None:
            self._by_dest[link.dest_id].discard(name)
            if not self._by_dest[link.dest_id]:
                del self._by_dest[link.dest_id]

    def _on_link(self, call: Call) -> None:
        async def run() -> None:
            call.reply({"dest_id": await self.link(read_head(call.head, LinkHead))})

        call.run(run)

    async def link(self, head: LinkHead) -> int:
        """Until it is durable; the topic's id. Raises `topic_not_found`."""
        dest = self._engine.state.find(head.dest)
        link = Link(head.generation, head.source, head.dest, dest.id)
        if self._links.get(head.name) != link:
            await wait_for(lambda done, fail: self._book.put(head.name, _encode(link), done, fail))
            self._note(head.name, link)
        if dest.removing:
            raise errors.topic_not_found(head.dest)
        return dest.id

    def _on_unlink(self, call: Call) -> None:
        async def run() -> None:
            await self.unlink(read_head(call.head, UnlinkHead))
            call.reply({})

        call.run(run)

    async def unlink(self, head: UnlinkHead) -> None:
        """Until it is durable, and so is all that came over it. A link of a later generation stays."""
        dest = self._engine.state.by_id.get(head.dest_id)
        if head.source_gone and dest is not None and dest.derived is not None:
            dest.derived.unsure = False  # the source went when everything was stored, and sure
        await self.store(head)
        found = {name: self._links[name] for name in head.names if name in self._links}
        await self.forget([name for name, link in found.items() if link.generation <= head.generation])
        topic = self._engine.state.by_id.get(head.dest_id)
        if topic is not None and not topic.removing and topic.derived is not None and not self.into(topic.id):
            await self._marks.change(topic, Mark(topic.id, 0))

    def _on_store(self, call: Call) -> None:
        async def run() -> None:
            await self.store(read_head(call.head, StoreHead))
            call.reply({})

        call.run(run)

    async def store(self, head: StoreHead) -> None:
        """Until no copy in this topic has to be made again after a crash. Raises `not_ready` if that cannot be now."""
        topic = self._engine.state.by_id.get(head.dest_id)
        if topic is None or topic.removing or topic.derived is None or topic.config.durability == "ephemeral":
            return
        if topic.derived.missing or topic.derived.unsure or not await self.stored(topic):
            message = f'copies in topic "{topic.name}" cannot be stored yet; retry in a moment'
            raise TopicsError(errors.NOT_READY, message, {"topic": topic.name, "retry_after_ms": 500})

    async def forget(self, names: list[str]) -> None:
        await wait_for(lambda done, fail: self._book.remove_all(names, done, fail))
        for name in names:
            self._drop(name)
