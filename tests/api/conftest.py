"""Servers for tests: a real `topics serve` shared by most, and a maker of instances without a supervisor."""

import zlib
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.api.instance import WAIT_S, Instance
from topics.testing.server import Server


@pytest.fixture(scope="session")
def instance(tmp_path_factory) -> Iterator[Server]:
    """Two shards and two gateways shared by all tests; each test uses names of its own."""
    folder = tmp_path_factory.mktemp("api")
    with Server(folder, shards=2, gateways=2, max_body_bytes=4 * 1024 * 1024) as server:
        yield server.start().wait_ready()
        assert server.stop() == 0
        assert not server.holders()


@pytest.fixture
def fresh(tmp_path) -> Iterator[Any]:
    """Makes instances of one's own."""
    made: list[Instance] = []

    def make(shards: int = 1, env: dict[str, str] | None = None) -> Instance:
        root = tmp_path / str(len(made))
        root.mkdir()
        made.append(Instance(root, shards, env))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture(scope="session")
def http(instance) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=instance.url, timeout=WAIT_S, headers={"accept-encoding": "identity"}) as client:
        yield client


@pytest.fixture
def name(request) -> str:
    """A topic name that no other test uses."""
    number = zlib.crc32(request.node.nodeid.encode())
    return f"t.{request.function.__name__[5:100]}.{number}"
