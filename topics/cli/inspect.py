"""`topics inspect`: what stands in one file of a data directory, for a person.

Exit status: 0 everything checks, 1 something does not, 2 it is not a file of topics or cannot be read.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

import click

from topics.cli.failures import USAGE, Failure
from topics.cli.output import json_option

UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")  # a line stays a line, and a terminal is left alone


@click.command()
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@json_option
@click.option("--data", "with_data", is_flag=True, help="Show the records' texts and tags, too.")
def inspect(file: Path, as_json: bool, with_data: bool) -> None:
    """Print the frames of one file: where they are, what they are, and whether they check.

    Works on the log, data files, their indexes, snapshots, quarantined bytes, slots.used, heads.reg, SLOTS and
    FORMAT. Only looks, and asks for no lock: the end of a file that a server writes to may look torn.

    \b
    Examples:
      topics inspect topics-data/shard-00/wal/0000000012.wal
      topics inspect topics-data/SLOTS --json
    """
    from topics.shards.inspect import NotOurs, describe

    bad = False
    try:
        for line in describe(file, with_data=with_data):
            bad = bad or line.get("check") is False
            click.echo(json.dumps(line, ensure_ascii=False) if as_json else _text(line))
    except (NotOurs, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise Failure(USAGE, f"cannot inspect {file}: {reason}", "cannot_inspect") from None
    sys.exit(1 if bad else 0)


def _text(line: dict[str, Any]) -> str:
    fields = dict(line)
    offset, kind = fields.pop("offset", ""), fields.pop("kind")
    check = {True: "ok", False: "BAD"}.get(fields.pop("check", None), "")
    shown = "  ".join(f"{name}={_value(value)}" for name, value in fields.items())
    return f"{offset:>10}  {check:<3}  {kind:<20}  {shown}".rstrip()


def _value(value: Any) -> str:
    text = ",".join(map(str, value)) or "-" if isinstance(value, list) else str(value)
    return UNPRINTABLE.sub(lambda found: repr(found[0])[1:-1], text)
