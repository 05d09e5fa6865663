"""Recovery: from the start of a killed server until it serves, with all its records in the log, or in a snapshot."""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial

from loadtest import redis_clients
from loadtest.appends import make_topics
from loadtest.producers import Load, append_load, check, writes_for
from loadtest.servers import Peer, address_of, redis_server, started, topics_server
from loadtest.workload import Aim, Bench, Contender, Sample, Workload, WrongAnswer, contender
from topics.testing.server import Server

PRODUCERS, BATCH = 4, 1000
LOG, SNAPSHOT, EMPTY, REDIS = "topics, log only", "topics, snapshot", "topics, empty", "Redis, AOF"


def contenders(bench: Bench, stack: ExitStack) -> Sequence[Contender]:
    found = [contender(EMPTY, partial(restart, stack.enter_context(topics_server(bench))))]
    server, load = filled_server(bench, stack, bench.sizes.recovery_records)
    found.append(contender(LOG, partial(restart, server, load)))
    stored, stored_load = filled_server(bench, stack, bench.sizes.recovery_records)
    stored.stop()
    stored.start().wait_ready()
    found.append(contender(SNAPSHOT, partial(restart, stored, stored_load)))
    if bench.tools.has("redis"):
        redis = started(stack, redis_server(bench, fsync="no"))
        stream = bench.fresh("recovery")
        redis_clients.fill(redis.address, stream, bench.sizes.recovery_records)
        found.append(contender(REDIS, partial(_restart_redis, redis, stream, bench.sizes.recovery_records)))
    return found


def filled_server(bench: Bench, stack: ExitStack, records: int) -> tuple[Server, Load]:
    """A server whose log holds so many records, in batches of 1,000, and that never cuts its log by itself."""
    server = stack.enter_context(topics_server(bench, checkpoints=False))
    topics = make_topics(bench, server, PRODUCERS, "disk")
    writes = writes_for(topics, PRODUCERS, BATCH)
    load = append_load(address_of(server), writes, PRODUCERS, each=records // (PRODUCERS * BATCH))
    return server, load


def restart(server: Server, load: Load | None = None) -> Sample:
    """Kill it, start it; seconds until the port file says that it is ready. Everything acked is read back."""
    time.sleep(0.05)  # `disk` appends are synced within a few milliseconds
    server.kill_all()
    began = time.perf_counter()
    server.start().wait_ready()
    seconds = time.perf_counter() - began
    if load is not None:
        check(address_of(server), load.ledgers)
    return Sample(seconds)


def _restart_redis(redis: Peer, stream: str, records: int) -> Sample:
    redis.kill()
    seconds = redis.start()
    with redis_clients.client(redis.address) as client:
        if client.xlen(stream) != records:
            raise WrongAnswer(f"Redis loaded {client.xlen(stream)} of {records} records")
    return Sample(seconds)


WORKLOAD = Workload(
    "recovery",
    "seconds from the start of a killed server until it serves",
    "s",
    contenders,
    (
        Aim("log only", LOG, 4.0, kind="value", at_most=True, full_size=True),
        Aim("with a snapshot", SNAPSHOT, 1.0, kind="value", at_most=True, full_size=True),
        Aim("speed against Redis loading the same records (its time / ours)", REDIS, 1.0, LOG, full_size=True),
    ),
    note="1,000,000 records (100,000 with --quick) in batches of 1,000, 2 shards; Redis loads its append-only file.",
)
