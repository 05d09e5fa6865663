"""`topics shards rebalance`: divide shards that hold topics among themselves and new ones, while no server runs."""

import json
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from topics.cli import output
from topics.cli.admin import data_dir_option
from topics.cli.config import data_dir
from topics.cli.failures import CONFLICT, REFUSED, Failure
from topics.owners import user_name

if TYPE_CHECKING:
    from topics.cli.rebalancing.move import Layout
    from topics.cli.rebalancing.plan import Plan


@click.command()
@click.option("--shards", "wanted", type=click.IntRange(1, 1024), help="Number of shards. [TOPICS_SHARDS, or as now]")
@click.option("--dry-run", is_flag=True, help="Show what would be moved, and change nothing.")
@data_dir_option
@output.json_option
def rebalance(wanted: int | None, dry_run: bool, directory: str | None, as_json: bool) -> None:
    """Move topics from shards that hold some to shards that never did, so that they share the load.

    The server must be stopped. Each shard that is divided is copied for each of its parts, so that much space must be
    free; the old files go when everything is checked and in place. A crash leaves all as it was, or the next start
    finishes it. Start the server with the same number of shards afterwards.

    Run it as the user that the data directory belongs to: the server could not open files that are another's.

    \b
    Examples:
      topics shards rebalance --shards 4 --dry-run
      sudo -u topics topics shards rebalance --shards 4 --data-dir /var/lib/topics
    """
    from topics.cli.rebalancing.move import CannotRebalance
    from topics.shards.snapshot import BadSnapshot
    from topics.supervisor.datadir import DataDirError

    place = data_dir(directory).absolute()
    try:
        if not _has_slots(place):
            raise Failure(REFUSED, f"{place} is not a data directory that a server has run on", "no_data_dir")
        if not dry_run:
            _refuse_others(place, wanted)
        said = _look(place, wanted) if dry_run else _move(place, wanted)
    except (CannotRebalance, BadSnapshot) as error:
        raise Failure(REFUSED, str(error), "cannot_rebalance") from None
    except DataDirError as error:
        raise Failure(CONFLICT, str(error), "data_dir") from None
    except OSError as error:
        raise Failure(REFUSED, f"{error.filename or 'storage'}: {error.strerror}", "storage") from None
    _show(said, as_json=as_json, dry_run=dry_run)


def _has_slots(place: Path) -> bool:
    """Of a directory that only another may look into nobody knows: it is that one's to find out."""
    try:
        return (place / "SLOTS").exists()
    except PermissionError:
        return place.is_dir()


def _refuse_others(place: Path, wanted: int | None) -> None:
    """Only its owner may write to it: of files that another leaves there, be it root, the server can open none."""
    uid = place.stat().st_uid
    if uid == os.geteuid():
        return
    owner = user_name(uid)
    shards = wanted or _shards_by_variable()
    command = ["sudo", "-u", f"#{uid}" if owner == str(uid) else owner, "topics", "shards", "rebalance"]
    command += [*(["--shards", str(shards)] if shards else []), "--data-dir", str(place)]
    message = f"{place} belongs to {owner}, and the server could not open what {user_name(os.geteuid())} leaves there"
    raise Failure(REFUSED, f"{message}. Run: {shlex.join(command)}", "not_owner")


def _look(place: Path, wanted: int | None) -> dict[str, Any]:
    from topics.cli.rebalancing.move import look, plan_for, work_bytes
    from topics.supervisor.datadir import shared_data_dir

    with shared_data_dir(place):
        layout = look(place)
        shards = _number(wanted, layout)
        plan = plan_for(layout, shards)
        return _summary(layout, plan, shards) | {"copied_bytes": work_bytes(place, plan)}


def _move(place: Path, wanted: int | None) -> dict[str, Any]:
    from topics.cli.rebalancing.move import look, plan_for, work_bytes
    from topics.cli.rebalancing.move import rebalance as carry_out
    from topics.supervisor import slotswap
    from topics.supervisor.datadir import open_data_dir

    data = open_data_dir(place)
    try:
        slotswap.finish(place)
        layout = look(place)
        shards = _number(wanted, layout)
        plan = plan_for(layout, shards)
        said = _summary(layout, plan, shards) | {"copied_bytes": 0, "checked_records": 0}
        if plan.families:
            size = said["copied_bytes"] = work_bytes(place, plan)
            with output.progress("copying") as bar:
                bar.expect(size)
                said["checked_records"] = carry_out(place, layout, plan, shards, bar.note).records
        return said
    finally:
        data.close()


def _number(wanted: int | None, layout: "Layout") -> int:
    return wanted or _shards_by_variable() or layout.shards


def _shards_by_variable() -> int:
    given = os.environ.get("TOPICS_SHARDS", "")
    return int(given) if given.isdecimal() else 0


def _summary(layout: "Layout", plan: "Plan", shards: int) -> dict[str, Any]:
    rows = []
    for shard in sorted(set(range(shards)) | set(layout.owners.values())):
        before, after = layout.share(shard, layout.owners), layout.share(shard, plan.owners)
        source = next((source for source, others in plan.families.items() if shard in others), None)
        rows.append(
            {"shard": shard, "from": source, "slots": before[0], "slots_after": after[0],
             "bytes": before[1], "bytes_after": after[1]}
        )  # fmt: skip
    moved = sum(1 for slot, shard in plan.owners.items() if layout.owners[slot] != shard)
    return {"shards": rows, "moved_slots": moved}


def _show(said: dict[str, Any], *, as_json: bool, dry_run: bool) -> None:
    if as_json:
        click.echo(json.dumps(said))
        return
    rows = [
        (row["shard"], "" if row["from"] is None else f"shard {row['from']}", row["slots"], row["slots_after"],
         output.size(row["bytes"]), output.size(row["bytes_after"]))
        for row in said["shards"]
    ]  # fmt: skip
    output.table(("shard", "takes from", "slots used ", "then ", "stored ", "then "), rows)
    if not said["moved_slots"]:
        click.echo("Nothing to move: every shard holds topics already, or there is nothing to divide.")
    elif dry_run:
        click.echo(f"{said['moved_slots']} slots would move; that copies {output.size(said['copied_bytes'])}.")
    else:
        click.echo(f"{said['moved_slots']} slots moved, {said['checked_records']} records checked.")
