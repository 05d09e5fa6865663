"""W5: claim and ack, 16 workers, one job at a time and 64 at a time."""

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial

from loadtest import beanstalk, redis_clients
from loadtest.http import Address, Connection, post
from loadtest.producers import FILL_BATCH, fill
from loadtest.servers import (
    ProcessorTime,
    address_of,
    beanstalk_server,
    redis_server,
    started,
    topics_over_shards,
    topics_server,
)
from loadtest.workers import drain, drain_redis
from loadtest.workload import Aim, Bench, Contender, Sample, Workload, contender
from topics.testing.server import Server

WORKERS, PROCESSES, QUEUES = 16, 2, 2
BATCH = 64


def row(name: str, size: int) -> str:
    return f"{name}, {size} at a time"


OURS, REDIS, BEANSTALKD = "topics", "Redis Streams group, redis-py", "beanstalkd"


def contenders(bench: Bench, stack: ExitStack) -> Sequence[Contender]:
    server = stack.enter_context(topics_server(bench))
    found = [contender(row(OURS, size), partial(_ours, bench, server, size)) for size in (1, BATCH)]
    if bench.tools.has("redis"):
        redis = started(stack, redis_server(bench, fsync="everysec"))
        found += [contender(row(REDIS, size), partial(_redis, bench, redis.address, size)) for size in (1, BATCH)]
    if bench.tools.has("beanstalkd"):
        other = started(stack, beanstalk_server(bench))
        found += [
            contender(row(BEANSTALKD, size), partial(_beanstalkd, bench, other.address, size)) for size in (1, BATCH)
        ]
    return found


def _jobs(bench: Bench, size: int) -> int:
    """In each queue: enough for a measurement of some seconds."""
    return max(1, bench.sizes.queue_jobs * (1 if size == 1 else 5) // FILL_BATCH) * FILL_BATCH


def _ours(bench: Bench, server: Server, size: int) -> Sample:
    queues, count, address = topics_over_shards(bench, server, QUEUES, "queue"), _jobs(bench, size), address_of(server)
    with Connection(address) as connection:
        for queue in queues:
            connection.ask(post(f"/v0/topics/{queue}", b'{"type":"queue","durability":"disk"}', "PUT"))
    fill(address, queues, count)
    times = ProcessorTime(server)
    rate = drain(address, queues, count, WORKERS, size, PROCESSES)
    return Sample(rate, times.us_per(count * QUEUES))


def _redis(bench: Bench, address: Address, size: int) -> Sample:
    stream, count = bench.fresh("w5"), _jobs(bench, size) * QUEUES
    redis_clients.fill(address, stream, count)
    return Sample(drain_redis(address, stream, count, WORKERS, size, PROCESSES))


def _beanstalkd(bench: Bench, address: Address, size: int) -> Sample:
    tube, count = bench.fresh("w5"), _jobs(bench, size) * QUEUES
    beanstalk.fill(address, tube, count)
    return Sample(beanstalk.drain(address, tube, count, WORKERS, size, PROCESSES))


WORKLOAD = Workload(
    "w5",
    "claim and ack, 16 workers",
    "jobs/s",
    contenders,
    (
        Aim("one at a time against Redis Streams groups", row(OURS, 1), 1.2, row(REDIS, 1)),
        Aim("64 at a time, jobs/s", row(OURS, BATCH), 50_000, kind="value"),
    ),
    note="Two `disk` queues, one on each shard; Redis syncs every second, acks and deletes; "
    "beanstalkd syncs its log every second, by raw sockets. Each job must be had once.",
)
