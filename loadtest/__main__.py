"""`python -m loadtest`: measure the server, and what users could pick instead, in one run."""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from loadtest import chart, growth, machine, report
from loadtest.catalogue import WORKLOADS
from loadtest.tools import TOOLS, Tools
from loadtest.workload import FULL, QUICK, Bench, Outcome, Sizes, WrongAnswer, run

EXIT_WRONG = 1
RESULTS = "bench-results"


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    names = "\n".join(f"  {name:<10} {workload.title}" for name, workload in WORKLOADS.items())
    parser = argparse.ArgumentParser(
        prog="python -m loadtest",
        description=__doc__,
        epilog=f"workloads:\n{names}\n\nExit status: 0, {EXIT_WRONG} if a server gave a wrong answer, 2 for usage. "
        "A missed aim is told and is no failure.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    about_quick = "small sizes, one round, the main workloads, under 90 s; a first impression only"
    parser.add_argument("--quick", action="store_true", help=about_quick)
    parser.add_argument("--only", metavar="NAMES", help="workloads to run, joined by commas (default: all but keys)")
    parser.add_argument("--growth", action="store_true", help="instead: how cost grows with topics, records and log")
    parser.add_argument("--rounds", type=int, metavar="N", help="measurements of each contender (default: 3, quick 1)")
    parser.add_argument(
        "--seconds", type=float, metavar="S", help="of one throughput measurement (default: 3, quick 0.5)"
    )
    parser.add_argument(
        "--without", metavar="TOOLS", default="", help="leave tools out: " + ", ".join(t.name for t in TOOLS)
    )
    parser.add_argument(
        "--results", type=Path, metavar="DIR", help=f"where tables, charts and JSON go (default: {RESULTS}/TIME)"
    )
    about_data = "where servers write while measured; needs a real disk and some GB (default: below the results)"
    parser.add_argument("--data", type=Path, metavar="DIR", help=about_data)
    parser.add_argument("--json", action="store_true", help="print the results as one JSON object, all else to stderr")
    args = parser.parse_args(argv)
    standard = [name for name, work in WORKLOADS.items() if work.by_default and (work.in_quick or not args.quick)]
    args.chosen = args.only.split(",") if args.only else standard
    unknown = [name for name in args.chosen if name not in WORKLOADS]
    if unknown:
        parser.error(f"unknown workload {', '.join(unknown)}; there are {', '.join(WORKLOADS)}")
    if (args.rounds is not None and args.rounds < 1) or (args.seconds is not None and args.seconds <= 0):
        parser.error("--rounds and --seconds must be positive")
    return args


def sizes_of(args: argparse.Namespace) -> Sizes:
    chosen = QUICK if args.quick else FULL
    changes = {name: getattr(args, name) for name in ("rounds", "seconds") if getattr(args, name) is not None}
    return replace(chosen, **changes)


def main(argv: Sequence[str] | None = None, sizes: Sizes | None = None) -> int:
    args = parse_args(argv)
    console = Console(stderr=args.json)
    results = args.results or Path(RESULTS) / time.strftime("%Y%m%d-%H%M%S")
    data = args.data or results
    data.mkdir(parents=True, exist_ok=True)
    tools = Tools(without=args.without.split(","))
    for tool in tools.missing():
        console.print(f"[yellow]{tool.name} is missing: {tool.lacks}.[/] To have it: {tool.how}", highlight=False)
    seen = machine.describe(data)
    for warning in machine.warnings(data):
        console.print(f"[yellow]{warning}[/]", highlight=False)
        seen["warning"] = warning  # it belongs to the numbers, wherever they go

    def say(text: str) -> None:
        print(text, flush=True, file=sys.stderr if args.json else sys.stdout)

    outcomes: list[Outcome] = []
    curves: list[growth.Curve] = []
    try:
        with tempfile.TemporaryDirectory(dir=data, prefix="data-") as folder:
            bench = Bench(Path(folder).absolute(), sizes or sizes_of(args), tools, say)
            if args.growth:
                curves = growth.curves(bench)
            else:
                outcomes = [run(WORKLOADS[name], bench) for name in args.chosen]
    except WrongAnswer as wrong:
        if args.json:
            print(json.dumps({"error": {"code": "wrong_answer", "message": str(wrong)}}), file=sys.stderr)
        else:
            console.print(f"[bold red]wrong answer:[/] {escape(str(wrong))}", highlight=False, soft_wrap=True)
        return EXIT_WRONG
    report.show(outcomes, console)
    if args.json:
        print(json.dumps(report.as_json(outcomes, curves, seen)))
    written = report.write(results, outcomes, curves, seen)
    if tools.has("matplotlib"):
        written += chart.draw(results, outcomes, curves)
    console.print("written: " + ", ".join(str(path) for path in written), highlight=False, soft_wrap=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
