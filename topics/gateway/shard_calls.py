"""Calls to shards: found by arithmetic, bounded by a deadline, never a place to hang."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import trio

from topics import limits
from topics.errors import TopicsError
from topics.ids import slot_of
from topics.rpc.open_calls import Reply, Told
from topics.rpc.peer import Peer
from topics.rpc.wire import Body


class Shards:
    """`slots[slot_of(name)]` is the shard that owns a name."""

    def __init__(self, peers: Mapping[int, Peer], slots: Sequence[int]) -> None:
        self.peers = dict(sorted(peers.items()))
        self._by_slot = [self.peers[shard] for shard in slots]

    async def call(
        self,
        name: str,
        method: str,
        head: Mapping[str, Any],
        body: Body = b"",
        deadline_ms: int = limits.CALL_DEADLINE_MS,
    ) -> Reply:
        """Call the owner of `name`. PeerLost and DeadlineExceeded are `not_ready`."""
        return await self._by_slot[slot_of(name)].call(method, head, body, deadline_ms=deadline_ms)

    def begin(self, name: str, told: Told, method: str, head: Mapping[str, Any], body: bytes, deadline_ms: int) -> bool:
        """Call the owner of `name` without a task that waits; False if it would have to."""
        return self._by_slot[slot_of(name)].begin(told, method, head, body, deadline_ms)

    def peer_of(self, name: str) -> Peer:
        """The shard that owns a name, for calls that stream."""
        return self._by_slot[slot_of(name)]

    def group(self, names: Iterable[str]) -> dict[Peer, list[str]]:
        """Names by the shard that owns them."""
        groups: dict[Peer, list[str]] = {}
        for name in names:
            groups.setdefault(self.peer_of(name), []).append(name)
        return groups

    async def call_all(
        self, method: str, head: Mapping[str, Any], deadline_ms: int = limits.CALL_DEADLINE_MS
    ) -> dict[int, Reply | TopicsError]:
        """Ask every shard at once; what each said, or why it did not."""
        answers: dict[int, Reply | TopicsError] = {}

        async def ask(shard: int, peer: Peer) -> None:
            try:
                answers[shard] = await peer.call(method, head, deadline_ms=deadline_ms)
            except TopicsError as error:
                answers[shard] = error

        async with trio.open_nursery() as nursery:
            for shard, peer in self.peers.items():
                nursery.start_soon(ask, shard, peer)
        return dict(sorted(answers.items()))

    async def ask_all(self, method: str, head: Mapping[str, Any]) -> list[Reply]:
        """Ask every shard at once; raises if one of them did not answer, so that no answer is ever partial."""
        replies: list[Reply] = []
        for answer in (await self.call_all(method, head)).values():
            if isinstance(answer, TopicsError):
                raise answer
            replies.append(answer)
        return replies
