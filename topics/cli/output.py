"""What commands print: tables for people, JSON for scripts, records as the bytes they are.

A record's text is what its writer sent and is never rendered anew. It may hold line ends between its tokens, which
become spaces so that a line is a record; on a terminal, control characters inside of strings are shown escaped.
"""

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click

CONTROL = re.compile("[\x7f-\x9f\u2028\u2029]")
LINE_ENDS = bytes.maketrans(b"\r\n", b"  ")
UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def json_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """`--json`, for every command that prints something a person reads by default."""

    def note(ctx: click.Context, _: click.Parameter, value: bool) -> bool:
        ctx.meta["topics.json"] = value
        return value

    help = "Print JSON: one object, or one a line for lists; errors too."
    option: Any = click.option("--json", "as_json", is_flag=True, callback=note, help=help)
    made: Callable[..., Any] = option(function)
    return made


def line(text: bytes) -> None:
    """One JSON text as a line."""
    text = text.strip().translate(LINE_ENDS)
    if sys.stdout.isatty():
        click.echo(CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text.decode(errors="replace")))
    else:
        sys.stdout.flush()
        sys.stdout.buffer.write(text + b"\n")
        sys.stdout.buffer.flush()


def table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, title: str | None = None) -> None:
    """Columns whose name ends in a space hold numbers. In a pipe the table is plain and as wide as it must be."""
    console(_width(columns, rows)).print(grid(columns, rows, title=title))


def grid(columns: Sequence[str], rows: Sequence[Sequence[object]], *, title: str | None = None) -> Any:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    made = Table(
        title=title, title_justify="left", box=box.SIMPLE_HEAD if sys.stdout.isatty() else None, pad_edge=False
    )
    for name in columns:
        made.add_column(name.strip(), justify="right" if name.endswith(" ") else "left", overflow="fold")
    for row in rows:
        made.add_row(*(Text(visible(str(cell))) for cell in row))
    return made


def console(width: int | None = None) -> Any:
    from rich.console import Console

    return Console(highlight=False) if sys.stdout.isatty() else Console(width=width, highlight=False)


def _width(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> int:
    cells = [columns, *rows]
    return max(80, sum(max(len(str(row[n])) for row in cells) + 2 for n in range(len(columns))))


def pairs(fields: Sequence[tuple[str, object]]) -> None:
    """One thing, a line a field."""
    wide = max(len(name) for name, _ in fields)
    for name, value in fields:
        click.echo(f"{name:<{wide}}  {visible(str(value))}")


def visible(text: str) -> str:
    """Without anything that a terminal would act on."""
    return re.sub(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]", lambda found: repr(found[0])[1:-1], text)


def size(count: float) -> str:
    for unit in UNITS:
        if count < 1024 or unit == UNITS[-1]:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError


def duration(ms: float) -> str:
    seconds = int(ms // 1000)
    for length, unit, below in ((86_400, "d", 3_600), (3_600, "h", 60), (60, "min", 1)):
        if seconds >= length:
            rest = seconds % length // below
            return f"{seconds // length} {unit} {rest} {'h' if unit == 'd' else 'min' if unit == 'h' else 's'}"
    return f"{seconds} s"


def microseconds(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value / 1000:.1f} ms" if value >= 1000 else f"{value:.0f} µs"


def confirm(question: str, yes: bool) -> None:
    """Before something is lost for good. Nobody to ask means no."""
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise click.UsageError(f"{question} Say so with --yes.")
    if not click.confirm(question, err=True):
        raise click.Abort


class Bar:
    """How far something has come; shown on a terminal, and nowhere else."""

    def __init__(self, shown: Any = None) -> None:
        self._shown = shown
        self._task = shown.add_task("", total=None) if shown is not None else None

    def expect(self, size: int | None) -> None:
        """So many bytes are to be done in all, if anybody knows."""
        if self._shown is not None:
            self._shown.update(self._task, total=size)

    def note(self, done: int) -> None:
        if self._shown is not None:
            self._shown.advance(self._task, done)


@contextmanager
def progress(what: str) -> Iterator[Bar]:
    if not sys.stderr.isatty():
        yield Bar()
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

    columns = (what, BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        yield Bar(shown)


@contextmanager
def count(what: str) -> Iterator[Callable[[int, int], None]]:
    """A line on a terminal that says how many of how many are done, nothing elsewhere."""
    shown = sys.stderr.isatty()

    def note(done: int, total: int) -> None:
        if shown:
            click.echo(f"\r{what}: {done} of {total} ", nl=False, err=True)

    yield note
    if shown:
        click.echo("", err=True)
