"""`topics router`: rules that copy the records of one topic to another."""

from typing import Any

import click
import msgspec

from topics.cli.api import Api, calls_api, complete_topic
from topics.cli.failures import NOT_FOUND, Failure
from topics.cli.output import confirm, line, pairs, table
from topics.paths import router_path

NAME = click.argument("name", metavar="ROUTER")


@click.group()
def router() -> None:
    """Rules that copy the records of one topic to another."""


@router.command("ls")
@click.option("--prefix", help="Only names that begin like this.")
@click.option("--source", help="Only those that read this topic.", shell_complete=complete_topic)
@click.option("--dest", help="Only those that write to this topic.", shell_complete=complete_topic)
@click.option("--limit", type=click.IntRange(1), help="At most so many. [all]")
@calls_api
def list_routers(api: Api, as_json: bool, limit: int | None, **query: str | None) -> None:
    """List routers.

    \b
    Examples:
      topics router ls
      topics router ls --source orders --json
    """
    rows = api.pages("/v0/routers", "routers", query, limit)
    if as_json:
        for row in rows:
            line(msgspec.json.encode(row))
        return
    columns = ("router", "source", "dest", "guarantee", "forwarded ")
    table(
        columns,
        [tuple(row[key] for key in ("router", "source", "dest", "guarantee", "forwarded_total")) for row in rows],
    )


@router.command("put")
@click.argument("source", shell_complete=complete_topic)
@click.argument("dest", shell_complete=complete_topic)
@click.option("--name", help="Its name. [SOURCE->DEST]")
@click.option("--tag", help="Only records with this tag.")
@click.option("--tag-prefix", help="Only records whose tag begins like this.")
@click.option("--exactly-once", is_flag=True, help="Copies are never doubled, as long as the first is still there.")
@click.option("--preserve-node/--drop-node", default=True, help="Whether copies keep their node.")
@click.option("--preserve-tag/--drop-tag", default=True, help="Whether copies keep their tag.")
@click.option("--create-dest/--no-create-dest", default=True, help="Whether DEST is made if it is not there.")
@click.option("--allow-cycle", is_flag=True, help="Even if it closes a circle.")
@calls_api
def put(api: Api, as_json: bool, source: str, dest: str, name: str | None, **options: Any) -> None:
    """Copy what is appended to SOURCE from now on to DEST, or change the rule that does.

    \b
    Examples:
      topics router put orders audit
      topics router put orders public --tag-prefix public: --exactly-once
    """
    tag, prefix = options.pop("tag"), options.pop("tag_prefix")
    if tag is not None and prefix is not None:
        raise click.UsageError("--tag or --tag-prefix, not both")
    chosen = ["tag", "Eq", tag] if tag is not None else ["tag", "Glob", prefix + "*"] if prefix is not None else None
    guarantee = "exactly_once" if options.pop("exactly_once") else "at_least_once"
    body = {"source": source, "dest": dest, "filter": chosen, "guarantee": guarantee, **options}
    name = name or f"{source}->{dest}"
    answer = api.call("PUT", router_path(name), body)
    if as_json:
        line(answer)
    else:
        made = msgspec.json.decode(answer)["created"]
        click.echo(f"{name}: {'created' if made else 'was there, and is as asked'}")


@router.command("show")
@NAME
@calls_api
def show(api: Api, as_json: bool, name: str) -> None:
    """Show a router.

    \b
    Examples:
      topics router show 'orders->audit'
    """
    answer = api.call("GET", router_path(name))
    if as_json:
        line(answer)
        return
    found = msgspec.json.decode(answer)
    pairs([(key, "–" if value is None else value) for key, value in found.items() if key != "performance"])


@router.command("rm")
@NAME
@click.option("--yes", is_flag=True, help="Do not ask.")
@calls_api
def remove(api: Api, as_json: bool, name: str, yes: bool) -> None:
    """Remove a router. What it has copied stays. Status 3 if there is none.

    \b
    Examples:
      topics router rm 'orders->audit' --yes
    """
    confirm(f"Remove the router {name}?", yes)
    answer = api.call("DELETE", router_path(name))
    if not msgspec.json.decode(answer)["deleted"]:
        raise Failure(NOT_FOUND, f'router "{name}" does not exist', "router_not_found")
    if as_json:
        line(answer)
    else:
        click.echo(f"{name}: removed")
