"""The routers of a shard, which are those whose source lives here.

    method        head                                           body        reply head (and body)
    routers                                                                  (by name: generation, definition)
    router.put    name, generation                               definition
    router.drop   name, dest_gone (nothing to tell it)                       dropped
    router.state  name                                                       found, forwarded_total, blocked (def.)
    router.page   after, prefix, limit, prefixes, source, dest               names, sizes, more (entries, joined)
    router.settle see settling.py

Gateways check the graph over all shards and change it one at a time (gateway/router_routes.py). A definition is in a
book here, a link that points back is in the shard of the destination (links.py), so that either end can be removed
without asking all shards. What a crash leaves:

- of a put: perhaps a link without a definition, which is nothing (links.py);
- of a drop: everything, or a definition without its link. That is a router as before, which links itself again;
- of the removal of a topic, which comes before that of its routers: definitions without one of their ends. Without a
  source they are removed at the next start, without a destination when they next try to reach it.
"""

import logging
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from itertools import islice
from typing import Any

import msgspec
import trio
from sortedcontainers import SortedDict

from topics import errors, limits
from topics.core import replies
from topics.core.forward import Copies
from topics.core.names import check_router_name
from topics.core.routes import Definition
from topics.core.topic import Topic
from topics.errors import TopicsError
from topics.rpc.calls import Call, Handler
from topics.shards.answers import Done, Fail
from topics.shards.book import Book, decode_entry
from topics.shards.derived import METHODS as DERIVED_METHODS
from topics.shards.derived import Derivation
from topics.shards.doubts import Doubts
from topics.shards.forwarding import Route
from topics.shards.heads import (
    AttachDerivedHead,
    FillHead,
    LinkHead,
    RouterHead,
    RouterPageHead,
    RouterPutHead,
    StoreHead,
    TakeHead,
    TrimHead,
    UnlinkHead,
    read_head,
)
from topics.shards.links import METHODS as LINK_METHODS
from topics.shards.links import Link, Links
from topics.shards.marks import Marks
from topics.shards.peers import Peers, Sender
from topics.shards.reader import BlockReader
from topics.shards.store import Store
from topics.shards.waiting import at_once, wait_for

log = logging.getLogger(__name__)
NAME = "$routers"
OWN = ("routers", "router.put", "router.drop", "router.state", "router.page")
METHODS = (*OWN, *LINK_METHODS, *DERIVED_METHODS)
_encode = msgspec.msgpack.Encoder().encode
_definition = msgspec.msgpack.Decoder(Definition)


class Router(msgspec.Struct, frozen=True, array_like=True):
    """How the book has it."""

    generation: int
    definition: Definition
    source_id: int
    dest_id: int
    start: int  # records of the source up to this seq are not forwarded
    created_ms: int
    held: int = -1  # while the destination is full: no copies of records above this seq were ever sent; -1: it is not


def decode_router(entry: bytes) -> Router:
    """Raises BadEntry."""
    return decode_entry(entry, Router)


class Routers:
    def __init__(self, store: Store, peers: Peers) -> None:
        """Reads the books, so it is for recovery's thread; everything else is for the loop."""
        self.engine = store.engine
        self.peers = peers
        peers.when_lost = self._peer_lost
        self.reader = BlockReader(store)
        self.marks = Marks(store.engine)
        self.links = Links(store, self.marks)
        self._derivation = Derivation(store, self.links, self.marks)
        self._book = Book(store, NAME)
        self._routers: SortedDict[str, Router] = SortedDict()
        self._orphans: dict[str, Router] = {}  # whose source is gone
        self._pairs: dict[str, dict[str, set[str]]] = {}  # source → destination → routers
        self._routes: dict[tuple[str, str], Route] = {}
        self._control = trio.Lock()  # one change of definitions at a time
        self._tasks: trio.Nursery | None = None
        topics = store.engine.state.topics
        for name, router in self._book.load_as(lambda _, entry: decode_router(entry)):
            source = topics.get(router.definition.source)
            there = source is not None and source.id == router.source_id
            if there:
                self._note(name, router)
            else:
                self._orphans[name] = router
        store.engine.state.keeps_spent = False
        for topic in topics.values():
            if topic.name not in self._pairs:
                self._let_go(topic)

    def _let_go(self, topic: Topic) -> None:
        """The topic is no source: what is dead in it is of use to nobody."""
        topic.let_go(topic.spent or ())
        topic.spent = None
        self.engine.graves.note(topic)

    def _note(self, name: str, router: Router) -> None:
        self._lose(name)
        self._routers[name] = router
        source, dest = router.definition.edge
        self._pairs.setdefault(source, {}).setdefault(dest, set()).add(name)
        self.engine.holdings.routers = len(self._routers)

    def _lose(self, name: str) -> None:
        router = self._routers.pop(name, None)
        if router is None:
            return
        source, dest = router.definition.edge
        self._pairs[source][dest].discard(name)
        if not self._pairs[source][dest]:
            del self._pairs[source][dest]
        if not self._pairs[source]:
            del self._pairs[source]
        self.engine.holdings.routers = len(self._routers)

    def handlers(self) -> Mapping[str, Handler]:
        own = zip(OWN, (self.graph, self.put, self.drop, self.state, self.page), strict=True)
        return {**dict(own), **self.links.handlers(), **self._derivation.handlers()}

    async def run(self) -> None:
        """What goes on beside the calls, until cancelled."""
        async with trio.open_nursery() as nursery:
            self._tasks = nursery
            nursery.start_soon(self.marks.run)
            for edge in [(source, dest) for source, dests in self._pairs.items() for dest in dests]:
                self._refresh(edge)
            nursery.start_soon(self._mend)
            doubts = Doubts(self._derivation, self.links, self.peers, self._routers.__contains__)
            nursery.start_soon(doubts.run, list(self.engine.state.topics.values()))

    async def _mend(self) -> None:
        """Routers whose source went in a crash."""
        for name, router in self._orphans.items():
            await self._try_unlink(name, router)
        await self._forget(list(self._orphans))
        self._orphans = {}

    # --- routes ---------------------------------------------------------------------------------------------------

    def route(self, source: str, dest: str) -> Route | None:
        return self._routes.get((source, dest))

    def sources(self) -> Iterator[Topic]:
        found = (self.engine.state.topics.get(source) for source in self._pairs)
        return (source for source in found if source is not None)

    def dests(self, source: str) -> dict[str, Router]:
        """The destinations of a source, each with one of the routers that lead there."""
        return {dest: self._routers[next(iter(names))] for dest, names in self._pairs.get(source, {}).items()}

    def _refresh(self, edge: tuple[str, str]) -> None:
        """Begin, change or end the worker of a pair, as the definitions say."""
        routers = {name: self._routers[name] for name in self._pairs.get(edge[0], {}).get(edge[1], ())}
        route = self._routes.get(edge)
        source = self.engine.state.topics.get(edge[0])
        if source is not None and edge[0] not in self._pairs:
            self._let_go(source)
        elif source is not None and source.spent is None:
            source.spent = []
        if not routers:
            if route is not None:
                route.scope.cancel()
                del self._routes[edge]
            return
        if route is None:
            assert self._tasks is not None
            route = self._routes[edge] = Route(self, self.engine.state.topics[edge[0]], edge[1])
            route.define(routers)
            self._tasks.start_soon(route.run)
        else:
            route.define(routers)

    @asynccontextmanager
    async def _paused(self, edge: tuple[str, str]) -> AsyncIterator[None]:
        """No copies are on their way along this pair."""
        route = self._routes.get(edge)
        if route is None:
            yield
        else:
            async with route.busy:
                yield

    def _peer_lost(self, peer: Sender) -> None:
        """The shard may have crashed, and miss copies that only its sources can make again."""
        for (_, dest), route in self._routes.items():
            if self.peers.owner_of(dest) is peer:
                route.dest_lost()

    def dest_is_gone(self, names: list[str]) -> None:
        """For a worker that found no destination: its routers cannot exist."""

        async def drop() -> None:
            for name in names:
                await self._drop(name, dest_gone=True)

        assert self._tasks is not None
        self._tasks.start_soon(drop)

    async def ask(self, dest: str, method: str, head: Mapping[str, Any], copies: Copies | None) -> Mapping[str, Any]:
        """The destination's side, in this shard or in another one."""
        peer = self.peers.owner_of(dest)
        if peer is not None:
            body = _encode(copies) if copies is not None else b""
            return (await peer.call(method, head, body, deadline_ms=limits.CALL_DEADLINE_MS)).head
        if method == "derived.attach":
            return await self._derivation.attach(read_head(head, AttachDerivedHead))
        if method == "derived.trim":
            return await self._derivation.trim(read_head(head, TrimHead))
        assert copies is not None
        if method == "derived.take":
            return await self._derivation.take(read_head(head, TakeHead), copies)
        return await self._derivation.fill(read_head(head, FillHead), copies)

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
            route = self._routes.get(router.definition.edge)
            blocked = route.blocked if route is not None else None
            head = {"found": True, "forwarded_total": self._forwarded(name), "blocked": blocked}
            call.reply(head, _encode(router.definition))

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
        route = self._routes.get(self._routers[name].definition.edge)
        return route.totals.get(name, 0) if route is not None else 0

    # --- definitions ----------------------------------------------------------------------------------------------

    def put(self, call: Call) -> None:
        head = read_head(call.head, RouterPutHead)
        call.run(self._put, call, check_router_name(head.name), head.generation, _definition.decode(call.body))

    async def _put(self, call: Call, name: str, generation: int, definition: Definition) -> None:
        """The link, then the definition. Answered when the router's place in the source is pinned.

        What an old definition has forwarded is stored first: the new one could not make it again.
        """
        async with self._control:
            source = self.engine.state.find(definition.source)
            current = self._routers.get(name)
            if current is not None and current.definition.edge != definition.edge:
                await self._retire(name, current)
                current = None
            async with self._paused(definition.edge):
                if current is not None:
                    await self.store(current)
                dest_id = await self._link(name, generation, definition)
                start = current.start if current is not None else source.head_seq
                router = Router(generation, definition, source.id, dest_id, start, self.engine.now())
                await wait_for(lambda done, fail: self._book.put(name, _encode(router), done, fail))
                if source.removing:  # it went while this was under way
                    await self._forget([name])
                    raise errors.topic_not_found(definition.source)
                self._note(name, router)
                self._refresh(definition.edge)
        route = self._routes.get(definition.edge)
        if route is not None:
            with trio.move_on_after(limits.ATTACH_WAIT_MS / 1000):  # the first records then find it at work
                await route.settled()
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
            if dest_gone:
                await self._forget([name])
                self._refresh(router.definition.edge)
            else:
                await self._retire(name, router)
        return True

    async def _retire(self, name: str, router: Router) -> None:
        """What was committed goes on its way; then nothing more does. What has been forwarded stays."""
        edge = router.definition.edge
        route = self._routes.get(edge)
        if route is not None:
            with trio.move_on_after(limits.RETIRE_WAIT_MS / 1000):
                await route.settled()
        async with self._paused(edge):
            await self._unlink([name], router)
            await self._forget([name])
            self._refresh(edge)

    def hold(self, names: Sequence[str], seq: int) -> None:
        """Note that these routers have sent nothing above this seq, and do not until they are released."""
        with suppress(TopicsError):  # it only matters after a power failure
            self._note_held(names, seq, lambda _: None, lambda _: None)

    async def release(self, names: Sequence[str]) -> None:
        """Until it is durable that these routers may send anything."""
        await wait_for(lambda done, fail: self._note_held(names, -1, done, fail))

    def _note_held(self, names: Sequence[str], seq: int, done: Done, fail: Fail) -> None:
        held = {name: msgspec.structs.replace(self._routers[name], held=seq) for name in names}
        self._book.put_all({name: _encode(router) for name, router in held.items()}, done, fail)
        self._routers.update(held)

    async def _forget(self, names: list[str]) -> None:
        await wait_for(lambda done, fail: self._book.remove_all(names, done, fail))
        for name in names:
            self._lose(name)

    # --- the other end --------------------------------------------------------------------------------------------

    async def _link(self, name: str, generation: int, definition: Definition) -> int:
        """The id of the destination."""
        dest = definition.dest
        head = {"name": name, "generation": generation, "source": definition.source, "dest": dest}
        peer = self.peers.owner_of(dest)
        if peer is None:
            return await self.links.link(read_head(head, LinkHead))
        reply = await peer.call("derived.link", head, deadline_ms=limits.CALL_DEADLINE_MS)
        return int(reply.head["dest_id"])

    async def _unlink(self, names: list[str], router: Router, *, source_gone: bool = False) -> None:
        """Until the destination has stored its copies and takes nothing more from these routers."""
        dest = router.definition.dest
        head = {"names": names, "generation": router.generation, "dest": dest, "dest_id": router.dest_id}
        head["source_gone"] = source_gone
        peer = self.peers.owner_of(dest)
        if peer is None:
            await self.links.unlink(read_head(head, UnlinkHead))
        else:
            await peer.call("derived.unlink", head, deadline_ms=limits.CALL_DEADLINE_MS)

    async def store(self, router: Router) -> None:
        """Until the destination needs this router for nothing that it has."""
        dest = router.definition.dest
        head = {"dest": dest, "dest_id": router.dest_id}
        peer = self.peers.owner_of(dest)
        if peer is None:
            await self.links.store(read_head(head, StoreHead))
        else:
            await peer.call("derived.store", head, deadline_ms=limits.CALL_DEADLINE_MS)

    async def _try_unlink(self, name: str, router: Router) -> None:
        try:
            await self._unlink([name], router, source_gone=True)
        except TopicsError as error:  # a link to nothing is in nobody's way
            log.warning("the link of router %s stays: %s", name, error)

    # --- the removal of topics ------------------------------------------------------------------------------------

    def touches(self, topic: Topic) -> bool:
        """Whether the topic is an end of a router."""
        return bool(self._out_of(topic) or self.links.into(topic.id))

    def _out_of(self, topic: Topic) -> list[str]:
        return sorted(name for names in self._pairs.get(topic.name, {}).values() for name in names)

    async def remove_topic(self, topic: Topic, if_empty: bool) -> tuple[bool, list[str]]:
        """Remove a topic and every router that has it as an end; whether it was there, and their names.

        Destinations store their copies before the source goes: nobody could make them again.
        """
        async with self._control, AsyncExitStack() as paused:
            leaving = {name: self._routers[name] for name in self._out_of(topic)}
            for edge in {router.definition.edge for router in leaving.values()}:
                await paused.enter_async_context(self._paused(edge))
            await at_once(self.store, [(router,) for router in leaving.values()])
            removed = await wait_for(lambda done, fail: self.engine.remove_topic(topic.name, if_empty, done, fail))
            if not removed:
                return False, []
            await at_once(self._try_unlink, list(leaving.items()))
            await self._forget(list(leaving))
            for router in leaving.values():
                self._refresh(router.definition.edge)
        arriving = self.links.into(topic.id)
        gone = [name for name, link in arriving.items() if await self._drop_at_source(name, link)]
        await self.links.forget(list(arriving))
        return True, sorted({*leaving, *gone})

    async def _drop_at_source(self, name: str, link: Link) -> bool:
        """Whether the router was there. If its shard is down it is removed when it next tries to reach this one."""
        peer = self.peers.owner_of(link.source)
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
