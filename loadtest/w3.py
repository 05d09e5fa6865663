"""W3: catch-up reads, 1,000 records a call, two readers with a topic each."""

import json
import socket
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from loadtest import nats_clients, redis_clients
from loadtest.appends import LAYOUTS, make_topics, row
from loadtest.http import Address, Connection
from loadtest.producers import READ_LIMIT, diff_request, fill
from loadtest.readers import read_load
from loadtest.servers import Peer, ProcessorTime, address_of, nats_server, redis_server, started, topics_server
from loadtest.workload import Aim, Bench, Contender, Sample, Workload, contender
from topics.testing.server import Server

READERS = 2
TWO, ONE = LAYOUTS
RAW, DECODED = "raw", "decoded"
REDIS_PY, PREAD, NATS = "Redis XRANGE, redis-py", "pread, bare httptools server", "NATS fetch, nats-py"


def contenders(bench: Bench, stack: ExitStack) -> Sequence[Contender]:
    found: list[Contender] = []
    for layout, (shards, gateways) in LAYOUTS.items():
        server = stack.enter_context(topics_server(bench, shards=shards, gateways=gateways))
        topics = _filled(bench, server)
        for form in (RAW, DECODED):
            if form == RAW or layout == TWO:
                found.append(contender(row(form, layout), partial(_read, bench, server, topics, form)))
        if layout == TWO:
            bare = started(stack, _bare_server(bench, address_of(server), topics))
            found.append(contender(PREAD, partial(_read_bare, bench, bare, topics)))
    return found + _peers(bench, stack)


def _filled(bench: Bench, server: Server) -> list[str]:
    """Topics full of records that are in data files: the server was stopped, which stores a checkpoint."""
    topics = make_topics(bench, server, READERS, "disk")
    fill(address_of(server), topics, bench.sizes.read_records)
    server.stop()
    server.start().wait_ready()
    return topics


def _read(bench: Bench, server: Server, topics: Sequence[str], form: str) -> Sample:
    sizes = bench.sizes
    times = ProcessorTime(server)
    sample = read_load(address_of(server), topics, sizes.read_records, sizes.seconds, decode=form == DECODED)
    return Sample(sample.value, {**sample.details, **times.us_per(int(sample.value * sizes.seconds))})


def _read_bare(bench: Bench, bare: Peer, topics: Sequence[str]) -> Sample:
    return read_load(bare.address, topics, bench.sizes.read_records, bench.sizes.seconds, decode=False)


def _bare_server(bench: Bench, address: Address, topics: Sequence[str]) -> Peer:
    """A server of the very bytes that ours answers with."""
    folder = bench.folder / bench.fresh("bare")
    folder.mkdir()
    with Connection(address) as connection:
        for topic in topics:
            _store_answers(connection, topic, bench.sizes.read_records, folder)

    def command(port: int, _: Path) -> list[str]:
        return [sys.executable, "-m", "loadtest.bare", str(port), str(folder)]

    return Peer(folder, command, _accepts)


def _store_answers(connection: Connection, topic: str, count: int, folder: Path) -> None:
    places = {}
    with open(folder / f"{topic}.bodies", "wb") as bodies:
        for at in range(0, count, READ_LIMIT):
            start = bodies.tell()
            bodies.write(connection.ask(diff_request(topic, at)))
            places[at] = (start, bodies.tell())
    (folder / f"{topic}.index").write_text(json.dumps(places))


def _accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


def _peers(bench: Bench, stack: ExitStack) -> list[Contender]:
    found, sizes = [], bench.sizes
    if bench.tools.has("redis"):
        redis = started(stack, redis_server(bench, fsync="everysec"))
        streams = [bench.fresh("w3") for _ in range(READERS)]
        for stream in streams:
            redis_clients.fill(redis.address, stream, sizes.read_records)

        def by_redis_py() -> Sample:
            return redis_clients.read_by_redis_py(redis.address, streams, sizes.read_records, READ_LIMIT, sizes.seconds)

        found.append(contender(REDIS_PY, by_redis_py))
    if bench.tools.has("nats"):
        nats = started(stack, nats_server(bench))
        names = [bench.fresh("w3") for _ in range(READERS)]
        for name in names:
            nats_clients.fill(nats.address, name, sizes.slow_read_records)

        def by_nats() -> Sample:
            return nats_clients.read_by_nats_py(nats.address, names, sizes.slow_read_records, READ_LIMIT, sizes.seconds)

        found.append(contender(NATS, by_nats))
    return found


WORKLOAD = Workload(
    "w3",
    "catch-up reads, 1,000 records a call, 2 readers",
    "records/s",
    contenders,
    (
        Aim("raw against XRANGE by redis-py", row(RAW, TWO), 2.0, REDIS_PY),
        Aim("raw against pread through a bare httptools server", row(RAW, TWO), 0.8, PREAD),
        Aim("2 shards + 2 gateways against 1 + 1", row(RAW, TWO), 1.0, row(RAW, ONE)),
    ),
    note="Read from data files in the page cache, after a restart. Decoded: every answer to Python objects (msgspec).",
)
