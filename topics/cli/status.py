"""`topics status`: the processes of a server and what they hold.

Beside the server it asks the supervisor's admin socket, which knows every process. From elsewhere (`--url`) it asks
what HTTP tells: readiness, version, sums.
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import click

from topics.cli.admin import ask, data_dir_option, find_socket
from topics.cli.api import Api, calls_api
from topics.cli.config import data_dir
from topics.cli.failures import LATER, UNREACHABLE, Failure
from topics.cli.output import console, duration, grid, microseconds, size

SHARD_COLUMNS = ("shard", "pid ", "state", "replay ", "up", "restarts ", "rss ", "topics ", "records ", "bytes ",
                 "wal queue ", "fsyncs ", "p50 ", "p99 ")  # fmt: skip
GATEWAY_COLUMNS = ("gateway", "pid ", "state", "up", "restarts ", "rss ", "connections ", "requests ", "streams ")


@click.command()
@data_dir_option
@click.option("--watch", is_flag=True, help="Show it again and again, until Ctrl-C.")
@click.option("--interval", type=click.FloatRange(0.1), default=2.0, help="Seconds between two looks. [2]")
@calls_api
@click.pass_context
def status(ctx: click.Context, api: Api, as_json: bool, directory: str | None, watch: bool, interval: float) -> None:
    """Show the processes of a server, what they hold and how their logs do.

    With --url it asks that server over HTTP, which tells sums only. Status 6 if no server runs, 7 if it is not ready or
    a process is down.

    \b
    Examples:
      topics status --data-dir /var/lib/topics
      topics status --watch
      topics status --json | jq '.children[] | select(.state != "ready")'
    """
    look: Callable[[], dict[str, Any]]
    if ctx.get_parameter_source("url") is click.core.ParameterSource.DEFAULT:
        socket = find_socket(data_dir(directory))
        look, show = (lambda: ask(socket, "status")), render_processes
    else:
        look, show = (lambda: over_http(api)), render_http
    if watch:
        _watch(look, show, as_json, interval)
        return
    seen = look()
    if as_json:
        click.echo(json.dumps(seen))
    else:
        console(200).print(show(seen))
    if not whole(seen):
        raise Failure(LATER, "the server is not ready, or a process is down", "not_ready")


def whole(seen: dict[str, Any]) -> bool:
    if "ready" in seen:
        return bool(seen["ready"].get("status") == "ready")
    return seen["phase"] == "ready" and all(child["state"] == "ready" for child in seen["children"])


def over_http(api: Api) -> dict[str, Any]:
    try:
        ready = api.json("GET", "/v0/ready")
    except Failure as failure:
        if failure.status != LATER:
            raise
        ready = {"status": failure.code, **failure.more.get("detail", {})}
    health = api.json("GET", "/v0/health")
    wanted = ("topics_topics", "topics_records_live", "topics_bytes_live", "topics_queue_leases_in_flight",
              "topics_routers", "topics_watch_sessions", "topics_sse_connections")  # fmt: skip
    numbers = api.json("GET", "/v0/metrics")
    return {
        "url": api.url,
        "version": health["version"],
        "uptime_ms": health["uptime_ms"],
        "ready": {key: value for key, value in ready.items() if key != "performance"},
        "totals": {name.removeprefix("topics_"): numbers[name] for name in wanted},
    }


def _watch(
    look: Callable[[], dict[str, Any]], show: Callable[[dict[str, Any]], Any], as_json: bool, every_s: float
) -> None:
    if as_json or not sys.stdout.isatty():
        while True:
            seen = _try(look)
            click.echo(json.dumps(seen) if as_json else _plain(show, seen))
            sys.stdout.flush()
            time.sleep(every_s)
    from rich.live import Live

    with Live(console=console(), screen=True, auto_refresh=False) as live:
        while True:
            live.update(_shown(show, _try(look)), refresh=True)
            time.sleep(every_s)


def _try(look: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """A server that is away for a moment does not end the watch."""
    try:
        return look()
    except Failure as failure:
        if failure.status not in (UNREACHABLE, LATER):
            raise
        return {"error": failure.error}


def _plain(show: Callable[[dict[str, Any]], Any], seen: dict[str, Any]) -> str:
    made = console(200)
    with made.capture() as captured:
        made.print(_shown(show, seen))
    text: str = captured.get()
    return text


def _shown(show: Callable[[dict[str, Any]], Any], seen: dict[str, Any]) -> Any:
    return seen["error"]["message"] if "error" in seen else show(seen)


def render_processes(seen: dict[str, Any]) -> Any:
    from rich.console import Group
    from rich.text import Text

    now_ms = time.time() * 1000
    totals, children = seen["totals"], seen["children"]
    gateways = [child for child in children if child["kind"] == "gateway"]
    head = Text(
        f"topics {seen['version']}  {seen['phase']}  http://{seen['address']}  pid {seen['pid']}  "
        f"up {duration(now_ms - seen['started_ms'])}  {seen['data_dir']}"
    )
    rss = seen["rss_bytes"] + sum(child["rss_bytes"] for child in children)
    foot = Text(
        f"{totals['topics']} topics, {totals['records_live']} records, {size(totals['bytes_live'])}; "
        f"{totals['routers']} routers, {totals['sessions']} watch sessions; "
        f"{totals['connections']} connections, {totals['streams']} streams; {size(rss)} of memory"
    )
    tables = [shard_grid(children, now_ms), grid(GATEWAY_COLUMNS, [_gateway_row(child, now_ms) for child in gateways])]
    reasons = [Text(f"{child['kind']} {child['index']}: {child['reason']}") for child in children if child["reason"]]
    return Group(head, Text(), tables[0], Text(), tables[1], Text(), *reasons, foot)


def shard_grid(children: list[dict[str, Any]], now_ms: float) -> Any:
    return grid(SHARD_COLUMNS, [_shard_row(child, now_ms) for child in children if child["kind"] == "shard"])


def _up(child: dict[str, Any], now_ms: float) -> str:
    return duration(now_ms - child["started_ms"]) if child["pid"] else "–"


def _shard_row(child: dict[str, Any], now_ms: float) -> tuple[object, ...]:
    state = child["state"] + (" (read only)" if child["wal_read_only"] else "")
    return (
        child["index"], child["pid"] or "–", state, f"{child['replay_progress']:.0%}", _up(child, now_ms),
        child["restarts"], size(child["rss_bytes"]), child["topics"], child["records_live"], size(child["bytes_live"]),
        child["wal_queue_depth"], child["wal_fsyncs"], microseconds(child["fsync_p50_us"]),
        microseconds(child["fsync_p99_us"]),
    )  # fmt: skip


def _gateway_row(child: dict[str, Any], now_ms: float) -> tuple[object, ...]:
    return (
        child["index"], child["pid"] or "–", child["state"], _up(child, now_ms), child["restarts"],
        size(child["rss_bytes"]), child["connections"], child["requests"], child["streams"],
    )  # fmt: skip


def render_http(seen: dict[str, Any]) -> Any:
    from rich.text import Text

    ready = seen["ready"]
    lines = [f"topics {seen['version']}  {ready['status']}  {seen['url']}  up {duration(seen['uptime_ms'])}"]
    lines += [f"{name}: {value}" for name, value in ready.items() if name not in ("status", "topics")]
    lines += [f"{name}: {value}" for name, value in seen["totals"].items()]
    return Text("\n".join(lines))
