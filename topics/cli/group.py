"""`topics group`: cursors that the server keeps for readers."""

import re
from typing import Any

import click
import msgspec

from topics.cli import moments
from topics.cli.api import Api, calls_api, complete_topic
from topics.cli.failures import NOT_FOUND, Failure
from topics.cli.output import confirm, line, pairs, table
from topics.cli.records import Page, print_page
from topics.paths import group_path, topic_path

TOPIC = click.argument("topic", shell_complete=complete_topic)
GROUP = click.argument("name", metavar="GROUP")
START = click.option("--from", "start", metavar="[earliest|latest|SEQ]", help="Where a new group begins. [earliest]")
START_TS = click.option("--from-ts", type=moments.time, help="Where a new group begins: at this time, instead.")
CONSUMER = click.option("--consumer", help="Who reads for the group; by a fetch, one that is new takes over. [nobody]")


@click.group()
def group() -> None:
    """Consumer groups of a topic: where they stand, how far they are behind, and moving them."""


@group.command("ls")
@TOPIC
@calls_api
def list_groups(api: Api, as_json: bool, topic: str) -> None:
    """List the groups of a topic, with their lag.

    \b
    Examples:
      topics group ls orders
      topics group ls orders --json | jq 'select(.lag > 1000)'
    """
    rows = api.json("GET", topic_path(topic, "groups"))["groups"]
    if as_json:
        for row in rows:
            line(msgspec.json.encode(row))
        return
    fields = ("group", "cursor_seq", "head_seq", "lag", "consumer")
    table(("group", "cursor ", "head ", "lag ", "consumer"), [[_shown(row[field]) for field in fields] for row in rows])


@group.command("show")
@TOPIC
@GROUP
@calls_api
def show(api: Api, as_json: bool, topic: str, name: str) -> None:
    """Where a group stands, and who reads.

    \b
    Examples:
      topics group show orders billing
      watch -n 1 topics group show orders billing
    """
    answer = api.call("GET", group_path(topic, name))
    if as_json:
        line(answer)
        return
    found = msgspec.json.decode(answer)
    pairs([(key, _shown(value)) for key, value in found.items() if key != "performance"])


@group.command("create")
@TOPIC
@GROUP
@START
@START_TS
@calls_api
def create(api: Api, as_json: bool, topic: str, name: str, start: str | None, from_ts: int | None) -> None:
    """Create a group, if it is not there. A fetch does so by itself.

    \b
    Examples:
      topics group create orders billing --from latest
      topics group create orders billing --from-ts 2026-03-01T08:00:00Z
    """
    answer = api.call("PUT", group_path(topic, name), _begins(start, from_ts))
    if as_json:
        line(answer)
        return
    found = msgspec.json.decode(answer)
    click.echo(f"{name}: {'created' if found['created'] else 'was there'}, at {found['cursor_seq']}")


@group.command("fetch")
@TOPIC
@GROUP
@CONSUMER
@click.option("--take-over", is_flag=True, help="Take the group back although another consumer has it now.")
@click.option("--limit", type=click.IntRange(1), help="At most so many records. [256]")
@click.option("--wait-ms", type=click.IntRange(0), help="If there is none, wait this long for one.")
@START
@START_TS
@click.option("--include-tags", is_flag=True, help="Show tags.")
@calls_api
def fetch(
    api: Api, as_json: bool, topic: str, name: str, start: str | None, from_ts: int | None, **options: Any
) -> None:
    """Print what a group is not done with, a record a line. With --json the whole answer. Nothing moves: see `ack`.

    \b
    Examples:
      topics group fetch orders billing --limit 10
      topics group fetch orders billing --consumer "$HOSTNAME" --wait-ms 30000
    """
    body = {key: value for key, value in options.items() if value}
    answer = api.call("POST", group_path(topic, name, "fetch"), body | _begins(start, from_ts))
    if as_json:
        line(answer)
        return
    print_page(msgspec.json.decode(answer, type=Page))


@group.command("ack")
@TOPIC
@GROUP
@click.argument("seq", type=click.IntRange(0))
@CONSUMER
@calls_api
def ack(api: Api, as_json: bool, topic: str, name: str, seq: int, consumer: str | None) -> None:
    """A group is done with everything up to SEQ. Never moves back.

    \b
    Examples:
      topics group ack orders billing 480231
    """
    _move(api, as_json, topic, name, "ack", {"seq": seq}, consumer)


@group.command("seek")
@TOPIC
@GROUP
@click.argument("to", metavar="[earliest|latest|SEQ]", required=False)
@click.option("--ts", type=moments.time, help="To this time, instead: ms since 1970, or a date and a time of day.")
@CONSUMER
@calls_api
def seek(api: Api, as_json: bool, topic: str, name: str, to: str | None, ts: int | None, consumer: str | None) -> None:
    """Move a group: to the first record, to the end, after SEQ, or to the first record from a time on.

    \b
    Examples:
      topics group seek orders billing earliest
      topics group seek orders billing 480000
      topics group seek orders billing --ts 2026-03-01T08:00:00Z
    """
    _move(api, as_json, topic, name, "seek", {"to": _where(to, ts)}, consumer)


@group.command("rm")
@TOPIC
@GROUP
@click.option("--yes", is_flag=True, help="Do not ask.")
@calls_api
def remove(api: Api, as_json: bool, topic: str, name: str, yes: bool) -> None:
    """Forget a group and where it stands. Status 3 if there is none.

    \b
    Examples:
      topics group rm orders billing --yes
    """
    confirm(f"Remove the group {name} of {topic}?", yes)
    answer = api.call("DELETE", group_path(topic, name))
    if not msgspec.json.decode(answer)["deleted"]:
        raise Failure(NOT_FOUND, f'topic "{topic}" has no consumer group "{name}"', "group_not_found")
    if as_json:
        line(answer)
    else:
        click.echo(f"{name}: removed")


def _move(
    api: Api, as_json: bool, topic: str, name: str, call: str, body: dict[str, Any], consumer: str | None
) -> None:
    answer = api.call("POST", group_path(topic, name, call), body | ({"consumer": consumer} if consumer else {}))
    if as_json:
        line(answer)
        return
    found = msgspec.json.decode(answer)
    click.echo(f"{name}: {'at' if found['moved'] else 'still at'} {found['cursor_seq']}, {found['lag']} behind")


def _begins(start: str | None, ts: int | None) -> dict[str, object]:
    return {} if start is None and ts is None else {"from": _where(start, ts)}


def _where(to: str | None, ts: int | None) -> object:
    if (to is None) == (ts is None):
        raise click.UsageError("earliest, latest, a seq, or --ts: one of them")
    if to is None:
        return {"ts": ts}
    if to not in ("earliest", "latest") and not re.fullmatch(r"[0-9]{1,19}", to):
        raise click.UsageError(f"{to!r} is neither earliest nor latest nor a seq")
    return int(to) if to.isdigit() else to


def _shown(value: object) -> object:
    return "–" if value is None else value
