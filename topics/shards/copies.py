"""Records that the server itself puts into a topic, here or on another shard: the call `copy`.

    head        topic, key; create (false: only if the topic is there); origin; since when, if it may be there already
    body        records: a msgpack array of [data, meta, tag, node, priority], data and meta as they stand in JSON
    reply head  first_seq, deduped

The limits of requests do not apply: what was once let in can be moved. Caps and quotas of the destination do. It is
answered when the records are as safe as the topic's class can make them, so that the original may be deleted. The key
makes a repeated copy harmless for as long as the topic remembers keys; it is made longer than any that a client may
send. A topic may remember for a short time, so a copy that was tried before is looked for among the records that have
come since, by its origin: that is in the block beside the records (topics/core/extras.py), where no client can write
it. Dead letters of versions that kept none are not found: a move that was cut short there, and is taken up again only
when the key is forgotten, leaves the letter twice, which at-least-once allows; none is ever taken for another.
"""

from collections.abc import Callable, Sequence

import msgpack
import msgspec

from topics import limits
from topics.core.block import BadBlock
from topics.core.names import check_topic_name
from topics.core.requests import Append, RecordIn
from topics.rpc.calls import Call
from topics.shards import hidden
from topics.shards.answers import Appending, Done, Fail
from topics.shards.heads import CopyHead, read_head
from topics.shards.peers import Peers
from topics.shards.store import Store
from topics.shards.waiting import wait_for

HEAD_BYTES = 1024  # more than the head of a copy has: two names, and numbers
CLOCK_SLACK_MS = 60_000  # two shards' clocks may differ by as much, if the system's was set back


class _Typed(msgspec.Struct):
    type: str


class Copies:
    def __init__(self, store: Store, peers: Peers) -> None:
        self._store = store
        self._engine = store.engine
        self._peers = peers

    async def put(
        self,
        topic: str,
        key: str,
        records: Sequence[RecordIn],
        *,
        origin: bytes,
        since: int | None = None,
        create: bool = True,
        on_its_way: Callable[[], None],
    ) -> None:
        """Until the records are in the topic, wherever it is. Raises if they were refused, or nobody knows.

        `since` if it may have been done before, at that time or later; then the records' block tells their `origin`.
        `on_its_way` is called when what is put from now on comes behind them, unless that is when they have arrived.
        """
        peer = self._peers.owner_of(topic)
        head = CopyHead(topic, key, since, origin, create)
        if peer is None:
            is_there = since is not None and await self._has(head, since)
            on_its_way()  # whoever waits for that does not run before this task waits again
            if not is_there:
                await wait_for(lambda done, fail: self.take(head, records, done, fail))
            return
        body = msgpack.packb(
            [[bytes(record.data), bytes(record.meta), record.tag, record.node, record.priority] for record in records]
        )
        if peer.sends_at_once(len(body) + HEAD_BYTES):
            on_its_way()
        await peer.call("copy", msgspec.structs.asdict(head), body, deadline_ms=limits.CALL_DEADLINE_MS)

    async def type_of(self, topic: str) -> str:
        """What a topic is, wherever it is. Raises if there is none, or nobody knows."""
        peer = self._peers.owner_of(topic)
        if peer is None:
            return self._engine.state.find(topic).config.type
        head = {"topic": topic, "touch": False}
        reply = await peer.call("state", head, deadline_ms=limits.CALL_DEADLINE_MS)
        return msgspec.json.decode(bytes(reply.body) + b"}", type=_Typed).type

    def copy(self, call: Call) -> None:
        head = read_head(call.head, CopyHead)
        if head.since is not None:
            call.run(self._copy_unless_there, call, head, head.since)
        else:
            self._copy(call, head)

    async def _copy_unless_there(self, call: Call, head: CopyHead, since: int) -> None:
        if await self._has(head, since):
            call.reply({"first_seq": 0, "deduped": True})
        else:
            self._copy(call, head)

    async def _has(self, head: CopyHead, since: int) -> bool:
        """Whether this copy has come since then. Also one that was deleted again, if it can be read."""
        topic = self._engine.state.topics.get(head.topic)
        for chunk in reversed(topic.chunks if topic is not None else []):
            if chunk.last_ts < since - CLOCK_SLACK_MS:
                break
            try:
                block = await hidden.fetch_block(self._store, chunk)
            except BadBlock:
                continue  # its readers are told
            if block.extras is not None and head.origin in block.extras.origins.values():
                return True
        return False

    def _copy(self, call: Call, head: CopyHead) -> None:
        records = [
            RecordIn(msgspec.Raw(data), tag, node, msgspec.Raw(meta), priority=priority)
            for data, meta, tag, node, priority in msgpack.unpackb(call.body, raw=False)
        ]

        def done(outcome: Appending) -> None:
            call.reply({"first_seq": outcome.first_seq, "deduped": outcome.deduped})

        self.take(head, records, done, call.fail)

    def take(self, head: CopyHead, records: Sequence[RecordIn], done: Done, fail: Fail) -> None:
        engine, name = self._engine, check_topic_name(head.topic)

        def written(outcome: Appending) -> None:
            topic = engine.state.topics.get(name)
            if topic is None or topic.applied_lsn <= engine.log.synced_lsn:
                done(outcome)
            else:
                engine.log.when_synced(lambda: done(outcome))

        has_terms = any(record.priority for record in records)
        request = Append(
            records,
            None,
            head.key.ljust(limits.IDEMPOTENCY_KEY_MAX + 1),
            None if head.create else False,
            None,
            False,
            has_terms=has_terms,
            copied=True,
            origin=head.origin,
        )
        engine.append(name, request, written, fail)
