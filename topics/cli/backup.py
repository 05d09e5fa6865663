"""`topics backup` and `topics restore`."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from topics.cli import output
from topics.cli.admin import data_dir_option, find_socket
from topics.cli.config import data_dir
from topics.cli.failures import LATER, REFUSED, UNREACHABLE, Failure

if TYPE_CHECKING:
    from topics.cli.backups.store import Manifest


def cold_option(help: str) -> Callable[[Any], Any]:
    kind = click.Path(path_type=Path, file_okay=False)
    return click.option("--cold-dir", type=kind, envvar="TOPICS_COLD_DIR", show_envvar=True, help=help)


@click.command()
@click.argument("dest", type=click.Path(path_type=Path, file_okay=False))
@data_dir_option
@cold_option("The cold directory, if segments were moved to one.")
@output.json_option
def backup(dest: Path, directory: str | None, cold_dir: Path | None, as_json: bool) -> None:
    """Back up a running server to the directory DEST, which is for backups alone.

    Everything acked before it began is in it, and all shards are as of one moment. Again to the same DEST only what
    changed is copied; the backup before stays whole until the new one is checked and complete.

    \b
    Examples:
      topics backup /backup/topics
      topics backup /backup/topics --data-dir /var/lib/topics --json | jq .shards
    """
    from topics.cli.backups.store import BackupStore
    from topics.cli.backups.take import Backup

    source = data_dir(directory)
    run_dir = Path(os.path.dirname(find_socket(source)))
    store = BackupStore(dest.absolute())
    cold = cold_dir.absolute() if cold_dir is not None else None
    with output.progress("copying and checking") as bar:
        work = _guarded(lambda: Backup(source.absolute(), run_dir, cold, store, bar.note))
        bar.expect(work.work_bytes())
        manifest, tally = _guarded(work.take)
    summary = _summary(manifest) | {
        "dest": str(dest),
        "copied_files": store.copied_files,
        "copied_bytes": store.copied_bytes,
        "checked_records": tally.records,
    }
    _show(summary, f"copied {store.copied_files} files, {output.size(store.copied_bytes)}", as_json=as_json)


@click.command()
@click.argument("src", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("target", metavar="DATA_DIR", type=click.Path(path_type=Path))
@cold_option("Where segments of a cold directory go, if there are any in it; must not be there, or be empty.")
@output.json_option
def restore(src: Path, target: Path, cold_dir: Path | None, as_json: bool) -> None:
    """Make a data directory of the backup in SRC. DATA_DIR must not be there, or be empty.

    \b
    Examples:
      topics restore /backup/topics /var/lib/topics
    """
    from topics.cli.backups.restore import restore as put_back
    from topics.cli.backups.store import BackupStore

    cold = cold_dir.absolute() if cold_dir is not None else None
    store = BackupStore(src.absolute())
    with output.progress("restoring") as bar:
        manifest = _guarded(lambda: put_back(store, target.absolute(), cold, bar.expect, bar.note))
    _show(_summary(manifest) | {"data_dir": str(target)}, f"restored to {target}", as_json=as_json)


def _guarded(work: Callable[[], Any]) -> Any:
    from topics.cli.backups.store import BadBackup
    from topics.errors import NOT_READY, TopicsError
    from topics.rpc import PeerLost

    try:
        return work()
    except BadBackup as error:
        raise Failure(REFUSED, str(error), "bad_backup") from None
    except PeerLost as error:
        raise Failure(
            UNREACHABLE, f"a shard went away: {error.message}; the backup is not complete", "shard_lost"
        ) from None
    except TopicsError as error:
        raise Failure(LATER if error.code == NOT_READY else REFUSED, error.message, error.code) from None
    except OSError as error:
        raise Failure(REFUSED, f"{error.filename or 'storage'}: {error.strerror}", "storage") from None


def _summary(manifest: "Manifest") -> dict[str, Any]:
    copies = list(manifest.copies())
    return {
        "taken_ms": manifest.taken_ms,
        "shards": [{"shard": one.shard, "lsn": one.lsn, "cut_ms": one.cut_ms} for one in manifest.shards],
        "files": len(copies),
        "bytes": sum(copy.size for copy in copies),
    }


def _show(summary: dict[str, Any], what: str, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(summary))
        return
    rows = [(one["shard"], one["lsn"], one["cut_ms"]) for one in summary["shards"]]
    output.table(("shard", "lsn ", "cut at (ms) "), rows)
    click.echo(f"{what}; {summary['files']} files with {output.size(summary['bytes'])} in all.")
