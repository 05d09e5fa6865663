"""How long after its append to the source a record can be read from a router's destination."""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial

from loadtest.http import Connection, post
from loadtest.records import data
from loadtest.routers import FAN_OUTS, make_routers, remove_all, row
from loadtest.servers import address_of, topics_server
from loadtest.stats import latency_ms
from loadtest.workload import Aim, Bench, Contender, Sample, Workload, WrongAnswer, contender
from topics.testing.server import Server

WAIT_MS = 30_000
AT_THE_SOURCE = "the source itself"


def contenders(bench: Bench, stack: ExitStack) -> Sequence[Contender]:
    server = stack.enter_context(topics_server(bench))
    found = [contender(AT_THE_SOURCE, partial(_measure, bench, server, 0))]
    return found + [contender(row(fan_out), partial(_measure, bench, server, fan_out)) for fan_out in FAN_OUTS]


def _measure(bench: Bench, server: Server, fan_out: int) -> Sample:
    """A reader waits at the last destination (of none: at the source), then a record is appended."""
    address = address_of(server)
    source, dests = make_routers(bench, address, fan_out, "disk")
    watched = [source, *dests][-1]
    write = post(f"/v0/topics/{source}?return_seqs=false", b'{"records":[{"data":%b}]}' % data(0))
    pause = 1 / bench.sizes.paced_rate
    seen = []
    with Connection(address) as writer, Connection(address) as reader:
        for seq in range(1, int(bench.sizes.paced_rate * bench.sizes.paced_seconds) + 1):
            body = b'{"from_seq":%d,"wait_ms":%d}' % (seq - 1, WAIT_MS)
            reader.send(post(f"/v0/topics/{watched}/diff", body))
            time.sleep(pause)
            began = time.perf_counter()
            writer.ask(write)
            while (answer := reader.receive()) is None:
                pass
            seen.append(time.perf_counter() - began)
            if bytes(answer).count(b'"$seq":') != 1 or b'"$seq":%d,' % seq not in bytes(answer):
                raise WrongAnswer(f"{watched}: not record {seq} alone, but {bytes(answer)[:200]!r}")
    remove_all(address, [*dests, source])
    times = latency_ms(seen)
    return Sample(times["p50"], times)


WORKLOAD = Workload(
    "routed",
    "from append to a waiting reader of a router's destination: p50",
    "ms",
    contenders,
    (Aim("p50 of 1 → 1, less that of the source itself, ms", row(1), 5.0, AT_THE_SOURCE, "difference", at_most=True),),
    note="`disk` topics, one record at a time, 100 a second. 1 → 10 and 1 → 100: the last of the destinations.",
    in_quick=False,
)
