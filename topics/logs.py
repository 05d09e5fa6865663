"""Log lines: text for a person at a terminal, one JSON object a line for everything else.

    text   12:34:56.789 INFO    shard-0     topics.shards: ready after 4 ms
    json   {"ts":1735689600000,"level":"info","process":"shard-0","pid":7,"logger":"topics.shards","msg":"ready …"}

Every process of an instance writes to the same inherited stderr, a whole line per write, so lines never mix. The
supervisor tells its children the format in their environment (`child_environment`), as it hands them stderr itself;
a child calls `inherit` first thing. `extra={"fields": {...}}` adds members to the JSON form.

In systemd's journal every line has its priority: it begins with `<4>` or so, which systemd takes away (sd-daemon(3)).

Keys and payloads are never given to a logger: what is logged about a request is its route, sizes and error code.
"""

import json
import logging
import os
import sys
import time
from collections.abc import Mapping
from typing import Any

FORMAT, LEVEL, NAME = "TOPICS_LOG_FORMAT", "TOPICS_LOG_LEVEL", "TOPICS_LOG_NAME"
JOURNAL = "JOURNAL_STREAM"  # systemd's: device and inode of what it gave the service as stderr
PRIORITIES = ((logging.ERROR, "<3>"), (logging.WARNING, "<4>"), (logging.INFO, "<6>"), (0, "<7>"))


class TextFormatter(logging.Formatter):
    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        line = f"{clock}.{int(record.msecs):03d} {record.levelname:<7} {self._process:<11} "
        line += f"{record.name}: {record.getMessage()}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


class JsonFormatter(logging.Formatter):
    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "ts": int(record.created * 1000),
            "level": record.levelname.lower(),
            "process": self._process,
            "pid": record.process,
            "logger": record.name,
            "msg": record.getMessage(),
        }
        line.update(getattr(record, "fields", {}))
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, separators=(",", ":"), default=str)


class JournalFormatter(logging.Formatter):
    """Another's text, each line of it with its priority: to the journal each is an entry of its own."""

    def __init__(self, inner: logging.Formatter) -> None:
        super().__init__()
        self._inner = inner

    def format(self, record: logging.LogRecord) -> str:
        mark = next(mark for level, mark in PRIORITIES if record.levelno >= level)
        return mark + self._inner.format(record).replace("\n", "\n" + mark)


class StderrHandler(logging.Handler):
    """One write per line. A reader that is gone or stuck must not end the server: failures are swallowed."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            left = memoryview((self.format(record) + "\n").encode(errors="replace"))
            while left:
                left = left[os.write(2, left) :]
        except OSError:
            pass
        except Exception:
            self.handleError(record)


def configure(process: str, form: str, level: str) -> None:
    """Set up logging for this process. `form` is "text" or "json"; `process` is how its lines are signed."""
    handler = StderrHandler()
    formatter = JsonFormatter(process) if form == "json" else TextFormatter(process)
    handler.setFormatter(JournalFormatter(formatter) if to_journal() else formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    # Libraries log what a client sent when they are asked for details, its API key included: they are not asked.
    root.setLevel(max(logging.WARNING, logging.getLevelName(level.upper())))
    logging.getLogger("topics").setLevel(level.upper())


def to_journal() -> bool:
    """Whether stderr is the journal. The variable alone does not tell: stderr may have been sent elsewhere since."""
    try:
        found = os.fstat(2)
    except OSError:
        return False
    return os.environ.get(JOURNAL) == f"{found.st_dev}:{found.st_ino}"


def child_environment(process: str, form: str, level: str) -> dict[str, str]:
    """What a child needs in its environment for `inherit`."""
    return {FORMAT: form, LEVEL: level, NAME: process}


def inherit(process: str, environment: Mapping[str, str] | None = None) -> None:
    """Log as the supervisor said; on its own, as `process`, text on a terminal and JSON otherwise."""
    env = os.environ if environment is None else environment
    form = env.get(FORMAT) or "auto"
    if form == "auto":
        form = "text" if sys.stderr.isatty() else "json"
    configure(env.get(NAME) or process, form, env.get(LEVEL) or "info")
