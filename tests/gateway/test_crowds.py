"""Clients by the hundred that want nothing but to be in the way, while others are served."""

import json

import pytest
import trio

from tests.gateway.harness import Bench, request, serving, until
from tests.gateway.test_handover import H2Client
from topics import limits
from topics.gateway.server import Patience
from topics.rpc.open_calls import Reply

IMPATIENT = Patience(idle_s=1.0, head_s=1.0, body_s=1.0, send_s=1.0, linger_s=0.2, sweep_s=0.02)


CROWD = [
    (100, b"GET /v0/health HTTP/1.1\r\nHost: x\r\nX-Slow: ", b"a"),  # a head that never ends
    (100, request("POST", "/v0/topics/a", b"x" * 100_000)[:-100_000], b"x"),  # a body, byte by byte
    (100, b"POST /v0/topics/a HT", b""),  # half a line, then nothing
    (100, b"", b""),  # says nothing at all
    (20, b"PRI * HTTP/2.0\r\n", b""),  # perhaps HTTP/2, one day
]
HEADS = sum(count for count, _, _ in CROWD)


async def be_ordinary(bench: Bench) -> None:
    """An ordinary client: served, each time."""
    async with bench.client() as client:
        for path in ("/v0/topics/a", "/v0/topics/a/diff", "/v0/topics/a/delete"):
            assert (await client.request("POST", path, b"{}")).status == 200


async def trickle(bench: Bench, start: bytes, drop: bytes, ended: list[bytes]) -> None:
    """Send a little for ever; `ended` gets what the server said at last."""
    async with bench.client() as client:
        try:
            await client.send(start)
            while True:
                with trio.move_on_after(0.05):
                    if not await client.more():
                        break
                await client.send(drop)
        except (trio.BrokenResourceError, OSError):
            pass
        ended.append(client.buffer)


def start(bench: Bench, crowd: trio.Nursery, ended: list[bytes]) -> None:
    for count, begin, drop in CROWD:
        for _ in range(count):
            crowd.start_soon(trickle, bench, begin, drop, ended)


async def test_slow_loris_and_half_open_clients_by_the_hundred_do_not_keep_others_from_being_served():
    async with serving(patience=Patience(idle_s=3600, head_s=3600, body_s=3600)) as bench:
        async with trio.open_nursery() as crowd:
            start(bench, crowd, [])
            await until(lambda: len(bench.server.connections) == HEADS)
            for _ in range(20):
                await be_ordinary(bench)
            await until(lambda: len(bench.server.connections) == HEADS)  # they are all still there
            crowd.cancel_scope.cancel()
        await until(lambda: not bench.server.connections)


async def test_slow_loris_and_half_open_clients_by_the_hundred_are_sent_away():
    ended: list[bytes] = []
    async with serving(patience=IMPATIENT) as bench:
        async with trio.open_nursery() as crowd:
            start(bench, crowd, ended)
        await until(lambda: not bench.server.connections)
    statuses = [data.split(b" ")[1] if data else b"" for data in ended]
    assert len(ended) == HEADS
    assert set(statuses) == {b"408", b""}
    assert statuses.count(b"408") >= 200  # who had begun to say something was told


async def test_a_body_that_trickles_is_not_waited_for_for_ever():
    """Each piece comes in time, the whole would take days."""
    async with serving(patience=Patience(body_s=0.3, sweep_s=0.01)) as bench:
        for path in ("/v0/topics/a", "/v0/topics/a/delete"):
            ended: list[bytes] = []
            start = request("POST", path, b"x" * 1_000_000)[:-1_000_000]
            with trio.fail_after(60):
                await trickle(bench, start, b"x", ended)
            assert ended[0].startswith(b"HTTP/1.1 408 ")


async def test_an_answer_that_is_taken_in_drops_is_not_offered_for_ever():
    async def large(*_):
        return Reply({"created": False, "perf": {}}, b'{"x":"' + b"x" * 30_000_000 + b'"')

    async with serving(patience=Patience(send_s=0.3, sweep_s=0.01)) as bench, bench.client() as client:
        bench.shards.behave = large
        await client.send(request("POST", "/v0/topics/a", b"{}"))
        (connection,) = bench.server.connections
        with trio.fail_after(60):
            while bench.server.connections:
                await trio.sleep(0.05)
                with trio.move_on_after(0.01):
                    await client.stream.receive_some(100)
        assert connection.timed_out


async def test_http_2_clients_that_do_not_take_their_answer_are_cut_off(monkeypatch):
    monkeypatch.setattr(limits, "HTTP_BYTES_PER_S", 1 << 30)

    async def large(*_):
        return Reply({"perf": {}}, b'{"x":"' + b"x" * 1_000_000 + b'"')

    async with serving(patience=Patience(send_s=0.2, sweep_s=0.01)) as bench, bench.client() as client:
        bench.shards.behave = large
        http = H2Client(client)
        http.h2.initiate_connection()
        headers = [(":method", "GET"), (":path", "/v0/topics/a"), (":scheme", "http"), (":authority", "test")]
        http.h2.send_headers(1, headers, end_stream=True)  # its window stays as it is: 64 KiB
        await http.flush()
        await client.rest()
        await until(lambda: not bench.server.connections)


async def test_connections_over_the_cap_are_turned_away():
    async with serving(max_connections=3) as bench, trio.open_nursery() as nursery:
        bench.shards.behave = bench.shards.hang
        kept = [await trio.open_tcp_stream("127.0.0.1", bench.port) for _ in range(2)]
        nursery.start_soon(bench.exchange, request("POST", "/v0/topics/a/diff", b'{"wait_ms":1}'))
        await until(lambda: len(bench.server.connections) == 3)
        for _ in range(200):
            async with bench.client() as client:
                head = await client.until(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 503 ")
                assert b"retry-after: 1\r\n" in head
                assert b"connection: close\r\n" in head
                detail = json.loads(await client.rest())["error"]["detail"]
                assert detail == {"limit": "max_connections", "max": 3}
        await kept.pop().aclose()
        await until(lambda: len(bench.server.connections) == 2)
        async with bench.client() as client:
            assert (await client.request("GET", "/v0/health")).status == 200
        await kept.pop().aclose()
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (request("GET", "/" + "x" * 9000), 414),
        (request("GET", "/v0/health", headers="X: " + "x" * 40_000 + "\r\n"), 431),
        (request("GET", "/v0/health", headers="X: y\r\n" * 200), 431),
        (b"GET /v0/health HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 100_000, 431),
    ],
)
async def test_heads_and_urls_have_a_size(data, status):
    async with serving() as bench:
        assert (await bench.exchange(data)).startswith(b"HTTP/1.1 %d " % status)
