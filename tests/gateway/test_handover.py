"""The seam to Hypercorn: that its parts are where we expect them, and that what they serve works."""

import base64
import importlib.metadata
import inspect
import json

import h2.config
import h2.connection
import h2.events
import pytest
import quart
import trio
import wsproto
from hypercorn.protocol import ws_stream
from hypercorn.trio.lifespan import Lifespan
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext

from tests.gateway.harness import Client, request, serving, until
from tests.gateway.test_drain import held_up
from topics.gateway.app import create_app
from topics.gateway.dispatch import Gateway
from topics.gateway.handover import ReplayedStream, hypercorn_config
from topics.gateway.server import Patience
from topics.gateway.table import ROUTES


def parameters(function):
    return [name for name in inspect.signature(function).parameters if name != "self"]


def test_hypercorn_has_not_moved():
    """If this fails, Hypercorn was upgraded: read its trio/tcp_server.py and trio/run.py, then mend handover.py."""
    assert importlib.metadata.version("hypercorn").startswith("0.18.")
    assert parameters(TCPServer.__init__) == ["app", "config", "context", "state", "stream"]
    assert parameters(TCPServer.run) == []
    assert parameters(Lifespan.__init__) == ["app", "config", "state"]
    assert parameters(WorkerContext.__init__) == ["max_requests"]
    used_of_stream = {"receive_some", "send_all", "send_eof", "aclose", "socket"}
    source = inspect.getsource(TCPServer)
    assert all(f"stream.{name}" in source for name in used_of_stream)
    assert used_of_stream <= {*dir(ReplayedStream), "socket"}
    assert not hasattr(ReplayedStream, "do_handshake")  # by its absence Hypercorn tells plain from TLS
    assert " Connection(" in inspect.getsource(ws_stream)
    assert "ConnectionState.REMOTE_CLOSING" in inspect.getsource(ws_stream.WSStream._handle_events)
    for name in vars(hypercorn_config(1024)):
        assert hasattr(type(hypercorn_config(1024)), name) or name.startswith("_"), name


class H2Client:
    """HTTP/2 in clear text, one request at a time."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
        self.answers: dict[int, tuple[dict[str, str], bytes]] = {}
        self.ended: set[int] = set()

    async def flush(self) -> None:
        await self.client.send(self.h2.data_to_send())

    async def request(self, method: str, path: str, body: bytes = b"") -> tuple[dict[str, str], bytes]:
        stream = self.h2.get_next_available_stream_id()
        headers = [(":method", method), (":path", path), (":scheme", "http"), (":authority", "test")]
        if body:
            headers.append(("content-type", "application/json"))
        self.h2.send_headers(stream, headers, end_stream=not body)
        if body:
            self.h2.send_data(stream, body, end_stream=True)
        await self.flush()
        return await self.answer(stream)

    async def answer(self, stream: int) -> tuple[dict[str, str], bytes]:
        while stream not in self.ended:
            if not self.client.buffer:
                assert await self.client.more()
            data, self.client.buffer = self.client.buffer, b""
            for event in self.h2.receive_data(data):
                self.handle(event)
            await self.flush()
        return self.answers[stream]

    def handle(self, event: h2.events.Event) -> None:
        if isinstance(event, h2.events.ResponseReceived):
            headers = {str(name): str(value) for name, value in event.headers}
            self.answers[event.stream_id] = (headers, b"")
        elif isinstance(event, h2.events.DataReceived):
            headers, body = self.answers[event.stream_id]
            self.answers[event.stream_id] = (headers, body + event.data)
            self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, h2.events.StreamEnded):
            self.ended.add(event.stream_id)


async def test_http_2_with_prior_knowledge_has_every_route():
    async with serving() as bench, bench.client() as client:
        http = H2Client(client)
        http.h2.initiate_connection()
        headers, body = await http.request("POST", "/v0/topics/a", b'{"records":[]}')
        assert headers[":status"] == "200"
        assert json.loads(body)["size"] == 14
        assert (await http.request("GET", "/v0/health"))[0][":status"] == "200"
        assert (await http.request("GET", "/v0/nope"))[0][":status"] == "404"
        assert (await http.request("PATCH", "/v0/topics/a"))[0]["allow"] == "DELETE, GET, HEAD, POST, PUT"
        for route in ROUTES.table:
            headers, _ = await http.request(route.method, route.template.replace(":topic", "a"), b"")
            assert headers[":status"] not in ("404", "405"), route


async def test_the_preface_in_pieces():
    async with serving() as bench, bench.client() as client:
        http = H2Client(client)
        http.h2.initiate_connection()
        preface = http.h2.data_to_send()
        for at in range(0, len(preface), 7):
            await client.send(preface[at : at + 7])
            await trio.testing.wait_all_tasks_blocked()
        assert (await http.request("GET", "/v0/health"))[0][":status"] == "200"


async def test_what_only_looks_like_a_preface_is_http_1():
    async with serving() as bench:
        assert (await bench.exchange(b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n")).startswith(b"HTTP/1.1 400 ")
        answer = await bench.exchange(request("PRINT", "/", headers="Connection: close\r\n"))
        assert answer.startswith(b"HTTP/1.1 404 ")


async def test_upgrade_to_h2c():
    async with serving() as bench, bench.client() as client:
        http = H2Client(client)
        settings = http.h2.initiate_upgrade_connection()
        assert settings is not None
        upgrade = f"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: {settings.decode()}\r\n"
        await client.send(request("GET", "/v0/health", headers=upgrade))
        assert (await client.response()).status == 101
        await http.flush()
        headers, body = await http.answer(1)
        assert headers[":status"] == "200"
        assert json.loads(body)["status"] == "ok"


async def test_an_upgrade_that_is_not_offered_is_ignored():
    for upgrade in ("TLS/1.0", "h2c, websocket"):
        async with serving() as bench, bench.client() as client:
            headers = f"Connection: upgrade\r\nUpgrade: {upgrade}\r\n"
            answer = await client.request("POST", "/v0/topics/a", b"{}", headers)
            assert (answer.status, answer.closes) == (200, False)
            assert (await client.request("GET", "/v0/health")).status == 200


async def test_h2c_with_a_body_stays_http_1():
    async with serving() as bench, bench.client() as client:
        answer = await client.request("POST", "/v0/topics/a", b"{}", "Connection: upgrade\r\nUpgrade: h2c\r\n")
        assert answer.status == 200


def echo_app() -> quart.Quart:
    gateway = Gateway(None, ROUTES)  # type: ignore[arg-type]
    app = create_app(gateway)

    @app.websocket("/v0/echo")
    async def echo() -> None:
        while True:
            await quart.websocket.send(await quart.websocket.receive())

    @app.get("/slow")
    async def slow() -> str:
        await trio.sleep(0.05)
        return "slow"

    return app


def handshake(path: str) -> bytes:
    key = base64.b64encode(b"0123456789abcdef").decode()
    return request(
        "GET",
        path,
        headers=f"Connection: Upgrade\r\nUpgrade: WebSocket\r\nSec-WebSocket-Version: 13\r\n"
        f"Sec-WebSocket-Key: {key}\r\n",
    )


async def speak(client: Client) -> None:
    """Over an open WebSocket: one message there and back."""
    ws = wsproto.connection.Connection(wsproto.ConnectionType.CLIENT)
    await client.send(ws.send(wsproto.events.TextMessage("hello")))
    while True:
        if not client.buffer:
            assert await client.more()
        ws.receive_data(client.buffer)
        client.buffer = b""
        for event in ws.events():
            if isinstance(event, wsproto.events.Ping):
                continue
            assert isinstance(event, wsproto.events.TextMessage)
            assert event.data == "hello"
            return


async def test_websockets():
    async with serving(echo_app()) as bench, bench.client() as client:
        await client.send(handshake("/v0/echo"))
        assert (await client.response()).status == 101
        await speak(client)


async def test_a_websocket_where_there_is_none():
    async with serving() as bench, bench.client() as client:
        await client.send(handshake("/v0/nope"))
        answer = await client.response()
        assert answer.status == 404
        assert json.loads(answer.body)["error"]["code"] == "not_found"


async def test_an_upgrade_that_arrives_during_a_request():
    """In the same packet, and while the first is under way."""
    for together in (True, False):
        async with serving(echo_app()) as bench, bench.client() as client:
            first, second = request("GET", "/slow"), handshake("/v0/echo")
            await client.send(first + second if together else first)
            if not together:
                await trio.testing.wait_all_tasks_blocked()
                await client.send(second)
            assert (await client.response()).body == b"slow"
            assert (await client.response()).status == 101
            await speak(client)


async def test_websockets_end_with_the_server():
    async with serving(echo_app(), grace_s=0.2) as bench, bench.client() as client:
        await client.send(handshake("/v0/echo"))
        assert (await client.response()).status == 101
        bench.stop.set()
        await client.rest()
        with trio.fail_after(60):
            await bench.done.wait()


async def test_idle_http_2_connections_close_in_a_drain():
    async with serving() as bench, bench.client() as client:
        http = H2Client(client)
        http.h2.initiate_connection()
        await http.request("GET", "/v0/health")
        bench.stop.set()
        await client.rest()
        with trio.fail_after(60):
            await bench.done.wait()


async def test_new_http_2_connections_are_answered_in_a_drain():
    async with held_up() as bench, bench.client() as client:
        http = H2Client(client)
        http.h2.initiate_connection()
        await http.flush()  # the preface alone
        await trio.testing.wait_all_tasks_blocked()
        headers, body = await http.request("GET", "/v0/topics/a")
        assert (headers[":status"], json.loads(body)["error"]["code"]) == ("503", "shutting_down")


async def test_idle_http_2_connections_are_closed_in_time():
    async with serving(patience=Patience(sweep_s=0.01, idle_s=0.05)) as bench, bench.client() as client:
        http = H2Client(client)
        http.h2.initiate_connection()
        await http.request("GET", "/v0/health")
        await client.rest()


async def test_a_request_of_http_2_under_way_finishes_in_a_drain():
    async with serving(echo_app()) as bench, bench.client() as client:
        http = H2Client(client)
        http.h2.initiate_connection()
        await http.request("GET", "/v0/health")
        await until(lambda: next(iter(bench.server.connections)).idle)  # the server is through with it, too
        async with trio.open_nursery() as nursery:

            async def stop() -> None:
                await until(lambda: not next(iter(bench.server.connections)).idle)
                bench.stop.set()

            nursery.start_soon(stop)
            assert (await http.request("GET", "/slow"))[1] == b"slow"
        await client.rest()
        with trio.fail_after(60):
            await bench.done.wait()


async def test_an_answer_over_http_2_before_the_body_is_complete():
    """The refusal comes at once, the rest of the body does no harm, and the connection goes on."""
    async with serving(body_bytes=100) as bench, bench.client() as client:
        http = H2Client(client)
        http.h2.initiate_connection()
        headers = [(":method", "POST"), (":path", "/v0/topics/a"), (":scheme", "http"), (":authority", "test")]
        http.h2.send_headers(1, [*headers, ("content-length", "300"), ("content-type", "application/json")])
        http.h2.send_data(1, b"x" * 100)
        await http.flush()
        while 1 not in http.answers:
            assert await client.more()
            data, client.buffer = client.buffer, b""
            for event in http.h2.receive_data(data):
                http.handle(event)
        assert http.answers[1][0][":status"] == "413"
        http.h2.send_data(1, b"x" * 200, end_stream=True)
        await http.flush()
        assert b"payload_too_large" in (await http.answer(1))[1]
        assert (await http.request("GET", "/v0/health"))[0][":status"] == "200"


@pytest.mark.parametrize(("body_bytes", "message_bytes"), [(1024, 1024), (64 << 20, 8 << 20)])
def test_a_websocket_message_is_bounded_whatever_an_append_may_be(body_bytes, message_bytes):
    assert hypercorn_config(body_bytes).websocket_max_message_size == message_bytes
