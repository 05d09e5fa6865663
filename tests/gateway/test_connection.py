"""The bridge: what a connection does with requests that come whole, in pieces, several at once or not at all."""

import json
import logging
import socket

import pytest
import trio

from tests.gateway.harness import chunked, request, serving, until
from topics import limits
from topics.gateway.server import Patience, Server
from topics.rpc.open_calls import Reply

HOT = "/v0/topics/a"
COLD = "/v0/topics/a/delete"
BODY = b'{"records":[{"data":1}]}'


@pytest.mark.parametrize("path", [HOT, COLD])
async def test_a_connection_serves_many_requests(path):
    async with serving() as bench, bench.client() as client:
        for _ in range(3):
            answer = await client.request("POST", path, BODY)
            assert (answer.status, answer.closes) == (200, False)
            assert json.loads(answer.body)["size"] == len(BODY)


async def test_a_hot_answer_leaves_in_one_send(monkeypatch):
    sends = []
    async with serving() as bench, bench.client() as client:
        await client.request("GET", "/v0/health")
        (connection,) = bench.server.connections
        really = connection._try

        def noted(send, data):
            sends.append(data)
            return really(send, data)

        monkeypatch.setattr(connection, "_try", noted)
        await client.request("POST", HOT, BODY)
        await client.request("POST", COLD, BODY)
    assert [data.startswith(b"HTTP/1.1 200") and data.endswith(b"}}") for data in sends] == [True, True]


async def test_answers_carry_a_date():
    async with serving() as bench, bench.client() as client:
        for method, path in (("GET", "/v0/health"), ("POST", COLD)):
            answer = await client.request(method, path, BODY if method == "POST" else b"")
            assert answer.headers[b"date"].endswith(b" GMT")


async def test_pipelined_requests_are_answered_in_order():
    async with serving() as bench, bench.client() as client:
        sizes = range(1, 41)
        data = b"".join(request("POST", HOT if n % 3 else COLD, b"x" * n) for n in sizes)
        await client.send(data)
        assert [json.loads((await client.response()).body)["size"] for _ in sizes] == list(sizes)


@pytest.mark.parametrize("path", [HOT, COLD])
async def test_byte_by_byte(path):
    async with serving() as bench, bench.client() as client:
        client.stream.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for data in (request("POST", path, BODY), chunked("POST", path, b"ab", b"c")):
            for byte in data:
                await client.send(bytes([byte]))
            assert (await client.response()).status == 200
        assert [call[3] for call in bench.shards.calls] == [BODY, b"abc"]


@pytest.mark.parametrize("path", [HOT, COLD])
async def test_chunked_uploads(path):
    async with serving() as bench, bench.client() as client:
        await client.send(chunked("POST", path, b"a" * 70_000, b"b", b"c" * 100))
        assert json.loads((await client.response()).body)["size"] == 70_101


@pytest.mark.parametrize("path", ["/v0/health", "/v0/topics/a"])
async def test_head_has_the_headers_of_get_and_no_body(path):
    async with serving() as bench, bench.client() as client:
        answer = await client.request("HEAD", path)
        assert answer.status == 200
        assert int(answer.headers[b"content-length"]) > 10
        again = await client.request("GET", "/v0/health")  # nothing of a body came in between
        assert again.status == 200


@pytest.mark.parametrize("path", ["/v0/health", "/v0/topics/a"])
async def test_http_1_0(path):
    async with serving() as bench:
        data = await bench.exchange(f"GET {path} HTTP/1.0\r\n\r\n".encode())
        assert data.startswith(b"HTTP/1.1 200")
        assert b"connection: close" in data
        async with bench.client() as client:
            for _ in range(2):
                await client.send(f"GET {path} HTTP/1.0\r\nConnection: keep-alive\r\n\r\n".encode())
                answer = await client.response()
                assert answer.headers[b"connection"] == b"keep-alive"


@pytest.mark.parametrize("path", ["/v0/health", "/v0/topics/a"])
async def test_connection_close_is_kept(path):
    async with serving() as bench:
        data = await bench.exchange(request("GET", path, headers="Connection: close\r\n") + request("GET", path))
        assert data.count(b"HTTP/1.1 200") == 1
        assert b"connection: close" in data


@pytest.mark.parametrize("path", [HOT, COLD])
async def test_expect_100_continue(path):
    async with serving() as bench, bench.client() as client:
        head, body = request("POST", path, BODY, "Expect: 100-continue\r\n").split(b"\r\n\r\n")
        await client.send(head + b"\r\n\r\n")
        assert (await client.response()).status == 100
        await client.send(body)
        answer = await client.response()
        assert (answer.status, answer.closes) == (200, False)


@pytest.mark.parametrize("path", [HOT, COLD])
async def test_a_refused_expectation_is_told_before_the_body(path):
    async with serving(body_bytes=100) as bench, bench.client() as client:
        await client.send(request("POST", path, b"x" * 101, "Expect: 100-continue\r\n")[:-101])
        answer = await client.response()
        assert (answer.status, answer.closes) == (413, True)


@pytest.mark.parametrize("path", [HOT, COLD])
async def test_an_answer_before_the_body_is_complete_closes_the_connection(path):
    """And what comes after it is not taken for a request."""
    async with serving(body_bytes=100) as bench, bench.client() as client:
        await client.send(request("POST", path, b"x" * 200)[:-150])
        answer = await client.response()
        assert (answer.status, answer.closes) == (413, True)
        await client.send(b"x" * 150 + request("GET", "/v0/health"))
        assert await client.rest() == b""


@pytest.mark.parametrize("path", [HOT, COLD])
async def test_a_chunked_body_is_refused_as_soon_as_it_is_too_long(path):
    async with serving(body_bytes=1000) as bench, bench.client() as client:
        await client.send(chunked("POST", path, b"x" * 1001)[:-5])  # without its end
        answer = await client.response()
        assert (answer.status, answer.closes) == (413, True)
        assert json.loads(answer.body)["error"]["code"] == "payload_too_large"


@pytest.mark.parametrize("path", [HOT, COLD])
async def test_bad_chunks_are_a_400(path):
    async with serving() as bench, bench.client() as client:
        await client.send(chunked("POST", path, b"abc")[:-5] + b"zz\r\n")
        answer = await client.response()
        assert (answer.status, answer.closes) == (400, True)
        assert json.loads(answer.body)["error"]["code"] == "invalid_request"


@pytest.mark.parametrize("path", [HOT, COLD])
async def test_a_client_that_stalls_in_its_body_is_told_and_closed(path):
    async with serving(patience=Patience(sweep_s=0.01, body_s=0.05)) as bench, bench.client() as client:
        await client.send(request("POST", path, BODY)[:-3])
        answer = await client.response()
        assert (answer.status, answer.closes) == (408, True)
        assert await client.rest() == b""


async def test_a_client_that_stalls_in_its_head_is_told_and_closed():
    async with serving(patience=Patience(sweep_s=0.01, head_s=0.05)) as bench, bench.client() as client:
        assert (await client.request("GET", "/v0/health")).status == 200
        await client.send(b"GET /v0/health HTT")
        assert (await client.response()).status == 408


async def test_the_time_for_a_head_does_not_start_again_with_every_byte():
    async with serving(patience=Patience(sweep_s=0.01, head_s=0.2)) as bench, bench.client() as client:
        with trio.move_on_after(10) as scope:
            async with trio.open_nursery() as nursery:

                async def drip():
                    await client.send(b"GET /v0/health HTTP/1.1\r\n")
                    while True:
                        await client.send(b"a: b\r\n")
                        await trio.sleep(0.01)

                nursery.start_soon(drip)
                assert (await client.response()).status == 408
                nursery.cancel_scope.cancel()
        assert not scope.cancelled_caught


async def test_an_idle_connection_is_closed_without_a_word():
    async with serving(patience=Patience(sweep_s=0.01, idle_s=0.05)) as bench, bench.client() as client:
        assert (await client.request("GET", "/v0/health")).status == 200
        assert await client.rest() == b""


async def test_a_client_that_does_not_read_is_cut_off():
    async def endless(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while True:
            await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})

    async with serving(endless, patience=Patience(sweep_s=0.01, send_s=0.05)) as bench, bench.client() as client:
        await client.send(request("GET", "/x"))
        await until(lambda: bench.server.connections)
        await until(lambda: not bench.server.connections)


async def test_the_body_is_read_only_as_fast_as_the_app_takes_it():
    taken = trio.Event()

    async def lazy(scope, receive, send):
        await receive()
        taken.set()
        await trio.sleep_forever()

    async with serving(lazy) as bench, bench.client() as client:
        await client.send(request("POST", "/x", b"x" * (64 << 20))[:200])
        await taken.wait()
        sent = 0
        with trio.move_on_after(0.3):
            while sent < 64 << 20:
                sent += await client.stream.socket.send(b"x" * 65536)
        (connection,) = bench.server.connections
        assert connection.parser.queue[0].received <= limits.HTTP_RECEIVE_BYTES
        assert sent < 32 << 20  # the kernel's buffers, nothing more


async def test_a_long_upload_to_the_app_arrives_whole():
    async with serving() as bench, bench.client() as client:
        await client.send(request("POST", COLD, b"y" * limits.REQUEST_BODY_BYTES))
        assert json.loads((await client.response()).body)["size"] == limits.REQUEST_BODY_BYTES


async def test_bytes_that_arrive_during_a_request_are_bounded():
    async with serving() as bench, bench.client() as client:
        bench.shards.behave = bench.shards.hang
        await client.send(request("POST", "/v0/topics/a/diff", b'{"wait_ms":1}'))
        await bench.shards.waiting.wait()
        with trio.move_on_after(0.2):
            while True:
                await client.stream.socket.send(b"GET / HTTP/1.1\r\n" * 4096)
        (connection,) = bench.server.connections
        assert len(connection._ahead) < limits.HTTP_AHEAD_BYTES + limits.HTTP_RECEIVE_BYTES


@pytest.mark.parametrize("path", ["/v0/topics/a/diff", COLD])
async def test_a_client_that_goes_cancels_its_call(path):
    async with serving() as bench:
        bench.shards.behave = bench.shards.hang
        async with bench.client() as client:
            await client.send(request("POST", path, b'{"wait_ms":30000}'))
            await bench.shards.waiting.wait()
        await until(lambda: bench.shards.cancelled == 1 and not bench.server.connections)


async def test_requests_behind_a_long_poll_wait_for_it():
    release = trio.Event()

    async def slow(name, method, head, body):
        if method == "diff":
            await release.wait()
        return await type(bench.shards)().call(name, method, head, body)

    async with serving() as bench, bench.client() as client:
        bench.shards.behave = slow
        await client.send(request("POST", "/v0/topics/a/diff", b'{"wait_ms":1}') + request("POST", HOT, BODY))
        await client.send(request("POST", HOT, BODY * 2))
        await until(lambda: len(bench.shards.calls) == 1)
        release.set()
        sizes = [json.loads((await client.response()).body)["size"] for _ in range(3)]
        assert sizes == [13, len(BODY), 2 * len(BODY)]


async def test_nodelay_is_set():
    async with serving() as bench, bench.client() as client:
        await client.request("GET", "/v0/health")
        (connection,) = bench.server.connections
        assert connection.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_accepts_are_capped_per_wake(monkeypatch):
    """Between two wakes of the accepting task no more than a few connections are taken."""
    bursts = [0]
    really_open, really_wait = Server._open, trio.lowlevel.wait_readable

    def count(self, *args):
        bursts[-1] += 1
        really_open(self, *args)

    async def wait(fd):
        if isinstance(fd, socket.socket) and fd.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            bursts.append(0)
        await really_wait(fd)

    monkeypatch.setattr(Server, "_open", count)
    monkeypatch.setattr(trio.lowlevel, "wait_readable", wait)
    async with serving() as bench:
        address = ("127.0.0.1", bench.port)
        waiting = [socket.create_connection(address) for _ in range(3 * limits.HTTP_ACCEPTS_PER_WAKE)]
        await until(lambda: len(bench.server.connections) == len(waiting))
        assert max(bursts) == limits.HTTP_ACCEPTS_PER_WAKE
        for sock in waiting:
            sock.close()


@pytest.mark.parametrize("path", ["/v0/topics/a/diff", COLD])
async def test_the_access_log_is_for_debugging_and_never_shows_the_query(path, caplog):
    async with serving() as bench, bench.client() as client:
        with caplog.at_level(logging.INFO, "topics.access"):
            await client.request("POST", path + "?token=secret", b'{"payload":1}')
        assert caplog.records == []
        with caplog.at_level(logging.DEBUG, "topics.access"):
            await client.request("POST", path + "?token=secret", b'{"payload":1}')
        (line,) = [record.getMessage() for record in caplog.records if record.name == "topics.access"]
        assert f"POST {path} 200" in line
        assert "secret" not in line
        assert "payload" not in line


async def test_a_peer_that_resets_is_no_error(caplog):
    async with serving() as bench:
        for _ in range(5):
            sock = socket.create_connection(("127.0.0.1", bench.port))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            sock.sendall(request("POST", HOT, BODY)[:-1])
            sock.close()
        await until(lambda: not bench.server.connections)
        assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
        async with bench.client() as client:
            assert (await client.request("GET", "/v0/health")).status == 200


async def test_an_answer_larger_than_the_kernels_buffers_arrives_whole():
    body = b'{"x":"' + bytes(range(97, 123)) * 200_000 + b'"'

    async def large(*_):
        return Reply({"perf": {}}, body)

    async with serving() as bench, bench.client() as client:
        bench.shards.behave = large
        for path in ("/v0/topics/a/diff", COLD):
            await client.send(request("POST", path, b"{}"))
            answer = await client.response()
            assert answer.body.startswith(body + b',"performance":')
            json.loads(answer.body)
