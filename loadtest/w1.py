"""W1: durable appends of one record, 64 producers."""

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial

from loadtest import nats_clients, redis_clients
from loadtest.appends import LAYOUTS, make_topics, our_contenders, row
from loadtest.servers import address_of, nats_server, redis_server, started
from loadtest.workload import Aim, Bench, Contender, Sample, Workload, contender
from loadtest.wrk import append_by_wrk
from topics.testing.server import Server

PRODUCERS, TOPICS, PROCESSES = 64, 16, 2
EXPECTED_RATE = 30_000  # of redis-benchmark, which wants a count instead of a time
TWO, ONE = LAYOUTS
REDIS_PY, REDIS_BENCHMARK, NATS = "Redis always, redis-py", "Redis always, redis-benchmark", "NATS (no sync), nats-py"


def contenders(bench: Bench, stack: ExitStack) -> Sequence[Contender]:
    found, servers = our_contenders(bench, stack, topics=TOPICS, producers=PRODUCERS, size=1, processes=PROCESSES)
    seconds = bench.sizes.seconds
    if bench.tools.has("wrk"):
        for layout, server in zip(LAYOUTS, servers, strict=True):
            found.append(contender(row("wrk", layout), partial(_by_wrk, bench, server)))
    if bench.tools.has("redis"):
        redis = started(stack, redis_server(bench))

        def by_redis_py() -> Sample:
            stream = bench.fresh("w1")
            return redis_clients.append_by_redis_py(redis.address, stream, PRODUCERS, 1, PROCESSES, seconds)

        found.append(contender(REDIS_PY, by_redis_py))
        if bench.tools.has("redis-benchmark"):
            count = int(EXPECTED_RATE * seconds)

            def by_redis_benchmark() -> Sample:
                return redis_clients.append_by_redis_benchmark(redis.address, bench.fresh("w1"), PRODUCERS, 1, count)

            found.append(contender(REDIS_BENCHMARK, by_redis_benchmark))
    if bench.tools.has("nats"):
        nats = started(stack, nats_server(bench))

        def by_nats() -> Sample:
            stream = bench.fresh("w1")
            return nats_clients.append_by_nats_py(nats.address, stream, PRODUCERS, 1, PROCESSES, seconds)

        found.append(contender(NATS, by_nats))
    return found


def _by_wrk(bench: Bench, server: Server) -> Sample:
    names = make_topics(bench, server, TOPICS, "fsync")
    return append_by_wrk(bench.folder, address_of(server), names, PRODUCERS, bench.sizes.seconds)


WORKLOAD = Workload(
    "w1",
    "durable appends of one record, 64 producers",
    "records/s",
    contenders,
    (
        Aim("Python clients against redis-py", row("Python", TWO), 1.2, REDIS_PY),
        Aim("wrk against redis-benchmark", row("wrk", TWO), 0.7, REDIS_BENCHMARK),
        Aim("2 shards + 2 gateways against 1 + 1, Python", row("Python", TWO), 1.0, row("Python", ONE)),
        Aim("2 shards + 2 gateways against 1 + 1, wrk", row("wrk", TWO), 1.0, row("wrk", ONE)),
    ),
    note=f"{TOPICS} topics of class `fsync`; Redis one stream, `appendfsync always`.",
)
