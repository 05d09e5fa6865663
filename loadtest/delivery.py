"""How late a record comes to its live subscribers at a quiet pace: from the moment it was due to be published."""

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial

from loadtest.stats import percentile
from loadtest.w4 import CROWDS, JUDGED, OURS, Start, kinds, row, run
from loadtest.workload import Aim, Bench, Contender, Sample, Workload

DELIVERIES = 10_000  # a second, over all subscribers
RECORDS = 500  # a second, at most


def contenders(bench: Bench, stack: ExitStack) -> Sequence[Contender]:
    return [
        Contender(row(name, crowd), partial(_measure, bench, name, crowd, start))
        for name, start in kinds(bench, stack).items()
        for crowd in CROWDS
    ]


def _measure(bench: Bench, name: str, crowd: int, start: Start) -> dict[str, Sample]:
    join, publisher, _ = start()
    rate = min(DELIVERIES / crowd, RECORDS)
    _, received = run(join, publisher, crowd, max(20, int(rate * bench.sizes.paced_seconds)), 1, rate)
    late_ms = [seconds * 1000 for seconds in received.latencies]
    return {
        row(name, crowd): Sample(percentile(late_ms, 0.5)),
        p99(name, crowd): Sample(percentile(late_ms, 0.99)),
    }


def p99(name: str, crowd: int) -> str:
    return f"{row(name, crowd)}: p99"


WORKLOAD = Workload(
    "delivery",
    "from append to live subscribers, 10,000 deliveries/s over all, 500 records/s at most: p50 and p99",
    "ms",
    contenders,
    (
        Aim("p50, 1 subscriber, ms", row(OURS, 1), 1.5, kind="value", at_most=True),
        Aim("p99, 100 subscribers, ms", p99(OURS, JUDGED), 5.0, kind="value", at_most=True),
    ),
    in_quick=False,
)
