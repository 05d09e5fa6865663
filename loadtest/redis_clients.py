"""Redis Streams, by redis-py and by redis-benchmark."""

import csv
import io
import subprocess
import threading
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from loadtest.http import Address
from loadtest.records import batch, data
from loadtest.together import Ready, run_together
from loadtest.tools import find_program
from loadtest.workload import Sample, WrongAnswer

FIELD = "d"
FILL_PIPELINE = 1000


def client(address: Address) -> Any:
    import redis

    return redis.Redis(host=address[0], port=address[1])


def append_by_redis_py(
    address: Address, stream: str, producers: int, size: int, processes: int, seconds: float
) -> Sample:
    """Producers in threads, each with a connection of its own; batches go as one pipeline."""
    shares = [list(range(producers))[n::processes] for n in range(processes)]
    answers = run_together([partial(_append, address, stream, share, size, seconds) for share in shares])
    _expect(address, stream, sum(written for (_, written), _ in answers), len(data(0)))
    return Sample(sum(rate for (rate, _), _ in answers))


def _append(
    address: Address, stream: str, producers: Sequence[int], size: int, seconds: float, ready: Ready
) -> tuple[float, int]:
    clients = [client(address) for _ in producers]
    for one in clients:
        one.ping()
    counts = [0] * len(clients)
    until = [0.0]

    def produce(n: int) -> None:
        one, payload, payloads = clients[n], data(producers[n]), batch(producers[n], size)
        while time.perf_counter() < until[0]:
            if size == 1:
                one.xadd(stream, {FIELD: payload})
            else:
                pipeline = one.pipeline(transaction=False)
                for each in payloads:
                    pipeline.xadd(stream, {FIELD: each})
                pipeline.execute()
            counts[n] += size

    threads = [threading.Thread(target=produce, args=(n,)) for n in range(len(clients))]
    ready()
    began = time.perf_counter()
    until[0] = began + seconds
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.perf_counter() - began), sum(counts)


def append_by_redis_benchmark(address: Address, stream: str, clients: int, pipeline: int, count: int) -> Sample:
    """Redis's own client, in C. It sends the same record over and over."""
    program = find_program("redis-benchmark") or "redis-benchmark"
    command = [program, "-h", address[0], "-p", str(address[1]), "-c", str(clients), "-P", str(pipeline)]
    command += ["-n", str(count), "--csv", "XADD", stream, "*", FIELD, data(0).decode()]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    # The name of the test, which quotes the record, is not quoted in turn: count the columns from the end.
    columns = next(csv.reader(io.StringIO(text.splitlines()[0])))
    row = text.splitlines()[-1].rsplit(",", len(columns) - 1)
    numbers = dict(zip(columns[1:], (float(cell.strip('"')) for cell in row[1:]), strict=True))
    _expect(address, stream, count, len(data(0)), tolerance=clients * pipeline)
    return Sample(numbers["rps"], {"p50": numbers["p50_latency_ms"], "p99": numbers["p99_latency_ms"]})


def _expect(address: Address, stream: str, count: int, size: int, tolerance: int = 0) -> None:
    """The stream holds as many records as were acked, and they have the right size."""
    with client(address) as one:
        held = one.xlen(stream)
        last = one.xrevrange(stream, count=1)
    if not count <= held <= count + tolerance:
        raise WrongAnswer(f"Redis acked {count} records and holds {held}")
    if len(last[0][1][FIELD.encode()]) != size:
        raise WrongAnswer(f"Redis holds {last!r}")


def fill(address: Address, stream: str, count: int) -> None:
    with client(address) as one:
        for start in range(0, count, FILL_PIPELINE):
            pipeline = one.pipeline(transaction=False)
            for number in range(start, min(start + FILL_PIPELINE, count)):
                pipeline.xadd(stream, {FIELD: data(0, 0, number)})
            pipeline.execute()


def read_by_redis_py(address: Address, streams: Sequence[str], count: int, limit: int, seconds: float) -> Sample:
    """Each stream is read by its own process, from the beginning and again, so many records a call."""
    answers = run_together([partial(_read, address, stream, count, limit, seconds) for stream in streams])
    return Sample(sum(rate for rate, _ in answers))


def _read(address: Address, stream: str, count: int, limit: int, seconds: float, ready: Ready) -> float:
    one = client(address)
    one.ping()
    ready()
    began = time.perf_counter()
    read = expected = 0
    after = "-"
    while (now := time.perf_counter()) < began + seconds:
        entries = one.xrange(stream, min=after, count=limit)
        expected += len(entries)
        read += len(entries)
        if len(entries) < limit or expected == count:
            if expected != count:
                raise WrongAnswer(f"Redis gave {expected} of {count} records")
            expected, after = 0, "-"
        else:
            after = "(" + entries[-1][0].decode()
    return read / (now - began)
