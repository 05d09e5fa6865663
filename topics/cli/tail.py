"""`topics tail`: follow topics as JSON lines, over whatever happens to the connection.

The server keeps a session with a cursor for every topic, and each event's id is where that event leads. After a break
we come back with the last id whose lines were printed, so nothing is lost and nothing doubled. If the session itself is
gone (a long break), a new one starts from the seqs we have printed up to.
"""

import time
from collections.abc import Callable
from typing import Any

import click
import msgspec

from topics.cli import moments
from topics.cli.api import Api, calls_api, complete_topic
from topics.cli.event_stream import Event, parse
from topics.cli.failures import LATER, NOT_FOUND, UNREACHABLE, Failure
from topics.cli.output import line

HEARTBEAT_MS = 5_000
SILENCE_S = 2 * HEARTBEAT_MS / 1000 + 5
WAIT_MIN_S, WAIT_MAX_S = 0.2, 5.0


class Records(msgspec.Struct):
    topic: str
    records: list[msgspec.Raw]
    to_seq: int


class Enough(Exception):
    """Everything that was asked for has been printed."""


class SessionGone(Exception):
    """The server has forgotten the session."""


class Follower:
    def __init__(self, api: Api, topics: dict[str, dict[str, Any]], options: dict[str, Any], count: int | None) -> None:
        self._api = api
        self._topics = topics  # those that are still followed, and from where
        self._options = options
        self._left = count
        self._drained: set[str] = set()
        self.until_caught_up = False
        self.events = False
        self.lenient = False
        self._wid: str | None = None
        self._last_id: str | None = None
        self._wait_s = WAIT_MIN_S

    def run(self, pause: Callable[[float], None] = time.sleep) -> None:
        """Until enough has been seen. The first connection has to succeed; later ones are tried again for ever."""
        reached = False
        while self._topics:
            try:
                if self._wid is None:
                    self._begin()
                reached = True
                self._follow()
            except Enough:
                return
            except SessionGone:
                self._wid = self._last_id = None
            except Failure as failure:
                if not reached or failure.status not in (UNREACHABLE, LATER):
                    raise
                click.echo(f"waiting: {failure.message}", err=True)
                pause(self._wait_s)
                self._wait_s = min(2 * self._wait_s, WAIT_MAX_S)

    def _begin(self) -> None:
        body = {**self._options, "topics": self._topics}
        answer = self._api.json("POST", "/v0/watch", body, {"lenient": self.lenient or None})
        self._wid = answer["wid"]
        # A tail has its place now; what is not there is not followed.
        self._topics = {name: {"from_seq": state["from_seq"]} for name, state in answer["topics"].items()}

    def _follow(self) -> None:
        headers = {"last-event-id": self._last_id} if self._last_id else {}
        try:
            with self._api.stream(f"/v0/watch/{self._wid}", headers, SILENCE_S) as response:
                self._wait_s = WAIT_MIN_S
                for event in parse(response.iter_raw()):
                    self._take(event)
                    self._last_id = event.id or self._last_id
        except Failure as failure:
            if failure.status == NOT_FOUND:
                raise SessionGone from None
            raise

    def _take(self, event: Event) -> None:
        if event.kind == "record":
            self._print_records(msgspec.json.decode(event.data, type=Records))
            return
        fields = msgspec.json.decode(event.data, type=dict[str, Any])
        if event.kind == "error":
            if fields.get("code") in (404, 410):
                raise SessionGone
            click.echo(f"server: {fields.get('error')}", err=True)
            return
        if self.events or event.kind != "caught-up":
            line(msgspec.json.encode({"event": event.kind, **fields}))
        name = fields["topic"]
        if event.kind == "tombstone":
            self._topics[name] = {"from_seq": fields["gap_to"]}
        elif event.kind == "topic-deleted":
            self._topics.pop(name, None)
            if not self._topics:
                raise Enough
        elif event.kind == "caught-up":
            self._drained.add(name)
        if self.until_caught_up and self._drained >= set(self._topics):
            raise Enough

    def _print_records(self, batch: Records) -> None:
        opened = b'{"topic":' + msgspec.json.encode(batch.topic) + b","
        for record in batch.records:
            line(opened + bytes(record)[1:])
            if self._left is not None:
                self._left -= 1
                if self._left <= 0:
                    raise Enough
        self._topics[batch.topic] = {"from_seq": batch.to_seq}


@click.command()
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC[=SEQ]...", shell_complete=complete_topic)
@click.option(
    "--from-seq", type=click.IntRange(0), help="Start after this seq; TOPIC=SEQ says it for one. [only new ones]"
)
@click.option(
    "--from-ts", type=moments.time, help="Start at this time, instead: ms since 1970, or a date and a time of day."
)
@click.option("--count", type=click.IntRange(1), help="End after so many records.")
@click.option("--until-caught-up", is_flag=True, help="End when everything that is there has been printed.")
@click.option("--events", is_flag=True, help="Print caught-up events, too.")
@click.option("--tags", is_flag=True, help="With tags.")
@click.option("--no-data", is_flag=True, help="Without data: only seqs, times, nodes, tags.")
@click.option("--node", help="Leave out what this node wrote.")
@click.option("--lenient", is_flag=True, help="Leave out topics that are not there, instead of failing.")
@calls_api
def tail(
    api: Api, as_json: bool, topics: tuple[str, ...], from_seq: int | None, from_ts: int | None, **options: Any
) -> None:
    """Follow topics: a JSON object a line, over reconnects, until Ctrl-C.

    Records carry their topic: {"topic": …, "$seq": …, "$ts": …, "data": …}. Lost ranges and deleted topics stand among
    them as {"event": "tombstone", …} and {"event": "topic-deleted", …}.

    \b
    Examples:
      topics tail orders
      topics tail orders=480231 audit=0 --tags
      topics tail orders --from-seq 0 --until-caught-up > orders.jsonl
      topics tail orders --from-ts 2026-03-01T08:00
    """
    asked = {"heartbeat_ms": HEARTBEAT_MS, "include_tags": options["tags"], "include_data": not options["no_data"]}
    if options["node"]:
        asked["node"] = options["node"]
    otherwise = moments.start_of(from_seq, from_ts) or {"tail": True}
    starts = dict(_start(text, otherwise) for text in topics)
    follower = Follower(api, starts, asked, options["count"])
    follower.until_caught_up, follower.events = options["until_caught_up"], options["events"]
    follower.lenient = options["lenient"]
    follower.run()


def _start(text: str, otherwise: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    name, equals, seq = text.partition("=")
    if equals:
        if not seq.isdecimal():
            raise click.UsageError(f"{text} is not TOPIC=SEQ")
        return name, {"from_seq": int(seq)}
    return name, otherwise
