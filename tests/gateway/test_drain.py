"""SIGTERM: what is under way finishes, what is idle closes, what comes is refused."""

import json

import pytest
import trio

from tests.gateway.harness import request, serving, until
from topics.gateway.shard_calls import Shards

HOT = "/v0/topics/a"
COLD = "/v0/topics/a/delete"


async def ended(bench):
    with trio.fail_after(60):
        await bench.done.wait()


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

    async def slow(name, method, head, body):
        bench.shards.waiting.set()
        await release.wait()
        bench.shards.behave = None
        return await bench.shards.call(name, method, head, body)

    async with serving() as bench, bench.client() as client:
        bench.shards.behave = slow
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

    async def slow(name, method, head, body):
        bench.shards.waiting.set()
        await release.wait()
        bench.shards.behave = None
        return await bench.shards.call(name, method, head, body)

    async with serving() as bench, bench.client() as client:
        bench.shards.behave = slow
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
