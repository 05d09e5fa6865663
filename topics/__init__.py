"""topics: a persistent event engine with a JSON-first HTTP API, on one machine.

`topics.open(path)` has the engine in this process, without a server (topics/embedded).
"""

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from topics.embedded import Database

__version__ = "0.1.0"


def open(path: str | os.PathLike[str], *, shards: int | None = None, **options: Any) -> "Database":
    """Open a data directory in this process: `with topics.open("orders") as db: db.append(…)`. See docs/embedded.md."""
    from topics.embedded import open_database  # all of the engine; a program that does not open one does without

    return open_database(path, shards=shards, **options)
