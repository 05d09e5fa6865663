"""A read of a derived topic first waits, for a moment, for copies of what its source had when the read came.

So somebody who writes to a source and then reads the destination finds what was written. The shard of the source is
asked once for all readers that came before; along a chain of routers it asks on. A shard that is down makes nobody
wait. Copies that are being made again after a crash are waited for longer; then the read is refused for now.
"""

import trio

from topics import errors, limits
from topics.core import derivation
from topics.core.topic import Topic
from topics.errors import TopicsError
from topics.rpc.calls import Call
from topics.shards.heads import SettleHead, read_head
from topics.shards.routers import Routers


class _Asking:
    """One question at a time about one topic."""

    def __init__(self) -> None:
        self.begun = 0
        self.ended = 0
        self.over: trio.Event | None = None  # while a question is under way


class Settling:
    def __init__(self, routers: Routers) -> None:
        self._routers = routers
        self._asking: dict[int, _Asking] = {}

    def settle(self, call: Call) -> None:
        """The call `router.settle`: answered when the copies are made."""

        async def run() -> None:
            head = read_head(call.head, SettleHead)
            await self._forwarded(head.source, head.dest, head.depth)
            call.reply({})

        call.run(run)

    def is_settled(self, topic: Topic) -> bool:
        """Whether a read need not wait, as far as this shard can tell."""
        derived = topic.derived
        if derived is None:
            return True
        source = self._routers.engine.state.topics.get(derived.source)
        route = self._routers.route(derived.source, topic.name)
        return route is not None and route.is_settled and source is not None and source.derived is None

    async def wait(self, topic: Topic, depth: int = 0) -> None:
        """At most SETTLE_MS."""
        with trio.move_on_after(limits.SETTLE_MS / 1000):
            await self._ask(topic, depth)

    async def wait_for_refill(self, topic: Topic, from_seq: int) -> None:
        """Until the next record is there. Raises `not_ready` if that takes long."""
        with trio.move_on_after(limits.REFILL_WAIT_MS / 1000):
            while derivation.is_blocked(topic, from_seq):
                changed = trio.Event()
                if topic.waiters is None:
                    topic.waiters = {}
                topic.waiters[changed.set] = None
                await changed.wait()
            return
        message = f'copies in topic "{topic.name}" are being made again from its source; retry in a moment'
        raise TopicsError(errors.NOT_READY, message, {"topic": topic.name, "retry_after_ms": 1000})

    async def _ask(self, topic: Topic, depth: int) -> None:
        """Until a question that began after this moment is answered."""
        asking = self._asking.setdefault(topic.id, _Asking())
        wanted = asking.begun + 1
        while asking.ended < wanted:
            if asking.over is not None:
                await asking.over.wait()
                continue
            asking.begun += 1
            number, asking.over = asking.begun, trio.Event()
            try:
                await self._ask_source(topic, depth)
                asking.ended = number
            except TopicsError:
                asking.ended = number  # the shard is down, or stops: nobody waits for it
            finally:
                asking.over.set()
                asking.over = None
        if asking.over is None:
            self._asking.pop(topic.id, None)

    async def _ask_source(self, topic: Topic, depth: int) -> None:
        derived = topic.derived
        if derived is None or depth > limits.DERIVED_HOPS_MAX:
            return
        peer = self._routers.peers.owner_of(derived.source)
        if peer is None:
            await self._forwarded(derived.source, topic.name, depth)
            return
        head = {"source": derived.source, "dest": topic.name, "depth": depth}
        await peer.call("router.settle", head, deadline_ms=limits.SETTLE_MS)

    async def _forwarded(self, source: str, dest: str, depth: int) -> None:
        topic = self._routers.engine.state.topics.get(source)
        if topic is not None and topic.derived is not None:
            await self.wait(topic, depth + 1)
        route = self._routers.route(source, dest)
        if route is not None:
            await route.settled()
