"""One Spark for all tests, and a server for those that do not hurt it."""

import zlib
from collections.abc import Iterator
from typing import Any

import pytest

from spark_integration.session import spark_session
from tests.spark.frames import CONF
from topics.client import Client
from topics.testing.server import Server


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    session = spark_session("tests", "local[2,2]", CONF)  # the second 2: a task is tried twice
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def server(tmp_path_factory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("spark")) as server:
        yield server.start().wait_ready()


@pytest.fixture(scope="session")
def topics(server) -> Iterator[Client]:
    with Client(server.url) as client:
        yield client


@pytest.fixture
def name(request) -> str:
    """A topic name that no other test uses."""
    number = zlib.crc32(request.node.nodeid.encode())
    return f"t.{request.function.__name__[5:100]}.{number}"
