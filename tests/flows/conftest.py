"""What users of other systems do, against a server and against a program's own database."""

import zlib
from collections.abc import Iterator

import pytest

import topics
from topics.client import Client
from topics.client.api import Api
from topics.errors import TopicsError
from topics.testing.server import Server


@pytest.fixture(scope="session")
def server(tmp_path_factory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("flows"), shards=2) as made:
        yield made.start().wait_ready()


@pytest.fixture(params=["http", "embedded"])
def api(request, tmp_path) -> Iterator[Api]:
    if request.param == "http":
        with Client(request.getfixturevalue("server").url) as client:
            yield client
    else:
        with topics.open(tmp_path / "data", shards=2) as db:
            yield db


@pytest.fixture
def name(request) -> str:
    """A topic name that no other test uses."""
    return f"t.{zlib.crc32(request.node.nodeid.encode())}"


def code_of(call) -> str:
    """The code that a call is refused with."""
    try:
        call()
    except TopicsError as error:
        return error.code
    raise AssertionError("it was not refused")
