"""A browser's own EventSource follows a topic while the server is killed, stopped and restarted under it.

The page runs the script of docs/live.md, from the server's own origin.
"""

import re

import pytest

from tests.browser.nginx import EXAMPLE
from tests.browser.orders import Writer, append, make_topic, truth
from topics.testing.server import ROOT, Server, wait_until

SCRIPT = re.findall(r"```js\n(.*?)```", (ROOT / "docs" / "live.md").read_text(), re.DOTALL)[0]
PAGE = """
    var seen = [], gaps = [], opened = [], errors = 0;
    var show = (records) => seen.push(...records.map((record) => [record.$seq, record.data]));
    var warn = (gap) => gaps.push(gap);
    window.EventSource = class extends EventSource {
        constructor(url) {
            super(url);
            opened.push(url);
            this.addEventListener("error", () => errors++);
        }
    };
"""


class Page:
    """Follows the topic `orders`."""

    def __init__(self, chromium, origin):
        self._browser = chromium
        chromium.open(f"{origin}/v0/health")
        chromium.run(PAGE + SCRIPT)

    def get(self, name):
        return self._browser.run(name)

    def wait(self, condition):
        wait_until(lambda: self.get(condition), f"{condition} in the page")


@pytest.fixture(params=["direct", "nginx"])
def origin(request, server):
    """Where the browser finds the server."""
    if request.param == "direct":
        return server.url
    return request.getfixturevalue("nginx")(EXAMPLE).url


@pytest.mark.slow
def test_it_goes_on_where_it_was_after_restarts(chromium, server, origin):
    make_topic(server.url)
    page = Page(chromium, origin)
    for end in (Server.kill_all, Server.stop):
        before = len(page.get("seen"))
        writer = Writer(server.url)
        page.wait(f"seen.length > {before + 20}")  # live, in the middle of it
        end(server)
        writer.join()
        page.wait("errors >= 2")  # the end of the stream, and a connection that failed meanwhile
        page.get("errors = 0")
        server.start(port=server.port).wait_ready()
        append(server.url, end.__name__)
        page.wait(f"seen.at(-1)[1] === '{end.__name__}'")
    assert page.get("seen") == truth(server.url)
    assert page.get("gaps") == []
    assert len(page.get("opened")) == 1  # the browser did all this by itself


@pytest.mark.slow
def test_where_the_session_is_not_known_the_page_makes_another_that_goes_on(chromium, server, tmp_path):
    """A server with the same records takes the place of the first."""
    with Server(tmp_path / "other") as other:
        for one in (server, other.start().wait_ready()):
            make_topic(one.url)
            append(one.url, 1)
        page = Page(chromium, server.url)
        page.wait("seen.length === 1")
        append(other.url, 2)
        other.stop()
        server.stop()
        other.start(port=server.port).wait_ready()
        page.wait("seen.length >= 2")
        assert page.get("seen") == truth(other.url)
        assert len(page.get("opened")) == 2
