"""What is dead in sources of routers, and which destination may still want it.

Copies are not logged: until a checkpoint of the destination has stored them, a crash takes them and only the source can
make them again. So a source keeps what was deleted, acked, evicted or expired (`Topic.spent`), out of sight of its
readers, and its checkpoints store it (checkpoint.py). A crash brings it back (recovery.py), until all destinations have
their copies on disk.
"""

from contextlib import suppress

import trio

from topics import limits
from topics.core.chunk import Chunk
from topics.core.requests import U64_MAX
from topics.core.topic import Topic
from topics.errors import TopicsError
from topics.shards.checkpoint import Unneeded
from topics.shards.routers import Router, Routers
from topics.shards.waiting import at_once

Edge = tuple[str, str]


class Remains:
    def __init__(self, routers: Routers) -> None:
        self._routers = routers

    async def unneeded(self) -> Unneeded:
        """Dead chunks that no destination will want when this shard's next checkpoint is made.

        Destinations on other shards are asked to store their copies; those in this shard are part of the checkpoint.
        To be asked before it begins, so that two shards do not wait for one another.
        """
        sources = [source for source in self._routers.sources() if source.spent]
        stored: dict[Edge, set[int]] = {}
        calls = [(source, dest, router, stored) for source in sources for dest, router in self._dests(source)]
        with trio.move_on_after(limits.STORE_WAIT_MS / 1000), suppress(TopicsError):
            await at_once(self._store, calls)
        found = [(source, self._unneeded_of(source, stored)) for source in sources]
        return [(source, chunks) for source, chunks in found if chunks]

    def _dests(self, source: Topic) -> list[tuple[str, Router]]:
        return list(self._routers.dests(source.name).items())

    async def _store(self, source: Topic, dest: str, router: Router, stored: dict[Edge, set[int]]) -> None:
        """Note what is dead now, and have the copies of it stored."""
        route = self._routers.route(source.name, dest)
        if route is None:
            return
        async with route.busy:  # a copy on its way would come too late to be stored
            dead = {id(chunk) for chunk in source.spent or ()}
            agrees = route.is_agreed
        if agrees:
            if self._routers.peers.owner_of(dest) is not None:
                await self._routers.store(router)
            stored[source.name, dest] = dead

    def _unneeded_of(self, source: Topic, stored: dict[Edge, set[int]]) -> list[Chunk]:
        """A destination that is down may want back what it was sent. What it was not sent goes, or it would pile up."""
        chunks = source.spent or []
        for dest, _ in self._dests(source):
            known, route = stored.get((source.name, dest)), self._routers.route(source.name, dest)
            if known is not None:
                chunks = [chunk for chunk in chunks if id(chunk) in known]
            else:
                through = route.sent_through if route is not None else U64_MAX
                chunks = [chunk for chunk in chunks if chunk.first_seq > through]
        return list(chunks)
