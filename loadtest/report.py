"""The results: a table for the terminal and for a page, and everything as JSON."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from loadtest.growth import Curve
from loadtest.stats import spread
from loadtest.workload import Outcome, Verdict, amount, judge

DETAILS = ("p50", "p99", "max", "client_us", "gateway_us", "shard_us")
WORDS = {True: "met", False: "missed", None: "unclear"}  # unclear: the rounds do not agree
BRIEF = ("p50", "p99")  # what a terminal has room for
HEADS = {"client_us": "client µs", "gateway_us": "gateway µs", "shard_us": "shard µs"}


def details_of(outcome: Outcome) -> list[str]:
    """The details that at least one row has, but for one that repeats the value."""
    seen = {name for samples in outcome.rows.values() for sample in samples for name in sample.details}
    return [name for name in DETAILS if name in seen]


def lines_of(outcome: Outcome, shown: Sequence[str] = DETAILS) -> Iterator[list[str]]:
    """The head, then a line for each row: name, median, spread, medians of the details that are to be shown."""
    details = [name for name in details_of(outcome) if name in shown]
    yield ["", outcome.workload.unit, "spread", *(HEADS.get(name, f"{name} ms") for name in details)]
    for row, samples in outcome.rows.items():
        values = outcome.values(row)
        cells = [row, amount(median(values)), f"{spread(values):.0%}"]
        for name in details:
            found = [sample.details[name] for sample in samples if name in sample.details]
            cells.append(amount(median(found)) if found else "")
        yield cells


def verdict_lines(outcomes: Sequence[Outcome]) -> Iterator[list[str]]:
    yield ["", "aim", "measured", "spread", ""]
    for outcome in outcomes:
        for aim in outcome.workload.aims:
            bound = f"{'≤' if aim.at_most else '≥'} {aim.bound:g}{' ×' if aim.kind == 'ratio' else ''}"
            name = f"{outcome.workload.name}: {aim.text}"
            verdict = judge(aim, outcome)
            yield [name, bound, *(_cells(verdict) if verdict else ["not judged", "", ""])]


def _cells(verdict: Verdict) -> list[str]:
    times = " ×" if verdict.aim.kind == "ratio" else ""
    return [f"{verdict.value:.2f}{times}", f"{verdict.spread:.0%}", WORDS[verdict.met]]


def _markdown_table(lines: Iterator[list[str]]) -> str:
    head, *rows = lines
    ruler = ["---", *(["---:"] * (len(head) - 1))]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, ruler, *rows))


def markdown(outcomes: Sequence[Outcome], machine: Mapping[str, str]) -> str:
    parts = ["Measured on: " + "; ".join(f"{name} {value}" for name, value in machine.items()) + "."]
    if any(outcome.workload.aims for outcome in outcomes):
        parts.append(_markdown_table(verdict_lines(outcomes)))
    for outcome in outcomes:
        title = f"**{outcome.workload.name}: {outcome.workload.title}.** {outcome.workload.note}".rstrip()
        parts += [title, _markdown_table(lines_of(outcome))]
    return "\n\n".join(parts) + "\n"


def show(outcomes: Sequence[Outcome], console: Console) -> None:
    for outcome in outcomes:
        console.print(_terminal_table(f"{outcome.workload.name}: {outcome.workload.title}", lines_of(outcome, BRIEF)))
    if outcomes:
        console.print(_terminal_table("aims", verdict_lines(outcomes)))


def _terminal_table(title: str, lines: Iterator[list[str]]) -> Table:
    head, *rows = lines
    table = Table(title=title, title_justify="left", box=box.SIMPLE)
    for number, name in enumerate(head):
        table.add_column(name, justify="right" if number else "left", no_wrap=bool(number))
    for cells in rows:
        table.add_row(*cells, style={"missed": "yellow", "met": "green"}.get(cells[-1]))
    return table


def as_json(outcomes: Sequence[Outcome], curves: Sequence[Curve], machine: Mapping[str, str]) -> dict[str, Any]:
    return {
        "machine": dict(machine),
        "workloads": [
            {
                "name": outcome.workload.name,
                "title": outcome.workload.title,
                "unit": outcome.workload.unit,
                "rows": {row: [asdict(sample) for sample in samples] for row, samples in outcome.rows.items()},
                "aims": [_verdict_json(judge(aim, outcome), aim.text) for aim in outcome.workload.aims],
            }
            for outcome in outcomes
        ],
        "growth": [asdict(curve) for curve in curves],
    }


def _verdict_json(verdict: Verdict | None, text: str) -> dict[str, Any]:
    if verdict is None:
        return {"text": text, "met": None}
    seen = {"value": verdict.value, "spread": verdict.spread, "met": verdict.met}
    return {"text": text, "bound": verdict.aim.bound, "at_most": verdict.aim.at_most, **seen}


def write(folder: Path, outcomes: Sequence[Outcome], curves: Sequence[Curve], machine: Mapping[str, str]) -> list[Path]:
    """The files of a run that need nothing but Python."""
    folder.mkdir(parents=True, exist_ok=True)
    results, table = folder / "results.json", folder / "table.md"
    results.write_text(json.dumps(as_json(outcomes, curves, machine), indent=1) + "\n")
    table.write_text(markdown(outcomes, machine))
    return [results, table]
