"""What `python -m loadtest.steps` does to a shard: one function each, which says what of it is to be measured."""

import json
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import trio

from topics.testing.shard_process import ShardClient

BATCH = 10_000
CLAIM = 1000  # jobs
AT_ONCE = 256  # calls that a crowd has under way, unless they are to wait together
MOST_JOBS = ("--claim-jobs", str(BATCH))
SLOW_SYNC = "wal.sync=pause:400"  # long enough for all that is to wait for one sync


@dataclass(frozen=True)
class Bench:
    client: ShardClient
    scale: float
    measured: Callable[..., AbstractAsyncContextManager[None]]

    def many(self, number: int) -> int:
        return max(1, int(number * self.scale))


@dataclass(frozen=True)
class Scenario:
    name: str
    what: str
    run: Callable[[Bench], Awaitable[None]]
    failpoints: str = ""
    args: tuple[str, ...] = ()  # of the shard


async def together(work: Iterable[Callable[[], Awaitable[Any]]], at_once: int = AT_ONCE) -> None:
    limiter = trio.CapacityLimiter(at_once)

    async def one(act: Callable[[], Awaitable[Any]]) -> None:
        async with limiter:
            await act()

    async with trio.open_nursery() as nursery:
        for act in work:
            nursery.start_soon(one, act)


def records(number: int, first: int = 0, *, rich: bool = False, size: int = 40) -> bytes:
    """A body. Rich ones have a key, a lifetime of their own and a tag each."""
    made: list[dict[str, Any]] = [{"data": {"n": n, "text": "x" * size}} for n in range(first, first + number)]
    for n, record in enumerate(made if rich else (), first):
        record |= {"dedup_key": f"key {n}", "ttl_ms": 3_600_000 + n * 7919 % 100_000, "tag": f"tag {n % 1000}"}
    return json.dumps({"records": made}).encode()


async def fill(bench: Bench, topic: str, number: int, *, ttl_ms: int | None = None) -> None:
    """So many plain records, or with lifetimes of their own."""
    await bench.client.put(topic, durability="disk")
    made = [{"data": n} if ttl_ms is None else {"data": n, "ttl_ms": ttl_ms + n} for n in range(min(number, BATCH))]
    body, left = json.dumps({"records": made}).encode(), number
    while left > 0:
        await bench.client.call("append", topic, body)
        left -= BATCH


async def make_topics(bench: Bench, number: int) -> None:
    await together([partial(bench.client.append, f"topic-{n:06}", n) for n in range(number)])


# --- writes -------------------------------------------------------------------------------------------------------


async def append_large(bench: Bench) -> None:
    await bench.client.put("t", durability="fsync")
    bodies = [records(bench.many(BATCH), n * BATCH, rich=True) for n in range(5)]
    async with bench.measured(0.5):
        for body in bodies:
            await bench.client.call("append", "t", body)


async def append_several(bench: Bench) -> None:
    """They come to be durable by one sync."""
    bodies = [records(bench.many(BATCH), n * BATCH, rich=True) for n in range(6)]
    for n in range(6):
        await bench.client.put(f"t{n}", durability="fsync")
    async with bench.measured(0.5):
        await together([partial(bench.client.call, "append", f"t{n}", bodies[n]) for n in range(6)])


async def append_large_body(bench: Bench) -> None:
    await bench.client.put("t", durability="fsync")
    body = records(bench.many(BATCH), size=int(3200 * min(1.0, bench.scale)))
    async with bench.measured(0.5):
        for _ in range(2):
            await bench.client.call("append", "t", body)


async def retry_one_key(bench: Bench) -> None:
    number = bench.many(5000)
    await bench.client.put("t", durability="fsync")
    async with bench.measured():
        await together([lambda: bench.client.append("t", 1, idempotency_key="k")] * number, number)


async def wait_for_control(bench: Bench) -> None:
    """Writes behind a change of their topic's configuration."""
    number = bench.many(5000)
    await bench.client.put("t", durability="fsync")
    acts: list[Callable[[], Awaitable[Any]]] = [lambda: bench.client.put("t", durability="fsync", ttl_ms=1000)]
    async with bench.measured():
        await together([*acts, *[lambda: bench.client.append("t", 1)] * number], number + 1)


async def wait_for_large(bench: Bench) -> None:
    """Small writes behind a large one of the same topic."""
    number = bench.many(5000)
    await bench.client.put("t", durability="disk")
    body = records(bench.many(BATCH), rich=True)
    acts: list[Callable[[], Awaitable[Any]]] = [lambda: bench.client.call("append", "t", body)]
    async with bench.measured():
        await together([*acts, *[lambda: bench.client.append("t", 1)] * number], number + 1)


async def writes_in_flight(bench: Bench) -> None:
    number = bench.many(20_000)
    for n in range(16):
        await bench.client.put(f"t{n}", durability="fsync")
    async with bench.measured():
        await together([partial(bench.client.append, f"t{n % 16}", n) for n in range(number)], number)


# --- deletes ------------------------------------------------------------------------------------------------------


async def delete_by_tag(bench: Bench) -> None:
    await bench.client.put("t", durability="disk")
    number = bench.many(BATCH)
    for n in range(20):
        made = [{"data": n, "tag": f"tag {m % 10}"} for m in range(number)]
        await bench.client.call("append", "t", {"records": made})
    async with bench.measured(0.5):
        await bench.client.call("delete", "t", {"match": ["tag", "Eq", "tag 3"]})
        await bench.client.call("checkpoint")
        await bench.client.call("delete", "t", {"match": ["tag", "Eq", "tag 4"]})
        await bench.client.call("delete", "t", {"match": ["tag", "Glob", "tag*"]})


async def remove_stored(bench: Bench) -> None:
    await fill(bench, "t", bench.many(1_000_000), ttl_ms=3_600_000)
    await bench.client.call("checkpoint")
    async with bench.measured(1.0):
        await bench.client.call("remove", "t")


async def remove_logged(bench: Bench) -> None:
    await bench.client.put("t", durability="disk")
    for n in range(20):
        await bench.client.call("append", "t", records(bench.many(BATCH), n * BATCH, rich=True))
    async with bench.measured(1.0):
        await bench.client.call("remove", "t")


async def lifetimes_end(bench: Bench) -> None:
    await bench.client.put("t", durability="disk")
    made = [{"data": n, "ttl_ms": 1500} for n in range(bench.many(BATCH))]
    await bench.client.call("append", "t", {"records": made})
    await trio.sleep(1.5)
    async with bench.measured(0.5):
        await bench.client.call("state", "t")


# --- reads --------------------------------------------------------------------------------------------------------


async def list_topics(bench: Bench) -> None:
    await make_topics(bench, bench.many(5000))
    async with bench.measured():
        for after in ("", "topic-000999", "topic-002500"):
            await bench.client.call("list", after=after, limit=1000, prefix="")


async def list_groups(bench: Bench) -> None:
    await bench.client.append("t", 1)
    groups = [f"group-{n}" for n in range(bench.many(1000))]
    await together([partial(bench.client.call, "group.put", "t", {}, group=name) for name in groups])
    async with bench.measured():
        await bench.client.call("group.list", "t")
        await bench.client.call("state", "t")


async def metrics(bench: Bench) -> None:
    await make_topics(bench, bench.many(10_000))
    groups = [(f"topic-{n:06}", f"group-{m}") for n in range(bench.many(500)) for m in range(10)]
    await together([partial(bench.client.call, "group.put", t, {}, group=g) for t, g in groups])
    async with bench.measured():
        await bench.client.call("metrics", topics=1000)


async def read_bulk(bench: Bench) -> None:
    await fill(bench, "t", bench.many(50_000))
    await bench.client.put("rich", durability="disk")
    await bench.client.call("append", "rich", records(bench.many(BATCH), rich=True))
    async with bench.measured():
        for query in ({}, {"include_tags": True}, {"include_data": False}):
            for topic in ("t", "rich"):
                await bench.client.diff(topic, limit=10_000, bulk=True, max_batch_bytes=8 << 20, **query)


async def polls(bench: Bench) -> None:
    """Very many wait for one record."""
    number = bench.many(5000)
    await bench.client.put("t", durability="disk")

    async def tell() -> None:
        await trio.sleep(1.0)
        await bench.client.append("t", 1)

    waits = [lambda: bench.client.call("diff", "t", {"wait_ms": 20_000}, wait=True)] * number
    async with bench.measured():
        await together([*waits, tell], number + 1)


# --- queues -------------------------------------------------------------------------------------------------------


Job = dict[str, Any]


async def claim_all(bench: Bench, jobs: int, lease_ms: int = 3_600_000) -> list[list[Job]]:
    """Make a queue of so many jobs and claim them; those of each claim."""
    await bench.client.put("q", type="queue")
    await fill(bench, "q", jobs)
    return [await claim(bench, lease_ms=lease_ms) for _ in range(-(-jobs // CLAIM))]


async def claim(bench: Bench, most: int = CLAIM, lease_ms: int = 3_600_000) -> list[Job]:
    answer = await bench.client.call("claim", "q", {"node": "w", "max": most, "lease_ms": lease_ms})
    jobs: list[Job] = answer["claimed"]
    return jobs


async def tell(bench: Bench, method: str, jobs: list[Job], **more: Any) -> None:
    """What becomes of jobs, each under its lease."""
    fields = {"seqs": [job["$seq"] for job in jobs], "lease_ids": [job["lease_id"] for job in jobs]}
    await bench.client.call(method, "q", {"node": "w", **fields, **more})


async def work_jobs(bench: Bench) -> None:
    async with bench.measured():
        for jobs in await claim_all(bench, bench.many(20_000)):
            await tell(bench, "extend", jobs, lease_ms=60_000)
            await tell(bench, "nack", jobs)
        while jobs := await claim(bench):
            await tell(bench, "ack", jobs)


async def work_rich_jobs(bench: Bench, most: int = CLAIM) -> None:
    """With priorities, leases that are logged, and dead letters."""
    config = {"leases_durable": True, "durability": "fsync", "dead_letter": "dead", "max_deliveries": 1000}
    await bench.client.put("dead")
    await bench.client.put("q", type="queue", **config)
    made = [{"data": n, "priority": n * 7 % 10} for n in range(bench.many(BATCH))]
    async with bench.measured():
        await bench.client.call("append", "q", {"records": made})
        for penalty in (True, False):
            claimed = []
            while jobs := await claim(bench, most):
                claimed.append(jobs)
            for jobs in claimed:
                await tell(bench, "extend", jobs, lease_ms=60_000)
                await tell(bench, "nack", jobs, reason="not now", penalty=penalty)
        while jobs := await claim(bench, most):
            await tell(bench, "ack", jobs)


async def share_jobs(bench: Bench) -> None:
    """Very many wait for jobs; all of them come at once."""
    claimers = bench.many(500)
    await bench.client.put("q", type="queue", claim_jitter_ms=5)
    body = {"max": 20, "wait_ms": 20_000}

    async def produce() -> None:
        await trio.sleep(1.0)
        await bench.client.call("append", "q", records(bench.many(BATCH)))

    waits = [partial(bench.client.call, "claim", "q", {"node": f"w{n}", **body}, wait=True) for n in range(claimers)]
    async with bench.measured():
        await together([*waits, produce], claimers + 1)


async def delays_end(bench: Bench) -> None:
    delay_ms = bench.many(10_000)  # longer than it takes to give them all back
    for jobs in await claim_all(bench, bench.many(100_000)):
        await tell(bench, "nack", jobs, delay_ms=delay_ms)
    await trio.sleep(delay_ms / 1000)
    async with bench.measured(0.5):
        await claim(bench)


async def leases_end(bench: Bench) -> None:
    lease_ms = bench.many(10_000)
    await claim_all(bench, bench.many(100_000), lease_ms)
    await trio.sleep(lease_ms / 1000)
    async with bench.measured(0.5):
        await claim(bench)


# --- checkpoints --------------------------------------------------------------------------------------------------


async def checkpoint_many(bench: Bench) -> None:
    await make_topics(bench, bench.many(20_000))
    async with bench.measured(0.5):
        await bench.client.call("checkpoint")


async def checkpoint_large(bench: Bench) -> None:
    """Of few topics with much to store: records, keys, tags, deletes in every block."""
    await bench.client.put("t", durability="disk")
    for n in range(20):
        await bench.client.call("append", "t", records(bench.many(BATCH), n * BATCH, rich=True))
    await bench.client.call("checkpoint")
    await bench.client.call("delete", "t", {"match": ["tag", "Eq", "tag 7"]})
    for n in range(20, 30):
        await bench.client.call("append", "t", records(bench.many(BATCH), n * BATCH, rich=True))
    async with bench.measured(0.5):
        await bench.client.call("checkpoint")


SCENARIOS = (
    Scenario("append", "10,000 records with keys, lifetimes and tags", append_large),
    Scenario("appends", "six such writes that one slow sync makes durable", append_several, SLOW_SYNC),
    Scenario("body", "a write of 32 MiB", append_large_body),
    Scenario("retries", "5,000 retries of one key whose write is on its way", retry_one_key, SLOW_SYNC),
    Scenario("parked", "5,000 writes behind a change of their topic", wait_for_control, SLOW_SYNC),
    Scenario("held", "5,000 writes behind a large one", wait_for_large),
    Scenario("inflight", "20,000 writes that wait for syncs", writes_in_flight, SLOW_SYNC),
    Scenario("delete-tag", "deletes by tag of 200,000 records, logged and stored", delete_by_tag),
    Scenario("remove", "removal of a topic with 1,000,000 stored records with lifetimes", remove_stored),
    Scenario("remove-logged", "removal of 200,000 records with keys, lifetimes and tags, in memory", remove_logged),
    Scenario("lifetimes", "10,000 lifetimes that end together", lifetimes_end),
    Scenario("list", "pages of 1,000 topics", list_topics),
    Scenario("groups", "the 1,000 groups of a topic, and its state", list_groups),
    Scenario("metrics", "of 10,000 topics with 5,000 groups", metrics),
    Scenario("bulk", "reads of 10,000 records, plain and with holes", read_bulk),
    Scenario("polls", "5,000 long-polls that one record ends", polls),
    Scenario("jobs", "claims, extends, nacks and acks of 1,000 jobs each", work_jobs),
    Scenario("jobs-rich", "the same with priorities, and logged", work_rich_jobs),
    Scenario("jobs-most", "the same of 10,000 jobs each", partial(work_rich_jobs, most=BATCH), args=MOST_JOBS),
    Scenario("cohort", "10,000 jobs for 500 who claim together", share_jobs),
    Scenario("delays", "a claim when the delays of 100,000 jobs are over", delays_end),
    Scenario("leases", "a claim when 100,000 leases have ended", leases_end),
    Scenario("checkpoint", "of 20,000 topics", checkpoint_many),
    Scenario("checkpoint-large", "of 100,000 records, 300,000 keys and deletes in every block", checkpoint_large),
    Scenario("abandon", "the same of 20,000 topics, which fails", checkpoint_many, "pack.write=error:ENOSPC*1"),
)
