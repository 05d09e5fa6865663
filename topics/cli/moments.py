"""Times on the command line: milliseconds since 1970, or a date and a time of day as people write them."""

from datetime import datetime
from typing import Any

import click


def time(value: str | int) -> int:
    """`1772352000000`, `2026-03-01`, `2026-03-01T08:00`, `2026-03-01T08:00:00Z`. Without a zone it is local time.

    The type of an option; its name is what help calls the value.
    """
    if isinstance(value, int):
        return value
    if value.isascii() and value.isdecimal():
        return int(value)
    try:
        ms = round(datetime.fromisoformat(value).astimezone().timestamp() * 1000)
    except (ValueError, OverflowError, OSError):
        ms = -1
    if ms < 0:
        raise click.BadParameter(f"{value} is no time since 1970; write 2026-03-01T08:00, or milliseconds")
    return ms


def start_of(from_seq: int | None, from_ts: int | None) -> dict[str, Any]:
    """Where a read begins; nothing if neither is said."""
    if from_seq is not None and from_ts is not None:
        raise click.UsageError("--from-seq or --from-ts, not both")
    if from_ts is not None:
        return {"from_ts": from_ts}
    return {"from_seq": from_seq} if from_seq is not None else {}
