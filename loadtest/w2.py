"""W2: durable appends in batches of 1,000 records, 4 producers."""

from collections.abc import Sequence
from contextlib import ExitStack

from loadtest import nats_clients, redis_clients
from loadtest.appends import LAYOUTS, our_contenders, row
from loadtest.servers import nats_server, redis_server, started
from loadtest.w1 import NATS, REDIS_PY
from loadtest.workload import Aim, Bench, Contender, Sample, Workload, contender

PRODUCERS, BATCH = 4, 1000
EXPECTED_RATE = 150_000
TWO, ONE = LAYOUTS
REDIS_BENCHMARK = "Redis always, redis-benchmark -P 1000"


def contenders(bench: Bench, stack: ExitStack) -> Sequence[Contender]:
    found, _ = our_contenders(bench, stack, topics=PRODUCERS, producers=PRODUCERS, size=BATCH, processes=PRODUCERS)
    seconds = bench.sizes.seconds
    if bench.tools.has("redis"):
        redis = started(stack, redis_server(bench))

        def by_redis_py() -> Sample:
            stream = bench.fresh("w2")
            return redis_clients.append_by_redis_py(redis.address, stream, PRODUCERS, BATCH, PRODUCERS, seconds)

        found.append(contender(REDIS_PY, by_redis_py))
        if bench.tools.has("redis-benchmark"):
            count = int(EXPECTED_RATE * seconds)

            def by_redis_benchmark() -> Sample:
                stream = bench.fresh("w2")
                return redis_clients.append_by_redis_benchmark(redis.address, stream, PRODUCERS, BATCH, count)

            found.append(contender(REDIS_BENCHMARK, by_redis_benchmark))
    if bench.tools.has("nats"):
        nats = started(stack, nats_server(bench))

        def by_nats() -> Sample:
            stream = bench.fresh("w2")
            return nats_clients.append_by_nats_py(nats.address, stream, PRODUCERS, BATCH, PRODUCERS, seconds)

        found.append(contender(NATS, by_nats))
    return found


WORKLOAD = Workload(
    "w2",
    "durable appends in batches of 1,000 records, 4 producers",
    "records/s",
    contenders,
    (
        Aim("against redis-benchmark, pipelined", row("Python", TWO), 2.5, REDIS_BENCHMARK),
        Aim("2 shards + 2 gateways against 1 + 1", row("Python", TWO), 1.0, row("Python", ONE)),
    ),
    note="4 topics of class `fsync`, one connection each; the peers send 1,000 records before they wait.",
)
