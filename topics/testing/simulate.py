"""The command behind `make simulate`: histories of random seeds for a time, or one seed again, with its trace."""

import argparse
import gc
import itertools
import multiprocessing
import os
import random
import sys
import time
from collections.abc import Iterable
from math import inf

from topics.testing.simulation import Outcome, simulate

SEED_BITS = 40
COLLECT_EVERY = 20  # histories; the collector is off while one runs


def search(seeds: Iterable[int], seconds: float = inf) -> tuple[int, Outcome | None]:
    """Try seeds until one fails or the time is up; how many were tried, and the failure."""
    until, tried = time.monotonic() + seconds, 0
    for seed in seeds:
        outcome = simulate(seed)
        tried += 1
        if outcome.problems:
            return tried, outcome
        if time.monotonic() > until:
            break
        if tried % COLLECT_EVERY == 0:
            gc.collect()
    return tried, None


def search_everywhere(shares: list[tuple[Iterable[int], float]]) -> tuple[int, Outcome | None]:
    """As `search`, every share in a process of its own."""
    with multiprocessing.get_context("spawn").Pool(len(shares)) as pool:
        found = pool.starmap(search, shares)
    return sum(tried for tried, _ in found), next((outcome for _, outcome in found if outcome is not None), None)


def report(outcome: Outcome) -> str:
    problems = (f"  {problem}" for problem in outcome.problems)
    return "\n".join([f"seed {outcome.seed} fails:", *problems, f"replay it: make simulate SEED={outcome.seed}"])


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="simulate", description=__doc__)
    parser.add_argument("--seed", type=int, help="only this history, with everything that happens in it")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to try random seeds")
    chosen = parser.parse_args(arguments)
    if chosen.seed is not None:
        outcome: Outcome | None = simulate(chosen.seed)
        assert outcome is not None
        print("\n".join(outcome.trace))
        print(f"seed {chosen.seed}: {len(outcome.history.ops)} operations, {outcome.digest}")
        failure = outcome if outcome.problems else None
    else:
        starts = [random.getrandbits(SEED_BITS) for _ in range(os.cpu_count() or 1)]
        tried, failure = search_everywhere([(itertools.count(start), chosen.seconds) for start in starts])
        print(f"{tried} histories")
    if failure is not None:
        print(report(failure))
    return 1 if failure is not None else 0


if __name__ == "__main__":
    sys.exit(main())
