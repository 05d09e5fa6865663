"""How long the loop of a shard stands still: `python -m loadtest.steps`.

Each scenario (steps_scenarios.py) has a shard of its own, a process that measures its steps (stepped_shard.py), and
prints one line: the longest step in processor time, which it was, and how many took more than 2 ms.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import trio

from loadtest.steps_scenarios import SCENARIOS, Bench, Scenario
from topics.testing.shard_process import DEADLINE_S, ShardProcess

HEAD = ("scenario", "longest step, ms", "over 2 ms", "steps", "turn, ms", "gc, ms", "which")


class SteppedShard(ShardProcess):
    """A real shard, but for the instrument in its loop."""

    answer_s = DEADLINE_S

    def start(self, *wrapper: str, **options: Any) -> None:
        command = [*wrapper, sys.executable, "-m", "loadtest.stepped_shard", "--dir", str(self.directory)]
        command += ["--socket", self.socket, *self._args]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, **options)

    def order(self, what: str) -> Any:
        """In a thread: the answer may take as long as a step. A shard that gives none is killed."""
        assert self.process is not None
        orders, answers = self.process.stdin, self.process.stdout
        assert orders is not None
        assert answers is not None
        patience = threading.Timer(self.answer_s, self.process.kill)
        patience.start()
        try:
            orders.write(what.encode() + b"\n")
            orders.flush()
            answer = answers.readline()
        finally:
            patience.cancel()
        assert answer, f"the shard did not answer to {what!r} within {self.answer_s} s, or has ended"
        return json.loads(answer)


async def measure(scenario: Scenario, scale: float, *, stacks: bool = False) -> dict[str, Any]:
    """What the shard tells about its steps."""
    with tempfile.TemporaryDirectory(prefix="steps-") as directory:
        args = [*scenario.args, *(["--stacks"] if stacks else [])]
        if scenario.failpoints:
            args += ["--failpoints", scenario.failpoints]
        shard = SteppedShard(Path(directory) / "shard", *args)
        shard.start()
        told: dict[str, Any] = {}

        @asynccontextmanager
        async def measured(settle_s: float = 0.05) -> AsyncIterator[None]:
            await trio.to_thread.run_sync(shard.order, "begin")
            yield
            await trio.sleep(settle_s)
            told.update(await trio.to_thread.run_sync(shard.order, "end"))

        try:
            async with shard.connected() as client:
                await scenario.run(Bench(client, scale, measured))
        finally:
            shard.clean_up()
    return told


def row_of(name: str, told: dict[str, Any]) -> list[str]:
    longest = told["longest"][0]
    numbers = [f"{longest['ms']:.2f}", str(told["long"]), str(told["steps"])]
    return [name, *numbers, f"{told['turn_ms']:.2f}", f"{told['gc_ms']:.2f}", longest["what"]]


def show(row: Sequence[str]) -> None:
    widths = (18, 17, 10, 8, 9, 7)
    print("".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)) + row[-1], flush=True)


def show_more(told: dict[str, Any]) -> None:
    for step in told["longest"]:
        print(f"    {step['ms']:7.2f} ms  {step['what']}")
        for line in step["stack"]:
            print(f"                {line}")


def parse(argv: list[str] | None) -> argparse.Namespace:
    about = "\n".join(f"  {scenario.name:14} {scenario.what}" for scenario in SCENARIOS)
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.steps",
        description="How long the loop of a shard stands still, in processor time of its thread.",
        epilog=f"scenarios:\n{about}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", metavar="NAMES", help="these scenarios, separated by commas")
    parser.add_argument("--scale", type=float, default=1.0, help="so much of every scenario (default %(default)s)")
    parser.add_argument("--stacks", action="store_true", help="also show the longest few steps, and where they were")
    args = parser.parse_args(argv)
    known = {scenario.name for scenario in SCENARIOS}
    unknown = set(args.only.split(",")) - known if args.only else ()
    if unknown:
        parser.error(f"no such scenario: {', '.join(sorted(unknown))}")
    return args


def main(argv: list[str] | None = None) -> None:
    args = parse(argv)
    names = args.only.split(",") if args.only else [scenario.name for scenario in SCENARIOS]
    show(HEAD)
    for scenario in SCENARIOS:
        if scenario.name in names:
            told = trio.run(partial(measure, scenario, args.scale, stacks=args.stacks))
            show(row_of(scenario.name, told))
            if args.stacks:
                show_more(told)


if __name__ == "__main__":
    main()
