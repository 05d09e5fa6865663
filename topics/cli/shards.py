"""`topics shards`: the processes that hold the data, over the supervisor's admin socket."""

import json
import time
from typing import Any

import click

from topics.cli.admin import ask, asks_supervisor
from topics.cli.failures import LATER, Failure
from topics.cli.output import console
from topics.cli.rebalance import rebalance
from topics.cli.status import shard_grid

POLL_S = 0.1


@click.group()
def shards() -> None:
    """The processes that hold the data."""


shards.add_command(rebalance)


@shards.command("ls")
@asks_supervisor
def list_shards(socket: str, as_json: bool) -> None:
    """List shards: pid, state, restarts, memory, topics, the log and its syncs.

    \b
    Examples:
      topics shards ls --data-dir /var/lib/topics
      topics shards ls --json | jq -c '[.index, .pid, .state]'
    """
    children = [child for child in ask(socket, "status")["children"] if child["kind"] == "shard"]
    if as_json:
        for child in children:
            click.echo(json.dumps(child))
    else:
        console(200).print(shard_grid(children, time.time() * 1000))


@shards.command()
@click.argument("number", type=click.IntRange(0), metavar="N")
@click.option("--wait/--no-wait", default=True, help="Whether to wait until it serves again.")
@click.option("--timeout", type=click.FloatRange(0.1), default=60.0, help="Seconds to wait. [60]")
@asks_supervisor
def restart(socket: str, as_json: bool, number: int, wait: bool, timeout: float) -> None:
    """Restart shard N: it stores what it has, ends, and is started again. Its topics answer 503 meanwhile.

    Status 7 if it does not serve again in time.

    \b
    Examples:
      topics shards restart 0
      for n in 0 1 2 3; do topics shards restart $n || break; done
    """
    old = ask(socket, "restart", {"kind": "shard", "index": number})["pid"]
    if not wait:
        _say(as_json, {"index": number, "old_pid": old}, f"shard {number}: pid {old} was asked to end")
        return
    until = time.monotonic() + timeout
    while True:
        child = _shard(ask(socket, "status"), number)
        if child["state"] == "ready" and child["pid"] != old:
            break
        if time.monotonic() > until:
            raise Failure(
                LATER, f"shard {number} does not serve again within {timeout:g} s: {child['state']}", "not_ready"
            )
        time.sleep(POLL_S)
    said = {"index": number, "old_pid": old, "pid": child["pid"]}
    _say(as_json, said, f"shard {number}: serves again, pid {child['pid']} after {old}")


def _shard(seen: dict[str, Any], number: int) -> dict[str, Any]:
    found: dict[str, Any] = next(
        child for child in seen["children"] if (child["kind"], child["index"]) == ("shard", number)
    )
    return found


def _say(as_json: bool, fields: dict[str, Any], text: str) -> None:
    click.echo(json.dumps(fields) if as_json else text)
