"""`topics verify`: is everything in a data directory as it was written? Looks, and never touches.

Exit status: 0 all is well, 1 damage, 2 it cannot be told.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from topics import limits
from topics.cli.failures import Failure
from topics.cli.output import json_option, progress

if TYPE_CHECKING:
    from topics.shards.findings import Finding, Tally

CLEAN, DAMAGED, CANNOT_TELL = 0, 1, 2
PIPE_WIDTH = 160  # of the table when nobody says how wide it may be


@click.command()
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--cold-dir", type=click.Path(path_type=Path), envvar="TOPICS_COLD_DIR", show_envvar=True,
    help="The cold directory, if segments were moved to one.",
)  # fmt: skip
@json_option
def verify(directory: Path, cold_dir: Path | None, as_json: bool) -> None:
    """Check every byte that counts in a data directory that no server runs on.

    Nothing is changed. A torn tail is what a crash leaves and no damage. Exit status: 0 all is well, 1 damage was
    found, 2 the directory cannot be checked.

    \b
    Examples:
      topics verify /var/lib/topics
      topics verify ./topics-data --json | jq .clean
    """
    from topics.shards.findings import CannotCheck, Finding, Tally
    from topics.supervisor.datadir import DataDirError, shared_data_dir

    tally, more = Tally(), 0
    findings: list[Finding] = []
    try:
        with shared_data_dir(directory):
            for finding in _check(directory, cold_dir, tally):
                if len(findings) < limits.FINDINGS_MAX:
                    findings.append(finding)
                else:
                    more += 1
        if tally.cold_segments and cold_dir is None:
            raise CannotCheck(f"{tally.cold_segments} segments are in the cold directory: say where, by --cold-dir")
    except (CannotCheck, DataDirError, OSError) as error:
        raise Failure(CANNOT_TELL, f"cannot check {directory}: {error}", "cannot_check") from None
    damage = sum(finding.damage for finding in findings) + more
    if as_json:
        click.echo(json.dumps(_summary(directory, tally, findings, more, clean=not damage)))
    else:
        _print(directory, tally, findings, more)
    sys.exit(DAMAGED if damage else CLEAN)


def _check(directory: Path, cold_dir: Path | None, tally: "Tally") -> Iterator["Finding"]:
    from topics.cli.datadir_check import check_data_dir, shard_dirs
    from topics.shards.readonly_files import ReadOnlyFiles
    from topics.shards.verify import check_shard, work_bytes

    yield from check_data_dir(directory, tally)
    shards = [(path.name, ReadOnlyFiles(str(path))) for path in shard_dirs(directory)]
    colds = {name: ReadOnlyFiles(str(cold_dir / name)) for name, _ in shards} if cold_dir is not None else {}
    with progress("checking") as bar:
        bar.expect(sum(map(work_bytes, [*(files for _, files in shards), *colds.values()])))
        for name, files in shards:
            for finding in check_shard(files, tally, bar.note, colds.get(name)):
                yield finding.below(name, f"{cold_dir}/{name}")


def _summary(directory: Path, tally: "Tally", findings: list["Finding"], more: int, *, clean: bool) -> dict[str, Any]:
    import msgspec

    return {
        "directory": str(directory),
        "clean": clean,
        "checked": msgspec.to_builtins(tally),
        "findings": [msgspec.to_builtins(finding) | {"damage": finding.damage} for finding in findings],
        "findings_not_shown": more,
    }


def _print(directory: Path, tally: "Tally", findings: list["Finding"], more: int) -> None:
    if findings:
        _print_table(findings)
    if more:
        click.echo(f"… and {more} more")
    damage = sum(finding.damage for finding in findings) + more
    verdict = f"{damage} damaged" if damage else "all is well"
    click.echo(
        f"{directory}: {verdict}. Checked {tally.shards} shards, {tally.files} files, {tally.bytes:,} bytes: "
        f"{tally.frames:,} log frames, {tally.checkpoints:,} checkpoints, {tally.topics:,} topics, "
        f"{tally.blocks:,} blocks with {tally.records:,} records."
    )
    if tally.leftovers:
        click.echo(f"{tally.leftovers} files were left over by a crash; the next start clears them away.")


def _print_table(findings: list["Finding"]) -> None:
    from rich.console import Console
    from rich.table import Column, Table
    from rich.text import Text

    console = Console() if sys.stdout.isatty() else Console(width=PIPE_WIDTH)
    file = Column("file", min_width=max(len(finding.file) for finding in findings))  # a name is there to be copied
    table = Table("kind", file, "bytes", "what it is", "what to do", show_lines=True)
    for finding in findings:
        cells = (finding.kind, finding.file, _bytes(finding), finding.what, finding.todo)
        table.add_row(*map(Text, cells))  # text as it is, without markup
    console.print(table)


def _bytes(finding: "Finding") -> str:
    if finding.offset is None:
        return ""
    return str(finding.offset) if finding.end is None else f"{finding.offset}–{finding.end}"
