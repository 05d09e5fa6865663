"""`topics topic`: topics and their records, over HTTP."""

import sys
from pathlib import Path
from typing import Any

import click
import msgspec

from topics.cli import moments
from topics.cli.api import Api, calls_api, complete_topic
from topics.cli.failures import NOT_FOUND, Failure
from topics.cli.output import confirm, line, pairs, progress, size, table
from topics.paths import topic_path

NAME = click.argument("name", metavar="TOPIC", shell_complete=complete_topic)
YES = click.option("--yes", is_flag=True, help="Do not ask.")


@click.group()
def topic() -> None:
    """Topics and their records."""


@topic.command("ls")
@click.option("--prefix", default="", help="Only names that begin like this.")
@click.option("--limit", type=click.IntRange(1), help="At most so many. [all]")
@calls_api
def list_topics(api: Api, as_json: bool, prefix: str, limit: int | None) -> None:
    """List topics.

    \b
    Examples:
      topics topic ls
      topics topic ls --prefix tenant42: --json | jq -r .topic
    """
    rows = api.pages("/v0/topics", "topics", {"prefix": prefix or None}, limit)
    if as_json:
        for row in rows:
            line(msgspec.json.encode(row))
        return
    shown = [
        (row["topic"], row["count"], size(row["bytes"]), row["earliest_seq"], row["head_seq"],
         row["effective_priority"], "yes" if row["durable"] else "")
        for row in rows
    ]  # fmt: skip
    table(("topic", "records ", "bytes ", "earliest ", "head ", "priority ", "fsync"), shown)


CONFIG_OPTIONS: tuple[tuple[str, Any, str], ...] = (
    ("--type", click.Choice(["log", "queue"]), "A log, or a queue of jobs. Cannot be changed later."),
    ("--durability", click.Choice(["ephemeral", "memory", "disk", "fsync"]), "When a write counts as done."),
    ("--ttl-ms", int, "Records expire after this long; 0 is never."),
    ("--cap-records", int, "At most so many records; 0 is any number."),
    ("--cap-bytes", int, "At most so many bytes; 0 is any number."),
    ("--discard", click.Choice(["old", "reject"]), "What gives way in a full topic."),
    ("--priority", int, "Fixed priority, -1000 to 1000."),
    ("--idempotency-window-ms", int, "How long idempotency and dedup keys are remembered."),
    ("--message-ids", bool, "Each new record gets a UUIDv7 as $id."),
    ("--lease-ms", int, "Queue: how long a claimed job is somebody's."),
    ("--claim-jitter-ms", int, "Queue: claims within this window share fairly."),
    ("--max-deliveries", int, "Queue: so many tries before the dead-letter topic."),
    ("--dead-letter", str, "Queue: the topic for jobs that nobody could do."),
    ("--leases-durable", bool, "Queue: leases survive a crash."),
    ("--compression", click.Choice(["none", "gzip", "zstd"]), "How records are stored from now on."),
    ("--compression-min-bytes", int, "Blocks with less text than this are not compressed."),
    ("--priority-age-ms", int, "Queue: a waiting job gains a priority every so often; 0 is never."),
)


def config_options(function: Any) -> Any:
    for flag, kind, help in reversed(CONFIG_OPTIONS):
        function = click.option(flag, type=kind, default=None, help=help)(function)
    return function


@topic.command("create")
@NAME
@config_options
@click.option("--config", "given", metavar="JSON", help="The whole config as a JSON object; the flags above win.")
@calls_api
def create(api: Api, as_json: bool, name: str, given: str | None, **flags: Any) -> None:
    """Create a topic, or change the config of one that is there.

    \b
    Examples:
      topics topic create payments --durability fsync
      topics topic create jobs --type queue --max-deliveries 5 --dead-letter jobs.dlq
    """
    config = _object(given, "--config") if given else {}
    config |= {name: value for name, value in flags.items() if value is not None}
    answer = api.call("PUT", topic_path(name), config)
    if as_json:
        line(answer)
        return
    found = msgspec.json.decode(answer)
    click.echo(f"{name}: {'created' if found['created'] else 'was there, and is as asked'}")


def _object(text: str, flag: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise click.UsageError(f"{flag} is no JSON object: {error}") from None


@topic.command("show")
@NAME
@calls_api
def show(api: Api, as_json: bool, name: str) -> None:
    """Show a topic's state and config. Looking does not raise its priority.

    \b
    Examples:
      topics topic show orders
      topics topic show orders --json | jq .head_seq
    """
    answer = api.call("GET", topic_path(name), query={"touch": False})
    if as_json:
        line(answer)
        return
    found = msgspec.json.decode(answer)
    plain = [(key, value) for key, value in found.items() if not isinstance(value, dict)]
    pairs(
        [(key, size(value) if key == "bytes" else value) for key, value in plain]
        + [(f"queue.{key}", value) for key, value in found.get("queue", {}).items()]
        + [(f"group.{name}.lag", group["lag"]) for name, group in found.get("groups", {}).items()]
        + [(f"config.{key}", "–" if value is None else value) for key, value in found["config"].items()]
    )


@topic.command("rm")
@NAME
@click.option("--if-empty", is_flag=True, help="Only if it holds no record.")
@YES
@calls_api
def remove(api: Api, as_json: bool, name: str, if_empty: bool, yes: bool) -> None:
    """Remove a topic with all its records and the routers from and to it, for good. Status 3 if there is none.

    \b
    Examples:
      topics topic rm scratch --yes
      topics topic rm scratch --if-empty --yes
    """
    confirm(f"Remove the topic {name} and everything in it?", yes)
    answer = api.call("DELETE", topic_path(name), query={"if_empty": if_empty or None})
    found = msgspec.json.decode(answer)
    if not found["deleted"]:
        raise Failure(NOT_FOUND, f'topic "{name}" does not exist', "topic_not_found")
    if as_json:
        line(answer)
        return
    routers = found["routers_removed"]
    click.echo(f"{name}: removed" + (f", with the routers {', '.join(routers)}" if routers else ""))


@topic.command("append")
@NAME
@click.argument("data", nargs=-1)
@click.option(
    "--file", type=click.Path(path_type=Path, allow_dash=True), help="Read a value a line from here; - is stdin."
)
@click.option("--text", is_flag=True, help="Values are plain text, not JSON.")
@click.option(
    "--records", "whole", is_flag=True, help='Lines are whole records: {"data": …, "tag": …, "dedup_key": …}.'
)
@click.option("--tag", help="Tag of every record.")
@click.option("--dedup-key", help="A record with this key that is there already is not appended. For one record.")
@click.option("--priority", type=click.IntRange(0, 9), help="Queue: how urgent every job is, 0 to 9.")
@click.option("--delay-ms", type=click.IntRange(0), help="Queue: nobody gets the jobs for this long.")
@click.option("--not-before", type=click.IntRange(0), help="Queue: nobody gets the jobs before this time, in unix ms.")
@click.option(
    "--ttl-ms", "--ttl", type=click.IntRange(1), help="Every record is gone after this long, as if it were deleted."
)
@click.option("--node", help="Node id of the writer.")
@click.option("--meta", multiple=True, metavar="NAME=VALUE", help="A member of every record's meta.")
@click.option("--idempotency-key", help="Sent again with the same key, it is written once. Batches get key-2, key-3 …")
@click.option("--create/--no-create", default=None, help="Whether a topic that is not there is made. [its config]")
@click.option(
    "--batch", type=click.IntRange(1, 10_000), default=1000, help="Records in one request, from a file. [1000]"
)
@calls_api
def append(api: Api, as_json: bool, name: str, data: tuple[str, ...], **options: Any) -> None:
    """Append records. DATA are JSON values; without any, lines are read from --file or stdin.

    Each request is written whole or not at all. After a failure the last line says how far it came.

    \b
    Examples:
      topics topic append orders '{"id": 1}' '{"id": 2}' --tag customer-7
      topics topic append notes --text 'tea is ready'
      topics topic append jobs '{"resize": "a.png"}' --priority 9 --delay-ms 60000
      topics topic append codes '{"user": 7, "code": "1234"}' --ttl-ms 300000
      zcat events.jsonl.gz | topics topic append events --idempotency-key import-1
    """
    from topics.cli import records

    file: Path | None = options["file"]
    if not data and file is None:
        if sys.stdin.isatty():
            raise click.UsageError("nothing to append: give DATA, --file, or lines on stdin")
        file = Path("-")
    if options["dedup_key"] is not None and (len(data) != 1 or file is not None or options["whole"]):
        raise click.UsageError("--dedup-key is of one DATA; with --records each line may have its own dedup_key")
    wanted = ("tag", "dedup_key", "priority", "delay_ms", "not_before", "ttl_ms")
    each = {name: options[name] for name in wanted if options[name] is not None}
    if meta := _pairs(options["meta"]):
        each["meta"] = meta
    render = records.Renderer(options["text"], options["whole"], each)
    fields = {name: options[name] for name in ("node", "idempotency_key", "create") if options[name] is not None}
    done = 0
    with records.open_lines(data, file) as (lines, total), progress(f"appending to {name}") as bar:
        bar.expect(total)
        for batch in records.batches(render, lines, options["batch"]):
            answer = api.call("POST", topic_path(name), batch.body(fields))
            bar.note(batch.read)
            done += len(batch.texts)
            if as_json:
                line(answer)
            else:
                found = msgspec.json.decode(answer)
                click.echo(f"{name}: {records.outcome(found)}")
    if not done:
        raise click.UsageError("nothing to append: the input is empty")


def _pairs(given: tuple[str, ...]) -> dict[str, str]:
    made = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals:
            raise click.UsageError(f"--meta {text} is not NAME=VALUE")
        made[key] = value
    return made


@topic.command("diff")
@NAME
@click.option("--from-seq", type=click.IntRange(0), help="Records after this seq. [0: from the earliest]")
@click.option("--from-ts", type=moments.time, help="Records from this time on, instead.")
@click.option("--limit", type=click.IntRange(1), default=256, help="At most so many records, whatever it takes. [256]")
@click.option("--all", "everything", is_flag=True, help="Up to the head, however many.")
@click.option("--wait-ms", type=click.IntRange(0), default=0, help="If there is none, wait this long for one.")
@click.option("--node", multiple=True, help="Leave out what this node wrote.")
@click.option("--tags", is_flag=True, help="With their tags.")
@click.option("--no-meta", is_flag=True, help="Without their meta.")
@calls_api
def diff(api: Api, as_json: bool, name: str, limit: int, everything: bool, **options: Any) -> None:
    """Read records: one a line, as JSON. With --json whole answers, with cursors and tombstones.

    Loss is reported on stderr. The last line on stderr (of a terminal) is the cursor to go on from.

    \b
    Examples:
      topics topic diff orders --all
      topics topic diff orders --from-seq 4096 --limit 10 --json
      topics topic diff orders --from-ts 2026-03-01T08:00 --all
    """
    from topics.cli import records

    asked: dict[str, Any] = moments.start_of(options["from_seq"], options["from_ts"]) or {"from_seq": 0}
    asked["include_tags"] = options["tags"]
    asked |= {"include_meta": not options["no_meta"], "wait_ms": options["wait_ms"], "node": list(options["node"])}
    left, caught_up = limit, False
    while not caught_up and (everything or left > 0):
        answer = api.call("POST", topic_path(name, "diff"), {**asked, "limit": 1000 if everything else min(1000, left)})
        page = msgspec.json.decode(answer, type=records.Page)
        if as_json:
            line(answer)
        else:
            records.print_page(page)
        left -= len(page.records)
        asked.pop("from_ts", None)
        asked["from_seq"], caught_up = page.next_from_seq, page.caught_up
    if not as_json and sys.stderr.isatty():
        click.echo(f"next: --from-seq {asked['from_seq']}" + (" (caught up)" if caught_up else ""), err=True)


@topic.command("seek")
@NAME
@click.argument("time", type=moments.time)
@calls_api
def seek(api: Api, as_json: bool, name: str, time: int) -> None:
    """Find a time: the first seq of then or later. TIME is ms since 1970, or a date and a time of day.

    \b
    Examples:
      topics topic seek orders 2026-03-01T08:00:00Z
      topics topic seek orders 1772352000000 --json | jq .from_seq
    """
    answer = api.call("GET", topic_path(name, "seek"), query={"ts": time})
    if as_json:
        line(answer)
        return
    found = msgspec.json.decode(answer)
    end = " (after the last record)" if found["seq"] > found["head_seq"] else ""
    click.echo(f"{name}: seq {found['seq']}{end}; read it with --from-seq {found['from_seq']}")


@topic.command("delete")
@NAME
@click.option("--before-seq", type=click.IntRange(0), help="Records below this seq.")
@click.option("--tag", help="Records with this tag.")
@click.option("--tag-prefix", help="Records whose tag begins like this.")
@YES
@calls_api
def delete(api: Api, as_json: bool, name: str, before_seq: int | None, yes: bool, **match: str | None) -> None:
    """Delete records by seq, by tag, or those that both hold for. For good.

    \b
    Examples:
      topics topic delete orders --before-seq 480001 --yes
      topics topic delete chat --tag-prefix room-42: --yes
    """
    tag, prefix = match["tag"], match["tag_prefix"]
    if tag is not None and prefix is not None:
        raise click.UsageError("--tag or --tag-prefix, not both")
    body: dict[str, Any] = {} if before_seq is None else {"before_seq": before_seq}
    if tag is not None:
        body["match"] = ["tag", "Eq", tag]
    elif prefix is not None:
        body["match"] = ["tag", "Glob", prefix + "*"]
    if not body:
        raise click.UsageError("say which: --before-seq, --tag or --tag-prefix")
    confirm(f"Delete these records of {name}?", yes)
    answer = api.call("POST", topic_path(name, "delete"), body)
    if as_json:
        line(answer)
    else:
        found = msgspec.json.decode(answer)
        click.echo(f"{name}: {found['deleted']} records deleted, {found['count']} left")
