"""How long an append takes, open loop: at a constant rate, from the moment each was due."""

import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from loadtest.appends import make_topics
from loadtest.producers import append_load, check, paced_load, writes_for
from loadtest.servers import address_of, topics_server
from loadtest.stats import latency_ms
from loadtest.workload import Aim, Bench, Contender, Sample, Workload, contender
from topics.testing.server import Server

PRODUCERS, TOPICS, PROCESSES = 64, 16, 2
CALIBRATION_S = 1.0
SHARE = 0.5
SYNC_BYTES = 4096
SYNCS = 100
FDATASYNC = "fdatasync of 4 KiB, bare"


def one_client(durability: str) -> str:
    return f"{durability}, one client"


def half_load(durability: str) -> str:
    return f"{durability}, 64 clients at half the highest rate"


def contenders(bench: Bench, stack: ExitStack) -> Sequence[Contender]:
    server = stack.enter_context(topics_server(bench))
    found = [contender(FDATASYNC, partial(_sync, bench.folder))]
    for durability in ("disk", "fsync"):
        found.append(contender(one_client(durability), partial(_one_client, bench, server, durability)))
    for durability in ("disk", "fsync"):
        rate = SHARE * _highest_rate(bench, server, durability)
        found.append(contender(half_load(durability), partial(_half_load, bench, server, durability, rate)))
    return found


def _sync(folder: Path) -> Sample:
    """What the disk alone takes: 4 KiB over space that was written before, then fdatasync, as the log does it."""
    path = folder / "sync"
    path.write_bytes(bytes(SYNCS * SYNC_BYTES))
    fd = os.open(path, os.O_WRONLY)
    os.fsync(fd)
    times = []
    for number in range(SYNCS):
        began = time.perf_counter()
        os.pwrite(fd, b"x" * SYNC_BYTES, number * SYNC_BYTES)
        os.fdatasync(fd)
        times.append(time.perf_counter() - began)
    os.close(fd)
    return _sample(times, {})


def _sample(latencies: Sequence[float], details: dict[str, float]) -> Sample:
    seen = latency_ms(latencies)
    return Sample(seen["p50"], {**seen, **details})


def _one_client(bench: Bench, server: Server, durability: str) -> Sample:
    return _paced(bench, server, durability, 1, bench.sizes.paced_rate)


def _half_load(bench: Bench, server: Server, durability: str, rate: float) -> Sample:
    return _paced(bench, server, durability, PRODUCERS, rate)


def _paced(bench: Bench, server: Server, durability: str, producers: int, rate: float) -> Sample:
    writes = writes_for(make_topics(bench, server, min(TOPICS, producers), durability), producers, 1)
    load = paced_load(address_of(server), writes, rate, bench.sizes.paced_seconds)
    check(address_of(server), load.ledgers)
    return _sample(load.latencies, {"rate": rate, "sent_late_p99": latency_ms(load.lateness)["p99"]})


def _highest_rate(bench: Bench, server: Server, durability: str) -> float:
    writes = writes_for(make_topics(bench, server, TOPICS, durability), PRODUCERS, 1)
    return append_load(address_of(server), writes, PROCESSES, min(CALIBRATION_S, bench.sizes.paced_seconds)).rate


WORKLOAD = Workload(
    "latency",
    "append to ack, open loop: p50",
    "ms",
    contenders,
    (
        Aim("p50 of `disk`, one client, ms", one_client("disk"), 0.5, kind="value", at_most=True),
        Aim(
            "p50 of `fsync`, one client, less one fdatasync, ms",
            one_client("fsync"),
            0.5,
            FDATASYNC,
            kind="difference",
            at_most=True,
        ),
    ),
    note="One record; 100 a second for one client. A late answer counts from when its request was due.",
)
