"""A shard in memory with its queue calls, for tests."""

import gc
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import trio

from topics.errors import TopicsError
from topics.rpc.connection import Connection
from topics.shards.peers import Peers
from topics.shards.queues import Queues
from topics.shards.shard import Shard
from topics.testing.fake_clock import FakeClock
from topics.testing.faulty_files import FaultyFiles
from topics.testing.rpc_pair import rpc_pair

WAL_FILE_BYTES = 1024 * 1024


class QueueShard:
    def __init__(self, shard: Shard, connection: Connection, clock: Any) -> None:
        self.shard = shard
        self.connection = connection
        self.clock = clock

    @property
    def queues(self) -> Queues:
        assert self.shard.service is not None
        return self.shard.service.queues

    async def call(self, method: str, topic: str = "q", body: Any = None, **head: Any) -> dict[str, Any]:
        raw = b"" if body is None else json.dumps(body).encode()
        answer = await self.connection.call(method, {"topic": topic, **head}, raw)
        fields: dict[str, Any] = json.loads(bytes(answer.body) + b"}")
        return fields

    async def make(self, topic: str = "q", **config: Any) -> None:
        await self.call("put", topic, {"type": "queue", **config})

    async def produce(self, *data: Any, topic: str = "q", **record: Any) -> list[int]:
        records = [{"data": item, **record} for item in data]
        answer = await self.call("append", topic, {"records": records})
        seqs: list[int] = answer["seqs"]
        return seqs

    async def claim(self, max: int = 1, node: str = "w", topic: str = "q", **more: Any) -> list[dict[str, Any]]:
        answer = await self.call("claim", topic, {"node": node, "max": max, **more})
        assert answer["count"] == len(answer["claimed"])
        jobs: list[dict[str, Any]] = answer["claimed"]
        return jobs

    async def settle(self, method: str, *seqs: int, node: str = "w", topic: str = "q", **more: Any) -> dict[str, Any]:
        return await self.call(method, topic, {"node": node, "seqs": seqs, **more})

    async def counts(self, topic: str = "q") -> tuple[int, int, int]:
        queue = (await self.call("state", topic))["queue"]
        return queue["ready"], queue["in_flight"], queue["dead_lettered"]

    async def records(self, topic: str) -> list[dict[str, Any]]:
        """All of them, also behind what a crash took."""
        records: list[dict[str, Any]] = []
        at = 0
        while True:
            page = await self.call("diff", topic, {"from_seq": at, "limit": 1000, "include_tags": True})
            records += page["records"]
            at = page["next_from_seq"]
            if page["caught_up"]:
                return records

    async def refused(self, method: str, topic: str = "q", body: Any = None, **head: Any) -> TopicsError:
        try:
            await self.call(method, topic, body, **head)
        except TopicsError as error:
            return error
        raise AssertionError(f"{method} was not refused")


@asynccontextmanager
async def serving(
    files: FaultyFiles | None = None, clock: Any = None, peers: Peers | None = None, *, crash: bool = False
) -> AsyncIterator[QueueShard]:
    """`crash`: it ends like a killed process, without a checkpoint."""
    clock = clock or FakeClock()
    shard = Shard(files or FaultyFiles(), clock=clock, peers=peers, wal_file_bytes=WAL_FILE_BYTES)
    stop = trio.Event()
    async with trio.open_nursery() as nursery, rpc_pair(shard.handlers) as connection:
        nursery.start_soon(shard.run, stop)
        await shard.ready.wait()
        yield QueueShard(shard, connection, clock)
        if crash:
            nursery.cancel_scope.cancel()
        stop.set()
    if crash and shard.committer is not None:  # its thread would hold the whole disk for as long as the tests run
        shard.committer._unsynced_since_ns = None  # nothing is synced any more
        shard.committer.stop()
        told = trio.Event()  # behind what it has to tell: that must not come to a disk that has crashed
        trio.lowlevel.current_trio_token().run_sync_soon(told.set)
        await told.wait()
        while shard.committer._applying:  # in several turns
            await trio.lowlevel.checkpoint()
    gc.unfreeze()  # the shard froze what it holds
    gc.collect()


def seqs_of(jobs: list[dict[str, Any]]) -> list[int]:
    return [job["$seq"] for job in jobs]


def without(job: Mapping[str, Any], *fields: str) -> dict[str, Any]:
    return {name: value for name, value in job.items() if name not in fields}
