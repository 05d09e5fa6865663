"""The options of `format("topics")`, checked once, with messages that say what would be right. Pure.

Spark hands options over as strings and does not care for the case of their names.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

EARLIEST, LATEST = "earliest", "latest"
Position = str | dict[str, int]  # "earliest", "latest", or a seq for each topic

_KNOWN = [
    "url",
    "token",
    "topic",
    "topics",
    "topicPattern",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "maxOffsetsPerTrigger",
    "minPartitions",
    "maxRecordsPerPartition",
    "failOnDataLoss",
    "fetchSize",
    "batchSize",
    "dataType",
    "nodeFilter",
    "tagPrefix",
    "pushFilters",
    "lostAsRows",
    "retrySeconds",
    "gzip",
    "create",
    "config",
    "txnAppId",
    "txnVersion",
    "path",
    "checkpointLocation",
    "queryName",
]
_BY_LOWER = {name.lower(): name for name in _KNOWN}


class BadOption(ValueError):
    """An option is wrong or missing; the message is for the person who wrote the query."""


@dataclass(frozen=True)
class Server:
    """Where the server is and how long to believe in it."""

    url: str
    token: str | None
    retry_s: float
    gzip: bool = False


@dataclass(frozen=True)
class Selection:
    """Which topics: names, or a pattern that the whole name matches."""

    names: tuple[str, ...]
    pattern: str | None


@dataclass(frozen=True)
class ReadOptions:
    server: Server
    selection: Selection
    starting: Position
    ending: Position
    starting_ts: int | None
    ending_ts: int | None
    per_trigger: int | None
    min_partitions: int
    per_partition: int
    fail_on_loss: bool
    fetch_records: int
    data_type: str
    nodes: tuple[str, ...]
    tag_prefix: str | None
    push_filters: bool
    lost_as_rows: bool


@dataclass(frozen=True)
class WriteOptions:
    server: Server
    topic: str | None
    batch_records: int
    create: bool | None
    config: dict[str, Any] | None
    txn: str | None


def check_names(given: Mapping[str, str]) -> None:
    """An option that is not known is nearly always a typo, and a typo in `failOnDataLoss` would cost data."""
    unknown = sorted(name for name in given if name.lower() not in _BY_LOWER)
    if unknown:
        raise BadOption(f"unknown option {unknown[0]!r}; there are {', '.join(_KNOWN[:-3])}")


def read_options(given: Mapping[str, str], *, stream: bool) -> ReadOptions:
    options = _lowered(given)
    starting_ts, ending_ts = _instant(options, "startingTimestamp"), _instant(options, "endingTimestamp")
    if stream and (ending_ts is not None or "endingoffsets" in options):
        raise BadOption("endingOffsets and endingTimestamp are for batch reads; a stream has no end")
    starting = _position(options, "startingOffsets", LATEST if stream else EARLIEST)
    ending = _position(options, "endingOffsets", LATEST)
    if ending == EARLIEST:
        raise BadOption("endingOffsets cannot be 'earliest': nothing would be read")
    if starting == LATEST and not stream:
        raise BadOption("startingOffsets cannot be 'latest' in a batch read: nothing would be read")
    return ReadOptions(
        server=_server(options),
        selection=_selection(options),
        starting=starting,
        ending=ending,
        starting_ts=starting_ts,
        ending_ts=ending_ts,
        per_trigger=_count(options, "maxOffsetsPerTrigger", None),
        min_partitions=_count(options, "minPartitions", 1) or 1,
        per_partition=_count(options, "maxRecordsPerPartition", 100_000) or 1,
        fail_on_loss=_flag(options, "failOnDataLoss", True),
        fetch_records=_count(options, "fetchSize", 10_000) or 1,
        data_type=_choice(options, "dataType", "string", "variant"),
        nodes=tuple(_words(options.get("nodefilter", ""))),
        tag_prefix=options.get("tagprefix"),
        push_filters=_flag(options, "pushFilters", False),
        lost_as_rows=_flag(options, "lostAsRows", False),
    )


def data_type(given: Mapping[str, str]) -> str:
    return _choice(_lowered(given), "dataType", "string", "variant")


def write_options(given: Mapping[str, str]) -> WriteOptions:
    options = _lowered(given)
    app, version = options.get("txnappid"), options.get("txnversion")
    if (app is None) != (version is None):
        raise BadOption("txnAppId and txnVersion belong together: both or none")
    create = _flag(options, "create", True) if "create" in options else None
    config = _object(options, "config") if "config" in options else None
    for name in ("topics", "topicpattern"):
        if name in options:
            raise BadOption(f"{_BY_LOWER[name]} is for reading; a write takes `topic`, or a column `topic`")
    return WriteOptions(
        server=_server(options),
        topic=options.get("topic") or options.get("path") or None,
        batch_records=_count(options, "batchSize", 2_000) or 1,
        create=create,
        config=config,
        txn=None if app is None else json.dumps([app, version]),
    )


def _lowered(given: Mapping[str, str]) -> dict[str, str]:
    check_names(given)
    return {name.lower(): value for name, value in given.items()}


def _server(options: Mapping[str, str]) -> Server:
    url = options.get("url", "")
    if not url:
        raise BadOption("the option url is missing, such as http://127.0.0.1:4000")
    if not re.fullmatch(r"https?://[^/\s]+/?", url):
        raise BadOption(f"url must be http://host:port, not {url!r}")
    retry_s = options.get("retryseconds", "60")
    gzip = _flag(options, "gzip", False)
    if not re.fullmatch(r"\d{1,9}(\.\d{1,9})?", retry_s):
        raise BadOption(f"retrySeconds must be a number from 0, not {retry_s!r}")
    return Server(url.rstrip("/"), options.get("token") or None, float(retry_s), gzip)


def _selection(options: Mapping[str, str]) -> Selection:
    given = [name for name in ("topic", "topics", "topicpattern", "path") if options.get(name)]
    if len(given) != 1:
        said = " and ".join(_BY_LOWER[name] for name in given) or "none"
        raise BadOption(f"give exactly one of topic, topics (a,b,c) and topicPattern, not {said}")
    value = options[given[0]]
    if given[0] != "topicpattern":
        names = _words(value) if given[0] == "topics" else [value]
        if not names:
            raise BadOption(f"topics must be names such as a,b,c, not {value!r}")
        return Selection(tuple(dict.fromkeys(names)), None)
    try:
        re.compile(value)
    except re.error as error:
        raise BadOption(f"topicPattern {value!r} is not a regular expression: {error}") from None
    return Selection((), value)


def _position(options: Mapping[str, str], name: str, default: str) -> Position:
    value = options.get(name.lower(), default)
    if value.lower() in (EARLIEST, LATEST):
        return value.lower()
    seqs = _object(options, name)
    if not all(isinstance(seq, int) and not isinstance(seq, bool) and seq >= 0 for seq in seqs.values()):
        raise BadOption(f"{name} gives each topic a seq, such as " + '{"events": 41}' + f", not {value}")
    return seqs


def _object(options: Mapping[str, str], name: str) -> dict[str, Any]:
    value = options[name.lower()]
    try:
        parsed = json.loads(value)
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict):
        also = "'earliest', 'latest' or " if name.endswith("Offsets") else ""
        raise BadOption(f"{name} must be {also}a JSON object, not {value!r}")
    return parsed


def _instant(options: Mapping[str, str], name: str) -> int | None:
    return _count(options, name, None, least=0)


def _count(options: Mapping[str, str], name: str, default: int | None, least: int = 1) -> int | None:
    value = options.get(name.lower())
    if value is None:
        return default
    if not re.fullmatch(r"\d{1,18}", value) or int(value) < least:
        unit = "milliseconds since 1970" if name.endswith("Timestamp") else f"a whole number from {least}"
        raise BadOption(f"{name} must be {unit}, not {value!r}")
    return int(value)


def _flag(options: Mapping[str, str], name: str, default: bool) -> bool:
    value = options.get(name.lower(), str(default)).lower()
    if value not in ("true", "false"):
        raise BadOption(f"{name} must be true or false, not {value!r}")
    return value == "true"


def _choice(options: Mapping[str, str], name: str, *choices: str) -> str:
    value = options.get(name.lower(), choices[0])
    if value not in choices:
        raise BadOption(f"{name} must be {' or '.join(choices)}, not {value!r}")
    return value


def _words(text: str) -> list[str]:
    return [word for word in (part.strip() for part in text.split(",")) if word]
