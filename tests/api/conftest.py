"""Instances for tests: one shared by most, and a maker of others."""

import zlib
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.api.instance import WAIT_S, Instance


@pytest.fixture(scope="session")
def instance(tmp_path_factory) -> Iterator[Instance]:
    """Two shards shared by all tests; each test uses names of its own."""
    started = Instance(tmp_path_factory.mktemp("api"), 2, {"TOPICS_MAX_BODY_BYTES": str(4 * 1024 * 1024)})
    try:
        yield started.start()
    finally:
        started.close()


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
