"""Requests that an ASGI app answers through the bridge."""

import logging

import pytest
import trio

from tests.gateway.harness import chunked, request, serving, until
from topics.gateway.server import Patience

START = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]}


def body(data, more=False):
    return {"type": "http.response.body", "body": data, "more_body": more}


async def stream_three(scope, receive, send):
    await send(START)
    for data in (b"one", b"", b"two", b"three"):
        await send(body(data, more=True))
    await send(body(b""))


async def test_an_answer_without_a_length_is_chunked_and_keeps_the_connection():
    async with serving(stream_three) as bench, bench.client() as client:
        for _ in range(2):
            answer = await client.request("GET", "/x")
            assert answer.headers[b"transfer-encoding"] == b"chunked"
            assert answer.body == b"onetwothree"


async def test_for_http_1_0_the_end_of_the_connection_ends_it():
    async with serving(stream_three) as bench, bench.client() as client:
        await client.send(b"GET /x HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        answer = await client.response()
        assert answer.closes
        assert b"transfer-encoding" not in answer.headers
        assert answer.body == b"onetwothree"


async def test_a_stream_arrives_piece_by_piece():
    go_on = trio.Event()

    async def app(scope, receive, send):
        await send(START)
        await send(body(b"first", more=True))
        await go_on.wait()
        await send(body(b"second"))

    async with serving(app) as bench, bench.client() as client:
        await client.send(request("GET", "/x"))
        assert b"first" in await client.until(b"first\r\n")
        go_on.set()
        assert await client.until(b"0\r\n\r\n") == b"6\r\nsecond\r\n0\r\n\r\n"


async def test_head_of_a_stream_has_no_body():
    async with serving(stream_three) as bench, bench.client() as client:
        for _ in range(2):
            assert (await client.request("HEAD", "/x")).status == 200
        assert client.buffer == b""


@pytest.mark.parametrize("status", [204, 304])
async def test_statuses_without_a_body(status):
    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send(body(b""))

    async with serving(app) as bench, bench.client() as client:
        for _ in range(2):
            answer = await client.request("GET", "/x")
            assert answer.status == status
            assert b"content-length" not in answer.headers


async def test_an_answer_that_starts_before_the_body_is_complete_keeps_its_word():
    """The body completes while the answer is streamed; it said close, so it closes."""
    go_on = trio.Event()

    async def app(scope, receive, send):
        await send(START)
        await send(body(b"early", more=True))
        await go_on.wait()
        while (await receive())["more_body"]:
            pass
        await send(body(b"late"))

    async with serving(app) as bench, bench.client() as client:
        whole = chunked("POST", "/x", b"abc", b"def")
        await client.send(whole[:-10])
        assert b"connection: close" in await client.until(b"early\r\n")
        await client.send(whole[-10:] + request("GET", "/v0/health"))
        go_on.set()
        assert await client.rest() == b"4\r\nlate\r\n0\r\n\r\n"


async def test_an_app_that_does_not_read_the_body():
    async def app(scope, receive, send):
        await send(START)
        await send(body(b"no thanks"))

    async with serving(app) as bench, bench.client() as client:
        answer = await client.request("POST", "/x", b"complete")
        assert not answer.closes
        await client.send(request("POST", "/x", b"not complete")[:-3])
        answer = await client.response()
        assert answer.closes
        assert answer.body == b"no thanks"


async def test_the_scope():
    seen = {}

    async def app(scope, receive, send):
        seen.update(scope)
        await send(START)
        await send(body(b""))

    async with serving(app) as bench, bench.client() as client:
        await client.request("GET", "/a%2Fb%20c?x=%20y", headers="X-Thing: Value\r\n")
        assert (seen["path"], seen["raw_path"], seen["query_string"]) == ("/a/b c", b"/a%2Fb%20c", b"x=%20y")
        assert (b"x-thing", b"Value") in seen["headers"]
        assert seen["server"] == ("127.0.0.1", bench.port)
        assert seen["client"][0] == "127.0.0.1"
        assert (seen["method"], seen["http_version"], seen["scheme"]) == ("GET", "1.1", "http")


@pytest.mark.parametrize("target", ["http://test/v0/x?q", "http://test:99/v0/x?q"])
async def test_absolute_targets(target):
    seen = {}

    async def app(scope, receive, send):
        seen.update(scope)
        await send(START)
        await send(body(b""))

    async with serving(app) as bench, bench.client() as client:
        await client.request("GET", target)
        assert (seen["raw_path"], seen["query_string"]) == (b"/v0/x", b"q")


async def test_an_app_that_fails_is_a_500(caplog):
    async def app(scope, receive, send):
        raise RuntimeError("inside")

    async with serving(app) as bench, bench.client() as client:
        answer = await client.request("GET", "/x")
        assert answer.status == 500
        assert b'"code":"internal"' in answer.body
        assert b"inside" not in answer.body
        assert any(record.exc_info for record in caplog.records)


async def test_an_app_that_fails_in_mid_answer_ends_the_connection(caplog):
    caplog.set_level(logging.CRITICAL)

    async def app(scope, receive, send):
        await send(START)
        await send(body(b"half", more=True))
        raise RuntimeError

    async with serving(app) as bench, bench.client() as client:
        await client.send(request("GET", "/x"))
        assert (await client.rest()).endswith(b"4\r\nhalf\r\n")


async def test_an_app_that_says_nothing_is_a_500():
    async def app(scope, receive, send):
        pass

    async with serving(app) as bench, bench.client() as client:
        assert (await client.request("GET", "/x")).status == 500


async def test_the_app_hears_that_the_client_went():
    heard = trio.Event()

    async def app(scope, receive, send):
        assert (await receive())["type"] == "http.request"
        assert (await receive())["type"] == "http.disconnect"
        heard.set()

    async with serving(app) as bench:
        async with bench.client() as client:
            await client.send(request("GET", "/x"))
            await until(lambda: bench.server.connections)
        with trio.fail_after(60):
            await heard.wait()


async def test_a_whole_answer_is_logged_although_its_client_goes_before_the_app_is_done(caplog):
    caplog.set_level(logging.DEBUG, "topics.access")

    async def app(scope, receive, send):
        await receive()
        await send(START | {"headers": [(b"content-length", b"5"), (b"x-request-id", b"find-me")]})
        await send(body(b"whole", more=True))
        while (await receive())["type"] != "http.disconnect":
            pass

    async with serving(app) as bench:
        async with bench.client() as client:
            await client.send(request("GET", "/x"))
            await client.until(b"whole")
        await until(lambda: not bench.server.connections)
        assert [line.fields["request_id"] for line in caplog.records if line.name == "topics.access"] == ["find-me"]


async def test_a_stall_cuts_the_app_short():
    events = []

    async def app(scope, receive, send):
        while True:
            events.append((await receive())["type"])
            if events[-1] == "http.disconnect":
                return

    async with serving(app, patience=Patience(sweep_s=0.01, body_s=0.05)) as bench, bench.client() as client:
        await client.send(request("POST", "/x", b"abc")[:-1])
        assert (await client.response()).status == 408
        assert events == ["http.request", "http.disconnect"]


async def test_a_client_that_goes_while_it_is_answered_is_no_failure_of_the_app(caplog):
    """Also when the app sends from a nursery of its own, as Quart-Trio does: that wraps what `send` raises."""
    ended = trio.Event()

    async def app(scope, receive, send):
        async def talk():
            await send(START)
            while True:
                await send(body(b"x" * 1_000_000, more=True))

        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(talk)
        finally:
            ended.set()

    async with serving(app) as bench:
        async with bench.client() as client:
            await client.send(request("GET", "/x"))
            await client.until(b"xxx")
        with trio.fail_after(60):
            await ended.wait()
        await until(lambda: not bench.server.connections)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
