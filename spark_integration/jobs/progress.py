"""How jobs tell what they do, and where their server is."""

import sys
from collections.abc import Callable
from dataclasses import dataclass

from spark_integration.options import Server

Tell = Callable[[str], None]
RETRY_S = 60.0


def to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Place:
    """A server, as jobs are given it."""

    url: str
    token: str | None = None

    @property
    def server(self) -> Server:
        return Server(self.url.rstrip("/"), self.token, RETRY_S)

    @property
    def options(self) -> dict[str, str]:
        """For Spark's readers and writers."""
        return {"url": self.url, **({"token": self.token} if self.token else {})}
