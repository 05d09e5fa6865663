"""Real servers for tests, closed whatever happens."""

from collections.abc import Iterator
from typing import Any

import pytest

from topics.testing.server import Server


@pytest.fixture
def serve(tmp_path) -> Iterator[Any]:
    """`serve(shards=3)` starts a server and waits until it is ready; `serve.make` does not start it."""
    made: list[Server] = []

    def make(folder: str = "s", **settings) -> Server:
        made.append(Server(tmp_path / folder, **settings))
        return made[-1]

    def start(folder: str = "s", **settings) -> Server:
        return make(folder, **settings).start().wait_ready()

    start.make = make  # type: ignore[attr-defined]
    yield start
    for server in made:
        server.close()
