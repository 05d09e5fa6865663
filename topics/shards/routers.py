"""The routers of a shard, which are those whose source lives here.

    method        head                                           body        reply head (and body)
    routers                                                                  (by name: generation, definition)
    router.put    name, generation                               definition
    router.drop   name, dest_gone (nothing to tell it)                       dropped
    router.state  name                                                       found, forwarded_total (definition)
    router.page   after, prefix, limit, prefixes, source, dest               names, sizes, more (entries, joined)

Gateways check the graph over all shards and change it one at a time (gateway/router_routes.py). A definition is in a
book here, a link that points back is in the shard of the destination (links.py), so that either end can be removed
without asking all shards. What a crash leaves:

- of a put: perhaps a link without a definition, which is nothing (links.py);
- of a drop: everything, or a definition without its link. That is a router as before, which links itself again;
- of the removal of a topic, which comes before that of its routers: definitions without one of their ends. Without a
  source they are removed at the next start, without a destination when they next try to reach it.
"""

import logging
from collections.abc import Iterator, Mapping
from itertools import islice

import msgspec
import trio
from sortedcontainers import SortedDict

from topics import errors, limits
from topics.core import replies
from topics.core.names import check_router_name
from topics.core.routes import Definition
from topics.core.topic import Topic
from topics.errors import TopicsError
from topics.rpc.calls import Call, Handler
from topics.shards.book import Book
from topics.shards.heads import LinkHead, RouterHead, RouterPageHead, RouterPutHead, UnlinkHead, read_head
from topics.shards.links import Link, Links
from topics.shards.peers import Peers
from topics.shards.store import Store
from topics.shards.waiting import wait_for

log = logging.getLogger(__name__)
NAME = "$routers"
METHODS = ("routers", "router.put", "router.drop", "router.state", "router.page")
_encode = msgspec.msgpack.Encoder().encode
_definition = msgspec.msgpack.Decoder(Definition)


class Router(msgspec.Struct, frozen=True, array_like=True):
    """How the book has it."""

    generation: int
    definition: Definition
    source_id: int
    start: int  # records of the source up to this seq are not forwarded
    created_ms: int


class Routers:
    def __init__(self, store: Store, peers: Peers) -> None:
        """Reads the books, so it is for recovery's thread; everything else is for the loop."""
        self._engine = store.engine
        self._peers = peers
        self._book = Book(store, NAME)
        self._routers: SortedDict[str, Router] = SortedDict()
        self._orphans: dict[str, Router] = {}  # whose source is gone
        self._control = trio.Lock()  # one change of definitions at a time
        self.links = Links(store)
        topics = store.engine.state.topics
        for name, entry in self._book.load():
            router = msgspec.msgpack.decode(entry, type=Router)
            source = topics.get(router.definition.source)
            there = source is not None and source.id == router.source_id
            (self._routers if there else self._orphans)[name] = router
        self._count()

    def _count(self) -> None:
        self._engine.holdings.routers = len(self._routers)

    def handlers(self) -> Mapping[str, Handler]:
        own = zip(METHODS, (self.graph, self.put, self.drop, self.state, self.page), strict=True)
        return {**dict(own), **self.links.handlers()}

    async def run(self) -> None:
        """What goes on beside the calls, until cancelled."""
        for name, router in self._orphans.items():
            await self._try_unlink(name, router)
        await self._forget(list(self._orphans))
        self._orphans = {}

    # --- reading --------------------------------------------------------------------------------------------------

    def graph(self, call: Call) -> None:
        found = {name: (router.generation, router.definition) for name, router in self._routers.items()}
        call.reply({}, _encode(found))

    def state(self, call: Call) -> None:
        name = read_head(call.head, RouterHead).name
        router = self._routers.get(name)
        if router is None:
            call.reply({"found": False})
        else:
            call.reply({"found": True, "forwarded_total": self._forwarded(name)}, _encode(router.definition))

    def page(self, call: Call) -> None:
        """One page of this shard's routers in name order; the gateway merges the pages of all shards."""
        head = read_head(call.head, RouterPageHead)
        limit = min(head.limit, limits.LIST_PAGE_MAX)
        names = list(islice(self._names(head), limit + 1))
        entries = [self._entry(name) for name in names[:limit]]
        sizes = [len(entry) for entry in entries]
        call.reply({"names": names[:limit], "sizes": sizes, "more": len(names) > limit}, b"".join(entries))

    def _names(self, head: RouterPageHead) -> Iterator[str]:
        low = max(head.after, head.prefix)
        for name in self._routers.irange(minimum=low, inclusive=(low != head.after, True)):
            if not name.startswith(head.prefix):
                return
            if _is_shown(head, name, self._routers[name].definition):
                yield name

    def _entry(self, name: str) -> bytes:
        definition = self._routers[name].definition
        fields = {"router": name, "source": definition.source, "dest": definition.dest}
        fields |= {"guarantee": definition.guarantee, "forwarded_total": self._forwarded(name)}
        return replies.close(replies.opened(fields))

    def _forwarded(self, name: str) -> int:
        return 0

    # --- definitions ----------------------------------------------------------------------------------------------

    def put(self, call: Call) -> None:
        head = read_head(call.head, RouterPutHead)
        call.run(self._put, call, check_router_name(head.name), head.generation, _definition.decode(call.body))

    async def _put(self, call: Call, name: str, generation: int, definition: Definition) -> None:
        """The link, then the definition. Answered when the router's place in the source is pinned."""
        async with self._control:
            source = self._engine.state.find(definition.source)
            current = self._routers.get(name)
            stays = current is not None and current.definition.edge == definition.edge
            if current is not None and not stays:
                await self._unlink([name], current)
            await self._link(name, generation, definition)
            start = current.start if stays and current is not None else source.head_seq
            router = Router(generation, definition, source.id, start, self._engine.now())
            await wait_for(lambda done, fail: self._book.put(name, _encode(router), done, fail))
            if source.removing:  # it went while this was under way
                await self._forget([name])
                raise errors.topic_not_found(definition.source)
            self._routers[name] = router
            self._count()
        call.reply({})

    def drop(self, call: Call) -> None:
        async def run() -> None:
            head = read_head(call.head, RouterHead)
            call.reply({"dropped": await self._drop(head.name, dest_gone=head.dest_gone)})

        call.run(run)

    async def _drop(self, name: str, *, dest_gone: bool) -> bool:
        async with self._control:
            router = self._routers.get(name)
            if router is None:
                return False
            if not dest_gone:
                await self._unlink([name], router)
            await self._forget([name])
        return True

    async def _forget(self, names: list[str]) -> None:
        await wait_for(lambda done, fail: self._book.remove_all(names, done, fail))
        for name in names:
            self._routers.pop(name, None)
        self._count()

    # --- the other end --------------------------------------------------------------------------------------------

    async def _link(self, name: str, generation: int, definition: Definition) -> None:
        dest = definition.dest
        head = {"name": name, "generation": generation, "source": definition.source, "dest": dest}
        peer = self._peers.owner_of(dest)
        if peer is None:
            await self.links.link(read_head(head, LinkHead))
        else:
            await peer.call("derived.link", head, deadline_ms=limits.CALL_DEADLINE_MS)

    async def _unlink(self, names: list[str], router: Router) -> None:
        """Until the destination takes nothing more from these routers."""
        dest = router.definition.dest
        head = {"names": names, "generation": router.generation, "dest": dest}
        peer = self._peers.owner_of(dest)
        if peer is None:
            await self.links.unlink(read_head(head, UnlinkHead))
        else:
            await peer.call("derived.unlink", head, deadline_ms=limits.CALL_DEADLINE_MS)

    async def _try_unlink(self, name: str, router: Router) -> None:
        try:
            await self._unlink([name], router)
        except TopicsError as error:  # a link to nothing is in nobody's way
            log.warning("the link of router %s stays: %s", name, error)

    # --- the removal of topics ------------------------------------------------------------------------------------

    def touches(self, topic: Topic) -> bool:
        """Whether the topic is an end of a router."""
        return bool(self._out_of(topic) or self.links.into(topic.id))

    def _out_of(self, topic: Topic) -> list[str]:
        return [name for name, router in self._routers.items() if router.definition.source == topic.name]

    async def remove_topic(self, topic: Topic, if_empty: bool) -> tuple[bool, list[str]]:
        """Remove a topic, then every router that has it as an end; whether it was there, and their names."""
        removed = await wait_for(lambda done, fail: self._engine.remove_topic(topic.name, if_empty, done, fail))
        if not removed:
            return False, []
        async with self._control:
            leaving = self._out_of(topic)
            for name in leaving:
                await self._try_unlink(name, self._routers[name])
            await self._forget(leaving)
        arriving = self.links.into(topic.id)
        gone = [name for name, link in arriving.items() if await self._drop_at_source(name, link)]
        await self.links.forget(list(arriving))
        return True, sorted({*leaving, *gone})

    async def _drop_at_source(self, name: str, link: Link) -> bool:
        """Whether the router was there. If its shard is down it is removed when it next tries to reach this one."""
        peer = self._peers.owner_of(link.source)
        if peer is None:
            return await self._drop(name, dest_gone=True)
        try:
            head = {"name": name, "dest_gone": True}
            reply = await peer.call("router.drop", head, deadline_ms=limits.CALL_DEADLINE_MS)
        except TopicsError as error:
            if error.code not in (errors.NOT_READY, errors.SHUTTING_DOWN):
                raise
            return True
        return bool(reply.head["dropped"])


def _is_shown(head: RouterPageHead, name: str, definition: Definition) -> bool:
    """Somebody with prefixes sees a router if all three names are within them."""
    if head.source not in (None, definition.source) or head.dest not in (None, definition.dest):
        return False
    return not head.prefixes or all(each.startswith(head.prefixes) for each in (name, *definition.edge))
