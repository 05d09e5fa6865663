"""Clients that others wrote follow a topic while the server is killed and comes back."""

import json
import shutil
import subprocess
import threading
from itertools import islice
from pathlib import Path

import httpx
import httpx_sse
import pytest
from websockets.sync.client import connect

from tests.browser.orders import NAME, Writer, append, make_topic, truth, watch
from tests.tools import missing, need
from topics.testing.server import DEADLINE_S, wait_until

pytestmark = pytest.mark.slow
NODE = Path(__file__).parent / "node"
INSTALL_S = 120.0


def pairs(records):
    return [[record["$seq"], record["data"]] for record in records]


def restart(server):
    server.kill_all()
    server.start(port=server.port).wait_ready()


@pytest.fixture(scope="session")
def node_client(tmp_path_factory):
    """The command of a program that prints what npm's `eventsource` sees."""
    node, npm = need("node", "nodejs"), need("npm")
    folder = tmp_path_factory.mktemp("node") / "client"
    shutil.copytree(NODE, folder)
    command = [npm, "ci", "--no-audit", "--no-fund", "--prefer-offline", "--fetch-retries=1"]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=INSTALL_S)
    except subprocess.TimeoutExpired:
        missing(f"npm installed nothing in {INSTALL_S} s")
    if done.returncode:
        missing(f"npm cannot install: {done.stderr.splitlines()[:2]}")
    return [node, str(folder / "follow.mjs")]


def test_eventsource_of_npm(server, node_client):
    make_topic(server.url)
    seen: list[list] = []

    def note():
        assert process.stdout is not None
        for line in process.stdout:
            seen.extend(pairs(json.loads(line)))

    command = [*node_client, server.url + watch(server.url)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        reading = threading.Thread(target=note)
        reading.start()
        writer = Writer(server.url)
        wait_until(lambda: len(seen) > 20, "records in node")
        restart(server)
        writer.join()
        append(server.url, "back")
        wait_until(lambda: seen[-1][1] == "back", "the last record in node")
        process.kill()
        reading.join()
    assert seen == truth(server.url)


def test_httpx_sse(server):
    make_topic(server.url)
    stream_url = watch(server.url)
    seen, last_id = [], ""
    for life in range(3):
        append(server.url, f"a{life}")
        append(server.url, f"b{life}")
        headers = {"last-event-id": last_id} if last_id else {}
        with (
            httpx.Client(base_url=server.url, timeout=DEADLINE_S) as http,
            httpx_sse.connect_sse(http, "GET", stream_url, headers=headers) as source,
        ):
            events = (event for event in source.iter_sse() if event.event == "record")
            for event in islice(events, 1):  # one is processed; what else comes is lost with the connection
                seen += pairs(event.json()["records"])
                last_id = event.id
            append(server.url, f"c{life}")
            next(events)
            restart(server)
    assert seen == truth(server.url)[:-1]


def test_websockets(server):
    make_topic(server.url)
    seen: list[list] = []
    last_seq = 0
    for life in range(3):
        with connect(server.url.replace("http", "ws") + "/v0/ws") as socket:
            socket.send(json.dumps({"op": "subscribe", "topic": NAME, "from_seq": last_seq}))
            for number in range(5):
                socket.send(json.dumps({"op": "publish", "topic": NAME, "records": [{"data": [life, number]}]}))
            while len(seen) < 5 * (life + 1):
                frame = json.loads(socket.recv(timeout=DEADLINE_S))
                if frame["op"] == "record":
                    seen += pairs(frame["records"])
                    last_seq = frame["to_seq"]
            restart(server)
    assert seen == truth(server.url)
    assert [data for _, data in seen] == [[life, number] for life in range(3) for number in range(5)]
