"""Nobody is held up: appends of one record while others append large batches and read large diffs.

The background writes 10,000-record batches to one topic and reads 8 MiB diffs of another, both on the first shard,
as fast as they are answered. Meanwhile single records go to four topics at a constant rate: of both shards, of the
classes `disk` and `fsync`. Their p99 is compared with the same on the otherwise idle server.
"""

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

from loadtest.appends import make_topics
from loadtest.http import Address, Connection, number_after, post
from loadtest.producers import FIRST_SEQ, Load, check, paced_loads
from loadtest.records import Write
from loadtest.servers import address_of, topics_server
from loadtest.stats import latency_ms
from loadtest.workload import Aim, Bench, Contender, Sample, Workload, WrongAnswer
from topics.testing.server import Server

BATCH = 10_000
LARGE_RECORD_BYTES = 9_000
LARGE_RECORDS = 2_000
DIFF_BYTES = 8 << 20
PLACES = ("same shard", "other shard")
CLASSES = ("disk", "fsync")
CONNECTIONS = 8
LONGER = 2  # than other open-loop measurements: a p99 of a few hundred answers says little
_FORK = multiprocessing.get_context("fork")


def label(durability: str, place: str, state: str) -> str:
    return f"{durability}, {place}, {state}"


def contenders(bench: Bench, stack: ExitStack) -> Sequence[Contender]:
    server = stack.enter_context(topics_server(bench))
    large = make_topics(bench, server, 1, "disk")[0]  # the first of a new set falls on the first shard
    with Connection(address_of(server)) as connection:
        record = b'{"data":"%b"}' % (b"x" * LARGE_RECORD_BYTES)
        for _ in range(LARGE_RECORDS // 100):
            connection.ask(post(f"/v0/topics/{large}", b'{"records":[%b]}' % b",".join([record] * 100)))
    return [
        Contender("idle", partial(_probe, bench, server, "idle")),
        Contender("beside large work", partial(_probe_beside, bench, server, large)),
    ]


def _probe_beside(bench: Bench, server: Server, large: str) -> dict[str, Sample]:
    target = make_topics(bench, server, 1, "disk")[0]
    with _background(_write_batches, address_of(server), target), _background(_read_large, address_of(server), large):
        return _probe(bench, server, "beside large work")


def _probe(bench: Bench, server: Server, state: str) -> dict[str, Sample]:
    """All four kinds of topics at once, each at its own constant rate."""
    names = {
        label(durability, place, state): name
        for durability in CLASSES
        for place, name in zip(PLACES, make_topics(bench, server, len(PLACES), durability), strict=True)
    }
    # Enough connections that a slow answer does not delay the next request.
    groups = [[Write([name], n, 1) for n in range(CONNECTIONS)] for name in names.values()]
    loads = paced_loads(address_of(server), groups, bench.sizes.paced_rate, LONGER * bench.sizes.paced_seconds)
    check(address_of(server), [ledger for load in loads for ledger in load.ledgers])
    return {row: _sample(load) for row, load in zip(names, loads, strict=True)}


def _sample(load: Load) -> Sample:
    seen = latency_ms(load.latencies)
    return Sample(seen["p99"], {**seen, "sent_late_p99": latency_ms(load.lateness)["p99"]})


def _give_way(work: Callable[..., None], *args: object) -> None:
    """What the background's own clients do is not to be measured: they run when nobody else wants to."""
    os.nice(10)
    work(*args)


@contextmanager
def _background(*work: object) -> Iterator[None]:
    """A process that works until the end of the block. It must not have ended by itself: then nothing was measured."""
    process = _FORK.Process(target=_give_way, args=work, daemon=True)
    process.start()
    try:
        yield
        if not process.is_alive():
            raise WrongAnswer("the background load was refused")
    finally:
        process.kill()
        process.join()


def _write_batches(address: Address, topic: str) -> None:
    write = Write([topic], 0, BATCH)
    with Connection(address) as connection:
        number = 0
        while number_after(FIRST_SEQ, connection.ask(write.render(number))) == number * BATCH + 1:
            number += 1


def _read_large(address: Address, topic: str) -> None:
    body = b'{"from_seq":0,"limit":1000,"max_batch_bytes":%d}' % DIFF_BYTES
    with Connection(address) as connection:
        while len(connection.ask(post(f"/v0/topics/{topic}/diff", body))) > DIFF_BYTES - LARGE_RECORD_BYTES:
            pass


def _aim(durability: str, place: str, bound: float) -> Aim:
    of, against = (label(durability, place, state) for state in ("beside large work", "idle"))
    return Aim(f"p99 beside large work against idle: `{durability}`, {place}", of, bound, against, at_most=True)


WORKLOAD = Workload(
    "heldup",
    "p99 of single-record appends, idle and beside 10,000-record batches and 8 MiB diffs",
    "ms",
    contenders,
    [
        _aim(durability, place, bound)
        for durability in CLASSES
        for place, bound in zip(PLACES, (10.0, 3.0), strict=True)
    ],
    note="Open loop. The large work is on the first shard; the other shard shares only the gateways and the machine. "
    "The clients of the large work run at a low priority.",
)
