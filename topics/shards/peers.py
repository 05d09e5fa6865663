"""The other shards of the instance, for what goes from one to another: copies of records, and what routers tell.

Everything that changes something passes one gate, which a backup closes for the moment in which the shards note where
they are: then no shard has told another what that one does not have yet (topics/shards/backup.py).
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import trio

from topics.ids import slot_of
from topics.rpc.open_calls import Reply
from topics.rpc.peer import Peer
from topics.rpc.wire import Body

# What only asks may be under way at any time. The shard that is asked may have to send something first, which waits.
ASKS = frozenset({"router.settle"})


class Gate:
    def __init__(self) -> None:
        self._open: trio.Event | None = None  # set when it opens again; none while it is open
        self._left = trio.Event()
        self._inside = 0

    @property
    def is_open(self) -> bool:
        return self._open is None

    async def enter(self) -> None:
        while self._open is not None:
            await self._open.wait()
        self._inside += 1

    def leave(self) -> None:
        self._inside -= 1
        if not self._inside:
            self._left.set()
            self._left = trio.Event()

    async def close(self) -> None:
        """Nobody enters from now on; returns when the last one has left. Cancelled, it stays closed."""
        if self._open is None:
            self._open = trio.Event()
        while self._inside:
            await self._left.wait()

    def open(self) -> None:
        if self._open is not None:
            self._open.set()
            self._open = None


class Sender:
    """A shard, for calls that pass the gate."""

    def __init__(self, peer: Peer, gate: Gate) -> None:
        self._peer = peer
        self._gate = gate

    async def call(
        self, method: str, head: Mapping[str, Any], body: Body = b"", *, deadline_ms: int | None = None
    ) -> Reply:
        """As `Peer.call`; the wait for the gate does not count against the deadline."""
        if method in ASKS:
            return await self._peer.call(method, head, body, deadline_ms=deadline_ms)
        await self._gate.enter()
        try:
            return await self._peer.call(method, head, body, deadline_ms=deadline_ms)
        finally:
            self._gate.leave()

    def sends_at_once(self, size: int) -> bool:
        """Whether a call of so many bytes, made now, arrives before all that are made after it."""
        return self._gate.is_open and self._peer.sends_at_once(size)


class Peers:
    """`slots[slot_of(name)]` is the shard that owns a name. Without slots a shard is on its own and owns every name."""

    def __init__(self, index: int = 0, slots: Sequence[int] = (), others: Mapping[int, Peer] | None = None) -> None:
        self.gate = Gate()
        self._index = index
        self._slots = slots
        self._others: dict[int, Sender] = {}
        self.when_lost: Callable[[Sender], None] | None = None  # told if the connection to a shard ended
        for shard, peer in (others or {}).items():
            sender = self._others[shard] = Sender(peer, self.gate)
            peer.when_lost = partial(self._tell_lost, sender)

    def owner_of(self, name: str) -> Sender | None:
        """The shard that owns a topic; None if it is this one."""
        owner = self._slots[slot_of(name)] if self._slots else self._index
        return None if owner == self._index else self._others[owner]

    def _tell_lost(self, sender: Sender) -> None:
        if self.when_lost is not None:
            self.when_lost(sender)
