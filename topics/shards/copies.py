"""Records that the server itself puts into a topic, here or on another shard: the call `copy`.

    head        topic, key
    body        records: a msgpack array of [data, meta, tag, node], data and meta as they stand in JSON
    reply head  first_seq, deduped

The limits of requests do not apply: what was once let in can be moved. Caps and quotas of the destination do. It is
answered when the records are as safe as the topic's class can make them, so that the original may be deleted. The key
makes a repeated copy harmless for as long as the topic remembers keys.
"""

from collections.abc import Sequence

import msgpack
import msgspec

from topics import limits
from topics.core.names import check_topic_name
from topics.core.requests import Append, RecordIn
from topics.rpc.calls import Call
from topics.shards.answers import Appending, Done, Fail
from topics.shards.engine import Engine
from topics.shards.heads import CopyHead, read_head
from topics.shards.peers import Peers
from topics.shards.waiting import wait_for


class Copies:
    def __init__(self, engine: Engine, peers: Peers) -> None:
        self._engine = engine
        self._peers = peers

    async def put(self, topic: str, key: str, records: Sequence[RecordIn]) -> None:
        """Until the records are in the topic, wherever it is. Raises if they were refused, or nobody knows."""
        peer = self._peers.owner_of(topic)
        if peer is None:
            await wait_for(lambda done, fail: self.take(topic, key, records, done, fail))
            return
        body = msgpack.packb([[bytes(record.data), bytes(record.meta), record.tag, record.node] for record in records])
        await peer.call("copy", {"topic": topic, "key": key}, body, deadline_ms=limits.CALL_DEADLINE_MS)

    def copy(self, call: Call) -> None:
        head = read_head(call.head, CopyHead)
        records = [
            RecordIn(msgspec.Raw(data), tag, node, msgspec.Raw(meta))
            for data, meta, tag, node in msgpack.unpackb(call.body, raw=False)
        ]

        def done(outcome: Appending) -> None:
            call.reply({"first_seq": outcome.first_seq, "deduped": outcome.deduped})

        self.take(check_topic_name(head.topic), head.key, records, done, call.fail)

    def take(self, name: str, key: str, records: Sequence[RecordIn], done: Done, fail: Fail) -> None:
        engine = self._engine

        def written(outcome: Appending) -> None:
            topic = engine.state.topics.get(name)
            if topic is None or topic.applied_lsn <= engine.log.durable_lsn:
                done(outcome)
            else:
                engine.log.when_synced(lambda: done(outcome))

        engine.append(name, Append(records, None, key, None, None, False), written, fail)
