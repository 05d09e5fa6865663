"""Routers: how many copies a second a source's records become, and what that costs in the log."""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial

from loadtest.http import Address, Connection, post
from loadtest.producers import append_load, pages, writes_for
from loadtest.servers import ProcessorTime, address_of, topics_server
from loadtest.workload import Aim, Bench, Contender, Sample, Workload, WrongAnswer
from topics.testing.server import Server

FAN_OUTS = (1, 10, 100)
PRODUCERS, BATCH = 4, 100
ARRIVAL_S = 120.0


def row(fan_out: int) -> str:
    return f"1 → {fan_out}"


def frames_row(fan_out: int) -> str:
    return f"{row(fan_out)}: log frames per append"


def contenders(bench: Bench, stack: ExitStack) -> Sequence[Contender]:
    server = stack.enter_context(topics_server(bench))
    return [Contender(row(fan_out), partial(_forward, bench, server, fan_out)) for fan_out in FAN_OUTS]


def _forward(bench: Bench, server: Server, fan_out: int) -> dict[str, Sample]:
    address = address_of(server)
    source, dests = make_routers(bench, address, fan_out, "fsync")
    frames, times = log_frames(server), ProcessorTime(server)
    began = time.perf_counter()
    load = append_load(address, writes_for([source], PRODUCERS, BATCH), PRODUCERS, bench.sizes.seconds)
    await_heads(address, dests, load.records)
    took = time.perf_counter() - began
    appends = load.records // BATCH
    used = times.us_per(load.records * fan_out)
    framed = (log_frames(server) - frames) / appends
    check_copies(address, source, dests[-1], load.records)
    remove_all(address, [*dests, source])
    return {
        row(fan_out): Sample(load.records * fan_out / took, used),
        frames_row(fan_out): Sample(framed),
    }


def make_routers(bench: Bench, address: Address, fan_out: int, durability: str) -> tuple[str, list[str]]:
    """A new topic, and new ones that routers lead to from it."""
    source, dests = bench.fresh("source"), [bench.fresh("dest") for _ in range(fan_out)]
    with Connection(address) as connection:
        for topic in (source, *dests):
            connection.ask(post(f"/v0/topics/{topic}", b'{"durability":"%b"}' % durability.encode(), "PUT"))
        for dest in dests:
            body = b'{"source":"%b","dest":"%b"}' % (source.encode(), dest.encode())
            connection.ask(post(f"/v0/routers/to-{dest}", body, "PUT"))
    return source, dests


def await_heads(address: Address, topics: Sequence[str], head: int) -> None:
    """Until every topic has so many records."""
    until = time.perf_counter() + ARRIVAL_S
    with Connection(address) as connection:
        for topic in topics:
            body = b'{"from_seq":%d,"limit":1,"wait_ms":1000}' % (head - 1)
            while not bytes(connection.ask(post(f"/v0/topics/{topic}/diff", body))).count(b'"$seq":%d' % head):
                if time.perf_counter() > until:
                    raise WrongAnswer(f"{topic} has no record {head} after {ARRIVAL_S:.0f} s")


def log_frames(server: Server) -> int:
    shards = len(set(server.slots()))
    return sum(int(server.ask_shard(shard, "metrics", topics=0)["wal"]["frames"]) for shard in range(shards))


def check_copies(address: Address, source: str, dest: str, count: int) -> None:
    """The copies are the records of the source, in order, and all of them."""
    with Connection(address) as connection:
        theirs = [bytes(record.data) for page in pages(connection, source) for record in page.records]
        copies = [bytes(record.data) for page in pages(connection, dest) for record in page.records]
    if len(theirs) != count or theirs != copies:
        raise WrongAnswer(
            f"{count} records were acked, {source} has {len(theirs)}, and {dest} has others or another order"
        )


def remove_all(address: Address, topics: Sequence[str]) -> None:
    """Routers go with their topics; what is not needed any more must not slow the next measurement."""
    with Connection(address) as connection:
        for topic in topics:
            connection.ask(post(f"/v0/topics/{topic}", b"", "DELETE"))


WORKLOAD = Workload(
    "routers",
    "copies made by routers, 4 producers, batches of 100",
    "copies/s",
    contenders,
    (
        Aim("log frames per append, 1 → 1", frames_row(1), 2, kind="value", at_most=True, full_size=True),
        Aim("log frames per append, 1 → 100", frames_row(100), 2, kind="value", at_most=True, full_size=True),
    ),
    note="`fsync` topics. Until the last copy can be read; copies are compared with their source. Of frames a number, "
    "no rate: one for the append itself, none for its copies, and a mark now and then of how far they have come.",
    in_quick=False,
)
