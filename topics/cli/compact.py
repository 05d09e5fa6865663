"""`topics compact`: space that nobody needs goes back at once, over the shards' sockets."""

import json
import os
from typing import Any

import click

from topics.cli.admin import ask, asks_supervisor
from topics.cli.output import size
from topics.limits import COMPACT_MS


@click.command()
@asks_supervisor
def compact(socket: str, as_json: bool) -> None:
    """Give back the space of what expired, was evicted, deleted or acknowledged, and say how much it was.

    It happens by itself within about a minute; this is for those who want it now. Files go as a whole, so a
    segment stays while one of its records lives. Nothing waits meanwhile but the next checkpoint.

    \b
    Examples:
      topics compact --data-dir /var/lib/topics
      topics compact --json | jq .bytes_freed
    """
    total: dict[str, int] = {}
    for child in ask(socket, "status")["children"]:
        if child["kind"] == "shard":
            told = ask(_shard_socket(socket, child), "compact", deadline_ms=COMPACT_MS)
            total = {name: total.get(name, 0) + value for name, value in told.items()}
    if as_json:
        click.echo(json.dumps(total))
        return
    freed, used = size(total["bytes_freed"]), size(total["bytes_used"])
    segments, logs = total["segments_removed"], total["log_files_removed"]
    click.echo(f"freed {freed}: {segments} segments, {logs} log files; {used} in use")


def _shard_socket(admin: str, child: dict[str, Any]) -> str:
    return os.path.join(os.path.dirname(admin), f"shard-{child['index']}.sock")
