"""A browser, and ways to a server."""

from collections.abc import Callable, Iterator

import pytest

from tests.browser.chromium import Chromium
from tests.browser.nginx import Nginx
from tests.tools import need
from topics.testing.server import Server


@pytest.fixture(scope="session")
def chromium(tmp_path_factory) -> Iterator[Chromium]:
    program = need("chromium", "chromium-browser", "google-chrome")
    browser = Chromium(program, tmp_path_factory.mktemp("chromium"))
    yield browser
    browser.close()


@pytest.fixture
def server(tmp_path) -> Iterator[Server]:
    with Server(tmp_path / "server") as server:
        yield server.start().wait_ready()


@pytest.fixture(scope="session")
def nginx_program() -> str:
    return need("nginx")


@pytest.fixture
def nginx(nginx_program, tmp_path, server) -> Iterator[Callable[[str], Nginx]]:
    """`nginx(config)` starts one in front of the server."""
    started: list[Nginx] = []

    def start(config: str) -> Nginx:
        started.append(Nginx(nginx_program, tmp_path / f"nginx-{len(started)}", config, server.port))
        return started[-1]

    yield start
    for one in started:
        one.close()
