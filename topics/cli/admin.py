"""Calls to the supervisor's admin socket, which only the owner of the server (and root) can reach."""

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from topics.cli.config import data_dir
from topics.cli.failures import REFUSED, UNREACHABLE, Failure
from topics.cli.output import json_option

DEADLINE_MS = 10_000


def find_socket(directory: Path) -> str:
    """Of the server on this data directory."""
    from topics.supervisor.admin import SOCKET
    from topics.supervisor.datadir import running

    try:
        holder = running(directory)
    except OSError as error:
        raise Failure(UNREACHABLE, f"cannot look into {directory}: {error.strerror}", "unreachable") from None
    if holder is None:
        raise Failure(UNREACHABLE, f"no server runs on {directory}; --data-dir names another", "unreachable")
    if not holder.run_dir:
        said = f"no server runs on {directory}: a program with topics.open (pid {holder.pid}) uses it, or was killed"
        raise Failure(UNREACHABLE, said, "unreachable")
    return os.path.join(holder.run_dir, SOCKET)


def ask(socket: str, method: str, head: dict[str, Any] | None = None, deadline_ms: int = DEADLINE_MS) -> dict[str, Any]:
    import trio

    result = trio.run(_ask, socket, method, head or {}, deadline_ms)
    if isinstance(result, Failure):
        raise result
    return result


async def _ask(socket: str, method: str, head: dict[str, Any], deadline_ms: int) -> dict[str, Any] | Failure:
    import trio

    from topics.errors import TopicsError
    from topics.rpc import PeerLost, connect_unix

    result: dict[str, Any] | Failure
    async with trio.open_nursery() as nursery:
        try:
            connection = await connect_unix(socket, nursery)
            result = dict((await connection.call(method, head, deadline_ms=deadline_ms)).head)
        except PeerLost as error:
            result = Failure(UNREACHABLE, f"{socket} does not answer: {error.message}", "unreachable")
        except TopicsError as error:
            result = Failure(REFUSED, error.message, error.code)
        nursery.cancel_scope.cancel()
    return result


def asks_supervisor(function: Callable[..., Any]) -> Callable[..., Any]:
    """A command about processes: it gets `socket` and `as_json`."""

    @data_dir_option
    @json_option
    @functools.wraps(function)
    def command(*args: Any, directory: str | None, as_json: bool, **kwargs: Any) -> Any:
        return function(*args, socket=find_socket(data_dir(directory)), as_json=as_json, **kwargs)

    return command


def data_dir_option(function: Callable[..., Any]) -> Callable[..., Any]:
    help = "Data directory of the server. [TOPICS_DATA_DIR; default ./topics-data]"
    return click.option("--data-dir", "directory", metavar="DIR", help=help)(function)
