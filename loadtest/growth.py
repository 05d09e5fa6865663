"""How cost grows: with the number of topics, of records in a topic, and of records in the log. `--growth`"""

import random
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from statistics import median

from loadtest.appends import make_topics
from loadtest.http import Connection, number_after, post
from loadtest.producers import FIRST_SEQ, PAGE, Load, append_load, check, diff_request, writes_for
from loadtest.recovery import filled_server, restart
from loadtest.servers import address_of, topics_over_shards, topics_server
from loadtest.stats import latency_ms
from loadtest.workload import Bench, WrongAnswer, amount
from topics.testing.server import Server

DIFFS = 500
DIFF_LIMIT = 100
SMALL_BATCH = 10_000
CHECKED_TOPICS = 200  # of all; reading every one of 100,000 back would take longer than the rest


@dataclass(frozen=True, slots=True)
class Shape:
    producers: int
    batch: int
    processes: int


W1, W2 = Shape(64, 1, 2), Shape(4, 1000, 4)


@dataclass(slots=True)
class Curve:
    """Lines over one axis."""

    title: str
    x_label: str
    y_label: str
    lines: dict[str, list[tuple[float, float]]] = field(default_factory=dict)

    def add(self, line: str, x: float, y: float) -> None:
        self.lines.setdefault(line, []).append((x, y))


def curves(bench: Bench) -> list[Curve]:
    return [curve for draw in (over_topics, over_records, over_log) for curve in draw(bench)]


def _median_of(rounds: int, measure: Callable[[], float]) -> float:
    return median(measure() for _ in range(rounds))


# --- topics -------------------------------------------------------------------------------------------------------


def over_topics(bench: Bench) -> list[Curve]:
    """W1 to W3 with so many topics, all of them written to: single records and batches go round over all of them."""
    singles = Curve("W1 over the number of topics", "topics", "records/s")
    batches = Curve("W2 and W3 over the number of topics", "topics", "records/s")
    for count in bench.sizes.growth_topics:
        with topics_server(bench) as server:
            names = topics_over_shards(bench, server, count, "growth")
            loads = [_create(server, names)]
            singles.add("W1: appends of one record", count, _rate(bench, server, names, W1, loads))
            batches.add("W2: appends of 1,000 records", count, _rate(bench, server, names, W2, loads))
            batches.add("W3: catch-up reads", count, _read_rate(bench, server, loads[-1]))
            chosen = random.Random(count).sample(names, min(CHECKED_TOPICS, count))
            check(address_of(server), [ledger for load in loads for ledger in load.ledgers], chosen)
        bench.say(f"growth: {count:,} topics: " + ", ".join(_last_points([singles, batches])))
    return [singles, batches]


def _last_points(shown: Sequence[Curve]) -> list[str]:
    lines = [(name, points) for curve in shown for name, points in curve.lines.items()]
    return [f"{name.partition(':')[0]} {amount(points[-1][1])}/s" for name, points in lines]


def _create(server: Server, names: Sequence[str]) -> Load:
    """A topic is made by its first record."""
    writes = writes_for(names, min(W1.producers, len(names)), 1, durability="fsync")
    return append_load(address_of(server), writes, 2, each=max(len(write.topics) for write in writes))


def _rate(bench: Bench, server: Server, names: Sequence[str], shape: Shape, loads: list[Load]) -> float:
    """The median rate of appends; what was acked is added to `loads`."""

    def measure() -> float:
        writes = writes_for(names, shape.producers, shape.batch)
        loads.append(append_load(address_of(server), writes, shape.processes, bench.sizes.growth_seconds))
        return loads[-1].rate

    return _median_of(bench.sizes.rounds, measure)


def _read_rate(bench: Bench, server: Server, load: Load) -> float:
    """One reader that takes the batches of a load, a call for each."""
    places = [
        (ledger.write.topic_of(number), first) for ledger in load.ledgers for number, first in enumerate(ledger.firsts)
    ]
    with Connection(address_of(server)) as connection:
        began = time.perf_counter()
        read = 0
        while time.perf_counter() < began + bench.sizes.growth_seconds:
            topic, first = places[read % len(places)]
            page = PAGE.decode(connection.ask(diff_request(topic, first - 1, W2.batch)))
            if [record.seq for record in page.records] != list(range(first, first + W2.batch)):
                raise WrongAnswer(f"{topic}: a diff from {first - 1} has a gap")
            read += 1
        return read * W2.batch / (time.perf_counter() - began)


# --- records ------------------------------------------------------------------------------------------------------


def over_records(bench: Bench) -> list[Curve]:
    """The latency of a diff of 100 records at a random place of one topic, which should not depend on its size."""
    curve = Curve(f"a diff of {DIFF_LIMIT} records at a random place", "records in the topic", "ms")
    with topics_server(bench) as server:
        topic, held = make_topics(bench, server, 1, "disk")[0], 0
        for count in bench.sizes.growth_records:
            held = _fill(server, topic, held, count)
            seen = latency_ms(_diff_times(server, topic, count))
            curve.add("p50", count, seen["p50"])
            curve.add("p99", count, seen["p99"])
            bench.say(f"growth: {count:,} records: a diff takes {seen['p50']:.2f} ms (p50), {seen['p99']:.2f} ms (p99)")
    return [curve]


def _fill(server: Server, topic: str, held: int, count: int) -> int:
    """Append small records until the topic holds so many."""
    with Connection(address_of(server)) as connection:
        while held < count:
            size = min(SMALL_BATCH, count - held)
            body = b'{"records":[%b]}' % b",".join([b'{"data":{"n":1}}'] * size)
            first = number_after(FIRST_SEQ, connection.ask(post(f"/v0/topics/{topic}?return_seqs=false", body)))
            if first != held + 1:
                raise WrongAnswer(f"{topic}: an append after seq {held} got {first}")
            held += size
    return held


def _diff_times(server: Server, topic: str, count: int) -> list[float]:
    places, times = random.Random(count), []
    with Connection(address_of(server)) as connection:
        for _ in range(DIFFS):
            at = places.randrange(count - DIFF_LIMIT)
            request = diff_request(topic, at, DIFF_LIMIT)
            began = time.perf_counter()
            body = connection.ask(request)
            times.append(time.perf_counter() - began)
            if [record.seq for record in PAGE.decode(body).records] != list(range(at + 1, at + DIFF_LIMIT + 1)):
                raise WrongAnswer(f"{topic}: a diff from {at} has a gap")
    return times


# --- the log ------------------------------------------------------------------------------------------------------


def over_log(bench: Bench) -> list[Curve]:
    """Recovery should be linear in what the log holds, and flat once it is in a snapshot."""
    curve = Curve("start of a killed server until it serves", "records", "s")
    for count in bench.sizes.growth_log_records:
        with ExitStack() as stack:
            server, load = filled_server(bench, stack, count)
            curve.add("in the log", count, _median_restart(bench, server, load))
            server.stop()
            server.start().wait_ready()
            curve.add("in a snapshot", count, _median_restart(bench, server, load))
        seconds = [points[-1][1] for points in curve.lines.values()]
        bench.say(f"growth: {count:,} records: {seconds[0]:.2f} s from the log, {seconds[1]:.2f} s from a snapshot")
    return [curve]


def _median_restart(bench: Bench, server: Server, load: Load) -> float:
    return _median_of(bench.sizes.rounds, lambda: restart(server, load).value)
