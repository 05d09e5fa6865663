"""What W1 and W2 share: appends to `fsync` topics of our server, checked."""

from collections.abc import Sequence
from contextlib import ExitStack

from loadtest.http import Connection, post
from loadtest.producers import append_load, check, writes_for
from loadtest.servers import ProcessorTime, address_of, topics_over_shards, topics_server
from loadtest.workload import Bench, Contender, Sample, contender
from topics.testing.server import Server

LAYOUTS = {"2 shards, 2 gateways": (2, 2), "1 shard, 1 gateway": (1, 1)}


def make_topics(bench: Bench, server: Server, count: int, durability: str) -> list[str]:
    """New topics of a class, spread over the shards."""
    names = topics_over_shards(bench, server, count, durability)
    with Connection(address_of(server)) as connection:
        for name in names:
            connection.ask(post(f"/v0/topics/{name}", b'{"durability":"%b"}' % durability.encode(), "PUT"))
    return names


def measure_appends(bench: Bench, server: Server, topics: int, producers: int, size: int, processes: int) -> Sample:
    """One closed-loop measurement into fresh `fsync` topics; everything acked is read back."""
    names = make_topics(bench, server, topics, "fsync")
    times = ProcessorTime(server)
    load = append_load(address_of(server), writes_for(names, producers, size), processes, bench.sizes.seconds)
    costs = times.us_per(load.records)
    check(address_of(server), load.ledgers)
    return Sample(load.rate, {**load.details(), **costs})


def row(client: str, layout: str) -> str:
    return f"topics, {client}, {layout}"


def our_contenders(
    bench: Bench, stack: ExitStack, *, topics: int, producers: int, size: int, processes: int
) -> tuple[list[Contender], Sequence[Server]]:
    """One contender for each layout, and their servers."""
    found, servers = [], []
    for layout, (shards, gateways) in LAYOUTS.items():
        server = stack.enter_context(topics_server(bench, shards=shards, gateways=gateways))
        servers.append(server)

        def measure(server: Server = server) -> Sample:
            return measure_appends(bench, server, topics, producers, size, processes)

        found.append(contender(row("Python", layout), measure))
    return found, servers
