"""The hot path's parser beside Hypercorn's own: the same app, the same bytes, the same answers.

Where we are stricter, the case says so; a stricter answer is always a 4xx that closes the connection.
"""

import random
import re
import socket

import pytest
import trio

from tests.gateway.harness import Bench, chunked, request, serving, until

CLOSE = "Connection: close\r\n"
JSON = "Content-Type: application/json\r\n"
HOST = b"Host: x\r\n"

SAME = {
    "hot": request("POST", "/v0/topics/a", b"{}", CLOSE),
    "cold": request("POST", "/v0/topics/a/delete", b"{}", CLOSE),
    "get": request("GET", "/v0/health", headers=CLOSE),
    "head": request("HEAD", "/v0/health", headers=CLOSE),
    "unknown path": request("GET", "/nope", headers=CLOSE),
    "unknown method": request("PATCH", "/v0/topics/a", b"{}", CLOSE),
    "odd method": request("BREW", "/v0/topics/a", b"{}", CLOSE),
    "odd method, unknown path": request("BREW", "/pot", headers=CLOSE),
    "odd method, not a token": request("B(W", "/v0/health", headers=CLOSE),
    "odd method, chunked": chunked("BREW", "/v0/health", b"ab", headers=CLOSE),
    "odd method, then another request": request("BREW", "/pot", b"GET ") + request("GET", "/v0/health", headers=CLOSE),
    "odd method and upgrade": request("BREW", "/pot", headers="Upgrade: tea\r\n" + CLOSE),
    "options": request("OPTIONS", "/v0/topics/a", headers=CLOSE),
    "encoded": request("GET", "/v0/topics/%61%2Eb", headers=CLOSE),
    "encoded slash": request("GET", "/v0/topics/a%2Fb", headers=CLOSE),
    "encoded twice": request("GET", "/v0/topics/%2561", headers=CLOSE),
    "double slash": request("GET", "/v0//topics", headers=CLOSE),
    "trailing slash": request("GET", "/v0/topics/a/", headers=CLOSE),
    "dots": request("GET", "/v0/topics/../health", headers=CLOSE),
    "no content type": b"POST /v0/topics/a HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}",
    "too large": request("POST", "/v0/topics/a", b"x" * 5001, CLOSE),
    "too large chunked": chunked("POST", "/v0/topics/a", b"x" * 5001, headers=CLOSE + JSON),
    "chunked": chunked("POST", "/v0/topics/a", b"ab", b"c", headers=CLOSE + JSON),
    "chunked, cold": chunked("POST", "/v0/topics/a/delete", b"ab", b"c", headers=CLOSE + JSON),
    "chunk extension": chunked("POST", "/v0/topics/a", b"ab", headers=CLOSE + JSON).replace(b"2\r\n", b"2;a=b\r\n"),
    "trailers": chunked("POST", "/v0/topics/a", b"ab", headers=CLOSE + JSON)[:-2] + b"X: y\r\n\r\n",
    "http 1.0": b"GET /v0/health HTTP/1.0\r\n\r\n",
    "http 1.0 with body": request("POST", "/v0/topics/a", b"{}").replace(b"HTTP/1.1", b"HTTP/1.0"),
    "pipelined": request("GET", "/v0/health")
    + request("POST", "/v0/topics/a", b"{}")
    + request("GET", "/x", headers=CLOSE),
    "other transfer coding": b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: gzip, chunked\r\n\r\n",
    "no host": b"GET /v0/health HTTP/1.1\r\nConnection: close\r\n\r\n",
    "two hosts": b"GET /v0/health HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    "bad version": b"GET / HTTP/1.x\r\nHost: a\r\n\r\n",
    "no version, no host": b"GARBAGE\r\n\r\n",
    "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    "bad header": b"GET / HTTP/1.1\r\n" + HOST + b"a b: c\r\n\r\n",
    "nul in header": b"GET / HTTP/1.1\r\n" + HOST + b"a: \0\r\n\r\n",
    "two lengths": b"POST /v0/topics/a HTTP/1.1\r\n" + HOST + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}x",
    "bad length": b"POST /v0/topics/a HTTP/1.1\r\n" + HOST + b"Content-Length: x\r\n\r\n",
    "negative length": b"POST /v0/topics/a HTTP/1.1\r\n" + HOST + b"Content-Length: -1\r\n\r\n",
    "huge header": b"GET /v0/health HTTP/1.1\r\n" + HOST + b"a: " + b"a" * 100_000 + b"\r\n\r\n",
    "endless header": b"GET /v0/health HTTP/1.1\r\n" + HOST + b"a: " + b"a" * 200_000,
    "good, then garbage": request("GET", "/v0/health") + b"\0\0\0\r\n\r\n",
}

STRICTER = {
    "length and chunks": b"POST /v0/topics/a HTTP/1.1\r\n"
    + HOST
    + b"Connection: close\r\nContent-Type: application/json\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n"
    + b"2\r\n{}\r\n0\r\n\r\n",
    "the same length twice": b"POST /v0/topics/a HTTP/1.1\r\n"
    + HOST
    + b"Connection: close\r\nContent-Type: application/json\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
    "bare line feeds": b"GET /v0/health HTTP/1.1\nHost: x\nConnection: close\n\n",
    "folded header": b"GET /v0/health HTTP/1.1\r\n" + HOST + b"a: b\r\n c\r\nConnection: close\r\n\r\n",
    "unknown method behind another request": request("GET", "/v0/health") + request("BREW", "/", headers=CLOSE),
    "bad chunk size": chunked("POST", "/v0/topics/a", b"ab", headers=JSON).replace(b"2\r\nab", b"zz\r\nab"),
}


def statuses(data: bytes) -> list[int]:
    return [int(found) for found in re.findall(rb"HTTP/1\.1 (\d{3}) ", data)]


async def by_hypercorn(bench: Bench, data: bytes) -> bytes:
    """The same server's app, with Hypercorn on the connection.

    Under Quart-Trio it announces `connection: close` but then waits for the client to close; so that is what we do.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        stream = await trio.open_tcp_stream(*listener.getsockname())
        sock, _ = listener.accept()
    sock.setblocking(False)
    async with trio.open_nursery() as nursery:
        handover = await bench.server.framework.handover()
        nursery.start_soon(handover.take, sock, data, lambda busy: None)
        got = b""
        with trio.fail_after(60):
            while part := await stream.receive_some(65536):
                got += part
                if b"connection: close" in got.lower():
                    await stream.send_eof()
        nursery.cancel_scope.cancel()
    await stream.aclose()
    return got


@pytest.mark.parametrize("case", SAME)
async def test_same_answer(case):
    async with serving(body_bytes=5000) as bench:
        ours, theirs = await bench.exchange(SAME[case]), await by_hypercorn(bench, SAME[case])
        assert statuses(ours) == statuses(theirs), (ours, theirs)


@pytest.mark.parametrize("case", STRICTER)
async def test_stricter(case):
    async with serving() as bench:
        assert statuses(await bench.exchange(STRICTER[case]))[-1] == 400


async def test_blank_lines_before_a_request_are_ignored():
    """RFC 9112 §2.2 asks for it; Hypercorn answers 400."""
    async with serving() as bench:
        assert statuses(await bench.exchange(b"\r\n\r\n" + SAME["get"])) == [200]


async def test_random_mixtures_give_the_same_answers():
    seed = random.randrange(1 << 32)
    print("seed", seed)
    dice = random.Random(seed)
    pieces = [
        request("POST", "/v0/topics/a", b"{}"),
        request("POST", "/v0/topics/a/delete", b"[1]"),
        chunked("POST", "/v0/topics/a/diff", b"{", b"}"),
        request("GET", "/v0/health"),
        request("GET", "/nope"),
        request("HEAD", "/v0/health"),
        request("DELETE", "/v0/health"),
    ]
    last = [SAME["get"], SAME["bad header"], SAME["tls"], SAME["no host"], SAME["http 1.0"]]
    async with serving() as bench:
        for _ in range(40):
            data = b"".join(dice.choices(pieces, k=dice.randrange(6))) + dice.choice(last)
            theirs = statuses(await by_hypercorn(bench, data))
            async with bench.client() as client:
                at = 0
                while at < len(data):
                    step = dice.randrange(1, 200)
                    await client.send(data[at : at + step])
                    at += step
                    if dice.random() < 0.3:
                        await trio.lowlevel.checkpoint()
                assert statuses(await client.rest()) == theirs, (seed, data)


async def test_garbage_never_holds_or_breaks_the_server():
    seed = random.randrange(1 << 32)
    print("seed", seed)
    dice = random.Random(seed)
    async with serving() as bench:
        for _ in range(150):
            data = bytearray(dice.choice(list(SAME.values()) + list(STRICTER.values())))
            for _ in range(dice.randrange(1, 5)):
                at = dice.randrange(len(data))
                data[at : at + dice.randrange(4)] = dice.randbytes(dice.randrange(4))
            async with bench.client() as client:
                await client.send(bytes(data))
                await client.stream.send_eof()
                answers = await client.rest()
            assert all(100 <= status <= 505 for status in statuses(answers)), (seed, bytes(data), answers)
            assert 500 not in statuses(answers), (seed, bytes(data), answers)
        await until(lambda: not bench.server.connections)
        async with bench.client() as client:
            assert (await client.request("GET", "/v0/health")).status == 200
