"""What nginx lets through, and when."""

import json
import re

import httpx
import pytest
from websockets.sync.client import connect

from tests.api.events import EventStream
from tests.browser.nginx import BARE, EXAMPLE
from tests.browser.orders import NAME, TOPIC, append, make_topic, watch
from topics import limits
from topics.testing.server import DEADLINE_S


@pytest.mark.parametrize("config", [BARE, EXAMPLE], ids=["bare", "example"])
def test_events_are_not_kept_back(server, nginx, config):
    """nginx buffers answers by default, unless they say no; the next record is written after the last was seen."""
    make_topic(server.url)
    proxy = nginx(config)
    stream = EventStream(("127.0.0.1", proxy.port), watch(proxy.url))
    assert stream.headers["content-type"].startswith("text/event-stream")
    for number in range(10):
        append(proxy.url, number)
        assert [record["data"] for record in stream.records(1)] == [number]
    stream.close()


def test_a_websocket_through_the_example(server, nginx):
    make_topic(server.url)
    with connect(nginx(EXAMPLE).url.replace("http", "ws") + "/v0/ws") as socket:

        def receive(op):
            while (frame := json.loads(socket.recv(timeout=DEADLINE_S)))["op"] != op:
                pass
            return frame

        socket.send(json.dumps({"op": "subscribe", "topic": NAME}))
        receive("caught_up")
        for number in range(10):
            socket.send(json.dumps({"op": "publish", "topic": NAME, "records": [{"data": number}]}))
            assert [record["data"] for record in receive("record")["records"]] == [number]


def test_an_idle_stream_or_socket_says_something_before_the_example_cuts_it():
    (seconds,) = re.findall(r"proxy_read_timeout (\d+)s;", EXAMPLE)
    assert int(seconds) > limits.HEARTBEAT_MS_MAX / 1000
    assert int(seconds) > limits.WS_PING_S


def test_large_bodies_pass_the_example(server, nginx):
    make_topic(server.url)
    records = [{"data": "x" * 500_000}] * 10
    answer = httpx.post(nginx(EXAMPLE).url + TOPIC, json={"records": records}, timeout=DEADLINE_S)
    assert answer.status_code == 200, answer.text
