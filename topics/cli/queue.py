"""`topics queue`: the life of jobs, over HTTP."""

import os
import socket
from typing import Any

import click
import msgspec

from topics.cli.api import Api, calls_api, complete_topic
from topics.cli.failures import CONFLICT, Failure
from topics.cli.output import count, line, pairs
from topics.paths import topic_path

REDRIVE_STEP = 500  # dead letters in one call
NAME = click.argument("name", metavar="QUEUE", shell_complete=complete_topic)
SEQS = click.argument("seqs", metavar="SEQ...", nargs=-1, required=True, type=int)
NODE = click.option("--node", help="Who the worker is. [cli@<host>; TOPICS_NODE]")
LEASES = click.option(
    "--lease-id", "lease_ids", multiple=True, help="The lease of each SEQ, in order: stale ones are skipped."
)


class Claimed(msgspec.Struct):
    claimed: list[msgspec.Raw]


@click.group()
def queue() -> None:
    """Jobs of a queue: claim them, and say what became of them. `topics topic append` adds some."""


def _node(given: str | None) -> str:
    """The same for every command of a person on one machine, so that an ack finds its claim."""
    return given or os.environ.get("TOPICS_NODE") or f"cli@{socket.gethostname()}"


@queue.command()
@NAME
@NODE
@click.option("--max", "most", type=click.IntRange(1), default=1, help="At most so many jobs. [1]")
@click.option("--lease-ms", type=click.IntRange(1), help="How long they are ours. [the queue's]")
@click.option("--wait-ms", type=click.IntRange(0), help="If there is none, wait this long for one.")
@calls_api
def claim(api: Api, as_json: bool, name: str, node: str | None, most: int, **options: int | None) -> None:
    """Lease jobs and print them, one a line, as JSON. With --json the whole answer.

    No line means that there is nothing to do; that is no failure.

    \b
    Examples:
      topics queue claim jobs --max 10 --lease-ms 60000
      topics queue claim jobs --wait-ms 30000 | jq '."$seq"'
    """
    body: dict[str, Any] = {"node": _node(node), "max": most}
    body |= {key: value for key, value in options.items() if value is not None}
    answer = api.call("POST", topic_path(name, "claim"), body)
    if as_json:
        line(answer)
        return
    for job in msgspec.json.decode(answer, type=Claimed).claimed:
        line(bytes(job))


def _settle(api: Api, as_json: bool, name: str, action: str, node: str | None, body: dict[str, Any]) -> None:
    """Status 5 if a job was not ours any more: it may be done twice."""
    if not body["lease_ids"]:
        del body["lease_ids"]
    answer = api.call("POST", topic_path(name, action), {"node": _node(node), **body})
    found = msgspec.json.decode(answer)
    done = {"ack": "acked", "nack": "nacked", "extend": "extended"}[action]
    if as_json:
        line(answer)
    else:
        click.echo(f"{name}: {found[done]} {done}")
    if found["skipped"]:
        skipped = ", ".join(map(str, found["skipped"]))
        raise Failure(CONFLICT, f"not leased to {_node(node)} (any more): {skipped}", "skipped", seqs=found["skipped"])


@queue.command()
@NAME
@SEQS
@NODE
@LEASES
@calls_api
def ack(
    api: Api, as_json: bool, name: str, seqs: tuple[int, ...], node: str | None, lease_ids: tuple[str, ...]
) -> None:
    """Jobs are done: delete them. Status 5 if one of them is not ours (any more).

    \b
    Examples:
      topics queue ack jobs 480101 480104
      topics queue ack jobs 480101 --lease-id lease_7f3a9c
    """
    _settle(api, as_json, name, "ack", node, {"seqs": seqs, "lease_ids": lease_ids})


@queue.command()
@NAME
@SEQS
@NODE
@LEASES
@click.option("--delay-ms", type=click.IntRange(0), default=0, help="Nobody gets them for this long. [0]")
@click.option("--reason", help="Why; a dead letter tells the last one.")
@click.option("--penalty/--no-penalty", default=True, help="Whether the delivery counts. [it does]")
@calls_api
def nack(api: Api, as_json: bool, name: str, node: str | None, **body: Any) -> None:
    """Give jobs back, for somebody else or for later.

    \b
    Examples:
      topics queue nack jobs 480104 --reason 'no such bucket'
      topics queue nack jobs 480104 --delay-ms 60000 --no-penalty
    """
    if body["reason"] is None:
        del body["reason"]
    _settle(api, as_json, name, "nack", node, body)


@queue.command()
@NAME
@SEQS
@NODE
@LEASES
@click.option("--lease-ms", type=click.IntRange(1), required=True, help="How long they are ours, from now.")
@calls_api
def extend(api: Api, as_json: bool, name: str, node: str | None, **body: Any) -> None:
    """Keep jobs for longer.

    \b
    Examples:
      topics queue extend jobs 480101 --lease-ms 120000
    """
    _settle(api, as_json, name, "extend", node, body)


@queue.command()
@NAME
@calls_api
def stats(api: Api, as_json: bool, name: str) -> None:
    """How many jobs are ready, leased, dead-lettered so far, and scheduled for later.

    \b
    Examples:
      topics queue stats jobs
      watch -n 1 topics queue stats jobs
    """
    found = api.json("GET", topic_path(name), query={"touch": False})
    if "queue" not in found:
        raise Failure(CONFLICT, f'"{name}" is no queue', "not_a_queue")
    numbers = {"topic": name, "jobs": found["count"], **found["queue"]}
    if as_json:
        line(msgspec.json.encode(numbers))
    else:
        pairs(list(numbers.items()))


@queue.command()
@click.argument("name", metavar="DEAD-LETTERS", shell_complete=complete_topic)
@click.option("--to", required=True, shell_complete=complete_topic, help="The queue that they go to.")
@click.option("--tag", help="Only those with this tag.")
@click.option("--tag-prefix", help="Only those whose tag begins like this.")
@click.option("--limit", type=click.IntRange(1), help="At most so many. [all there are now]")
@calls_api
def redrive(
    api: Api, as_json: bool, name: str, to: str, tag: str | None, tag_prefix: str | None, limit: int | None
) -> None:
    """Move dead letters back to a queue, with no delivery counted. None is lost if something fails on the way.

    \b
    Examples:
      topics queue redrive jobs.dead --to jobs
      topics queue redrive jobs.dead --to jobs --tag-prefix tenant42: --limit 100
    """
    if tag is not None and tag_prefix is not None:
        raise click.UsageError("--tag or --tag-prefix, not both")
    body: dict[str, Any] = {"to": to}
    if tag is not None or tag_prefix is not None:
        body["match"] = ["tag", "Eq", tag] if tag is not None else ["tag", "Glob", f"{tag_prefix}*"]
    moved, left, pending = _redrive_all(api, name, body, limit)
    if as_json:
        line(msgspec.json.encode({"topic": name, "to": to, "moved": moved, "remaining": left, "pending": pending}))
        return
    under_way = f", {pending} on their way" if pending else ""
    click.echo(f"{name}: {moved} moved to {to}{under_way}, {left} left")


def _redrive_all(api: Api, name: str, body: dict[str, Any], limit: int | None) -> tuple[int, int, int]:
    """Call by call, so that there is progress to see. Those that fail again meanwhile and come back are left alone."""
    moved = pending = left = 0
    most = limit
    with count(f"moving dead letters of {name}") as note:
        while most is None or moved + pending < most:
            step = REDRIVE_STEP if most is None else min(REDRIVE_STEP, most - moved - pending)
            found = api.json("POST", topic_path(name, "redrive"), {**body, "limit": step})
            moved, left, pending = moved + found["moved"], found["remaining"], pending + found["pending"]
            most = min(most or moved + pending + left, moved + pending + left)
            note(moved, moved + left)
            if not found["moved"]:
                break
    return moved, left, pending
