"""SIGTERM: what is under way finishes, what is idle closes, what comes is refused."""

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
import trio

from tests.gateway.harness import Bench, request, serving, until
from topics.board import Board, Phase
from topics.gateway.server import Patience
from topics.gateway.shard_calls import Shards

HOT = "/v0/topics/a"
COLD = "/v0/topics/a/delete"


async def ended(bench):
    with trio.fail_after(60):
        await bench.done.wait()


def slow_until(bench, release):
    """How shards behave that keep the first call waiting."""

    async def slow(name, method, head, body):
        bench.shards.waiting.set()
        await release.wait()
        bench.shards.behave = None
        return await bench.shards.call(name, method, head, body)

    return slow


async def test_idle_connections_close_and_the_server_ends():
    async with serving() as bench, bench.client() as never_used, bench.client() as used:
        assert (await used.request("GET", "/v0/health")).status == 200
        bench.stop.set()
        assert await used.rest() == b""
        assert await never_used.rest() == b""
        await ended(bench)


@pytest.mark.parametrize("path", [HOT, COLD])
async def test_requests_under_way_finish_and_their_connections_close(path):
    release = trio.Event()

    async with serving() as bench, bench.client() as client:
        bench.shards.behave = slow_until(bench, release)
        await client.send(request("POST", path, b"{}"))
        await bench.shards.waiting.wait()
        bench.stop.set()
        await until(lambda: bench.server.draining)
        release.set()
        answer = await client.response()
        assert (answer.status, answer.closes) == (200, True)
        await ended(bench)


async def test_long_polls_are_answered_at_once_with_what_there_is():
    async def poll(name, method, head, body):
        if head.get("wait", True):
            await bench.shards.hang()
        bench.shards.behave = None
        return await bench.shards.call(name, method, head, body)

    async with serving() as bench, bench.client() as client:
        bench.shards.behave = poll
        await client.send(request("POST", "/v0/topics/a/diff", b'{"wait_ms":30000}'))
        await bench.shards.waiting.wait()
        bench.stop.set()
        answer = await client.response()
        assert (answer.status, answer.closes) == (200, True)
        assert bench.shards.cancelled == 1
        await ended(bench)


@pytest.mark.parametrize("path", [HOT, COLD])
async def test_new_requests_on_open_connections_are_refused(path):
    async with serving() as bench, bench.client() as client:
        data = request("POST", path, b"{}")
        await client.send(data[:20])  # begun, so not idle
        await until(lambda: any(connection.parser.in_head for connection in bench.server.connections))
        bench.stop.set()
        await until(lambda: bench.server.draining)
        await client.send(data[20:])
        answer = await client.response()
        assert (answer.status, answer.closes) == (503, True)
        assert json.loads(answer.body)["error"]["code"] == "shutting_down"
        assert answer.headers[b"retry-after"] == b"1"
        await ended(bench)
    assert bench.shards.calls == []


@pytest.mark.parametrize(("path", "status"), [("/v0/health", 200), ("/v0/ready", 503), ("/v0/nope", 404)])
async def test_probes_still_answer(path, status):
    async with serving() as bench, bench.client() as client:
        data = request("GET", path)
        await client.send(data[:9])
        await until(lambda: any(connection.parser.in_head for connection in bench.server.connections))
        bench.stop.set()
        await until(lambda: bench.server.draining)
        await client.send(data[9:])
        answer = await client.response()
        assert answer.status == status
        if status == 503:
            assert json.loads(answer.body)["error"]["code"] == "shutting_down"


async def test_pipelined_requests_behind_one_under_way_are_not_carried_out():
    release = trio.Event()

    async with serving() as bench, bench.client() as client:
        bench.shards.behave = slow_until(bench, release)
        await client.send(request("POST", HOT, b"1") + request("POST", HOT, b"2"))
        await bench.shards.waiting.wait()
        bench.stop.set()
        await until(lambda: bench.server.draining)
        release.set()
        assert (await client.response()).closes
        assert await client.rest() == b""
        await ended(bench)
    assert b"2" not in [call[3] for call in bench.shards.calls]


async def test_the_port_is_free_for_others_to_accept_on():
    async with serving() as bench:
        bench.stop.set()
        await ended(bench)
        with pytest.raises(OSError, match="connect"):
            await trio.open_tcp_stream("127.0.0.1", bench.port)


@asynccontextmanager
async def held_up(**options: Any) -> AsyncIterator[Bench]:
    """A server that ends, all of it, as soon as one request is over: at the end of the block."""
    release = trio.Event()

    async with serving(**options) as bench, bench.client() as client:
        bench.server.gateway.board = Board.private([0])
        bench.server.gateway.board.set_phase(Phase.DRAINING)
        bench.shards.behave = slow_until(bench, release)
        await client.send(request("POST", HOT, b"{}"))
        await bench.shards.waiting.wait()
        bench.stop.set()
        await until(lambda: bench.server.draining)
        yield bench
        release.set()
        assert (await client.response()).status == 200
        await ended(bench)


@pytest.mark.parametrize(("path", "status"), [("/v0/health", 200), ("/v0/ready", 503), (HOT, 503), (COLD, 503)])
async def test_new_connections_are_answered_while_something_is_under_way(path, status):
    async with held_up() as bench:
        for _ in range(3):
            async with bench.client() as client:
                answer = await client.request("POST" if path == COLD else "GET", path)
                assert (answer.status, answer.closes) == (status, True)
                if status == 503:
                    assert json.loads(answer.body)["error"]["code"] == "shutting_down"
                assert await client.rest() == b""
    with pytest.raises(OSError, match="connect"):
        await trio.open_tcp_stream("127.0.0.1", bench.port)


async def test_new_connections_that_say_nothing_do_not_hold_it_up():
    async with AsyncExitStack() as outlives:
        async with held_up(patience=Patience(sweep_s=0.01, linger_s=3600)) as bench:
            silent = await outlives.enter_async_context(bench.client())
            await until(lambda: len(bench.server.connections) == 2)
        assert await silent.rest() == b""


async def test_new_connections_that_say_nothing_are_cut_off():
    async with held_up(patience=Patience(sweep_s=0.01, linger_s=0.05)) as bench, bench.client() as silent:
        assert await silent.rest() == b""


@pytest.mark.parametrize("path", ["/v0/watch/wid_AAAAAAAAAAAAAAAAAAAAAA", "/v0/topics/a/work?node=w"])
async def test_event_streams_get_no_answer_so_that_browsers_try_again(path):
    async with held_up() as bench, bench.client() as client:
        await client.send(request("GET", path, headers="Accept: text/event-stream\r\n"))
        assert await client.rest() == b""


async def test_if_only_this_gateway_ends_new_connections_wait():
    async with serving() as bench, bench.client() as client:
        bench.shards.behave = bench.shards.hang
        await client.send(request("POST", HOT, b"{}"))
        await bench.shards.waiting.wait()
        bench.stop.set()
        await until(lambda: bench.server.draining)
        with pytest.raises(OSError, match="connect"):  # nobody else has the port here
            await trio.open_tcp_stream("127.0.0.1", bench.port)


async def test_a_drain_has_an_end():
    async with serving(grace_s=0.05) as bench, bench.client() as client:
        bench.shards.behave = bench.shards.hang
        await client.send(request("POST", HOT, b"{}"))
        await bench.shards.waiting.wait()
        bench.stop.set()
        await ended(bench)
        assert await client.rest() == b""


def test_the_pretended_shards_have_the_real_methods():
    assert {"begin", "call", "call_all"} <= set(dir(Shards))
