"""What API keys cost: appends of one record to a `disk` topic, with no key configured, and with 1, 10 and 1,000.

The client keeps its connections and sends the last key of the file; if there are no keys, one that is not looked at.
The processor time of the gateway, where keys are checked, is what a busy machine distorts least.
"""

import os
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial

from loadtest.producers import append_load, check
from loadtest.records import Write
from loadtest.servers import ProcessorTime, address_of, topics_server
from loadtest.workload import Bench, Contender, Sample, Workload, contender
from topics.testing.server import Server

COUNTS = (0, 1, 10, 1000)
PRODUCERS, PROCESSES = 64, 1


def contenders(bench: Bench, stack: ExitStack) -> Sequence[Contender]:
    found = []
    for count in COUNTS:
        keys = [f"key-{n}-{os.urandom(16).hex()}" for n in range(count)]
        server = stack.enter_context(topics_server(bench, shards=1, gateways=1, keys=keys))
        key = (keys or ["key-0-" + "0" * 32])[-1]
        found.append(contender(f"{count:,} keys", partial(_measure, bench, server, key)))
    return found


def _measure(bench: Bench, server: Server, key: str) -> Sample:
    topic = bench.fresh("keys")
    writes = [Write([topic], n, 1, key) for n in range(PRODUCERS)]
    times = ProcessorTime(server)
    load = append_load(address_of(server), writes, PROCESSES, bench.sizes.seconds)
    costs = times.us_per(load.records)
    check(address_of(server), load.ledgers, key=key)
    return Sample(load.rate, {**load.details(), **costs})


WORKLOAD = Workload(
    "keys",
    "what API keys cost: appends of one record, 64 producers, one gateway and one shard",
    "records/s",
    contenders,
    by_default=False,
)
