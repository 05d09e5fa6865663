"""What a workload is made of, and how it is run.

A workload is one file that defines `WORKLOAD`: a title, a unit, the aims it is judged by, and a function that starts
what is compared and returns the contenders. It is listed once, in `catalogue.py`. The runner measures the contenders
in turn, round by round, and begins each round with another one, so that what else the machine does hits all alike.

Every measurement checks its own answers and raises `WrongAnswer`; a server that is fast and wrong fails the run.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Literal

from loadtest.stats import spread
from loadtest.tools import Tools


class WrongAnswer(Exception):
    """A server lost, changed, reordered or refused something."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much of everything; see FULL and QUICK."""

    rounds: int = 3
    seconds: float = 3.0  # of one throughput measurement
    read_records: int = 200_000  # in each of the topics that W3 reads
    slow_read_records: int = 50_000  # the same for a peer that takes long to fill
    recovery_records: int = 1_000_000
    live_deliveries: int = 1_000_000  # W4, over all subscribers and sizes; small crowds get fewer
    queue_jobs: int = 10_000  # W5, in each queue; five times as many for workers that take many at once
    paced_seconds: float = 5.0  # of one open-loop measurement
    paced_rate: int = 100  # requests a second of one client that measures latency
    growth_topics: tuple[int, ...] = (1, 10, 1_000, 100_000)
    growth_records: tuple[int, ...] = (1_000, 10_000, 100_000, 1_000_000, 10_000_000)
    growth_log_records: tuple[int, ...] = (10_000, 100_000, 300_000, 1_000_000)
    growth_seconds: float = 2.0


FULL = Sizes()
QUICK = Sizes(
    rounds=1,
    seconds=0.5,
    read_records=20_000,
    slow_read_records=5_000,
    recovery_records=100_000,
    live_deliveries=100_000,
    queue_jobs=2_000,
    paced_seconds=1.0,
    growth_topics=(1, 10, 1_000),
    growth_records=(1_000, 10_000, 100_000),
    growth_log_records=(10_000, 30_000, 100_000),
    growth_seconds=0.5,
)


@dataclass(slots=True)
class Bench:
    """One run: where it may write, how much it does, which tools there are."""

    folder: Path  # of temporary data; all servers write below it, so all share one file system
    sizes: Sizes
    tools: Tools
    say: Callable[[str], None] = print
    _names: int = 0

    def fresh(self, stem: str) -> str:
        """A name that was not used before in this run."""
        self._names += 1
        return f"{stem}-{self._names}"


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement: the number that is compared, and what else was seen."""

    value: float
    details: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Contender:
    """Something to measure. One measurement yields one sample, or several rows at once."""

    name: str
    measure: Callable[[], Mapping[str, Sample]]


def contender(name: str, measure: Callable[[], Sample]) -> Contender:
    return Contender(name, lambda: {name: measure()})


@dataclass(frozen=True, slots=True)
class Aim:
    """A bound on a row, or on a row against another one."""

    text: str
    of: str
    bound: float
    against: str | None = None
    kind: Literal["ratio", "difference", "value"] = "ratio"
    at_most: bool = False
    full_size: bool = False  # means something only at the sizes of a full run


@dataclass(frozen=True, slots=True)
class Workload:
    name: str
    title: str
    unit: str
    contenders: Callable[[Bench, ExitStack], Sequence[Contender]]
    aims: Sequence[Aim] = ()
    note: str = ""
    by_default: bool = True
    in_quick: bool = True  # of a quick run without --only


@dataclass(slots=True)
class Outcome:
    workload: Workload
    rows: dict[str, list[Sample]] = field(default_factory=dict)
    full_size: bool = True

    def values(self, row: str) -> list[float]:
        return [sample.value for sample in self.rows[row]]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What an aim came to, each round judged by itself."""

    aim: Aim
    values: Sequence[float]

    @property
    def value(self) -> float:
        return median(self.values)

    @property
    def spread(self) -> float:
        return spread(self.values)

    @property
    def met(self) -> bool | None:
        """None if the rounds do not agree: then the run does not tell."""
        bound, at_most = self.aim.bound, self.aim.at_most
        each = {value <= bound if at_most else value >= bound for value in self.values}
        return each.pop() if len(each) == 1 else None


def judge(aim: Aim, outcome: Outcome) -> Verdict | None:
    """None if it cannot be judged: a peer was not there, or the sizes were not those it is meant for."""
    if aim.full_size and not outcome.full_size:
        return None
    if aim.of not in outcome.rows or (aim.against is not None and aim.against not in outcome.rows):
        return None
    values = outcome.values(aim.of)
    if aim.against is not None:
        pairs = zip(values, outcome.values(aim.against), strict=True)
        values = [one / other if aim.kind == "ratio" else one - other for one, other in pairs]
    return Verdict(aim, values)


def run(workload: Workload, bench: Bench) -> Outcome:
    """Start, measure in turn, stop. Raises WrongAnswer."""
    outcome = Outcome(workload, full_size=bench.sizes.recovery_records >= FULL.recovery_records)
    rounds = bench.sizes.rounds
    bench.say(f"{workload.name}: {workload.title}")
    os.sync()  # what the workload before has left to be written is not to be measured with this one
    with ExitStack() as stack:
        contenders = list(workload.contenders(bench, stack))
        for number in range(rounds):
            for turn in range(len(contenders)):
                chosen = contenders[(turn + number) % len(contenders)]
                for row, sample in chosen.measure().items():
                    outcome.rows.setdefault(row, []).append(sample)
                    bench.say(f"  round {number + 1}/{rounds}  {row:<44} {amount(sample.value)} {workload.unit}")
    order = [row for one in contenders for row in outcome.rows if row == one.name]
    outcome.rows = {row: outcome.rows[row] for row in [*order, *(row for row in outcome.rows if row not in order)]}
    return outcome


def amount(value: float) -> str:
    """A number for a table: as many digits as mean something."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
