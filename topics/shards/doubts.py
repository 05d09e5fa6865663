"""Destinations that wait for a source which does not come.

After a power failure a destination is unsure how many copies it had, and nobody else gets a seq in it until its source
has made them again (topics/core/derivation.py). A crash may leave a link whose router is gone (links.py): its copies
were stored before it went, so there is nothing to wait for.
"""

from collections.abc import Callable

import trio

from topics import limits
from topics.core.topic import Topic
from topics.errors import TopicsError
from topics.shards.derived import Derivation
from topics.shards.links import Link, Links
from topics.shards.peers import Peers


class Doubts:
    def __init__(self, derivation: Derivation, links: Links, peers: Peers, is_router: Callable[[str], bool]) -> None:
        self._derivation = derivation
        self._links = links
        self._peers = peers
        self._is_router = is_router  # whose source lives in this shard

    async def run(self, topics: list[Topic]) -> None:
        """Until all of them are sure."""
        while topics := [topic for topic in topics if topic.derived is not None and topic.derived.unsure]:
            await trio.sleep(limits.DOUBT_MS / 1000)
            for topic in topics:
                if not await self._has_source(topic):
                    await self._derivation.give_up(topic)

    async def _has_source(self, topic: Topic) -> bool:
        """Whether there is a router that leads here; also if nobody can tell yet."""
        try:
            return any([await self._is_there(name, link) for name, link in self._links.into(topic.id).items()])
        except TopicsError:
            return True

    async def _is_there(self, name: str, link: Link) -> bool:
        peer = self._peers.owner_of(link.source)
        if peer is None:
            return self._is_router(name)
        reply = await peer.call("router.state", {"name": name}, deadline_ms=limits.CALL_DEADLINE_MS)
        return bool(reply.head["found"])
